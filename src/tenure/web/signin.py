"""Signing browsers in and out: a one-time link, whose secret is in the fragment and so in no log, or a token."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tenure.web import auth
from tenure.web.pages import CHOICES, environment_name
from tenure.web.pages.render import assets, render
from tenure.web.pages.shell import TONES
from tenure.web.pages.visit import Preferences
from tenure.web.problems import Problem
from tenure.web.site import Site

SESSION_SECONDS: Final = 12 * 3600.0
_LINK: Final = re.compile(r"[0-9A-Za-z]{43}")

SCRIPT: Final = """\
// The secret of a one-time link stands in the fragment, which browsers send to no server. It goes by POST from here.
const code = location.hash.slice(1);
if (/^[0-9A-Za-z]{43}$/.test(code)) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("code").value = code;
  document.getElementById("signin").submit();
}
"""


async def signin(request: Request) -> Response:
    """The page with the form."""
    return page(request)


def page(request: Request, said: str = "", status: int = 200, *, back: str = "", is_refused: bool = False) -> Response:
    """The form, with a sentence above it. `back` is the page that was asked for, to which the sign-in leads."""
    environment = environment_name()
    context = {
        "back": back,
        "env_tone": TONES.get(environment.lower(), "succeeded"),
        "environment": environment,
        "hours": int(SESSION_SECONDS // 3600),
        "is_away": status >= 500,
        "is_refused": is_refused,
        "root": request.scope.get("root_path", ""),
        "said": said,
        "theme": Preferences.read(request.cookies.get(CHOICES)).theme,
    }
    return HTMLResponse(render("signin.html", context), status)


def asked_for(request: Request) -> str:
    """The address of the page that this request is about, if it can be asked for again."""
    asked = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    return asked if request.method == "GET" else ""


async def script(_request: Request) -> Response:
    """What posts the link's secret."""
    return Response(SCRIPT, media_type="text/javascript")


async def style(_request: Request) -> Response:
    """How the page looks: as all pages do. Their own files are kept from those who are not signed in."""
    asset = assets()["console.css"]
    return Response(asset.body, media_type=asset.media_type)


async def open_session(request: Request) -> Response:
    """Sign in: the form's `code` is the secret of a link, or a token."""
    site: Site = request.state.site
    auth.check_origin(request)
    address = auth.client_address(site, request)
    auth.check_rate(site, address)
    form = await request.form()
    code, back = (value.strip() if isinstance(value := form.get(name), str) else "" for name in ("code", "back"))
    for tenant, app in site.tenants.items():
        if _LINK.fullmatch(code):
            opened = await app.aio.access.open_session(link=code, address=address, seconds=SESSION_SECONDS)
        else:
            opened = await app.aio.access.open_session(token=code, address=address, seconds=SESSION_SECONDS)
        if opened is not None:
            site.failures.clear(address)
            home = f"{request.scope.get('root_path', '')}/ui/"
            response = RedirectResponse(back if back.startswith(home) and "\\" not in back else home, 303)
            auth.set_session(site, request, response, tenant, opened.secret, SESSION_SECONDS)
            return response
    site.failures.add(address)
    refusal = "This code is not valid: a link works once, and for a quarter of an hour."
    return page(request, refusal, 401, back=back, is_refused=True)


async def close_session(request: Request) -> Response:
    """Sign out: the session ends in the store, whatever becomes of the cookie."""
    who = request.state.principal
    if who.session is None:
        raise Problem(400, "bad_request", "There is no session to end.")
    await who.app.aio.access.end_sessions(who.session, actor=who.name)
    response = RedirectResponse(f"{request.scope.get('root_path', '')}/ui/signin", 303)
    auth.clear_session(request.state.site, request, response)
    return response
