"""The view that a request has of the transaction it runs in: counted statements, the time, and whom to wake after the
commit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from tenure.errors import InvalidArgument
from tenure.store.sqlite.statements import load

Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_EFFECTS: Final = load("effects")
_ENDS: Final = frozenset({"completed", "failed", "dead"})
"""Moves of which agent events tell."""


class Keeps(NamedTuple):
    """What any queue of the file wants to have written when jobs move."""

    events: bool
    """Of either kind below."""
    lifecycle: bool
    agent_events: bool


@dataclass(eq=False)
class Transaction:
    """One request inside an open transaction, which it neither begins nor ends."""

    connection: sqlite3.Connection
    now: int
    """The store's clock, read once per request, in microseconds."""
    statements: int = 0
    woken: set[str] = field(default_factory=set)
    """Queues in which a job became claimable."""
    stops: bool = False
    """A held job was asked to stop."""
    has_flow_events: bool = False
    """It left events for SweepFlow."""
    tasks: dict[str, str] = field(default_factory=dict)
    """Jobs that name a workflow (the value) and have ended or were revived; folded before the commit."""

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
        ((text,),) = self.all(sql, parameters)
        found: list[Any] = json.loads(text)
        return found

    @cached_property
    def keeps(self) -> Keeps:
        """What has to be kept of moves; asked once for each request."""
        ((lifecycle, agent_events),) = self.all(_EFFECTS["events_wanted"])
        return Keeps(bool(lifecycle or agent_events), bool(lifecycle), bool(agent_events))

    def record(self, kind: str, job_ids: Iterable[str]) -> None:
        """Write events for jobs that just moved, where their queues ask for it: of their life, and of agents."""
        if not (ids := list(job_ids)) or not self.keeps.events:
            return
        if self.keeps.lifecycle:
            self.run(_EFFECTS["event_lifecycle"], {"now": self.now, "kind": kind, "ids": json.dumps(ids)})
        if self.keeps.agent_events and kind in _ENDS:
            from tenure.store.sqlite import memory  # it enqueues, by way of this module

            memory.keep_agent_events(self, kind, ids)


Act = Callable[[Transaction, Any], Any]
"""Carries out one kind of request."""

dump: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
"""JSON text for a statement that takes an array."""


def check_limit(limit: int, least: int = 0) -> None:
    """Refuse a limit that makes no sense; SQLite would take a negative one for none at all."""
    if not least <= limit < 2**31:
        raise InvalidArgument(f"limit: expected {least} or more, below 2**31, got {limit}. Nothing was changed.")
