"""Whole tables of a SQLite file, for `tenure move`. Writes go through the file's writer, as all writes do."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tenure.errors import IllegalMove
from tenure.model import failpoints
from tenure.model.clock import from_us, to_us
from tenure.store.admin import SetGate
from tenure.store.moving import MASTER, Copied, Move, Row, TableShape
from tenure.store.sqlite import admin
from tenure.store.sqlite.connection import open_reader
from tenure.store.sqlite.errors import MOVED, translate
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Act, Transaction

PREFIX: Final = "tenure_"
ACTS: Final = ("INSERT", "UPDATE", "DELETE")

_SQL: Final = load("moving")


class SqliteTables:
    """See store.moving.TableAccess. `write` carries out an act in the file's writer and answers after its commit."""

    def __init__(self, path: Path, write: Any) -> None:
        self._path = path
        self._write = write

    def tables(self) -> list[TableShape]:
        with self._reading() as reader:
            return [_shape(reader, name) for (name,) in reader.execute(_SQL["tables"]).fetchall()]

    def count(self, table: str) -> int:
        return self._number(_fill("count", table=_table(table)))

    def held(self) -> int:
        return self._number(_SQL["held"])

    def rows(
        self, table: TableShape, columns: Sequence[str], after: tuple[Any, ...] | None = None
    ) -> Generator[Row, None, None]:
        names = {"table": _table(table.name), "columns": _names(columns), "key": _names(table.key)}
        with self._reading() as reader:
            if after is None:
                found = reader.execute(_fill("rows", **names))
            else:
                found = reader.execute(_fill("rows_after", **names, marks=_marks(after)), after)
            yield from found  # row by row: a page of large payloads would not fit in little memory

    def moves(self) -> list[Move]:
        with self._reading() as reader:
            return [_move(row) for row in reader.execute(_SQL["moves"]).fetchall()]

    def record(self, move: Move) -> None:
        self._do(lambda transaction: _record(transaction, move))

    def freeze(self, move: Move, tables: Sequence[str], sentence: str, actor: str) -> bool:
        return bool(self._do(lambda transaction: _freeze(transaction, move, tables, sentence, actor)))

    def thaw(self, move: Move, tables: Sequence[str]) -> None:
        def act(transaction: Transaction) -> None:
            for table in tables:
                for each in ACTS:
                    transaction.run(_fill("admit", trigger=_trigger(table, each)))
            _record(transaction, move)

        self._do(act)

    def clear(self, move_id: str, tables: Sequence[str]) -> None:
        def act(transaction: Transaction) -> None:
            if transaction.all(_SQL["copied"], {"id": move_id}):
                return
            with _opened(transaction, move_id):
                for table in tables:
                    transaction.run(_fill("clear", table=_table(table)))

        self._do(act)

    def copied(self, move_id: str) -> dict[str, Copied]:
        with self._reading() as reader:
            rows = reader.execute(_SQL["copied"], {"id": move_id}).fetchall()
        return {row[0]: _copied(row) for row in rows}

    def write(
        self, move_id: str, table: TableShape, columns: Sequence[str], rows: Sequence[Row], so_far: Copied, now: Copied
    ) -> None:
        names = {"table": _table(table.name), "columns": _names(columns), "marks": _marks(columns)}

        def act(transaction: Transaction) -> None:
            found = transaction.one(_SQL["copied_one"], {"id": move_id, "name": table.name})
            if found is not None and _copied(found) != so_far:
                raise IllegalMove(
                    f"Another process copies table {table.name!r} of this move. Nothing was written; let one of "
                    "them end, then run the command again."
                )
            with _opened(transaction, move_id):
                transaction.connection.executemany(_fill("insert", **names), rows)
            failpoints.point("before_batch_commit")
            transaction.run(_SQL["note"], _noted(move_id, now))

        self._do(act)

    def counter(self, table: TableShape) -> int:
        return self._number(_SQL["counter"], {"table": PREFIX + table.name})

    def set_counter(self, table: TableShape, value: int) -> None:
        def act(transaction: Transaction) -> None:
            transaction.run(_SQL["forget_counter"], {"table": PREFIX + table.name})
            transaction.run(_SQL["set_counter"], {"table": PREFIX + table.name, "value": value})

        self._do(act)

    def analyze(self) -> None:
        """Nothing: the planner of SQLite is not given statistics here."""

    def close(self) -> None:
        """Nothing: readers are closed when they are read to their end."""

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(open_reader(self._path)) as reader:
                yield reader
        except sqlite3.Error as exc:
            raise translate(exc, self._path) from exc

    def _number(self, sql: str, parameters: dict[str, Any] | None = None) -> int:
        with self._reading() as reader:
            row = reader.execute(sql, parameters or {}).fetchone()
        return 0 if row is None else int(row[0])

    def _do(self, act: Any) -> Any:
        def carried_out(transaction: Transaction, _request: object) -> Any:
            return act(transaction)

        run: Act = carried_out
        return self._write(run)


