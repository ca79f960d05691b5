"""Prune: retention. Payloads go, rows stay, dead letters are never touched."""

from __future__ import annotations

import json

from tenure.model.ids import WorkerId
from tenure.store.admin import RemoveWorkers
from tenure.store.contract import Prune, Pruned
from tenure.store.sqlite import expire, metric, tally
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction, check_limit


def prune(transaction: Transaction, request: Prune) -> Pruned:
    """See store.base.Prune."""
    check_limit(request.limit)
    values = {
        "now": transaction.now,
        "limit": request.limit,
        "older_than_seconds": request.older_than_seconds,
        "delete_after_seconds": request.delete_after_seconds,
    }
    cleaned_ids = [row[0] for row in transaction.all(load("prune_clean"), values)]
    transaction.run(load("prune_errors"), {"ids": json.dumps(cleaned_ids)})
    tally.tally_cleaned(transaction, json.dumps(cleaned_ids))
    cleaned = len(cleaned_ids)
    deleted = events = 0
    if request.delete_after_seconds is not None:
        ids = [row[0] for row in transaction.all(load("prune_ids"), values)]
        array = {"ids": json.dumps(ids)}
        tally.tally_gone(transaction, array["ids"])
        transaction.run(load("prune_attempts"), array)
        transaction.run(load("prune_effects"), array)
        events = transaction.run(load("prune_events"), array).rowcount
        deleted = transaction.run(load("prune_jobs"), array).rowcount
    unseen = _unseen(transaction, request.worker_seconds, request.limit)
    removed = [worker for worker in unseen if _remove(transaction, worker)]
    metrics = metric.drop(transaction, request.metric_seconds, request.limit)
    tally.tally_up(transaction)
    more = request.limit in (cleaned, deleted, len(unseen), metrics)
    return Pruned(cleaned, deleted, events, len(removed), more, metrics)


def remove_workers(transaction: Transaction, request: RemoveWorkers) -> list[WorkerId]:
    """See store.operating.RemoveWorkers."""
    asked = list(request.ids)
    if request.unseen_seconds is not None:
        asked += _unseen(transaction, request.unseen_seconds, 1000)
    return [worker for worker in dict.fromkeys(asked) if _remove(transaction, worker)]


def _unseen(transaction: Transaction, seconds: float, limit: int) -> list[WorkerId]:
    values = {"since": transaction.now - round(seconds * 1_000_000), "limit": limit}
    return [WorkerId(row[0]) for row in transaction.all(load("workers_unseen"), values)]


def _remove(transaction: Transaction, worker: WorkerId) -> bool:
    """Jobs first: once the row is gone, nobody would know whose they were."""
    expire.take_back_from(transaction, worker)
    return transaction.run(load("worker_remove"), (worker,)).rowcount > 0
