"""Puts the server together: the route table, the guard of each route, and the audit of what changes something."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as PlainRoute
from starlette.types import ASGIApp

import tenure
from tenure.errors import TenureError
from tenure.observe.browse import bounded_looks
from tenure.web import answer, auth, mounted, pages, problems, signin
from tenure.web.api import ROUTES
from tenure.web.guard import Guard, check_json
from tenure.web.problems import Problem
from tenure.web.routes import PUBLIC, Route, UiRoute, check_table
from tenure.web.site import LIFESPAN_SITE, Site

SIGN_IN: Final = (
    ("GET", "/ui/signin", signin.signin),
    ("GET", "/ui/signin.js", signin.script),
    ("GET", "/ui/signin.css", signin.style),
    ("POST", "/ui/session", signin.open_session),
)
"""What browsers need before they are signed in."""
SIGN_OUT: Final = UiRoute("POST", "/signout", "read:meta", "sign_out", signin.close_session)

_log: Final = logging.getLogger("tenure.web")
Endpoint = Callable[[Request], Awaitable[Response]]


def table() -> list[Route]:
    """Every route of programs."""
    return list(ROUTES)


def page_table() -> list[UiRoute]:
    """Every route of browsers that are signed in."""
    return [*pages.PAGES, SIGN_OUT]


def build(site: Site) -> ASGIApp:
    """The whole server as one ASGI app. Raises: ConfigError, if a route is left open."""
    return Guard(make_fastapi(site), site)


def make_fastapi(site: Site) -> FastAPI:
    """The application without its outermost layer."""
    app = FastAPI(
        title="Tenure",
        version=tenure.__version__,
        description="A durable job queue. Send `Authorization: Bearer tnr_…`; errors are application/problem+json.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        separate_input_output_schemas=False,
        redirect_slashes=False,  # the redirect would name the scheme that a proxy asked by, and not the browser's
        lifespan=_lifespan,
    )
    for kind in (Problem, TenureError, HTTPException, Exception):
        app.add_exception_handler(kind, problems.handle)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.state.site = site
    app.router.routes.extend(_routes())
    if site.mcp is not None:
        app.router.routes.append(PlainRoute(mounted.PATH, mounted.McpRoute(site.mcp)))
    return app


@functools.cache
def _routes() -> tuple[BaseRoute, ...]:
    """Everything but MCP, checked and made once for all servers of this process: requests carry their site."""
    check_table(table())
    check_table(page_table())
    router = APIRouter()
    for route in table():
        router.add_api_route(
            route.path,
            route.handler,
            methods=[route.verb],
            status_code=route.status,
            response_model=route.answers,
            response_class=PlainTextResponse if route.is_text else JSONResponse,
            tags=[route.tag],
            name=route.handler.__name__,
            operation_id=f"{route.handler.__name__}",
            summary=(route.handler.__doc__ or "").partition("\n")[0],
            responses=_responses(route),
            route_class_override=_guarded(route),
        )
    plain = [
        PlainRoute(path, _showing_errors(endpoint), methods=[verb])
        for verb, path, endpoint in (*SIGN_IN, *answer.ROUTES)
    ]
    browsers = [
        PlainRoute(f"/ui{page.path}", _showing_errors(_paged(page)), methods=[page.verb]) for page in page_table()
    ]
    homes = [PlainRoute(path, _home, methods=["GET"]) for path in ("/", "/ui")]
    return (*router.routes, *plain, *browsers, *homes)


def _guarded(route: Route) -> type[APIRoute]:
    """The kind of FastAPI's routes that asks who comes before it reads what they send."""

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Any]:
            handler = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                if route.scope == PUBLIC:
                    return await handler(request)
                site: Site = request.state.site
                who = request.state.principal = await auth.by_token(site, request)
                return await _audited(route.audit, who, request, lambda: _checked(route, site, request, handler))

            return guarded

    return Guarded


async def _checked(route: Route, site: Site, request: Request, handler: Callable[[Request], Any]) -> Response:
    _check_scope(route.scope, request)
    if request.method not in auth.SAFE:
        body = await request.body()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and (body or kind):
            raise Problem(415, "unsupported_media_type", "The API takes application/json and nothing else.")
        check_json(body, site.limits.json_depth, site.limits.json_digits)
        await site.quotas.take_for(route.audit, request.state.principal.tenant)
        return cast(Response, await handler(request))
    with bounded_looks(site.limits.look_seconds):
        return cast(Response, await handler(request))


def _paged(page: UiRoute) -> Endpoint:
    async def paged(request: Request) -> Response:
        site: Site = request.state.site
        who = await auth.by_session(site, request)
        if who is None:
            if request.method in auth.SAFE and auth.is_by_itself(request):
                # htmx loads the whole page anew, and that is the one to sign in.
                return PlainTextResponse("", 401, {"HX-Refresh": "true"})
            if "text/html" in request.headers.get("accept", ""):
                is_read = request.method in auth.SAFE
                said = (
                    "Sign in to go on." if is_read else "The session has ended, so nothing was changed. Sign in again."
                )
                return signin.page(request, said, 401, back=signin.asked_for(request))
            raise Problem(401, "unauthorized", "This browser is not signed in, or its session ended. Sign in again.")
        request.state.principal = who

        async def act() -> Response:
            _check_scope(page.scope, request)
            if request.method not in auth.SAFE:
                assert who.csrf is not None
                await auth.check_form(request, who.csrf)
                await site.quotas.take_for(page.audit, who.tenant, request.path_params.get("act"))
            return await page.page(request)

        return await _audited(page.audit, who, request, act)

    return paged


