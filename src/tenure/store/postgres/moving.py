"""Whole tables of a PostgreSQL database, for `tenure move`, on two connections of their own: one reads, one writes."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

from tenure.errors import AccessDenied, IllegalMove, InternalError
from tenure.model import failpoints
from tenure.model.clock import from_us
from tenure.store.moving import MASTER, Copied, Move, Row, TableShape
from tenure.store.postgres.errors import driver_errors, location
from tenure.store.postgres.pool import connect_alone
from tenure.store.postgres.sql import load

if TYPE_CHECKING:
    from psycopg import Connection

NEVER_US: Final = 253_402_300_799_999_999
ALWAYS_US: Final = -1

_SQL: Final = load("moving")
_EPOCH: Final = date(1970, 1, 1)

# type → how it is read (a name in moving.sql; None: as it is).
_READ: Final = {
    "text": None,
    "smallint": None,
    "integer": None,
    "bigint": None,
    "double precision": None,
    "bytea": None,
    "real[]": None,
    "boolean": "read_number",
    "timestamp with time zone": "read_moment",
    "date": "read_day",
    "uuid": "read_text",
    "json": "read_text",
    "jsonb": "read_text",
    "numeric": "read_text",
    "text[]": "read_list",
    "xid8": "read_text",
}
_LOOSE: Final = frozenset({"jsonb", "text[]"})


class PostgresTables:
    """See store.moving.TableAccess."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._types: dict[str, dict[str, str]] = {}
        self._reader: Connection[Row] | None = None
        self._writer: Connection[Row] | None = None

    def tables(self) -> list[TableShape]:
        with driver_errors(self._url):
            self._refuse_stranger()
            found = self._reading().execute(_SQL["tables"].encode()).fetchall()
            references: dict[str, list[str]] = defaultdict(list)
            for table, other in self._reading().execute(_SQL["references"].encode()):
                references[table.removeprefix("tenure.")].append(other)
        columns: dict[str, list[Row]] = defaultdict(list)
        for table, *rest in found:
            columns[table].append(tuple(rest))
        self._types = {table: {name: kind for name, kind, _, _ in rows} for table, rows in columns.items()}
        return [_shape(table, rows, references[table]) for table, rows in columns.items()]

    def count(self, table: str) -> int:
        return self._number(_fill("count", table=_table(table)))

    def held(self) -> int:
        return self._number(_SQL["held"])

    def rows(
        self, table: TableShape, columns: Sequence[str], after: tuple[Any, ...] | None = None
    ) -> Generator[Row, None, None]:
        types = self._types[table.name]
        loads = [(place, _LOAD[types[name]]) for place, name in enumerate(columns) if types[name] in _LOAD]
        names = {
            "table": _table(table.name),
            "columns": ", ".join(_read(types[name], name) for name in columns),
            "key": ", ".join(f"t.{_name(column)}" for column in table.key),
        }
        if after is None:
            query, values = _fill("rows", **names), []
        else:
            query = _fill("rows_after", **names, marks=", ".join(["%s"] * len(after)))
            values = [_dump(types[name], value) for name, value in zip(table.key, after, strict=True)]
        with driver_errors(self._url), self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(_SQL["by_index"].encode())
            # Row by row: a page of large payloads would not fit in little memory.
            for row in cursor.stream(query.encode(), values):
                if not loads:
                    yield row
                    continue
                made = list(row)
                for place, load_value in loads:
                    if made[place] is not None:
                        made[place] = load_value(made[place])
                yield tuple(made)

    def moves(self) -> list[Move]:
        with driver_errors(self._url):
            return [Move(*row) for row in self._reading().execute(_SQL["moves"].encode())]

    def record(self, move: Move) -> None:
        with driver_errors(self._url), self._writing() as connection, connection.transaction():
            _record(connection, move)

    def freeze(self, move: Move, tables: Sequence[str], sentence: str, actor: str) -> bool:
        with driver_errors(self._url), self._writing() as connection, connection.transaction():
            connection.execute(_SQL["wait_shortly"].encode())
            locked = ", ".join(_table(name) for name in dict.fromkeys([*tables, "flow_event"]))
            connection.execute(_fill("lock_tables", tables=locked).encode())
            is_swept = _one(connection, _SQL["flow_events"]) == 0
            is_drained = move.leases == "carry" or _one(connection, _SQL["held"]) == 0
            if is_frozen := is_swept and is_drained:
                _record(connection, move)
                if move.role == "source":
                    gate = {"name": MASTER, "is_open": move.master is not False, "actor": actor}
                    connection.execute(_SQL["set_gate"].encode(), {"gate": json.dumps(gate)})
                for table in tables:
                    names = {"table": _table(table), "move": _text(move.id), "sentence": _text(sentence)}
                    connection.execute(_fill("refuse", **names).encode())
        return is_frozen

    def thaw(self, move: Move, tables: Sequence[str]) -> None:
        with driver_errors(self._url), self._writing() as connection, connection.transaction():
            for table in tables:
                connection.execute(_fill("admit", table=_table(table)).encode())
            if move.role == "destination":
                connection.execute(_SQL["adopt"].encode())
            _record(connection, move)

    def clear(self, move_id: str, tables: Sequence[str]) -> None:
        with driver_errors(self._url), self._writing() as connection, connection.transaction():
            connection.execute(_SQL["open"].encode(), {"id": move_id})
            if connection.execute(_SQL["copied"].encode(), {"id": move_id}).fetchone() is None:
                for table in tables:
                    connection.execute(_fill("clear", table=_table(table)).encode())
            connection.execute(_SQL["close"].encode(), {"id": move_id})

    def copied(self, move_id: str) -> dict[str, Copied]:
        with driver_errors(self._url):
            rows = self._reading().execute(_SQL["copied"].encode(), {"id": move_id}).fetchall()
        return {row[0]: _copied(row) for row in rows}

    def write(
        self, move_id: str, table: TableShape, columns: Sequence[str], rows: Sequence[Row], so_far: Copied, now: Copied
    ) -> None:
        dumps = [_DUMP.get(self._types[table.name][name]) for name in columns]
        copy = _fill("copy", table=_table(table.name), columns=_names(columns))
        with driver_errors(self._url), self._writing() as connection, connection.transaction():
            # The row of the move is locked from here on: of two movers one waits, and finds that the other was there.
            connection.execute(_SQL["open"].encode(), {"id": move_id})
            found = connection.execute(_SQL["copied_one"].encode(), {"id": move_id, "name": table.name}).fetchone()
            if found is not None and _copied(found) != so_far:
                raise IllegalMove(
                    f"Another process copies table {table.name!r} of this move. Nothing was written; let one of "
                    "them end, then run the command again."
                )
            with connection.cursor() as cursor, cursor.copy(copy.encode()) as target:
                for row in rows:
                    target.write_row(
                        [
                            value if dump is None or value is None else dump(value)
                            for dump, value in zip(dumps, row, strict=True)
                        ]
                    )
            connection.execute(_SQL["close"].encode(), {"id": move_id})
            failpoints.point("before_batch_commit")
            connection.execute(_SQL["note"].encode(), _noted(move_id, now))

    def counter(self, table: TableShape) -> int:
        return self._number(_SQL["counter"], {"table": f"tenure.{table.name}", "column": table.counter})

    def set_counter(self, table: TableShape, value: int) -> None:
        values = {"table": f"tenure.{table.name}", "column": table.counter, "value": value}
        with driver_errors(self._url), self._writing() as connection:
            connection.execute(_SQL["set_counter"].encode(), values)

    def analyze(self) -> None:
        with driver_errors(self._url), self._writing() as connection:
            for table in self._types:
                connection.execute(_fill("analyze", table=_table(table)).encode())

    def close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()

    def _number(self, sql: str, values: dict[str, Any] | None = None) -> int:
        with driver_errors(self._url):
            return _one(self._reading(), sql, values)

    def _reading(self) -> Connection[Row]:
        if self._reader is None or self._reader.closed:
            self._reader = self._connect(autocommit=True)
        return self._reader

    def _writing(self) -> AbstractContextManager[Connection[Row]]:
        """The connection that writes. It stays open behind the `with`."""
        if self._writer is None or self._writer.closed:
            self._writer = self._connect(autocommit=True)
        return nullcontext(self._writer)

    def _connect(self, *, autocommit: bool = False) -> Connection[Row]:
        return connect_alone(self._url, "tenure move", autocommit=autocommit)

    def _refuse_stranger(self) -> None:
        row = self._reading().execute(_SQL["stranger"].encode()).fetchone()
        if row is not None:
            raise AccessDenied(
                f"Table tenure.{row[0]} of {location(self._url)} belongs to another role, and moving whole tables "
                "needs its owner's rights. Use the login that runs `tenure migrate`."
            )


