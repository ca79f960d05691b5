"""Workflows: graphs that move by the ends of their tasks. The rules stand in store.workflows."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest

from tenure.errors import IllegalMove, InvalidArgument, KeyConflict, NotFound, UnknownQueue
from tenure.flow.workflows import prepare, requests
from tenure.model.ids import new_job_id
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Stopped, Suspended
from tenure.model.policy import Limits
from tenure.model.step import NewGroup, NewStep
from tenure.model.workflow import Escalation, FailureThreshold, Workflow
from tenure.store.admin import RemoveQueues
from tenure.store.flow import FillGroup, RecordSteps, SweepFlow
from tenure.store.queries import GetJobs
from tenure.store.workflows import (
    AnswerEscalation,
    CancelWorkflow,
    GetGraph,
    GetWorkflow,
    JoinWorkflow,
    ListEscalations,
    ListWorkflows,
    NewTask,
    NewWorkflow,
    RetryWorkflow,
    StartWorkflow,
    TendWorkflows,
)
from tests.conformance.acts import (
    Subject,
    cancel,
    claim_one,
    complete,
    fail,
    get,
    letters,
    make_queue,
    new_job,
    revive,
    settle,
    suspend,
)
from tests.conformance.runs import AGENT, escalations, fold, grants, id_of, run, start, states, tasks, tend, work

HOUR = timedelta(hours=1)


def diamond(**settings: object) -> Workflow:
    """top → left, right (optional) → bottom, which needs left's success and any end of right."""
    flow = Workflow("diamond", **settings)  # type: ignore[arg-type]
    top = flow.task("top", agent="A", task_type="t", payload={"n": 1})
    left = flow.task("left", agent="A", task_type="t", after=[top])
    right = flow.task("right", agent="B", task_type="t", after=[top], optional=True)
    flow.task("bottom", agent="A", task_type="t", after=[left, right.ended])
    return flow


def flat(count: int, **settings: object) -> Workflow:
    flow = Workflow("flat", **settings)  # type: ignore[arg-type]
    for number in range(count):
        flow.task(f"t{number}", agent="A", task_type="t")
    return flow


# --- moving forward ---------------------------------------------------------------------------------------------------


def test_a_task_is_released_when_all_that_it_needs_has_succeeded(store: Subject) -> None:
    flow_id = start(store, diamond()).id
    assert states(store, flow_id) == {"top": "queued", "left": "blocked", "right": "blocked", "bottom": "blocked"}

    complete(store, claim_one(store, queue="A"))
    fold(store)
    assert states(store, flow_id) == {"top": "succeeded", "left": "queued", "right": "queued", "bottom": "blocked"}

    complete(store, claim_one(store, queue="B"))
    fold(store)
    assert tasks(store, flow_id)["bottom"].needs == 1

    assert work(store, flow_id, "A", "B") == ["left", "bottom"]
    found = run(store, flow_id)
    assert (found.state, found.counts["succeeded"], found.counts["open"]) == ("completed", 4, 0)
    assert found.finished_at is not None


def test_an_edge_to_any_end_is_met_by_a_failure_and_an_optional_failure_does_not_count(store: Subject) -> None:
    flow_id = start(store, diamond()).id

    done = work(store, flow_id, "A", "B", failing={"right"})

    assert done[-1] == "bottom"
    found = run(store, flow_id)
    assert (found.state, found.succeeded, found.failed, found.tolerated) == ("completed", 3, 0, 1)


def test_what_needs_a_failed_task_is_skipped_down_the_graph(store: Subject) -> None:
    flow = Workflow("chain", fail=FailureThreshold(count=5))
    first = flow.task("first", agent="A", task_type="t")
    second = flow.task("second", agent="A", task_type="t", after=[first])
    third = flow.task("third", agent="A", task_type="t", after=[second])
    flow.task("cleanup", agent="A", task_type="t", after=[third.ended])
    flow_id = start(store, flow).id

    assert work(store, flow_id, "A", failing={"first"}) == ["first", "cleanup"]

    assert states(store, flow_id) == {
        "first": "dead",
        "second": "skipped",
        "third": "skipped",
        "cleanup": "succeeded",
    }
    skipped = get(store, id_of(store, flow_id, "second"))
    assert (skipped.state, skipped.failure_class) == ("cancelled", "upstream")
    found = run(store, flow_id)
    assert (found.state, found.failed, found.skipped, found.succeeded) == ("completed", 1, 2, 1)


def test_a_retry_with_attempts_left_is_no_end(store: Subject) -> None:
    flow = Workflow("retries")
    flow.task("only", agent="A", task_type="t", max_attempts=2)
    flow_id = start(store, flow).id

    fail(store, claim_one(store, queue="A"))
    assert fold(store) == 0
    assert run(store, flow_id).counts["open"] == 1

    complete(store, claim_one(store, queue="A"))
    fold(store)
    assert run(store, flow_id).state == "completed"


def test_a_workflow_waits_while_none_of_its_tasks_is_queued_or_held(store: Subject) -> None:
    flow_id = start(store, flat(1)).id
    assert run(store, flow_id).state == "running"

    suspend(store, claim_one(store, queue="A"), "a person")

    assert run(store, flow_id).state == "waiting"
    assert [one.id for one in store.do(ListWorkflows(states=["waiting"]))] == [flow_id]
    assert store.do(ListWorkflows(states=["running"])).items == []


