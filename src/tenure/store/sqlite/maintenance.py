"""Retention, the tally of ended jobs, and minutes that are counted. Dead letters are never touched."""

from __future__ import annotations

import json
from typing import Final

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us
from tenure.model.ids import WorkerId
from tenure.store.admin import RemoveWorkers
from tenure.store.contract import Prune, Pruned
from tenure.store.metrics import ListMetrics, Metric, RolledUp, RollUp
from tenure.store.sqlite import settle
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit

_SQL: Final = load("maintenance")

_MINUTE: Final = 60_000_000
_LAG: Final = _MINUTE
"""A request reads the clock before it gets to write. What is older than this has been written or never will be."""
_FIRST: Final = 60 * _MINUTE
_LONGEST: Final = 30 * 1440 * _MINUTE
_PRESENT: Final = 5 * _MINUTE
"""How late a minute may be counted for the silence of workers to be told of it."""


def prune(transaction: Transaction, request: Prune) -> Pruned:
    """See store.contract.Prune."""
    check_limit(request.limit)
    values = {
        "now": transaction.now,
        "limit": request.limit,
        "older_than_seconds": request.older_than_seconds,
        "delete_after_seconds": request.delete_after_seconds,
    }
    cleaned_ids = [row[0] for row in transaction.all(_SQL["prune_clean"], values)]
    transaction.run(_SQL["prune_errors"], {"ids": json.dumps(cleaned_ids)})
    tally_cleaned(transaction, json.dumps(cleaned_ids))
    cleaned = len(cleaned_ids)
    deleted = events = 0
    if request.delete_after_seconds is not None:
        ids = [row[0] for row in transaction.all(_SQL["prune_ids"], values)]
        array = {"ids": json.dumps(ids)}
        tally_gone(transaction, array["ids"])
        transaction.run(_SQL["prune_attempts"], array)
        transaction.run(_SQL["prune_effects"], array)
        events = transaction.run(_SQL["prune_events"], array).rowcount
        deleted = transaction.run(_SQL["prune_jobs"], array).rowcount
    unseen = _unseen(transaction, request.worker_seconds, request.limit)
    removed = [worker for worker in unseen if _remove(transaction, worker)]
    metrics = _drop_metrics(transaction, request.metric_seconds, request.limit)
    tally_up(transaction)
    more = request.limit in (cleaned, deleted, len(unseen), metrics)
    return Pruned(cleaned, deleted, events, len(removed), more, metrics)


def remove_workers(transaction: Transaction, request: RemoveWorkers) -> list[WorkerId]:
    """See store.admin.RemoveWorkers."""
    asked = list(request.ids)
    if request.unseen_seconds is not None:
        asked += _unseen(transaction, request.unseen_seconds, 1000)
    return [worker for worker in dict.fromkeys(asked) if _remove(transaction, worker)]


def _unseen(transaction: Transaction, seconds: float, limit: int) -> list[WorkerId]:
    values = {"since": transaction.now - round(seconds * 1_000_000), "limit": limit}
    return [WorkerId(row[0]) for row in transaction.all(_SQL["workers_unseen"], values)]


def _remove(transaction: Transaction, worker: WorkerId) -> bool:
    """Jobs first: once the row is gone, no other row says whose they were."""
    settle.take_back_from(transaction, worker)
    return transaction.run(_SQL["worker_remove"], (worker,)).rowcount > 0


def roll_up(transaction: Transaction, request: RollUp) -> RolledUp:
    """See store.metrics.RollUp. One writer at a time: a request that is not committed by now has not begun."""
    if not 1 <= request.minutes <= 1440:
        raise InvalidArgument(f"Between 1 and 1440 minutes can be counted at once, not {request.minutes}.")
    row = transaction.one(_SQL["metric_mark"])
    assert row is not None
    ripe = (transaction.now - _LAG) // _MINUTE * _MINUTE
    after = max(ripe - _FIRST if row[0] is None else int(row[0]), ripe - _LONGEST)
    until = max(after, min(ripe, after + request.minutes * _MINUTE))
    rows = 0
    if until > after:
        values = {"after": after, "until": until, "now": transaction.now, "minute": _MINUTE, "present": _PRESENT}
        rows = transaction.run(_SQL["metric_count"], values).rowcount
    if until != row[0]:
        transaction.run(_SQL["metric_move_mark"], (until,))
    return RolledUp(from_us(until), rows, more=until < ripe)


def list_metrics(transaction: Transaction, request: ListMetrics) -> list[Metric]:
    """See store.metrics.ListMetrics."""
    check_limit(request.limit)
    values = {
        "since": transaction.now // _MINUTE * _MINUTE - round(request.minutes * _MINUTE),
        "queues": json.dumps(list(request.queues)) if request.queues else None,
        "limit": request.limit,
    }
    return [Metric(from_us(row[0]), *row[1:]) for row in transaction.all(_SQL["metrics"], values)]


def _drop_metrics(transaction: Transaction, seconds: float, limit: int) -> int:
    """Remove the oldest minutes that lie further back than that. Answers how many rows went."""
    values = {"until": transaction.now - round(seconds * 1_000_000), "limit": limit}
    return transaction.run(_SQL["metric_drop"], values).rowcount


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
