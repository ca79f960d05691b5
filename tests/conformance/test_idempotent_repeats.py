"""Safe to repeat: after a lost reply the same request does no harm and answers as it did the first time."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.errors import InvalidArgument
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import Enqueued
from tenure.model.outcome import Completed, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.store.contract import Claim, Enqueue, Exchange, Heartbeat, Settle
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
    hold,
    letters,
    make_queue,
    new_job,
    release,
    settle,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")

ENDS = ("complete", "fail", "reject", "release", "suspend", "stop")


def an_end(name: str, job_id: JobId, token: Token) -> Outcome:
    match name:
        case "complete":
            return Completed(job_id, token, result="1")
        case "fail":
            return Failed(job_id, token, "boom")
        case "reject":
            return Rejected(job_id, token, "never")
        case "release":
            return Released(job_id, token, 5)
        case "suspend":
            return Suspended(job_id, token, "event", 5)
        case _:
            return Stopped(job_id, token)


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("asked_to_stop", [False, True])
def test_a_repeated_end_answers_as_the_first_and_changes_nothing(
    store: Subject, clock: SteeredClock, name: str, asked_to_stop: bool
) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    if asked_to_stop:
        cancel(store, job_id)
    request = Settle([an_end(name, job_id, grant.token)])
    first = store.do(request)
    before = (get(store, job_id), attempts(store, job_id), letters(store, job_id))
    clock.advance(1)

    again = store.do(request)

    assert again == first
    assert not first[0].lost
    assert (get(store, job_id), attempts(store, job_id), letters(store, job_id)) == before


@pytest.mark.parametrize("name", ["fail", "release"])
def test_a_repeated_end_answers_as_the_first_even_after_the_next_grant(
    store: Subject, clock: SteeredClock, name: str
) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    first = settle(store, an_end(name, job_id, grant.token))
    clock.advance(3600)
    claim_one(store, "w2")
    before = get(store, job_id)

    again = settle(store, an_end(name, job_id, grant.token))

    assert again.state == first.state
    assert get(store, job_id) == before


def test_another_end_than_the_one_that_was_taken_in_changes_nothing(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    complete(store, grant)
    before = get(store, job_id)

    assert fail(store, grant).lost
    assert release(store, grant).lost

    assert get(store, job_id) == before
    assert attempts(store, job_id) == []


def test_a_success_after_a_failure_with_the_same_token_is_refused(store: Subject) -> None:
    make_queue(store, backoff=NO_BACKOFF)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, queue="q")
    fail(store, grant)
    before = get(store, job_id)

    assert complete(store, grant).lost

    assert get(store, job_id) == before


def test_an_end_sent_twice_in_one_batch_counts_once(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    answers = store.do(Settle([Failed(job_id, grant.token, "boom"), Failed(job_id, grant.token, "boom")]))

    assert [answer.state for answer in answers] == ["queued", "queued"]
    assert len(attempts(store, job_id)) == 1


def test_a_claim_whose_reply_was_lost_grants_the_same_again_with_the_same_token(store: Subject) -> None:
    ids = enqueue_many(store, 3)
    lost = claim(store, 2)

    again = claim(store, 2, held=[])

    assert [(grant.id, grant.token, grant.attempt) for grant in again] == [
        (grant.id, grant.token, grant.attempt) for grant in lost
    ]
    assert [grant.payload for grant in again] == [{}, {}]
    assert get(store, ids[2]).attempt == 0
    assert complete(store, again[0]).state == "succeeded"


def test_what_the_worker_knows_it_holds_is_not_granted_again(store: Subject) -> None:
    enqueue_many(store, 3)
    [known] = claim(store, 1)
    [lost] = claim(store, 1)

    again = claim(store, 5, held=[known.id])

    assert next((grant.id, grant.token) for grant in again) == (lost.id, lost.token)
    assert known.id not in [grant.id for grant in again]
    assert len(again) == 2


def test_a_grant_whose_reply_was_lost_comes_before_anything_new(store: Subject) -> None:
    [first] = enqueue_many(store, 1)
    claim(store, 1)
    enqueue(store, priority=99)

    assert [grant.id for grant in claim(store, 1, held=[])] == [first]


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_jobs_granted_again_count_against_the_limit(store: Subject, limit: int) -> None:
    enqueue_many(store, 4)
    lost = claim(store, 3)

    again = claim(store, limit, held=[])

    assert [(grant.id, grant.token) for grant in again] == [(grant.id, grant.token) for grant in lost[:limit]]


@pytest.mark.parametrize("strict", [False, True])
def test_jobs_granted_again_come_in_claim_order_and_before_new_work_of_a_better_rank(
    store: Subject, clock: SteeredClock, strict: bool
) -> None:
    make_queue(store, "other", backoff=NO_BACKOFF)
    low = enqueue(store, priority=1)
    claim(store, 1)
    clock.advance(1)
    high = enqueue(store, priority=5)
    claim(store, 1)
    middle = enqueue(store, queue="other", priority=3)
    claim(store, 1, queues=["other"])
    new = enqueue(store, queue="other", priority=9)
    newer = enqueue(store, priority=8)

    again = claim(store, 9, queues=["other", "default"], strict=strict, held=[])

    assert [grant.id for grant in again] == [high, middle, low, new, newer]
    assert [grant.attempt for grant in again] == [1, 1, 1, 1, 1]


def test_jobs_of_other_workers_are_not_granted_again(store: Subject) -> None:
    enqueue(store)
    claim(store, 1, worker="w2")

    assert claim(store, 5, worker="w1", held=[]) == []


def test_a_grant_whose_lease_ran_out_is_not_granted_again_with_its_old_token(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, backoff=NO_BACKOFF)
    enqueue(store, queue="q")
    [lost] = claim(store, queues=["q"], lease_seconds=10)
    clock.advance(10)

    [again] = claim(store, queues=["q"], held=[])

    assert (again.token, again.attempt) == (lost.token + 1, 2)


def test_a_repeated_exchange_settles_once_and_grants_the_same(store: Subject) -> None:
    first, second = enqueue_many(store, 2)
    grant = claim_one(store)
    outcome = Completed(first, grant.token)
    worker = WorkerId("w1")
    one = store.do(Exchange([outcome], Claim(worker, ["default"], limit=1)))

    again = store.do(Exchange([outcome], Claim(worker, ["default"], limit=1, held=[])))

    assert again.settled == one.settled == {}
    assert [(g.id, g.token) for g in again.grants] == [(g.id, g.token) for g in one.grants] == [(second, 1)]


def test_a_repeated_heartbeat_answers_the_same(store: Subject) -> None:
    enqueue_many(store, 2)
    one, two = claim(store, 2)
    complete(store, two)
    request = Heartbeat([hold(one, progress="[1]"), hold(two)])

    assert store.do(request) == store.do(request)


def test_a_repeated_enqueue_with_a_key_answers_as_the_first_while_its_job_runs(store: Subject) -> None:
    request = Enqueue([new_job(key="k"), new_job(key="k"), new_job()])
    first = store.do(request)
    claim(store, 5)

    assert store.do(request) == first


@pytest.mark.parametrize("other", [{"payload": {"b": 2}}, {"queue": "q2"}, {"kind": "other"}])
def test_an_id_that_belongs_to_another_job_is_refused(store: Subject, other: dict[str, Any]) -> None:
    """V15: it was answered as created, and the job was never there."""
    make_queue(store, "q2")
    first = new_job(payload={"a": 1})
    store.do(Enqueue([first]))
    second = new_job(**({"payload": {"a": 1}} | other))
    second.id = first.id

    with pytest.raises(InvalidArgument, match=first.id):
        store.do(Enqueue([new_job(), second]))

    assert get(store, first.id).payload == {"a": 1}


def test_a_repeat_that_spells_its_payload_otherwise_is_still_a_repeat(store: Subject) -> None:
    first = new_job(payload={"a": 1, "b": 2})
    store.do(Enqueue([first]))
    first.payload = '{"b": 2,   "a": 1}'

    assert store.do(Enqueue([first])) == [Enqueued(first.id)]
