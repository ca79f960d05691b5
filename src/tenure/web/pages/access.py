"""`/ui/access`: tokens with their scopes, last use and end; sessions; mint and revoke."""

from __future__ import annotations

from typing import Final

from tenure.errors import NotFound, TenureError, UsageError
from tenure.model.access import EVERYTHING, parse_scopes
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import first_line

DAYS_MAX: Final = 365


def access(visit: Visit, *, minted: str | None = None, wrong: str = "", status: int = 200) -> Answer:
    """The page. `minted` is a new token, shown this once."""
    return Shown(
        "access.html",
        {
            "given": {name: visit.given(name) for name in ("name", "scopes", "days")},
            "keys": (("j k", "move"),),
            "minted": minted,
            "now": visit.app.now(),
            "own": visit.session,
            "scopes": EVERYTHING,
            "sessions": visit.app.access.sessions(),
            "section": "/access",
            "tokens": visit.app.access.tokens(),
            "topic": "",
            "wrong": wrong,
        },
        status,
    )


def mint(visit: Visit) -> Answer:
    """Make a token and show it once. It never holds more than the viewer has."""
    try:
        name, days = visit.given("name"), visit.given("days") or "90"
        if not name:
            raise UsageError("Whose token is it? The field name is empty.")
        if not days.isdecimal() or len(days) > 9 or not 1 <= int(days) <= DAYS_MAX:
            raise UsageError(f"A token lasts from 1 to {DAYS_MAX} days, not {days!r}.")
        scopes = parse_scopes([*visit.form.get("scope", ()), *visit.given("scopes").split()])
        more = [str(one) for one in scopes if not visit.viewer.covers(one.verb, one.queue, one.kind)]
        if more:
            raise UsageError(f"You have no scope that covers {more[0]!r}, so you cannot give it away.")
        made = visit.app.access.new_token(name, [str(one) for one in scopes], days=int(days), actor=visit.viewer.name)
    except TenureError as exc:
        return access(visit, wrong=str(exc), status=422)
    return access(visit, minted=made.text)


def confirm(visit: Visit) -> Answer:
    """The question before a token is revoked."""
    given = visit.asked("token")
    token = next((one for one in visit.app.access.tokens() if one.id == given and one.is_valid), None)
    if token is None:
        raise NotFound(f"There is no valid token {first_line(given, 40)!r}. It may have been revoked.")
    return Shown(
        "revoke_confirm.html",
        {"now": visit.app.now(), "same": same_as.revoke(token.id), "section": "/access", "token": token},
    )


def revoke(visit: Visit) -> Answer:
    """Make a token invalid, or end a session, at once."""
    who = visit.viewer.name
    if visit.given("token"):
        changed = visit.app.access.revoke(visit.given("token"), actor=who)
        return Moved(visit.link("/access"), "1 token revoked." if changed else "It was revoked already.")
    if visit.given("session"):
        changed = visit.app.access.end_sessions(visit.given("session"), actor=who)
        return Moved(visit.link("/access"), "1 session ended." if changed else "It had ended already.")
    raise UsageError("Which token or session? Nothing was changed.")
