"""The server over HTTP: what `tenure.web.asgi(app, mcp=…)` mounts at /mcp.

The web server has checked Host, Origin, size and token before a request comes here, and says who holds the token. There
are no sessions: each request stands alone, so nothing has to be bound to a token but the grants, which are. What a
client carries from a question to its answer is sealed by a key of its database, so another process takes it too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

from tenure.app import App
from tenure.errors import InternalError
from tenure.mcp.caller import CALLS_PER_MINUTE, TOOLSETS, Caller, by_token, check_toolsets
from tenure.mcp.server import Server
from tenure.mcp.signatures import state_key


class HttpServer:
    """An ASGI app. `toolsets` are those that are offered; the scopes of a token decide which of them it gets."""

    def __init__(self, toolsets: Iterable[str] = tuple(TOOLSETS), *, calls_per_minute: int = CALLS_PER_MINUTE) -> None:
        self._toolsets = check_toolsets(toolsets)
        self._calls_per_minute = calls_per_minute
        self._running: dict[App, _Running] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        running = await self._start(scope["state"]["principal"].app)
        await running.server.session_manager.handle_request(scope, receive, send)

    async def stop(self) -> None:
        """End, with the requests that are being answered."""
        running, self._running = self._running, {}
        for one in running.values():
            await one.stop()

    async def _start(self, app: App) -> _Running:
        """The server of one database. It begins with the first request: where the app is mounted in another, no
        lifespan event comes here."""
        found = self._running.get(app)
        if found is None or not found.is_here():
            key = await state_key(app)
            found = self._running.get(app)
            if found is None or not found.is_here():
                server = Server(self._who, self._toolsets, key, calls_per_minute=self._calls_per_minute)
                found = self._running[app] = _Running(server)
        await asyncio.shield(found.is_ready)
        return found

    def _who(self, ctx: ServerRequestContext[Any, Any]) -> Caller:
        request = ctx.request
        if request is None:
            raise InternalError("An MCP request over HTTP came without its HTTP request, so its caller is not known.")
        state = request.scope["state"]
        return by_token(state["principal"], self._toolsets, state["take_jobs"])


class _Running:
    """A server that answers on one loop. A session manager runs once, so each start makes its own."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.streamable_http_app(
            stateless_http=True, transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
        )
        self._loop = asyncio.get_running_loop()
        self.is_ready: asyncio.Future[None] = self._loop.create_future()
        self._task = asyncio.create_task(self._run())

    def is_here(self) -> bool:
        """Whether it answers on this loop."""
        return self._loop is asyncio.get_running_loop() and not self._task.done()

    async def stop(self) -> None:
        """End, with the requests that are being answered."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        try:
            async with self.server.session_manager.run():
                self.is_ready.set_result(None)
                await self._loop.create_future()
        except Exception as exc:
            if self.is_ready.done():
                raise
            self.is_ready.set_exception(exc)
