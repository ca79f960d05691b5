"""Reap: take back what has run out, whoever held it; the attempt was counted at the claim."""

from __future__ import annotations

import pytest

from tenure.model.ids import WorkerId
from tenure.model.policy import Backoff
from tenure.model.state import State
from tenure.store.contract import Heartbeat, WorkerRow
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    attempts,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    letters,
    make_queue,
    reap,
    release,
    stop,
)
from tests.conformance.engines import SteeredClock


def test_an_expired_job_is_claimable_at_once_with_its_old_run_at_and_a_crash_counted(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, backoff=Backoff(shape="constant", base_seconds=500, jitter=0))
    due = clock.now()
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, "w1", "q", lease_seconds=10)
    clock.advance(10)

    [settled] = reap(store)

    assert (settled.job_id, settled.token, settled.state) == (job_id, grant.token, "queued")
    job = get(store, job_id)
    assert (job.state, job.attempt, job.crashes, job.failure_class) == (State.QUEUED, 1, 1, "crash")
    assert (job.run_at, job.lease_owner, job.lease_until) == (due, None, None)
    [attempt] = attempts(store, job_id)
    assert (attempt.outcome, attempt.failure_class, attempt.worker, attempt.token) == ("expired", "crash", "w1", 1)
    assert claim_one(store, "w2", "q").id == job_id


def test_an_expired_job_comes_before_newer_work_of_its_rank(store: Subject, clock: SteeredClock) -> None:
    old = enqueue(store)
    claim_one(store, "w1", lease_seconds=10)
    new = enqueue(store)
    clock.advance(11)

    assert [grant.id for grant in claim(store, 10, worker="w2")] == [old, new]


@pytest.mark.parametrize("start_on_claim", [True, False])
def test_leased_and_running_jobs_are_both_taken_back(store: Subject, clock: SteeredClock, start_on_claim: bool) -> None:
    make_queue(store, start_on_claim=start_on_claim)
    job_id = enqueue(store, queue="q")
    claim_one(store, queue="q", lease_seconds=10)
    clock.advance(11)

    assert [settled.job_id for settled in reap(store)] == [job_id]


def test_a_lease_that_has_not_run_out_is_left_alone(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    claim_one(store, lease_seconds=10)
    clock.advance(9.999999)
    before = get(store, job_id)

    assert reap(store) == []

    assert get(store, job_id) == before


def test_a_lease_that_ends_later_does_not_hide_one_that_ran_out(store: Subject, clock: SteeredClock) -> None:
    first, second, third = (enqueue(store) for _ in range(3))
    claim_one(store, lease_seconds=600)
    claim_one(store, lease_seconds=10)
    claim_one(store, lease_seconds=600)

    clock.advance(11)

    assert [grant.id for grant in claim(store, 10)] == [second]
    assert {get(store, job_id).token for job_id in (first, third)} == {1}


def test_a_job_whose_attempts_are_spent_dies_of_its_expiry(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, max_attempts=1)
    claim_one(store, lease_seconds=10)
    clock.advance(11)

    assert [(settled.job_id, settled.state) for settled in reap(store)] == [(job_id, "dead")]

    job = get(store, job_id)
    assert (job.state, job.attempt, job.crashes, job.finished_at) == (State.DEAD, 1, 1, clock.now())
    [letter] = letters(store, job_id)
    assert (letter.failure_class, letter.attempts, letter.crashes) == ("crash", 1, 1)
    assert letter.final_error.strip() != ""


def test_a_worker_that_is_still_seen_alive_lost_its_lease_rather_than_its_life(
    store: Subject, clock: SteeredClock
) -> None:
    job_id = enqueue(store)
    claim_one(store, "w1", lease_seconds=10)
    clock.advance(10)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("w1"), "host", 1)))
    clock.advance(1)

    reap(store)

    assert get(store, job_id).failure_class == "lease_lost"
    assert [attempt.failure_class for attempt in attempts(store, job_id)] == ["lease_lost"]


def test_a_reap_takes_no_more_than_its_limit(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 5)
    claim(store, 5, lease_seconds=10)
    clock.advance(11)

    assert len(reap(store, 2)) == 2
    assert len(reap(store, 10)) == 3
    assert reap(store, 10) == []


def test_a_reaped_job_refuses_its_old_worker(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    old = claim_one(store, lease_seconds=10)
    clock.advance(11)
    reap(store)
    before = get(store, job_id)

    assert complete(store, old).lost

    assert get(store, job_id) == before


def test_a_job_that_was_completed_in_time_is_not_taken_back(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    complete(store, claim_one(store, lease_seconds=10))
    clock.advance(11)

    assert reap(store) == []

    assert get(store, job_id).state is State.SUCCEEDED


def test_the_claim_of_any_queue_takes_back_what_ran_out_in_its_queues(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF)
    ids = [enqueue(store, queue="q") for _ in range(3)]
    claim(store, 3, queues=["q"], lease_seconds=10)
    clock.advance(11)

    grants = claim(store, 10, worker="w2", queues=["q"])

    assert sorted(grant.id for grant in grants) == sorted(ids)
    assert {(grant.attempt, grant.suspicion) for grant in grants} == {(1, 1)}


def test_a_clock_that_jumps_back_takes_nothing_away(store: Subject, clock: SteeredClock) -> None:
    enqueue(store)
    grant = claim_one(store, lease_seconds=10)
    clock.advance(-3600)

    assert reap(store) == []

    assert complete(store, grant).state == "succeeded"


@pytest.mark.parametrize("how", ["dead", "cancelled"])
def test_a_worker_that_comes_back_after_its_job_ended_by_expiry_is_told_that_it_lost_it(
    store: Subject, clock: SteeredClock, how: str
) -> None:
    """The end was the reaper's, not the worker's: its late word must not be answered as if it had been taken in."""
    job_id = enqueue(store, max_attempts=1)
    grant = claim_one(store, lease_seconds=10)
    if how == "cancelled":
        cancel(store, job_id)
    clock.advance(11)
    reap(store)
    before = get(store, job_id)
    assert before.state == how

    assert complete(store, grant).lost
    assert fail(store, grant).lost
    assert release(store, grant).lost
    assert stop(store, grant).lost

    assert get(store, job_id) == before
