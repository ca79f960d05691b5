"""Retention, and the tally of ended jobs. Dead letters are never touched."""

from __future__ import annotations

import json
from typing import Final

from tenure.model.ids import WorkerId
from tenure.store.admin import RemoveWorkers
from tenure.store.contract import Prune, Pruned
from tenure.store.sqlite import approvals, budgets, limits, memo, memory, metrics, settle, streams
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit

_SQL: Final = load("maintenance")

_MINUTE: Final = 60_000_000
_LAG: Final = _MINUTE
"""A request reads the clock before it gets to write. What is older than this has been written or never will be."""


def prune(transaction: Transaction, request: Prune) -> Pruned:
    """See store.contract.Prune."""
    check_limit(request.limit, 1)
    values = {
        "now": transaction.now,
        "limit": request.limit,
        "older_than_seconds": request.older_than_seconds,
        "delete_after_seconds": request.delete_after_seconds,
    }
    cleaned_ids = [row[0] for row in transaction.all(_SQL["prune_clean"], values)]
    transaction.run(_SQL["prune_errors"], {"ids": json.dumps(cleaned_ids)})
    transaction.run(_SQL["prune_values"], {"ids": json.dumps(cleaned_ids)})
    transaction.run(_SQL["prune_signals"], values)
    streams.mark_gone(transaction, json.dumps(cleaned_ids))
    approvals.clean(transaction, json.dumps(cleaned_ids))
    budgets.forget_spends(transaction, json.dumps(cleaned_ids))
    tally_cleaned(transaction, json.dumps(cleaned_ids))
    cleaned = len(cleaned_ids)
    deleted = events = 0
    if request.delete_after_seconds is not None:
        ids = [row[0] for row in transaction.all(_SQL["prune_ids"], values)]
        array = {"ids": json.dumps(ids)}
        tally_gone(transaction, array["ids"])
        transaction.run(_SQL["prune_attempts"], array)
        transaction.run(_SQL["prune_effects"], array)
        transaction.run(_SQL["prune_steps"], array)
        approvals.drop(transaction, array["ids"])
        budgets.forget_spends(transaction, array["ids"])
        transaction.run(_SQL["prune_members"], array)
        transaction.run(_SQL["prune_groups"], array)
        events = transaction.run(_SQL["prune_events"], array).rowcount
        deleted = transaction.run(_SQL["prune_jobs"], array).rowcount
    removed = _remove_silent(transaction, request.worker_seconds, request.limit)
    dropped = metrics.drop(transaction, request.metric_seconds, request.limit)
    memories = memory.expire(transaction, request.limit)
    chunks = streams.drop(transaction, request.limit)
    limits.prune(transaction)
    memos = memo.prune(transaction, request.limit)
    tally_up(transaction)
    more = request.limit in (cleaned, deleted, len(removed), dropped, memories, chunks, memos)
    return Pruned(cleaned, deleted, events, len(removed), more, dropped, memories)


def remove_workers(transaction: Transaction, request: RemoveWorkers) -> list[WorkerId]:
    """See store.admin.RemoveWorkers."""
    removed = [worker for worker in dict.fromkeys(request.ids) if _remove(transaction, worker)]
    if request.unseen_seconds is not None:
        removed += _remove_silent(transaction, request.unseen_seconds, 1000)
    return removed


def _remove_silent(transaction: Transaction, seconds: float, limit: int) -> list[WorkerId]:
    """The rows of workers that were not seen for so long and hold nothing."""
    values = {"now": transaction.now, "unseen": min(round(seconds * 1_000_000), transaction.now)}
    settle.take_back_held(transaction, transaction.all(_SQL["silent_holds"], values))
    unseen = [WorkerId(row[0]) for row in transaction.all(_SQL["workers_unseen"], {**values, "limit": limit})]
    return [worker for worker in unseen if _remove(transaction, worker)]


def _remove(transaction: Transaction, worker: WorkerId) -> bool:
    """Jobs first: once the row is gone, no other row says whose they were."""
    settle.take_back_from(transaction, worker)
    transaction.run(_SQL["worker_gate_remove"], (worker,))
    return transaction.run(_SQL["worker_remove"], (worker,)).rowcount > 0


def tally_up(transaction: Transaction) -> None:
    """Count what ended since the last time, where a profile is installed that shows it."""
    if transaction.one(_SQL["profile_any"]) is None:
        return
    after, until = _mark(transaction), transaction.now - _LAG
    if until > after:
        transaction.run(_SQL["tally_up"], {"after": after, "until": until})
        transaction.run(_SQL["tally_move_mark"], (until,))


def tally_cleaned(transaction: Transaction, ids: str) -> None:
    """Jobs (a JSON array of ids) have just been cleaned."""
    values = {"ids": ids, "until": _mark(transaction)}
    if values["until"] != -1:
        transaction.run(_SQL["tally_take"], {**values, "is_cleaned": 0})
        transaction.run(_SQL["tally_add_cleaned"], values)
        transaction.run(_SQL["tally_drop_empty"])


def tally_gone(transaction: Transaction, ids: str) -> None:
    """Cleaned jobs are about to be deleted."""
    until = _mark(transaction)
    if until != -1:
        transaction.run(_SQL["tally_take"], {"ids": ids, "until": until, "is_cleaned": 1})
        transaction.run(_SQL["tally_drop_empty"])


def _mark(transaction: Transaction) -> int:
    row = transaction.one(_SQL["tally_mark"])
    assert row is not None
    return int(row[0])
