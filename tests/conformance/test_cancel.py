"""Cancel: queued and waiting jobs at once, held ones by request.

After `cancelled` a job never starts; after `requested` it never succeeds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.errors import Outdated
from tenure.model.ids import JobId, Token, new_job_id
from tenure.model.outcome import Beat, Completed, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.state import TERMINAL, State
from tenure.store.contract import Cancel, Heartbeat
from tenure.store.queries import ListAudit
from tests.conformance.acts import (
    Subject,
    attempts,
    bring,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    get,
    hold,
    letters,
    offer,
    reap,
    settle,
)
from tests.conformance.engines import SteeredClock


@pytest.mark.parametrize("state", [State.QUEUED, State.WAITING])
def test_a_job_that_nobody_holds_is_cancelled_at_once(store: Subject, clock: SteeredClock, state: State) -> None:
    job = bring(store, state)

    answer = cancel(store, job.id)

    assert (answer.job_id, answer.answer, answer.state) == (job.id, "cancelled", "cancelled")
    after = get(store, job.id)
    assert (after.state, after.finished_at) == (State.CANCELLED, clock.now())
    assert claim(store) == []


def test_a_delayed_job_is_cancelled_before_its_time(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, delay_seconds=60)

    assert cancel(store, job_id).answer == "cancelled"

    clock.advance(61)
    assert claim(store) == []


def test_a_held_job_is_asked_to_stop_and_its_worker_learns_of_it(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    clock.advance(1)

    answer = cancel(store, job_id)

    assert (answer.answer, answer.state) == ("requested", "running")
    job = get(store, job_id)
    assert (job.state, job.cancel_requested_at) == (State.RUNNING, clock.now())
    beat = store.do(Heartbeat([hold(grant)]))
    assert beat == Beat(cancel_requested=frozenset({job_id}))


ENDS: dict[str, Callable[[JobId, Token], Outcome]] = {
    "Completed": lambda job_id, token: Completed(job_id, token, result="1"),
    "Failed": lambda job_id, token: Failed(job_id, token, "boom"),
    "Rejected": lambda job_id, token: Rejected(job_id, token, "never"),
    "Released": Released,
    "Suspended": lambda job_id, token: Suspended(job_id, token, "event"),
    "Stopped": Stopped,
}


@pytest.mark.parametrize("name", ENDS)
def test_every_end_of_a_job_that_was_asked_to_stop_is_cancelled(store: Subject, name: str) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    cancel(store, job_id)

    answer = settle(store, ENDS[name](job_id, grant.token))

    assert answer.state == "cancelled"
    job = get(store, job_id)
    assert (job.state, job.result) == (State.CANCELLED, None)
    assert [attempt.outcome for attempt in attempts(store, job_id)] == ["cancelled"]
    assert letters(store, job_id) == []
    assert claim(store) == []


def test_the_last_attempt_of_a_job_that_was_asked_to_stop_leaves_no_dead_letter(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=1)
    grant = claim_one(store)
    cancel(store, job_id)

    assert settle(store, Failed(job_id, grant.token, "boom")).state == "cancelled"

    assert letters(store, job_id) == []


def test_a_job_that_was_asked_to_stop_and_lost_its_worker_is_cancelled_by_the_reaper(
    store: Subject, clock: SteeredClock
) -> None:
    job_id = enqueue(store)
    claim_one(store, lease_seconds=10)
    cancel(store, job_id)
    clock.advance(11)

    assert [(settled.job_id, settled.state) for settled in reap(store)] == [(job_id, "cancelled")]

    assert get(store, job_id).state is State.CANCELLED
    assert claim(store) == []


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_job_refuses_and_says_where_it_stands(store: Subject, state: State) -> None:
    job = bring(store, state)

    answer = cancel(store, job.id)

    assert (answer.answer, answer.state) == ("refused", state.value)
    assert get(store, job.id) == job


def test_an_unknown_job_is_refused_without_a_state(store: Subject) -> None:
    answer = cancel(store, new_job_id())

    assert (answer.answer, answer.state) == ("refused", None)


def test_a_batch_is_answered_in_order(store: Subject) -> None:
    running = bring(store, State.RUNNING)
    queued = bring(store, State.QUEUED)
    ids = [queued.id, new_job_id(), running.id]

    answers = store.do(Cancel(ids, actor="ops", reason="clean-up"))

    assert [answer.job_id for answer in answers] == ids
    assert [answer.answer for answer in answers] == ["cancelled", "refused", "requested"]


def test_repeating_a_request_to_stop_is_harmless(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    claim_one(store)
    cancel(store, job_id)
    first = get(store, job_id).cancel_requested_at
    clock.advance(5)

    assert cancel(store, job_id).answer == "requested"

    assert get(store, job_id).cancel_requested_at == first


@pytest.mark.parametrize("state", [State.QUEUED, State.WAITING, State.RUNNING])
def test_a_job_that_has_not_changed_since_it_was_read_is_cancelled(store: Subject, state: State) -> None:
    job = bring(store, state)

    assert cancel(store, job.id, {job.id: job.version}).answer in ("cancelled", "requested")


def test_a_job_that_was_claimed_since_it_was_read_is_left_alone_and_so_is_the_whole_batch(store: Subject) -> None:
    job_id = enqueue(store)
    read = get(store, job_id)
    grant = claim_one(store)
    other = enqueue(store)

    with pytest.raises(Outdated, match=f"{job_id} has changed since it was read"):
        store.do(Cancel([other, job_id], actor="ops", reason="not needed", versions={job_id: read.version}))

    assert get(store, other).state is State.QUEUED
    assert get(store, job_id).cancel_requested_at is None
    assert store.do(ListAudit(subject=other)) == store.do(ListAudit(subject=job_id)) == []
    assert complete(store, grant).state == "succeeded"


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.DEAD])
def test_a_job_that_ended_since_it_was_read_is_outdated(store: Subject, state: State) -> None:
    job = bring(store, state)

    with pytest.raises(Outdated):
        cancel(store, job.id, {job.id: "0.0"})


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING])
def test_a_repeated_cancel_of_a_job_that_was_read_answers_that_it_is_done(
    store: Subject, clock: SteeredClock, state: State
) -> None:
    job = bring(store, state)
    first = cancel(store, job.id, {job.id: job.version})
    clock.advance(5)

    again = cancel(store, job.id, {job.id: job.version})

    assert again.state == first.state
    assert (first.answer, again.answer) in [("cancelled", "refused"), ("requested", "requested")]


def test_an_unknown_job_with_a_version_is_refused_without_a_state(store: Subject) -> None:
    job_id = new_job_id()

    assert cancel(store, job_id, {job_id: "1.1"}).state is None


def test_a_cancel_leaves_an_audit_row_with_actor_and_reason(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)

    store.do(Cancel([job_id], actor="ann", reason="typo"))

    [row] = store.do(ListAudit(subject=job_id))
    assert (row.actor, row.reason, row.subject, row.at) == ("ann", "typo", job_id, clock.now())
    assert row.act == "cancel"


def test_a_cancelled_job_gives_its_active_key_free(store: Subject) -> None:
    job_id = enqueue(store, key="k")
    cancel(store, job_id)

    assert not offer(store, key="k").duplicate


def test_a_cancelled_job_that_was_held_gives_its_active_key_free_when_it_ends(store: Subject) -> None:
    job_id = enqueue(store, key="k")
    grant = claim_one(store)
    cancel(store, job_id)
    assert offer(store, key="k").duplicate

    complete(store, grant)

    assert not offer(store, key="k").duplicate
