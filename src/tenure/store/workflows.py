"""The contract for workflows: a graph of tasks that moves by the ends of its tasks. No process controls it.

Each task is a job with `workflow_id`. A blocked one is `waiting` for `needs`. Whenever such a job ends, or is revived,
an event row is committed with that move; `AdvanceWorkflows` folds events into counts, releases and skips successors
and judges the policy, one bounded transaction at a time. Any worker may call it, at any moment, twice at once: an event
says no more than «look at this job», so folding it again changes nothing. SQLite folds within the settling transaction
as far as a page goes; on PostgreSQL the sweep of `store.flow` does it in a transaction of its own. What happens by time
(deadlines, ladders of escalation) is `TendWorkflows`, called by the holder of the lease `orchestrator`.

Rules:

- A task that succeeded counts as `succeeded`; dead or failed as `failed`, or `tolerated` if it is optional or an item
  of a fan-out; `cancelled` if it was cancelled; `skipped` if a task that it needs cannot succeed any more.
- An edge `ok` is met by success alone, an edge `ended` by every end. A task is released when all its edges are met. An
  edge that cannot be met skips it: its job is cancelled, class `upstream`, and so on down the graph.
- A revived task is counted no more; what was skipped because of it waits again, and an ended workflow runs again.
- A breach (threshold reached, deadline passed) does what the policy says. Of two breaches at once one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import Enqueued, NewJob
from tenure.model.policy import QueuePolicy
from tenure.model.workflow import MAX_TASKS, Graph
from tenure.store.contract import Request
from tenure.store.queries import Page

PAGE_TASKS = 1_000
"""Tasks, edges and releases in one transaction at most."""


@frozen
class NewWorkflow:
    """A workflow to start."""

    id: str
    name: str
    total: int
    """Tasks it begins with, over all pages."""
    digest: str
    """Of the whole graph: the same key with another graph is a conflict."""
    policy: str = "{}"
    """JSON: `fail`, `on_breach`, `ladder`. See model.workflow."""
    key: str | None = None
    deadline_seconds: float | None = None
    actor: str = "app"
    tenant: str | None = None
    profile: str = "automechanica"
    data: str = "{}"
    """JSON of the caller's own."""


@frozen
class NewTask:
    """A task of a workflow: the job that carries it out, and its place in the graph."""

    job: NewJob
    name: str
    needs: int = 0
    depth: int = 0
    is_optional: bool = False
    fan_out: str | None = None
    """JSON, of a fan-out: `of` (the job whose result it reads), `path`, `tolerate_count` or `tolerate_ppm`."""


Edge = tuple[JobId, JobId, str]
"""From, to, `ok` or `ended`."""


@frozen
class Started:
    """What became of a start: the run's id, or that of the run that holds the key."""

    id: str
    state: str
    duplicate: bool = False


@frozen
class StartWorkflow(Request[Started]):
    """Write a workflow, its tasks (jobs that wait) and its edges; with `is_last` it begins.

    A large graph comes in several requests with the same `workflow`, each bounded; nothing runs before the last. Safe
    to repeat, page by page: what is there stays. A key that is taken by a run of the same graph answers that run with
    `duplicate`, unless that run was never begun: then its id is answered without `duplicate`, for the caller to go on.

    Every edge leads to a task of greater depth, so no graph has a circle.

    Raises: InvalidArgument (a circle, a name that two tasks have, an edge to what is no task, other tasks than `total`
    says), KeyConflict (the key belongs to another graph), UnknownQueue, GateClosed, and what Enqueue raises.
    """

    workflow: NewWorkflow
    tasks: Sequence[NewTask] = ()
    edges: Sequence[Edge] = ()
    is_last: bool = True
    create_queues: Mapping[str, QueuePolicy] = field(default_factory=dict)


@frozen
class JoinWorkflow(Request[list[Enqueued]]):
    """Enqueue jobs that name a workflow: each becomes a task of it and counts in its total. All or none.

    A `workflow_id` that no workflow has is a label, as on any job. Raises: IllegalMove (the workflow has ended), and
    what Enqueue raises.
    """

    jobs: Sequence[NewJob]
    create_queues: Mapping[str, QueuePolicy] = field(default_factory=dict)


@frozen
class Advanced:
    """What an advance did."""

    events: int
    """Events that were folded."""
    more: bool
    """There may be more to fold: call again."""


@frozen
class AdvanceWorkflows(Request[Advanced]):
    """Fold up to `limit` events: count ends, release and skip up to 1,000 successors, judge. Any process may."""

    limit: int = 500


@frozen
class AreWorkflowsDue(Request[bool]):
    """Whether there is something to fold or to tend. A cheap look, which changes nothing."""


@frozen
class TendWorkflows(Request[int]):
    """Carry out what is due by time: deadlines that passed, levels of escalation that were not answered. Answers how
    many there were. Safe when two do it at once."""

    limit: int = 100


