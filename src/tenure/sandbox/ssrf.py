"""HTTP out to addresses that a job names, without becoming a tunnel into the network the worker stands in.

A name is resolved once, every address it has is judged, and the connection goes to the address that was judged: a
name that answers differently the second time is never asked a second time. Certificate and Host header still go by
the name. Each redirect is a new request and is judged anew. Nothing here reads proxy settings from the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import ipaddress
import re
import socket
import ssl
import string
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import cast
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from tenure.errors import TenureError, UsageError
from tenure.model.frozen import frozen

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Sequence[str]]


def _networks(*rows: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for row in rows for text in row.split())


# The IANA special-purpose address registries (RFC 6890 and its updates), with multicast and deprecated blocks.
# Python's `is_global` is not used: it differs between versions and calls several of these public.
_PRIVATE = _networks(  # the worker's own network and machine; `allow_private` opens these
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
    "::1/128 fc00::/7 fec0::/10",
)
_SPECIAL = _networks(
    "192.0.0.0/24",  # IETF protocol assignments; exceptions below
    "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24",  # documentation
    "192.31.196.0/24 192.175.48.0/24 192.52.193.0/24",  # AS112, AMT
    "192.88.99.0/24",  # 6to4 relays
    "198.18.0.0/15",  # benchmarking
    "224.0.0.0/4 240.0.0.0/4",  # multicast, reserved, broadcast
    "2001::/23",  # IETF protocol assignments: Teredo, ORCHID, benchmarking, AMT …; exceptions below
    "2001:db8::/32 3fff::/20",  # documentation
    "2620:4f:8000::/48",  # AS112
    "5f00::/16",  # segment routing
    "100::/64 100:0:0:1::/64",  # discard, dummy
    "ff00::/8",  # multicast
)
_EXCEPTIONS = _networks(  # globally reachable by the registries although inside a special block
    "192.0.0.9/32 192.0.0.10/32",  # port control, TURN: anycast
    "2001:1::1/128 2001:1::2/128 2001:1::3/128",
)
_PUBLIC_IPV6 = _networks("2000::/3")  # all that is assigned for unicast so far
# Where clouds answer their own machines: link-local, and addresses of Alibaba, AWS, Google, Oracle and Azure
# elsewhere.
_METADATA = _networks(
    "169.254.0.0/16 100.100.100.200/32 168.63.129.16/32 192.0.0.192/32",
    "fe80::/10 fd00:ec2::/32 fd20:ce::/32",
)
# Prefixes that carry an IPv4 address inside, which a gateway may unpack: compatible, mapped, translated, NAT64, 6to4,
# Teredo.
_CARRIERS = _networks(
    "::/96 ::ffff:0:0/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 2002::/16 2001::/32",
)
_ISATAP = (0x0000_5EFE, 0x0200_5EFE, 0x0100_5EFE, 0x0300_5EFE)  # third quarter of an address that carries one
_HOST_NAME = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
_NUMBER = re.compile(r"0x[0-9a-f]*|\d+")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_REDIRECTS = {301, 302, 303, 307, 308}
_FOR_EVERYBODY = {"accept", "accept-encoding", "accept-language", "user-agent"}
_CHUNK = 64 * 1024


class AddressBlocked(UsageError):
    """The URL leads to an address that jobs may not reach. Nothing was sent."""

    code = "address_blocked"

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"Request to {_without_secrets(url)} is refused: {why}. Nothing was sent. "
            "If jobs are meant to reach it, an operator has to allow it in the policy for outgoing requests."
        )


class RequestFailed(TenureError):
    """The request got no usable answer: connection, TLS, time or size. Whether it arrived is unknown."""

    code = "request_failed"


@frozen
class SsrfPolicy:
    """Where jobs may send requests.

    Attributes:
        allow_hosts: If given, only these names: "api.example.com", or "*.example.com" for all below it.
        allow_private: Also addresses of the worker's own network and machine. Link-local ones (where clouds keep
            their metadata), multicast and unspecified ones stay shut.
        allow_http: Whether requests may go unencrypted. Secrets in headers and bodies are then readable on the way.
        ports: If given, only these.
    """

    allow_hosts: frozenset[str] = frozenset()
    allow_private: bool = False
    allow_http: bool = False
    ports: frozenset[int] = frozenset()


@frozen
class Target:
    """A URL that was judged, with the one address to connect to."""

    url: SplitResult
    host: str
    port: int
    address: str


@frozen
class Response:
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    url: str
    redirects: int


def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """All addresses of a name, as the machine's resolver says."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def judge(url: str, policy: SsrfPolicy, resolver: Resolver = resolve_by_system) -> Target:
    """Resolve and check a URL.

    Raises:
        AddressBlocked: It is malformed, or any address of its host is one that jobs may not reach.
        RequestFailed: The name could not be resolved.
    """
    parts, host, port = _parse(url, policy)
    literal = _literal(url, host)
    try:
        found = [str(literal)] if literal else list(resolver(host, port))
    except OSError as exc:
        raise RequestFailed(f"The name {host!r} could not be resolved: {exc}. Check it, and the worker's DNS.") from exc
    if not found:
        raise RequestFailed(f"The name {host!r} has no address. Check it, and the worker's DNS.")
    for address in found:  # one bad address condemns the name: a resolver that mixes them is playing for a retry
        if why := why_blocked(_address(url, address), allow_private=policy.allow_private):
            raise AddressBlocked(url, f"{host!r} is {address}, which {why}")
    return Target(parts, host, port, found[0])


