"""Agents: what one of them may do, and nothing beyond its own queue. Specification 001, section 10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from tenure.errors import Forbidden
from tenure.handler import arguments
from tenure.handler.building import MISSING, JobOptions
from tenure.model.job import Enqueued, Grant
from tenure.model.policy import QueuePolicy

if TYPE_CHECKING:
    from tenure.client.function import JobDecorator
    from tenure.client.worker import LogTo, WorkerSettings
    from tenure.handler.arguments import Duration
    from tenure.model.policy import Backoff
    from tenure.worker.worker import WorkerStats


class Agent:
    """One agent: its queue, its handlers, its tasks. Made by `app.agent(name)`.

    What reaches beyond its queue is refused with Forbidden: work for other agents is created by the orchestrator, which
    is the App itself. On PostgreSQL the database enforces the same for a login that `automechanica.grant_agent` bound.
    """

    def __init__(self, app: Any, name: str) -> None:  # an App, which this room does not know
        self.name = name
        self._app = app

    def job(
        self,
        *,
        kind: str | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        backoff: Backoff | None = None,
        isolate: bool = False,
    ) -> JobDecorator:
        """Make a function the handler of a task type of this agent, as `app.job` does."""
        made: JobDecorator = self._app.job(
            queue=self.name,
            kind=kind,
            max_attempts=max_attempts,
            priority=priority,
            timeout=timeout,
            lease=lease,
            backoff=backoff,
            isolate=isolate,
        )
        return made

    def create_task(
        self,
        task_type: str,
        payload: Any = None,
        *,
        agent_name: str | None = None,
        workflow_id: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> Enqueued:
        """Create a task for this agent itself. Raises: Forbidden for any other."""
        self._refuse_other(agent_name)
        task = {
            "agent_name": self.name,
            "task_type": task_type,
            "payload": {} if payload is None else payload,
            "workflow_id": workflow_id,
            "priority": priority,
            "max_attempts": max_attempts,
        }
        given = {name: value for name, value in task.items() if value is not None}
        made: Enqueued = self._app.create_task(given)
        return made

    def enqueue(self, kind: str, payload: Any = MISSING, **options: Unpack[JobOptions]) -> Enqueued:
        """Enqueue a job in this agent's queue, as `app.enqueue` does. Raises: Forbidden for another queue."""
        self._refuse_other(options.get("queue"))
        options["queue"] = self.name
        made: Enqueued = self._app.enqueue(kind, payload, **options)
        return made

    def claim(self, limit: int = 1, *, worker: str | None = None, lease_seconds: float | None = None) -> list[Grant]:
        """Take due tasks of this agent under a lease, as `app.claim` does."""
        held: list[Grant] = self._app.claim(worker=worker, queues=[self.name], limit=limit, lease_seconds=lease_seconds)
        return held

    def run_worker(
        self, *, concurrency: int = 10, emit: LogTo | None = None, **settings: Unpack[WorkerSettings]
    ) -> WorkerStats:
        """Run this agent's tasks until told to stop, as `app.run_worker` does."""
        done: WorkerStats = self._app.run_worker([self.name], concurrency=concurrency, emit=emit, **settings)
        return done

    def __repr__(self) -> str:
        return f"<tenure agent {self.name!r}>"

    def _refuse_other(self, other: str | None) -> None:
        if other is not None and other != self.name:
            raise Forbidden(
                f"{self.name!r} may not create work for {other!r}. Work for other agents is created by the "
                "orchestrator: a task of a workflow, or `app.create_task`. Nothing was created."
            )


def agent_policy() -> QueuePolicy:
    """The policy of an agent's queue: that of the profile `automechanica`."""
    from tenure.profiles import loader

    return loader.load("automechanica").profile.policy


def declare_agent(app: Any, name: str) -> Agent:
    """Declare an agent's queue and answer the agent."""
    from tenure.client.settings import check_policy

    policy = agent_policy()
    check_policy(policy)
    app.queue(arguments.name("name", name), policy)
    return Agent(app, name)
