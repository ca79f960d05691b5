"""What a move copies: every table that both databases have, but for those that are named here with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tenure.errors import SchemaError
from tenure.model.frozen import frozen
from tenure.store.moving import TableShape

LEFT_OUT: Final[Mapping[str, str]] = {
    "migration": "says how this database got its schema",
    "flow_event": "is swept empty in the source before it is frozen",
    "move": "is the ledger of moves",
    "move_table": "is the progress of a move",
    "login_queue": "names logins of one PostgreSQL server",
    "waiter": "names processes that listen on PostgreSQL now",
    "inserted": "is the answer to an INSERT into a view on SQLite, within its transaction",
    "metric_bound": "holds constants on SQLite",
    "test_clock": "is the clock of a test",
}
"""Tables that are not copied, and why."""

ONE_ENGINE_ONLY: Final[Mapping[str, Mapping[str, str]]] = {
    "attempt": {"login": "is a login of one PostgreSQL server"},
    "event": {"xid": "is the writing transaction on PostgreSQL"},
    "job": {
        "lease_login": "is a login of one PostgreSQL server; leases that come along are those of the mover's",
        "enqueued_by": "is a login of one PostgreSQL server; jobs that come along belong to none",
    },
    "memory": {
        "seq": "numbers writes on SQLite; the order of insertion gives new ones",
        "xid": "is the writing transaction on PostgreSQL",
    },
    "metric_mark": {
        "next_until": "is a count that PostgreSQL has begun; it begins anew",
        "next_xid": "is a transaction of one PostgreSQL server",
    },
    "worker": {"login": "is a login of one PostgreSQL server"},
    "workflow": {"started_by": "is a login of one PostgreSQL server; runs that come along belong to none"},
    "tally_mark": {
        "next_until": "is a count that PostgreSQL has begun; it begins anew",
        "next_xid": "is a transaction of one PostgreSQL server",
    },
}
"""Columns that are not copied, by table, and why."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = {"memory": ("id",)}
"""Keys of tables whose primary key is not copied."""

SEEDS: Final[Mapping[str, int]] = {"queue": 1, "metric_mark": 1, "tally_mark": 1}
"""How many rows a migration writes. A database with no more than these is empty."""


@frozen
class Table:
    """One table of a plan."""

    name: str
    columns: tuple[str, ...]
    source: TableShape
    destination: TableShape
    loose: tuple[int, ...]
    """The places of columns whose JSON is compared by value."""


def plan(source: Sequence[TableShape], destination: Sequence[TableShape]) -> list[Table]:
    """The tables to copy, each behind those that it refers to.

    Raises: SchemaError (a table or a column that only one of them has, and no reason is given for it here).
    """
    ours, theirs = _by_name(source), _by_name(destination)
    if lonely := sorted(ours.keys() ^ theirs.keys()):
        raise SchemaError(
            f"Only one of the two databases has the tables {', '.join(lonely)}, so they cannot be copied. Bring both "
            "to this version with `tenure migrate`."
        )
    return _ordered([_table(ours[name], theirs[name]) for name in sorted(ours)])


def _by_name(shapes: Sequence[TableShape]) -> dict[str, TableShape]:
    return {shape.name: shape for shape in shapes if shape.name not in LEFT_OUT}


def _table(source: TableShape, destination: TableShape) -> Table:
    apart = ONE_ENGINE_ONLY.get(source.name, {})
    ours, theirs = set(source.columns) - apart.keys(), set(destination.columns) - apart.keys()
    if ours != theirs:
        raise SchemaError(
            f"Table {source.name!r} has the columns {', '.join(sorted(ours ^ theirs))} in one of the two databases "
            "only, so it cannot be copied. Bring both to this version with `tenure migrate`."
        )
    columns = tuple(name for name in source.columns if name in ours)
    loose = tuple(place for place, name in enumerate(columns) if name in source.loose | destination.loose)
    return Table(source.name, columns, _keyed(source), _keyed(destination), loose)


def _keyed(shape: TableShape) -> TableShape:
    key = KEYS.get(shape.name, shape.key)
    counter = shape.counter if shape.counter not in ONE_ENGINE_ONLY.get(shape.name, {}) else None
    return TableShape(shape.name, shape.columns, key, shape.references, counter, shape.loose)


def _ordered(tables: Sequence[Table]) -> list[Table]:
    waiting = {table.name: table for table in tables}
    done: list[Table] = []
    while waiting:
        free = [
            table
            for table in waiting.values()
            if not (set(table.destination.references) - {table.name}) & waiting.keys()
        ]
        if not free:
            raise SchemaError(f"The tables {', '.join(sorted(waiting))} refer to each other in a circle.")
        done.extend(waiting.pop(table.name) for table in free)
    return done