def why_blocked(address: Address, *, allow_private: bool = False) -> str | None:
    """Why jobs may not reach this address, or None."""
    if address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
        return "is a group of machines"
    if address.is_unspecified:
        return "means every address of this machine"
    if _in(address, _METADATA):
        return "is where clouds keep their metadata, or link-local as those are"
    is_private = _in(address, _PRIVATE)
    if not is_private and (_in(address, _CARRIERS) or _is_isatap(address)):
        return "carries another address inside"
    if is_private:
        return None if allow_private else "is not a public address"
    if _in(address, _SPECIAL) and not _in(address, _EXCEPTIONS):
        return "is not a public address"
    if address.version == 6 and not _in(address, _PUBLIC_IPV6):
        return "is not a public address"
    return None


def _in(address: Address, networks: tuple[Network, ...]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _is_isatap(address: Address) -> bool:
    """Whether the interface part is `…:5efe:` and an IPv4 address (RFC 5214), under any prefix."""
    return address.version == 6 and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP


def request(
    method: str,
    url: str,
    *,
    policy: SsrfPolicy,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    timeout: float = 30.0,
    max_body: int = 1 << 20,
    max_redirects: int = 0,
    resolver: Resolver = resolve_by_system,
    context: ssl.SSLContext | None = None,
) -> Response:
    """Send one request and read the answer, all within `timeout` seconds (name resolution apart).

    Raises:
        ValueError: A header cannot be sent. Nothing was; the message does not show the value.
        AddressBlocked: This URL, or one it redirects to, leads where jobs may not go.
        RequestFailed: No complete answer in time, or one larger than `max_body`.
    """
    deadline = time.monotonic() + timeout
    sent = {"Accept-Encoding": "identity", "User-Agent": "tenure", **_sendable(headers or {})}
    for hops in range(max_redirects + 1):
        target = judge(url, policy, resolver)
        answer = _exchange(method, target, sent, body, deadline, max_body, context or ssl.create_default_context())
        location = answer.headers.get("location")
        if answer.status not in _REDIRECTS or location is None or hops == max_redirects:
            return Response(answer.status, answer.headers, answer.body, url, hops)
        new = urljoin(url, location)
        if target.url.scheme == "https" and not new.lower().startswith("https:"):
            raise AddressBlocked(new, "a redirect may not lead away from https")
        if answer.status == 303 or (answer.status in {301, 302} and method == "POST"):
            method, body = "GET", b""
        sent = _for_redirect(sent, url, new, keeps_body=bool(body))
        url = new
    raise AssertionError("the loop returns on its last round")


def _sendable(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, if each is one: http.client would say so too, but with the value, which may be a secret."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is no name of a header")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the value of header {name!r} holds line ends, control characters or other scripts")
    return headers


@frozen
class Endpoint:
    """Where a URL leads, as a signature and a secret's binding name it.

    Attributes:
        host: The name or address, in lower case.
        authority: The same with the port, if it is not the scheme's own: the Host header.
        path: Path and query as they are sent.
    """

    host: str
    port: int
    authority: str
    path: str

    def is_among(self, hosts: Iterable[str]) -> bool:
        """Whether one of these means this host: "api.example.com", "*.example.com", "api.example.com:8443"."""
        for pattern in hosts:
            name, colon, port = pattern.lower().rpartition(":")
            has_port = colon and port.isdigit() and (":" not in name or name.endswith("]"))
            if not has_port:
                name, port = pattern.lower(), str(self.port)
            if port == str(self.port) and _matches(self.host, name.strip("[]")):
                return True
        return False


def endpoint(url: str, policy: SsrfPolicy) -> Endpoint:
    """Where a URL leads, without asking for its address. Raises: AddressBlocked, if it is malformed or not allowed."""
    parts, host, port = _parse(url, policy)
    return Endpoint(host, port, _authority(parts, host, port), _path(parts))


def sign(secret: bytes, body: bytes, timestamp: int, *, host: str, path: str) -> str:
    """The value of a signature header. It holds for this receiver (host and path with query), body and moment only."""
    return f"t={timestamp},v1={_mac(secret, body, timestamp, host, path)}"


def verify(
    header: str, secrets: Sequence[bytes], body: bytes, *, host: str, path: str, now: float, tolerance: float = 300.0
) -> bool:
    """Whether the header was made by `sign` with one of the secrets, for this body, host and path, not long ago.

    Args:
        host: The receiver's public name as the Host header has it. Set it by hand rather than from the request: then a
            request that was meant for another receiver is refused.
        path: Path and query of the request.
    """
    fields = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    if not re.fullmatch(r"\d{1,12}", fields.get("t", "")) or abs(now - int(fields["t"])) > tolerance:
        return False
    given = fields.get("v1", "").encode(errors="replace")
    # All are compared, so that the time taken does not tell which one fits.
    fits = [hmac.compare_digest(given, _mac(secret, body, int(fields["t"]), host, path).encode()) for secret in secrets]
    return any(fits)


def _parse(url: str, policy: SsrfPolicy) -> tuple[SplitResult, str, int]:
    if any(ord(char) <= 32 or ord(char) == 127 for char in url) or "\\" in url:
        raise AddressBlocked(url, "it contains spaces, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").removesuffix(".")
        if not host.isascii():
            host = host.encode("idna").decode().lower()
    except ValueError as exc:
        raise AddressBlocked(url, f"it is no URL ({exc})") from exc
    if parts.scheme not in {"http", "https"} or (parts.scheme == "http" and not policy.allow_http):
        raise AddressBlocked(url, f"the scheme {parts.scheme!r} is not allowed")
    if "@" in parts.netloc or not host or "%" in host:
        raise AddressBlocked(url, "it must name a host, without user, password or zone")
    port = port if port is not None else 443 if parts.scheme == "https" else 80
    if port == 0 or (policy.ports and port not in policy.ports):
        raise AddressBlocked(url, f"port {port} is not allowed")
    if policy.allow_hosts and not any(_matches(host, pattern.lower()) for pattern in policy.allow_hosts):
        raise AddressBlocked(url, f"host {host!r} is not on the list of allowed hosts")
    return parts, host, port


def _matches(host: str, pattern: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _literal(url: str, host: str) -> Address | None:
    """The address that the host is, or None for a name. Odd spellings of addresses are neither."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if _NUMBER.fullmatch(host.rpartition(".")[2]):  # 2130706433, 0x7f.1, 127.1: what C libraries take for an address
        raise AddressBlocked(url, f"host {host!r} is an odd way to write an address")
    if not _HOST_NAME.fullmatch(host):
        raise AddressBlocked(url, f"host {host!r} is no name of a host")
    return None


def _address(url: str, text: str) -> Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as exc:
        raise AddressBlocked(url, f"its name resolves to {text!r}, which is no address") from exc


def _exchange(
    method: str,
    target: Target,
    headers: Mapping[str, str],
    body: bytes,
    deadline: float,
    max_body: int,
    context: ssl.SSLContext,
) -> Response:
    url = target.url
    connection = http.client.HTTPConnection(target.host, target.port)
    path = _path(url)
    try:
        with _connect(target, deadline, context) as sock:
            connection.sock = cast(socket.socket, _Timed(sock, deadline))
            connection.request(
                method, path, body or None, {"Host": _authority(target.url, target.host, target.port), **headers}
            )
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, found, _read(answer, max_body, target), url.geturl(), 0)
    except (OSError, http.client.HTTPException) as exc:
        raise RequestFailed(
            f"{method} {_without_secrets(url.geturl())} failed: {type(exc).__name__}: {exc}. Whether it arrived is "
            "unknown; repeat it only if the receiver tells repeats apart."
        ) from exc


def _connect(target: Target, deadline: float, context: ssl.SSLContext) -> socket.socket:
    sock = socket.create_connection((target.address, target.port), timeout=_left(deadline))
    if target.url.scheme != "https":
        return sock
    try:
        sock.settimeout(_left(deadline))
        return context.wrap_socket(sock, server_hostname=target.host)
    except BaseException:
        sock.close()
        raise


class _Timed:
    """A socket, as far as http.client uses one, whose every read and write has only what is left of one deadline.

    A timeout of the socket itself starts anew with each byte, so a slow answer could hold a worker for ever.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left(self._deadline))
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        """Left to the code that opened the socket: http.client closes it before the body is read."""


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        self._sock.settimeout(_left(self._deadline))
        return self._sock.recv_into(buffer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for the whole request is over")
    return left


def _read(answer: http.client.HTTPResponse, max_body: int, target: Target) -> bytes:
    body = bytearray()
    while chunk := answer.read(min(_CHUNK, max_body + 1 - len(body))):
        body += chunk
        if len(body) > max_body:
            raise RequestFailed(f"The answer of {target.host!r} is larger than {max_body} bytes and was not read on.")
    return bytes(body)


def _path(url: SplitResult) -> str:
    """Path and query as they are sent: other scripts escaped as browsers do, existing escapes kept."""
    return quote((url.path or "/") + (f"?{url.query}" if url.query else ""), safe=string.printable)


def _authority(url: SplitResult, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port == (443 if url.scheme == "https" else 80) else f"{shown}:{port}"


def _for_redirect(headers: Mapping[str, str], old: str, new: str, *, keeps_body: bool) -> dict[str, str]:
    """Headers to send along. To another scheme, host or port only what is surely no secret: no list knows all names."""
    before, after = urlsplit(old), urlsplit(new)
    same = (before.scheme, before.netloc) == (after.scheme, after.netloc)
    about_body = {name for name in headers if name.lower().startswith("content-")}
    return {
        name: value
        for name, value in headers.items()
        if (keeps_body if name in about_body else same or name.lower() in _FOR_EVERYBODY)
    }


def _mac(secret: bytes, body: bytes, timestamp: int, host: str, path: str) -> str:
    """Over moment, host, path and body, a line each: neither host nor path can hold a line's end."""
    head = f"{timestamp}\n{host.lower()}\n{path}\n".encode(errors="replace")
    return hmac.new(secret, head + body, hashlib.sha256).hexdigest()


def _without_secrets(url: str) -> str:
    """The URL as errors show it: no user, no query."""
    shown = re.sub(r"//[^/@\s]*@", "//", url.partition("?")[0].partition("#")[0])
    return repr(shown[:200])
