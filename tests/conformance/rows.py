"""Whole rows of both databases in one form, so that they can be compared column by column.

Moments become whole microseconds since 1970, ids text, JSON parsed, booleans bool. Generated ids (of dead letters,
events and audit rows) are replaced by the order of appearance per job or subject: no engine promises their values.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from tenure.model.clock import to_us
from tenure.model.frozen import frozen

NEVER_US = to_us(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
"""SQLite stores this moment where PostgreSQL stores 'infinity'."""

Key = tuple[Any, ...]
Row = dict[str, Any]
Snapshot = dict[str, dict[Key, Row]]
"""By table, then by the row's key."""


@frozen
class Table:
    """How the rows of one table are told apart and read."""

    name: str
    key: tuple[str, ...]
    is_numbered: bool = False
    """The key is not unique; rows of one key are numbered in their order."""
    generated: str | None = None
    """A column that the engine makes up: it orders the rows and is not compared."""
    json: tuple[str, ...] = ()
    booleans: tuple[str, ...] = ()
    skipped: str = "false"
    """Rows that are not compared."""


TABLES = (
    Table(
        "job",
        ("id",),
        json=("payload", "backoff", "forbidden_keys", "progress", "result"),
        booleans=("is_due", "is_beside"),
    ),
    Table("attempt", ("job_id", "token")),
    Table("dead_letter", ("job_id", "token"), generated="id", json=("payload", "forbidden_keys")),
    Table("event", ("job_id",), is_numbered=True, generated="seq", json=("data",)),
    Table("effect", ("job_id", "step", "name"), json=("args", "result")),
    Table("agent_event", ("job_id", "kind"), is_numbered=True, generated="id", json=("data",)),
    Table("step", ("job_id", "key"), json=("value",)),
    Table("signal", ("id",), json=("value",)),
    Table("job_group", ("id",), booleans=("fail_fast", "cancel_rest")),
    Table("group_member", ("group_id", "position")),
    Table("memo", ("id",), json=("value",)),
    Table("workflow", ("id",), json=("policy", "data"), booleans=("is_judged",)),
    Table("task", ("job_id",), json=("fan_out",), booleans=("is_optional", "is_released")),
    Table("edge", ("src", "dst")),
    Table("escalation", ("workflow_id", "round", "level"), generated="id", json=("target",)),
    Table("audit", ("subject",), is_numbered=True, generated="seq", json=("detail",)),
    Table(
        "queue",
        ("name",),
        json=("forbidden_keys",),
        booleans=("start_on_claim", "key_required", "events"),
        # The migration made it, at the time of the machine.
        skipped="name = 'default'",
    ),
    Table("gate", ("name",), booleans=("is_open",)),
    Table("worker", ("id",), json=("queues", "kinds", "info")),
    Table("lease", ("name",)),
)

ONE_ENGINE_ONLY: Mapping[str, frozenset[str]] = {
    # Only PostgreSQL has logins.
    "job": frozenset({"lease_login", "enqueued_by"}),
    "attempt": frozenset({"login"}),
    "worker": frozenset({"login"}),
    "workflow": frozenset({"started_by"}),
    # Events are followed by commits there.
    "event": frozenset({"xid"}),
}
"""By table, columns that exist on one engine only. Each needs a reason here."""


def sqlite_rows(connection: sqlite3.Connection) -> Snapshot:
    """Every compared row of a SQLite file."""
    read: dict[str, list[Row]] = {}
    for table in TABLES:
        cursor = connection.execute(f"SELECT * FROM tenure_{table.name} WHERE NOT ({table.skipped}) {_order(table)}")
        names = [column[0] for column in cursor.description]
        read[table.name] = [dict(zip(names, row, strict=True)) for row in cursor]
    return _snapshot(read)


def postgres_rows(connection: psycopg.Connection[Any]) -> Snapshot:
    """Every compared row of a PostgreSQL database, over a connection made by `read_plainly`."""
    read: dict[str, list[Row]] = {}
    for table in TABLES:
        query = f"SELECT * FROM tenure.{table.name} WHERE NOT ({table.skipped}) {_order(table)}"
        with connection.cursor(row_factory=dict_row) as cursor:
            read[table.name] = cursor.execute(query.encode()).fetchall()
    return _snapshot(read)


def read_plainly(connection: psycopg.Connection[Any]) -> None:
    """Let a connection read moments as microseconds, and ids and JSON as text."""
    connection.adapters.register_loader("timestamptz", _MomentLoader)
    for name in ("uuid", "json", "jsonb"):
        connection.adapters.register_loader(name, TextLoader)


def differences(sqlite: Snapshot, postgres: Snapshot) -> list[str]:
    """One line per column that differs, and per row that only one engine has."""
    return [line for table in TABLES for line in _table_differences(table, sqlite[table.name], postgres[table.name])]


def _table_differences(table: Table, sqlite: Mapping[Key, Row], postgres: Mapping[Key, Row]) -> Iterator[str]:
    apart = ONE_ENGINE_ONLY.get(table.name, frozenset())
    for key in [*sqlite, *(key for key in postgres if key not in sqlite)]:
        ours, theirs = sqlite.get(key), postgres.get(key)
        where = f"{table.name} {' '.join(map(str, key))}"
        if ours is None or theirs is None:
            yield f"{where}: only in {'sqlite' if theirs is None else 'postgres'}: {_told(ours or theirs or {})}"
            continue
        yield from _row_differences(where, ours, theirs, apart)


