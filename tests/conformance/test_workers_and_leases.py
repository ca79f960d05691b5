"""Worker rows, and named leases with a term."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tenure.model.ids import WorkerId
from tenure.model.state import State
from tenure.store.admin import AcquireLease, ReleaseLease, RemoveWorkers
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.store.queries import ListWorkers, WorkerSeen
from tests.conformance.acts import (
    Subject,
    attempts,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    get,
    hold,
    make_queue,
    set_gate,
)
from tests.conformance.engines import SteeredClock

ROW = WorkerRow(
    WorkerId("host-1-abcd"),
    hostname="host",
    pid=4711,
    queues=("default", "mail"),
    kinds=("work",),
    concurrency=8,
    version="0.1.0",
    profile_kind="Agent",
    status="ok",
    info='{"python": "3.12"}',
)


def seen(store: Subject) -> list[WorkerSeen]:
    return store.do(ListWorkers())


def test_a_heartbeat_writes_the_workers_row(store: Subject, clock: SteeredClock) -> None:
    started = clock.now()

    store.do(Heartbeat([], worker=ROW))

    [worker] = seen(store)
    assert worker.row.id == ROW.id
    assert (worker.row.hostname, worker.row.pid, worker.row.concurrency) == ("host", 4711, 8)
    assert (list(worker.row.queues), list(worker.row.kinds)) == (["default", "mail"], ["work"])
    assert (worker.row.version, worker.row.profile_kind, worker.row.status) == ("0.1.0", "Agent", "ok")
    assert (worker.started_at, worker.last_seen_at, worker.ticks) == (started, started, 1)
    assert (worker.held, worker.is_leader, worker.leader_until) == (0, False, None)


def test_the_next_heartbeat_refreshes_it_and_counts(store: Subject, clock: SteeredClock) -> None:
    started = clock.now()
    store.do(Heartbeat([], worker=ROW))
    clock.advance(10)

    store.do(Heartbeat([], worker=replace(ROW, status="warn", concurrency=4)))

    [worker] = seen(store)
    assert (worker.row.status, worker.row.concurrency, worker.ticks) == ("warn", 4, 2)
    assert (worker.started_at, worker.last_seen_at) == (started, clock.now())


def test_one_heartbeat_extends_leases_and_writes_the_row(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store, ROW.id)
    clock.advance(10)

    store.do(Heartbeat([hold(grant)], worker=replace(ROW, current_job_id=job_id)))

    [worker] = seen(store)
    assert (worker.row.current_job_id, worker.held) == (job_id, 1)
    assert get(store, job_id).lease_until == clock.now() + timedelta(seconds=60)


def test_workers_come_most_recently_seen_first(store: Subject, clock: SteeredClock) -> None:
    for name in ("a", "b", "c"):
        store.do(Heartbeat([], worker=replace(ROW, id=WorkerId(name))))
        clock.advance(1)
    store.do(Heartbeat([], worker=replace(ROW, id=WorkerId("a"))))

    assert [worker.row.id for worker in seen(store)] == ["a", "c", "b"]


def test_a_worker_that_says_goodbye_is_removed(store: Subject) -> None:
    store.do(Heartbeat([], worker=ROW))

    assert store.do(RemoveWorkers([ROW.id, WorkerId("nobody")])) == [ROW.id]

    assert seen(store) == []


def test_what_a_removed_worker_held_is_taken_back_first(store: Subject) -> None:
    ids = enqueue_many(store, 2)
    store.do(Heartbeat([], worker=ROW))
    claim(store, 2, worker=ROW.id)

    store.do(RemoveWorkers([ROW.id]))

    for job_id in ids:
        job = get(store, job_id)
        assert (job.state, job.suspicion, job.attempt, job.lease_owner) == (State.QUEUED, 1, 0, None)
        assert [attempt.failure_class for attempt in attempts(store, job_id)] == ["crash"]


def test_workers_that_were_not_seen_are_removed_by_age(store: Subject, clock: SteeredClock) -> None:
    store.do(Heartbeat([], worker=replace(ROW, id=WorkerId("old"))))
    clock.advance(60)
    store.do(Heartbeat([], worker=replace(ROW, id=WorkerId("young"))))
    clock.advance(1)

    assert store.do(RemoveWorkers(unseen_seconds=30)) == ["old"]

    assert [worker.row.id for worker in seen(store)] == ["young"]


def test_removing_nobody_removes_nobody(store: Subject) -> None:
    store.do(Heartbeat([], worker=ROW))

    assert store.do(RemoveWorkers()) == []

    assert len(seen(store)) == 1


def test_a_free_lease_is_taken_in_the_first_term(store: Subject, clock: SteeredClock) -> None:
    lease = store.do(AcquireLease("leader", "a", seconds=30))

    assert (lease.name, lease.owner, lease.term, lease.acquired) == ("leader", "a", 1, True)
    assert lease.until == clock.now() + timedelta(seconds=30)


def test_a_taken_lease_tells_who_has_it(store: Subject) -> None:
    first = store.do(AcquireLease("leader", "a", seconds=30))

    second = store.do(AcquireLease("leader", "b", seconds=30))

    assert (second.owner, second.term, second.until, second.acquired) == ("a", 1, first.until, False)


def test_the_owner_extends_its_lease_in_the_same_term(store: Subject, clock: SteeredClock) -> None:
    store.do(AcquireLease("leader", "a", seconds=30))
    clock.advance(20)

    lease = store.do(AcquireLease("leader", "a", seconds=30))

    assert (lease.term, lease.until, lease.acquired) == (1, clock.now() + timedelta(seconds=30), True)


def test_a_lease_that_ran_out_passes_on_with_a_new_term(store: Subject, clock: SteeredClock) -> None:
    store.do(AcquireLease("leader", "a", seconds=30))

    clock.advance(29.999999)
    assert not store.do(AcquireLease("leader", "b", seconds=30)).acquired

    clock.advance(0.000001)
    lease = store.do(AcquireLease("leader", "b", seconds=30))
    assert (lease.owner, lease.term, lease.acquired) == ("b", 2, True)
    assert not store.do(AcquireLease("leader", "a", seconds=30)).acquired


def test_a_released_lease_is_free_at_once_and_its_term_is_not_used_again(store: Subject) -> None:
    first = store.do(AcquireLease("leader", "a"))

    assert store.do(ReleaseLease("leader", "a", first.term)) is True

    second = store.do(AcquireLease("leader", "b"))
    assert (second.owner, second.term, second.acquired) == ("b", first.term + 1, True)


def test_a_lease_is_released_only_by_its_owner_in_its_term(store: Subject, clock: SteeredClock) -> None:
    store.do(AcquireLease("leader", "a", seconds=30))
    clock.advance(30)
    current = store.do(AcquireLease("leader", "b", seconds=30))

    assert store.do(ReleaseLease("leader", "a", 1)) is False
    assert store.do(ReleaseLease("leader", "b", 1)) is False
    assert store.do(ReleaseLease("nothing", "b", 1)) is False

    assert store.do(AcquireLease("leader", "c")).owner == "b"
    assert store.do(ReleaseLease("leader", "b", current.term)) is True


def test_leases_of_different_names_are_apart(store: Subject) -> None:
    assert store.do(AcquireLease("leader", "a")).acquired
    assert store.do(AcquireLease("orchestrator", "b")).acquired


def test_the_leader_shows_in_its_row(store: Subject) -> None:
    store.do(Heartbeat([], worker=ROW))

    lease = store.do(AcquireLease("leader", ROW.id))

    [worker] = seen(store)
    assert (worker.is_leader, worker.leader_until) == (True, lease.until)


def test_nobody_counts_as_silent_while_the_heartbeat_gate_is_closed(store: Subject, clock: SteeredClock) -> None:
    """A closed gate keeps rows from being written, not workers from working: their jobs must stay with them."""
    job_id = enqueue(store)
    grant = claim_one(store, ROW.id)
    store.do(Heartbeat([hold(grant)], worker=ROW))
    set_gate(store, "heartbeat", is_open=False)
    for _ in range(10):
        clock.advance(50)
        store.do(Heartbeat([hold(grant)], worker=ROW))

    removed = store.do(RemoveWorkers(unseen_seconds=300))

    assert removed == []
    assert get(store, job_id).state is State.RUNNING


def test_silence_takes_no_lease_that_has_not_run_out(store: Subject, clock: SteeredClock) -> None:
    """M3: a job with 55 minutes of lease left was taken from its worker after 311 s of silence, and ran twice."""
    make_queue(store, lease_seconds=3600.0, lease_max_seconds=3600.0)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, ROW.id, queue="q")
    store.do(Heartbeat([hold(grant)], worker=ROW))
    clock.advance(700)

    assert store.do(RemoveWorkers(unseen_seconds=300)) == []
    assert get(store, job_id).lease_owner == ROW.id
    assert [worker.row.id for worker in seen(store)] == [ROW.id]

    complete(store, grant)
    assert store.do(RemoveWorkers(unseen_seconds=300)) == [ROW.id]


def test_a_worker_is_not_silent_while_the_heartbeat_gate_of_its_profile_is_closed(
    store: Subject, clock: SteeredClock
) -> None:
    """M3: only the global gate was asked, and the gates of 002 are its own."""
    make_queue(store)
    store.do(Heartbeat([], worker=replace(ROW, queues=("q",))))
    set_gate(store, "default.heartbeat", is_open=False)
    clock.advance(700)

    assert store.do(RemoveWorkers(unseen_seconds=300)) == []
