"""Signing browsers in and out: a one-time link, whose secret is in the fragment and so in no log, or a token."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tenure.web import auth
from tenure.web.problems import Problem
from tenure.web.site import Site

SESSION_SECONDS: Final = 12 * 3600.0
_LINK: Final = re.compile(r"[0-9A-Za-z]{43}")

PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Sign in · Tenure</title>
<link rel="stylesheet" href="{root}/ui/signin.css">
<script src="{root}/ui/signin.js" defer></script>
</head>
<body>
<main>
<h1>Tenure</h1>
{said}
<form method="post" action="{root}/ui/session" id="signin" autocomplete="off">
<label for="code">Sign-in code or token</label>
<input id="code" name="code" type="password" required autofocus spellcheck="false" aria-describedby="how">
<button>Sign in</button>
</form>
<p id="how"><code>tenure serve</code> and <code>tenure dev</code> print a link that works once.
<code>tenure token new NAME --scope read:meta</code> makes a token.</p>
</main>
</body>
</html>
"""

STYLE: Final = """\
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; display: grid; place-items: center; min-height: 100vh; }
main { width: min(26rem, calc(100vw - 2rem)); }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
form { display: grid; gap: .5rem; }
input, button { font: inherit; padding: .5rem .75rem; border-radius: 6px; border: 1px solid #8888; min-width: 0; }
button { background: #1f5fbf; color: #fff; border-color: transparent; cursor: pointer; }
:focus-visible { outline: 2px solid #1f5fbf; outline-offset: 2px; }
#how { font-size: .875rem; }
[role=alert] { border-left: 3px solid #c0392b; padding-left: .75rem; }
code { overflow-wrap: anywhere; }
"""

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


def page(request: Request, said: str = "", status: int = 200) -> Response:
    """The form, with a sentence above it."""
    alert = f'<p role="alert">{said}</p>' if said else ""
    return HTMLResponse(PAGE.format(root=request.scope.get("root_path", ""), said=alert), status)


async def script(_request: Request) -> Response:
    """What posts the link's secret."""
    return Response(SCRIPT, media_type="text/javascript")


async def style(_request: Request) -> Response:
    """How the page looks."""
    return Response(STYLE, media_type="text/css")


async def open_session(request: Request) -> Response:
    """Sign in: the form's `code` is the secret of a link, or a token."""
    site: Site = request.state.site
    auth.check_origin(request)
    address = auth.client_address(site, request)
    auth.check_rate(site, address)
    field = (await request.form()).get("code")
    code = field.strip() if isinstance(field, str) else ""
    for tenant, app in site.tenants.items():
        if _LINK.fullmatch(code):
            opened = await app.aio.access.open_session(link=code, address=address, seconds=SESSION_SECONDS)
        else:
            opened = await app.aio.access.open_session(token=code, address=address, seconds=SESSION_SECONDS)
        if opened is not None:
            site.failures.clear(address)
            response = RedirectResponse(f"{request.scope.get('root_path', '')}/ui/", 303)
            auth.set_session(site, request, response, tenant, opened.secret, SESSION_SECONDS)
            return response
    site.failures.add(address)
    return page(request, "This code is not valid: a link works once, and for a quarter of an hour.", 401)


async def close_session(request: Request) -> Response:
    """Sign out: the session ends in the store, whatever becomes of the cookie."""
    who = request.state.principal
    if who.session is None:
        raise Problem(400, "bad_request", "There is no session to end.")
    await who.app.aio.access.end_sessions(who.session, actor=who.name)
    response = RedirectResponse(f"{request.scope.get('root_path', '')}/ui/signin", 303)
    auth.clear_session(request.state.site, request, response)
    return response
