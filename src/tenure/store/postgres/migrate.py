"""The schema: brought up to this version by migrations, each one transaction with its row in a ledger.

A lock that the transaction holds makes one of ten processes that start at once migrate, and nine find it done.

**Workers go on meanwhile.** A migration of tables in use has to wait for their locks, and all that comes after waits
behind it. So it gives up its place after a short time, lets the others pass, and tries again. Functions are replaced
under running workers, whose requests the new ones still take, if the migration says that it is compatible
(store.migrations).
"""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tenure.store import migrations as stored
from tenure.store.migrations import Migration
from tenure.store.postgres.errors import driver_errors
from tenure.store.postgres.pool import connect_alone
from tenure.store.postgres.sql import FOLDER, functions_script, schema_script, statement

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.errors import Diagnostic

TRIES: Final = 20
PAUSE_SECONDS: Final = 1.0
_QUEUE_TIMEOUT: Final = "SET LOCAL lock_timeout = '60s'"
"""For the place among other migrations, which keeps no worker waiting."""
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '3s'"
_FIRST_IS_MISSING: Final = "SELECT pg_catalog.to_regclass('tenure.migration') IS NULL AS is_missing \\gset"
_IS_MISSING: Final = (
    "SELECT NOT EXISTS (SELECT FROM tenure.migration AS m WHERE m.number >= {number}) AS is_missing \\gset"
)
_log: Final = logging.getLogger("tenure.migrate")


@cache
def migrations() -> tuple[Migration, ...]:
    """The steps from an empty database to the schema of this version."""
    return stored.read_migrations(FOLDER, schema_script, lambda change: f"{change}\n{functions_script()}")


def newest() -> int:
    """The version of the schema that this version of Tenure needs."""
    return len(migrations())


def migrate(url: str) -> list[str]:
    """Bring the schema up to this version; answers what was applied.

    Raises: SchemaAhead, SchemaError (a migration was applied with another text), StoreBusy (a table in use was never
    free), StoreUnavailable.
    """
    with driver_errors(url), connect_alone(url, "tenure migrate") as connection:
        connection.add_notice_handler(_pass_on)
        applied: list[str] = []
        while (name := _apply_next(connection)) is not None:
            applied.append(name)
        return applied


def schema_version(url: str) -> int:
    """The version in the database, 0 if there is none. Any of the roles may ask.

    Raises: SchemaAhead, SchemaError (it was made by another text of this version).
    """
    with driver_errors(url), connect_alone(url, "tenure migrate") as connection:
        if not _value(connection, "has_version"):
            return 0
        row = connection.execute(statement("version")).fetchone()
        assert row is not None
        number, checksum, compatible_from = row
        stored.check_applied(migrations(), number, "", checksum, compatible_from)
        return int(number)


def migration_sql() -> str:
    """What `migrate` runs, as one script for psql: it applies what the database lacks. Repeated, it changes nothing."""
    parts = ["\\set ON_ERROR_STOP on"]
    for migration in migrations():
        row = {name: f"'{value}'" if isinstance(value, str) else value for name, value in _row(migration).items()}
        is_missing = _FIRST_IS_MISSING if migration.number == 1 else _IS_MISSING.format(number=migration.number)
        parts += ["BEGIN;", f"{_QUEUE_TIMEOUT};", statement("lock").decode(), is_missing, "\\if :is_missing"]
        parts += [migration.script, statement("record").decode() % row]
        parts += ["\\else", f"\\echo {migration.name} is there already. Nothing was changed.", "\\endif", "COMMIT;"]
    return "\n".join(part.rstrip() for part in parts) + "\n"


def _apply_next(connection: Connection[tuple[Any, ...]]) -> str | None:
    """Apply the first migration that is missing, once the tables are to be had; its name."""
    for left in reversed(range(TRIES)):
        try:
            return _try_next(connection)
        except _TableInUse as exc:
            if not left:
                raise exc.refused from None
            time.sleep(PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


class _TableInUse(Exception):
    """A table that a migration changes was in use; others pass before the next try."""

    def __init__(self, refused: Exception) -> None:
        super().__init__(str(refused))
        self.refused = refused


def _try_next(connection: Connection[tuple[Any, ...]]) -> str | None:
    from psycopg.errors import LockNotAvailable

    with connection.transaction():
        connection.execute(_QUEUE_TIMEOUT)
        connection.execute(statement("lock"))
        ledger = connection.execute(statement("ledger")).fetchall() if _value(connection, "has_ledger") else []
        missing = stored.missing(migrations(), [(int(n), str(name), str(c), int(o)) for n, name, c, o in ledger])
        if not missing:
            return None
        connection.execute(_LOCK_TIMEOUT)
        try:
            connection.execute(missing[0].script.encode())
        except LockNotAvailable as exc:
            raise _TableInUse(exc) from exc
        connection.execute(statement("record"), _row(missing[0]))
        return missing[0].name


def _row(migration: Migration) -> dict[str, int | str]:
    """Its row in the ledger. Name and checksum consist of letters, digits and underscores."""
    return {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
        "compatible_from": migration.compatible_from,
    }


def _value(connection: Connection[tuple[Any, ...]], name: str) -> Any:
    row = connection.execute(statement(name)).fetchone()
    return None if row is None else row[0]


def _pass_on(notice: Diagnostic) -> None:
    """What the server wants to say about a migration: missing rights to create roles, above all."""
    if notice.severity_nonlocalized == "WARNING":
        hint = f" {notice.message_hint}" if notice.message_hint else ""
        _log.warning("%s%s", notice.message_primary, hint)
