"""The worker: fetch, run, settle, and the lease that is held meanwhile.

fetch ──► run (async handlers: tasks; sync: threads; isolated: processes) ──► settle
   ▲ wake                      │ outcomes gather while an exchange is in flight
   └── lease: a thread of its own, one heartbeat for all held jobs and the worker's row
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tenure.handler.registry import Handler
from tenure.model.frozen import frozen
from tenure.model.ids import WorkerId, new_worker_id
from tenure.model.log_event import Emit
from tenure.model.schedule import Schedule
from tenure.store.contract import Store
from tenure.worker.config import WorkerConfig
from tenure.worker.isolate import check_isolated
from tenure.worker.policies import Policies
from tenure.worker.report import Reporter, Silence
from tenure.worker.shift import Shift

__all__ = ["Worker", "WorkerConfig", "WorkerStats"]


@frozen
class WorkerStats:
    """What a worker has done since its start, and holds now."""

    id: WorkerId
    claimed: int = 0
    completed: int = 0
    not_completed: int = 0
    lost: int = 0
    held: int = 0
    waiting: int = 0
    prefetch: int = 0
    exchanges: int = 0
    heartbeats: int = 0
    is_leader: bool = False
    is_away: bool = False
    is_stopping: bool = False


class Worker:
    """Runs jobs until told to stop.

    Args:
        store: where the jobs live.
        registry: the handlers, by kind.
        config: queues, limits, times.
        emit: takes notices of what happens; nothing of a payload is among them.
        schedules: declared at the start, carried out by whichever worker leads.

    Raises: ConfigError for settings that cannot work, HandlerError for isolated handlers that no process could find.
    """

    def __init__(
        self,
        store: Store,
        registry: Mapping[str, Handler],
        config: WorkerConfig | None = None,
        *,
        emit: Emit | None = None,
        schedules: Sequence[Schedule] = (),
    ) -> None:
        self.id = new_worker_id()
        self.config = config or WorkerConfig()
        self.ready = asyncio.Event()
        """Set once the worker takes jobs."""
        self._store = store
        self._registry = registry
        self._schedules = schedules
        self._report = Reporter(self.id, emit or Silence())
        self._shift: Shift | None = None
        self._was_asked_to_stop = False
        self._owns_loop = False
        for handler in registry.values():
            check_isolated(handler)

    async def run(self) -> WorkerStats:
        """Work until stopped, drained, or done once. Answers what was done.

        Raises: ConfigError if heartbeats do not fit a queue's lease; StoreUnavailable if the database is not there.
        """
        policies = Policies(self._store, self.config, self._registry)
        await policies.prepare(self.id)
        shift = self._shift = Shift(
            self._store, self.id, self._registry, self.config, policies, self._report, self._schedules
        )
        subscription = await asyncio.to_thread(
            self._store.subscribe, self.config.queue_names, shift.exchanger.wake, asyncio.get_running_loop()
        )
        shift.exchanger.hears = subscription.is_alive
        shift.exchanger.arm = subscription.arm
        shift.exchanger.owns_loop = self._owns_loop
        try:
            if self.config.handle_signals:
                shift.stopper.install()
            if self._was_asked_to_stop:
                shift.stopper.request()
            await shift.serve(self.ready)
        finally:
            shift.stopper.uninstall()
            await asyncio.to_thread(subscription.close)
        return self.stats()

    def run_sync(self) -> WorkerStats:
        """The same for callers without an event loop. Handlers that ignore their cancellation do not keep it."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._owns_loop = True
        try:
            stats = loop.run_until_complete(self.run())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            return stats
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def stop(self) -> None:
        """Ask the worker to stop; asked twice, it stops at once. From any thread."""
        if self._shift is None:
            self._was_asked_to_stop = True
        else:
            self._shift.stopper.request()

    def stats(self) -> WorkerStats:
        """Counters since the start, and what is held now."""
        shift = self._shift
        if shift is None:
            return WorkerStats(self.id)
        return WorkerStats(
            id=self.id,
            claimed=shift.exchanger.claimed,
            completed=shift.outbox.completed,
            not_completed=shift.outbox.not_completed,
            lost=shift.outbox.lost,
            held=len(shift.held),
            waiting=shift.runners.ready,
            prefetch=shift.exchanger.ahead.jobs,
            exchanges=shift.exchanger.exchanges,
            heartbeats=shift.leases.beats,
            is_leader=shift.maintainer.is_leader,
            is_away=shift.exchanger.is_away,
            is_stopping=shift.stopping.is_set(),
        )