def test_a_settle_that_is_sent_twice_counts_once(store: Subject) -> None:
    flow_id = start(store, flat(2)).id
    grant = claim_one(store, queue="A")

    complete(store, grant)
    complete(store, grant)
    fold(store)

    assert run(store, flow_id).succeeded == 1


def test_a_label_that_no_workflow_has_costs_nothing_but_a_look(store: Subject) -> None:
    label = new_job_id()
    [made] = store.do(JoinWorkflow([new_job(workflow_id=label)]))

    complete(store, claim_one(store))
    fold(store)

    assert get(store, made.id).workflow_id == label
    assert store.do(GetWorkflow(label)) is None


# --- starting ---------------------------------------------------------------------------------------------------------


def test_a_key_starts_one_run_and_another_graph_under_it_is_a_conflict(store: Subject) -> None:
    first = start(store, diamond(), key="supplier-7")
    again = start(store, diamond(), key="supplier-7")

    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(KeyConflict, match="another graph"):
        start(store, _renamed(), key="supplier-7")
    assert len(store.do(ListWorkflows()).items) == 1


def _renamed() -> Workflow:
    flow = diamond()
    flow.task("one more", agent="A", task_type="t")
    return flow


def test_a_request_that_is_sent_again_starts_nothing_twice(store: Subject) -> None:
    flow_id = new_job_id()
    start(store, diamond(), workflow_id=flow_id)
    complete(store, claim_one(store, queue="A"))
    fold(store)

    start(store, diamond(), workflow_id=flow_id)

    assert states(store, flow_id)["top"] == "succeeded"
    assert run(store, flow_id).counts == {
        "total": 4, "succeeded": 1, "failed": 0, "tolerated": 0, "skipped": 0, "cancelled": 0, "open": 3,
    }  # fmt: skip


def test_a_start_leaves_the_jobs_of_its_caller_as_they_were(store: Subject) -> None:
    """They got the time at which a task waits, which is never."""
    prepared = prepare(diamond(), lambda _: None, Limits(), key=None, actor="test", tenant=None)
    [request] = requests(prepared, new_job_id(), {"A": AGENT, "B": AGENT})

    store.do(request)

    assert {(task.job.run_at, task.job.delay_seconds) for task in request.tasks} == {(None, None)}


def test_nothing_runs_before_the_last_page_and_a_start_that_broke_off_goes_on(store: Subject) -> None:
    broken_off = start(store, flat(2_500), key="large", pages=2)
    assert run(store, broken_off.id).phase == "loading"
    assert grants(store, "A") == []

    found = start(store, flat(2_500), key="large")
    assert (found.id, found.duplicate) == (broken_off.id, False)
    again = start(store, flat(2_500), key="large", workflow_id=found.id)

    assert not again.duplicate
    assert run(store, found.id).total == 2_500
    assert len(tasks(store, found.id)) == 2_500
    assert len(work(store, found.id, "A", limit=1000)) == 2_500
    assert run(store, found.id).state == "completed"


def wrong_page(wrong: str) -> StartWorkflow:
    """A start of two tasks, a before b, with one thing wrong."""
    flow_id, ids = new_job_id(), [new_job_id(), new_job_id()]
    jobs = [NewJob(one, "t", "{}", "default", workflow_id=flow_id) for one in ids]
    names = ["a", "a" if wrong == "name twice" else " " if wrong == "blank name" else "b"]
    total = {"a task too few": 3, "too many": 1_000_001, "none": 0}.get(wrong, 2)
    edges = {"circle": [(1, 0)], "itself": [(1, 1)]}.get(wrong, [(0, 1)])
    told = [(ids[src], ids[dst], "ok") for src, dst in edges]
    if wrong == "astray":
        told = [(ids[0], new_job_id(), "ok")]
    tasks = [NewTask(job, name, place, place) for place, (job, name) in enumerate(zip(jobs, names, strict=True))]
    return StartWorkflow(NewWorkflow(flow_id, "w", total, "d"), tasks, told)


@pytest.mark.parametrize(
    "wrong", ["circle", "itself", "name twice", "blank name", "astray", "a task too few", "too many", "none"]
)
def test_a_graph_that_cannot_be_is_refused_and_nothing_is_written(store: Subject, wrong: str) -> None:
    request = wrong_page(wrong)

    with pytest.raises(InvalidArgument, match="Nothing was started"):
        store.do(request)

    assert store.do(GetWorkflow(request.workflow.id)) is None
    assert store.do(GetJobs([task.job.id for task in request.tasks])) == [None, None]


def test_an_unknown_queue_is_told_and_nothing_is_written(store: Subject) -> None:
    prepared = prepare(diamond(), lambda _: None, Limits(), key="k", actor="test", tenant=None)
    [request] = requests(prepared, new_job_id(), {})

    with pytest.raises(UnknownQueue):
        store.do(request)

    assert store.do(ListWorkflows()).items == []


# --- joining ----------------------------------------------------------------------------------------------------------


def test_a_task_that_joins_a_running_workflow_counts(store: Subject) -> None:
    flow_id = start(store, flat(1)).id

    [made] = store.do(JoinWorkflow([new_job("extra", queue="A", workflow_id=flow_id)]))

    assert run(store, flow_id).total == 2
    complete(store, claim_one(store, queue="A"))
    fold(store)
    assert run(store, flow_id).state == "running"
    complete(store, claim_one(store, queue="A"))
    fold(store)
    assert get(store, made.id).state == "succeeded"
    assert run(store, flow_id).state == "completed"


