"""The async view of an App: `app.aio` has the operations of `app` under the same names, as coroutine methods."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Unpack

from tenure.client.access import AsyncAccess
from tenure.client.admin import AsyncGates, AsyncLeases, AsyncWorkers, Upkeep
from tenure.client.approvals import AsyncApprovals, Inbox
from tenure.client.budgets import AsyncBudgets
from tenure.client.dead_letters import AsyncDeadLetters
from tenure.client.effects import AsyncEffects, reconciling
from tenure.client.enqueue import declare_queues
from tenure.client.flow import AsyncSteps, Signals
from tenure.client.jobs import Jobs
from tenure.client.limits import AsyncLimits
from tenure.client.memory import AsyncMemories
from tenure.client.metrics import Metrics
from tenure.client.operations import AsyncClient, run_async
from tenure.client.policies import AsyncPolicies, log_differences
from tenure.client.profiles import AgentTasks, AsyncProfiles
from tenure.client.queues import AsyncQueues
from tenure.client.schedules import AsyncSchedules
from tenure.client.state import ClientState
from tenure.client.streams import AsyncStreams
from tenure.client.work import Work
from tenure.client.worker import LogTo, Queues, WorkerSettings, log_to, make_worker
from tenure.client.workflows import AsyncWorkflows

if TYPE_CHECKING:
    from tenure.worker.worker import WorkerStats


class AsyncApp(AgentTasks, Jobs, Inbox, Signals, Work, Upkeep, Metrics, AsyncClient):
    """An App for async callers: `await app.aio.claim(…)`. Handlers, queues and schedules are declared on the App."""

    access: AsyncAccess
    """Tokens, browser sessions, and the audit with its chain."""
    approvals: AsyncApprovals
    """Questions to people, and their answers."""
    budgets: AsyncBudgets
    """What jobs may spend, and what model calls used."""
    dead_letters: AsyncDeadLetters
    """Jobs that ended badly, grouped by cause, and what was decided about them."""
    effects: AsyncEffects
    """The ledger of side effects, and their comparison with the world."""
    gates: AsyncGates
    """Switches in the database that stop work."""
    leases: AsyncLeases
    """Named leases, by which one of many processes leads."""
    limits: AsyncLimits
    """Limiters of services that jobs share."""
    memory: AsyncMemories
    """What agents remember."""
    policies: AsyncPolicies
    """Queue policies in this code beside those in the database."""
    profiles: AsyncProfiles
    """Vocabularies of other queues over the same jobs."""
    queues: AsyncQueues
    """Queues: their policies, pause, backlog, counts."""
    schedules: AsyncSchedules
    """Jobs that come by the clock."""
    steps: AsyncSteps
    """Steps, children and memos of durable jobs."""
    streams: AsyncStreams
    """Output of jobs while they run."""
    workers: AsyncWorkers
    """Worker processes: list, drain, resume."""
    workflows: AsyncWorkflows
    """Graphs of tasks."""

    def __init__(self, state: ClientState) -> None:
        super().__init__(state)
        self.access = AsyncAccess(state)
        self.approvals = AsyncApprovals(state)
        self.budgets = AsyncBudgets(state)
        self.dead_letters = AsyncDeadLetters(state)
        self.effects = AsyncEffects(state)
        self.gates = AsyncGates(state)
        self.memory = AsyncMemories(state)
        self.policies = AsyncPolicies(state)
        self.leases = AsyncLeases(state)
        self.limits = AsyncLimits(state)
        self.schedules = AsyncSchedules(state)
        self.profiles = AsyncProfiles(state)
        self.queues = AsyncQueues(state)
        self.steps = AsyncSteps(state)
        self.streams = AsyncStreams(state)
        self.workers = AsyncWorkers(state)
        self.workflows = AsyncWorkflows(state)

    async def run_worker(
        self,
        queues: Queues | None = None,
        *,
        concurrency: int = 10,
        emit: LogTo | None = None,
        reconcile: bool = False,
        **settings: Unpack[WorkerSettings],
    ) -> WorkerStats:
        """`App.run_worker` on the running event loop."""
        await run_async(self._state, declare_queues(self._state, self._state.declared))
        await run_async(self._state, log_differences(self._state, log_to(emit)))
        with reconciling(self._state, log_to(emit)) if reconcile else nullcontext():
            return await make_worker(self._state, queues, concurrency, emit, settings).run()

    async def close(self) -> None:
        """`App.close` without blocking the event loop."""
        await self._state.close_async()
