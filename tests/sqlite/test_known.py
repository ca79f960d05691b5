"""What is known of queues and gates holds until one of them changes, whoever changes it and by whatever statement."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure.errors import GateClosed
from tenure.store.contract import Claim, Enqueue
from tenure.store.queries import GetJobs, ListEvents
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, job, put

QUEUE = "INSERT INTO tenure_queue (name, created_at, updated_at) VALUES ('mail', 0, 0)"
CHANGES = [
    QUEUE,
    f"INSERT OR REPLACE {QUEUE.removeprefix('INSERT ')}",
    f"{QUEUE} ON CONFLICT (name) DO UPDATE SET max_attempts = 7",
    f"{QUEUE.replace('mail', 'spare')} ON CONFLICT (name) DO UPDATE SET events = 1",
    "REPLACE INTO tenure_queue (name, lease_seconds, created_at, updated_at) VALUES ('spare', 9, 0, 0)",
    "UPDATE tenure_queue SET paused_at = 1 WHERE name = 'spare'",
    "DELETE FROM tenure_queue WHERE name = 'spare'",
    "DELETE FROM tenure_queue",
    "INSERT INTO tenure_gate VALUES ('master', 0, 'ann', 0)",
    "REPLACE INTO tenure_gate VALUES ('notify', 0, 'ann', 0)",
    "UPDATE tenure_gate SET is_open = 0",
    "DELETE FROM tenure_gate",
]
JOB = (
    "INSERT INTO tenure_job (id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, queue, kind,"
    " profile, payload) VALUES ('x', 0, 0, 0, 0, 0, 1, 1, 'spare', 'work', 'default', '{}')"
)
NO_CHANGES = ["UPDATE tenure_gate SET is_open = 0 WHERE name = 'nobody'", JOB]


def in_another_process(path: Path, *statements: str) -> None:
    act = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); [c.execute(s) for s in sys.argv[2:]]; c.commit()"
    subprocess.run([sys.executable, "-c", act, str(path), *statements], check=True)


def stamp(connection: sqlite3.Connection) -> int:
    found: int = connection.execute("SELECT stamp FROM tenure_stamp").fetchone()[0]
    return found


@pytest.fixture
def other(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that knows nothing of ours, to a file with a queue and a gate more."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("INSERT INTO tenure_queue (name, created_at, updated_at) VALUES ('spare', 0, 0)")
    connection.execute("INSERT INTO tenure_gate VALUES ('notify', 1, 'ann', 0)")
    yield connection
    connection.close()


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_a_queue_or_a_gate_draws_a_new_stamp(other: sqlite3.Connection, change: str) -> None:
    before = stamp(other)

    other.execute(change)

    assert stamp(other) != before


@pytest.mark.parametrize("change", NO_CHANGES)
def test_nothing_else_draws_one(other: sqlite3.Connection, change: str) -> None:
    before = stamp(other)

    other.execute(change)

    assert stamp(other) == before


def test_two_files_never_share_a_stamp(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    second = SqliteStore(f"sqlite:///{tmp_path / 'second.db'}")
    second.migrate()
    second.close()

    with sqlite3.connect(path) as one, sqlite3.connect(tmp_path / "second.db") as two:
        assert stamp(one) != stamp(two)
    one.close()
    two.close()


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(put, id="one job"),
        pytest.param(lambda store: store.do(Enqueue([job(), job()])), id="two jobs"),
        pytest.param(lambda store: store.do(Claim(WORKER, ["default"], 1)), id="a claim"),
    ],
)
def test_a_gate_that_another_process_closed_counts_at_once(
    store: SqliteStore, path: Path, act: Callable[[SqliteStore], object]
) -> None:
    for _ in range(3):
        act(store)
    in_another_process(path, "INSERT INTO tenure_gate VALUES ('master', 0, 'ann', 0)")

    with pytest.raises(GateClosed):
        act(store)
    in_another_process(path, "DELETE FROM tenure_gate")
    act(store)


def test_a_policy_that_another_process_changed_counts_for_the_next_job(store: SqliteStore, path: Path) -> None:
    put(store)
    put(store)
    in_another_process(path, "UPDATE tenure_queue SET max_attempts = 9, events = 1")

    found = store.do(GetJobs([put(store)]))[0]

    assert found is not None
    assert found.max_attempts == 9
    assert [event.job_id for event in store.do(ListEvents())] == [found.id]


def test_a_queue_that_another_process_paused_gives_nothing(store: SqliteStore, path: Path) -> None:
    put(store)
    put(store)
    assert len(store.do(Claim(WORKER, ["default"], 1))) == 1
    in_another_process(path, "UPDATE tenure_queue SET paused_at = 1")

    assert store.do(Claim(WORKER, ["default"], 1)) == []


def test_a_file_restored_in_its_place_brings_its_own_policies(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    put(store)
    with sqlite3.connect(path) as live, sqlite3.connect(tmp_path / "copy.db") as copy:
        live.backup(copy)
    live.execute("UPDATE tenure_queue SET max_attempts = 5")
    live.commit()
    put(store)

    copy.backup(live)
    live.execute("UPDATE tenure_queue SET max_attempts = 6")
    live.commit()
    found = store.do(GetJobs([put(store)]))[0]

    live.close()
    copy.close()
    assert found is not None
    assert found.max_attempts == 6


def test_without_a_stamp_nothing_is_taken_for_known(store: SqliteStore, path: Path) -> None:
    put(store)
    in_another_process(path, "DELETE FROM tenure_stamp")
    put(store)
    in_another_process(path, "INSERT INTO tenure_gate VALUES ('master', 0, 'ann', 0)")

    with pytest.raises(GateClosed):
        put(store)


def test_jobs_of_another_process_cost_a_claim_no_look_at_policies(store: SqliteStore, path: Path) -> None:
    put(store)
    store.do(Claim(WORKER, ["default"], 1))
    before = store.stats().statements
    in_another_process(path, JOB.replace("'spare'", "'default'"))

    grants = store.do(Claim(WORKER, ["default"], 1))

    assert len(grants) == 1
    assert store.stats().statements - before == 1


def test_a_single_plain_job_takes_one_statement(store: SqliteStore) -> None:
    put(store)
    before = store.stats()

    put(store)

    after = store.stats()
    assert (after.statements - before.statements, after.transactions - before.transactions) == (1, 1)


def test_a_job_that_comes_again_is_the_same_job(store: SqliteStore) -> None:
    put(store)
    again = job()

    answers = [store.do(Enqueue([again])) for _ in range(2)]

    assert answers[0] == answers[1]
    assert not answers[1][0].duplicate
