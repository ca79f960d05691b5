"""Bringing a PostgreSQL schema up to this version, by numbered SQL files and a ledger.

`sql/schema.sql`, `sql/functions/` and `sql/roles.sql` are the truth; the files in `sql/migrations/` are the road to it,
and a test builds both and compares. `NNNN_pre_…` may run while workers of the last release are still at work;
`NNNN_post_…` runs once they are gone.

Each migration is one transaction together with its row in the ledger, under a lock that the transaction holds: killed
at any statement it leaves nothing, and of ten processes that start at once one migrates and nine find it done.
A migration that was applied is never changed; its checksum in the ledger tells if it was.

Until the first release there is one migration, and it is generated: `python -m tenure.store.postgres.migrate --write`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tenure.errors import SchemaAhead, SchemaError
from tenure.model.frozen import frozen
from tenure.store.postgres.errors import driver_errors

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.errors import Diagnostic

SQL: Final = Path(__file__).parent / "sql"

_FIRST: Final = ("time", "show", "keys")
"""Functions in SQL are checked when they are created, so what others build upon comes first; the rest goes by name."""

_NAME: Final = re.compile(r"(\d{4})_(?:pre|post)_[a-z0-9_]+")
_log: Final = logging.getLogger("tenure.migrate")


@frozen
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str
    checksum: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Every migration that comes with this version, in order."""
    found = []
    for path in sorted((SQL / "migrations").glob("*.sql")):
        match = _NAME.fullmatch(path.stem)
        if match is None:
            raise SchemaError(f"{path.name} is no name for a migration; it should read 0007_pre_what_it_does.sql.")
        sql = path.read_text(encoding="utf-8")
        found.append(Migration(int(match[1]), path.stem, sql, hashlib.sha256(sql.encode()).hexdigest()))
    return tuple(found)


def newest() -> int:
    """The number of the migration that this version needs."""
    return migrations()[-1].number


def migrate(url: str) -> list[str]:
    """Apply what is missing, each in a transaction of its own; answers the names.

    Raises: SchemaAhead, SchemaError (an applied migration was changed), StoreUnavailable.
    """
    with driver_errors(url), _connect(url) as connection:
        connection.add_notice_handler(_pass_on)
        return [migration.name for migration in migrations() if _apply(connection, migration)]


def schema_version(url: str) -> int:
    """The newest migration in the database, 0 if there is none. Any of the roles may ask."""
    with driver_errors(url), _connect(url) as connection:
        if not _value(connection, "ledger/has_version.sql"):
            return 0
        return int(_value(connection, "ledger/version.sql"))


def migration_sql() -> str:
    """What `migrate` runs on an empty database, as one script for psql."""
    parts = ["\\set ON_ERROR_STOP on"]
    for migration in migrations():
        # Names and checksums are ours, of letters, digits and underscores only.
        values = {"number": migration.number, "name": f"'{migration.name}'", "checksum": f"'{migration.checksum}'"}
        parts += ["BEGIN;", _read("ledger/lock.sql"), migration.sql, _read("ledger/record.sql") % values, "COMMIT;"]
    return "\n".join(part.rstrip() for part in parts) + "\n"


def build_initial() -> str:
    """The whole schema as one migration: tables, then functions, then roles."""
    functions = sorted((SQL / "functions").glob("*.sql"), key=lambda path: (_place(path.stem), path.stem))
    sources = [SQL / "schema.sql", *functions, SQL / "roles.sql"]
    parts = [
        "-- Made from schema.sql, functions/*.sql and roles.sql by `python -m tenure.store.postgres.migrate --write`.\n"
    ]
    parts += [f"-- {path.relative_to(SQL).as_posix()}\n\n{path.read_text(encoding='utf-8')}" for path in sources]
    return "\n".join(parts)


def _place(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _apply(connection: Connection[tuple[Any, ...]], migration: Migration) -> bool:
    """Run one migration unless the ledger has it, which is read under the lock: whoever waited sees what was done."""
    with connection.transaction():
        connection.execute(_read("ledger/lock.sql").encode())
        applied = {number: (name, checksum) for number, name, checksum in _ledger(connection)}
        if max(applied, default=0) > newest():
            raise _ahead(max(applied))
        if migration.number in applied:
            _check_unchanged(migration, *applied[migration.number])
            return False
        connection.execute(migration.sql.encode())
        record = {"number": migration.number, "name": migration.name, "checksum": migration.checksum}
        connection.execute(_read("ledger/record.sql").encode(), record)
        return True


def _connect(url: str) -> Connection[tuple[Any, ...]]:
    import psycopg

    return psycopg.connect(url, autocommit=True, application_name="tenure migrate")


def _ledger(connection: Connection[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    if not _value(connection, "ledger/is_there.sql"):
        return []
    return connection.execute(_read("ledger/applied.sql").encode()).fetchall()


def _value(connection: Connection[tuple[Any, ...]], name: str) -> Any:
    row = connection.execute(_read(name).encode()).fetchone()
    return None if row is None else row[0]


def _check_unchanged(migration: Migration, name: str, checksum: str) -> None:
    if checksum != migration.checksum:
        raise SchemaError(
            f"Migration {name} in the database is not the {migration.name} of this version: the file was changed after "
            "it had been applied. Use the version of Tenure that migrated this database, or start with a new database."
        )


def _ahead(found: int) -> SchemaAhead:
    return SchemaAhead(
        f"The schema in the database is at migration {found:04}, and this version of Tenure knows only {newest():04}: "
        "a newer version migrated it. Update Tenure here: pip install -U tenure."
    )


def _pass_on(notice: Diagnostic) -> None:
    """What the server wants to say about a migration: missing rights to create roles, above all."""
    if notice.severity_nonlocalized == "WARNING":
        hint = f" {notice.message_hint}" if notice.message_hint else ""
        _log.warning("%s%s", notice.message_primary, hint)


@cache
def _read(name: str) -> str:
    return (SQL / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    target = SQL / "migrations" / "0001_pre_initial.sql"
    if sys.argv[1:] == ["--write"]:
        target.write_text(build_initial(), encoding="utf-8")
    elif target.read_text(encoding="utf-8") != build_initial():
        sys.exit(f"{target} is not what schema.sql, functions/ and roles.sql make. Run it with --write.")
