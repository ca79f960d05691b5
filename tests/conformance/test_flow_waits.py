"""A parked job is woken by what it waits for, whichever came first; and never by what it no longer waits for."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.model.approval import Question
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Released, Settled, Stopped, Suspended
from tenure.model.state import TERMINAL, State
from tenure.model.step import TIMEOUT, NewStep, Step
from tenure.store.approvals import ListApprovals
from tenure.store.contract import Cancel, EditJob, Exchange, Settle, Wake
from tenure.store.flow import ListSteps, Signal, SweepFlow
from tenure.store.queries import CountJobs
from tests.conformance.acts import (
    Subject,
    attempts,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    make_queue,
    reject,
    settle,
)
from tests.conformance.engines import SteeredClock


def wait_for(key: str, due_seconds: float | None = None, name: str | None = None) -> NewStep:
    """An open step that waits for a signal."""
    return NewStep(name or f"wait/{key}", "signal", "open", awaits=f"signal:{key}", due_seconds=due_seconds)


def park(store: Subject, grant: Grant, *steps: NewStep) -> Settled:
    return settle(store, Suspended(grant.id, grant.token, steps[0].key, steps=steps))


def parked(store: Subject, *steps: NewStep) -> JobId:
    """A fresh job that waits."""
    job_id = enqueue(store)
    assert park(store, claim_one(store), *steps).state == "waiting"
    return job_id


def signal(store: Subject, key: str, value: object = None, scope: str = "once", to: JobId | None = None) -> bool:
    return store.do(Signal(key, json.dumps(value), "test", scope, to)).is_taken


def steps_of(store: Subject, job_id: JobId) -> dict[str, Step]:
    return {step.key: step for step in store.do(ListSteps(job_id))}


def test_a_signal_wakes_the_job_that_waits_for_it_and_hands_over_its_value(store: Subject, clock: SteeredClock) -> None:
    job_id = parked(store, wait_for("paid:7"))
    job = get(store, job_id)
    assert (job.state, job.waiting_for, job.attempt, attempts(store, job_id)) == (
        State.WAITING, "wait/paid:7", 0, [],
    )  # fmt: skip
    clock.advance(5)

    assert signal(store, "paid:7", {"eur": 3})

    assert get(store, job_id).state is State.QUEUED
    [step] = claim_one(store).steps
    assert (step.state, step.value, step.ended_at) == ("done", '{"eur": 3}', clock.now())


def test_a_signal_that_came_before_the_wait_sends_the_job_straight_back(store: Subject, clock: SteeredClock) -> None:
    signal(store, "paid:7", 1)
    enqueued_at = clock.now()
    job_id = enqueue(store)
    clock.advance(1)
    newer = enqueue(store)

    answer = park(store, claim_one(store), wait_for("paid:7"))

    assert (answer.state, get(store, job_id).run_at) == ("queued", enqueued_at)
    assert [grant.id for grant in claim(store, 2)] == [job_id, newer], "it keeps its place"
    assert attempts(store, job_id) == []


def test_the_first_value_of_a_key_wins_and_is_kept(store: Subject) -> None:
    assert signal(store, "paid:7", "first")
    assert not signal(store, "paid:7", "second")
    for _ in range(2):
        enqueue(store)
        grant = claim_one(store)
        park(store, grant, wait_for("paid:7"))
        complete(store, claim_one(store))
        assert steps_of(store, grant.id)["wait/paid:7"].value == '"first"'


def test_a_repeated_signal_is_answered_as_the_first_one(store: Subject) -> None:
    once, queued = Signal("a", "1"), Signal("b", "1", scope="queue")

    for request in (once, queued, once, queued):
        assert store.do(request).is_taken

    first, second = parked(store, wait_for("c"), wait_for("x")), enqueue(store)
    assert park(store, claim_one(store), wait_for("b")).state == "queued"
    assert store.do(queued).is_taken
    grant = claim_one(store)
    assert grant.id == second
    assert park(store, grant, wait_for("b", name="again")).state == "waiting", "what was taken is not sent again"
    assert get(store, first).state is State.WAITING


def test_each_wait_takes_the_oldest_of_a_queue(store: Subject, clock: SteeredClock) -> None:
    for number in range(3):
        signal(store, "mail", number, scope="queue")
        clock.advance(1)
    enqueue(store)

    for number in range(3):
        grant = claim_one(store)
        assert park(store, grant, wait_for("mail", name=f"wait-{number}")).state == "queued"
        assert steps_of(store, grant.id)[f"wait-{number}"].value == str(number)
    assert park(store, claim_one(store), wait_for("mail", name="wait-3")).state == "waiting"


def test_one_message_of_a_queue_wakes_one_of_those_who_wait(store: Subject, clock: SteeredClock) -> None:
    first = parked(store, wait_for("mail"))
    clock.advance(1)
    second = parked(store, wait_for("mail"))

    signal(store, "mail", 1, scope="queue")
    assert (get(store, first).state, get(store, second).state) == (State.QUEUED, State.WAITING)

    signal(store, "mail", 2, scope="queue")
    assert get(store, second).state is State.QUEUED
    assert steps_of(store, second)["wait/mail"].value == "2"


def test_a_signal_of_scope_once_wakes_all_who_wait(store: Subject) -> None:
    waiting = [parked(store, wait_for("go")) for _ in range(5)]

    signal(store, "go")

    assert {get(store, job_id).state for job_id in waiting} == {State.QUEUED}


def test_more_waiters_than_one_sweep_wakes_are_all_woken(store: Subject) -> None:
    waiting = {parked(store, wait_for("go")) for _ in range(5)}
    store.do(Signal("other"))
    grant_ids: set[str] = set()
    store.do(SweepFlow(limit=1))
    signal(store, "go")

    while store.do(SweepFlow(limit=2)).more:
        pass

    grant_ids.update(grant.id for grant in claim(store, 10))
    assert grant_ids == waiting


def test_a_signal_to_one_job_is_for_that_job_alone(store: Subject) -> None:
    ours, theirs = parked(store, wait_for("go")), parked(store, wait_for("go"))

    signal(store, "go", 1, to=theirs)
    assert (get(store, ours).state, get(store, theirs).state) == (State.WAITING, State.QUEUED)

    signal(store, "go", 2)
    assert steps_of(store, ours)["wait/go"].value == "2"
    assert steps_of(store, theirs)["wait/go"].value == "1"


def test_a_job_waits_for_any_of_its_open_steps(store: Subject) -> None:
    job_id = parked(store, wait_for("a"), wait_for("b"))

    signal(store, "b", 2)

    steps = steps_of(store, job_id)
    assert get(store, job_id).state is State.QUEUED
    assert (steps["wait/a"].state, steps["wait/b"].state) == ("open", "done")


@pytest.mark.parametrize("is_before", [True, False], ids=["signals before the wait", "signals after it"])
def test_of_two_signals_one_ends_a_wait_and_the_other_is_kept(store: Subject, is_before: bool) -> None:
    """Both were taken off their queues, and the second value was lost."""
    if is_before:
        signal(store, "a", 1, "queue")
        signal(store, "b", 2, "queue")
        enqueue(store)
        assert park(store, claim_one(store), wait_for("a"), wait_for("b")).state == "queued"
    else:
        parked(store, wait_for("a"), wait_for("b"))
        signal(store, "a", 1, "queue")
        signal(store, "b", 2, "queue")
    grant = claim_one(store)
    assert {step.key: step.value for step in grant.steps if step.state == "done"} == {"wait/a": "1"}

    assert park(store, grant, wait_for("b", name="wait/b/2")).state == "queued"
    assert steps_of(store, grant.id)["wait/b/2"].value == "2"


def test_a_wait_of_no_time_takes_what_has_come(store: Subject) -> None:
    """It had timed out before it looked."""
    signal(store, "stop", "now")
    enqueue(store)

    assert park(store, claim_one(store), wait_for("stop", 0.0), wait_for("other", 0.0)).state == "queued"

    steps = {step.key: (step.state, step.value, step.error) for step in claim_one(store).steps}
    assert steps == {"wait/stop": ("done", '"now"', None), "wait/other": ("failed", None, TIMEOUT)}


def test_a_job_is_watched_only_by_one_that_waits_for_it(store: Subject) -> None:
    """On SQLite it was marked although the wait was over at once."""
    other = enqueue(store, queue=make_queue(store))
    signal(store, "go")
    enqueue(store)
    waits = NewStep("job", "job", "open", awaits=f"job:{other}")

    assert park(store, claim_one(store), waits, wait_for("go")).state == "queued"
    sweep_events(store)
    assert get(store, other).step_token is None

    assert park(store, claim_one(store), replace(waits, key="again")).state == "waiting"
    sweep_events(store)
    assert get(store, other).step_token == 0


def test_a_step_that_the_last_suspend_did_not_name_neither_wakes_nor_takes(store: Subject) -> None:
    job_id = parked(store, wait_for("a"), wait_for("b"))
    signal(store, "a")
    park(store, claim_one(store), wait_for("c"))

    signal(store, "b", "kept", scope="queue")
    assert get(store, job_id).state is State.WAITING
    assert steps_of(store, job_id)["wait/b"].state == "open"

    signal(store, "c")
    assert park(store, claim_one(store), wait_for("b")).state == "queued", "it finds what came meanwhile"
    assert steps_of(store, job_id)["wait/b"].value == '"kept"'


def test_a_step_given_as_open_that_was_closed_before_counts_as_met(store: Subject) -> None:
    parked(store, wait_for("a"))
    signal(store, "a")

    assert park(store, claim_one(store), wait_for("a"), wait_for("never")).state == "queued"


# --- time


def test_a_sleep_keeps_the_due_time_of_its_first_record(store: Subject, clock: SteeredClock) -> None:
    due = clock.now() + timedelta(seconds=100)
    job_id = parked(store, NewStep("nap", "sleep", "open", due_seconds=100))
    clock.advance(40)
    store.do(Wake([job_id]))
    assert park(store, claim_one(store), NewStep("nap", "sleep", "open", due_seconds=100)).state == "waiting"

    assert get(store, job_id).run_at == due
    clock.advance(59)
    assert claim(store) == []
    clock.advance(1)
    [step] = claim_one(store).steps
    assert (step.state, step.error, step.due_at, step.ended_at) == ("done", None, due, clock.now())


def test_a_wait_whose_time_is_over_has_failed(store: Subject, clock: SteeredClock) -> None:
    job_id = parked(store, wait_for("paid", due_seconds=30), NewStep("long", "sleep", "open", due_seconds=3000))
    clock.advance(30)

    grant = claim_one(store)

    steps = steps_of(store, job_id)
    assert (steps["wait/paid"].state, steps["wait/paid"].error) == ("failed", TIMEOUT)
    assert steps["long"].state == "open"
    signal(store, "paid", 1)
    assert park(store, grant, wait_for("paid")).state == "queued"
    assert steps_of(store, job_id)["wait/paid"].state == "failed", "what was decided stays"


def test_a_sleep_that_is_over_when_the_job_parks_sends_it_straight_back(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)

    assert park(store, claim_one(store), NewStep("nap", "sleep", "open", due_seconds=0)).state == "queued"

    assert steps_of(store, job_id)["nap"].state == "done"


def test_a_signal_is_kept_for_as_long_as_it_says(store: Subject, clock: SteeredClock) -> None:
    store.do(Signal("paid", "1", keep_seconds=10))
    clock.advance(10)
    parked(store, wait_for("paid"))

    assert store.do(Signal("paid", "2")).is_taken, "an expired value makes room"
    assert [step.value for step in claim_one(store).steps] == ["2"]


# --- the ends of it


def test_a_cancel_ends_a_parked_job_and_a_later_signal_changes_nothing(store: Subject) -> None:
    job_id = parked(store, wait_for("a"))
    store.do(Cancel([job_id], "ops", "not needed"))

    signal(store, "a")

    assert get(store, job_id).state is State.CANCELLED


def test_a_job_that_was_asked_to_stop_does_not_park_but_its_steps_are_kept(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    store.do(Cancel([job_id], "ops", "not needed"))

    assert park(store, grant, wait_for("a"), NewStep("paid", value="1")).state == "cancelled"

    assert set(steps_of(store, job_id)) == {"wait/a", "paid"}


def test_a_repeated_suspend_is_answered_as_the_first_one(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)
    first = park(store, grant, wait_for("a"))

    assert park(store, grant, wait_for("a")) == first
    signal(store, "a")
    assert park(store, grant, wait_for("a")).state == "queued"


def test_an_exchange_that_parks_leaves_the_rest_to_the_sweep(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    answer = store.do(Exchange([Suspended(grant.id, grant.token, "a", steps=(wait_for("a"),))], None))

    assert answer.has_flow_events is (store.engine == "postgres")
    assert store.do(SweepFlow()).jobs == 0
    signal(store, "a")
    assert get(store, job_id).state is State.QUEUED


@pytest.mark.parametrize(
    "bad",
    [
        Signal(""),
        Signal("a", "no json"),
        Signal("a", scope="twice"),
        Signal("a", keep_seconds=0),
        Signal("a", actor=" "),
    ],
    ids=["key", "value", "scope", "keep", "actor"],
)
def test_a_signal_that_makes_no_sense_is_refused(store: Subject, bad: Signal) -> None:
    with pytest.raises(InvalidArgument):
        store.do(bad)


def test_a_signal_to_a_job_that_cannot_take_it_is_refused(store: Subject) -> None:
    with pytest.raises(NotFound):
        store.do(Signal("a", to=new_job_id()))
    job_id = enqueue(store)
    complete(store, claim_one(store))
    with pytest.raises(IllegalMove):
        store.do(Signal("a", to=job_id))


def test_a_signal_for_one_job_reaches_it_however_many_wait_for_the_same_key(
    store: Subject, clock: SteeredClock
) -> None:
    """A sweep looked at the first 1,000 that wait for a key; the job that a value was meant for stood behind them, and
    slept on for ever."""
    ids = enqueue_many(store, 1001)
    grants = sorted(claim(store, 1001), key=lambda grant: ids.index(grant.id))
    steps = (wait_for("go"),)
    store.do(Settle([Suspended(grant.id, grant.token, "go", steps=steps) for grant in grants[:-1]]))
    clock.advance(1)
    last = grants[-1]
    park(store, last, *steps)

    assert signal(store, "go", 7, to=last.id)

    assert get(store, last.id).state is State.QUEUED
    assert steps_of(store, last.id)["wait/go"].value == "7"
    assert sum(count.jobs for count in store.do(CountJobs(states=["waiting"]))) == 1000


ENDS = ("completed", "rejected", "exhausted", "expired", "cancelled", "told to stop")


def end_job(store: Subject, clock: SteeredClock, grant: Grant, end: str) -> None:
    match end:
        case "completed":
            complete(store, grant)
        case "rejected":
            reject(store, grant)
        case "exhausted":
            fail(store, grant)
        case "expired":
            clock.advance(31)
            claim(store, 0, worker="w3")
        case "told to stop":
            store.do(Cancel([grant.id], "ops", "enough"))
            settle(store, Stopped(grant.id, grant.token))
        case _:
            settle(store, Released(grant.id, grant.token, delay_seconds=600.0))
            store.do(Cancel([grant.id], "ops", "enough"))
    assert get(store, grant.id).state in TERMINAL


@pytest.mark.parametrize("is_swept", [True, False], ids=["after the wait was seen", "before the wait is seen"])
@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_waits_for_another_is_woken_by_any_end_of_it(
    store: Subject, clock: SteeredClock, end: str, is_swept: bool
) -> None:
    """Such waits were all looked through each second."""
    awaited = enqueue(store, max_attempts=1)
    grant = claim_one(store, worker="w2", lease_seconds=30)
    waiting = parked(store, NewStep("it", "job", "open", awaits=f"job:{awaited}"))
    if is_swept:
        sweep_events(store)
    assert get(store, waiting).state is State.WAITING

    end_job(store, clock, grant, end)
    sweep_events(store)

    assert get(store, waiting).state is State.QUEUED
    assert steps_of(store, waiting)["it"].state == "done"


def test_many_that_wait_for_one_job_are_all_woken_and_others_are_not(store: Subject) -> None:
    jobs = [enqueue(store) for _ in range(2)]
    first, second = claim(store, 2, worker="w2")
    step = NewStep("it", "job", "open", awaits=f"job:{first.id}")
    waiting = [parked(store, step) for _ in range(5)]
    other = parked(store, NewStep("it", "job", "open", awaits=f"job:{second.id}"))
    sweep_events(store)

    complete(store, first)
    sweep_events(store)

    assert {get(store, one).state for one in waiting} == {State.QUEUED}
    assert get(store, other).state is State.WAITING
    assert set(jobs) == {first.id, second.id}


def test_a_job_that_others_wait_for_can_still_be_edited(store: Subject) -> None:
    awaited = enqueue(store, payload={"n": 0}, delay_seconds=600.0)
    parked(store, NewStep("it", "job", "open", awaits=f"job:{awaited}"))
    sweep_events(store)

    assert store.do(EditJob(awaited, "ann", "why", '{"n": 1}')).payload == {"n": 1}


def sweep_events(store: Subject) -> None:
    """Sweep what events tell of; not by time."""
    while (swept := store.do(SweepFlow())).events or swept.more:
        pass


def test_a_stream_of_events_does_not_keep_the_leader_from_looking_by_time(store: Subject, clock: SteeredClock) -> None:
    """What no event tells of was looked for only by a sweep that found no event, so never on a busy system."""
    question = Question(new_job_id(), "go", "{}", "May I?", 1, (), 5.0, "deny")
    parked(store, NewStep("go", "approval", "open", value=question.to_json()))
    clock.advance(6)
    store.do(Exchange([Suspended(enqueue(store), claim_one(store).token, "x", steps=(wait_for("x"),))], None))

    store.do(SweepFlow(by_time=True))

    [one] = store.do(ListApprovals())
    assert one.state == "expired"