def copy_differences(sqlite: sqlite3.Connection, postgres: psycopg.Connection[Any]) -> Iterator[str]:
    """As `differences`, where one database is a copy of the other, so that generated numbers are equal too.

    Reads row beside row and forgets what was compared: a million jobs with their events do not fit into memory.
    """
    for table in TABLES:
        query = f"SELECT * FROM {{}}{table.name} WHERE NOT ({table.skipped}) {_order(table)}"
        ours = sqlite.execute(query.format("tenure_"))
        names = [column[0] for column in ours.description]
        with postgres.cursor("copied", row_factory=dict_row) as theirs:
            theirs.itersize = 5_000
            left = (dict(zip(names, row, strict=True)) for row in ours)
            yield from _paired_differences(table, left, theirs.execute(query.format("tenure.").encode()))


def _paired_differences(table: Table, left: Iterable[Row], right: Iterable[Row]) -> Iterator[str]:
    """The engines may order text differently: a row waits for the one of its key, whichever side comes first."""
    apart = ONE_ENGINE_ONLY.get(table.name, frozenset())
    waiting: tuple[dict[Key, Row], dict[Key, Row]] = ({}, {})
    for pair in zip_longest(left, right):
        for side, row in enumerate(pair):
            if row is None:
                continue
            key = (row[table.generated],) if table.generated else tuple(row[name] for name in table.key)
            waiting[side][key] = _in_one_form(table, row)
            if key in waiting[0] and key in waiting[1]:
                where = f"{table.name} {' '.join(map(str, key))}"
                yield from _row_differences(where, waiting[0].pop(key), waiting[1].pop(key), apart)
    for engine, rows in zip(("sqlite", "postgres"), waiting, strict=True):
        for row in rows.values():
            yield f"{table.name} only in {engine}: {_told(row)}"


def _row_differences(where: str, ours: Row, theirs: Row, apart: frozenset[str]) -> Iterator[str]:
    for column in sorted((ours.keys() | theirs.keys()) - apart):
        left, right = ours.get(column, "no such column"), theirs.get(column, "no such column")
        if left != right or type(left) is not type(right):
            yield f"{where}: {column}: sqlite {left!r}, postgres {right!r}"


def _told(row: Row) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items() if value is not None)


def _order(table: Table) -> str:
    return f"ORDER BY {table.generated or ', '.join(table.key)}"


def _snapshot(read: Mapping[str, list[Row]]) -> Snapshot:
    letters = {row["id"]: f"letter of {row['job_id']} {row['token']}" for row in read["dead_letter"]}
    for row in read["audit"]:
        row["subject"] = letters.get(row["subject"], row["subject"])
    # The number of an event is the engine's own; a rolled back one leaves a gap on PostgreSQL.
    events = {str(row["id"]): f"event of {row['job_id']} {row['at']} {row['kind']}" for row in read["agent_event"]}
    for row in (*read["job"], *read["dead_letter"]):
        key = row["idempotency_key"]
        if row["kind"] == "embedding" and key in events:
            for name in ("idempotency_key", "payload", "payload_hash", "dedup_slot"):
                if row.get(name) is not None:
                    row[name] = json.dumps(events[key]) if name == "payload" else events[key]
    embedding = {row["id"] for row in read["job"] if row["kind"] == "embedding"}
    for row in read["audit"]:
        if row["act"] == "edit" and row["subject"] in embedding:
            row["detail"] = None  # hashes of payloads that name the event
    return {table.name: _keyed(table, read[table.name]) for table in TABLES}


def _keyed(table: Table, rows: Sequence[Row]) -> dict[Key, Row]:
    found: dict[Key, Row] = {}
    seen: Counter[Key] = Counter()
    for row in rows:
        key = tuple(row[name] for name in table.key)
        if table.is_numbered:
            seen[key] += 1
            key = (*key, seen[key])
        found[key] = _in_one_form(table, row)
    return found


def _in_one_form(table: Table, row: Row) -> Row:
    """The row as both engines would give it; changed in place."""
    if table.generated is not None:
        del row[table.generated]
    for name in table.json:
        if isinstance(row[name], str):
            row[name] = json.loads(row[name])
    for name in table.booleans:
        row[name] = bool(row[name])
    if table.name == "job" and row["state"] not in ("queued", "waiting"):
        del row["is_due"]  # says where to look for jobs that come due later, and has no meaning in other states
    return row


class _MomentLoader(Loader):
    def load(self, data: Buffer) -> int:
        text = bytes(data).decode()
        return NEVER_US if text == "infinity" else to_us(datetime.fromisoformat(text))


def columns_never_set(snapshots: Sequence[Snapshot]) -> set[str]:
    """Columns (`table.column`) that are NULL in every row of every snapshot: a comparison of them proves nothing."""
    known: set[str] = set()
    is_set: set[str] = set()
    for snapshot in snapshots:
        for table, rows in snapshot.items():
            for row in rows.values():
                known.update(f"{table}.{name}" for name in row)
                is_set.update(f"{table}.{name}" for name, value in row.items() if value is not None)
    return known - is_set
