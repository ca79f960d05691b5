"""The bare engine beside which Tenure is measured, and taking away what the measuring left."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Final

from tenure.errors import IllegalMove
from tenure.store.measuring import DropQueue, Measure
from tenure.store.sqlite.connect import open_writer
from tenure.store.sqlite.errors import translate
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction

_BODY: Final = "x" * 200
_HANGING: Final = ("attempts", "dead_letters", "effects", "events", "jobs", "metrics", "tallies", "workers", "queue")
"""What goes, in this order: a job needs its queue."""


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
    connection.execute(load("bare_table"))
    statement, values = (load("bare_commit"), (_BODY,)) if request.what == "commit" else (load("bare_read"), ())
    done, begun = 0, time.perf_counter()
    while done < request.times and time.perf_counter() - begun < request.seconds:
        connection.execute(statement, values).fetchall()
        done += 1
    return (time.perf_counter() - begun) / max(1, done)


def drop_queue(transaction: Transaction, request: DropQueue) -> int:
    """See store.measuring.DropQueue."""
    asked = {"name": request.name, "kind": request.kind}
    row = transaction.one(load("drop_look"), asked)
    if row is not None and row[0]:
        raise IllegalMove(
            f"Queue {request.name!r} holds {row[0]:,} jobs of other kinds than {request.kind!r}, so it stays."
        )
    if request.is_trial:
        return 0
    gone = {what: transaction.run(load(f"drop_{what}"), asked).rowcount for what in _HANGING}
    transaction.forget()
    return gone["jobs"]