def test_no_task_joins_a_workflow_that_has_ended(store: Subject) -> None:
    flow_id = start(store, flat(1)).id
    work(store, flow_id, "A")

    with pytest.raises(IllegalMove, match="is completed"):
        store.do(JoinWorkflow([new_job("extra", queue="A", workflow_id=flow_id)]))

    assert grants(store, "A") == []


# --- thresholds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failures", "state"), [(49, "completed"), (50, "failed"), (51, "failed")])
def test_five_percent_of_a_thousand_is_fifty(store: Subject, failures: int, state: str) -> None:
    flow_id = start(store, flat(1_000, fail=FailureThreshold(share=0.05))).id

    work(store, flow_id, "A", failing={f"t{number}" for number in range(failures)}, limit=1_000)

    found = run(store, flow_id)
    assert (found.state, found.failed) == (state, failures)
    assert found.error == (None if state == "completed" else f"{failures} of 1,000 tasks failed")


def test_a_share_waits_for_enough_ends(store: Subject) -> None:
    flow_id = start(store, flat(40, fail=FailureThreshold(share=0.05, at_least=20))).id
    for _ in range(10):
        fail(store, claim_one(store, queue="A"))
    fold(store)
    assert run(store, flow_id).state == "running"

    for _ in range(10):
        complete(store, claim_one(store, queue="A"))
    fold(store)

    assert run(store, flow_id).state == "failed"


def test_the_first_failure_fails_a_workflow_and_the_rest_is_cancelled(store: Subject) -> None:
    flow_id = start(store, diamond()).id
    complete(store, claim_one(store, queue="A"))
    fold(store)
    held = claim_one(store, queue="B")

    fail(store, claim_one(store, queue="A"))
    fold(store)

    found = run(store, flow_id)
    assert (found.state, found.error) == ("failed", "1 of 4 tasks failed")
    assert get(store, held.id).cancel_requested_at is not None
    complete(store, held)
    fold(store)
    # The end of a cancelled task counts, and changes nothing.
    assert states(store, flow_id) == {"top": "succeeded", "left": "dead", "right": "cancelled", "bottom": "skipped"}
    assert run(store, flow_id).state == "failed"
    assert run(store, flow_id).counts["open"] == 0


def test_draining_lets_released_tasks_end_and_releases_no_more(store: Subject) -> None:
    flow = Workflow("drain", on_breach="drain")
    first = [flow.task(f"f{number}", agent="A", task_type="t") for number in range(3)]
    flow.task("then", agent="A", task_type="t", after=[first[1].ended])
    flow_id = start(store, flow).id

    fail(store, claim_one(store, queue="A"))
    fold(store)
    assert (run(store, flow_id).state, run(store, flow_id).phase) == ("running", "draining")

    assert work(store, flow_id, "A") == ["f1", "f2"]
    found = run(store, flow_id)
    assert (found.state, found.succeeded, found.failed, found.cancelled) == ("failed", 2, 1, 1)


def test_going_on_after_a_breach_ends_completed_with_failures_shown(store: Subject) -> None:
    flow_id = start(store, flat(3, on_breach="continue")).id

    work(store, flow_id, "A", failing={"t0", "t1"})

    found = run(store, flow_id)
    assert (found.state, found.failed, found.error) == ("completed", 2, "2 of 3 tasks failed")


# --- revive and retry -------------------------------------------------------------------------------------------------


def test_a_revived_task_lowers_the_counts_and_what_was_skipped_waits_again(store: Subject) -> None:
    flow = Workflow("chain", fail=FailureThreshold(count=5))
    first = flow.task("first", agent="A", task_type="t")
    second = flow.task("second", agent="A", task_type="t", after=[first])
    flow.task("third", agent="A", task_type="t", after=[second])
    flow_id = start(store, flow).id
    work(store, flow_id, "A", failing={"first"})
    assert run(store, flow_id).state == "completed"

    revive(store, id_of(store, flow_id, "first"))
    fold(store)

    found = run(store, flow_id)
    assert (found.state, found.failed, found.skipped, found.finished_at) == ("running", 0, 0, None)
    assert states(store, flow_id) == {"first": "queued", "second": "blocked", "third": "blocked"}
    assert work(store, flow_id, "A") == ["first", "second", "third"]
    assert (run(store, flow_id).state, run(store, flow_id).succeeded) == ("completed", 3)


def test_a_task_of_a_failed_workflow_that_is_revived_sets_it_going_again(store: Subject) -> None:
    flow_id = start(store, flat(2)).id
    complete(store, claim_one(store, queue="A"))
    fail(store, claim_one(store, queue="A"))
    fold(store)
    assert run(store, flow_id).state == "failed"

    revive(store, id_of(store, flow_id, "t1"))
    fold(store)

    assert run(store, flow_id).state == "running"
    work(store, flow_id, "A")
    assert run(store, flow_id).state == "completed"


