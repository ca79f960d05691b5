"""The two engines as the tests open them: real stores, on a clock that the test moves.

SQLite takes the clock as an argument. PostgreSQL judges by `tenure.now()`, which is replaced in the test's own database
by a function that reads a table; the grace after a server's start is switched off there, because the test server has
always just started.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import psycopg

from tenure.model.clock import ManualClock
from tenure.store.contract import Store
from tests.servers import PostgresServer

START = datetime(2026, 1, 1, tzinfo=UTC)

_NO_GRACE = """
CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT interval '0 seconds' $$
"""

_MANUAL_CLOCK = """
CREATE TABLE tenure.test_clock (at timestamptz NOT NULL);
INSERT INTO tenure.test_clock VALUES ('2026-01-01 00:00:00+00');
GRANT SELECT ON tenure.test_clock TO PUBLIC;
CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$ SELECT at FROM tenure.test_clock $$
"""


# Emptying tables takes milliseconds where a new database takes hundreds; what the migrations put there is put back.
_KEEP_PRISTINE = """
CREATE SCHEMA pristine;
DO $$
DECLARE
    v_table text;
BEGIN
    FOR v_table IN SELECT tablename FROM pg_tables WHERE schemaname = 'tenure' AND tablename <> 'migration' LOOP
        EXECUTE format('CREATE TABLE pristine.%1$I AS TABLE tenure.%1$I', v_table);
    END LOOP;
END
$$;
CREATE FUNCTION pristine.restore() RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_table text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR v_table IN SELECT tablename FROM pg_tables WHERE schemaname = 'pristine' LOOP
        EXECUTE format('DELETE FROM tenure.%I', v_table);
        EXECUTE format('INSERT INTO tenure.%1$I OVERRIDING SYSTEM VALUE TABLE pristine.%1$I', v_table);
    END LOOP;
END
$$
"""


class SteeredClock(Protocol):
    """The store's clock in a test's hand."""

    def now(self) -> datetime: ...

    def advance(self, seconds: float) -> None: ...


class SteeredDatabase:
    """A migrated PostgreSQL database whose clock is moved by hand, and which can be made as new."""

    def __init__(self, server: PostgresServer) -> None:
        server.template("steered", _preparing(_NO_GRACE, _MANUAL_CLOCK, _KEEP_PRISTINE))
        self._server = server
        self.url = server.create_database(template="steered")
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._at = START

    def restore(self) -> None:
        """Empty it and set its clock back."""
        self._connection.execute("SELECT pristine.restore()")
        self._at = START

    def now(self) -> datetime:
        return self._at

    def advance(self, seconds: float) -> None:
        self._at += timedelta(microseconds=round(seconds * 1_000_000))
        self._connection.execute("UPDATE tenure.test_clock SET at = %s", [self._at])

    def close(self) -> None:
        self._connection.close()
        self._server.drop_database(self.url)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files that need not outlive a power cut: in memory where the machine has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tenure-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def open_sqlite(path: Path, clock: ManualClock | None = None) -> Store:
    """A migrated SQLite store in a file."""
    from tenure.store.sqlite.store import SqliteStore

    store = SqliteStore(sqlite_url(path), clock=clock)
    store.migrate()
    return store


def sqlite_url(path: Path) -> str:
    """The URL of a file by its absolute path."""
    return f"sqlite:///{path.resolve()}"


def sqlite_path(url: str) -> Path:
    """The file that a URL names."""
    return Path(url.removeprefix("sqlite:///"))


def open_postgres(url: str) -> Store:
    """A store on a database that was migrated before."""
    from tenure.store.postgres.store import PostgresStore

    return PostgresStore(url)


def open_store(url: str) -> Store:
    """A store on a prepared database, by its URL, on the real clock."""
    if url.startswith("sqlite:"):
        from tenure.store.sqlite.store import SqliteStore

        return SqliteStore(url)
    return open_postgres(url)


def real_time_database(server: PostgresServer) -> str:
    """A fresh migrated database on the server's own clock, without the grace after a start."""
    server.template("real_time", _preparing(_NO_GRACE))
    return server.create_database(template="real_time")


def _preparing(*scripts: str) -> Callable[[str], None]:
    def prepare(url: str) -> None:
        store = open_postgres(url)
        try:
            store.migrate()
        finally:
            store.close()
        with psycopg.connect(url, autocommit=True) as connection:
            for script in scripts:
                connection.execute(script)

    return prepare
