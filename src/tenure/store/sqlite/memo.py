"""Memos. See store.memo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us
from tenure.model.ids import JobId
from tenure.model.memo import Memo, MemoTold
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
from tenure.store.queries import Page
from tenure.store.sqlite import admin, flow, steps
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

GIVEN_UP_US: Final = 86_400_000_000
_LAST: Final = "\U0010ffff"
"""Behind every text in the order of names and keys."""

_SQL: Final = load("memo")


def take_memo(transaction: Transaction, request: TakeMemo) -> MemoTold | None:
    """See store.memo.TakeMemo."""
    check_memo(request)
    held = steps.held_job(transaction, request.job_id, request.token)
    if held is None:
        return None
    if transaction.one(_SQL["is_foreign"], {"job_id": request.job_id, "id": request.id, "tenant": request.tenant}) == (
        1,
    ):
        raise InvalidArgument(
            f"Job {request.job_id} may not take this memo: a memo is of the tenant of the jobs that take it. "
            "Nothing was taken."
        )
    told = _look(transaction, request.id, request.job_id)
    if (told is None or told.state == "mine") and held[0] is None:
        steps.note_durable(transaction, request.job_id)  # its end looks for what it owns
    if told is not None:
        return told
    values = {"id": request.id, "name": request.name, "key": request.key, "tenant": request.tenant}
    transaction.run(_SQL["own"], {**values, "job_id": request.job_id, "now": transaction.now})
    return MemoTold("mine")


def keep_memo(transaction: Transaction, request: KeepMemo) -> MemoTold | None:
    """See store.memo.KeepMemo."""
    check_memo(request)
    if steps.held_job(transaction, request.job_id, request.token) is None:
        return None
    expires_at = transaction.now + round(request.ttl_seconds * 1_000_000)
    values = {"id": request.id, "job_id": request.job_id, "value": request.value, "expires_at": expires_at}
    if transaction.run(_SQL["keep"], values).rowcount > 0:
        flow.wake_on(transaction, f"memo:{request.id}")
    told = _look(transaction, request.id, request.job_id)
    return told if told is not None and told.state == "done" else MemoTold("done", request.value)


def condition(transaction: Transaction, job_id: JobId, memo_id: str) -> tuple[str, str | None] | None:
    """Whether a job that waits for a memo may go on: it is done, or the job is to work it out."""
    told = _look(transaction, memo_id, job_id)
    if told is not None and told.state == "taken":
        return None
    if told is None:
        transaction.run(_SQL["pass_on"], {"id": memo_id, "job_id": job_id, "now": transaction.now})
    return "done", None


def list_memos(transaction: Transaction, request: ListMemos) -> Page[Memo]:
    """See store.memo.ListMemos."""
    rows, next_ = _page(transaction, request)
    return Page([_memo(row) for row in rows if row[-1]], next_)


def forget_memos(transaction: Transaction, request: ForgetMemos) -> Forgotten:
    """See store.memo.ForgetMemos."""
    ids, next_ = list(request.ids), None
    if not ids:
        rows, next_ = _page(transaction, request)
        ids = [row[0] for row in rows]
    else:
        check_choice(request)
    gone = transaction.all(_SQL["forget"], {"ids": dump(ids), "tenant": request.tenant})
    for memo_id, state in sorted(gone):
        if state == "open":
            flow.put_event(transaction, "look", f"memo:{memo_id}")  # one of those that wait works it out
    if gone:
        told = {"ids": list(request.ids), "key": request.key, "prefix": request.prefix, "tenant": request.tenant}
        detail = {name: value for name, value in told.items() if value} | {"memos": len(gone)}
        admin.audit(transaction, request.actor, "forget_memos", request.name or "memo", request.reason, detail)
    return Forgotten(len(gone), next_)


def _page(transaction: Transaction, request: ListMemos | ForgetMemos) -> tuple[list[Row], str | None]:
    """So many memos of those that a request names, and where the next page begins."""
    check_choice(request)
    check_limit(request.limit)
    name, key, prefix = request.name or "", request.key, request.prefix or ""
    first = [name, prefix if key is None else key, ""] if request.after is None else read_cursor(request.after)
    values = {
        **dict(zip(("after_name", "after_key", "after_id"), first, strict=True)),
        "until_name": name or _LAST,
        "until_key": prefix + _LAST if key is None else key,
        "tenant": request.tenant,
        "now": transaction.now,
        "limit": request.limit,
    }
    rows = transaction.all(_SQL["page"], values)
    is_full = bool(rows) and len(rows) == request.limit
    return rows, write_cursor(rows[-1][1], rows[-1][2], rows[-1][0]) if is_full else None


def _memo(row: Row) -> Memo:
    told: Row = (*row[:8], from_us(row[8]), moment(row[9]))
    return Memo(*told)


def prune(transaction: Transaction, limit: int) -> int:
    """Forget what is out of date. Answers how many memos went."""
    values = {"now": transaction.now, "given_up": transaction.now - GIVEN_UP_US, "limit": limit}
    return transaction.run(_SQL["prune"], values).rowcount


def _look(transaction: Transaction, memo_id: str, job_id: JobId) -> MemoTold | None:
    """How a memo stands for a job; None if it is free to take."""
    row = transaction.one(_SQL["found"], {"id": memo_id, "now": transaction.now})
    if row is None:
        return None
    state, owner, value, is_over, is_left = row
    if state == "done":
        return None if is_over else MemoTold("done", value)
    if owner == job_id:
        return MemoTold("mine")
    return None if is_left else MemoTold("taken")


flow.CONDITIONS["memo"] = condition

WRITES: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {
    TakeMemo: take_memo,
    KeepMemo: keep_memo,
    ForgetMemos: forget_memos,
}
READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {ListMemos: list_memos}
