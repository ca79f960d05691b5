"""Fail: queued again by the queue's backoff, or dead when the attempts are spent."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tenure.model.clock import from_us
from tenure.model.outcome import FailureClass
from tenure.model.policy import Backoff
from tenure.model.state import State
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    attempts,
    claim,
    claim_one,
    enqueue,
    fail,
    get,
    letters,
    make_queue,
)
from tests.conformance.engines import SteeredClock

DAY = 86_400.0

SHAPES = {
    "none": Backoff(shape="none", jitter=0),
    "constant": Backoff(shape="constant", base_seconds=7, jitter=0),
    "linear": Backoff(shape="linear", base_seconds=3, jitter=0),
    "001, quadratic": Backoff(shape="power", base_seconds=5, power=2, jitter=0),
    "power with a fraction": Backoff(shape="power", base_seconds=2, power=1.5, jitter=0),
    "002, exponential with a cap": Backoff(base_seconds=10, factor=2, cap_seconds=10_240, jitter=0),
    "003, exponential": Backoff(base_seconds=5, factor=2, jitter=0),
    "capped at once": Backoff(base_seconds=100, factor=10, cap_seconds=50, jitter=0),
    "factor with a fraction": Backoff(base_seconds=1, factor=1.5, jitter=0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_delays_follow_the_formula_for_every_attempt(store: Subject, clock: SteeredClock, name: str) -> None:
    backoff = SHAPES[name]
    make_queue(store, backoff=backoff, max_attempts=14)
    job_id = enqueue(store, queue="q")

    for attempt in range(1, 14):
        answer = fail(store, claim_one(store, queue="q"))

        waited = (get(store, job_id).run_at - clock.now()).total_seconds()
        assert waited == pytest.approx(backoff.delay_seconds(attempt), abs=2e-6)
        assert answer.run_at_us is not None
        assert from_us(answer.run_at_us) == get(store, job_id).run_at
        clock.advance(waited)


def test_a_failed_job_is_not_granted_before_its_time(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=Backoff(shape="constant", base_seconds=10, jitter=0))
    enqueue(store, queue="q")
    fail(store, claim_one(store, queue="q"))

    clock.advance(9.999999)
    assert claim(store, queues=["q"]) == []

    clock.advance(0.000001)
    assert claim_one(store, queue="q").attempt == 2


def test_jitter_only_lengthens(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=Backoff(shape="constant", base_seconds=100, jitter=0.5))
    delays = []

    for _ in range(20):
        job_id = enqueue(store, queue="q")
        fail(store, claim_one(store, queue="q"))
        delays.append((get(store, job_id).run_at - clock.now()).total_seconds())

    assert min(delays) >= 100
    assert max(delays) <= 150
    assert len(set(delays)) > 1


def test_a_jobs_own_backoff_wins_over_its_queues(store: Subject, clock: SteeredClock) -> None:
    own = {"shape": "linear", "base_seconds": 4, "power": 2, "factor": 2, "cap_seconds": 3600, "jitter": 0}
    job_id = enqueue(store, backoff=json.dumps(own), max_attempts=5)

    for attempt in (1, 2, 3):
        fail(store, claim_one(store))
        assert get(store, job_id).run_at == clock.now() + timedelta(seconds=4 * attempt)
        clock.advance(4 * attempt)


def test_what_a_jobs_own_backoff_leaves_out_is_taken_from_the_queue(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=Backoff(shape="constant", base_seconds=5, jitter=0))
    job_id = enqueue(store, queue="q", backoff='{"base_seconds": 9}')

    fail(store, claim_one(store, queue="q"))

    assert get(store, job_id).run_at == clock.now() + timedelta(seconds=9)


def test_a_retry_after_from_the_handler_wins(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)

    answer = fail(store, claim_one(store), retry_after_seconds=12.5)

    assert answer.state == "queued"
    assert get(store, job_id).run_at == clock.now() + timedelta(seconds=12.5)


def test_a_retry_after_of_zero_is_due_at_once(store: Subject) -> None:
    enqueue(store)

    fail(store, claim_one(store), retry_after_seconds=0)

    assert claim_one(store).attempt == 2


def test_the_last_attempt_ends_in_death_with_a_dead_letter(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF, max_attempts=2)
    job_id = enqueue(store, queue="q")

    assert fail(store, claim_one(store, queue="q"), "one").state == "queued"
    answer = fail(store, claim_one(store, queue="q"), "two")

    assert (answer.state, answer.run_at_us) == ("dead", None)
    job = get(store, job_id)
    assert (job.state, job.attempt, job.last_error, job.finished_at) == (State.DEAD, 2, "two", clock.now())
    [letter] = letters(store, job_id)
    assert (letter.final_error, letter.attempts, letter.triage) == ("two", 2, "pending")


def test_a_retry_after_does_not_save_a_job_whose_attempts_are_spent(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=1)

    fail(store, claim_one(store), retry_after_seconds=60)

    assert get(store, job_id).state is State.DEAD


@pytest.mark.parametrize("failure_class", [FailureClass.ERROR, FailureClass.TIMEOUT, FailureClass.RATE_LIMITED])
def test_failures_are_classed(store: Subject, failure_class: FailureClass) -> None:
    job_id = enqueue(store)

    fail(store, claim_one(store), "why", failure_class)

    job = get(store, job_id)
    assert (job.failure_class, job.last_error) == (failure_class.value, "why")
    [attempt] = attempts(store, job_id)
    assert (attempt.failure_class, attempt.error, attempt.outcome) == (failure_class.value, "why", "retried")


def test_a_failure_counts_no_crash(store: Subject) -> None:
    job_id = enqueue(store)

    fail(store, claim_one(store))

    assert get(store, job_id).crashes == 0


def test_a_later_policy_leaves_the_attempts_of_jobs_that_are_there(store: Subject) -> None:
    make_queue(store, max_attempts=2, backoff=NO_BACKOFF)
    job_id = enqueue(store, queue="q")
    make_queue(store, max_attempts=1, backoff=NO_BACKOFF)

    fail(store, claim_one(store, queue="q"))

    assert (get(store, job_id).state, get(store, job_id).max_attempts) == (State.QUEUED, 2)


def test_an_error_may_be_empty(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=1)

    assert fail(store, claim_one(store), "").state == "dead"

    [letter] = letters(store, job_id)
    assert letter.final_error.strip() != ""
