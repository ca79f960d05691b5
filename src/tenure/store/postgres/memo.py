"""Memos, as calls of PostgreSQL functions. See store.memo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.model.memo import MemoTold
from tenure.store.contract import Request
from tenure.store.memo import KeepMemo, TakeMemo, check_memo
from tenure.store.postgres.codec import Call, encode, text


def _take(request: TakeMemo) -> str:
    check_memo(request)
    return encode(request)


def _keep(request: KeepMemo) -> str:
    check_memo(request)
    told = {"job_id": request.job_id, "token": request.token, "id": request.id, "ttl_seconds": request.ttl_seconds}
    return f'{text(told)[:-1]},"value":{request.value}}}'


def _told(answer: Any, _: Any) -> MemoTold | None:
    return None if answer is None else MemoTold(*answer)


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    TakeMemo: Call("take_memo", _take, _told),
    KeepMemo: Call("keep_memo", _keep, _told),
}
