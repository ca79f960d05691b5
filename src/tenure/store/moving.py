"""Whole tables of a database, row by row, for `tenure move`. Not requests: they change the schema and stream rows.

Rows have one form on both engines, that of SQLite: moments are microseconds since 1970, ids, JSON and lists text,
booleans 0 and 1, vectors bytes. What PostgreSQL keeps in another type is converted there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from tenure.model.frozen import frozen

Row = tuple[Any, ...]
Leases = Literal["drain", "carry"]
MASTER: Final = "master"
"""The gate that stops claims and enqueues while a source is drained."""


@frozen
class TableShape:
    """One table as the database itself describes it."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    references: tuple[str, ...] = ()
    """Tables that must be filled before this one."""
    counter: str | None = None
    """The column that counts up by itself."""
    loose: frozenset[str] = frozenset()
    """Columns whose JSON text this engine may write in another form: only its value is kept."""


@frozen
class Move:
    """One line of the ledger of moves, which both databases have."""

    id: str
    role: Literal["source", "destination"]
    other: str
    """The other database's URL, without a password."""
    phase: Literal["draining", "frozen", "moved", "reopened", "copying", "verified", "opened", "done"]
    leases: Leases
    master: bool | None
    """How the gate `master` stood before the move, None if it had no row."""
    started_at: datetime
    ended_at: datetime | None = None


@frozen
class Copied:
    """How far one table has come. Kept in the destination, in the transaction that wrote the rows."""

    table: str
    after: tuple[Any, ...] | None
    """The key of the last row, None if there is none yet."""
    rows: int
    digest: int
    """The sum of the hashes of these rows, modulo 2**256: it does not depend on their order."""
    is_done: bool


class TableAccess(Protocol):
    """The tables of one database. Needs the rights of the login that migrates."""

    def tables(self) -> list[TableShape]:
        """Every table of the schema."""
        ...

    def count(self, table: str) -> int:
        """How many rows a table has."""
        ...

    def held(self) -> int:
        """How many jobs workers hold."""
        ...

    def rows(
        self, table: TableShape, columns: Sequence[str], after: tuple[Any, ...] | None = None
    ) -> Generator[Row, None, None]:
        """The rows behind the key `after`, by rising key, as a stream. Bounded memory, however large the table. Holds
        a connection until it is read to its end or closed."""
        ...

    def moves(self) -> list[Move]:
        """The ledger, oldest first."""
        ...

    def record(self, move: Move) -> None:
        """Write a line of the ledger, or replace the one of its id."""
        ...

    def freeze(self, move: Move, tables: Sequence[str], sentence: str, actor: str) -> bool:
        """From now on every write to these tables is refused with `sentence` (StoreMoved), except by `write`.

        With the line of the ledger in one transaction, and in a source with the gate `master` as it was: it is carried
        over like that. False, and nothing changed, if flow events are left to be swept,
        or if the leases of `move` are to be drained and workers hold jobs.
        """
        ...

    def thaw(self, move: Move, tables: Sequence[str]) -> None:
        """Take writes again, and write the line of the ledger, in one transaction."""
        ...

    def clear(self, move_id: str, tables: Sequence[str]) -> None:
        """Delete the rows that the migration wrote. Only while the move has copied nothing."""
        ...

    def copied(self, move_id: str) -> dict[str, Copied]:
        """How far each table has come."""
        ...

    def write(
        self, move_id: str, table: TableShape, columns: Sequence[str], rows: Sequence[Row], so_far: Copied, now: Copied
    ) -> None:
        """Insert rows and note the progress, in one transaction.

        Raises: IllegalMove (the progress is not `so_far`: another process copies this table).
        """
        ...

    def counter(self, table: TableShape) -> int:
        """The last number that the table's counter gave out."""
        ...

    def set_counter(self, table: TableShape, value: int) -> None:
        """Let the counter go on behind `value`."""
        ...

    def analyze(self) -> None:
        """Let the planner know of the rows."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...
