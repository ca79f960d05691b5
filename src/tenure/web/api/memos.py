"""Memos: values that were worked out once and are kept. Keys and values are masked without the scope read:payload."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import Path, Query, Response
from pydantic import Field

from tenure.web.api.shapes import (
    Answer,
    Cursor,
    Here,
    JsonAnswer,
    Limit,
    Name,
    Reason,
    Strict,
    Unmasked,
    Who,
    next_cursor,
    paged,
    shown,
)
from tenure.web.problems import not_found
from tenure.web.routes import Route

NameAsked = Annotated[str | None, Query(min_length=1, max_length=200)]
TextAsked = Annotated[str | None, Query(min_length=1, max_length=1000)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
MemoId = Annotated[str, Path(max_length=100, description="The memo's id: 64 hexadecimal digits.")]


class ForgetBody(Strict):
    """Which memos: those of a name, or of a kind's whole results; all of them unless key, prefix or tenant chooses."""

    name: Name | None = None
    kind: Name | None = None
    key: Text | None = None
    prefix: Text | None = None
    tenant: Text | None = None
    reason: Reason


class MemosPage(Answer):
    """By name and key."""

    memos: list[dict[str, Any]]
    next: str | None


class Forgotten(Answer):
    """How many went."""

    forgotten: int


async def memos(
    site: Here,
    who: Who,
    unmasked: Unmasked,
    name: NameAsked = None,
    kind: NameAsked = None,
    key: TextAsked = None,
    prefix: TextAsked = None,
    tenant: TextAsked = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List memos by name and key: what jobs worked out once, and what one is working out."""
    given = {"name": name, "kind": kind, "key": key, "prefix": prefix, "tenant": tenant}
    chosen, after = await paged(site, who, "memos", cursor, given)
    page = await who.app.aio.steps.memos(**chosen, limit=limit, after=after)
    items = [{**shown(one, unmasked=unmasked), "kind": one.kind} for one in page.items]
    if not unmasked:
        for item in items:
            item["key"] = item["preview"] = None
    return JsonAnswer({"memos": items, "next": await next_cursor(site, who, "memos", chosen, page.next)})


async def forget_memo(who: Who, id: MemoId) -> Response:  # noqa: A002  the word of the path
    """Forget one memo, so that the next job works it out anew."""
    is_id = re.fullmatch("[0-9a-f]{64}", id) is not None
    if not is_id or not await who.app.aio.steps.forget_memos(ids=[id], actor=who.name):
        raise not_found()
    return JsonAnswer({"forgotten": 1})


async def forget_memos(who: Who, body: ForgetBody) -> Response:
    """Forget the memos of a name, or the whole results of a kind."""
    chosen = {name: getattr(body, name) for name in ("kind", "key", "prefix", "tenant")}
    forgotten = await who.app.aio.steps.forget_memos(body.name, **chosen, actor=who.name, reason=body.reason)
    return JsonAnswer({"forgotten": forgotten})


_V: Final = "/api/v1/memos"
ROUTES: Final = (
    Route("GET", _V, "read:meta", None, memos, "memos", answers=MemosPage),
    Route("POST", f"{_V}/forget", "operate", "forget_memos", forget_memos, "memos", answers=Forgotten),
    Route("DELETE", f"{_V}/{{id}}", "operate", "forget_memos", forget_memo, "memos", answers=Forgotten),
)
