"""The view that a request has of the transaction it runs in: counted statements, the time, and whom to wake after the
commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.store.sqlite.statements import load

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_EFFECTS: Final = load("effects")


class Transaction:
    """One request inside an open transaction, which it neither begins nor ends."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self.connection = connection
        self.now = now
        """The store's clock, read once per request, in microseconds."""
        self.statements = 0
        self.woken: set[str] = set()
        """Queues in which a job became claimable."""
        self.stops = False
        """A held job was asked to stop."""
        self._wants_events: bool | None = None

    def run(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        """One statement."""
        self.statements += 1
        return self.connection.execute(sql, parameters)

    def one(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """The first row, None if there is none."""
        row: Row | None = self.run(sql, parameters).fetchone()
        return row

    def all(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """All rows."""
        return self.run(sql, parameters).fetchall()

    def array(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """The JSON array that is the statement's only value."""
        row = self.one(sql, parameters)
        assert row is not None
        found: list[Any] = json.loads(row[0])
        return found

    @property
    def wants_events(self) -> bool:
        """Whether any queue keeps lifecycle events."""
        if self._wants_events is None:
            self._wants_events = self.one(_EFFECTS["events_wanted"]) is not None
        return self._wants_events

    def record(self, kind: str, job_ids: Iterable[str]) -> None:
        """Write lifecycle events for jobs that just moved, where their queues ask for it."""
        if self.wants_events and (ids := list(job_ids)):
            self.run(_EFFECTS["event_lifecycle"], {"now": self.now, "kind": kind, "ids": json.dumps(ids)})


Act = Callable[[Transaction, Any], Any]
"""Carries out one kind of request."""

dump: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
"""JSON text for a statement that takes an array."""


def check_limit(limit: int) -> None:
    """Refuse a limit that makes no sense; SQLite would take a negative one for none at all."""
    if limit < 0:
        raise InvalidArgument(f"limit: expected 0 or more, got {limit}. Nothing was changed.")
