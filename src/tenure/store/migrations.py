"""Migrations: the steps from an empty database to the schema of this version, the same for both engines.

Each engine has them as files below its `sql/`:

- `migrations/NNNN_name.sql` was released. Databases were made by it, so its text never changes again; the ledger in
  each database keeps its hash.
- `changes/NNNN_name.sql` is the one change since the last release, if there is one. `.ci/release.py` turns it into a
  migration.

Until the first release there are neither: migration 1 is the whole of `schema.sql`.

**Side by side.** A change says with a line `-- compatible from: 1` which version of the schema a program has to know at
least in order to use the database after it, and the ledger keeps that number. A program that knows only older ones
refuses the database. Without the line every older program does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from tenure.errors import InternalError, SchemaAhead, SchemaError

FIRST: Final = "0001_schema"
"""Migration 1, by the name that every database and every release knows it by."""
SCHEMAS: Final = (
    "schema",
    "schema_flow",
    "schema_memory",
    "schema_metrics",
    "schema_access",
    "schema_workflows",
    "schema_move",
    "schema_streams",
    "schema_approvals",
    "schema_budgets",
    "schema_limits",
    "schema_totals",
    "schema_memo",
)
"""The files of tables below each engine's `sql/`, one for each area, in the order in which they are run."""
_FILE: Final = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_COMPATIBLE: Final = re.compile(r"^-- compatible from: (\d+)$", re.MULTILINE)


class Migration:
    """One step: its number, its name and its SQL."""

    def __init__(self, number: int, name: str, script: str) -> None:
        self.number = number
        self.name = name
        self.script = script

    @cached_property
    def checksum(self) -> str:
        """What the ledger holds of the text."""
        return hashlib.sha256(self.script.encode()).hexdigest()

    @property
    def compatible_from(self) -> int:
        """The oldest version of the schema whose programs may use the database after it."""
        found = _COMPATIBLE.search(self.script)
        return int(found[1]) if found else self.number


Applied = tuple[int, str, str, int]
"""A row of the ledger: number, name, checksum, compatible_from."""


def read_migrations(folder: Path, first: Callable[[], str], complete: Callable[[str], str]) -> tuple[Migration, ...]:
    """All migrations of an engine, in order. `folder` is its `sql/`.

    `first` makes the text of migration 1 as long as none was released. `complete` adds to a change what every
    migration brings anew, such as functions.

    Raises: InternalError (a number is missing or there twice, or a change comes before the first release).
    """
    released = [Migration(*_numbered(path), path.read_text(encoding="utf-8")) for path in _files(folder / "migrations")]
    changes = [
        Migration(*_numbered(path), complete(path.read_text(encoding="utf-8"))) for path in _files(folder / "changes")
    ]
    found = sorted([*(released or [Migration(1, FIRST, first())]), *changes], key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        names = ", ".join(migration.name for migration in found)
        raise InternalError(f"The migrations are not numbered 1, 2, 3 without a gap: {names}.")
    if changes and not released:
        raise InternalError(
            f"{changes[0].name} is a change of a schema that was not released. Change schema.sql alone until then."
        )
    return tuple(found)


def missing(known: Sequence[Migration], ledger: Iterable[Applied]) -> list[Migration]:
    """The migrations that a database still needs. None if it is newer and compatible.

    Raises: SchemaAhead, SchemaError (one was applied with another text).
    """
    rows = list(ledger)
    for row in rows:
        check_applied(known, *row)
    newest = max((number for number, *_ in rows), default=0)
    return [migration for migration in known if migration.number > newest]


def check_applied(known: Sequence[Migration], number: int, name: str, checksum: str, compatible_from: int) -> None:
    """See to it that a migration which was applied is one of ours, or one that this program can live with.

    Raises: SchemaAhead, SchemaError.
    """
    if number > len(known):
        if compatible_from > len(known):
            raise SchemaAhead(
                f"This database was migrated by a newer Tenure (migration {name or number!r}, usable by programs from "
                f"version {compatible_from} of the schema on), and this one knows only version {len(known)}. Nothing "
                "was changed. Update Tenure here: pip install -U tenure."
            )
    elif checksum != known[number - 1].checksum:
        raise SchemaError(
            f"Migration {known[number - 1].name!r} was applied to this database with another text than this version "
            "has. Nothing was changed. Use the version of Tenure that made this database, or restore a backup."
        )


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sql"))


def _numbered(path: Path) -> tuple[int, str]:
    found = _FILE.fullmatch(path.name)
    if found is None:
        raise InternalError(
            f"{path.name} is no name of a migration. Write a number and words, as in 0002_add_region.sql."
        )
    return int(found[1]), path.stem
