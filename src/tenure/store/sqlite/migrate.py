"""The schema: brought up to this version by migrations, each one transaction with its row in a ledger.

Ten processes may start at once: each looks first without any lock, and only a process that finds something to do takes
the write lock and looks again under it; so one applies and nine find nothing to do. SQLite's DDL is transactional:
killed halfway, the file is as it was before that migration.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from tenure.store import migrations as stored
from tenure.store.migrations import SCHEMAS, Applied, Migration
from tenure.store.sqlite.statements import FOLDER, load, split, text
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("migrate")


def script() -> str:
    """The whole schema as one script."""
    return "\n".join(text(name) for name in SCHEMAS)


@cache
def migrations() -> tuple[Migration, ...]:
    """The steps from an empty file to the schema of this version."""
    return stored.read_migrations(FOLDER, script, lambda change: change)


def newest() -> int:
    """The version of the schema that this version of Tenure needs."""
    return len(migrations())


def migrate(transaction: Transaction, _request: object) -> list[str]:
    """Apply the first migration that is missing; its name, or none. Under the write lock."""
    found = missing(transaction, None)
    if not found:
        return []
    for statement in split(found[0].script):
        transaction.run(statement)
    transaction.run(_SQL["ledger_write"], _row(found[0]) | {"applied_at": transaction.now})
    return [found[0].name]


def missing(transaction: Transaction, _request: object) -> list[Migration]:
    """What `migrate` has to do.

    Raises: SchemaAhead, SchemaError (a migration was applied with another text).
    """
    return stored.missing(migrations(), _ledger(transaction))


def version(transaction: Transaction, _request: object) -> int:
    """The version of the schema, 0 if there is none. Raises as `missing` does."""
    ledger = _ledger(transaction)
    stored.missing(migrations(), ledger)
    return max((number for number, *_ in ledger), default=0)


def printed(steps: Iterable[Migration], now: int) -> str:
    """Migrations as a script for the shell `sqlite3`, each with its row in the ledger."""
    parts = [".bail on"]
    for migration in steps:
        row = {name: f"'{value}'" if isinstance(value, str) else str(value) for name, value in _row(migration).items()}
        record = _SQL["ledger_write"].partition(";")[0] + ";"
        for name, value in (row | {"applied_at": str(now)}).items():
            record = record.replace(f":{name}", value)
        parts += ["BEGIN IMMEDIATE;", migration.script, record, "COMMIT;"]
    return "\n".join(part.rstrip() for part in parts) + "\n"


def foreign_table(transaction: Transaction, _request: object) -> str | None:
    """A table of another program in a file that has no schema of ours yet; None if there is none."""
    if _ledger(transaction):
        return None
    row = transaction.one(_SQL["foreign_table"])
    return None if row is None else row[0]


def _ledger(transaction: Transaction) -> list[Applied]:
    if transaction.one(_SQL["ledger_find"]) is None:
        return []
    rows = transaction.all(_SQL["ledger_read"])
    return [(int(number), str(name), str(checksum), int(oldest)) for number, name, checksum, oldest in rows]


def _row(migration: Migration) -> dict[str, int | str]:
    """Its row in the ledger. Name and checksum consist of letters, digits and underscores."""
    return {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
        "compatible_from": migration.compatible_from,
    }
