"""Retention: the payload goes, the row stays; later, if asked, the row goes too. Dead letters are never touched."""

from __future__ import annotations

import pytest

from tenure.model.ids import WorkerId
from tenure.model.outcome import EffectRecord
from tenure.model.state import ACTIVE, State
from tenure.store.contract import Heartbeat, Prune, Reap, WorkerRow
from tenure.store.queries import ListEffects, ListEvents, ListWorkers
from tenure.store.summary import PruneLag
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    attempts,
    bring,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    exists,
    fail,
    get,
    letters,
    make_queue,
)
from tests.conformance.engines import SteeredClock

DAY = 86_400.0


def test_a_job_that_ended_long_ago_loses_payload_result_and_error_but_not_its_row(
    store: Subject, clock: SteeredClock
) -> None:
    job_id = enqueue(store, payload={"secret": "s"})
    fail(store, claim_one(store), "with s inside", retry_after_seconds=0)
    complete(store, claim_one(store), result='{"secret": "s"}')
    clock.advance(8 * DAY)

    pruned = store.do(Prune())

    assert (pruned.cleaned, pruned.deleted, pruned.more) == (1, 0, False)
    job = get(store, job_id)
    assert (job.state, job.payload, job.result, job.last_error) == (State.SUCCEEDED, None, None, None)
    assert (job.cleaned_at, job.shown_state) == (clock.now(), "cleaned")
    assert (job.attempt, job.kind, job.queue) == (2, "work", "default")


def test_each_queue_keeps_for_as_long_as_it_says(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "short", retain_seconds=10)
    make_queue(store, "long", retain_seconds=1000)
    make_queue(store, "ever", retain_seconds=None)
    ids = {queue: bring(store, State.SUCCEEDED, queue).id for queue in ("short", "long", "ever")}

    clock.advance(10.5)
    assert store.do(Prune()).cleaned == 1
    assert get(store, ids["short"]).cleaned_at is not None

    clock.advance(1000)
    assert store.do(Prune()).cleaned == 1
    assert get(store, ids["long"]).cleaned_at is not None

    clock.advance(1000 * DAY)
    assert store.do(Prune()).cleaned == 0
    assert get(store, ids["ever"]).cleaned_at is None


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_a_job_that_has_not_ended_is_never_touched(store: Subject, state: State) -> None:
    make_queue(store, start_on_claim=state is not State.LEASED, retain_seconds=0)
    job = bring(store, state, "q")

    pruned = store.do(Prune(older_than_seconds=0, delete_after_seconds=0))

    assert (pruned.cleaned, pruned.deleted) == (0, 0)
    assert get(store, job.id) == job


def test_an_age_given_by_the_caller_wins_over_the_queues(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, retain_seconds=None)
    job = bring(store, State.SUCCEEDED, "q")
    clock.advance(5)

    assert store.do(Prune(older_than_seconds=10)).cleaned == 0
    assert store.do(Prune(older_than_seconds=1)).cleaned == 1

    assert get(store, job.id).cleaned_at is not None


def test_a_prune_takes_no_more_than_its_limit_and_says_that_there_is_more(store: Subject, clock: SteeredClock) -> None:
    ids = enqueue_many(store, 5)
    for job_id in ids:
        cancel(store, job_id)
    clock.advance(8 * DAY)

    first = store.do(Prune(limit=2))
    rest = [store.do(Prune(limit=2)) for _ in range(2)]

    assert (first.cleaned, first.more) == (2, True)
    assert sum(pruned.cleaned for pruned in rest) == 3
    assert all(get(store, job_id).cleaned_at is not None for job_id in ids)
    assert store.do(Prune(limit=2)).cleaned == 0


def test_cleaned_rows_are_deleted_with_their_attempts_and_events_when_asked(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, events=True)
    job_id = enqueue(store, queue="q")
    fail(store, claim_one(store, queue="q"), retry_after_seconds=0)
    complete(store, claim_one(store, queue="q"))
    clock.advance(8 * DAY)
    store.do(Prune())
    assert attempts(store, job_id) != []

    clock.advance(100 * DAY)
    pruned = store.do(Prune(delete_after_seconds=30 * DAY))

    assert pruned.deleted == 1
    assert not exists(store, job_id)
    assert attempts(store, job_id) == []
    assert store.do(ListEvents(job_id=job_id)) == []


