"""Migrations: the schema is built from schema.sql once, whatever number of processes start, and its text is noted."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tenure.errors import InternalError, SchemaAhead, SchemaError
from tenure.store.contract import Enqueue
from tenure.store.migrations import FIRST, Migration
from tenure.store.queries import GetJobs
from tenure.store.sqlite import migrate
from tenure.store.sqlite.store import SqliteStore
from tenure.store.summary import Inspect
from tests.sqlite.bed import job


def catalog(connection: sqlite3.Connection) -> dict[str, str]:
    """Every table, index and trigger with its definition, spaces and comments aside."""
    rows = connection.execute("SELECT type || ' ' || name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    return {name: _plain(sql) for name, sql in rows}


def _plain(sql: str) -> str:
    return " ".join(" ".join(line.partition("--")[0] for line in sql.splitlines()).split())


def test_the_printed_script_builds_what_migrate_builds(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    """Run by the shell, it left no row in the ledger, so that the next process could not open the file."""
    other = tmp_path / "other.db"
    fresh = SqliteStore(f"sqlite:///{other}")
    lines = fresh.migration_sql().splitlines(keepends=True)
    fresh.close()
    with closing(sqlite3.connect(other)) as connection:
        connection.executescript("".join(line for line in lines if not line.startswith(".")))
        made = catalog(connection)
    with closing(sqlite3.connect(path)) as connection:
        assert catalog(connection) == made
    again = SqliteStore(f"sqlite:///{other}")

    assert again.migrate() == []
    assert again.schema_version() == migrate.newest()
    assert again.migration_sql() == ".bail on\n"
    again.close()


def test_migrating_again_does_nothing(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")

    first, again = store.migrate(), store.migrate()

    assert (first, again) == ([FIRST], [])
    assert store.schema_version() == migrate.newest()
    store.close()


def _migrate(path: Path, barrier: multiprocessing.synchronize.Barrier) -> list[str]:
    store = SqliteStore(f"sqlite:///{path}")
    barrier.wait(20)
    done = store.migrate()
    store.close()
    return done


def test_ten_processes_that_start_at_once_migrate_once(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    barrier = context.Barrier(10)

    def run() -> None:
        try:
            answers.put(_migrate(path, barrier))
        except BaseException as exc:
            answers.put(repr(exc))
            raise

    processes = [context.Process(target=run) for _ in range(10)]
    for process in processes:
        process.start()
    got = [answers.get() for _ in processes]
    for process in processes:
        process.join(20)

    assert sorted(got, key=str) == sorted([[FIRST], *([[]] * 9)], key=str)


def test_a_newer_schema_is_refused_and_left_alone(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO tenure_migration VALUES (9999, '9999_from_the_future', 'x', 0, 9999)")
    other.close()

    with pytest.raises(SchemaAhead, match="9999_from_the_future"):
        store.migrate()


def test_a_script_that_was_applied_with_another_text_is_refused_and_noticed(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("UPDATE tenure_migration SET checksum = 'x'")
    other.close()

    for look in (store.migrate, store.schema_version, lambda: store.do(Inspect())):
        with pytest.raises(SchemaError, match="another text"):
            look()


def test_a_script_that_fails_halfway_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = "CREATE TABLE tenure_half (a INTEGER);\nCREATE TABLE tenure_half (a INTEGER);\n"
    store = SqliteStore(f"sqlite:///{path}")
    monkeypatch.setattr(migrate, "migrations", lambda: (Migration(1, FIRST, half),))

    with pytest.raises(InternalError):
        store.migrate()
    monkeypatch.undo()

    assert store.schema_version() == 0
    assert store.migrate() == [FIRST]
    connection = sqlite3.connect(path)
    assert "table tenure_half" not in catalog(connection)
    connection.close()
    store.close()


def test_opening_takes_no_lock_where_there_is_nothing_to_migrate(store: SqliteStore, path: Path) -> None:
    """An App may be used for the first time inside a caller's open transaction."""
    store.close()
    mine = sqlite3.connect(path, isolation_level=None)
    mine.execute("BEGIN IMMEDIATE")

    fresh = SqliteStore(f"sqlite:///{path}", busy_seconds=0.0)
    assert fresh.migrate() == []
    [made] = fresh.enqueue_on(mine, Enqueue([job()]))

    mine.execute("COMMIT")
    mine.close()
    assert fresh.do(GetJobs([made.id]))[0] is not None
    fresh.close()