def test_a_retry_runs_what_failed_what_was_skipped_and_what_was_cancelled_with_it(store: Subject) -> None:
    flow = diamond()
    flow.task("beside", agent="B", task_type="t", after=["top"])
    flow_id = start(store, flow).id
    complete(store, claim_one(store, queue="A"))
    fold(store)
    fail(store, claim_one(store, queue="A"))
    fold(store)
    assert run(store, flow_id).state == "failed"
    assert set(states(store, flow_id).values()) == {"succeeded", "dead", "cancelled", "skipped"}

    store.do(RetryWorkflow(flow_id, "ops", "fixed"))
    fold(store)

    assert states(store, flow_id) == {
        "top": "succeeded", "left": "queued", "right": "queued", "bottom": "blocked", "beside": "queued",
    }  # fmt: skip
    assert letters(store)[0].triage == "manual_replay"
    work(store, flow_id, "A", "B")
    found = run(store, flow_id)
    assert (found.state, found.succeeded, found.failed, found.cancelled, found.skipped) == ("completed", 5, 0, 0, 0)


def test_a_retry_of_a_workflow_in_which_nothing_failed_is_refused(store: Subject) -> None:
    """It was run through again and got a later end."""
    flow_id = start(store, flat(1)).id
    with pytest.raises(IllegalMove, match="there is nothing to retry"):
        store.do(RetryWorkflow(flow_id, "ops", "no reason"))
    work(store, flow_id, "A")
    before = run(store, flow_id)

    with pytest.raises(IllegalMove, match="there is nothing to retry"):
        store.do(RetryWorkflow(flow_id, "ops", "no reason"))

    assert (before.state, run(store, flow_id)) == ("completed", before)


def test_a_cancelled_workflow_has_no_open_task_though_a_retry_left_one_dead(store: Subject) -> None:
    """Its job had died on its own account and waited for another task: on SQLite it stayed open for ever."""
    flow = Workflow("two", fail=FailureThreshold(count=9))
    flow.task("last", agent="A", task_type="t", after=[flow.task("first", agent="A", task_type="t")])
    flow_id = start(store, flow).id
    fail(store, claim_one(store, queue="A"))
    fold(store)
    revive(store, id_of(store, flow_id, "last"))
    fail(store, claim_one(store, queue="A"))
    fold(store)
    store.do(RetryWorkflow(flow_id, "ops", "fixed"))
    fold(store)

    store.do(CancelWorkflow(flow_id, "ops", "not needed"))
    fold(store)

    found = run(store, flow_id)
    assert (found.state, found.ended, found.failed, found.cancelled) == ("cancelled", 2, 1, 1)


def test_a_retry_that_fails_again_breaches_again(store: Subject) -> None:
    flow_id = start(store, flat(2)).id
    work(store, flow_id, "A", failing={"t0"})
    assert run(store, flow_id).state == "failed"

    store.do(RetryWorkflow(flow_id, "ops", "again"))
    fold(store)
    assert run(store, flow_id).state == "running"
    work(store, flow_id, "A", failing={"t0"})

    assert run(store, flow_id).state == "failed"


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_cancelled_workflow_releases_nothing_more(store: Subject) -> None:
    flow_id = start(store, diamond()).id
    held = claim_one(store, queue="A")

    found = store.do(CancelWorkflow(flow_id, "ops", "not needed"))
    fold(store)

    assert found.state == "cancelled"
    assert get(store, held.id).cancel_requested_at is not None
    complete(store, held)
    fold(store)
    assert set(states(store, flow_id).values()) <= {"cancelled", "skipped"}
    assert run(store, flow_id).counts["open"] == 0
    assert store.do(CancelWorkflow(flow_id, "ops", "again")).state == "cancelled"
    with pytest.raises(IllegalMove, match="was cancelled"):
        store.do(RetryWorkflow(flow_id, "ops", "no"))


def armed(store: Subject, *steps: NewStep, groups: tuple[NewGroup, ...] = ()) -> Grant:
    """The only task of a workflow, which has something to undo and waits."""
    grant = claim_one(store, queue="A")
    store.do(RecordSteps(grant.id, grant.token, [NewStep("undo/book", "undo", "armed")]))
    wait = NewStep("wait/go", "signal", "open", awaits="signal:go")
    assert settle(store, Suspended(grant.id, grant.token, "go", steps=(wait, *steps), groups=groups)).state == "waiting"
    return grant


def test_a_durable_task_that_waits_is_undone_when_its_workflow_is_cancelled(store: Subject) -> None:
    """It was cancelled at once, and what it had armed was never called."""
    flow_id = start(store, flat(1)).id
    task = armed(store)

    store.do(CancelWorkflow(flow_id, "ops", "not needed"))
    fold(store)

    assert get(store, task.id).state == "queued"
    again = claim_one(store, queue="A")
    assert "$undoing" in [step.key for step in again.steps]
    settle(store, Stopped(again.id, again.token))
    fold(store)
    assert (get(store, task.id).state, get(store, task.id).failure_class) == ("cancelled", "workflow")
    assert (run(store, flow_id).cancelled, run(store, flow_id).counts["open"]) == (1, 0)


@pytest.mark.parametrize("is_held", [False, True], ids=["waiting", "held"])
def test_the_children_of_a_task_are_cancelled_with_its_workflow(store: Subject, is_held: bool) -> None:
    make_queue(store, "q")
    flow_id = start(store, flat(1)).id
    group = NewGroup("parts", tuple(new_job("child", queue="q") for _ in range(3)))
    if is_held:
        grant = claim_one(store, queue="A")
        store.do(FillGroup(grant.id, grant.token, group, 0, 3))
    else:
        armed(store, groups=(group,))

    store.do(CancelWorkflow(flow_id, "ops", "not needed"))
    fold(store)
    while store.do(SweepFlow()).more:
        pass

    assert [get(store, child.id).state for child in group.jobs] == ["cancelled"] * 3


