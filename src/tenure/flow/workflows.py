"""From a graph of tasks to the requests that start it: ids, payloads and pages of bounded size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tenure.handler.building import build_job
from tenure.handler.registry import Handler
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import NewJob
from tenure.model.policy import Limits, QueuePolicy
from tenure.model.workflow import UNDO_QUEUE, Plan, Task, Workflow
from tenure.store.workflows import PAGE_TASKS, Edge, NewTask, NewWorkflow, StartWorkflow

PAGE_CHARS: Final = 4 * 1024 * 1024
"""Payload in one page."""


@frozen
class Start:
    """A start that was checked: the workflow without its id, its plan, and the payload of each task as JSON."""

    flow: Workflow
    plan: Plan
    jobs: tuple[NewJob, ...]
    digest: str
    key: str | None
    actor: str
    tenant: str | None

    @property
    def queues(self) -> set[str]:
        """Every queue in which it puts a job."""
        asking = {level["queue"] for level in self.flow.ladder() if "queue" in level}
        undoing = {UNDO_QUEUE} if any(task.undo for task in self.plan.tasks) else set()
        return asking | undoing | {task.agent for task in self.plan.tasks}


def prepare(
    flow: Workflow,
    find: Callable[[str], Handler | None],
    limits: Limits,
    *,
    key: str | None,
    actor: str,
    tenant: str | None,
) -> Start:
    """Check a graph whole: its shape, and each payload by its handler where this code has one.

    Raises: InvalidArgument, InvalidPayload.
    """
    plan = flow.plan()
    jobs = tuple(_job(task, find(task.task_type), limits, actor, tenant) for task in plan.tasks)
    return Start(flow, plan, jobs, _digest(flow, plan, jobs), key, actor, tenant)


def requests(start: Start, workflow_id: str, queues: Mapping[str, QueuePolicy]) -> Iterator[StartWorkflow]:
    """The pages that start it, to be sent in order. Nothing runs before the last; sending one again does no harm."""
    tasks, edges = start.plan.tasks, start.plan.edges
    ids = [task_id(workflow_id, place) for place in range(len(tasks))]
    number = {task.name: place for place, task in enumerate(tasks)}
    flow = start.flow
    deadline = None if flow.deadline is None else flow.deadline.total_seconds()
    new = NewWorkflow(
        workflow_id, flow.name, len(tasks), start.digest, flow.policy(), start.key, deadline, start.actor,
        start.tenant, flow.profile,
    )  # fmt: skip
    page: list[NewTask] = []
    chars = 0
    for place, task in enumerate(tasks):
        job = start.jobs[place]
        job.id, job.workflow_id = ids[place], workflow_id
        if page and (len(page) >= PAGE_TASKS or chars + len(job.payload) > PAGE_CHARS):
            yield StartWorkflow(new, page, is_last=False, create_queues=queues)
            page, chars = [], 0
        needs, depth = start.plan.needs[place], start.plan.depths[place]
        page.append(NewTask(job, task.name, needs, depth, task.is_optional, _fan(task, ids, number)))
        chars += len(job.payload)
    if len(tasks) <= PAGE_TASKS and len(edges) <= PAGE_TASKS and len(page) == len(tasks):
        yield StartWorkflow(new, page, [(ids[a], ids[b], kind) for a, b, kind in edges], create_queues=queues)
        return
    yield StartWorkflow(new, page, is_last=False, create_queues=queues)
    for first in range(0, len(edges), PAGE_TASKS):
        part: list[Edge] = [(ids[a], ids[b], kind) for a, b, kind in edges[first : first + PAGE_TASKS]]
        yield StartWorkflow(new, (), part, is_last=False)
    yield StartWorkflow(new)


def task_id(workflow_id: str, place: int) -> JobId:
    """The id of a task's job: made from the workflow's, so that a start that broke off finds what it wrote; rising, as
    the order of tasks is."""
    number = int(workflow_id.replace("-", ""), 16)
    seed = int.from_bytes(hashlib.sha256(workflow_id.encode()).digest()[:6], "big")
    counter = (place + 1) & 0x3FFFFFF
    made = number >> 80 << 80 | 0x7 << 76 | counter >> 14 << 64 | 0b10 << 62 | (counter & 0x3FFF) << 48 | seed
    digits = f"{made:032x}"
    return JobId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


def _job(task: Task, handler: Handler | None, limits: Limits, actor: str, tenant: str | None) -> NewJob:
    options = {
        "queue": task.agent,
        "priority": task.priority,
        "max_attempts": task.max_attempts,
        "actor": actor,
        "tenant": tenant,
    }
    # The items of a fan-out get their payloads later, so its own is no payload of the handler's yet.
    checked = None if task.over is not None else handler
    return build_job(task.task_type, task.payload, options, checked, limits, task.agent)


def _fan(task: Task, ids: list[JobId], number: Mapping[str, int]) -> str | None:
    spec: dict[str, Any] | None = task.fan_out()
    if spec is None:
        return None
    return json.dumps({**spec, "of": ids[number[spec["of"]]]})


def _digest(flow: Workflow, plan: Plan, jobs: tuple[NewJob, ...]) -> str:
    """Of everything that makes the graph what it is."""
    found = hashlib.sha256(flow.policy().encode())
    for task, job in zip(plan.tasks, jobs, strict=True):
        fan_out = task.fan_out()
        said = [task.name, task.agent, task.task_type, job.payload, task.is_optional, task.priority, task.max_attempts]
        found.update(json.dumps([*said, sorted(task.after), fan_out]).encode())
    return found.hexdigest()
