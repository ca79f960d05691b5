"""Migrations: schema.sql is the truth, the numbered files are the road to it, and ten may walk it at once."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from tenure.errors import InternalError, SchemaAhead, SchemaError
from tenure.store.sqlite import migrate, queries
from tenure.store.sqlite.store import SqliteStore


def catalog(connection: sqlite3.Connection) -> dict[str, str]:
    """Every table, index and trigger with its definition, spaces and comments aside."""
    rows = connection.execute("SELECT type || ' ' || name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    return {name: _plain(sql) for name, sql in rows}


def _plain(sql: str) -> str:
    return " ".join(" ".join(line.partition("--")[0] for line in sql.splitlines()).split())


def built(script: str) -> dict[str, str]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(script)
    found = catalog(connection)
    connection.close()
    return found


def test_the_schema_is_the_sum_of_the_migrations() -> None:
    assert built(queries.load("schema")) == built(migrate.script())


def test_the_printed_script_builds_what_migrate_builds(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path)

    assert catalog(connection) == built(store.migration_sql())

    connection.close()


def test_migrating_again_does_nothing(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")

    first, again = store.migrate(), store.migrate()

    names = [name for _, name, _ in queries.migrations()]
    assert (first, again) == (names, [])
    assert store.schema_version() == len(names)
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

    names = [name for _, name, _ in queries.migrations()]
    assert sorted(got, key=str) == sorted([names, *([[]] * 9)], key=str)


def test_a_newer_schema_is_refused_and_left_alone(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO tenure_migration VALUES (9999, '9999_from_the_future', 'x', 0)")
    other.close()

    with pytest.raises(SchemaAhead, match="9999_from_the_future"):
        store.migrate()


def test_a_migration_whose_text_was_changed_is_refused(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("UPDATE tenure_migration SET checksum = 'x'")
    other.close()

    with pytest.raises(SchemaError, match="another text"):
        store.migrate()


def test_a_migration_that_fails_halfway_leaves_nothing(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = "CREATE TABLE tenure_half (a INTEGER);\nCREATE TABLE tenure_half (a INTEGER);\n"
    real = queries.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: (*real, (2, "0002_half", half)))

    with pytest.raises(InternalError):
        store.migrate()
    monkeypatch.undo()

    assert store.schema_version() == len(real)
    assert store.migrate() == []
    connection = sqlite3.connect(path)
    assert "table tenure_half" not in catalog(connection)
    connection.close()


def test_numbers_of_migrations_have_no_gaps() -> None:
    assert [number for number, _, _ in queries.migrations()] == list(range(1, len(queries.migrations()) + 1))