def test_a_retry_runs_what_was_at_work_when_the_workflow_failed(store: Subject) -> None:
    """A task that was asked to stop counted as cancelled by a person, and stayed so."""
    flow_id = start(store, flat(4)).id
    first, second, third, fourth = grants(store, "A")
    cancel(store, third.id)
    fail(store, first)
    fold(store)
    assert run(store, flow_id).state == "failed"
    settle(store, Stopped(second.id, second.token))
    settle(store, Stopped(third.id, third.token))
    complete(store, fourth)
    fold(store)
    classes = [get(store, one.id).failure_class for one in (second, third, fourth)]
    assert classes == ["workflow", "cancelled", "workflow"]

    store.do(RetryWorkflow(flow_id, "ops", "fixed"))
    fold(store)

    assert states(store, flow_id) == {"t0": "queued", "t1": "queued", "t2": "cancelled", "t3": "queued"}


def test_a_completed_workflow_cannot_be_cancelled_and_an_unknown_one_is_told(store: Subject) -> None:
    flow_id = start(store, flat(1)).id
    work(store, flow_id, "A")

    with pytest.raises(IllegalMove, match="is completed"):
        store.do(CancelWorkflow(flow_id, "ops", "late"))
    with pytest.raises(NotFound):
        store.do(CancelWorkflow(new_job_id(), "ops", "?"))
    with pytest.raises(NotFound):
        store.do(RetryWorkflow(new_job_id(), "ops", "?"))


def test_a_task_cancelled_alone_is_an_end_that_success_cannot_follow(store: Subject) -> None:
    flow_id = start(store, diamond()).id

    cancel(store, id_of(store, flow_id, "left"))
    fold(store)
    work(store, flow_id, "A", "B")

    assert states(store, flow_id) == {
        "top": "succeeded", "left": "cancelled", "right": "succeeded", "bottom": "skipped",
    }  # fmt: skip
    assert run(store, flow_id).state == "completed"


# --- fan-out ----------------------------------------------------------------------------------------------------------


def fan(tolerate: str | int = 0, **settings: object) -> Workflow:
    flow = Workflow("fan", **settings)  # type: ignore[arg-type]
    norm = flow.task("norm", agent="A", task_type="t")
    each = flow.each(
        "pictures",
        agent="P",
        task_type="resize",
        over=norm.result["files"],
        payload={"width": 9},
        tolerate=tolerate,
    )
    flow.task("publish", agent="A", task_type="t", after=[each])
    return flow


def test_a_fan_out_makes_a_task_for_each_item_of_a_result(store: Subject) -> None:
    flow_id = start(store, fan()).id

    done = work(store, flow_id, "A", "P", results={"norm": {"files": ["a", {"b": 1}, None]}})

    assert done[0] == "norm"
    assert sorted(done[1:4]) == ["pictures/0", "pictures/1", "pictures/2"]
    assert done[4:] == ["publish"]
    found = tasks(store, flow_id)
    payloads = [get(store, found[f"pictures/{number}"].job_id).payload for number in range(3)]
    assert payloads == [
        {"width": 9, "item": "a", "index": 0},
        {"width": 9, "item": {"b": 1}, "index": 1},
        {"width": 9, "item": None, "index": 2},
    ]
    assert found["pictures"].result == {"items": 3, "failed": 0}
    assert (run(store, flow_id).state, run(store, flow_id).total) == ("completed", 6)


@pytest.mark.parametrize(("failures", "state"), [(1, "completed"), (2, "failed")])
def test_a_fan_out_tolerates_a_share_of_its_items(store: Subject, failures: int, state: str) -> None:
    flow_id = start(store, fan("10%")).id

    failing = {f"pictures/{number}" for number in range(failures)}
    work(store, flow_id, "A", "P", failing=failing, results={"norm": {"files": list(range(10))}})

    found = run(store, flow_id)
    assert (found.state, found.failed, found.tolerated) == (state, int(state == "failed"), failures)


def test_a_fan_out_over_nothing_succeeds_at_once_and_over_no_list_fails(store: Subject) -> None:
    empty = start(store, fan()).id
    work(store, empty, "A", "P", results={"norm": {"files": []}})
    assert run(store, empty).state == "completed"

    wrong = start(store, fan()).id
    work(store, wrong, "A", "P", results={"norm": {"files": 7}})

    assert run(store, wrong).state == "failed"
    assert "no list at" in (tasks(store, wrong)["pictures"].last_error or "")


def test_a_fan_out_whose_items_a_queue_refuses_has_failed(store: Subject) -> None:
    """The task that it fans out over could not be settled on SQLite, and on PostgreSQL no workflow was folded any
    more."""
    flow = fan()
    flow.task("after", agent="A", task_type="t", after=[flow.tasks["pictures"].ended])
    flow_id = start(store, flow).id
    make_queue(store, "P", max_attempts=1, forbidden_keys=("vector",))

    assert work(store, flow_id, "A", "P", results={"norm": {"files": [{"vector": [1, 2]}]}})[0] == "norm"

    assert states(store, flow_id)["norm"] == "succeeded"
    failed = tasks(store, flow_id)["pictures"]
    assert (failed.state, failed.outcome) == ("failed", "failed")
    assert "vector" in (failed.last_error or "")


