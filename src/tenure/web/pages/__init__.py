"""The console's pages: each is a view from a Visit to an Answer, listed once in `table`, and mounted under `/ui`.

See web/routes.py for what a page gets from the server: a session that was checked, its scope too, and for POST the
origin and the form's token. Views run in a thread and ask the App; templates are in web/templates, files that browsers
keep in web/static.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlencode, urlsplit
from weakref import WeakKeyDictionary

from anyio import from_thread
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from tenure.errors import TenureError
from tenure.observe.browse import bounded_looks
from tenure.web.pages.changes import changes
from tenure.web.pages.pulse import OneLook, Pulse
from tenure.web.pages.render import asset_by_hashed_name
from tenure.web.pages.shell import page as whole_page
from tenure.web.pages.table import ROUTES
from tenure.web.pages.visit import Answer, Moved, PageRoute, Place, Preferences, Sent, Shown, Viewer, Visit
from tenure.web.problems import Problem, not_found
from tenure.web.routes import Page, UiRoute

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.web.auth import Principal

NOTICE: Final = "tenure-notice"
CHOICES: Final = "tenure-choices"
YEAR: Final = 31_536_000
_pulses: Final[WeakKeyDictionary[App, Pulse]] = WeakKeyDictionary()


def _mounted(route: PageRoute) -> Page:
    async def mounted(request: Request) -> Response:
        began = time.monotonic()
        visit = await _visit(request)
        answer = await run_in_threadpool(_look, route, visit, request.state.site.limits.look_seconds)
        if isinstance(answer, Moved):
            return _moved(request, answer)
        if isinstance(answer, Sent):
            headers = {"Content-Disposition": f'attachment; filename="{answer.filename}"'}
            return StreamingResponse(answer.body, media_type=answer.media_type, headers=headers)
        return await _shown(visit, answer, began)

    return mounted


def _look(route: PageRoute, visit: Visit, seconds: float) -> Answer:
    """A page looks within a bound; an act takes the time it needs."""
    if route.verb == "POST":
        try:
            return route.view(visit)
        finally:
            visit.pulse.forget_reads()  # so that the next page shows what it changed
    with suppress(TenureError):
        visit.pulse.now()  # before anything else is read: see OneLook. The shell says that the database does not answer
    with bounded_looks(seconds):
        return route.view(visit)


async def _shown(visit: Visit, shown: Shown, began: float) -> Response:
    body = await run_in_threadpool(whole_page, visit, shown, began)
    response = HTMLResponse(body, shown.status)
    if visit.notice is not None:
        response.delete_cookie(NOTICE, path=visit.root)
    return response


def _moved(request: Request, moved: Moved) -> Response:
    """Look there now. The notice travels in a cookie that the next page takes back: never in the address."""
    root = _root(request)
    to = moved.to if moved.to.startswith(f"{root}/") and not moved.to.startswith("//") else f"{root}/"
    response = RedirectResponse(to, 303)
    is_secure = request.state.site.secure
    if moved.notice:
        told = urlencode({"says": moved.notice[:400]})
        response.set_cookie(NOTICE, told, 30, path=root, secure=is_secure, httponly=True, samesite="strict")
    if moved.preferences is not None:
        kept = moved.preferences.cookie()
        response.set_cookie(CHOICES, kept, YEAR, path=root, secure=is_secure, httponly=True, samesite="strict")
    return response


async def _visit(request: Request) -> Visit:
    who: Principal = request.state.principal
    root = _root(request)
    form: dict[str, list[str]] = {}
    if request.method == "POST":
        for name, value in (await request.form()).multi_items():
            if isinstance(value, str):
                form.setdefault(name, []).append(value)
    notice = parse_qs(request.cookies.get(NOTICE, "")).get("says", [None])[0] if request.method == "GET" else None
    return Visit(
        app=who.app,
        viewer=Viewer(
            who.name,
            [str(scope) for scope in who.scopes],
            who.has,
            lambda verb, queue, kind: who.may(verb, queue=queue, kind=kind),
            who.token_id,
        ),
        place=_place(who.app, who.tenant),
        pulse=OneLook(_pulses.setdefault(who.app, Pulse(who.app))),
        path=request.url.path.removeprefix(root) or "/",
        root=root,
        csrf=who.csrf or "",
        query=dict(request.query_params),
        form=form,
        params=dict(request.path_params),
        preferences=Preferences.read(request.cookies.get(CHOICES)),
        notice=notice,
        origin=request.state.site.base_url(request),
        session=who.session,
        take_jobs=partial(from_thread.run, request.state.site.quotas.take_jobs, who.tenant),
    )


def _root(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/ui"


def _place(app: App, tenant: str) -> Place:
    """The environment comes from TENURE_ENVIRONMENT, the database from the end of its URL, where no password is."""
    parts = urlsplit(app.url)
    engine = "SQLite" if parts.scheme.startswith("sqlite") else "PostgreSQL"
    name = parts.path.rpartition("/")[2] or "memory"
    told = f"{name} · {engine}" + (f" · {tenant}" if tenant != "default" else "")
    return Place(environment_name(), told)


def environment_name() -> str:
    """What this installation is called, in the badge of every page."""
    return os.environ.get("TENURE_ENVIRONMENT", "development")[:40]


async def live(request: Request) -> Response:
    """One stream per tab: says when the page should be asked for anew."""
    who: Principal = request.state.principal
    return await changes(request, _pulses.setdefault(who.app, Pulse(who.app)))


async def static(request: Request) -> Response:
    """A file that browsers keep: its name carries its hash."""
    asset = asset_by_hashed_name().get(request.path_params["name"])
    if asset is None:
        raise not_found()
    headers = {"Cache-Control": f"private, max-age={YEAR}, immutable"}
    return Response(asset.body, media_type=asset.media_type, headers=headers)


async def error_page(request: Request, problem: Problem) -> Response:
    """A refusal as a page: what happened, what is safe, and the way out."""
    began = time.monotonic()
    visit = await _visit(request)
    context = {"problem": problem, "request_id": getattr(request.state, "request_id", "")}
    response = await _shown(visit, Shown("error.html", context, problem.status), began)
    response.headers.update(problem.headers)
    return response


PAGES: list[UiRoute] = [
    UiRoute("GET", "/static/{name:path}", "read:meta", None, static),
    UiRoute("GET", "/changes", "read:meta", None, live),
    *(UiRoute(route.verb, route.path, route.scope, route.act, _mounted(route)) for route in ROUTES),
]
