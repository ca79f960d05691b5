"""Steps that are forgotten run again; and a job that has something to undo is queued for that before it ends badly."""

from __future__ import annotations

import json

import pytest

from tenure.errors import IllegalMove, NotFound
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Rejected, Stopped, Suspended
from tenure.model.state import State
from tenure.model.step import NewGroup, NewStep
from tenure.store.contract import Revive
from tenure.store.flow import ForgetSteps, GetGroup, ListSteps, RecordSteps
from tenure.store.queries import ListAudit
from tests.conformance.acts import (
    Subject,
    cancel,
    claim,
    claim_one,
    enqueue,
    fail,
    get,
    letters,
    new_job,
    reap,
    settle,
)
from tests.conformance.engines import SteeredClock


def record(store: Subject, grant: Grant, *steps: NewStep) -> None:
    assert store.do(RecordSteps(grant.id, grant.token, steps)) is not None


def keys(store: Subject, job_id: JobId) -> list[str]:
    return [step.key for step in store.do(ListSteps(job_id))]


def dead_with_steps(store: Subject) -> JobId:
    """A job that recorded a, b, c and died."""
    job_id = enqueue(store, max_attempts=1)
    grant = claim_one(store)
    record(store, grant, NewStep("a"), NewStep("b"), NewStep("c"))
    assert fail(store, grant).state == "dead"
    return job_id


# --- forgetting


def test_a_forgotten_step_is_gone_and_the_others_stay(store: Subject) -> None:
    job_id = dead_with_steps(store)

    assert store.do(ForgetSteps(job_id, "b", "ops", "wrong price")) == ["b"]

    assert keys(store, job_id) == ["a", "c"]
    [audit] = [row for row in store.do(ListAudit(subject=job_id)) if row.act == "forget_steps"]
    assert (audit.actor, audit.reason, audit.detail) == ("ops", "wrong price", {"keys": ["b"]})


def test_later_steps_are_forgotten_along_where_that_is_asked(store: Subject) -> None:
    job_id = dead_with_steps(store)

    assert store.do(ForgetSteps(job_id, "b", "ops", "redo", and_later=True)) == ["b", "c"]

    assert keys(store, job_id) == ["a"]


