"""What all requests of one server share: tenants, settings, failed sign-ins, and signatures."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Network
from typing import TYPE_CHECKING, Any, Final

from tenure.errors import ConfigError, InvalidArgument
from tenure.model import signed
from tenure.model.frozen import frozen
from tenure.web.background import Background
from tenure.web.hub import Hub
from tenure.web.places import Places
from tenure.web.proxies import Proxies, parse_address
from tenure.web.quotas import Quotas

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request

    from tenure.app import App
    from tenure.web.mounted import Mounted

LIFESPAN_SITE: Final = "tenure_site"
"""Under this name a server's connections find the site in the state of its lifespan."""


@frozen
class Limits:
    """Bounds of one server. Each holds before a request is parsed."""

    head_bytes: int = 16 * 1024
    body_bytes: int = 1024 * 1024
    body_seconds: float = 30.0
    """A body that takes longer to arrive is refused."""
    batch: int = 1000
    json_depth: int = 64
    json_digits: int = 19
    look_seconds: float = 2.0
    """How long one read of a GET, of pages and programs alike, may take before it is stopped: 422 `too_wide`."""
    wait_seconds: float = 25.0
    """The longest `wait`: below what proxies and clients allow by default."""
    failures: int = 20
    """Wrong credentials that an address may send before it must wait."""
    waiters: int = 64
    """Long polls of one token at a time."""
    streams: int = 64
    """Event streams of one token or session at a time."""
    queued: int | None = None
    """Jobs of one tenant that may wait; further ones are refused with 429 `quota`, as with the next four."""
    bytes: int | None = None
    """What one tenant's tables may take on disk before no further job is taken."""
    queues: int | None = None
    """Queues of one tenant."""
    tokens: int | None = None
    """Valid tokens of one tenant."""
    tenant_streams: int = 2048
    """Event streams of one tenant at a time."""
    stream_queue: int = 1000
    """Events that a slow reader may lag behind before it is told to read anew."""


class Site:
    """One server's shared state. Made before the event loop runs; used on it only."""

    def __init__(
        self,
        tenants: Mapping[str, App],
        *,
        hosts: Sequence[str],
        secure: bool = False,
        proxies: Sequence[str] = (),
        limits: Limits | None = None,
        audit_heads: Path | None = None,
        mcp: Mounted | None = None,
    ) -> None:
        if not tenants or not hosts:
            raise ConfigError("A server needs at least one app to serve, and one host name that it answers to.")
        self.tenants = dict(tenants)
        self.hosts = frozenset(host.lower() for host in hosts if not host.endswith(":*"))
        self.any_port = frozenset(host.lower().removesuffix(":*") for host in hosts if host.endswith(":*"))
        self.secure = secure
        self.proxies = Proxies(proxies)
        self.limits = limits or Limits()
        self.failures = Failures(self.limits.failures)
        self.homes: OrderedDict[str, str] = OrderedDict()
        """Token id → the tenant that it was found in: saves looking through all of them."""
        self.places = Places()
        self.hub = Hub()
        self.quotas = Quotas(self.tenants, self.limits)
        self.background = Background(self, audit_heads)
        self.mcp = mcp
        self.is_closing = False
        """The server is ending: what waits or streams ends its answer."""
        self._secrets: dict[tuple[str, str], bytes] = {}

    def base_url(self, request: Request) -> str:
        """This server's address as its caller reached it. A proxy that adds TLS asks us in clear."""
        base = str(request.base_url.replace(scheme="https") if self.secure else request.base_url)
        return base.rstrip("/")

    async def has_left(self, request: Request) -> bool:
        """Whether nothing needs to be waited for any more: the client is gone, or the server is ending."""
        return self.is_closing or await request.is_disconnected()

    async def may_wait(self, request: Request) -> bool:
        """Whether a long poll goes on: there is something to wait for, and the token that it came with still holds."""
        return not await self.has_left(request) and await self.hub.may_look(request.state.principal)

    def answers_to(self, host: str) -> bool:
        """Whether the Host header is one of ours."""
        host = host.lower()
        if host in self.hosts:
            return True
        name, colon, port = host.rpartition(":")
        return (host if not colon or not port.isdigit() else name) in self.any_port

    def remember_home(self, token_id: str, tenant: str) -> None:
        """Note where a token that was right lives."""
        self.homes[token_id] = tenant
        self.homes.move_to_end(token_id)
        while len(self.homes) > 10_000:
            self.homes.popitem(last=False)

    async def secret(self, tenant: str, name: str) -> bytes:
        """A key that all processes on a tenant's database share."""
        found = self._secrets.get((tenant, name))
        if found is None:
            text = await self.tenants[tenant].aio.access.shared_secret(name)
            found = self._secrets[tenant, name] = text.encode()
        return found

    async def sign(self, tenant: str, purpose: str, value: Any) -> str:
        """An opaque text from a JSON value, which only this tenant's servers make."""
        return signed.sign(await self.secret(tenant, "web"), purpose, value)

    async def unsign(self, tenant: str, purpose: str, text: str) -> Any:
        """The value of a signed text. Raises: InvalidArgument."""
        try:
            return signed.unsign(await self.secret(tenant, "web"), purpose, text)
        except ValueError:
            raise InvalidArgument(
                "This text was not made by this server, or was changed. Start anew without it."
            ) from None


class Failures:
    """Counts wrong credentials by address. An address that sent too many must wait, longer each time."""

    def __init__(self, allowed: int, *, most: int = 100_000) -> None:
        self._allowed = allowed
        self._most = most
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_seconds(self, address: str) -> float:
        """How long this address must still wait; 0 if it may try."""
        count, at = self._counts.get(network(address), (0, 0.0))
        if count < self._allowed:
            return 0.0
        pause = min(900.0, 2.0 ** min(20, count - self._allowed))
        return max(0.0, at + pause - time.monotonic())

    def add(self, address: str) -> None:
        """One more wrong one."""
        address = network(address)
        count, at = self._counts.pop(address, (0, 0.0))
        now = time.monotonic()
        if now - at > 900.0:
            count = 0
        self._counts[address] = (count + 1, now)
        while len(self._counts) > self._most:
            self._counts.popitem(last=False)

    def clear(self, address: str) -> None:
        """A right one: forget the wrong ones."""
        self._counts.pop(network(address), None)


def network(address: str) -> str:
    """What one party has of addresses: IPv4 one, IPv6 a network of 64 bits, out of which it may choose any at will."""
    found = parse_address(address)
    if found is None:
        return address
    return str(found if isinstance(found, IPv4Address) else IPv6Network((int(found) >> 64 << 64, 64)))
