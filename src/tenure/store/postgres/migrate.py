"""Making the schema, and telling whether a database has the one that this version needs.

Until the first release there is one version: `sql/schema.sql`, `sql/functions/` and `sql/roles.sql`, run as one script
in one transaction, together with a row in the ledger that keeps the version and a hash of the script. A lock that the
transaction holds makes one of ten processes that start at once migrate, and nine find it done; a lock time-out keeps a
migration from waiting behind a long transaction for ever.
"""

from __future__ import annotations

import hashlib
import logging
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tenure.errors import SchemaAhead, SchemaError
from tenure.store.postgres.errors import driver_errors
from tenure.store.postgres.sql import schema_script, statement

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.errors import Diagnostic

VERSION: Final = 1
NAME: Final = "0001_initial"
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '60s'"
_UNLESS_THERE: Final = """\
SELECT pg_catalog.to_regclass('tenure.migration') IS NOT NULL AS is_there \\gset
\\if :is_there
\\echo The schema is there already. Nothing was changed; `tenure migrate` tells whether it is the one of this version.
\\else"""
_log: Final = logging.getLogger("tenure.migrate")


def newest() -> int:
    """The version of the schema that this version of Tenure needs."""
    return VERSION


@cache
def checksum() -> str:
    """The hash of the script that makes it."""
    return hashlib.sha256(schema_script().encode()).hexdigest()


def migrate(url: str) -> list[str]:
    """Make the schema unless it is there; answers what was applied.

    Raises: SchemaAhead, SchemaError (the database was made by another text of this version), StoreUnavailable.
    """
    with driver_errors(url), _connect(url) as connection:
        connection.add_notice_handler(_pass_on)
        with connection.transaction():
            connection.execute(_LOCK_TIMEOUT)
            connection.execute(statement("lock"))
            if _value(connection, "has_ledger"):
                number, _, found = connection.execute(statement("ledger")).fetchall()[-1]
                _check(number, found)
                return []
            connection.execute(schema_script().encode())
            record = {"number": VERSION, "name": NAME, "checksum": checksum()}
            connection.execute(statement("record"), record)
            return [NAME]


def schema_version(url: str) -> int:
    """The version in the database, 0 if there is none. Any of the roles may ask.

    Raises: SchemaError (the database was made by another text of this version).
    """
    with driver_errors(url), _connect(url) as connection:
        if not _value(connection, "has_version"):
            return 0
        row = connection.execute(statement("version")).fetchone()
        assert row is not None
        number, found = row
        if number == VERSION:
            _check(number, found)
        return int(number)


def migration_sql() -> str:
    """What `migrate` runs on an empty database, as one script for psql. Repeated, it changes nothing."""
    # Name and checksum are ours, of letters, digits and underscores only.
    record = statement("record").decode() % {"number": VERSION, "name": f"'{NAME}'", "checksum": f"'{checksum()}'"}
    parts = ["\\set ON_ERROR_STOP on", "BEGIN;", f"{_LOCK_TIMEOUT};", statement("lock").decode(), _UNLESS_THERE]
    return "\n".join(part.rstrip() for part in [*parts, schema_script(), record, "\\endif", "COMMIT;"]) + "\n"


def _connect(url: str) -> Connection[tuple[Any, ...]]:
    import psycopg

    return psycopg.connect(url, autocommit=True, application_name="tenure migrate")


def _value(connection: Connection[tuple[Any, ...]], name: str) -> Any:
    row = connection.execute(statement(name)).fetchone()
    return None if row is None else row[0]


def _check(number: int, found: str) -> None:
    if number > VERSION:
        raise SchemaAhead(
            f"The schema in the database is at migration {number:04}, and this version of Tenure knows only "
            f"{VERSION:04}: a newer version migrated it. Update Tenure here: pip install -U tenure."
        )
    if found != checksum():
        raise SchemaError(
            f"Migration {NAME} in the database is not the {NAME} of this version: its SQL was changed after it had "
            "been applied. Use the version of Tenure that migrated this database, or start with a new database."
        )


def _pass_on(notice: Diagnostic) -> None:
    """What the server wants to say about a migration: missing rights to create roles, above all."""
    if notice.severity_nonlocalized == "WARNING":
        hint = f" {notice.message_hint}" if notice.message_hint else ""
        _log.warning("%s%s", notice.message_primary, hint)
