"""Revive and clone: an operator's act, with actor and reason."""

from __future__ import annotations

import pytest

from tenure.errors import IllegalMove, NotFound, Outdated
from tenure.model.ids import new_job_id
from tenure.model.outcome import Triage
from tenure.model.state import State
from tenure.store.admin import TriageDeadLetters
from tenure.store.contract import Clone, Prune, Revive
from tenure.store.queries import ListAudit
from tests.conformance.acts import (
    Subject,
    bring,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    exists,
    fail,
    get,
    letters,
    make_queue,
    offer,
    revive,
)
from tests.conformance.engines import SteeredClock


@pytest.mark.parametrize("state", [State.FAILED, State.DEAD, State.CANCELLED])
def test_a_revived_job_is_queued_as_if_new_with_its_token_kept(
    store: Subject, clock: SteeredClock, state: State
) -> None:
    job = bring(store, state)
    clock.advance(100)

    answer = revive(store, job.id)

    assert (answer.job_id, answer.state) == (job.id, "queued")
    after = get(store, job.id)
    assert (after.state, after.attempt, after.crashes, after.token) == (State.QUEUED, 0, 0, job.token)
    assert (after.run_at, after.finished_at, after.payload) == (clock.now(), None, job.payload)
    assert after.cancel_requested_at is None
    assert after.shown_state == "queued"
    grant = claim_one(store)
    assert (grant.id, grant.token, grant.attempt) == (job.id, job.token + 1, 1)


def test_a_revived_job_that_was_asked_to_stop_before_can_succeed(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    cancel(store, job_id)
    complete(store, grant)
    revive(store, job_id)

    assert complete(store, claim_one(store)).state == "succeeded"


def test_a_revive_marks_the_pending_dead_letter_as_replayed(store: Subject) -> None:
    job = bring(store, State.DEAD)

    revive(store, job.id)

    [letter] = letters(store, job.id)
    assert (letter.triage, letter.triaged_by) == ("manual_replay", "ops")


def test_a_revive_leaves_a_dead_letter_that_somebody_closed(store: Subject) -> None:
    job = bring(store, State.DEAD)
    [letter] = letters(store, job.id)
    store.do(TriageDeadLetters([letter.id], Triage.CLOSED, actor="ann"))

    revive(store, job.id)

    assert [row.triage for row in letters(store, job.id)] == ["closed"]


def test_a_revived_job_may_die_again_with_a_dead_letter_of_its_own(store: Subject) -> None:
    job = bring(store, State.DEAD)
    revive(store, job.id)

    fail(store, claim_one(store), "again")

    assert sorted(letter.final_error for letter in letters(store, job.id)) == ["again", "boom"]


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING, State.SUCCEEDED])
def test_a_job_that_has_not_ended_badly_is_left_alone(store: Subject, state: State) -> None:
    job = bring(store, state)

    assert revive(store, job.id).state is None

    assert get(store, job.id) == job


def test_an_unknown_job_is_answered_with_no_state(store: Subject) -> None:
    assert revive(store, new_job_id()).state is None


def test_a_queue_that_allows_only_clones_refuses_to_revive(store: Subject) -> None:
    make_queue(store, revive="clone")
    job = bring(store, State.DEAD, "q")

    assert revive(store, job.id).state is None

    assert get(store, job.id) == job


def test_a_job_whose_payload_was_pruned_stays_ended(store: Subject, clock: SteeredClock) -> None:
    job = bring(store, State.CANCELLED)
    clock.advance(1)
    store.do(Prune(older_than_seconds=0))
    assert get(store, job.id).cleaned_at is not None

    assert revive(store, job.id).state is None

    assert get(store, job.id).state is State.CANCELLED


def test_a_job_whose_key_is_held_by_another_stays_ended(store: Subject) -> None:
    job_id = enqueue(store, key="k")
    cancel(store, job_id)
    other = enqueue(store, key="k")

    assert revive(store, job_id).state is None

    assert (get(store, job_id).state, get(store, other).state) == (State.CANCELLED, State.QUEUED)