def test_a_deleted_row_takes_its_attempts_effects_and_events_along(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, events=True, backoff=NO_BACKOFF)
    gone = enqueue(store, queue="q")
    fail(store, claim_one(store, queue="q"))
    complete(store, claim_one(store, queue="q"), effects=(EffectRecord("mail", "confirmed"),))
    kept = enqueue(store, queue="q")
    clock.advance(40 * DAY)
    grant = claim_one(store, queue="q")
    complete(store, grant, effects=(EffectRecord("mail", "confirmed"),))

    assert store.do(Prune(delete_after_seconds=30 * DAY)).deleted == 1

    assert (exists(store, gone), exists(store, kept)) == (False, True)
    assert attempts(store, gone) == []
    assert store.do(ListEvents(job_id=gone)) == []
    assert [effect.job_id for effect in store.do(ListEffects()).items] == [kept]


def test_a_row_that_was_not_cleaned_is_not_deleted(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, retain_seconds=None)
    job = bring(store, State.SUCCEEDED, "q")
    clock.advance(100 * DAY)

    store.do(Prune(delete_after_seconds=0))

    assert exists(store, job.id)


@pytest.mark.parametrize("state", [State.DEAD, State.FAILED])
def test_a_job_with_an_open_dead_letter_keeps_its_payload(store: Subject, clock: SteeredClock, state: State) -> None:
    job = bring(store, state)
    clock.advance(1000 * DAY)

    assert store.do(Prune()).cleaned == 0

    assert get(store, job.id) == job
    assert len(letters(store, job.id)) == 1


def test_open_dead_letters_do_not_keep_a_limited_prune_from_the_rest(store: Subject, clock: SteeredClock) -> None:
    for _ in range(3):
        bring(store, State.DEAD)
    done = bring(store, State.SUCCEEDED)
    clock.advance(8 * DAY)

    for _ in range(5):
        store.do(Prune(limit=2))

    assert get(store, done.id).cleaned_at is not None


def test_workers_that_were_not_seen_for_long_go_and_what_they_held_is_taken_back(
    store: Subject, clock: SteeredClock
) -> None:
    job_id = enqueue(store)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("w1"), "host", 1)))
    claim_one(store, "w1", lease_seconds=DAY)
    clock.advance(DAY - 1)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("w2"), "host", 2)))
    clock.advance(2)

    assert store.do(Prune()).workers == 0, "its lease has run out and was not taken back yet"
    store.do(Reap())
    assert store.do(Prune()).workers == 1
    assert [seen.row.id for seen in store.do(ListWorkers())] == ["w2"]
    assert get(store, job_id).state is State.QUEUED
    assert [attempt.failure_class for attempt in attempts(store, job_id)] == ["crash"]


def test_the_lag_of_retention_is_that_of_the_oldest_job_that_should_have_been_cleaned(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, "kept", retain_seconds=None)
    make_queue(store, "short", retain_seconds=10)
    for queue in ("kept", "short"):
        enqueue(store, queue=queue)
        complete(store, claim_one(store, queue=queue))
    enqueue(store, max_attempts=1)
    fail(store, claim_one(store), "boom")
    assert store.do(PruneLag()) == 0

    clock.advance(8 * DAY)

    assert store.do(PruneLag()) == pytest.approx(8 * DAY - 10)
    store.do(Prune())
    assert store.do(PruneLag()) == 0, "a dead letter that is open keeps its job on purpose"


def test_a_repeated_prune_finds_nothing_more(store: Subject, clock: SteeredClock) -> None:
    bring(store, State.SUCCEEDED)
    clock.advance(8 * DAY)

    assert store.do(Prune()).cleaned == 1
    again = store.do(Prune())

    assert (again.cleaned, again.deleted, again.more) == (0, 0, False)
    assert claim(store) == []
