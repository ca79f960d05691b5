"""Enqueue in a caller's own transaction: the same statements, on the caller's connection.

The commit is the caller's and out of our sight: the standard library has no hook for it. So the enqueue announces
itself, and listeners poll each millisecond for a while instead of each 50 (see `wake`). A job whose transaction takes
longer than that to commit is found by the slower poll, within 50 ms.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from tenure.errors import ConfigError
from tenure.model.job import Enqueued
from tenure.store.contract import Enqueue
from tenure.store.sqlite import enqueue
from tenure.store.sqlite.connect import add_functions
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Parameters, Transaction


class _Joined(Transaction):
    """A transaction on somebody else's connection, whatever row factory that has."""

    __slots__ = ()

    def run(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        self.statements += 1
        return self._cursor().execute(sql, parameters)

    def many(self, sql: str, rows: Iterable[Parameters]) -> int:
        self.statements += 1
        return self._cursor().executemany(sql, rows).rowcount

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self.connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor


def enqueue_on(connection: sqlite3.Connection, request: Enqueue, path: Path, now: int) -> list[Enqueued]:
    """Enqueue on a connection that is inside a transaction. The caller of this holds a savepoint around it."""
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        transaction = _Joined(connection, now)
        _refuse_other_file(transaction, path)
        if transaction.one(load("functions_found")) is None:
            add_functions(connection)
        return enqueue.enqueue(transaction, request)
    finally:
        connection.text_factory = text_factory


def _refuse_other_file(transaction: Transaction, path: Path) -> None:
    found = next((row[2] for row in transaction.all(load("database_list")) if row[1] == "main"), "")
    try:
        is_same = bool(found) and Path(found).samefile(path)
    except OSError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"The connection that was handed in is open on {found or 'a database in memory'}, and this store's "
            "jobs are in "
            f"{path}. Hand in a connection to the same file, or let the store enqueue by itself."
        )
