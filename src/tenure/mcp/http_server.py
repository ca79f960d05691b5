"""The server over HTTP: what `tenure.web.asgi(app, mcp=…)` mounts at /mcp.

The web server has checked Host, Origin, size and token before a request comes here, and says who holds the token. There
are no sessions: each request stands alone, so nothing has to be bound to a token but the grants, which are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

from tenure.errors import InternalError
from tenure.mcp.caller import CALLS_PER_MINUTE, TOOLSETS, Caller, by_token, check_toolsets
from tenure.mcp.server import Server


class HttpServer:
    """An ASGI app. `toolsets` are those that are offered; the scopes of a token decide which of them it gets."""

    def __init__(self, toolsets: Iterable[str] = tuple(TOOLSETS), *, calls_per_minute: int = CALLS_PER_MINUTE) -> None:
        self._toolsets = check_toolsets(toolsets)
        self._server = Server(self._who, self._toolsets, calls_per_minute=calls_per_minute)
        self._running: asyncio.Task[None] | None = None
        self._is_ready: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._start()
        await self._server.session_manager.handle_request(scope, receive, send)

    async def stop(self) -> None:
        """End, with the requests that are being answered."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
            self._running = None

    async def _start(self) -> None:
        """Begin with the first request: where the app is mounted in another, no lifespan event comes here."""
        loop = asyncio.get_running_loop()
        if self._running is None or self._running.done() or self._loop is not loop:
            # A session manager runs once, so each start makes its own.
            self._server.streamable_http_app(
                stateless_http=True, transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
            )
            self._loop = loop
            self._is_ready = loop.create_future()
            self._running = asyncio.create_task(self._run(self._is_ready))
        assert self._is_ready is not None
        await asyncio.shield(self._is_ready)

    async def _run(self, is_ready: asyncio.Future[None]) -> None:
        try:
            async with self._server.session_manager.run():
                is_ready.set_result(None)
                await asyncio.get_running_loop().create_future()
        except Exception as exc:
            if is_ready.done():
                raise
            is_ready.set_exception(exc)

    def _who(self, ctx: ServerRequestContext[Any, Any]) -> Caller:
        request = ctx.request
        if request is None:
            raise InternalError("An MCP request over HTTP came without its HTTP request, so its caller is not known.")
        return by_token(request.scope["state"]["principal"], self._toolsets)