@frozen
class WorkflowRow:
    """A workflow as stored. `state` is `waiting` where it runs and no task is queued or held."""

    id: str
    name: str
    state: str
    phase: str
    """loading, forward, held (escalated), draining, retrying."""
    total: int
    succeeded: int
    failed: int
    tolerated: int
    skipped: int
    cancelled: int
    policy: Any
    profile: str
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None = None
    due_at: datetime | None = None
    """Its deadline."""
    key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    error: str | None = None
    """Why it was breached or cancelled."""
    data: Any = None

    @property
    def ended(self) -> int:
        """Tasks that have ended, however."""
        return self.succeeded + self.failed + self.tolerated + self.skipped + self.cancelled

    @property
    def counts(self) -> dict[str, int]:
        """Tasks by how they ended, and those still open."""
        names = ("total", "succeeded", "failed", "tolerated", "skipped", "cancelled")
        return {**{name: getattr(self, name) for name in names}, "open": self.total - self.ended}


@frozen
class GetWorkflow(Request[WorkflowRow | None]):
    """One workflow by its id."""

    id: str


@frozen
class ListWorkflows(Request[Page[WorkflowRow]]):
    """Workflows that match, newest first by id."""

    states: Sequence[str] = ()
    names: Sequence[str] = ()
    limit: int = 50
    after: str | None = None


@frozen
class TaskRow:
    """A task of a workflow with the job behind it."""

    job_id: JobId
    name: str
    agent: str
    task_type: str
    state: str
    """The job's, or `blocked`, `skipped`."""
    outcome: str | None
    needs: int
    depth: int
    is_optional: bool
    attempt: int
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    last_error: str | None = None
    result: Any = None


@frozen
class ListTasks(Request[Page[TaskRow]]):
    """Tasks of a workflow in order of their ids. `names` or `outcomes` narrow it; `open` stands for no outcome yet."""

    id: str
    names: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    limit: int = 50
    after: str | None = None


@frozen
class GetGraph(Request[Graph | None]):
    """A workflow as nodes and edges. Above `limit` tasks, those of one agent, type and depth are one node."""

    id: str
    limit: int = 2_000


@frozen
class CancelWorkflow(Request[WorkflowRow]):
    """Cancel a workflow: nothing is released any more, tasks that wait are cancelled page by page, held ones are asked
    to stop. Leaves an audit row. Repeating is harmless. Raises: NotFound, IllegalMove (it has completed or failed)."""

    id: str
    actor: str
    reason: str


@frozen
class RetryWorkflow(Request[WorkflowRow]):
    """Run what failed again, page by page: failed tasks with all their attempts, what was skipped because of them, and
    what was cancelled with the workflow. Leaves an audit row. Raises: NotFound, IllegalMove (it was cancelled, a retry
    is under way, it failed and is undone, or no task of it has failed)."""

    id: str
    actor: str
    reason: str


@frozen
class EscalationRow:
    """A question to an agent, a person or a queue: what shall become of this workflow?"""

    id: str
    workflow_id: str
    workflow: str
    round: int
    level: int
    reason: str
    """threshold or deadline."""
    detail: str
    target: Any
    state: str
    """open, answered, passed (to the next level), closed (no longer needed)."""
    created_at: datetime
    due_at: datetime | None = None
    ended_at: datetime | None = None
    person: str | None = None
    job_id: JobId | None = None
    answer: str | None = None
    answered_by: str | None = None
    note: str | None = None


@frozen
class ListEscalations(Request[list[EscalationRow]]):
    """Escalations, oldest first: those of a workflow, or a person's, or all; by default those still open."""

    workflow_id: str | None = None
    person: str | None = None
    states: Sequence[str] = ("open",)
    limit: int = 100


@frozen
class AnswerEscalation(Request[EscalationRow]):
    """Answer an open escalation: `go_on`, `retry_failed`, `raise_threshold` (with `threshold`, JSON), `fail`, `cancel`.

    Leaves an audit row. The same answer again is harmless. Raises: NotFound, IllegalMove (answered otherwise, or no
    longer open), InvalidArgument.
    """

    id: str
    answer: str
    actor: str
    note: str | None = None
    threshold: str | None = None


# --- what both engines refuse before they write


def check_start(request: StartWorkflow) -> None:
    """Refuse a page that no store can hold.

    Raises: InvalidArgument.
    """
    new = request.workflow
    if not 1 <= new.total <= MAX_TASKS:
        raise InvalidArgument(
            f"Workflow {new.id} is to have {new.total:,} tasks; a run has 1 to {MAX_TASKS:,}. Nothing was started. "
            "Split it into several."
        )
    if any(not task.name.strip() for task in request.tasks):
        raise InvalidArgument(f"Workflow {new.id}: a task has no name. Nothing was started. Name each task.")
