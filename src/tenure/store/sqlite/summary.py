"""Reads about the whole database: how it goes, why one job waits, what the engine says, what a prune would take."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.store.contract import Pruned
from tenure.store.sqlite import migrate
from tenure.store.sqlite.queries import load, migrations
from tenure.store.sqlite.transaction import Transaction, check_limit
from tenure.store.summary import (
    Backlog,
    Inspect,
    Inspection,
    Prunable,
    Ran,
    Repeated,
    Standing,
    Stood,
    Stuck,
    Summary,
    Summed,
)

_SYNCHRONOUS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")


def summarize(transaction: Transaction, request: Summary) -> Summed:
    """See store.summary.Summary."""
    check_limit(request.limit)
    values: dict[str, Any] = {
        "now": transaction.now,
        "since": transaction.now - round(request.window_seconds * 1_000_000),
        "queues": json.dumps(list(request.queues)) if request.queues else None,
        "limit": request.limit,
    }
    stuck = transaction.all(load("summary_stuck"), {**values, "limit": max(request.limit, 1)})
    return Summed(
        at=from_us(transaction.now),
        window_seconds=request.window_seconds,
        ran=[Ran(*(*row[:-1], from_us(row[-1]))) for row in transaction.all(load("summary_ran"), values)],
        stuck_count=stuck[0][0] if stuck else 0,
        stuck=[Stuck(*(*row[1:-1], from_us(row[-1]))) for row in stuck[: request.limit]],
        backlog=[Backlog(*(*row[:-1], _moment(row[-1]))) for row in transaction.all(load("summary_backlog"), values)],
        repeated=[Repeated(*row) for row in transaction.all(load("summary_repeated"), values)],
    )


def stand(transaction: Transaction, request: Standing) -> Stood | None:
    """See store.summary.Standing."""
    check_limit(request.cap)
    row = transaction.one(load("standing"), {"job_id": request.job_id, "cap": request.cap})
    return None if row is None else Stood(from_us(transaction.now), *row)


def inspect(transaction: Transaction, _request: Inspect) -> Inspection:
    """See store.summary.Inspect."""
    row = transaction.one(load("inspect"))
    assert row is not None
    version, size, journal_mode, synchronous, path = row
    schema = migrate.version(transaction, None)
    newest, last_event = (transaction.one(load("inspect_jobs")) if schema else None) or (None, 0)
    wal = Path(f"{path}-wal")
    return Inspection(
        engine="sqlite",
        version=version,
        at=from_us(transaction.now),
        schema_version=schema,
        schema_wanted=max(number for number, _, _ in migrations()),
        database_bytes=size,
        wal_bytes=wal.stat().st_size if wal.exists() else 0,
        path=path,
        journal_mode=journal_mode,
        synchronous=_SYNCHRONOUS[synchronous],
        newest_created_at=_moment(newest),
        last_event=last_event,
    )


def count_prunable(transaction: Transaction, request: Prunable) -> Pruned:
    """See store.summary.Prunable."""
    row = transaction.one(
        load("prunable"),
        {
            "now": transaction.now,
            "older_than_seconds": request.prune.older_than_seconds,
            "delete_after_seconds": request.prune.delete_after_seconds,
            "worker_seconds": request.prune.worker_seconds,
            "metric_seconds": request.prune.metric_seconds,
        },
    )
    assert row is not None
    cleaned, deleted, events, workers, metrics = row
    return Pruned(cleaned, deleted, events, workers, more=False, metrics=metrics)


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
