"""The two engines as the tests open them: real stores, on a clock that the test moves.

SQLite takes the clock as an argument. PostgreSQL judges by `tenure.now()`, which is replaced in the test's own database
by a function that reads a table; the grace after a server's start is switched off there, because the test server has
always just started.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

import tenure.testing
from tenure.model.clock import ManualClock
from tenure.store.contract import Store
from tenure.store.postgres.pool import Pool
from tenure.store.postgres.store import PostgresStore
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
    FOR v_table IN SELECT tablename FROM pg_tables WHERE schemaname = 'tenure' LOOP
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
        CONTINUE WHEN pg_relation_size(format('tenure.%I', v_table)) = 0
            AND pg_relation_size(format('pristine.%I', v_table)) = 0;
        EXECUTE format('DELETE FROM tenure.%I', v_table);
        EXECUTE format('INSERT INTO tenure.%1$I OVERRIDING SYSTEM VALUE TABLE pristine.%1$I', v_table);
    END LOOP;
END
$$
"""


# A database may be lent again if no test has changed its schema, which an event trigger notes.
_LEND = """
CREATE SCHEMA lent;
CREATE TABLE lent.sequence AS
SELECT format('%I.%I', schemaname, sequencename) AS name, coalesce(last_value, start_value) AS value,
    last_value IS NOT NULL AS is_called
FROM pg_sequences
WHERE schemaname = 'tenure';
CREATE TABLE lent.change (tag text NOT NULL);
CREATE FUNCTION lent.note_change() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
AS $$ BEGIN INSERT INTO lent.change VALUES (tg_tag); END $$;
CREATE FUNCTION lent.take_back() RETURNS boolean
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
    IF EXISTS (SELECT FROM lent.change) THEN
        RETURN false;
    END IF;
    PERFORM pristine.restore();
    PERFORM setval(name::regclass, value, is_called) FROM lent.sequence;
    RETURN true;
END
$$;
CREATE EVENT TRIGGER note_change ON ddl_command_end EXECUTE FUNCTION lent.note_change();
"""


class SteeredClock(Protocol):
    """The store's clock in a test's hand."""

    def now(self) -> datetime: ...

    def advance(self, seconds: float) -> None: ...


class SteeredDatabase:
    """A migrated PostgreSQL database whose clock is moved by hand, and which can be made as new."""

    def __init__(self, server: PostgresServer) -> None:
        prepare_template(server, "steered", _NO_GRACE, _MANUAL_CLOCK, _KEEP_PRISTINE)
        self._server = server
        self.url = server.create_database(template="steered")
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._at = START
        self._pools: tuple[Pool, Pool] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """A new store on the connections of the test before. A new server process reads and plans every function anew,
        which takes longer than most tests."""
        store = PostgresStore(self.url)
        store._pool, store._heartbeats = pools = self._pools or (store._pool, store._heartbeats)
        self._pools = None
        try:
            yield store
        finally:
            if all(_is_at_rest(pool) for pool in pools):
                self._pools = pools
                store._pool, store._heartbeats = Pool(self.url, 1, 0, None), Pool(self.url, 1, 0, None)
            store.close()

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
        for pool in self._pools or ():
            pool.close()
        self._connection.close()
        self._server.drop_database(self.url)


def _is_at_rest(pool: Pool) -> bool:
    """Whether the next test may have it: open, and with no request in flight once its threads have ended."""
    if pool._closed:
        return False
    if pool._executor is not None:
        pool._executor.shutdown(wait=True)
        pool._executor = None
    if pool._opened is None:
        return True
    told = pool._opened.get_stats()
    return told["pool_available"] == told["pool_size"] and told["requests_waiting"] == 0


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files that need not outlive a power cut: in memory where the machine has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="tenure-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def open_sqlite(path: Path, clock: ManualClock | None = None) -> Store:
    """A migrated SQLite store in a file; a new file is a copy of one that was migrated before."""
    from tenure.store.sqlite.store import SqliteStore

    if path.exists():
        store = SqliteStore(sqlite_url(path), clock=clock)
        store.migrate()
        return store
    path.write_bytes(_migrated_file(None if clock is None else clock.now()))
    return SqliteStore(sqlite_url(path), clock=clock)


@functools.cache
def _migrated_file(at: datetime | None) -> bytes:
    """A SQLite file that was migrated at a moment; None: now."""
    from tenure.store.sqlite.store import SqliteStore

    with scratch_folder() as folder:
        path = folder / "jobs.db"
        store = SqliteStore(sqlite_url(path), clock=None if at is None else ManualClock(at))
        store.migrate()
        store.close()
        return path.read_bytes()


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


@contextlib.contextmanager
def fresh_url(
    request: pytest.FixtureRequest, folder: Path, *, has_grace: bool = True, is_steered: bool = False
) -> Iterator[str]:
    """A migrated database with nothing in it, of the engine that the fixture's parameter names, or else SQLite.

    Args:
        has_grace: Leases outlast the start of the PostgreSQL server, as in production.
        is_steered: The PostgreSQL database stands at one moment until a clock steers it.
    """
    if getattr(request, "param", "sqlite") == "sqlite":
        path = folder / "jobs.db"
        open_sqlite(path).close()
        yield sqlite_url(path)
        return
    server = request.getfixturevalue("postgres_server")
    with _steered(server) if is_steered else migrated_database(server, has_grace=has_grace) as url:
        yield url


@contextlib.contextmanager
def migrated_database(
    server: PostgresServer, *scripts: str, has_grace: bool = True, is_new: bool = False
) -> Iterator[str]:
    """A migrated database with nothing in it, on the server's own clock.

    Args:
        scripts: Add tables of a test's own, which it empties itself.
        has_grace: Leases outlast the server's start, as in production.
        is_new: It holds no dead rows of an earlier test, for tests that count pages or rows that were walked.
    """
    chosen = (*([] if has_grace else [_NO_GRACE]), *scripts)
    template = f"lent_{hashlib.sha256(repr(chosen).encode()).hexdigest()[:12]}"
    prepare_template(server, template, *chosen, _KEEP_PRISTINE, _LEND)
    if is_new:
        url = server.create_database(template)
        yield url
        server.drop_database(url)
        return
    with server.lent(template) as url:
        yield url


@contextlib.contextmanager
def clocked_database(server: PostgresServer, clock: tenure.testing.ManualClock) -> Iterator[str]:
    """A migrated database with nothing in it that follows `clock`; leases do not outlast the server's start."""
    with _steered(server) as url, clock.steer(url):
        yield url


def _steered(server: PostgresServer) -> contextlib.AbstractContextManager[str]:
    return migrated_database(server, _MANUAL_CLOCK, has_grace=False)


def prepare_template(server: PostgresServer, name: str, *scripts: str) -> None:
    """A template that is migrated and has run the scripts."""

    def run_scripts(url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for script in scripts:
                connection.execute(script)

    server.template(name, run_scripts, begin=migrated_template(server))


def migrated_template(server: PostgresServer) -> str:
    """The template that is migrated and nothing else; others begin as copies of it."""
    server.template("migrated", _migrate)
    return "migrated"


def _migrate(url: str) -> None:
    store = open_postgres(url)
    try:
        store.migrate()
    finally:
        store.close()