def _one(connection: Connection[Row], sql: str, values: dict[str, Any] | None = None) -> int:
    row = connection.execute(sql.encode(), values).fetchone()
    return 0 if row is None else int(row[0])


def _shape(table: str, columns: Sequence[Row], references: Sequence[str]) -> TableShape:
    key = sorted((place, name) for name, _, _, place in columns if place is not None)
    return TableShape(
        table,
        tuple(name for name, _, _, _ in columns),
        tuple(name for _, name in key),
        tuple(references),
        next((name for name, _, counts_up, _ in columns if counts_up), None),
        frozenset(name for name, kind, _, _ in columns if kind in _LOOSE),
    )


def _record(connection: Connection[Row], move: Move) -> None:
    names = ("id", "role", "other", "phase", "leases", "master", "started_at", "ended_at")
    connection.execute(_SQL["record"].encode(), {name: getattr(move, name) for name in names})


def _copied(row: Row) -> Copied:
    name, after, rows, digest, is_done = row
    return Copied(name, None if after is None else tuple(json.loads(after)), rows, int(digest, 16), is_done)


def _noted(move_id: str, copied: Copied) -> dict[str, Any]:
    return {
        "id": move_id,
        "name": copied.table,
        "after": None if copied.after is None else json.dumps(copied.after),
        "rows": copied.rows,
        "digest": f"{copied.digest:064x}",
        "is_done": copied.is_done,
    }


