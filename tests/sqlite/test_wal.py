"""The WAL grows to its usual size at once, and is to SQLite what it was."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tenure.store.queries import CountJobs
from tenure.store.sqlite import checkpoint, wal
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import put, small_disk, start_child

USUAL = checkpoint.PAGES * (4096 + 24)


def wal_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def settle_in(store: SqliteStore) -> None:
    """So many commits that the WAL is let grow."""
    for _ in range(checkpoint.MANY_COMMITS):
        put(store)


def test_who_commits_a_few_times_only_lets_it_be(store: SqliteStore, path: Path) -> None:
    for _ in range(checkpoint.MANY_COMMITS - 2):  # the migration was one
        put(store)

    assert wal_of(path).stat().st_size < USUAL


def test_who_commits_more_often_lets_it_grow_at_once(store: SqliteStore, path: Path) -> None:
    settle_in(store)
    grown = wal_of(path).stat().st_size
    for _ in range(50):
        put(store)

    assert grown == wal_of(path).stat().st_size == USUAL


def test_after_a_kill_nothing_is_missing_nor_added(store: SqliteStore, path: Path) -> None:
    """SQLite reads the file anew, and has to find where it ends."""
    store.close()
    child = start_child("commit", f"sqlite:///{path}", "100000")
    assert child.stdout is not None
    told = [child.stdout.readline() for _ in range(3 * checkpoint.MANY_COMMITS)]
    child.kill()
    told += [line for line in child.stdout if line.endswith("\n")]
    child.communicate()
    assert wal_of(path).stat().st_size >= USUAL

    plain = sqlite3.connect(path)
    assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found = {row[0] for row in plain.execute("SELECT id FROM tenure_job")}
    plain.close()
    acknowledged = {line.split()[1] for line in told}
    assert acknowledged <= found
    assert len(found - acknowledged) <= 1, "one may have been committed before it was told"


def test_while_another_process_writes_it_is_left_for_later(store: SqliteStore, path: Path) -> None:
    put(store)
    connection = store._database.writer.handle.connection
    assert connection is not None
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    assert not wal.grow(connection, path, 100)
    assert wal_of(path).stat().st_size < 100 * 4096

    other.execute("COMMIT")
    other.close()
    assert wal.grow(connection, path, 100)
    assert wal_of(path).stat().st_size == 100 * (4096 + 24)
    assert not connection.in_transaction


def test_what_is_larger_is_not_cut(store: SqliteStore, path: Path) -> None:
    settle_in(store)
    connection = store._database.writer.handle.connection
    assert connection is not None

    assert wal.grow(connection, path, 1)

    assert wal_of(path).stat().st_size == USUAL
    assert sum(count.jobs for count in store.do(CountJobs())) == checkpoint.MANY_COMMITS


def test_a_disk_with_little_room_is_left_alone(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 32) as disk:
        store = SqliteStore(f"sqlite:///{disk / 'jobs.db'}")
        store.migrate()
        settle_in(store)

        assert wal_of(disk / "jobs.db").stat().st_size < USUAL
        store.close()


def test_a_link_in_its_place_is_not_followed(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    put(store)
    connection = store._database.writer.handle.connection
    assert connection is not None
    victim = tmp_path / "victim"
    victim.write_text("dear")
    wal_of(path).rename(tmp_path / "wal")
    wal_of(path).symlink_to(victim)

    assert wal.grow(connection, path, 100)

    assert victim.read_text() == "dear"
    (tmp_path / "wal").replace(wal_of(path))


@pytest.mark.parametrize("fresh", [False, True], ids=["again", "fresh"])
def test_a_fresh_connection_sees_to_it_again(store: SqliteStore, path: Path, fresh: bool) -> None:
    settle_in(store)
    os.truncate(wal_of(path), wal_of(path).stat().st_size - 4096 * 100)  # as far as it was never written
    if fresh:
        store._database.writer.handle.drop()

    settle_in(store)

    assert (wal_of(path).stat().st_size == USUAL) is fresh
