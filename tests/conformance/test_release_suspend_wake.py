"""Release and suspend give the attempt back; a suspended job holds no slot until it is woken or its time comes."""

from __future__ import annotations

from datetime import timedelta

from tenure.model.ids import Token, new_job_id
from tenure.model.outcome import FailureClass, Released
from tenure.model.state import State
from tenure.store.contract import Wake
from tests.conformance.acts import (
    Subject,
    attempts,
    bring,
    claim,
    claim_one,
    complete,
    enqueue,
    get,
    make_queue,
    release,
    settle,
    suspend,
)
from tests.conformance.engines import SteeredClock


def test_a_released_job_is_queued_with_its_attempt_refunded(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)

    answer = release(store, claim_one(store))

    assert answer.state == "queued"
    job = get(store, job_id)
    assert (job.state, job.attempt, job.token, job.crashes, job.run_at) == (State.QUEUED, 0, 1, 0, clock.now())
    assert job.shown_state == "queued"
    [attempt] = attempts(store, job_id)
    assert (attempt.outcome, attempt.failure_class) == ("released", "shutdown")


def test_a_job_that_was_never_granted_cannot_be_released(store: Subject) -> None:
    job_id = enqueue(store)

    answer = settle(store, Released(job_id, Token(0), failure_class=None))

    assert answer.lost
    assert get(store, job_id).state is State.QUEUED


def test_a_job_can_be_released_more_often_than_it_has_attempts(store: Subject) -> None:
    enqueue(store, max_attempts=1)

    for turn in range(5):
        grant = claim_one(store)
        assert (grant.attempt, grant.token) == (1, turn + 1)
        release(store, grant)

    assert complete(store, claim_one(store)).state == "succeeded"


def test_a_job_released_without_a_delay_keeps_its_place_before_newer_work(store: Subject, clock: SteeredClock) -> None:
    old = enqueue(store)
    grant = claim_one(store)
    clock.advance(1)
    new = enqueue(store)
    clock.advance(1)

    release(store, grant)

    assert [granted.id for granted in claim(store, 10)] == [old, new]


def test_a_release_with_a_delay_is_granted_only_after_it(store: Subject, clock: SteeredClock) -> None:
    enqueue(store)
    release(store, claim_one(store), delay_seconds=30)

    clock.advance(29)
    assert claim(store) == []

    clock.advance(1)
    assert len(claim(store)) == 1


def test_a_release_says_why(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    settle(store, Released(grant.id, grant.token, 0, FailureClass.SNOOZED, "later, please"))

    [attempt] = attempts(store, job_id)
    assert (attempt.failure_class, attempt.error) == ("snoozed", "later, please")


def test_a_suspended_job_waits_without_holding_a_lease(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)

    answer = suspend(store, claim_one(store), "approval:7")

    assert answer.state == "waiting"
    job = get(store, job_id)
    assert (job.state, job.waiting_for, job.attempt) == (State.WAITING, "approval:7", 0)
    assert (job.lease_owner, job.lease_until) == (None, None)
    clock.advance(10 * 365 * 86_400)
    assert claim(store) == []


def test_a_suspended_job_wakes_by_itself_when_its_time_comes(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    suspend(store, claim_one(store), "sleep", delay_seconds=60)
    assert get(store, job_id).run_at == clock.now() + timedelta(seconds=60)

    clock.advance(59)
    assert claim(store) == []

    clock.advance(1)
    grant = claim_one(store)
    assert (grant.id, grant.token, grant.attempt) == (job_id, 2, 1)
    assert get(store, job_id).waiting_for is None


def test_a_job_suspended_for_no_time_at_all_wakes_with_the_next_claim(store: Subject) -> None:
    job_id = enqueue(store)
    suspend(store, claim_one(store), "a breath", delay_seconds=0)

    assert claim_one(store).id == job_id


def test_a_woken_job_is_due_at_once_and_keeps_the_place_it_had(store: Subject, clock: SteeredClock) -> None:
    enqueued_at = clock.now()
    job = bring(store, State.WAITING)
    clock.advance(5)
    newer = enqueue(store)
    clock.advance(5)

    assert store.do(Wake([job.id])) == [job.id]

    woken = get(store, job.id)
    assert (woken.state, woken.run_at, woken.waiting_for) == (State.QUEUED, enqueued_at, None)
    assert [grant.id for grant in claim(store, 2)] == [job.id, newer]


def test_a_job_that_slept_keeps_the_place_it_had(store: Subject, clock: SteeredClock) -> None:
    old = enqueue(store)
    suspend(store, claim_one(store), "sleep", delay_seconds=60)
    clock.advance(1)
    newer = enqueue(store)

    clock.advance(59)

    assert [grant.id for grant in claim(store, 2)] == [old, newer]


def test_a_wake_that_comes_before_the_suspend_is_not_lost(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    assert store.do(Wake([job_id])) == []

    assert suspend(store, grant, "approval:7").state == "queued"
    again = claim_one(store)
    assert (again.id, again.attempt) == (job_id, 1)
    assert suspend(store, again, "approval:7").state == "waiting", "it counts for the grant under which it came"
    assert attempts(store, job_id) == []


def test_a_wake_leaves_others_alone_and_answers_which_it_woke(store: Subject) -> None:
    running = bring(store, State.RUNNING)
    waiting = bring(store, State.WAITING)
    queued = bring(store, State.QUEUED)

    assert store.do(Wake([running.id, waiting.id, queued.id, new_job_id()])) == [waiting.id]

    assert get(store, running.id) == running
    assert get(store, queued.id) == queued


def test_a_repeated_wake_wakes_nothing_more(store: Subject) -> None:
    job = bring(store, State.WAITING)

    assert store.do(Wake([job.id])) == [job.id]
    assert store.do(Wake([job.id])) == []


def test_a_wake_by_what_is_waited_for_wakes_all_of_them(store: Subject) -> None:
    ids = []
    for waiting_for in ("order:1", "order:2", "order:1"):
        ids.append(enqueue(store))
        suspend(store, claim_one(store), waiting_for)

    assert sorted(store.do(Wake(waiting_for="order:1"))) == sorted([ids[0], ids[2]])

    assert get(store, ids[1]).state is State.WAITING


def test_a_woken_job_takes_its_place_by_priority(store: Subject) -> None:
    high = enqueue(store, priority=5)
    suspend(store, claim_one(store))
    enqueue(store, priority=1)
    store.do(Wake([high]))

    assert claim_one(store).id == high


def test_a_delayed_release_of_one_queue_does_not_hold_up_another(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    enqueue(store, queue="a")
    release(store, claim_one(store, queue="a"), delay_seconds=1000)
    other = enqueue(store, queue="b")

    assert [grant.id for grant in claim(store, 5, queues=["a", "b"])] == [other]
