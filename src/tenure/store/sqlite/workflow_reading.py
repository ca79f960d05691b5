"""Looking at workflows: their state, tasks, graph and escalations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from tenure.model.clock import from_us
from tenure.model.workflow import Graph, Node
from tenure.store import workflows as asked
from tenure.store.queries import Page
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

_SQL: Final = load("workflow_reading")


def get_workflow(transaction: Transaction, request: asked.GetWorkflow) -> asked.WorkflowRow | None:
    """See store.workflows.GetWorkflow."""
    return next(iter(_list(transaction, request.id, asked.ListWorkflows(limit=1))), None)


def list_workflows(transaction: Transaction, request: asked.ListWorkflows) -> Page[asked.WorkflowRow]:
    """See store.workflows.ListWorkflows."""
    check_limit(request.limit)
    rows = list(_list(transaction, None, request))
    return Page(rows, rows[-1].id if rows and len(rows) == request.limit else None)


def read_workflow(transaction: Transaction, workflow_id: str) -> asked.WorkflowRow:
    """A workflow that is known to be there."""
    return next(_list(transaction, workflow_id, asked.ListWorkflows(limit=1)))


def _list(
    transaction: Transaction, workflow_id: str | None, request: asked.ListWorkflows
) -> Iterator[asked.WorkflowRow]:
    values = {
        "id": workflow_id,
        "names": dump(list(request.names)),
        "states": dump(list(request.states)),
        "after": request.after,
        "limit": request.limit,
    }
    for row in transaction.all(_SQL["list_workflows"], values):
        times = from_us(row[12]), from_us(row[13]), moment(row[14]), moment(row[15])
        policy, data = json.loads(row[10]), json.loads(row[20])
        told: Row = (*row[:10], policy, row[11], *times, *row[16:20], data)
        yield asked.WorkflowRow(*told)


def list_tasks(transaction: Transaction, request: asked.ListTasks) -> Page[asked.TaskRow]:
    """See store.workflows.ListTasks."""
    check_limit(request.limit)
    rows = list(_tasks(transaction, request))
    return Page(rows, rows[-1].job_id if rows and len(rows) == request.limit else None)


def _tasks(transaction: Transaction, request: asked.ListTasks) -> Iterator[asked.TaskRow]:
    values = {
        "id": request.id,
        "after": request.after,
        "names": dump(list(request.names)),
        "outcomes": dump(list(request.outcomes)),
        "limit": request.limit,
    }
    for row in transaction.all(_SQL["list_tasks"], values):
        result = None if row[13] is None else json.loads(row[13])
        times = moment(row[10]), moment(row[11])
        told: Row = (*row[:8], bool(row[8]), row[9], *times, row[12], result)
        yield asked.TaskRow(*told)


def get_graph(transaction: Transaction, request: asked.GetGraph) -> Graph | None:
    """See store.workflows.GetGraph."""
    check_limit(request.limit)
    found = get_workflow(transaction, asked.GetWorkflow(request.id))
    if found is None:
        return None
    if found.total > request.limit:
        return _folded(transaction, request.id, found.counts)
    tasks = list(_tasks(transaction, asked.ListTasks(request.id, limit=request.limit)))
    nodes = [
        Node(
            task.job_id, task.name, task.agent, task.task_type, task.state, task.depth, task.attempt, 1,
            task.is_optional, {}, task.claimed_at, task.finished_at,
        )
        for task in tasks
    ]  # fmt: skip
    edges = transaction.all(_SQL["edges"], {"id": request.id})
    return Graph(nodes, [(src, dst, kind) for src, dst, kind in edges], found.counts)


def _folded(transaction: Transaction, workflow_id: str, counts: Mapping[str, int]) -> Graph:
    groups: dict[str, list[Row]] = {}
    for row in transaction.all(_SQL["folded_nodes"], {"id": workflow_id}):
        groups.setdefault(f"{row[0]}/{row[1]}/{row[2]}", []).append(row)
    nodes = [Node.fold(name, rows) for name, rows in groups.items()]
    edges = [
        (f"{row[0]}/{row[1]}/{row[2]}", f"{row[3]}/{row[4]}/{row[5]}", row[6])
        for row in transaction.all(_SQL["folded_edges"], {"id": workflow_id})
    ]
    return Graph(nodes, edges, counts, is_folded=True)


def list_escalations(transaction: Transaction, request: asked.ListEscalations) -> list[asked.EscalationRow]:
    """See store.workflows.ListEscalations."""
    check_limit(request.limit)
    values = {
        "workflow_id": request.workflow_id,
        "person": request.person,
        "states": dump(list(request.states)),
        "limit": request.limit,
    }
    return [_escalation(row) for row in transaction.all(_SQL["list_escalations"], values)]


def find_escalation(transaction: Transaction, escalation_id: str) -> asked.EscalationRow | None:
    """An escalation; None if there is none."""
    row = transaction.one(_SQL["escalation"], (escalation_id,))
    return None if row is None else _escalation(row)


def _escalation(row: Row) -> asked.EscalationRow:
    times = from_us(row[9]), moment(row[10]), moment(row[11])
    values: Row = (*row[:7], json.loads(row[7]), row[8], *times, *row[12:])
    return asked.EscalationRow(*values)
