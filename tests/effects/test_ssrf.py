"""Requests go to public addresses only, to the address that was judged, within time and size."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tenure.sandbox.ssrf import (
    AddressBlocked,
    RequestFailed,
    SsrfPolicy,
    judge,
    request,
    resolve_by_system,
    sign,
    verify,
    why_blocked,
)

PUBLIC = "93.184.216.34"
HOST = "api.example.test"
HERE: Any = {"host": HOST, "path": "/hook?a=1"}
HTTP_TOO = SsrfPolicy(allow_http=True)


def answers(*addresses: str) -> list[str]:
    return list(addresses)


class Names:
    """A resolver with a table; counts how often it is asked."""

    def __init__(self, **table: Sequence[str]) -> None:
        self.table = {HOST: [PUBLIC], **{name.replace("_", "."): found for name, found in table.items()}}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.table:
            raise socket.gaierror(-2, "Name or service not known")
        return self.table[host]


# Judging.


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "192.0.2.1",
        "240.0.0.1",
        "[::]",
        "[::1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:169.254.169.254]",
        "[::ffff:8.8.8.8]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
        "[2001::1]",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fec0::1]",
        "[ff02::1]",
        "[2001:db8::1]",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "017700000001",
        "127.1",
        "0177.0.0.1",
        "127.0.0.1.",
        "１２７.0.0.1",
        "169.254.169.254.",
    ],
)
def test_addresses_that_are_not_public_are_blocked_in_every_spelling(host: str) -> None:
    names = Names()

    with pytest.raises(AddressBlocked, match="Nothing was sent"):
        judge(f"http://{host}/latest/meta-data", HTTP_TOO, names)

    assert names.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "192.0.0.1",
        "192.0.0.8",
        "192.0.0.11",
        "192.0.0.170",
        "192.0.0.171",
        "192.0.0.192",
        "192.0.2.7",
        "192.31.196.1",
        "192.52.193.1",
        "192.88.99.1",
        "192.88.99.2",
        "192.175.48.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "239.255.255.255",
        "240.0.0.1",
        "100::1",
        "100:0:0:1::1",
        "64:ff9b::1.2.3.4",
        "64:ff9b:1::a00:1",
        "2001::1",
        "2001:2::1",
        "2001:3::1",
        "2001:4:112::1",
        "2001:10::1",
        "2001:20::1",
        "2001:30::1",
        "2001:db8::1",
        "2002:a00:1::1",
        "2620:4f:8000::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "1000::1",
        "2600:1f00::5efe:10.0.0.1",
        "2600:1f00::200:5efe:10.0.0.1",
        "fe80::5efe:10.0.0.1",
    ],
)
def test_v9_special_purpose_addresses_are_blocked_whatever_python_calls_them(address: str) -> None:
    """V9: Python's `is_global` called 192.0.0.192 and eight others public."""
    found = ipaddress.ip_address(address)

    assert why_blocked(found) is not None
    assert why_blocked(found, allow_private=True) is not None


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "192.0.0.9",
        "192.0.0.10",
        "192.0.1.1",
        "93.184.216.34",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "2a00:1450::1",
        "2001:1::1",
        "2620:fe::fe",
    ],
)
def test_v9_public_addresses_stay_reachable(address: str) -> None:
    """V9: the exceptions that the registries make inside 192.0.0.0/24 and 2001::/23 are public."""
    assert why_blocked(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(
    "found",
    [
        answers("127.0.0.1"),
        answers(PUBLIC, "169.254.169.254"),
        answers("::1"),
        answers(PUBLIC, "::ffff:10.0.0.1"),
        answers("nonsense"),
        answers("fe80::1%eth0"),
    ],
)
def test_a_name_with_any_address_that_is_not_public_is_blocked(found: list[str]) -> None:
    with pytest.raises(AddressBlocked):
        judge("https://evil.test/", HTTP_TOO, Names(evil_test=found))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "//example.com/",
        "http:///path",
        "http://user:pass@api.example.test/",
        "http://api.example.test@127.0.0.1/",
        "http://api.example.test\\@127.0.0.1/",
        "http://api.example.test/\r\nX: y",
        "http://api.example.test/a b",
        "http://api.example.test:0/",
        "http://api.example.test:99999/",
        "http://[fe80::1%25eth0]/",
        "http://[::1/",
        "http://exa$mple.test/",
        "http://-x.test/",
        "http://a..b/",
        "",
    ],
)
def test_urls_that_could_be_read_in_two_ways_are_blocked(url: str) -> None:
    with pytest.raises(AddressBlocked):
        judge(url, HTTP_TOO, Names())


