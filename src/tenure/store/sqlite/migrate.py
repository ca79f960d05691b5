"""Migrations: numbered SQL files, applied in one transaction, recorded in a ledger with their checksums.

Ten processes may start at once: each takes the write lock first (BEGIN IMMEDIATE) and reads the ledger under it, so
one applies and nine find nothing to do. SQLite's DDL is transactional: killed halfway, the file is as it was.
"""

from __future__ import annotations

import hashlib
import sqlite3

from tenure.errors import SchemaAhead, SchemaError
from tenure.store.sqlite.queries import load, migrations
from tenure.store.sqlite.transaction import Transaction


def migrate(transaction: Transaction, _request: object) -> list[str]:
    """Apply what is missing; the names of what was applied."""
    applied = {number: (name, checksum) for number, name, checksum in _ledger(transaction)}
    known = {number for number, _, _ in migrations()}
    ahead = [name for number, (name, _) in applied.items() if number not in known]
    if ahead:
        raise SchemaAhead(
            f"This database was migrated by a newer Tenure (it knows {ahead[-1]!r}); this version ends at "
            f"{max(known)}. "
            f"Upgrade this installation. Nothing was changed."
        )
    done = []
    for number, name, text in migrations():
        checksum = hashlib.sha256(text.encode()).hexdigest()
        if number not in applied:
            for statement in statements(text):
                transaction.run(statement)
            transaction.run(load("ledger_write"), (number, name, checksum, transaction.now))
            done.append(name)
        elif applied[number][1] != checksum:
            raise SchemaError(
                f"Migration {name!r} was applied to this database with another text than this version has. "
                f"Use the version that it was made with, or restore a backup. Nothing was changed."
            )
    return done


def version(transaction: Transaction, _request: object) -> int:
    """The newest migration in the ledger, 0 if there is none."""
    return max((number for number, _, _ in _ledger(transaction)), default=0)


def script() -> str:
    """All migrations as one script."""
    return "\n".join(f"-- {name}\n{text}" for _, name, text in migrations())


def statements(text: str) -> list[str]:
    """The single statements of a script. `executescript` would commit the open transaction first."""
    found, part = [], ""
    for line in text.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return found


def _ledger(transaction: Transaction) -> list[tuple[int, str, str]]:
    if transaction.one(load("ledger_find")) is None:
        return []
    return [(int(number), str(name), str(checksum)) for number, name, checksum in transaction.all(load("ledger_read"))]