def _check_scope(scope: str, request: Request) -> None:
    who: auth.Principal = request.state.principal
    if not who.has(scope):
        raise Problem(403, "forbidden", f"This needs the scope {scope!r}, which {who.name!r} does not have.")


async def _audited(
    word: str | None, who: auth.Principal, request: Request, act: Callable[[], Awaitable[Response]]
) -> Response:
    """Do it, and leave one row that says who asked for what, and what became of it; also if it failed."""
    if word is None:
        return await act()
    status = 500
    try:
        response = await act()
        status = response.status_code
    except Exception as exc:
        if isinstance(exc, RequestValidationError):
            status = 422
        else:
            status = exc.status_code if isinstance(exc, HTTPException) else problems.to_problem(exc).status
        raise
    finally:
        await _note(word, who, request, status)
    return response


async def _note(word: str, who: auth.Principal, request: Request, status: int) -> None:
    body = getattr(request, "_body", b"")
    detail = {
        "method": request.method,
        "path": auth.path_of(request),
        "status": status,
        "token": who.token_id,
        "session": who.session[:12] if who.session is not None else None,
        "tenant": who.tenant,
        "address": who.address,
        "request": request.state.request_id,
        "body": hashlib.sha256(body).hexdigest() if body else None,
    }
    try:
        request.state.site.background.wake()
        await who.app.aio.access.note(f"http:{word}", auth.path_of(request)[:200], actor=who.name, detail=detail)
    except TenureError as exc:
        _log.error("The audit row of request %s was not written: %s", request.state.request_id, exc)


def _showing_errors(endpoint: Endpoint) -> Endpoint:
    """Pages show errors as pages, also those that the framework would answer for."""

    async def shown(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as exc:  # noqa: BLE001  every error ends on a page
            problem = problems.to_problem(exc)
            if not hasattr(request.state, "principal"):
                if "text/html" not in request.headers.get("accept", ""):
                    return PlainTextResponse(f"{problem.detail}\n", problem.status, problem.headers)
                response = signin.page(
                    request, problem.detail, problem.status, back=signin.asked_for(request), is_refused=True
                )
                response.headers.update(problem.headers)
                return response
            return await pages.error_page(request, problem)

    return shown


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, Site]]:
    """Beside the requests. Where the app is mounted in another, this is not called, and the first change starts it."""
    site: Site = app.state.site
    site.background.start()
    try:
        yield {LIFESPAN_SITE: site}
    finally:
        if site.mcp is not None:
            await site.mcp.stop()
        await site.background.stop()


async def _home(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/ui/", 307)


async def _invalid(request: Request, error: Exception) -> Response:
    """What does not fit the route's types: where it is and what was expected, never what was sent."""
    assert isinstance(error, RequestValidationError)
    found: Sequence[Any] = error.errors()
    if found and found[0]["type"] == "json_invalid":
        why = f"The body is not JSON: {found[0].get('ctx', {}).get('error', 'it ends too early')}"
        return await problems.handle(
            request, Problem(422, "invalid_argument", f"{why}, at character {found[0]['loc'][-1]}.")
        )
    said = [
        {"pointer": "/" + "/".join(str(part) for part in where), "detail": str(one["msg"])[:300]}
        for where, one in _nearest(found)[:20]
    ]
    first = said[0] if said else {"pointer": "/", "detail": "invalid"}
    detail = f"{first['pointer']}: {first['detail']}."
    return await problems.handle(request, Problem(422, "invalid_argument", detail, errors=said))


def _nearest(found: Sequence[Any]) -> list[tuple[Sequence[Any], Any]]:
    """Where each finding is, and the finding. A body that may have one of several forms is told of the form that it
    fits best, without the name that this form has in here."""
    by_form: dict[str, list[tuple[Sequence[Any], Any]]] = {}
    for one in found:
        where = one["loc"][1:]
        form = str(where[0]) if where and str(where[0]).endswith("Body") else ""
        by_form.setdefault(form, []).append((where[1:] if form else where, one))
    return min(by_form.values(), key=len, default=[])


def _responses(route: Route) -> dict[int | str, dict[str, Any]]:
    statuses = {*route.others, 400, 413, 421, 422, 431}
    if route.scope != PUBLIC:
        statuses |= {401, 403, 429, 500, 503}
    if "{" in route.path:
        statuses.add(404)
    if route.verb != "GET":
        statuses |= {408, 415}
    plain = {status for status in statuses if status < 400}
    return {
        **{status: {"description": problems.TITLES.get(status, "See the guide.")} for status in sorted(plain)},
        **{
            status: {
                "description": problems.TITLES[status],
                "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
            for status in sorted(statuses - plain)
        },
    }
