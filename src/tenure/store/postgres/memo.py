"""Memos, as calls of PostgreSQL functions. See store.memo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.model.memo import Memo, MemoTold
from tenure.store.contract import Request
from tenure.store.memo import (
    ForgetMemos,
    Forgotten,
    KeepMemo,
    ListMemos,
    TakeMemo,
    check_choice,
    check_memo,
    read_cursor,
    write_cursor,
)
from tenure.store.postgres.codec import Call, encode, maybe_moment, text
from tenure.store.queries import Page


def _take(request: TakeMemo) -> str:
    check_memo(request)
    return encode(request)


def _keep(request: KeepMemo) -> str:
    check_memo(request)
    told = {"job_id": request.job_id, "token": request.token, "id": request.id, "ttl_seconds": request.ttl_seconds}
    return f'{text(told)[:-1]},"value":{request.value}}}'


def _told(answer: Any, _: Any) -> MemoTold | None:
    return None if answer is None else MemoTold(*answer)


def _choice(request: ListMemos | ForgetMemos) -> str:
    check_choice(request)
    told = {one.name: getattr(request, one.name) for one in fields(request)}
    return text(told | {"after": None if request.after is None else read_cursor(request.after)})


def _next(answer: dict[str, Any]) -> str | None:
    return None if answer["next"] is None else write_cursor(*answer["next"])


def _page(answer: dict[str, Any], _: ListMemos) -> Page[Memo]:
    return Page([_memo(row) for row in answer["memos"]], _next(answer))


def _memo(row: list[Any]) -> Memo:
    told: list[Any] = [*row[:8], from_us(row[8]), maybe_moment(row[9])]
    return Memo(*told)


def _forgotten(answer: dict[str, Any], _: ForgetMemos) -> Forgotten:
    return Forgotten(answer["memos"], _next(answer))


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    TakeMemo: Call("take_memo", _take, _told),
    KeepMemo: Call("keep_memo", _keep, _told),
    ListMemos: Call("list_memos", _choice, _page),
    ForgetMemos: Call("forget_memos", _choice, _forgotten),
}
