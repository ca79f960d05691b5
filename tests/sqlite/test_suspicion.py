"""Suspicion: what an expired lease proves, and about which job; and how suspects are granted."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tenure.errors import InvalidArgument
from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant, Job, NewJob
from tenure.model.outcome import Completed, Failed, FailureClass, Settled
from tenure.model.policy import QueuePolicy
from tenure.model.state import SUSPICION_MAX
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue, Heartbeat, Hold, Reap, Settle, WorkerRow
from tenure.store.queries import GetJobs, ListAttempts
from tenure.store.sqlite.settle import EXPIRED
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import put


def claim(store: SqliteStore, worker: str = "w1", limit: int = 10, lease: float = 10) -> list[Grant]:
    return store.do(Claim(WorkerId(worker), ["default"], limit, lease_seconds=lease))


def read(store: SqliteStore, job_id: JobId) -> Job:
    [found] = store.do(GetJobs([job_id]))
    assert found is not None
    return found


def make_suspect(path: Path, job_id: JobId, suspicion: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tenure_job SET suspicion = ? WHERE id = ?", (suspicion, job_id))
    connection.close()


def test_a_job_held_alone_is_charged_with_the_crash(store: SqliteStore, clock: ManualClock) -> None:
    job_id = put(store)
    claim(store)
    clock.advance(11)

    store.do(Reap())

    job = read(store, job_id)
    assert (job.attempt, job.crashes, job.suspicion) == (1, 1, 1)
    [attempt] = store.do(ListAttempts(job_id))
    assert (attempt.outcome, attempt.error, attempt.run_at) == ("expired", EXPIRED, job.run_at)


def test_jobs_held_beside_others_are_refunded_and_only_suspected(store: SqliteStore, clock: ManualClock) -> None:
    ids = [put(store), put(store)]
    claim(store)
    clock.advance(11)

    store.do(Reap(limit=1))
    store.do(Reap())

    assert [(job.attempt, job.crashes, job.suspicion) for job in (read(store, each) for each in ids)] == [(0, 0, 1)] * 2


def test_a_lease_that_runs_out_later_counts_as_held_beside_others_too(store: SqliteStore, clock: ManualClock) -> None:
    first = put(store)
    claim(store, limit=1, lease=10)
    second = put(store)
    claim(store, limit=1, lease=100)
    clock.advance(11)
    store.do(Reap())
    clock.advance(100)

    store.do(Reap())

    assert [(read(store, each).crashes, read(store, each).suspicion) for each in (first, second)] == [(0, 1), (0, 1)]


def test_a_worker_that_is_seen_alive_raises_no_suspicion(store: SqliteStore, clock: ManualClock) -> None:
    ids = [put(store), put(store)]
    claim(store)
    clock.advance(11)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("w1"), "host", 1)))

    store.do(Reap())

    assert [(read(store, each).suspicion, read(store, each).failure_class) for each in ids] == [(0, "lease_lost")] * 2


def test_at_its_maximum_a_suspect_counts_each_further_crash_as_its_own(
    store: SqliteStore, clock: ManualClock, path: Path
) -> None:
    suspect, other = put(store), put(store)
    make_suspect(path, suspect, SUSPICION_MAX)
    claim(store)
    clock.advance(11)

    store.do(Reap())

    assert (read(store, suspect).crashes, read(store, suspect).attempt) == (1, 1)
    assert (read(store, other).crashes, read(store, other).attempt) == (0, 0)


def test_a_worker_gets_one_job_that_must_run_alone_and_gets_it_first(store: SqliteStore, path: Path) -> None:
    plain = put(store)
    suspects = [put(store), put(store)]
    for job_id in suspects:
        make_suspect(path, job_id, 2)

    first = claim(store, "w1")
    again = claim(store, "w1")
    other = claim(store, "w2")

    assert [(grant.id, grant.suspicion) for grant in first] == [(suspects[0], 2), (plain, 0)]
    assert again == []
    assert [grant.id for grant in other] == [suspects[1]]
    store.do(Settle([Completed(first[0].id, first[0].token)]))
    assert read(store, first[0].id).suspicion == 0


def test_a_job_that_must_run_alone_waits_for_its_concurrency_key_and_holds_up_no_other(
    store: SqliteStore, path: Path
) -> None:
    store.do(SetQueues({"default": QueuePolicy(concurrency_per_key=1)}, actor="ops"))
    keyed = [NewJob(new_job_id(), "work", "{}", concurrency_key="k") for _ in range(2)]
    held, waits = (found.id for found in store.do(Enqueue(keyed)))
    keyless = put(store)
    assert [grant.id for grant in claim(store, limit=1)] == [held]
    for suspect in (waits, keyless):
        make_suspect(path, suspect, 2)

    assert [grant.id for grant in claim(store, "w2")] == [keyless]
    assert claim(store, "w3") == []


def test_a_crash_that_the_worker_saw_is_counted_and_isolates(store: SqliteStore) -> None:
    job_id = put(store)
    [grant] = claim(store)

    [settled] = store.do(Settle([Failed(grant.id, grant.token, "died", FailureClass.CRASH, retry_after_seconds=0)]))

    assert isinstance(settled, Settled)
    assert (read(store, job_id).crashes, read(store, job_id).suspicion) == (1, 1)


def test_a_row_that_cannot_be_taken_back_stops_no_other(store: SqliteStore, clock: ManualClock, path: Path) -> None:
    broken, sound = put(store), put(store)
    claim(store, "w1", limit=1)
    claim(store, "w2", limit=1)
    with sqlite3.connect(path) as connection:  # the attempt row of its token is there already
        connection.execute(
            "INSERT INTO tenure_attempt VALUES (?, 1, 1, 'w1', 0, 0, 'retried', 'error', NULL, NULL, NULL)", (broken,)
        )
    connection.close()
    clock.advance(11)

    [grant] = claim(store, "w3")

    assert grant.id == sound


def test_a_heartbeat_ends_what_an_earlier_silence_had_marked(store: SqliteStore, clock: ManualClock) -> None:
    put(store)
    claim(store, limit=1, lease=10)
    second = put(store)
    [grant] = claim(store, limit=1, lease=100)
    clock.advance(11)
    store.do(Reap())
    store.do(Heartbeat([Hold(grant.id, grant.token)], lease_seconds=100))
    clock.advance(101)

    store.do(Reap())

    assert read(store, second).crashes == 1


def test_a_blank_worker_is_refused(store: SqliteStore) -> None:
    with pytest.raises(InvalidArgument, match="blank"):
        claim(store, "  ")
