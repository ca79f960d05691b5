"""Compensation of workflows: what succeeded is undone when a workflow fails or is cancelled.

`flow.task(…, undo="cancel_booking")` names the kind that undoes a task. The transaction that ends the workflow puts one
durable job into the queue `compensation`; it waits until no task is open any more, then undoes by falling depth: tasks
that depend on others first. All undos of one depth run side by side as jobs in the queues of their agents, with the
task's name, payload and result. An undo that fails for good leaves a dead letter of its own and one of the compensation
job, which a person may revive: what is undone already is not undone again.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final, TypedDict

from tenure.handler.context import Context
from tenure.handler.payload import Later, payload_codec
from tenure.handler.registry import Handler
from tenure.handler.signals import Permanent, Snooze
from tenure.model.frozen import frozen
from tenure.model.policy import QueuePolicy
from tenure.model.workflow import UNDO_KIND, UNDO_QUEUE, WorkflowState
from tenure.store.queries import GetJobs
from tenure.store.workflows import GetWorkflow, ListTasks, TaskRow

PAGE: Final = 500
LOOK_SECONDS: Final = 2.0
"""How long it waits for tasks that still run."""


class Ended(TypedDict):
    """The payload: the workflow that failed or was cancelled."""

    workflow_id: str


@frozen
class Compensation:
    """The kit of compensation."""

    def install(self, app: Any) -> None:
        """Called by `app.use`."""
        encode, decode = payload_codec(Later(lambda: Ended), UNDO_KIND, app.registry.limits)
        app.registry.add(
            Handler(
                kind=UNDO_KIND,
                queue=UNDO_QUEUE,
                function=undo_workflow,
                mode="thread",
                decode=decode,
                encode=encode,
                wants_payload=True,
                wants_context=True,
                needs_store=True,
                is_durable=True,
            )
        )
        app.registry.queues.setdefault(UNDO_QUEUE, QueuePolicy())


def compensation() -> Compensation:
    """Undo what failed and cancelled workflows did, for `app.use(compensation())`."""
    return Compensation()


def undo_workflow(payload: Ended, ctx: Context) -> dict[str, int]:
    """Undo the tasks that succeeded, deepest first."""
    workflow_id = payload["workflow_id"]
    run = _call(ctx, GetWorkflow(workflow_id))
    if run is None:
        raise Permanent(f"There is no workflow {workflow_id}, so there is nothing to undo.")
    if run.state not in (WorkflowState.FAILED, WorkflowState.CANCELLED):
        raise Permanent(f"Workflow {workflow_id} is {run.state}, and only what failed or was cancelled is undone.")
    if _call(ctx, ListTasks(workflow_id, outcomes=("open",), limit=1)).items:
        raise Snooze(LOOK_SECONDS, "tasks of the workflow have not ended yet")
    todo = ctx.step("tasks", lambda: _todo(ctx, workflow_id, run.policy.get("undo") or {}))
    for depth, tasks in groupby(todo, key=lambda one: one["depth"]):
        children = [
            ctx.spawn("undo", one["kind"], _facts(ctx, workflow_id, one), key=one["job_id"], queue=one["agent"])
            for one in tasks
        ]
        ctx.gather(*children, key=depth)
    return {"undone": len(todo)}


def _todo(ctx: Context, workflow_id: str, undo: dict[str, str]) -> list[dict[str, Any]]:
    """What is to be undone, deepest first; without payloads and results, which may be large."""
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = _call(ctx, ListTasks(workflow_id, outcomes=("succeeded",), limit=PAGE, after=after))
        for task in page.items:
            kind = _undone_by(task, undo)
            if kind is not None:
                found.append(
                    {"depth": task.depth, "job_id": task.job_id, "name": task.name, "agent": task.agent, "kind": kind}
                )
        after = page.next
        if after is None:
            return sorted(found, key=lambda one: (-one["depth"], one["job_id"]))


def _undone_by(task: TaskRow, undo: dict[str, str]) -> str | None:
    """The kind that undoes a task; an item `name/3` of a fan-out stands under `name/`."""
    return undo.get(task.name) or undo.get(f"{task.name.rpartition('/')[0]}/")


def _facts(ctx: Context, workflow_id: str, one: dict[str, Any]) -> dict[str, Any]:
    (job,) = _call(ctx, GetJobs([one["job_id"]]))
    return {
        "workflow_id": workflow_id,
        "task": one["name"],
        "job_id": one["job_id"],
        "payload": None if job is None else job.payload,
        "result": None if job is None else job.result,
    }


def _call(ctx: Context, request: Any) -> Any:
    assert ctx.services.call is not None
    return ctx.services.call(request)
