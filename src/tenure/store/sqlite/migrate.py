"""The schema: built from the files of tables in one transaction, recorded in a ledger with a hash of the script.

Ten processes may start at once: each looks first without any lock, and only a process that finds something to do takes
the write lock and looks again under it; so one applies and nine find nothing to do. SQLite's DDL is transactional:
killed halfway, the file is as it was.
"""

from __future__ import annotations

import hashlib
from typing import Final

from tenure.errors import SchemaAhead, SchemaError
from tenure.store.sqlite.statements import load, split, text
from tenure.store.sqlite.transaction import Transaction

VERSION: Final = 1
NAME: Final = "0001_schema"

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
"""The files of tables, one for each area."""

_SQL: Final = load("migrate")


def script() -> str:
    """The whole schema as one script."""
    return "\n".join(text(name) for name in SCHEMAS)


def checksum() -> str:
    """What the ledger holds of the script."""
    return hashlib.sha256(script().encode()).hexdigest()


def migrate(transaction: Transaction, _request: object) -> list[str]:
    """Apply what is missing; the names of what was applied. Under the write lock."""
    if not is_missing(transaction, None):
        return []
    for statement in split(script()):
        transaction.run(statement)
    transaction.run(_SQL["ledger_write"], (VERSION, NAME, checksum(), transaction.now))
    return [NAME]


def is_missing(transaction: Transaction, _request: object) -> bool:
    """Whether `migrate` has something to do.

    Raises: SchemaAhead, SchemaError (the script that was applied has another text).
    """
    return version(transaction, None) < VERSION


def version(transaction: Transaction, _request: object) -> int:
    """The version of the schema, 0 if there is none. Raises as `is_missing` does."""
    ledger = _ledger(transaction)
    ahead = [name for number, name, _ in ledger if number > VERSION]
    if ahead:
        raise SchemaAhead(
            f"This database was migrated by a newer Tenure (it knows {ahead[-1]!r}); this version ends at "
            f"{VERSION}. "
            f"Upgrade this installation. Nothing was changed."
        )
    for _, name, applied in ledger:
        if applied != checksum():
            raise SchemaError(
                f"Migration {name!r} was applied to this database with another text than this version has. "
                f"Use the version that it was made with, or restore a backup. Nothing was changed."
            )
    return max((number for number, _, _ in ledger), default=0)


def foreign_table(transaction: Transaction, _request: object) -> str | None:
    """A table of another program in a file that has no schema of ours yet; None if there is none."""
    if _ledger(transaction):
        return None
    row = transaction.one(_SQL["foreign_table"])
    return None if row is None else row[0]


def _ledger(transaction: Transaction) -> list[tuple[int, str, str]]:
    if transaction.one(_SQL["ledger_find"]) is None:
        return []
    return [(int(number), str(name), str(found)) for number, name, found in transaction.all(_SQL["ledger_read"])]
