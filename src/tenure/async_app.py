"""The async view of an App: `app.aio` has the operations of `app` under the same names, as coroutine methods."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from tenure.client.admin import Admin, AsyncGates, AsyncLeases
from tenure.client.effects import Effects, reconciling
from tenure.client.enqueue import declare_queues
from tenure.client.jobs import Jobs
from tenure.client.operations import AsyncClient, run_async
from tenure.client.profiles import AgentTasks, AsyncProfiles
from tenure.client.schedules import AsyncSchedules
from tenure.client.state import ClientState
from tenure.client.work import Work
from tenure.client.worker import Queues, make_worker

if TYPE_CHECKING:
    from tenure.model.log_event import Emit
    from tenure.worker.worker import WorkerStats


class AsyncApp(AgentTasks, Jobs, Work, Admin, Effects, AsyncClient):
    """An App for async callers: `await app.aio.claim(…)`. Handlers, queues and schedules are declared on the App."""

    def __init__(self, state: ClientState) -> None:
        super().__init__(state)
        self.gates = AsyncGates(state)
        self.leases = AsyncLeases(state)
        self.schedules = AsyncSchedules(state)
        self.profiles = AsyncProfiles(state)

    async def run_worker(
        self,
        queues: Queues | None = None,
        *,
        concurrency: int = 10,
        emit: Emit | None = None,
        reconcile: bool = False,
        **settings: Any,
    ) -> WorkerStats:
        """`App.run_worker` on the running event loop."""
        await run_async(self._state, declare_queues(self._state, self._state.declared))
        with reconciling(self._state, emit) if reconcile else nullcontext():
            return await make_worker(self._state, queues, concurrency, emit, settings).run()

    async def close(self) -> None:
        """`App.close` without blocking the event loop."""
        await self._state.close_async()
