"""What people ask of a whole database, on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tenure.model.clock import from_us
from tenure.store.contract import Pruned
from tenure.store.metrics import ListMetrics, Metric, RolledUp, RollUp
from tenure.store.postgres import migrate as migrations
from tenure.store.postgres.call import Call
from tenure.store.postgres.errors import driver_errors
from tenure.store.summary import (
    Backlog,
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

_INSPECT = Path(__file__).parent / "sql" / "inspect.sql"


def _summed(answer: Any, request: Summary) -> Summed:
    return Summed(
        at=from_us(answer["at"]),
        window_seconds=request.window_seconds,
        ran=[Ran(*_timed(row)) for row in answer["ran"]],
        stuck_count=answer["stuck_count"],
        stuck=[Stuck(*_timed(row)) for row in answer["stuck"]],
        backlog=[Backlog(*_timed(row)) for row in answer["backlog"]],
        repeated=[Repeated(*row) for row in answer["repeated"]],
    )


def _timed(row: list[Any]) -> list[Any]:
    """A row whose last column is a moment."""
    return [*row[:-1], None if row[-1] is None else from_us(row[-1])]


def _stood(answer: Any, _: Standing) -> Stood | None:
    return None if answer is None else Stood(**{**answer, "at": from_us(answer["at"])})


def _rolled_up(answer: Any, _: RollUp) -> RolledUp:
    return RolledUp(None if answer["until"] is None else from_us(answer["until"]), answer["rows"], answer["more"])


def inspect(url: str, newest: Callable[[], Any]) -> Inspection:
    """What the server says about itself. `newest` asks our own schema, and is called only if it is there."""
    import psycopg

    version = migrations.schema_version(url)
    with driver_errors(url), psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_INSPECT.read_bytes()).fetchone()
    assert row is not None
    facts = row[0] | (newest() if version == migrations.newest() else {"newest_created_at": None, "last_event": 0})
    created = facts["newest_created_at"]
    facts |= {"at": from_us(facts["at"]), "newest_created_at": None if created is None else from_us(created)}
    return Inspection(engine="postgresql", schema_version=version, schema_wanted=migrations.newest(), **facts)


CALLS: dict[type[Any], Call] = {
    Summary: Call(
        "summary",
        lambda r: json.dumps({"window_seconds": r.window_seconds, "queues": list(r.queues), "limit": r.limit}),
        _summed,
    ),
    RollUp: Call("roll_up", lambda r: json.dumps({"minutes": r.minutes}), _rolled_up),
    ListMetrics: Call(
        "list_metrics",
        lambda r: json.dumps({"minutes": r.minutes, "queues": list(r.queues), "limit": r.limit}),
        lambda answer, _: [Metric(from_us(row[0]), *row[1:]) for row in answer],
    ),
    Standing: Call("standing", lambda r: json.dumps({"job_id": r.job_id, "cap": r.cap}), _stood),
    Prunable: Call("prunable", lambda r: json.dumps(asdict(r.prune)), lambda answer, _: Pruned(**answer)),
}