@contextlib.contextmanager
def _opened(transaction: Transaction, move_id: str) -> Iterator[None]:
    """Within it this transaction may write to frozen tables. An error undoes it with everything else."""
    transaction.run(_SQL["open"], {"id": move_id})
    yield
    transaction.run(_SQL["close"], {"id": move_id})


def _freeze(transaction: Transaction, move: Move, tables: Sequence[str], sentence: str, actor: str) -> bool:
    is_swept = transaction.all(_SQL["flow_events"]) == [(0,)]
    is_drained = move.leases == "carry" or transaction.all(_SQL["held"]) == [(0,)]
    if not (is_swept and is_drained):
        return False
    _record(transaction, move)
    if move.role == "source":
        admin.set_gate(transaction, SetGate(MASTER, move.master is not False, actor, "frozen for the move"))
    for table in tables:
        for act in ACTS:
            names = {"trigger": _trigger(table, act), "act": act, "table": _table(table)}
            transaction.run(_fill("refuse", **names, move=_text(move.id), sentence=_text(MOVED + sentence)))
    return True


def _record(transaction: Transaction, move: Move) -> None:
    values = {
        "id": move.id,
        "role": move.role,
        "other": move.other,
        "phase": move.phase,
        "leases": move.leases,
        "master": move.master,
        "started_at": to_us(move.started_at),
        "ended_at": None if move.ended_at is None else to_us(move.ended_at),
    }
    transaction.run(_SQL["record"], values)


def _shape(reader: sqlite3.Connection, name: str) -> TableShape:
    table = {"table": PREFIX + name}
    found = reader.execute(_SQL["columns"], table).fetchall()
    key = [column for place, column in sorted((place, column) for column, place in found if place)]
    references = reader.execute(_SQL["references"], table).fetchall()
    (counts_up,) = reader.execute(_SQL["counts_up"], table).fetchone()
    return TableShape(
        name,
        tuple(column for column, _ in found),
        tuple(key),
        tuple(other for (other,) in references),
        key[0] if counts_up else None,
    )


def _move(row: Row) -> Move:
    identity, role, other, phase, leases, master, started_at, ended_at = row
    return Move(
        identity,
        role,
        other,
        phase,
        leases,
        None if master is None else bool(master),
        from_us(started_at),
        None if ended_at is None else from_us(ended_at),
    )


def _copied(row: Row) -> Copied:
    name, after, rows, digest, is_done = row
    return Copied(name, None if after is None else tuple(json.loads(after)), rows, int(digest, 16), bool(is_done))


def _noted(move_id: str, copied: Copied) -> dict[str, Any]:
    after = None if copied.after is None else json.dumps(copied.after)
    return {
        "id": move_id,
        "name": copied.table,
        "after": after,
        "rows": copied.rows,
        "digest": f"{copied.digest:064x}",
        "is_done": copied.is_done,
    }


def _fill(name: str, **parts: str) -> str:
    sql = _SQL[name]
    for place, part in parts.items():
        sql = sql.replace(f"{{{place}}}", part)
    return sql


def _table(name: str) -> str:
    return _name(PREFIX + name)


def _trigger(table: str, act: str) -> str:
    return _name(f"{PREFIX}move_{table}_{act.lower()}")


def _names(columns: Sequence[str]) -> str:
    return ", ".join(_name(column) for column in columns)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