def _read(kind: str, column: str) -> str:
    if kind not in _READ:
        raise InternalError(f"A column {column!r} has type {kind}, which `tenure move` cannot read. Please report it.")
    how = _READ[kind]
    return _name(column) if how is None else _fill(how, column=_name(column))


def _moment(us: int) -> str:
    if us == NEVER_US:
        return "infinity"
    return "-infinity" if us == ALWAYS_US else from_us(us).isoformat()


def _day(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).isoformat()


def _list(text: str) -> str:
    return "{" + ",".join(_element(str(item)) for item in json.loads(text)) + "}"


def _element(text: str) -> str:
    """An element of an array, in double quotes, where a backslash protects the next character."""
    protected = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{protected}"'


def _vector(packed: bytes) -> str:
    numbers = struct.unpack(f">{len(packed) // 4}f", packed)
    return "{" + ",".join(map(repr, numbers)) + "}"


def _packed(numbers: Sequence[float]) -> bytes:
    return struct.pack(f">{len(numbers)}f", *numbers)


_DUMP: Final[dict[str, Callable[[Any], Any]]] = {
    "timestamp with time zone": _moment,
    "date": _day,
    "text[]": _list,
    "real[]": _vector,
}
_LOAD: Final[dict[str, Callable[[Any], Any]]] = {"real[]": _packed}


def _dump(kind: str, value: Any) -> Any:
    return _DUMP[kind](value) if kind in _DUMP and value is not None else value


def _fill(name: str, **parts: str) -> str:
    sql = _SQL[name]
    for place, part in parts.items():
        sql = sql.replace(f"{{{place}}}", part)
    return sql


def _table(name: str) -> str:
    return f"tenure.{_name(name)}"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(_name(column) for column in columns)


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    """A literal. Without a parameter no % needs protection."""
    return "'" + value.replace("'", "''") + "'"
