"""Tokens, sessions and the audit. A token makes only tokens that may do less than itself."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Path, Query, Response
from pydantic import Field

from tenure.model.access import allows, parse_scopes
from tenure.web.api.shapes import Answer, Cursor, Here, JsonAnswer, Name, Strict, Who, next_cursor, paged, plain
from tenure.web.problems import Problem, not_found
from tenure.web.routes import Route


class TokenBody(Strict):
    """A token to make."""

    name: Name
    scopes: Annotated[list[Annotated[str, Field(max_length=500)]], Field(min_length=1, max_length=50)]
    days: Annotated[float, Field(gt=0, le=366)] = 90


class TokenMade(Answer):
    """`token` is shown this once."""

    token: str
    id: str
    expires_at: datetime


class Listed(Answer):
    """Rows, newest first."""

    items: list[dict[str, Any]]
    next: str | None = None


class Changed(Answer):
    """The ids that changed."""

    changed: list[str]


class Chain(Answer):
    """What a look at the whole chain found."""

    item: dict[str, Any]


async def new_token(who: Who, body: TokenBody) -> Response:
    """Make a token that may do no more than this one."""
    wanted = parse_scopes(body.scopes)
    beyond = [str(scope) for scope in wanted if not allows(who.scopes, scope)]
    if beyond:
        raise Problem(
            403, "forbidden", f"{who.name!r} lacks {', '.join(beyond)}, so it cannot give it to another token."
        )
    made = await who.app.aio.access.new_token(body.name, body.scopes, days=body.days, actor=who.name)
    return JsonAnswer({"token": made.text, "id": made.token.id, "expires_at": made.token.expires_at}, 201)


async def list_tokens(who: Who) -> Response:
    """List tokens; never their secrets."""
    items = [plain(one) for one in await who.app.aio.access.tokens()]
    for one in items:
        del one["digest"]
    return JsonAnswer({"items": items})


async def revoke_token(who: Who, id: Annotated[str, Path(max_length=100)]) -> Response:  # noqa: A002
    """Make a token invalid at once, with the sessions and streams that it opened."""
    return JsonAnswer({"changed": await who.app.aio.access.revoke(id, actor=who.name)})


async def list_sessions(who: Who) -> Response:
    """List browsers that are signed in, and links that were not used yet."""
    items = [plain(one) for one in await who.app.aio.access.sessions()]
    for one in items:
        one["id"] = one.pop("digest")[:16]
    return JsonAnswer({"items": items})


async def end_session(who: Who, id: Annotated[str, Path(max_length=100)]) -> Response:  # noqa: A002
    """Sign a browser out, by the first characters of its session."""
    found = [one.digest for one in await who.app.aio.access.sessions() if one.digest[:16] == id]
    if not found:
        raise not_found()
    changed = await who.app.aio.access.end_sessions(found, actor=who.name)
    return JsonAnswer({"changed": [one[:16] for one in changed]})


async def audit(
    who: Who,
    site: Here,
    subject: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
) -> Response:
    """List what people and programs with power did, newest first."""
    chosen, after = await paged(site, who, "audit", cursor, {"subject": subject})
    rows = await who.app.aio.access.audit(**chosen, limit=limit, before=None if after is None else int(after))
    last = str(rows[-1].seq) if len(rows) == limit else None
    following = await next_cursor(site, who, "audit", chosen, last)
    headers = {} if following is None else {"Link": f'<?cursor={following}&limit={limit}>; rel="next"'}
    return JsonAnswer({"items": plain(rows), "next": following}, headers=headers)


async def verify_audit(who: Who) -> Response:
    """Walk the chain over the audit, and say what was changed, removed or moved."""
    return JsonAnswer({"item": plain(await who.app.aio.access.verify_audit())})


_V: Final = "/api/v1"
ROUTES: Final = (
    Route("POST", f"{_V}/tokens", "admin", "new_token", new_token, "access", 201, answers=TokenMade),
    Route("GET", f"{_V}/tokens", "admin", None, list_tokens, "access", answers=Listed),
    Route("DELETE", f"{_V}/tokens/{{id}}", "admin", "revoke_token", revoke_token, "access", answers=Changed),
    Route("GET", f"{_V}/sessions", "admin", None, list_sessions, "access", answers=Listed),
    Route("DELETE", f"{_V}/sessions/{{id}}", "admin", "end_session", end_session, "access", answers=Changed),
    Route("GET", f"{_V}/audit", "admin", None, audit, "access", answers=Listed),
    Route("GET", f"{_V}/audit/chain", "admin", None, verify_audit, "access", answers=Chain),
)
