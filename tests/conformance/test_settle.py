"""Settle: one answer per outcome, each fenced by its own token, and one refusal does not stop the rest."""

from __future__ import annotations

import pytest

from tenure.model.ids import JobId, Token, new_job_id
from tenure.model.outcome import Completed, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.state import TERMINAL, State
from tenure.store.contract import Settle
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    attempts,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    letters,
    make_queue,
    reject,
    settle,
    stop,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")

ENDS: list[type[Outcome]] = [Completed, Failed, Rejected, Released, Suspended, Stopped]


def an_end(kind: type[Outcome], job_id: JobId, token: Token) -> Outcome:
    if kind is Completed:
        return Completed(job_id, token, result='{"late": true}')
    if kind is Failed:
        return Failed(job_id, token, "late")
    if kind is Rejected:
        return Rejected(job_id, token, "late")
    if kind is Released:
        return Released(job_id, token)
    if kind is Suspended:
        return Suspended(job_id, token, "late")
    return Stopped(job_id, token)


def test_a_completed_job_has_succeeded_with_its_result(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    clock.advance(3)

    answer = complete(store, grant, result='{"ok": true}', result_summary="fine", artifacts_path="/a/1")

    assert (answer.job_id, answer.token, answer.state, answer.lost) == (job_id, grant.token, "succeeded", False)
    job = get(store, job_id)
    assert (job.state, job.result, job.result_summary) == (State.SUCCEEDED, {"ok": True}, "fine")
    assert job.artifacts_path == "/a/1"
    assert job.finished_at == job.updated_at == clock.now()
    assert (job.lease_owner, job.lease_until) == (None, None)
    assert attempts(store, job_id) == []
    assert letters(store, job_id) == []


def test_a_completion_without_a_result_leaves_none(store: Subject) -> None:
    job_id = enqueue(store)

    complete(store, claim_one(store))

    assert get(store, job_id).result is None


def test_a_leased_job_can_be_completed_without_a_start(store: Subject) -> None:
    make_queue(store, start_on_claim=False)
    job_id = enqueue(store, queue="q")

    complete(store, claim_one(store, queue="q"))

    assert get(store, job_id).state is State.SUCCEEDED


def test_a_rejected_job_has_failed_at_once_with_attempts_left_and_a_dead_letter(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=5, payload={"n": 1})

    answer = reject(store, claim_one(store), "no such customer")

    assert answer.state == "failed"
    job = get(store, job_id)
    assert (job.state, job.attempt, job.last_error, job.failure_class) == (
        State.FAILED,
        1,
        "no such customer",
        "permanent",
    )
    [letter] = letters(store, job_id)
    assert (letter.state, letter.final_error, letter.payload) == (State.FAILED, "no such customer", {"n": 1})
    assert claim(store) == []


def test_a_stopped_job_is_cancelled(store: Subject) -> None:
    job_id = enqueue(store)

    assert stop(store, claim_one(store)).state == "cancelled"

    assert get(store, job_id).state is State.CANCELLED
    assert [attempt.outcome for attempt in attempts(store, job_id)] == ["cancelled"]


def test_a_batch_of_ends_is_answered_in_order(store: Subject) -> None:
    enqueue_many(store, 6)
    grants = claim(store, 6)
    outcomes = [an_end(kind, grant.id, grant.token) for kind, grant in zip(ENDS, grants, strict=True)]

    answers = store.do(Settle(outcomes))

    assert [answer.job_id for answer in answers] == [grant.id for grant in grants]
    assert [answer.state for answer in answers] == ["succeeded", "queued", "failed", "queued", "waiting", "cancelled"]


def test_one_refusal_does_not_stop_the_rest(store: Subject) -> None:
    enqueue_many(store, 3)
    one, two, three = claim(store, 3)

    answers = store.do(
        Settle([Completed(one.id, one.token), Completed(two.id, Token(77)), Failed(three.id, three.token, "boom")])
    )

    assert [answer.state for answer in answers] == ["succeeded", None, "queued"]
    assert answers[1].lost
    assert get(store, two.id).state is State.RUNNING


def test_an_empty_batch_is_answered_with_an_empty_list(store: Subject) -> None:
    assert store.do(Settle([])) == []


def test_an_unknown_job_is_answered_as_lost(store: Subject) -> None:
    assert settle(store, Completed(new_job_id(), Token(1))).lost


@pytest.mark.parametrize("kind", ENDS)
def test_a_worker_whose_job_passed_to_another_can_end_nothing(
    store: Subject, clock: SteeredClock, kind: type[Outcome]
) -> None:
    make_queue(store, backoff=NO_BACKOFF)
    job_id = enqueue(store, queue="q")
    old = claim_one(store, "w1", "q", lease_seconds=10)
    clock.advance(11)
    claim_one(store, "w2", "q", lease_seconds=60)
    before = get(store, job_id)

    answer = settle(store, an_end(kind, job_id, old.token))

    assert answer.lost
    assert get(store, job_id) == before


@pytest.mark.parametrize("kind", ENDS)
def test_a_worker_whose_lease_ran_out_can_end_nothing_even_if_nobody_took_the_job(
    store: Subject, clock: SteeredClock, kind: type[Outcome]
) -> None:
    job_id = enqueue(store)
    grant = claim_one(store, lease_seconds=10)
    clock.advance(10)
    before = get(store, job_id)

    answer = settle(store, an_end(kind, job_id, grant.token))

    assert answer.lost
    assert get(store, job_id) == before


@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("offset", [-1, 1, 1000])
def test_a_token_that_is_not_the_newest_ends_nothing(store: Subject, kind: type[Outcome], offset: int) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    before = get(store, job_id)

    answer = settle(store, an_end(kind, job_id, Token(grant.token + offset)))

    assert answer.lost
    assert get(store, job_id) == before
    assert attempts(store, job_id) == []


def test_a_lease_is_good_until_its_last_microsecond(store: Subject, clock: SteeredClock) -> None:
    enqueue(store)
    grant = claim_one(store, lease_seconds=10)
    clock.advance(9.999999)

    assert complete(store, grant).state == "succeeded"


@pytest.mark.parametrize("kind", ENDS)
def test_finished_at_is_set_exactly_when_the_job_has_ended(store: Subject, kind: type[Outcome]) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    settle(store, an_end(kind, job_id, grant.token))

    job = get(store, job_id)
    assert (job.finished_at is not None) == (job.state in TERMINAL)
    assert (job.lease_owner, job.lease_until) == (None, None)


def test_a_success_clears_the_trace_of_earlier_failures_from_the_shown_state(
    store: Subject, clock: SteeredClock
) -> None:
    job_id = enqueue(store)
    fail(store, claim_one(store), "first try")
    clock.advance(3600)

    complete(store, claim_one(store))

    job = get(store, job_id)
    assert (job.state, job.shown_state, job.attempt) == (State.SUCCEEDED, "succeeded", 2)
    assert [attempt.error for attempt in attempts(store, job_id)] == ["first try"]


def test_five_hundred_ends_go_as_one_batch(store: Subject) -> None:
    ids = enqueue_many(store, 500)
    grants = claim(store, 500)

    answers = store.do(Settle([Completed(grant.id, grant.token, result="[1]") for grant in grants]))

    assert [answer.job_id for answer in answers] == ids
    assert {answer.state for answer in answers} == {"succeeded"}
