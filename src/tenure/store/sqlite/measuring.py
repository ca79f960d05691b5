"""`tenure bench`: the bare engine for comparison, and removing what a run left behind."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Final

from tenure.errors import IllegalMove
from tenure.store.measuring import DropQueue, Measure
from tenure.store.sqlite.connection import open_writer
from tenure.store.sqlite.errors import translate
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_BODY: Final = "x" * 200
_SQL: Final = load("measuring")


def measure(path: Path, request: Measure) -> float:
    """See store.measuring.Measure. The file stands beside the database: the same disk, set up the same way."""
    try:
        with tempfile.TemporaryDirectory(prefix=".tenure-bench-", dir=path.parent) as folder:
            beside = Path(folder) / "bare.db"
            os.close(os.open(beside, os.O_CREAT | os.O_EXCL, 0o600))
            connection = open_writer(beside, 1.0)
            try:
                return _measured(connection, request)
            finally:
                connection.close()
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc


def _measured(connection: sqlite3.Connection, request: Measure) -> float:
    connection.execute(_SQL["bare_table"])
    statement, values = (_SQL["bare_commit"], (_BODY,)) if request.what == "commit" else (_SQL["bare_read"], ())
    done, begun = 0, time.perf_counter()
    while done < request.times and time.perf_counter() - begun < request.seconds:
        connection.execute(statement, values).fetchall()
        done += 1
    return (time.perf_counter() - begun) / max(1, done)


def drop_queue(transaction: Transaction, request: DropQueue) -> int:
    """See store.measuring.DropQueue."""
    asked = {"name": request.name, "kind": request.kind}
    row = transaction.one(_SQL["drop_look"], asked)
    if row is not None and row[0]:
        raise IllegalMove(
            f"Queue {request.name!r} holds {row[0]:,} jobs of other kinds than {request.kind!r}, so it stays."
        )
    if request.is_trial:
        return 0
    transaction.run(_SQL["drop_attempts"], asked)
    transaction.run(_SQL["drop_dead_letters"], asked)
    transaction.run(_SQL["drop_effects"], asked)
    transaction.run(_SQL["drop_events"], asked)
    jobs = transaction.run(_SQL["drop_jobs"], asked).rowcount
    transaction.run(_SQL["drop_metrics"], asked)
    transaction.run(_SQL["drop_metric_spans"], asked)
    transaction.run(_SQL["drop_metric_parts"], asked)
    transaction.run(_SQL["drop_metric_totals"], asked)
    transaction.run(_SQL["drop_tallies"], asked)
    transaction.run(_SQL["drop_workers"], asked)
    transaction.run(_SQL["drop_queue"], asked)  # last: a job needs its queue
    return jobs