def test_a_workflow_that_cannot_go_on_fails_and_the_others_go_on(store: Subject) -> None:
    """The second page of a fan-out is refused by its queue."""
    flow_id, other = start(store, fan()).id, start(store, flat(3)).id
    make_queue(store, "P", max_attempts=1, forbidden_keys=("vector",))
    items = [{"n": number} for number in range(1100)] + [{"vector": [1]}]

    work(store, flow_id, "A", results={"norm": {"files": items}})
    fold(store)

    found = run(store, flow_id)
    assert (found.state, found.phase) == ("failed", "stopped")
    assert "It could not go on" in (found.error or "")
    assert "vector" in (found.error or "")
    assert found.counts["open"] == 0
    assert run(store, other).state == "completed"
    assert fold(store) == 0


def test_a_deadline_that_cannot_be_kept_keeps_no_other_from_being_kept(store: Subject) -> None:
    """What is to be undone has no queue any more."""
    flow = flat(1, deadline=HOUR)
    flow.tasks["t0"].undo = "cancel"
    broken, other = start(store, flow).id, start(store, flat(1, deadline=HOUR)).id
    store.do(RemoveQueues(["compensation"], "ops"))
    store.clock.advance(3600)

    tend(store)

    assert [run(store, one).state for one in (broken, other)] == ["failed", "failed"]
    assert "compensation" in (run(store, broken).error or "")
    assert tend(store) == 0


def test_a_large_fan_out_is_made_in_pages(store: Subject) -> None:
    flow_id = start(store, fan()).id

    work(store, flow_id, "A", "P", results={"norm": {"files": list(range(2_300))}}, limit=1_000)

    assert run(store, flow_id).counts["succeeded"] == 2_303
    assert run(store, flow_id).state == "completed"


def test_a_retry_of_a_fan_out_runs_its_failed_items_again(store: Subject) -> None:
    flow_id = start(store, fan()).id
    work(store, flow_id, "A", "P", failing={"pictures/1"}, results={"norm": {"files": [1, 2, 3]}})
    assert run(store, flow_id).state == "failed"
    assert states(store, flow_id)["pictures"] == "failed"

    store.do(RetryWorkflow(flow_id, "ops", "fixed"))
    fold(store)

    assert work(store, flow_id, "A", "P") == ["pictures/1", "publish"]
    assert run(store, flow_id).state == "completed"


# --- escalation -------------------------------------------------------------------------------------------------------


def escalating(*levels: Escalation, count: int = 3, **settings: object) -> Workflow:
    flow = Workflow("asks", on_breach="escalate", escalate_to=levels, **settings)  # type: ignore[arg-type]
    first = [flow.task(f"t{number}", agent="A", task_type="t") for number in range(count)]
    flow.task("last", agent="A", task_type="t", after=[task.ended for task in first])
    return flow


PERSON = Escalation(person="ops")


def breached(store: Subject, flow: Workflow) -> str:
    """Started, its first task failed and the rest of its tasks succeeded, as far as they are released."""
    flow_id = start(store, flow).id
    work(store, flow_id, "A", failing={"t0"})
    return flow_id


def test_a_breach_asks_a_person_and_nothing_new_is_released(store: Subject) -> None:
    flow_id = breached(store, escalating(PERSON))

    found = run(store, flow_id)
    assert (found.state, found.phase) == ("escalated", "held")
    assert states(store, flow_id)["last"] == "blocked"
    [asked] = store.do(ListEscalations(person="ops"))
    assert (asked.workflow_id, asked.level, asked.reason, asked.state) == (flow_id, 1, "threshold", "open")
    assert asked.detail == "1 of 4 tasks failed"


@pytest.mark.parametrize(
    ("answer", "state", "last"),
    [
        ("go_on", "running", "queued"),
        ("fail", "failed", "cancelled"),
        ("cancel", "cancelled", "cancelled"),
        ("retry_failed", "running", "blocked"),
        ("raise_threshold", "running", "queued"),
    ],
)
def test_an_answer_decides(store: Subject, answer: str, state: str, last: str) -> None:
    flow_id = breached(store, escalating(PERSON))
    [asked] = escalations(store, flow_id)
    threshold = '{"count": 2}' if answer == "raise_threshold" else None

    done = store.do(AnswerEscalation(asked.id, answer, "jane", "seen", threshold))
    fold(store)

    assert (done.state, done.answer, done.answered_by) == ("answered", answer, "jane")
    assert run(store, flow_id).state == state
    assert states(store, flow_id)["last"] == last
    again = store.do(AnswerEscalation(asked.id, answer, "jane", "seen", threshold))
    assert again.answer == answer
    if answer != "fail":
        with pytest.raises(IllegalMove, match="too late"):
            store.do(AnswerEscalation(asked.id, "fail", "joe"))


def test_after_going_on_failures_count_no_more_and_after_raising_they_do(store: Subject) -> None:
    for answer, threshold, state in (("go_on", None, "completed"), ("raise_threshold", '{"count": 2}', "escalated")):
        flow_id = breached(store, escalating(PERSON))
        [asked] = escalations(store, flow_id)
        store.do(AnswerEscalation(asked.id, answer, "jane", None, threshold))
        fold(store)

        work(store, flow_id, "A", failing={"last"})

        assert run(store, flow_id).state == state
    assert [one.round for one in escalations(store, flow_id)] == [1, 2]


