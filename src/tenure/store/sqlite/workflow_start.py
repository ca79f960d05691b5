"""Starting workflows, page by page, and joining them. The rules stand in store.workflows."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tenure.errors import IllegalMove, InvalidArgument, KeyConflict
from tenure.model.clock import from_us
from tenure.model.job import Enqueued
from tenure.model.workflow import ENDED_STATES
from tenure.store import workflows as asked
from tenure.store.contract import Enqueue
from tenure.store.sqlite import enqueue
from tenure.store.sqlite.flow import NEVER
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, dump
from tenure.store.sqlite.workflow_fold import advance_by
from tenure.store.sqlite.workflow_row import add_tasks, get_run, grow, put_events

_SQL: Final = load("workflow_start")
_WRONG_EDGES: Final = {
    "edge_astray": "an edge names a job that is no task of this workflow. Nothing was started. Send the tasks first.",
    "edge_back": "a task waits for one that is not before it by depth, so the graph may have a circle. Nothing was "
    "started. Give each task a greater depth than all that it waits for.",
}


def start(transaction: Transaction, request: asked.StartWorkflow) -> asked.Started:
    """See store.workflows.StartWorkflow."""
    asked.check_start(request)
    new = request.workflow
    slot = None if new.key is None else f"{new.name}\x1f{new.key}"
    due_at = None if new.deadline_seconds is None else transaction.now + round(new.deadline_seconds * 1_000_000)
    values = {
        "id": new.id, "profile": new.profile, "name": new.name, "total": new.total, "policy": new.policy,
        "key": new.key, "slot": slot, "digest": new.digest, "due_at": due_at, "actor": new.actor,
        "tenant": new.tenant, "data": new.data, "now": transaction.now,
    }  # fmt: skip
    transaction.run(_SQL["insert_workflow"], values)
    if slot is not None:
        holder = transaction.one(_SQL["by_slot"], (slot,))
        assert holder is not None
        held_by, state, phase, digest = holder
        if digest != new.digest:
            raise KeyConflict(
                f"Key {new.key!r} of workflow {new.name!r} belongs to run {held_by}, which has another graph. Nothing "
                "was started. Use another key, or start the same graph."
            )
        if held_by != new.id:
            return asked.Started(held_by, state, duplicate=phase != "loading")
    if get_run(transaction, new.id).phase == "loading":
        _load(transaction, request)
    if request.is_last and transaction.one(_SQL["begin"], {"id": new.id, "now": transaction.now}) is not None:
        put_events(transaction, [("release", new.id)])
        advance_by(transaction)
    return asked.Started(new.id, get_run(transaction, new.id).state)


def _load(transaction: Transaction, request: asked.StartWorkflow) -> None:
    """One page of tasks and edges. Raises: InvalidArgument."""
    workflow_id = request.workflow.id
    names = dump([(task.job.id, task.name) for task in request.tasks])
    if (row := transaction.one(_SQL["name_taken"], {"workflow_id": workflow_id, "tasks": names})) is not None:
        raise InvalidArgument(
            f"Workflow {workflow_id}: two tasks are named {row[0]!r}. Nothing was started. Give each its own name."
        )
    jobs = [replace(task.job, run_at=from_us(NEVER), delay_seconds=None) for task in request.tasks]
    if jobs:
        enqueue.enqueue(transaction, Enqueue(jobs, request.create_queues))
        transaction.run(_SQL["block_jobs"], {"ids": dump([job.id for job in jobs]), "never": NEVER})
        rows = [
            (task.job.id, task.name, task.needs, task.depth, int(task.is_optional), task.fan_out, None, 0)
            for task in request.tasks
        ]
        sent = add_tasks(transaction, workflow_id, rows)
        transaction.run(_SQL["note_sent"], {"id": workflow_id, "tasks": sent})
    if request.edges:
        edges = dump(list(request.edges))
        for wrong, why in _WRONG_EDGES.items():
            if transaction.one(_SQL[wrong], {"workflow_id": workflow_id, "edges": edges}) is not None:
                raise InvalidArgument(f"Workflow {workflow_id}: {why}")
        transaction.run(_SQL["insert_edges"], {"edges": edges})
    if request.is_last and transaction.one(_SQL["is_complete"], (workflow_id,)) is None:
        raise InvalidArgument(
            f"Workflow {workflow_id} is to have {request.workflow.total} tasks, and others were sent. Nothing was "
            "started. Send every task before the last page."
        )


def join(transaction: Transaction, request: asked.JoinWorkflow) -> list[Enqueued]:
    """See store.workflows.JoinWorkflow."""
    named = {job.workflow_id for job in request.jobs if job.workflow_id is not None}
    states: dict[str, str] = dict(transaction.all(_SQL["open_workflows"], {"ids": dump(sorted(named))}))
    for workflow_id, state in states.items():
        if state in ENDED_STATES:
            raise IllegalMove(
                f"Workflow {workflow_id} is {state}, so no task can join it. Nothing was created. Start a new one, or "
                "create the task without `workflow_id`."
            )
    answers = enqueue.enqueue(transaction, Enqueue(request.jobs, request.create_queues))
    for job, answer in zip(request.jobs, answers, strict=True):
        if job.workflow_id in states and not answer.duplicate:
            row = (job.id, f"{job.kind}/{job.id}", 0, 0, 0, None, None, 1)
            if add_tasks(transaction, job.workflow_id, [row]):
                grow(transaction, job.workflow_id, 1)
    return answers