def test_of_two_jobs_with_one_key_revived_together_one_comes_back(store: Subject) -> None:
    first = enqueue(store, key="k")
    cancel(store, first)
    second = enqueue(store, key="k")
    cancel(store, second)

    answers = store.do(Revive([first, second], actor="ops", reason="both"))

    assert sorted(answer.state or "refused" for answer in answers) == ["queued", "refused"]
    assert sorted(get(store, job_id).state for job_id in (first, second)) == [State.CANCELLED, State.QUEUED]


def test_a_revived_job_takes_its_active_key_again(store: Subject) -> None:
    job_id = enqueue(store, key="k")
    cancel(store, job_id)
    revive(store, job_id)

    answer = offer(store, key="k")

    assert (answer.id, answer.duplicate) == (job_id, True)


def test_a_batch_is_answered_in_order_with_an_audit_row_per_job(store: Subject) -> None:
    dead, running = bring(store, State.DEAD), bring(store, State.RUNNING)

    answers = store.do(Revive([running.id, dead.id], actor="ann", reason="fixed the bug"))

    assert [(answer.job_id, answer.state) for answer in answers] == [(running.id, None), (dead.id, "queued")]
    for job in (dead, running):
        [row] = [row for row in store.do(ListAudit(subject=job.id)) if row.act == "revive"]
        assert (row.actor, row.reason) == ("ann", "fixed the bug")
    [refused] = store.do(ListAudit(subject=running.id))
    assert refused.detail["why"]


@pytest.mark.parametrize("state", [State.FAILED, State.DEAD, State.CANCELLED])
def test_a_job_that_has_not_changed_since_it_was_read_is_revived(store: Subject, state: State) -> None:
    job = bring(store, state)

    assert revive(store, job.id, {job.id: job.version}).state == "queued"


def test_a_job_that_was_revived_since_it_was_read_is_left_alone_and_so_is_the_whole_batch(
    store: Subject, clock: SteeredClock
) -> None:
    first, second = bring(store, State.DEAD), bring(store, State.DEAD)
    clock.advance(1)
    revive(store, second.id)
    fail(store, claim_one(store))
    ended = get(store, second.id)

    with pytest.raises(Outdated, match=f"{second.id} has changed since it was read"):
        store.do(Revive([first.id, second.id], "ops", "fixed", versions={j.id: j.version for j in (first, second)}))

    assert (get(store, first.id), get(store, second.id)) == (first, ended)


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED])
def test_a_clone_of_an_ended_job_is_a_new_job_with_the_original_as_parent(store: Subject, state: State) -> None:
    make_queue(store, revive="clone")
    original = bring(store, state, "q")
    new_id = new_job_id()

    [answer] = store.do(Clone({original.id: new_id}, actor="ann", reason="once more"))

    assert (answer.id, answer.duplicate) == (new_id, False)
    clone = get(store, new_id)
    assert (clone.state, clone.attempt, clone.token, clone.parent_id) == (State.QUEUED, 0, 0, original.id)
    assert (clone.payload, clone.kind, clone.queue, clone.priority, clone.max_attempts) == (
        original.payload,
        original.kind,
        original.queue,
        original.priority,
        original.max_attempts,
    )
    assert get(store, original.id) == original
    assert [grant.id for grant in claim(store, queues=["q"])] == [new_id]


def test_a_repeated_clone_makes_no_second_copy(store: Subject) -> None:
    original = bring(store, State.DEAD)
    request = Clone({original.id: new_job_id()}, actor="ann", reason="once more")

    assert store.do(request) == store.do(request)

    assert len(claim(store, 10)) == 1


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING])
def test_a_job_that_has_not_ended_cannot_be_cloned(store: Subject, state: State) -> None:
    job = bring(store, state)
    new_id = new_job_id()

    with pytest.raises(IllegalMove):
        store.do(Clone({job.id: new_id}, actor="ann", reason="once more"))

    assert not exists(store, new_id)


def test_an_unknown_job_cannot_be_cloned(store: Subject) -> None:
    with pytest.raises(NotFound):
        store.do(Clone({new_job_id(): new_job_id()}, actor="ann", reason="once more"))


def test_a_job_whose_payload_was_pruned_cannot_be_cloned(store: Subject, clock: SteeredClock) -> None:
    job = bring(store, State.SUCCEEDED)
    clock.advance(1)
    store.do(Prune(older_than_seconds=0))

    with pytest.raises(IllegalMove):
        store.do(Clone({job.id: new_job_id()}, actor="ann", reason="once more"))
