"""Durable steps: what is recorded stays, only the holder of the lease records, and attempts count from the last one."""

from __future__ import annotations

import json

import pytest

from tenure.errors import InvalidArgument
from tenure.model.approval import Question
from tenure.model.ids import new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import FailureClass, Suspended
from tenure.model.state import State
from tenure.model.step import GRANT_BYTES, KINDS, STATES, VALUE_BYTES, NewStep, Step
from tenure.store.flow import ListSteps, RecordSteps
from tests.conformance.acts import (
    Subject,
    attempts,
    claim,
    claim_one,
    enqueue,
    fail,
    get,
    make_queue,
    new_job,
    reap,
    release,
    settle,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def record(store: Subject, grant: Grant, *steps: NewStep) -> list[Step]:
    recorded = store.do(RecordSteps(grant.id, grant.token, steps))
    assert recorded is not None
    return recorded


def test_a_recorded_step_comes_back_as_it_was_given(store: Subject, clock: SteeredClock) -> None:
    grant = claim_one_of(store)

    [step] = record(store, grant, NewStep("quote", value='{"eur": 1.10, "é": null}'))

    assert step == Step(
        job_id=grant.id,
        key="quote",
        ordinal=1,
        kind="step",
        state="done",
        token=grant.token,
        value='{"eur": 1.10, "é": null}',
        error=None,
        awaits=None,
        due_at=None,
        created_at=clock.now(),
        ended_at=clock.now(),
    )
    assert store.do(ListSteps(grant.id)) == [step]


def test_the_first_record_of_a_key_stays(store: Subject, clock: SteeredClock) -> None:
    grant = claim_one_of(store)
    [first] = record(store, grant, NewStep("quote", value="1"))
    clock.advance(1)

    assert record(store, grant, NewStep("quote", value="2"), NewStep("price", value="null")) == [
        first,
        *store.do(ListSteps(grant.id, after=1)),
    ]

    [_, price] = store.do(ListSteps(grant.id))
    assert (price.ordinal, price.value) == (2, "null"), "a JSON null is a value"


def test_an_open_step_is_closed_once(store: Subject, clock: SteeredClock) -> None:
    grant = claim_one_of(store)
    [opened] = record(store, grant, NewStep("ask", "memo", "open", awaits="memo:a:b", due_seconds=60))
    assert (opened.state, opened.ended_at) == ("open", None)
    clock.advance(1)

    [closed] = record(store, grant, NewStep("ask", "memo", "failed", error="no"))
    [again] = record(store, grant, NewStep("ask", "memo", "done", value="7"))

    assert (closed.state, closed.error, closed.ended_at, closed.due_at) == ("failed", "no", clock.now(), opened.due_at)
    assert again == closed


def test_a_step_by_a_lost_lease_is_refused_and_the_newer_one_stands(store: Subject, clock: SteeredClock) -> None:
    late = claim_one_of(store, max_attempts=5)
    clock.advance(3600)
    reap(store)
    newer = claim_one(store)
    [stands] = record(store, newer, NewStep("quote", value='"new"'))

    assert store.do(RecordSteps(late.id, late.token, [NewStep("quote", value='"late"'), NewStep("other")])) is None

    assert store.do(ListSteps(late.id)) == [stands]


def test_a_lease_that_ran_out_records_nothing_even_before_it_was_taken_back(
    store: Subject, clock: SteeredClock
) -> None:
    grant = claim_one_of(store)
    clock.advance(3600)

    assert store.do(RecordSteps(grant.id, grant.token, [NewStep("quote")])) is None


def test_a_grant_carries_the_steps_of_its_job(store: Subject) -> None:
    grant = claim_one_of(store)
    assert (grant.steps, grant.has_more_steps) == ((), False)
    record(store, grant, NewStep("b", value="1"), NewStep("a", "mark", value='"v2"'))
    fail(store, grant, retry_after_seconds=0)

    again = claim_one(store)

    assert [step.key for step in again.steps] == ["b", "a"]
    assert list(again.steps) == store.do(ListSteps(grant.id))
    assert not again.has_more_steps


def test_a_job_with_marks_alone_gets_them_with_its_grant(store: Subject) -> None:
    grant = claim_one_of(store)
    record(store, grant, NewStep("$version", "mark", value='"2"'))
    release(store, grant)

    assert [step.key for step in claim_one(store).steps] == ["$version"]


def test_a_grant_carries_steps_up_to_its_limit_and_says_that_there_are_more(store: Subject) -> None:
    grant = claim_one_of(store)
    large = json.dumps("x" * (GRANT_BYTES // 3))
    record(store, grant, *(NewStep(f"s{number}", value=large) for number in range(4)))
    release(store, grant)

    again = claim_one(store)

    assert ([step.key for step in again.steps], again.has_more_steps) == (["s0", "s1"], True)
    rest = store.do(ListSteps(grant.id, after=again.steps[-1].ordinal))
    assert [step.key for step in rest] == ["s2", "s3"]
    assert [step.key for step in store.do(ListSteps(grant.id, limit=1))] == ["s0"]


def test_a_claim_that_is_repeated_carries_the_steps_again(store: Subject) -> None:
    grant = claim_one_of(store)
    record(store, grant, NewStep("quote", value="1"))

    [again] = claim(store, held=[])

    assert (again.token, [step.key for step in again.steps]) == (grant.token, ["quote"])


def test_jobs_given_with_a_step_are_enqueued_once(store: Subject) -> None:
    grant = claim_one_of(store)
    child = new_job("child", parent_id=grant.id)
    request = RecordSteps(grant.id, grant.token, [NewStep("spawn", value=json.dumps(child.id))], [child])

    first = store.do(request)
    again = store.do(RecordSteps(grant.id, grant.token, request.steps, [new_job("child")]))

    assert first == again
    assert [granted.id for granted in claim(store, 10)] == [child.id]


# --- attempts are counted per stretch


def test_a_job_that_makes_progress_never_runs_out_of_attempts(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=2)

    for turn in range(6):
        grant = claim_one(store)
        record(store, grant, NewStep(f"step-{turn}"))
        assert fail(store, grant, retry_after_seconds=0).state == "queued"
        assert get(store, job_id).attempt == 1

    assert fail(store, claim_one(store)).state == "dead"


def test_progress_counts_for_the_attempt_that_made_it_alone(store: Subject) -> None:
    enqueue(store, max_attempts=3)
    grant = claim_one(store)
    record(store, grant, NewStep("one"))
    fail(store, grant, retry_after_seconds=0)

    for _ in range(2):
        grant = claim_one(store)
        record(store, grant, NewStep("one"))
        answer = fail(store, grant, retry_after_seconds=0)

    assert answer.state == "dead", "a step that was recorded before is no progress"


def test_a_mark_is_no_progress(store: Subject) -> None:
    enqueue(store, max_attempts=1)
    grant = claim_one(store)
    record(store, grant, NewStep("$version", "mark"))
    assert fail(store, grant).state == "dead"


def test_a_crash_after_progress_is_the_first_of_its_stretch(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, max_attempts=2)
    for turn in range(3):
        record(store, claim_one(store, worker=f"w{turn}"), NewStep(f"step-{turn}"))
        clock.advance(3600)
        [taken] = reap(store)
        assert taken.state == "queued"
    job = get(store, job_id)
    assert (job.attempt, job.crashes) == (1, 1)


def test_a_suspend_with_a_new_step_clears_attempts_and_crashes(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=3)
    fail(store, claim_one(store), failure_class=FailureClass.CRASH, retry_after_seconds=0)
    grant = claim_one(store)

    settle(store, Suspended(grant.id, grant.token, "sleep", steps=(NewStep("nap", "sleep", "open", due_seconds=5),)))

    job = get(store, job_id)
    assert (job.state, job.attempt, job.crashes) == (State.WAITING, 0, 0)
    assert len(attempts(store, job_id)) == 1, "the failure left a row, the suspend none"


# --- bad input


@pytest.mark.parametrize(
    "step",
    [
        NewStep(""),
        NewStep("  "),
        NewStep("x" * 301),
        NewStep("nul\0"),
        NewStep("kind", "errand"),
        NewStep("state", state="half"),
        NewStep("value", value="{no json"),
        NewStep("value", value="NaN"),
        NewStep("large", value=json.dumps("x" * VALUE_BYTES)),
        NewStep("due", "sleep", "open", due_seconds=float("inf")),
        NewStep("awaits", "signal", "open", awaits="anything"),
    ],
    ids=lambda step: step.key[:8] or "blank",
)
def test_a_step_that_cannot_be_stored_is_refused_before_anything_is_written(store: Subject, step: NewStep) -> None:
    grant = claim_one_of(store)

    with pytest.raises(InvalidArgument):
        store.do(RecordSteps(grant.id, grant.token, [NewStep("good"), step]))
    with pytest.raises(InvalidArgument):
        settle(store, Suspended(grant.id, grant.token, "it", steps=(NewStep("good"), step)))

    assert store.do(ListSteps(grant.id)) == []
    assert get(store, grant.id).state is State.RUNNING


def test_two_steps_with_one_key_are_refused(store: Subject) -> None:
    grant = claim_one_of(store)

    with pytest.raises(InvalidArgument):
        store.do(RecordSteps(grant.id, grant.token, [NewStep("same"), NewStep("same")]))


def test_every_kind_and_state_of_the_model_can_be_stored(store: Subject) -> None:
    grant = claim_one_of(store)

    def value(kind: str, state: str) -> str | None:
        """An approval is open only with its question."""
        is_asked = (kind, state) == ("approval", "open")
        return Question(new_job_id(), "q", "{}", "", 1, (), None, "deny").to_json() if is_asked else None

    recorded = record(store, grant, *(NewStep(f"{k}/{s}", k, s, value(k, s)) for k in KINDS for s in STATES))

    assert [(step.kind, step.state) for step in recorded] == [(k, s) for k in KINDS for s in STATES]


def claim_one_of(store: Subject, max_attempts: int = 3) -> Grant:
    """A fresh job, held."""
    make_queue(store, "flow")
    enqueue(store, max_attempts=max_attempts)
    return claim_one(store)
