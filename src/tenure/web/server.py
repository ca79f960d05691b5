"""How uvicorn is run: our limits, no proxy headers but those we judge ourselves, no access log that could keep secrets.

uvicorn has no limit on how long a client may take to send its headers, so half-open connections would stay for ever
(slowloris). The protocol here gives each connection ten seconds for each head, and when there are too many connections,
in all or of one address, lets go of the one that has waited longest without a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from tenure.web.proxies import Proxies
from tenure.web.site import LIFESPAN_SITE

HEAD_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60
CONNECTIONS: Final = 4096
PER_ADDRESS: Final = 3072
"""Of one address, so that it cannot take all places."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit on heads, and limits on connections."""

    per_address = PER_ADDRESS
    proxies = Proxies(())
    """They speak for many, so no limit by address holds for them."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._arm()
        ours = [one for one in self.connections if isinstance(one, BoundedProtocol)]
        if len(ours) > CONNECTIONS:
            self._make_room(ours)
        elif len(ours) > self.per_address and self.client is not None and self.client[0] not in self.proxies:
            same = [one for one in ours if one.client is not None and one.client[0] == self.client[0]]
            if len(same) > self.per_address:
                self._make_room(same)

    def _make_room(self, among: list[BoundedProtocol]) -> None:
        """Let go of the connection that has waited longest without a request; of this one, if all others have one."""
        headless = [one for one in among if one.is_headless()]
        # A set has no order, so each connection knows when it began.
        min(headless, key=lambda one: one.began).drop()

    @property
    def began(self) -> float:
        """When the wait for the head began."""
        return 0.0 if self._head_timer is None else self._head_timer.when()

    def is_headless(self) -> bool:
        """Whether no request is being worked on."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        if not self.is_headless():
            self._disarm()
        elif self._head_timer is None:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._disarm()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server is ending: let requests that wait or stream end their answers."""
        site = self.app_state.get(LIFESPAN_SITE)
        if site is not None:
            site.is_closing = True
        super().shutdown()

    def drop(self) -> None:
        """Close a connection on which no request is being worked on."""
        self._disarm()
        if self.is_headless() and not self.transport.is_closing():
            self.transport.close()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.drop)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def uvicorn_settings(proxies: Iterable[str] = ()) -> dict[str, Any]:
    """The settings of every server that we start."""
    return {
        "http": type("Protocol", (BoundedProtocol,), {"proxies": Proxies(proxies)}),
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": IDLE_SECONDS,
        "timeout_graceful_shutdown": 5,
        "h11_max_incomplete_event_size": 16 * 1024,
    }