def test_an_answer_that_is_none_changes_nothing(store: Subject) -> None:
    flow_id = breached(store, escalating(PERSON))
    [asked] = escalations(store, flow_id)

    with pytest.raises(InvalidArgument, match="may be go_on"):
        store.do(AnswerEscalation(asked.id, "maybe", "jane"))
    with pytest.raises(InvalidArgument, match="needs the new `threshold`"):
        store.do(AnswerEscalation(asked.id, "raise_threshold", "jane"))
    with pytest.raises(NotFound):
        store.do(AnswerEscalation(new_job_id(), "go_on", "jane"))

    assert run(store, flow_id).state == "escalated"


def test_a_ladder_is_climbed_by_the_clock_and_its_end_is_failure(store: Subject) -> None:
    ladder = (
        Escalation(agent="Supervisor", task_type="review", after=HOUR),
        Escalation(person="ops", after=2 * HOUR),
        Escalation(queue="pager", task_type="page", after=HOUR),
    )
    flow_id = breached(store, escalating(*ladder))

    def level() -> list[tuple[int, str]]:
        return [(one.level, one.state) for one in escalations(store, flow_id)]

    assert level() == [(1, "open")]
    store.clock.advance(3599)
    assert tend(store) == 0
    store.clock.advance(1)
    assert tend(store) == 1
    assert level() == [(1, "passed"), (2, "open")]
    store.clock.advance(7200)
    tend(store)
    assert level() == [(1, "passed"), (2, "passed"), (3, "open")]
    assert claim_one(store, queue="pager").kind == "page"
    store.clock.advance(3600)
    tend(store)

    assert level() == [(1, "passed"), (2, "passed"), (3, "passed")]
    found = run(store, flow_id)
    assert found.state == "failed"
    assert "no one answered" in (found.error or "")


def test_an_agent_answers_by_the_result_of_its_task(store: Subject) -> None:
    flow_id = breached(store, escalating(Escalation(agent="Supervisor", task_type="review")))
    asked = claim_one(store, queue="Supervisor")
    assert asked.payload["workflow_id"] == flow_id
    assert asked.payload["counts"]["failed"] == 1

    complete(store, asked, result='{"answer": "go_on", "note": "a known fault"}')
    fold(store)

    [done] = escalations(store, flow_id)
    assert (done.state, done.answer, done.answered_by, done.note) == (
        "answered", "go_on", "Supervisor", "a known fault",
    )  # fmt: skip
    work(store, flow_id, "A")
    assert run(store, flow_id).state == "completed"


def test_an_agent_that_dies_or_says_nothing_hands_on_to_the_next_level(store: Subject) -> None:
    supervisor = Escalation(agent="Supervisor", task_type="review", after=HOUR, then_person="ops")
    for result in (None, '{"answer": "perhaps"}', "dead"):
        flow_id = breached(store, escalating(supervisor))
        asked = claim_one(store, queue="Supervisor")
        if result == "dead":
            fail(store, asked)
        else:
            complete(store, asked, result=result)
        fold(store)

        found = escalations(store, flow_id)
        assert [(one.level, one.state, one.person) for one in found] == [(1, "passed", None), (2, "open", "ops")]


@pytest.mark.parametrize(
    "result",
    [
        {"answer": ["go_on"]},
        {"answer": {"go_on": True}},
        {"answer": "raise_threshold"},
        {"answer": "raise_threshold", "threshold": {"count": 0}},
        {"answer": "raise_threshold", "threshold": {"count": "5"}},
        {"answer": "raise_threshold", "threshold": {"count": True}},
        {"answer": "raise_threshold", "threshold": {"count": 10**12}},
        {"answer": "raise_threshold", "threshold": {"count": 2, "ppm": 2}},
        {"answer": "raise_threshold", "threshold": {"ppm": 500_000, "at_least": "many"}},
        {"answer": "raise_threshold", "threshold": {"ppm": 500_000, "at_least": False}},
        {"answer": "raise_threshold", "threshold": [2]},
        ["go_on"],
        "go_on",
    ],
    ids=json.dumps,
)
def test_whatever_an_agent_answers_hurts_no_other_workflow(store: Subject, result: object) -> None:
    """A list as the answer made the whole settle fail on SQLite; an `at_least` that is no number stopped the folding of
    every workflow."""
    supervisor = Escalation(agent="Supervisor", task_type="review", after=HOUR, then_person="ops")
    flow_id = breached(store, escalating(supervisor))
    other = start(store, flat(1)).id

    complete(store, claim_one(store, queue="Supervisor"), result=json.dumps(result))
    fold(store)

    assert [(one.level, one.state) for one in escalations(store, flow_id)] == [(1, "passed"), (2, "open")]
    work(store, other, "A")
    assert run(store, other).state == "completed"


def test_an_agent_may_raise_the_threshold(store: Subject) -> None:
    for threshold in ({"count": 2}, {"count": 2, "ppm": None}, {"ppm": 400_000, "at_least": 1}):
        flow_id = breached(store, escalating(Escalation(agent="Supervisor", task_type="review")))
        result = {"answer": "raise_threshold", "threshold": threshold}
        complete(store, claim_one(store, queue="Supervisor"), result=json.dumps(result))
        fold(store)

        work(store, flow_id, "A")
        assert run(store, flow_id).state == "completed"


