"""`/answer/…`: one person answers one approval by a signed link, without an account.

Looking changes nothing, so that programs which follow links in mails do no harm; the answer is a form's POST. The link
is the right to answer: it names the approval and the person, it ends, and it works once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tenure.errors import Forbidden, InvalidArgument, TenureError
from tenure.model.approval import NOTE_CHARS, Approval, same_name
from tenure.web import auth
from tenure.web.pages.render import render
from tenure.web.problems import to_problem
from tenure.web.site import Site

if TYPE_CHECKING:
    from tenure.app import App

STYLE: Final = """\
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; padding: 1rem; }
main { width: min(46rem, 100%); margin: 0 auto; }
h1 { font-size: 1.5rem; margin: 1rem 0; }
pre { border: 1px solid #8888; border-radius: 6px; padding: .75rem; overflow: auto; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { opacity: .75; }
dd { margin: 0; overflow-wrap: anywhere; }
form { display: grid; gap: .5rem; margin: 1.5rem 0; }
textarea, button { font: inherit; padding: .5rem .75rem; border-radius: 6px; border: 1px solid #8888; min-width: 0; }
.row { display: flex; gap: .5rem; flex-wrap: wrap; }
button { cursor: pointer; }
button[value=approve] { background: #1f5fbf; color: #fff; border-color: transparent; }
:focus-visible { outline: 2px solid #1f5fbf; outline-offset: 2px; }
[role=alert] { border-left: 3px solid #c0392b; padding-left: .75rem; }
[role=status] { border-left: 3px solid #2e8b57; padding-left: .75rem; }
"""


async def style(_request: Request) -> Response:
    """How the page looks."""
    return Response(STYLE, media_type="text/css")


async def look(request: Request) -> Response:
    """What is asked."""
    try:
        _, found, voter = await _opened(request)
    except TenureError as exc:
        return _refused(request, exc)
    return _page(request, found, voter)


async def answer(request: Request) -> Response:
    """The answer."""
    auth.check_origin(request)
    found: Approval | None = None
    voter = ""
    try:
        app, found, voter = await _opened(request)
        form = await request.form()
        choice, note, seen = (form.get(name) for name in ("choice", "note", "args_hash"))
        if choice not in ("approve", "deny") or not isinstance(seen, str) or not seen:
            raise InvalidArgument("Choose one of the two answers. Nothing was changed.")
        said = note.strip()[:NOTE_CHARS] if isinstance(note, str) else ""
        found = await app.aio.approvals.answer_link(
            request.path_params["text"], "approve" if choice == "approve" else "deny", args_hash=seen, note=said or None
        )
    except TenureError as exc:
        return _refused(request, exc, found, voter)
    return _page(request, found, voter, thanks="Your answer counts. You can close this page.")


async def _opened(request: Request) -> tuple[App, Approval, str]:
    """The App of the tenant whose link it is, the approval, and who is to answer. Raises: Forbidden, NotFound."""
    site: Site = request.state.site
    address = auth.client_address(site, request)
    auth.check_rate(site, address)
    refused: TenureError | None = None
    for app in site.tenants.values():
        try:
            found, voter = await app.aio.approvals.open_link(request.path_params["text"])
        except Forbidden as exc:
            refused = exc
        else:
            return app, found, voter
    site.failures.add(address)
    assert refused is not None  # a site has at least one tenant
    raise refused


def _refused(request: Request, error: TenureError, found: Approval | None = None, voter: str = "") -> Response:
    problem = to_problem(error)
    return _page(request, found, voter, alert=problem.detail, status=problem.status)


def _page(
    request: Request, found: Approval | None, voter: str, *, alert: str = "", thanks: str = "", status: int = 200
) -> Response:
    context: dict[str, Any] = {
        "alert": alert,
        "args": "" if found is None else json.dumps(found.args, indent=2, ensure_ascii=False),
        "found": found,
        "is_open": found is not None and not thanks and not alert and found.state == "pending"
        and not any(same_name(voter, vote.voter) for vote in found.votes),
        "root": request.scope.get("root_path", ""),
        "thanks": thanks,
        "voter": voter,
    }  # fmt: skip
    return HTMLResponse(render("answer.html", context), status)


ROUTES: Final = (
    ("GET", "/answer.css", style),
    ("GET", "/answer/{text}", look),
    ("POST", "/answer/{text}", answer),
)
"""For people without an account: the link itself is what is checked."""
