"""Claim: up to `limit` due jobs under a lease; token + 1, attempt + 1; never one job to two claims."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.errors import InvalidArgument, UnknownQueue
from tenure.model.ids import Token, WorkerId
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Failed, Released
from tenure.model.state import State
from tenure.store.contract import Claim, Exchange, Settle
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    make_queue,
    release,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def test_a_claim_leases_the_job_and_starts_it_where_the_queue_starts_on_claim(
    store: Subject, clock: SteeredClock
) -> None:
    job_id = enqueue(store, payload={"n": 1})
    clock.advance(5)

    grant = claim_one(store, "w1")

    assert (grant.id, grant.token, grant.attempt, grant.max_attempts) == (job_id, 1, 1, 3)
    assert (grant.queue, grant.kind, grant.payload, grant.worker) == ("default", "work", {"n": 1}, "w1")
    assert grant.started
    assert grant.lease_until == clock.now() + timedelta(seconds=60)
    job = get(store, job_id)
    assert (job.state, job.token, job.attempt) == (State.RUNNING, 1, 1)
    assert (job.lease_owner, job.lease_until) == ("w1", grant.lease_until)
    assert job.claimed_at == job.started_at == job.updated_at == clock.now()


def test_a_claim_only_leases_where_the_queue_does_not_start_on_claim(store: Subject) -> None:
    make_queue(store, start_on_claim=False)
    job_id = enqueue(store, queue="q")

    grant = claim_one(store, queue="q")

    assert not grant.started
    job = get(store, job_id)
    assert (job.state, job.started_at) == (State.LEASED, None)
    assert job.claimed_at is not None


def test_a_claim_takes_no_more_than_its_limit_and_leaves_the_rest(store: Subject) -> None:
    ids = enqueue_many(store, 5)

    assert [grant.id for grant in claim(store, 2)] == ids[:2]
    assert [grant.id for grant in claim(store, 10, worker="w2")] == ids[2:]
    assert claim(store, 10) == []


def test_an_empty_queue_gives_nothing(store: Subject) -> None:
    assert claim(store, 10) == []


def test_the_token_rises_with_every_grant(store: Subject) -> None:
    enqueue(store, max_attempts=10)
    tokens = []

    for _ in range(4):
        grant = claim_one(store)
        tokens.append(grant.token)
        release(store, grant)

    assert tokens == [1, 2, 3, 4]


def test_a_lease_of_the_callers_length_is_given(store: Subject, clock: SteeredClock) -> None:
    enqueue(store)

    grant = claim_one(store, lease_seconds=7.5)

    assert grant.lease_until == clock.now() + timedelta(seconds=7.5)


@pytest.mark.parametrize("seconds", [0, -1.0, 86_401.0])
def test_a_lease_that_is_not_positive_or_beyond_the_policy_is_refused(store: Subject, seconds: float) -> None:
    job_id = enqueue(store)

    with pytest.raises(InvalidArgument, match="lease_seconds"):
        claim(store, lease_seconds=seconds)

    assert get(store, job_id).state is State.QUEUED


def test_the_longest_lease_a_queue_allows_is_given(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, lease_seconds=10, lease_max_seconds=20)
    enqueue(store, queue="q")

    assert claim_one(store, queue="q", lease_seconds=20).lease_until == clock.now() + timedelta(seconds=20)


def test_an_unknown_queue_is_refused(store: Subject) -> None:
    with pytest.raises(UnknownQueue):
        claim(store, queues=["default", "nope"])


def test_a_limit_below_zero_is_refused(store: Subject) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        claim(store, -1)


def test_an_expired_lease_is_taken_back_before_new_work(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF, priority_default=0)
    first = enqueue(store, queue="q")
    lost = claim_one(store, "w1", "q", lease_seconds=10)
    second = enqueue(store, queue="q")
    clock.advance(10)

    grants = claim(store, 10, worker="w2", queues=["q"])

    assert [grant.id for grant in grants] == [first, second]
    assert (grants[0].token, grants[0].attempt, grants[0].crashes) == (lost.token + 1, 2, 1)
    assert get(store, first).lease_owner == "w2"


def test_a_lease_lasts_to_its_last_microsecond_and_no_longer(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF)
    enqueue(store, queue="q")
    claim_one(store, "w1", "q", lease_seconds=10)

    clock.advance(9.999999)
    assert claim(store, worker="w2", queues=["q"]) == []

    clock.advance(0.000001)
    assert len(claim(store, worker="w2", queues=["q"])) == 1


def test_a_poison_job_is_dead_after_its_attempts_because_each_claim_counts(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF, max_attempts=3)
    job_id = enqueue(store, queue="q")

    for attempt in (1, 2, 3):
        assert claim_one(store, f"w{attempt}", "q", lease_seconds=10).attempt == attempt
        clock.advance(11)

    assert claim(store, queues=["q"]) == []
    job = get(store, job_id)
    assert (job.state, job.attempt, job.crashes) == (State.DEAD, 3, 3)


def test_a_retried_job_keeps_its_payload_and_shows_as_retry_waiting(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, payload={"n": 1})
    fail(store, claim_one(store))

    job = get(store, job_id)
    assert (job.state, job.shown_state) == (State.QUEUED, "retry_waiting")

    clock.advance(3600)
    assert claim_one(store).payload == {"n": 1}


def test_several_queues_are_merged_by_rank(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    low = enqueue(store, queue="a", priority=1)
    high = enqueue(store, queue="b", priority=5)
    middle = enqueue(store, queue="a", priority=3)

    assert [grant.id for grant in claim(store, 10, queues=["a", "b"])] == [high, middle, low]


def test_strict_queues_are_served_in_the_order_given(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    low = enqueue(store, queue="a", priority=1)
    high = enqueue(store, queue="b", priority=5)
    middle = enqueue(store, queue="a", priority=3)

    assert [grant.id for grant in claim(store, 10, queues=["a", "b"], strict=True)] == [middle, low, high]


def test_a_limited_claim_over_several_queues_takes_the_best_of_all(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    for priority in (1, 2, 3):
        enqueue(store, queue="a", priority=priority)
    best = [enqueue(store, queue="b", priority=priority) for priority in (9, 8)]

    assert [grant.id for grant in claim(store, 2, queues=["a", "b"])] == best


def test_a_queue_that_was_not_asked_for_gives_nothing(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    enqueue(store, queue="a")

    assert claim(store, queues=["b"]) == []


def test_one_exchange_settles_and_claims(store: Subject) -> None:
    first, second = enqueue_many(store, 2)
    grant = claim_one(store)

    answer = store.do(Exchange([_completed(grant)], _claim("default")))

    assert answer.settled == {}
    assert [granted.id for granted in answer.grants] == [second]
    assert answer.refused is None
    assert get(store, first).state is State.SUCCEEDED


def test_an_exchange_reports_every_end_that_is_no_plain_success(store: Subject) -> None:
    enqueue_many(store, 3)
    failing, stale, fine = claim(store, 3)
    complete(store, stale)

    answer = store.do(
        Exchange(
            [Failed(failing.id, failing.token, "boom"), Completed(stale.id, Token(99)), _completed(fine)],
            None,
        )
    )

    assert {grant: settled.state for grant, settled in answer.settled.items()} == {
        (failing.id, failing.token): "queued",
        (stale.id, 99): None,
    }
    assert answer.grants == []


@pytest.mark.parametrize("new_end", ["completed", "failed"])
def test_two_ends_of_one_job_get_an_answer_each(store: Subject, clock: SteeredClock, new_end: str) -> None:
    """The job was lost, came back to the same worker, and ended again before its first end was settled."""
    job_id = enqueue(store)
    lost = claim_one(store)
    clock.advance(61)
    held = claim_one(store)
    end = _completed(held) if new_end == "completed" else Failed(job_id, held.token, "boom")

    answer = store.do(Exchange([_completed(lost), end], None))

    states = {grant: settled.state for grant, settled in answer.settled.items()}
    expected = {(job_id, 1): None, (job_id, 2): "queued"}
    if new_end == "completed":
        del expected[job_id, 2]
    assert states == expected
    repeated = store.do(Settle([_completed(lost), end]))
    assert [(each.token, each.state) for each in repeated] == [
        (1, None),
        (2, "succeeded" if new_end == "completed" else "queued"),
    ]


def test_an_exchange_can_be_a_claim_alone(store: Subject) -> None:
    job_id = enqueue(store)

    answer = store.do(Exchange([], _claim("default")))

    assert [grant.id for grant in answer.grants] == [job_id]


def test_jobs_that_an_exchange_frees_can_be_granted_by_it(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)

    answer = store.do(Exchange([Released(grant.id, grant.token)], _claim("default")))

    assert [(granted.id, granted.token, granted.attempt) for granted in answer.grants] == [(grant.id, 2, 1)]


def _completed(grant: Grant) -> Completed:
    return Completed(grant.id, grant.token)


def _claim(queue: str) -> Claim:
    return Claim(worker=WorkerId("w1"), queues=[queue], limit=10)
