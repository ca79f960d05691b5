"""Workflows in PostgreSQL, as calls of functions. What is decided is decided there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.model.workflow import Graph, Node
from tenure.store.contract import Enqueue, Request
from tenure.store.postgres.codec import Call, decode_enqueue, encode, encode_enqueue
from tenure.store.postgres.codec import text as quote
from tenure.store.queries import Page
from tenure.store.workflows import (
    Advanced,
    AdvanceWorkflows,
    AnswerEscalation,
    AreWorkflowsDue,
    CancelWorkflow,
    EscalationRow,
    GetGraph,
    GetWorkflow,
    JoinWorkflow,
    ListEscalations,
    ListTasks,
    ListWorkflows,
    RetryWorkflow,
    Started,
    StartWorkflow,
    TaskRow,
    TendWorkflows,
    WorkflowRow,
    check_start,
)

_NEVER: Final = datetime.fromisoformat("9999-12-31T00:00:00+00:00")


def _start(request: StartWorkflow) -> str:
    check_start(request)
    new = request.workflow
    parts = [
        f'"id":{quote(new.id)},"name":{quote(new.name)},"total":{new.total},"digest":{quote(new.digest)}',
        f'"policy":{new.policy},"actor":{quote(new.actor)},"profile":{quote(new.profile)},"data":{new.data}',
    ]
    if new.key is not None:
        parts.append(f'"key":{quote(new.key)}')
    if new.tenant is not None:
        parts.append(f'"tenant":{quote(new.tenant)}')
    if new.deadline_seconds is not None:
        parts.append(f'"deadline":{new.deadline_seconds}')
    told = [f'"workflow":{{{",".join(parts)}}}', f'"last":{json.dumps(request.is_last)}']
    if request.tasks:
        rows = ",".join(
            f"[{quote(task.job.id)},{quote(task.name)},{task.needs},{task.depth},{json.dumps(task.is_optional)},"
            f"{task.fan_out or 'null'}]"
            for task in request.tasks
        )
        waiting = [replace(task.job, run_at=_NEVER, delay_seconds=None) for task in request.tasks]
        jobs = encode_enqueue(Enqueue(waiting, request.create_queues))
        told += [f'"tasks":[{rows}]', f'"jobs":{jobs}']
    if request.edges:
        told.append(f'"edges":{json.dumps([list(edge) for edge in request.edges])}')
    return f"{{{','.join(told)}}}"


def _join(request: JoinWorkflow) -> str:
    return f'{{"jobs":{encode_enqueue(Enqueue(request.jobs, request.create_queues))}}}'


def _answer(request: AnswerEscalation) -> str:
    said = {"id": request.id, "answer": request.answer, "actor": request.actor, "note": request.note}
    threshold = "" if request.threshold is None else f',"threshold":{request.threshold}'
    return f"{json.dumps(said)[:-1]}{threshold}}}"


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def _workflow(row: Sequence[Any]) -> WorkflowRow:
    times = from_us(row[12]), from_us(row[13]), _moment(row[14]), _moment(row[15])
    values: tuple[Any, ...] = (*row[:12], *times, *row[16:])
    return WorkflowRow(*values)


def _task(row: Sequence[Any]) -> TaskRow:
    values: tuple[Any, ...] = (*row[:10], _moment(row[10]), _moment(row[11]), *row[12:])
    return TaskRow(*values)


def _escalation(row: Sequence[Any]) -> EscalationRow:
    values: tuple[Any, ...] = (*row[:9], from_us(row[9]), _moment(row[10]), _moment(row[11]), *row[12:])
    return EscalationRow(*values)


def _workflows(answer: Any, request: ListWorkflows) -> Page[WorkflowRow]:
    rows = [_workflow(row) for row in answer]
    return Page(rows, rows[-1].id if rows and len(rows) == request.limit else None)


def _tasks(answer: Any, request: ListTasks) -> Page[TaskRow]:
    rows = [_task(row) for row in answer]
    return Page(rows, rows[-1].job_id if rows and len(rows) == request.limit else None)


def get_graph(request: GetGraph, do: Callable[[Request[Any]], Any], call: Callable[[str, str], Any]) -> Graph | None:
    """See store.workflows.GetGraph."""
    found: WorkflowRow | None = do(GetWorkflow(request.id))
    if found is None:
        return None
    is_folded = found.total > request.limit
    answer = call("workflow_edges", json.dumps({"id": request.id, "folded": is_folded}))
    if is_folded:
        return _folded(answer, found.counts)
    tasks: Page[TaskRow] = do(ListTasks(request.id, limit=request.limit))
    nodes = [
        Node(
            task.job_id, task.name, task.agent, task.task_type, task.state, task.depth, task.attempt, 1,
            task.is_optional, {}, task.claimed_at, task.finished_at,
        )
        for task in tasks
    ]  # fmt: skip
    return Graph(nodes, [(src, dst, kind) for src, dst, kind in answer], found.counts)


def _folded(answer: Any, counts: Mapping[str, int]) -> Graph:
    groups: dict[str, list[Any]] = {}
    for row in answer["nodes"]:
        groups.setdefault(f"{row[0]}/{row[1]}/{row[2]}", []).append(row)
    edges = [(f"{row[0]}/{row[1]}/{row[2]}", f"{row[3]}/{row[4]}/{row[5]}", row[6]) for row in answer["edges"]]
    return Graph([Node.fold(name, rows) for name, rows in groups.items()], edges, counts, is_folded=True)


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    StartWorkflow: Call("start_workflow", _start, lambda answer, _: Started(**answer)),
    JoinWorkflow: Call("join_workflow", _join, lambda answer, r: decode_enqueue(answer, Enqueue(r.jobs))),
    AdvanceWorkflows: Call("advance_workflows", encode, lambda answer, _: Advanced(**answer)),
    AreWorkflowsDue: Call("are_workflows_due", lambda _: "{}", lambda answer, _: bool(answer)),
    TendWorkflows: Call("tend_workflows", encode, lambda answer, _: int(answer)),
    GetWorkflow: Call(
        "list_workflows",
        lambda r: json.dumps({"id": r.id, "limit": 1}),
        lambda answer, _: _workflow(answer[0]) if answer else None,
    ),
    ListWorkflows: Call("list_workflows", encode, _workflows),
    ListTasks: Call("list_tasks", encode, _tasks),
    CancelWorkflow: Call("cancel_workflow", encode, lambda answer, _: _workflow(answer)),
    RetryWorkflow: Call("retry_workflow", encode, lambda answer, _: _workflow(answer)),
    ListEscalations: Call("list_escalations", encode, lambda answer, _: [_escalation(row) for row in answer]),
    AnswerEscalation: Call("answer_escalation", _answer, lambda answer, _: _escalation(answer)),
}
