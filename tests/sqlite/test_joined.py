"""Enqueue in a caller's own sqlite3 transaction, whatever mode the connection is in."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Literal

import pytest

from tenure.errors import ConfigError, KeyConflict, SchemaBehind, StoreBusy, UnknownQueue
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Enqueue
from tenure.store.queries import GetJobs
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import job, put

Level = Literal["DEFERRED", "IMMEDIATE", "EXCLUSIVE"] | None


def exists(store: SqliteStore, job_id: Any) -> bool:
    return store.do(GetJobs([job_id]))[0] is not None


@pytest.fixture(params=["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def mine(request: pytest.FixtureRequest, store: SqliteStore, path: Path) -> Any:
    """A caller's connection that opens transactions by itself, with a table of the caller's own."""
    connection = sqlite3.connect(path, isolation_level=request.param)
    connection.execute("CREATE TABLE account (name TEXT)")
    connection.commit()
    yield connection
    connection.close()


def accounts(path: Path) -> int:
    connection = sqlite3.connect(path)
    found: int = connection.execute("SELECT count(*) FROM account").fetchone()[0]
    connection.close()
    return found


def test_the_job_is_there_exactly_if_the_caller_commits(
    store: SqliteStore, mine: sqlite3.Connection, path: Path
) -> None:
    kept, dropped = job(), job()

    mine.execute("INSERT INTO account VALUES ('ann')")
    assert [answer.id for answer in store.enqueue_on(mine, Enqueue([kept]))] == [kept.id]
    assert mine.in_transaction
    assert not exists(store, kept.id)
    mine.commit()
    mine.execute("INSERT INTO account VALUES ('bob')")
    store.enqueue_on(mine, Enqueue([dropped]))
    mine.rollback()

    assert (exists(store, kept.id), exists(store, dropped.id), accounts(path)) == (True, False, 1)


def test_an_enqueue_may_be_the_first_word_of_the_transaction(store: SqliteStore, mine: sqlite3.Connection) -> None:
    first = job()

    store.enqueue_on(mine, Enqueue([first]))
    mine.rollback()

    assert not exists(store, first.id)


def test_a_refusal_leaves_the_callers_transaction_usable(
    store: SqliteStore, mine: sqlite3.Connection, path: Path
) -> None:
    put(store, key="k", payload='{"n": 1}')
    first = job()
    mine.execute("INSERT INTO account VALUES ('ann')")

    with pytest.raises(KeyConflict):
        store.enqueue_on(mine, Enqueue([first, job(key="k", payload='{"n": 2}')]))
    with pytest.raises(UnknownQueue):
        store.enqueue_on(mine, Enqueue([job(queue="nowhere")]))
    [duplicate] = store.enqueue_on(mine, Enqueue([job(key="k", payload='{"n": 1}')]))
    mine.commit()

    assert duplicate.duplicate
    assert not exists(store, first.id)
    assert accounts(path) == 1


def test_in_autocommit_the_enqueue_is_a_transaction_of_its_own(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    made = job()

    store.enqueue_on(connection, Enqueue([made]))

    assert not connection.in_transaction
    assert exists(store, made.id)
    connection.close()


def test_inside_a_transaction_begun_by_hand_it_joins_it(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    outer, inner = job(), job()
    store.enqueue_on(connection, Enqueue([outer]))
    connection.execute("SAVEPOINT mine")
    store.enqueue_on(connection, Enqueue([inner]))
    connection.execute("ROLLBACK TO mine")
    connection.execute("COMMIT")

    assert (exists(store, outer.id), exists(store, inner.id)) == (True, False)
    connection.close()


def test_factories_of_the_caller_do_not_matter_and_stay_as_they_were(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.row_factory = lambda cursor, row: {"columns": row}
    connection.text_factory = bytes

    store.enqueue_on(connection, Enqueue([job(key="k")]))
    [again] = store.enqueue_on(connection, Enqueue([job(key="k")]))
    connection.commit()

    assert again.duplicate
    assert isinstance(again.id, str)
    assert connection.text_factory is bytes
    connection.close()


def test_a_declared_queue_is_made_in_the_same_transaction(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path)
    made = job(queue="mail")

    store.enqueue_on(connection, Enqueue([made], {"mail": QueuePolicy(max_attempts=9)}))
    connection.commit()

    [found] = store.do(GetJobs([made.id]))
    assert found is not None
    assert (found.queue, found.max_attempts) == ("mail", 9)
    connection.close()


def test_a_connection_to_another_file_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")

    with pytest.raises(ConfigError, match=r"other\.db"):
        store.enqueue_on(other, Enqueue([job()]))

    other.close()
    memory = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match="in memory"):
        store.enqueue_on(memory, Enqueue([job()]))
    memory.close()


def test_a_file_reached_by_another_name_is_the_same_file(store: SqliteStore, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    connection = sqlite3.connect(link)
    made = job()

    store.enqueue_on(connection, Enqueue([made]))
    connection.commit()

    assert exists(store, made.id)
    connection.close()


def test_errors_of_the_driver_come_out_as_ours(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path, timeout=0)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy):
        store.enqueue_on(connection, Enqueue([job()]))

    blocker.close()
    connection.close()


def test_a_file_without_the_schema_is_named(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    connection = sqlite3.connect(path)

    with pytest.raises(SchemaBehind):
        store.enqueue_on(connection, Enqueue([job()]))

    connection.close()
    store.close()


def test_a_callers_connection_leaves_checkpoints_to_the_one_checkpointer(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path)

    store.enqueue_on(connection, Enqueue([job()]))

    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("level", ["OFF", "NORMAL"])
def test_a_callers_commit_must_be_durable(store: SqliteStore, path: Path, level: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA synchronous = {level}")

    connection.execute("BEGIN")
    with pytest.raises(ConfigError, match="synchronous"):
        store.enqueue_on(connection, Enqueue([job()]))
    connection.execute("ROLLBACK")
    store.enqueue_on(connection, Enqueue([job()]))

    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    connection.close()