def test_a_job_that_waits_is_queued_when_a_step_is_forgotten_and_its_group_with_it(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    group = NewGroup("parts", (new_job("child"),))
    settle(store, Suspended(grant.id, grant.token, "parts", groups=(group,)))

    assert store.do(ForgetSteps(job_id, "parts", "ops", "redo")) == ["parts"]

    assert get(store, job_id).state is State.QUEUED
    assert store.do(GetGroup(group.id)) is None
    for found in claim(store, 5):
        settle(store, Rejected(found.id, found.token, "ends without a group"))


def test_what_is_not_there_or_is_held_is_not_forgotten(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    record(store, grant, NewStep("a"))

    with pytest.raises(NotFound):
        store.do(ForgetSteps(job_id, "b", "ops", "x"))
    with pytest.raises(NotFound):
        store.do(ForgetSteps(new_job_id(), "a", "ops", "x"))
    with pytest.raises(IllegalMove):
        store.do(ForgetSteps(job_id, "a", "ops", "x"))
    assert keys(store, job_id) == ["a"]


def test_a_revive_keeps_steps_or_begins_at_one(store: Subject) -> None:
    job_id = dead_with_steps(store)

    [lacking] = store.do(Revive([job_id], "ops", "x", from_step="nothing"))
    assert lacking.state is None
    [kept] = store.do(Revive([job_id], "ops", "x"))
    assert (kept.state, keys(store, job_id)) == ("queued", ["a", "b", "c"])
    grant = claim_one(store)
    settle(store, Rejected(grant.id, grant.token, "again"))

    store.do(Revive([job_id], "ops", "x", from_step="b"))

    assert [step.key for step in claim_one(store).steps] == ["a"]


# --- undoing


def armed(store: Subject, max_attempts: int = 1) -> Grant:
    """A held job with something to undo."""
    enqueue(store, max_attempts=max_attempts)
    grant = claim_one(store)
    record(store, grant, NewStep("undo/hold", "undo", "armed"), NewStep("hold", value="7"))
    return grant


def end_of(store: Subject, job_id: JobId) -> object:
    [undoing] = [step for step in store.do(ListSteps(job_id)) if step.key == "$undoing"]
    return json.loads(undoing.value or "")


def test_a_job_with_something_to_undo_is_queued_before_it_dies(store: Subject, clock: SteeredClock) -> None:
    grant = armed(store)

    assert fail(store, grant, "boom").state == "queued"

    assert end_of(store, grant.id) == {"end": "failed", "error": "boom", "class": "error"}
    assert letters(store) == []
    again = claim_one(store)
    assert (again.attempt, "$undoing" in [step.key for step in again.steps]) == (1, True)
    record(store, again, NewStep("undo/hold", "undo", "undone"))
    assert settle(store, Rejected(again.id, again.token, "boom")).state == "failed"
    assert len(letters(store)) == 1


def test_a_job_whose_worker_vanished_for_the_last_time_is_undone_too(store: Subject, clock: SteeredClock) -> None:
    grant = armed(store)
    clock.advance(3600)

    [taken] = reap(store)

    assert (taken.job_id, taken.state, get(store, grant.id).attempt) == (grant.id, "queued", 0)
    assert "$undoing" in keys(store, grant.id)


def test_a_cancelled_job_is_undone_before_it_is_cancelled(store: Subject) -> None:
    grant = armed(store)
    settle(store, Suspended(grant.id, grant.token, "nap", steps=(NewStep("nap", "sleep", "open", due_seconds=600),)))

    assert cancel(store, grant.id).answer == "requested"

    assert end_of(store, grant.id) == {"end": "cancelled", "error": "not needed", "class": "cancelled"}
    again = claim_one(store)
    assert get(store, again.id).cancel_requested_at is None, "nothing stops the undoing"
    assert settle(store, Stopped(again.id, again.token)).state == "cancelled"


@pytest.mark.parametrize("is_held", [False, True])
def test_a_second_cancel_does_not_stop_the_undoing(store: Subject, is_held: bool) -> None:
    """The first cancel queued the job to undo what it had done; a repeat, as after a lost answer, ended it with
    everything left as it was."""
    grant = armed(store)
    settle(store, Suspended(grant.id, grant.token, "nap", steps=(NewStep("nap", "sleep", "open", due_seconds=600),)))
    cancel(store, grant.id)
    held = claim_one(store) if is_held else None

    assert cancel(store, grant.id).answer == "requested"

    again = held or claim_one(store)
    assert get(store, again.id).cancel_requested_at is None
    record(store, again, NewStep("undo/hold", "undo", "undone"))
    assert settle(store, Stopped(again.id, again.token)).state == "cancelled"


def test_a_cancel_while_a_failed_job_is_undone_leaves_it_the_end_that_it_had(store: Subject) -> None:
    fail(store, armed(store), "boom")
    again = claim_one(store)

    assert cancel(store, again.id).answer == "requested"

    record(store, again, NewStep("undo/hold", "undo", "undone"))
    assert settle(store, Rejected(again.id, again.token, "boom")).state == "failed"


def test_an_undo_that_cannot_be_carried_out_leaves_a_dead_job(store: Subject) -> None:
    fail(store, armed(store))

    assert fail(store, claim_one(store), "Undo 'hold' failed").state == "dead", "it is queued for undoing once"


def test_a_job_that_was_undone_is_revived_without_its_steps(store: Subject) -> None:
    fail(store, armed(store))
    again = claim_one(store)
    record(store, again, NewStep("undo/hold", "undo", "undone"))
    settle(store, Rejected(again.id, again.token, "boom"))

    store.do(Revive([again.id], "ops", "fixed"))

    assert claim_one(store).steps == ()