def test_a_public_address_passes_and_is_the_one_to_connect_to() -> None:
    target = judge(f"https://{HOST.upper()}./x?y", HTTP_TOO, Names())

    assert (target.host, target.port, target.address) == (HOST, 443, PUBLIC)
    assert judge("http://8.8.8.8/", HTTP_TOO).address == "8.8.8.8"
    assert judge("http://[2606:4700::1111]:8080/", HTTP_TOO).port == 8080


def test_names_in_other_scripts_are_resolved_as_dns_writes_them() -> None:
    names = Names(**{"xn--bcher-kva_test": [PUBLIC]})

    assert judge("http://bücher.test/", HTTP_TOO, names).host == "xn--bcher-kva.test"


def test_private_addresses_may_be_allowed_but_metadata_may_not() -> None:
    policy = SsrfPolicy(allow_private=True, allow_http=True)

    for host in ("127.0.0.1", "10.0.0.1", "[::1]", "[fd12::1]"):
        judge(f"http://{host}/", policy)
    clouds = ("169.254.169.254", "[fd00:ec2::254]", "[fd20:ce::254]", "100.100.100.200", "168.63.129.16")
    for host in (*clouds, "[fe80::1]", "[::ffff:10.0.0.1]", "0.0.0.0", "224.0.0.1"):
        with pytest.raises(AddressBlocked):
            judge(f"http://{host}/", policy)


def test_every_special_network_that_the_library_knows_is_blocked() -> None:
    for text in ("198.51.100.1", "203.0.113.1", "192.0.0.1", "100::1", "2001:2::1", "2001:db8::1", "198.19.0.1"):
        assert why_blocked(ipaddress.ip_address(text)), text


def test_a_list_of_hosts_shuts_out_all_others() -> None:
    policy = SsrfPolicy(allow_hosts=frozenset({HOST, "*.hooks.test"}), allow_http=True)
    names = Names(a_hooks_test=[PUBLIC], hooks_test=[PUBLIC], other_test=[PUBLIC], evilhooks_test=[PUBLIC])

    judge(f"http://{HOST}/", policy, names)
    judge("http://a.hooks.test/", policy, names)
    for host in ("other.test", "hooks.test", "evilhooks.test", f"{HOST}.other.test", "8.8.8.8"):
        with pytest.raises(AddressBlocked, match="not on the list"):
            judge(f"http://{host}/", policy, names)


def test_ports_and_plain_http_can_be_shut() -> None:
    with pytest.raises(AddressBlocked, match="port 22"):
        judge(f"http://{HOST}:22/", SsrfPolicy(ports=frozenset({80, 443}), allow_http=True), Names())
    with pytest.raises(AddressBlocked, match="scheme"):
        judge(f"http://{HOST}/", SsrfPolicy(), Names())


def test_a_name_that_does_not_resolve_is_no_answer() -> None:
    with pytest.raises(RequestFailed, match="resolved"):
        judge("http://missing.test/", HTTP_TOO, Names())


def test_errors_show_neither_passwords_nor_queries() -> None:
    with pytest.raises(AddressBlocked) as caught:
        judge("http://user:canary@127.0.0.1/?key=canary", HTTP_TOO)

    assert "canary" not in str(caught.value)


def test_the_systems_resolver_knows_this_machine() -> None:
    assert "127.0.0.1" in resolve_by_system("localhost", 80)
    with pytest.raises(AddressBlocked):
        judge("http://localhost/", HTTP_TOO)


