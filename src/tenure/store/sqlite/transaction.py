"""What an act sees of the transaction it runs in: statements that are counted, the time, and whom to wake after the commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.errors import InvalidArgument
from tenure.store.sqlite.queries import load

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]


class Transaction:
    """One open transaction. Acts neither begin nor end it."""

    __slots__ = ("_execute", "_wants_events", "connection", "now", "statements", "stops", "woken")

    def __init__(self, connection: sqlite3.Connection, now: int = 0) -> None:
        self.connection = connection
        self.now = now
        """The store's clock, read once per request, in microseconds."""
        self.statements = 0
        self.woken: set[str] = set()
        """Queues in which a job became claimable."""
        self.stops = False
        """A held job was asked to stop."""
        self._execute = connection.execute
        self._wants_events: bool | None = None

    def run(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        """One statement."""
        self.statements += 1
        return self._execute(sql, parameters)

    def one(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row, None if there is none."""
        row: Row | None = self.run(sql, parameters).fetchone()
        return row

    def all(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows."""
        return self.run(sql, parameters).fetchall()

    def many(self, sql: str, rows: Iterable[Parameters]) -> int:
        """One statement for each of `rows`; how many rows were changed in all."""
        self.statements += 1
        return self.connection.executemany(sql, rows).rowcount

    def record(self, kind: str, job_ids: Iterable[str]) -> None:
        """Write lifecycle events for jobs that just moved, where their queues ask for it."""
        if self._wants_events is None:
            self._wants_events = self.one(load("events_wanted")) is not None
        if self._wants_events and (ids := list(job_ids)):
            self.run(load("event_lifecycle"), {"now": self.now, "kind": kind, "ids": json.dumps(ids)})

    def forget_policies(self) -> None:
        """Queues were changed in this transaction: look again whether events are wanted."""
        self._wants_events = None

    def quieten(self) -> None:
        """Before the commit: nobody is woken for queues whose notify gate is closed."""
        for (queue,) in self.all(load("notify_gates"), {"queues": json.dumps(list(self.woken))}):
            self.woken.discard(queue)

    def undo(self) -> None:
        """The transaction was rolled back: nobody is to be woken."""
        self.woken.clear()
        self.stops = False
        self._wants_events = None


def check_limit(limit: int) -> None:
    """Refuse a limit that makes no sense; SQLite would take a negative one for none at all."""
    if limit < 0:
        raise InvalidArgument(f"limit: expected 0 or more, got {limit}. Nothing was changed.")
