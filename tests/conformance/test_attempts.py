"""Attempt rows: one for each attempt that did not end well; the happy path writes none."""

from __future__ import annotations

from datetime import timedelta

from tenure.model.fingerprint import fingerprint
from tenure.model.ids import new_job_id
from tenure.store.contract import Wake
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    attempts,
    claim_one,
    complete,
    enqueue,
    fail,
    make_queue,
    reap,
    release,
    revive,
    suspend,
)
from tests.conformance.engines import SteeredClock


def test_an_attempt_tells_who_when_why_and_what_next(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    claimed = clock.now()
    grant = claim_one(store, "w7")
    clock.advance(9)

    fail(store, grant, "boom 17", retry_after_seconds=30)

    [attempt] = attempts(store, job_id)
    assert (attempt.job_id, attempt.token, attempt.attempt, attempt.worker) == (job_id, 1, 1, "w7")
    assert (attempt.claimed_at, attempt.ended_at) == (claimed, clock.now())
    assert (attempt.outcome, attempt.failure_class, attempt.error) == ("retried", "error", "boom 17")
    assert attempt.fingerprint == fingerprint("error", "boom 17")
    assert attempt.run_at == clock.now() + timedelta(seconds=30)


def test_a_life_of_many_ends_is_told_in_order(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF, max_attempts=3)
    job_id = enqueue(store, queue="q")
    release(store, claim_one(store, queue="q"))
    suspend(store, claim_one(store, queue="q"))
    store.do(Wake([job_id]))
    fail(store, claim_one(store, queue="q"))
    claim_one(store, queue="q", lease_seconds=10)
    clock.advance(11)
    reap(store)
    fail(store, claim_one(store, queue="q"))

    told = [(attempt.token, attempt.attempt, attempt.outcome) for attempt in attempts(store, job_id)]

    assert [(token, outcome) for token, _, outcome in told] == [
        (1, "released"),
        (3, "retried"),
        (4, "expired"),
        (5, "dead"),
    ]
    assert [attempt for _, attempt, _ in told] == [1, 1, 2, 3]


def test_a_success_leaves_no_row(store: Subject) -> None:
    job_id = enqueue(store)

    complete(store, claim_one(store))

    assert attempts(store, job_id) == []


def test_a_revived_jobs_earlier_attempts_stay_told(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=1)
    fail(store, claim_one(store), "first life")
    revive(store, job_id)
    fail(store, claim_one(store), "second life")

    assert [(attempt.token, attempt.error) for attempt in attempts(store, job_id)] == [
        (1, "first life"),
        (2, "second life"),
    ]


def test_an_unknown_job_has_no_attempts(store: Subject) -> None:
    assert attempts(store, new_job_id()) == []
