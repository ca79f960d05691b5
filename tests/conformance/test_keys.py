"""Keys: the unique index on the slot decides. A duplicate answers the id of the job that holds the key."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidArgument, KeyConflict, KeyRequired
from tenure.model.state import TERMINAL, State
from tenure.store.contract import Enqueue, Prune
from tests.conformance.acts import (
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    exists,
    fail,
    get,
    make_queue,
    new_job,
    offer,
    reject,
    suspend,
)
from tests.conformance.engines import SteeredClock


def end(store: Subject, state: State, queue: str) -> None:
    """End the only claimable job of the queue in the given way."""
    grant = claim_one(store, queue=queue)
    match state:
        case State.SUCCEEDED:
            complete(store, grant)
        case State.FAILED:
            reject(store, grant)
        case State.DEAD:
            fail(store, grant)
        case _:
            cancel(store, grant.id)
            complete(store, grant)


def test_a_taken_key_answers_the_job_that_holds_it(store: Subject) -> None:
    job_id = enqueue(store, key="k")
    second = new_job(key="k")

    [answer] = store.do(Enqueue([second]))

    assert (answer.id, answer.duplicate) == (job_id, True)
    assert not exists(store, second.id)


def test_jobs_without_a_key_are_never_duplicates(store: Subject) -> None:
    assert enqueue(store, payload={"n": 1}) != enqueue(store, payload={"n": 1})


def test_scope_active_holds_the_key_while_the_job_is_to_do(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, key="k")
    assert offer(store, key="k").duplicate  # queued

    grant = claim_one(store)
    assert offer(store, key="k").duplicate  # running

    suspend(store, grant, delay_seconds=5)
    assert offer(store, key="k").duplicate  # waiting

    clock.advance(6)
    fail(store, claim_one(store))
    assert offer(store, key="k") == offer(store, key="k")  # queued for a retry
    assert offer(store, key="k").id == job_id


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_scope_active_frees_the_key_when_the_job_ends(store: Subject, state: State) -> None:
    make_queue(store, max_attempts=1)
    first = enqueue(store, queue="q", key="k")
    end(store, state, "q")
    assert get(store, first).state is state

    second = enqueue(store, queue="q", key="k")

    assert second != first
    assert get(store, second).state is State.QUEUED
    assert get(store, first).key == "k"


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_scope_forever_keeps_the_key_after_the_end(store: Subject, clock: SteeredClock, state: State) -> None:
    make_queue(store, max_attempts=1, key_scope="forever")
    first = enqueue(store, queue="q", key="k")
    end(store, state, "q")
    clock.advance(365 * 86_400)

    answer = offer(store, queue="q", key="k")

    assert (answer.id, answer.duplicate) == (first, True)


def test_scope_forever_keeps_the_key_after_the_payload_was_pruned(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, key_scope="forever")
    first = enqueue(store, queue="q", key="k")
    end(store, State.SUCCEEDED, "q")
    clock.advance(30 * 86_400)
    assert store.do(Prune()).cleaned == 1

    assert offer(store, queue="q", key="k").id == first


def test_scope_window_keeps_the_key_for_the_window_whatever_becomes_of_the_job(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, key_scope="window", key_window_seconds=100)
    first = enqueue(store, queue="q", key="k")
    end(store, State.SUCCEEDED, "q")

    clock.advance(99)
    assert offer(store, queue="q", key="k").id == first

    clock.advance(1)  # to the moment when it ends
    second = offer(store, queue="q", key="k")
    assert not second.duplicate
    assert offer(store, queue="q", key="k").id == second.id


def test_a_job_named_twice_in_one_request_takes_a_free_window_once_and_is_no_duplicate(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, key_scope="window", key_window_seconds=100)
    enqueue(store, queue="q", key="a")
    clock.advance(100)
    second = new_job(queue="q", key="a")

    answers = store.do(Enqueue([second, second]))

    assert [(one.id, one.duplicate) for one in answers] == [(second.id, False)] * 2


def test_scope_window_lets_a_second_job_in_while_the_first_is_still_to_do(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, key_scope="window", key_window_seconds=100)
    first = enqueue(store, queue="q", key="k")
    clock.advance(101)

    second = enqueue(store, queue="q", key="k")

    assert [grant.id for grant in claim(store, 5, queues=["q"])] == [first, second]


def test_scope_none_does_not_look_at_keys(store: Subject) -> None:
    make_queue(store, key_scope="none")

    first, second = enqueue(store, queue="q", key="k"), enqueue(store, queue="q", key="k")

    assert first != second
    assert get(store, second).key == "k"


def test_space_kind_keeps_keys_of_different_kinds_apart(store: Subject) -> None:
    assert enqueue(store, "mail", key="k") != enqueue(store, "print", key="k")


def test_space_global_shares_keys_between_kinds(store: Subject) -> None:
    make_queue(store, key_space="global")
    first = enqueue(store, "mail", queue="q", key="k")

    answer = offer(store, "print", queue="q", key="k")

    assert (answer.id, answer.duplicate) == (first, True)


def test_queues_of_one_profile_share_their_keys(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    first = enqueue(store, queue="a", key="k")

    assert offer(store, queue="b", key="k").id == first


def test_profiles_keep_their_keys_apart(store: Subject) -> None:
    make_queue(store, "a", profile="outbox", key_space="global")
    make_queue(store, "b", profile="substrate", key_space="global")

    assert enqueue(store, queue="a", key="k") != enqueue(store, queue="b", key="k")


def test_two_jobs_with_one_key_in_a_batch_are_one_and_the_first_wins(store: Subject) -> None:
    first, second = new_job(key="k"), new_job(key="k")

    answers = store.do(Enqueue([first, second]))

    assert [(answer.id, answer.duplicate) for answer in answers] == [(first.id, False), (first.id, True)]
    assert not exists(store, second.id)


def test_another_payload_under_a_taken_key_is_a_conflict(store: Subject) -> None:
    first = enqueue(store, payload={"n": 1}, key="k")
    other, bystander = new_job(payload={"n": 2}, key="k"), new_job()

    with pytest.raises(KeyConflict) as caught:
        store.do(Enqueue([bystander, other]))

    assert first in str(caught.value)
    assert caught.value.code == "key_conflict"
    assert not exists(store, other.id)
    assert not exists(store, bystander.id)


def test_two_payloads_under_one_key_in_a_batch_are_a_conflict(store: Subject) -> None:
    jobs = [new_job(payload={"n": 1}, key="k"), new_job(payload={"n": 2}, key="k")]

    with pytest.raises(KeyConflict):
        store.do(Enqueue(jobs))

    assert claim(store) == []


def test_the_same_payload_in_another_spelling_is_no_conflict(store: Subject) -> None:
    first = enqueue(store, payload='{"a": 1, "b": [1, 2]}', key="k")

    answer = offer(store, payload='{ "b":[1,2],"a":1 }', key="k")

    assert (answer.id, answer.duplicate) == (first, True)


def test_another_payload_is_tolerated_where_the_policy_says_so(store: Subject) -> None:
    make_queue(store, key_conflict="tolerate")
    first = enqueue(store, payload={"n": 1}, queue="q", key="k")

    answer = offer(store, payload={"n": 2}, queue="q", key="k")

    assert (answer.id, answer.duplicate) == (first, True)
    assert get(store, first).payload == {"n": 1}


def test_a_key_is_asked_for_where_the_policy_requires_one(store: Subject) -> None:
    make_queue(store, key_required=True)
    job = new_job(queue="q")

    with pytest.raises(KeyRequired) as caught:
        store.do(Enqueue([job]))

    assert "'q'" in str(caught.value)
    assert not exists(store, job.id)
    assert enqueue(store, queue="q", key="k")


@pytest.mark.parametrize("key", ["ключ 🔑", "a|b", "a\x1fb", "x" * 1000, "'; DROP TABLE job; --", "%s"])
def test_any_text_can_be_a_key(store: Subject, key: str) -> None:
    first = enqueue(store, key=key)

    assert offer(store, key=key).id == first
    assert get(store, first).key == key
    assert not offer(store, key=key + "x").duplicate


def test_keys_cannot_be_made_to_meet_across_kinds(store: Subject) -> None:
    """A separator inside a kind or key must not let two different pairs share a slot: refused, or kept apart."""
    enqueue(store, "a", key="b\x1fc")

    try:
        answer = offer(store, "a\x1fb", key="c")
    except InvalidArgument:
        return
    assert not answer.duplicate


def test_a_duplicate_does_not_touch_the_job_that_holds_the_key(store: Subject, clock: SteeredClock) -> None:
    first = enqueue(store, key="k")
    before = get(store, first)
    clock.advance(5)

    offer(store, key="k", priority=9, max_attempts=9)

    assert get(store, first) == before
