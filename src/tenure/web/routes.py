"""The route table: what can be asked by HTTP, who may ask, and which word the audit keeps of it.

There is one table of routes, `application.table()`, and nothing is served that is not in it. A route without a scope
fails when the server starts. Tests walk the table and try every route with every scope.

**For pages.** `web/pages/__init__.py` exports `PAGES`, a list of UiRoute. Each is mounted under `/ui`:

    async def jobs(request: Request) -> Response:
        who: Principal = request.state.principal      # who.name, who.scopes, who.may("operate"), who.csrf, who.app
        page = await who.app.aio.jobs(limit=50)       # who.app is the App of the person's tenant, the only one to use
        return HTMLResponse(render("jobs.html", page=page, principal=who))

    PAGES = [UiRoute("GET", "/jobs", "read:meta", None, jobs), UiRoute("POST", "/jobs/cancel", "operate", "cancel", …)]

Before a page is called: the session was checked, its scope too, and for POST (the only unsafe verb of pages) the origin
and the field `csrf`, which every form must hold: `<input type="hidden" name="csrf" value="{{ principal.csrf }}">`; a
script sends it as the header X-CSRF-Token. A browser that is not signed in is shown the sign-in page; one whose
session lacks the scope gets 403. After a page with an audit word, one audit row is written, whatever the outcome.
Headers (CSP, nosniff, no-store, …) are added to every answer; a page that sets Cache-Control itself keeps it.
Errors that a page raises (any TenureError, `problems.Problem`) are shown by `web/pages.error_page(request, problem)`;
those of the sign-in as plain text. `request.state.request_id` names the request in the log; `request.state.site` holds
the server's settings. Inline scripts and styles are refused by the CSP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from tenure.errors import ConfigError
from tenure.model.access import VERBS
from tenure.model.frozen import frozen

PUBLIC: Final = "public"
"""The scope of the few routes that need no credentials."""

Handler = Callable[..., Awaitable[Any]]
Page = Callable[[Request], Awaitable[Response]]


@frozen
class Route:
    """One thing that programs may ask: verb, path, scope, audit word, handler.

    `handler` is an async function of FastAPI's kind: its types make the OpenAPI document.
    """

    verb: str
    path: str
    scope: str
    audit: str | None
    """The word of the audit row; None where nothing is changed, or where the store's own rows tell it (workers)."""
    handler: Handler
    tag: str = "jobs"
    status: int = 200
    answers: Any = None
    """The model of the answer; the handler's annotation if left out."""
    is_text: bool = False
    """The answer is plain text, not JSON."""
    others: Sequence[int] = ()
    """Further statuses that it may answer with, beside those that every route has."""


@frozen
class UiRoute:
    """One page, or one act of a form: verb, path below /ui, scope, audit word, page."""

    verb: str
    path: str
    scope: str
    audit: str | None
    page: Page


def check_table(routes: Iterable[Route | UiRoute]) -> None:
    """Refuse a table that leaves something open. Raises: ConfigError."""
    seen: set[tuple[str, str]] = set()
    for route in routes:
        where = f"{route.verb} {route.path}"
        if route.scope not in {*VERBS, PUBLIC}:
            raise ConfigError(f"The route {where} declares no scope that exists, so the server does not start.")
        if (route.verb, route.path) in seen:
            raise ConfigError(f"The route {where} stands twice in the table, so the server does not start.")
        if isinstance(route, UiRoute) and (route.verb not in {"GET", "POST"} or route.scope == PUBLIC):
            raise ConfigError(f"The page {where} must be a GET or a POST with a scope, so the server does not start.")
        if route.verb == "GET" and route.audit is not None and route.scope != "read:payload":
            raise ConfigError(f"The route {where} is audited as a change, and a GET must not change anything.")
        seen.add((route.verb, route.path))
