"""Workflows: start graphs of tasks, look at them, cancel and retry them, and answer their escalations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import InvalidArgument, NotFound, UnknownQueue, nearest
from tenure.flow.workflows import Start, prepare, requests
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.model.ids import new_job_id
from tenure.model.policy import QueuePolicy
from tenure.model.workflow import Answer, FailureThreshold, Graph, Workflow, WorkflowState
from tenure.store.queries import ListQueues, Page
from tenure.store.workflows import (
    AdvanceWorkflows,
    AnswerEscalation,
    CancelWorkflow,
    EscalationRow,
    GetGraph,
    GetWorkflow,
    ListEscalations,
    ListTasks,
    ListWorkflows,
    RetryWorkflow,
    Started,
    TaskRow,
    WorkflowRow,
)

if TYPE_CHECKING:
    from tenure.client.state import ClientState

PAGE_MAX = 1_000
GRAPH_MAX = 100_000


class Workflows(Client):
    """Workflows: `app.workflows`."""

    @operation
    def start(
        self, flow: Workflow, *, key: str | None = None, actor: str | None = None, tenant: str | None = None
    ) -> Steps[Started]:
        """Start a workflow: its tasks exist when this returns, and those that need nothing are released.

        Checked whole before anything is written. Up to 1,000 tasks are one transaction; a larger graph is written in
        pages, and nothing of it runs before the last. With a `key` there is one run, however often it is started: a
        repeat answers that run with `duplicate`, and goes on with one that broke off.

        Raises: InvalidArgument, InvalidPayload, UnknownQueue (an agent that is neither declared here nor known to the
        database), KeyConflict (the key belongs to a run of another graph), GateClosed.
        """
        if not isinstance(flow, Workflow):
            raise InvalidArgument(f"`flow` must be a tenure.Workflow, got {type(flow).__name__}.")
        by = self._by(actor)
        start = prepare(
            flow,
            self._state.registry.get,
            self._state.limits,
            key=None if key is None else arguments.text("key", key),
            actor=by,
            tenant=None if tenant is None else arguments.text("tenant", tenant),
        )
        queues = yield from _declared(self._state, start)
        workflow_id: str = new_job_id()
        answer = yield from _send(start, workflow_id, queues)
        if answer.id != workflow_id and not answer.duplicate:
            answer = yield from _send(start, answer.id, queues)  # another process began it and broke off
        return answer

    @operation
    def get(self, workflow_id: str) -> Steps[WorkflowRow]:
        """One workflow: its state and counts. Raises: NotFound."""
        found = yield from ask(GetWorkflow(arguments.job_id("workflow_id", workflow_id)))
        if found is None:
            raise _not_found(workflow_id)
        return found

    @operation
    def all(
        self, *, state: Names | None = None, name: Names | None = None, limit: int = 50, after: str | None = None
    ) -> Steps[Page[WorkflowRow]]:
        """Workflows that match, newest first, a page at a time: pass `page.next` as `after` to go on."""
        request = ListWorkflows(
            arguments.one_of("state", state, WorkflowState),
            arguments.names("name", name),
            arguments.whole("limit", limit, 1, PAGE_MAX),
            None if after is None else arguments.job_id("after", after),
        )
        return (yield from ask(request))

    @operation
    def tasks(
        self,
        workflow_id: str,
        *,
        name: Names | None = None,
        outcome: Names | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Steps[Page[TaskRow]]:
        """Tasks of a workflow with their state and result, in the order of the graph, a page at a time.

        `outcome`: succeeded, failed, tolerated, skipped, cancelled or open.
        """
        request = ListTasks(
            arguments.job_id("workflow_id", workflow_id),
            arguments.names("name", name),
            arguments.names("outcome", outcome),
            arguments.whole("limit", limit, 1, PAGE_MAX),
            None if after is None else arguments.job_id("after", after),
        )
        return (yield from ask(request))

    @operation
    def graph(self, workflow_id: str, *, limit: int = 2_000) -> Steps[Graph]:
        """A workflow as nodes and edges, with `to_dot()` and `to_mermaid()`. Above `limit` tasks, those of one agent,
        type and depth are one node. Raises: NotFound."""
        asked = GetGraph(arguments.job_id("workflow_id", workflow_id), arguments.whole("limit", limit, 1, GRAPH_MAX))
        found = yield from ask(asked)
        if found is None:
            raise _not_found(workflow_id)
        return found

    @operation
    def cancel(self, workflow_id: str, *, reason: str, actor: str | None = None) -> Steps[WorkflowRow]:
        """Cancel a workflow: nothing more is released, tasks that wait are cancelled, held ones are asked to stop.

        Raises: NotFound, IllegalMove (it has completed or failed).
        """
        asked = arguments.job_id("workflow_id", workflow_id)
        return (yield from ask(CancelWorkflow(asked, self._by(actor), arguments.text("reason", reason))))

    @operation
    def retry(self, workflow_id: str, *, reason: str, actor: str | None = None) -> Steps[WorkflowRow]:
        """Run what failed again, with all its attempts; what was skipped or cancelled because of it comes back too.

        Raises: NotFound, IllegalMove (it was cancelled, or a retry is under way).
        """
        asked = arguments.job_id("workflow_id", workflow_id)
        return (yield from ask(RetryWorkflow(asked, self._by(actor), arguments.text("reason", reason))))

    @operation
    def escalations(
        self,
        workflow_id: str | None = None,
        *,
        person: str | None = None,
        state: Names | None = ("open",),
        limit: int = 100,
    ) -> Steps[list[EscalationRow]]:
        """Questions about workflows, oldest first: a person's, a workflow's, or all; by default those still open."""
        request = ListEscalations(
            None if workflow_id is None else arguments.job_id("workflow_id", workflow_id),
            None if person is None else arguments.text("person", person),
            arguments.names("state", state),
            arguments.whole("limit", limit, 1, PAGE_MAX),
        )
        return (yield from ask(request))

    @operation
    def answer(
        self,
        escalation_id: str,
        answer: Answer | str,
        *,
        threshold: FailureThreshold | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> Steps[EscalationRow]:
        """Answer an escalation: `go_on`, `retry_failed`, `raise_threshold` (with the new one), `fail` or `cancel`.

        Raises: NotFound, IllegalMove (it is no longer open), InvalidArgument.
        """
        if answer not in tuple(Answer):
            raise InvalidArgument(f"`answer` is {answer!r}; it may be {', '.join(Answer)}.")
        if threshold is not None and not isinstance(threshold, FailureThreshold):
            raise InvalidArgument(f"`threshold` must be a FailureThreshold, got {type(threshold).__name__}.")
        request = AnswerEscalation(
            arguments.job_id("escalation_id", escalation_id),
            str(answer),
            self._by(actor),
            None if note is None else arguments.text("note", note),
            None if threshold is None else json.dumps(threshold.spec()),
        )
        return (yield from ask(request))

    @operation
    def advance(self, *, rounds: int | None = None) -> Steps[int]:
        """Fold what the ends of tasks have left to do, until nothing is left. Workers do so by themselves; this is for
        programs that settle tasks without one. `rounds`: at most so many transactions. Answers how many events there
        were."""
        folded = done = 0
        while rounds is None or done < rounds:
            advanced = yield from ask(AdvanceWorkflows())
            folded, done = folded + advanced.events, done + 1
            if not advanced.more:
                break
        return folded


class SyncWorkflows(Workflows, SyncClient):
    """`app.workflows`."""


class AsyncWorkflows(Workflows, AsyncClient):
    """`app.aio.workflows`."""


def _send(start: Start, workflow_id: str, queues: dict[str, QueuePolicy]) -> Steps[Started]:
    answer = Started(workflow_id, "running")
    for request in requests(start, workflow_id, queues):
        answer = yield from ask(request)
        if answer.duplicate or answer.id != workflow_id:
            break
    return answer


def _declared(state: ClientState, start: Start) -> Steps[dict[str, QueuePolicy]]:
    """The queues that the code declares; every other one must exist."""
    declared = {name: state.declared[name] for name in sorted(start.queues) if name in state.declared}
    others = sorted(start.queues - set(declared))
    known = {row.name for row in (yield from ask(ListQueues(others)))} if others else set()
    for name in others:
        if name not in known:
            every = [row.name for row in (yield from ask(ListQueues()))]
            raise UnknownQueue(
                f"Workflow {start.flow.name!r} has tasks for {name!r}, and there is no such agent or queue."
                f"{nearest(name, [*every, *state.declared])} Declare it with `app.agent({name!r})` or "
                f"`app.queue({name!r})`. Nothing was started."
            )
    return declared


def _not_found(workflow_id: str) -> NotFound:
    return NotFound(f"There is no workflow {workflow_id}. `app.workflows.all()` and `tenure workflows ls` list them.")