def test_a_level_that_cannot_be_asked_is_passed_over(store: Subject) -> None:
    """Its queue was removed, which is allowed while it is empty. No workflow at all was folded any more."""
    ladder = (Escalation(agent="Supervisor", task_type="review", after=HOUR), PERSON)
    flow_id = start(store, escalating(*ladder)).id
    store.do(RemoveQueues(["Supervisor"], "ops"))

    work(store, flow_id, "A", failing={"t0"})

    found = escalations(store, flow_id)
    assert [(one.level, one.state) for one in found] == [(1, "passed"), (2, "open")]
    assert "'Supervisor' does not exist" in (found[0].note or "") or "no queue 'Supervisor'" in (found[0].note or "")


def test_an_escalated_workflow_is_judged_by_its_deadline_once_it_goes_on(store: Subject) -> None:
    """The deadline that passed while a person was asked was forgotten."""
    flow_id = breached(store, escalating(PERSON, deadline=HOUR))
    store.clock.advance(3600)
    assert tend(store) == 0

    [asked] = escalations(store, flow_id)
    store.do(AnswerEscalation(asked.id, "go_on", "jane"))
    assert tend(store) == 1

    assert [(one.round, one.reason, one.state) for one in escalations(store, flow_id)] == [
        (1, "threshold", "answered"), (2, "deadline", "open"),
    ]  # fmt: skip


def test_a_revived_task_answers_the_question_of_its_workflow(store: Subject) -> None:
    flow_id = breached(store, escalating(PERSON))

    revive(store, id_of(store, flow_id, "t0"))
    fold(store)

    assert run(store, flow_id).state == "running"
    assert [one.state for one in escalations(store, flow_id)] == ["closed"]
    work(store, flow_id, "A")
    assert run(store, flow_id).state == "completed"


def test_a_deadline_is_a_breach(store: Subject) -> None:
    failing = start(store, flat(2, deadline=2 * HOUR)).id
    asking = start(store, escalating(PERSON, deadline=2 * HOUR)).id
    done = start(store, _done_in_time()).id
    work(store, done, "C")
    store.clock.advance(7199)
    assert tend(store) == 0

    store.clock.advance(1)
    assert tend(store) == 2

    assert (run(store, failing).state, run(store, failing).error) == ("failed", "the deadline has passed")
    assert set(states(store, failing).values()) == {"cancelled"}
    assert run(store, asking).state == "escalated"
    assert [one.reason for one in escalations(store, asking)] == ["deadline"]
    assert run(store, done).state == "completed"


def _done_in_time() -> Workflow:
    flow = Workflow("quick", deadline=2 * HOUR)
    flow.task("only", agent="C", task_type="t")
    return flow


def test_two_controllers_at_once_make_one_escalation(store: Subject) -> None:
    flows = [start(store, escalating(PERSON, deadline=HOUR)).id for _ in range(5)]
    store.clock.advance(3600)
    barrier = threading.Barrier(4)
    errors: list[BaseException] = []

    def controller() -> None:
        try:
            barrier.wait()
            store.do(TendWorkflows())
            fold(store)
        except BaseException as exc:  # noqa: BLE001 - shown below
            errors.append(exc)

    threads = [threading.Thread(target=controller) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    for flow_id in flows:
        assert run(store, flow_id).state == "escalated"
        assert [(one.level, one.state) for one in escalations(store, flow_id)] == [(1, "open")]


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_graph_shows_nodes_edges_and_counts(store: Subject) -> None:
    flow_id = start(store, diamond()).id
    work(store, flow_id, "B")
    complete(store, claim_one(store, queue="A"))
    fold(store)

    graph = store.do(GetGraph(flow_id))

    assert graph is not None
    names = {node.id: node.name for node in graph.nodes}
    assert [(node.name, node.agent, node.state, node.depth) for node in graph.nodes] == [
        ("top", "A", "succeeded", 0),
        ("left", "A", "queued", 1),
        ("right", "B", "queued", 1),
        ("bottom", "A", "blocked", 2),
    ]
    assert sorted((names[a], names[b], kind) for a, b, kind in graph.edges) == [
        ("left", "bottom", "ok"),
        ("right", "bottom", "ended"),
        ("top", "left", "ok"),
        ("top", "right", "ok"),
    ]
    assert graph.counts["succeeded"] == 1
    assert store.do(GetGraph(new_job_id())) is None


def test_a_large_graph_is_folded_by_agent_type_and_depth(store: Subject) -> None:
    flow = Workflow("wide")
    top = flow.task("top", agent="A", task_type="t")
    for number in range(50):
        flow.task(f"b{number}", agent="B", task_type="t", after=[top])
    flow_id = start(store, flow).id
    work(store, flow_id, "A")
    complete(store, claim_one(store, queue="B"))
    fold(store)

    graph = store.do(GetGraph(flow_id, limit=10))

    assert graph is not None
    assert graph.is_folded
    assert [(node.id, node.tasks, dict(node.states)) for node in graph.nodes] == [
        ("A/t/0", 1, {"succeeded": 1}),
        ("B/t/1", 50, {"queued": 49, "succeeded": 1}),
    ]
    assert graph.edges == [("A/t/0", "B/t/1", "ok")]


def test_plain_settles_write_no_workflow_events(store: Subject) -> None:
    store.do(JoinWorkflow([new_job()]))
    complete(store, claim_one(store))

    assert fold(store) == 0
