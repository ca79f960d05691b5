"""Delayed jobs: queued with a later run_at; no one has to promote them, and none starts early."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.store.admin import SetQueues
from tenure.store.contract import SOON_SECONDS, Claim, Exchange, Exchanged
from tenure.store.queries import ListJobs
from tests.conformance.acts import Subject, claim, claim_one, enqueue, enqueue_many, fail, get
from tests.conformance.engines import SteeredClock


def test_a_delay_counts_from_the_stores_clock(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, delay_seconds=90.5)

    job = get(store, job_id)

    assert (job.state, job.run_at) == (State.QUEUED, clock.now() + timedelta(seconds=90.5))


def test_a_delay_wins_over_run_at(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, delay_seconds=10, run_at=clock.now() + timedelta(days=1))

    assert get(store, job_id).run_at == clock.now() + timedelta(seconds=10)


def test_a_job_is_never_granted_before_its_time(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, delay_seconds=10)

    clock.advance(9.999999)
    assert claim(store) == []

    clock.advance(0.000001)
    assert claim_one(store).id == job_id


def test_a_run_at_in_the_past_is_due_at_once(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, run_at=clock.now() - timedelta(days=1))

    assert claim_one(store).id == job_id


def test_a_delay_of_zero_is_due_at_once(store: Subject) -> None:
    job_id = enqueue(store, delay_seconds=0)

    assert claim_one(store).id == job_id


def test_a_job_that_comes_due_later_does_not_hold_back_one_before_it(store: Subject, clock: SteeredClock) -> None:
    enqueue(store, delay_seconds=3600)
    soon = enqueue(store, delay_seconds=10)
    enqueue(store, delay_seconds=7200)

    clock.advance(10)

    assert [grant.id for grant in claim(store, 10)] == [soon]


def test_what_came_due_is_granted_by_priority_like_the_rest(store: Subject, clock: SteeredClock) -> None:
    delayed = enqueue(store, delay_seconds=10, priority=5)
    plain = enqueue(store, priority=1)
    clock.advance(10)

    assert [grant.id for grant in claim(store, 10)] == [delayed, plain]


def test_many_jobs_that_come_due_at_once_are_all_granted(store: Subject, clock: SteeredClock) -> None:
    ids = set(enqueue_many(store, 2500, delay_seconds=10))
    clock.advance(10)
    granted: set[str] = set()

    for _ in range(20):
        granted |= {grant.id for grant in claim(store, 500)}
        if granted == ids:
            break

    assert granted == ids


def test_a_clock_that_jumps_back_starts_nothing_early(store: Subject, clock: SteeredClock) -> None:
    clock.advance(-3600)
    enqueue(store, delay_seconds=10)

    assert claim(store) == []


@pytest.mark.parametrize(("delay", "due_in"), [(3.0, 3.0), (SOON_SECONDS, SOON_SECONDS), (SOON_SECONDS + 1.0, None)])
def test_a_claim_that_finds_too_little_learns_when_the_next_job_of_its_queues_comes_due(
    store: Subject, delay: float, due_in: float | None
) -> None:
    store.do(SetQueues({"other": QueuePolicy()}, actor="test"))
    enqueue(store, delay_seconds=1.0, queue="other")
    enqueue(store, delay_seconds=delay)
    enqueue(store)

    def exchange(limit: int) -> Exchanged:
        return store.do(Exchange([], Claim(WorkerId("w"), ["default"], limit)))

    full = exchange(1)
    assert (len(full.grants), full.due_in_seconds) == (1, None)
    assert exchange(1).due_in_seconds == due_in
    if due_in is not None:
        store.clock.advance(due_in)
        assert len(exchange(1).grants) == 1
        assert exchange(1).due_in_seconds is None


def test_of_several_that_come_due_the_first_is_told(store: Subject) -> None:
    for delay in (4.0, 2.0, 3.0):
        enqueue(store, delay_seconds=delay)

    assert store.do(Exchange([], Claim(WorkerId("w"), ["default"], 1))).due_in_seconds == 2.0


@pytest.mark.parametrize("delay", [1e12, 1e11, -1e11])
def test_a_moment_that_no_datetime_can_hold_hides_no_other_job(store: Subject, delay: float) -> None:
    """Thirty thousand years from now, or in the year -1143: a look at the list raised OverflowError."""
    far = enqueue(store, delay_seconds=delay)
    near = enqueue(store)

    assert {job.id for job in store.do(ListJobs()).items} == {far, near}
    assert get(store, far).run_at.year == (1 if delay < 0 else 5194 if delay < 1e12 else 9999)


def test_a_retry_in_thirty_thousand_years_hides_no_other_job(store: Subject) -> None:
    enqueue_many(store, 2)
    grant = claim_one(store)

    settled = fail(store, grant, retry_after_seconds=1e12)

    assert settled.state == "queued"
    assert len(store.do(ListJobs()).items) == 2
    assert get(store, grant.id).run_at.year == 9999
