"""Memos. See store.memo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenure.model.ids import JobId
from tenure.model.memo import MemoTold
from tenure.store.memo import KeepMemo, TakeMemo, check_memo
from tenure.store.sqlite import flow, steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

GIVEN_UP_US: Final = 86_400_000_000

_SQL: Final = load("memo")


def take_memo(transaction: Transaction, request: TakeMemo) -> MemoTold | None:
    """See store.memo.TakeMemo."""
    check_memo(request)
    held = steps.held_job(transaction, request.job_id, request.token)
    if held is None:
        return None
    told = _look(transaction, request.id, request.job_id)
    if (told is None or told.state == "mine") and held[0] is None:
        steps.note_durable(transaction, request.job_id)  # its end looks for what it owns
    if told is not None:
        return told
    values = {"id": request.id, "name": request.name, "tenant": request.tenant, "job_id": request.job_id}
    transaction.run(_SQL["own"], {**values, "now": transaction.now})
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

WRITES: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {TakeMemo: take_memo, KeepMemo: keep_memo}
