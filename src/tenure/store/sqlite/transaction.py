"""What an act sees of the transaction it runs in: statements that are counted, the time, and whom to wake after
the commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_STAMP: Final = load("stamp")


class Transaction:
    """One open transaction. Acts neither begin nor end it."""

    __slots__ = ("_execute", "_is_checked", "_known", "connection", "now", "statements", "stops", "woken")

    def __init__(self, connection: sqlite3.Connection, now: int = 0, known: Known | None = None) -> None:
        self.connection = connection
        self.now = now
        """The store's clock, read once per request, in microseconds."""
        self.statements = 0
        self.woken: set[str] = set()
        """Queues in which a job became claimable."""
        self.stops = False
        """A held job was asked to stop."""
        self._execute = connection.execute
        self._known = known or Known()
        self._is_checked = False

    @property
    def known(self) -> Known:
        """What was read of queues and gates before, if it still holds."""
        if not self._is_checked:
            row = self.one(_STAMP)
            self.check(None if row is None else row[0])
        return self._known

    def check(self, stamp: int | None) -> None:
        """What was read before holds if the stamp, as a statement of this transaction found it, is still the same."""
        self._known.check(stamp)
        self._is_checked = True

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

    @property
    def wants_events(self) -> bool:
        """Whether any queue keeps lifecycle events."""
        known = self.known
        if known.wants_events is None:
            known.wants_events = self.one(load("events_wanted")) is not None
        return known.wants_events

    def record(self, kind: str, job_ids: Iterable[str]) -> None:
        """Write lifecycle events for jobs that just moved, where their queues ask for it."""
        if self.wants_events and (ids := list(job_ids)):
            self.run(load("event_lifecycle"), {"now": self.now, "kind": kind, "ids": json.dumps(ids)})

    def quieten(self) -> None:
        """Before the commit: nobody is woken for queues whose notify gate is closed."""
        known = self.known
        if known.has_quiet_gates is None:
            known.has_quiet_gates = self.one(load("quiet_gates")) is not None
        if known.has_quiet_gates:
            for (queue,) in self.all(load("notify_gates"), {"queues": json.dumps(list(self.woken))}):
                self.woken.discard(queue)

    def forget(self) -> None:
        """Queues or gates were changed in this transaction, or a change was undone."""
        self._is_checked = False
        self._known.forget()

    def undo(self) -> None:
        """The transaction was rolled back: nobody is to be woken, and what was read in it may not be so."""
        self.woken.clear()
        self.stops = False
        self._is_checked = False
        self._known.forget()


def check_limit(limit: int) -> None:
    """Refuse a limit that makes no sense; SQLite would take a negative one for none at all."""
    if limit < 0:
        raise InvalidArgument(f"limit: expected 0 or more, got {limit}. Nothing was changed.")
