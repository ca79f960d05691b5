"""How uvicorn is run: our limits, no proxy headers but those we judge ourselves, no access log that could keep secrets.

uvicorn has no limit on how long a client may take to send its headers, so half-open connections would stay for ever
(slowloris). The protocol here gives each connection ten seconds for each head, and when there are too many connections,
lets go of the one that has waited longest without a request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 60
CONNECTIONS: Final = 4096


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit on heads."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._arm()
        if len(self.connections) > CONNECTIONS:
            # A set has no order, so each connection knows when it began.
            headless = [one for one in self.connections if isinstance(one, BoundedProtocol) and one.is_headless()]
            if headless:
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


def uvicorn_settings() -> dict[str, Any]:
    """The settings of every server that we start."""
    return {
        "http": BoundedProtocol,
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
