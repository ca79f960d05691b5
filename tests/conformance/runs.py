"""Workflows under test: start one, work on its tasks, look at it. Nothing here decides anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence

from tenure.flow.workflows import prepare, requests
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Failed, Outcome, Rejected
from tenure.model.policy import Limits, QueuePolicy
from tenure.model.workflow import Workflow
from tenure.store.contract import Claim, Settle
from tenure.store.workflows import (
    AdvanceWorkflows,
    EscalationRow,
    GetWorkflow,
    ListEscalations,
    ListTasks,
    Started,
    TaskRow,
    TendWorkflows,
    WorkflowRow,
)
from tests.conformance.acts import NO_BACKOFF, Subject

AGENT = QueuePolicy(backoff=NO_BACKOFF, max_attempts=1, key_scope="none")


def start(
    store: Subject, flow: Workflow, *, key: str | None = None, workflow_id: str | None = None, pages: int | None = None
) -> Started:
    """Start a workflow as the App does; `pages` breaks off after so many."""
    prepared = prepare(flow, lambda _: None, Limits(), key=key, actor="test", tenant=None)
    queues = dict.fromkeys(sorted(prepared.queues), AGENT)
    started = None
    for number, request in enumerate(requests(prepared, workflow_id or new_job_id(), queues)):
        if pages is not None and number >= pages:
            break
        started = store.do(request)
        if started.duplicate:
            break
    assert started is not None
    fold(store)
    return started


def fold(store: Subject) -> int:
    """Fold everything that is there; how many events that were."""
    folded = 0
    while True:
        advanced = store.do(AdvanceWorkflows())
        folded += advanced.events
        if not advanced.more:
            return folded


def tend(store: Subject) -> int:
    """What the orchestrator does by time, and what follows from it."""
    done = store.do(TendWorkflows())
    fold(store)
    return done


def run(store: Subject, workflow_id: str) -> WorkflowRow:
    found = store.do(GetWorkflow(workflow_id))
    assert found is not None
    return found


def tasks(store: Subject, workflow_id: str) -> dict[str, TaskRow]:
    found: dict[str, TaskRow] = {}
    after = None
    while True:
        page = store.do(ListTasks(workflow_id, limit=1000, after=after))
        found.update((task.name, task) for task in page)
        after = page.next
        if after is None:
            return found


def states(store: Subject, workflow_id: str) -> dict[str, str]:
    return {name: task.state for name, task in tasks(store, workflow_id).items()}


def escalations(store: Subject, workflow_id: str, states: Sequence[str] = ()) -> list[EscalationRow]:
    return store.do(ListEscalations(workflow_id, states=states))


def grants(store: Subject, *queues: str, limit: int = 500) -> list[Grant]:
    return store.do(Claim(WorkerId("w1"), queues, limit))


def work(
    store: Subject,
    workflow_id: str,
    *queues: str,
    failing: Collection[str] = (),
    rejected: Collection[str] = (),
    results: dict[str, object] | None = None,
    limit: int = 500,
    after_each: Callable[[], None] | None = None,
) -> list[str]:
    """Run the tasks that are released, until there are none: by name they fail, are rejected, or succeed with a result.
    Answers the names in the order in which they were granted."""
    done: list[str] = []
    names = {task.job_id: name for name, task in tasks(store, workflow_id).items()}
    while True:
        held = grants(store, *queues, limit=limit)
        if not held:
            return done
        if any(grant.id not in names for grant in held):
            names = {task.job_id: name for name, task in tasks(store, workflow_id).items()}
        outcomes = [_outcome(grant, names.get(grant.id, ""), failing, rejected, results or {}) for grant in held]
        store.do(Settle(outcomes))
        fold(store)
        done += [names.get(grant.id, grant.kind) for grant in held]
        if after_each is not None:
            after_each()


def _outcome(
    grant: Grant, name: str, failing: Collection[str], rejected: Collection[str], results: dict[str, object]
) -> Outcome:
    if name in failing:
        return Failed(grant.id, grant.token, "boom")
    if name in rejected:
        return Rejected(grant.id, grant.token, "never")
    return Completed(grant.id, grant.token, json.dumps(results.get(name)) if name in results else None)


def id_of(store: Subject, workflow_id: str, name: str) -> JobId:
    return tasks(store, workflow_id)[name].job_id
