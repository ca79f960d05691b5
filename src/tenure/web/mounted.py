"""The MCP server at /mcp: who asks is checked here, as for the API, before the server sees the request.

It takes tokens with the scope `mcp`, which no other route takes, so a token that leaks from an agent's settings opens
nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from tenure.errors import TooManyCalls
from tenure.model.access import MCP
from tenure.web import auth
from tenure.web.guard import check_json
from tenure.web.problems import Problem, answer, to_problem
from tenure.web.site import Site

PATH: Final = "/mcp"


class Mounted(Protocol):
    """A server to mount. It finds the token's holder as `scope["state"]["principal"]`, and as `take_jobs` beside it
    what to await before it enqueues so many jobs: TooManyCalls refuses those beyond the tenant's quotas."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def stop(self) -> None:
        """End, with what is being answered."""


class McpRoute:
    """The guard of the route."""

    def __init__(self, served: Mounted) -> None:
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        site: Site = request.state.site
        try:
            auth.check_no_page(request)
            who = request.state.principal = await auth.by_token(site, request, audience=MCP)
            request.state.take_jobs = partial(_take_jobs, site, who.tenant)
            if request.method != "POST":
                raise Problem(405, "method_not_allowed", "MCP is spoken by POST.", headers={"Allow": "POST"})
            body = await request.body()
            check_json(body, site.limits.json_depth, site.limits.json_digits)
        except Exception as exc:  # noqa: BLE001  every error ends as a problem document
            await answer(to_problem(exc), request.state.request_id)(scope, receive, send)
            return
        if b"tools/call" in body:  # which may leave audit rows
            site.background.wake()
        await self._served(scope, _Again(body, receive), send)


async def _take_jobs(site: Site, tenant: str, jobs: int) -> None:
    try:
        await site.quotas.take_jobs(tenant, jobs)
    except Problem as exc:
        raise TooManyCalls(exc.detail) from None


class _Again:
    """Hands the body over once more, then what comes of the connection."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