# Talking. A real server on this machine plays the public one.


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, b""))
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        self._answer()

    def _answer(self) -> None:
        if self.path.startswith("/to/"):
            self.send_response(int(self.path.split("/")[2]))
            self.send_header("Location", self.server.redirects[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/big":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x" * 65536)
            self.close_connection = True
        elif self.path == "/drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.server.stopping.wait(0.05):
                self.wfile.write(b"y")
        else:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.redirects: dict[str, str] = {}
        self.stopping = threading.Event()

    def handle_error(self, *_: object) -> None:
        """The other side hung up on purpose."""


@pytest.fixture
def server() -> Iterator[Server]:
    yield from serve(Server())


def serve(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def connected_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The internet, staged: whoever connects to the public address reaches the server of the test."""
    real, asked = socket.create_connection, []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address)
        return real(("127.0.0.1", server.server_port) if address[0] == PUBLIC else address, timeout=timeout)

    monkeypatch.setattr("tenure.sandbox.ssrf.socket.create_connection", connect)
    return asked


def test_a_request_goes_to_the_judged_address_with_the_names_host_header(
    server: Server, connected_to: list[tuple[str, int]]
) -> None:
    answer = request(
        "POST", f"http://{HOST}/in?a=1", policy=HTTP_TOO, body=b"hello", headers={"X-A": "b"}, resolver=Names()
    )

    assert (answer.status, answer.body, answer.redirects) == (200, b"ok", 0)
    method, path, headers, body = server.seen[0]
    assert (method, path, body, headers["host"], headers["x-a"]) == ("POST", "/in?a=1", b"hello", HOST, "b")
    assert connected_to == [(PUBLIC, 80)]


def test_a_name_that_answers_differently_the_second_time_is_not_asked_again(
    server: Server, connected_to: list[tuple[str, int]]
) -> None:
    names = Names()

    def rebinding(host: str, port: int) -> Sequence[str]:
        found = names(host, port)
        names.table[host] = ["127.0.0.1"]
        return found

    request("GET", f"http://{HOST}/", policy=HTTP_TOO, resolver=rebinding)

    assert names.asked == [HOST]
    assert connected_to == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    "location",
    ["http://127.0.0.1/", "http://169.254.169.254/", "//[::1]/", "http://rebound.test/", "file:///etc/passwd"],
)
def test_a_redirect_to_a_blocked_address_is_not_followed(
    server: Server, connected_to: list[tuple[str, int]], location: str
) -> None:
    server.redirects["/to/302"] = location

    with pytest.raises(AddressBlocked):
        request(
            "GET",
            f"http://{HOST}/to/302",
            policy=HTTP_TOO,
            max_redirects=5,
            resolver=Names(rebound_test=["10.0.0.1"]),
        )

    assert connected_to == [(PUBLIC, 80)]


def test_redirects_are_followed_only_as_far_as_allowed(server: Server, connected_to: list[tuple[str, int]]) -> None:
    server.redirects = {"/to/302": "/to/307", "/to/307": "/end"}
    start = f"http://{HOST}/to/302"

    assert request("GET", start, policy=HTTP_TOO, resolver=Names()).status == 302
    assert request("GET", start, policy=HTTP_TOO, resolver=Names(), max_redirects=1).status == 307
    answer = request("GET", start, policy=HTTP_TOO, resolver=Names(), max_redirects=2)

    assert (answer.status, answer.url, answer.redirects) == (200, f"http://{HOST}/end", 2)


@pytest.mark.parametrize(("status", "method", "body"), [(307, "POST", b"x"), (302, "GET", b""), (303, "GET", b"")])
def test_a_redirect_keeps_or_drops_the_body_as_its_status_says(
    server: Server, connected_to: list[tuple[str, int]], status: int, method: str, body: bytes
) -> None:
    server.redirects[f"/to/{status}"] = "/end"

    request(
        "POST", f"http://{HOST}/to/{status}", policy=HTTP_TOO, resolver=Names(), body=b"x", max_redirects=1,
        headers={"Content-Type": "text/plain"},
    )  # fmt: skip

    assert (server.seen[1][0], server.seen[1][3]) == (method, body)
    assert ("content-type" in server.seen[1][2]) == bool(body)


def test_credentials_do_not_travel_to_another_host(server: Server, connected_to: list[tuple[str, int]]) -> None:
    server.redirects = {"/to/307": "http://other.test/end", "/to/308": "/end"}
    secret = {"Authorization": "Bearer x", "X-Tenure-Signature": "s", "X-Api-Key": "k", "X-Vault-Token": "t"}
    headers = {**secret, "User-Agent": "mine"}

    for path in ("/to/307", "/to/308"):
        request(
            "GET", f"http://{HOST}{path}", policy=HTTP_TOO, headers=headers, max_redirects=1,
            resolver=Names(other_test=[PUBLIC]),
        )  # fmt: skip

    other, same = server.seen[1][2], server.seen[3][2]
    assert {name.lower() for name in secret}.isdisjoint(other)
    assert other["user-agent"] == "mine"
    assert {name.lower() for name in secret} <= set(same)


def test_an_answer_over_the_cap_is_not_read(server: Server, connected_to: list[tuple[str, int]]) -> None:
    with pytest.raises(RequestFailed, match="larger than 100000"):
        request("GET", f"http://{HOST}/big", policy=HTTP_TOO, resolver=Names(), max_body=100_000)

    assert (
        len(request("GET", f"http://{HOST}/big", policy=HTTP_TOO, resolver=Names(), max_body=7 << 20).body) == 6_553_600
    )


def test_a_server_that_drips_is_left_when_the_time_is_over(server: Server, connected_to: list[tuple[str, int]]) -> None:
    began = time.monotonic()

    with pytest.raises(RequestFailed, match="unknown"):
        request("GET", f"http://{HOST}/drip", policy=HTTP_TOO, resolver=Names(), timeout=0.5)

    assert time.monotonic() - began < 10


def test_a_refused_connection_is_a_failed_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(RequestFailed, match="unknown"):
        request("GET", f"http://127.0.0.1:{port}/", policy=SsrfPolicy(allow_private=True, allow_http=True))


def test_headers_cannot_smuggle_others(server: Server, connected_to: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="header"):
        request("GET", f"http://{HOST}/", policy=HTTP_TOO, resolver=Names(), headers={"X": "a\r\nY: b"})


def test_a_header_that_cannot_be_sent_is_refused_without_showing_it(
    server: Server, connected_to: list[tuple[str, int]]
) -> None:
    for value in ("canary\n", "canary\0", "canary\u20ac"):
        with pytest.raises(ValueError, match="the value of header 'X'") as caught:
            request("GET", f"http://{HOST}/", policy=HTTP_TOO, resolver=Names(), headers={"X": value})
        assert "canary" not in str(caught.value)

    assert server.seen == []


def test_a_path_in_another_script_is_sent_as_browsers_do(server: Server, connected_to: list[tuple[str, int]]) -> None:
    request("GET", f"http://{HOST}/gr\u00fc\u00df?q=\u20ac&r=%20", policy=HTTP_TOO, resolver=Names())

    assert server.seen[0][1] == "/gr%C3%BC%C3%9F?q=%E2%82%AC&r=%20"


# TLS.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for the name of the test, signed by itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    plain = serialization.NoEncryption()
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return path


@pytest.fixture
def tls_names(server: Server, certificate: Path) -> list[str]:
    """Makes the server speak TLS; lists the names that clients asked for."""
    asked: list[str] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def note(_sock: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        asked.append(name or "")

    context.sni_callback = note
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return asked


def test_tls_goes_to_the_judged_address_but_by_the_name(
    server: Server, certificate: Path, tls_names: list[str], connected_to: list[tuple[str, int]]
) -> None:
    context = ssl.create_default_context(cafile=str(certificate))

    answer = request("GET", f"https://{HOST}/", policy=HTTP_TOO, resolver=Names(), context=context)

    assert (answer.status, tls_names, connected_to) == (200, [HOST], [(PUBLIC, 443)])


def test_a_certificate_for_another_name_or_by_nobody_is_refused(
    server: Server, certificate: Path, tls_names: list[str], connected_to: list[tuple[str, int]]
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))

    with pytest.raises(RequestFailed, match="CERTIFICATE_VERIFY_FAILED"):
        request("GET", "https://other.test/", policy=HTTP_TOO, resolver=Names(other_test=[PUBLIC]), context=trusting)
    with pytest.raises(RequestFailed, match="CERTIFICATE_VERIFY_FAILED"):
        request("GET", f"https://{HOST}/", policy=HTTP_TOO, resolver=Names())

    assert server.seen == []


def test_a_redirect_may_not_lead_away_from_tls(
    server: Server, certificate: Path, tls_names: list[str], connected_to: list[tuple[str, int]]
) -> None:
    server.redirects["/to/302"] = f"http://{HOST}/plain"
    context = ssl.create_default_context(cafile=str(certificate))

    with pytest.raises(AddressBlocked, match="https"):
        request("GET", f"https://{HOST}/to/302", policy=HTTP_TOO, resolver=Names(), context=context, max_redirects=1)


# Signatures.


def test_a_signature_holds_for_its_body_its_secret_and_a_while() -> None:
    header = sign(b"secret", b'{"a":1}', 1000, **HERE)

    assert header == "t=1000,v1=" + header.partition("v1=")[2]
    assert verify(header, [b"secret"], b'{"a":1}', **HERE, now=1000)
    assert verify(header, [b"new", b"secret"], b'{"a":1}', **HERE, now=1299)
    assert not verify(header, [b"secret"], b'{"a":2}', **HERE, now=1000)
    assert not verify(header, [b"other"], b'{"a":1}', **HERE, now=1000)
    assert not verify(header, [b"secret"], b'{"a":1}', **HERE, now=1301)
    assert not verify(header, [b"secret"], b'{"a":1}', **HERE, now=600)
    assert not verify(header.replace("t=1000", "t=1001"), [b"secret"], b'{"a":1}', **HERE, now=1000)


@pytest.mark.parametrize("header", ["", "t=,v1=", "v1=abc", "t=1000", "t=x,v1=y", "t=1000,v1=ü", "t=٣,v1=a", "=,="])
def test_a_malformed_signature_is_no_signature(header: str) -> None:
    assert not verify(header, [b"secret"], b"x", **HERE, now=1000)


@pytest.mark.parametrize("other", [{"host": "other.test"}, {"path": "/hook?a=2"}, {"path": "/"}])
def test_v1_a_signature_holds_for_its_host_and_path_only(other: dict[str, str]) -> None:
    """V1: the signature covered moment and body alone, so one made for any URL was good for every receiver."""
    header = sign(b"secret", b"x", 1000, **HERE)

    assert verify(header, [b"secret"], b"x", **HERE, now=1000)
    assert not verify(header, [b"secret"], b"x", **{**HERE, **other}, now=1000)
