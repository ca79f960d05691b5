"""The worker: fetch, run, settle, and the leases that are held meanwhile.

fetcher ──► executor (async handlers: tasks; sync: threads; isolated and suspects: processes) ──► outbox ──► fetcher
   ▲ wake-up from the store         outcomes gather while an exchange is in flight
   leases: a thread of its own, one heartbeat for all held jobs and the worker's row
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence

from tenure.errors import UsageError
from tenure.handler.registry import Handler
from tenure.model.frozen import frozen
from tenure.model.ids import WorkerId, new_worker_id
from tenure.model.log_event import Emit
from tenure.model.policy import Limits
from tenure.model.redact import hide
from tenure.model.schedule import Schedule
from tenure.store.contract import Store
from tenure.worker.config import WorkerConfig
from tenure.worker.log import NoLog, WorkerLog
from tenure.worker.policies import Policies
from tenure.worker.process import check_isolated
from tenure.worker.run import WorkerRun

__all__ = ["Worker", "WorkerConfig", "WorkerStats"]


@frozen
class WorkerStats:
    """What a worker has done since its start, and holds now."""

    id: WorkerId
    claimed: int = 0
    completed: int = 0
    not_completed: int = 0
    lost: int = 0
    left_behind: int = 0
    """Handlers that did not stop when asked to; their slots were given to others."""
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
        emit: takes log events; none holds any part of a payload.
        schedules: declared at the start, carried out by the leader among the workers.
        limits: what follow-ups, results and progress may carry.

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
        limits: Limits | None = None,
    ) -> None:
        self.id: WorkerId = new_worker_id()
        self.config: WorkerConfig = config or WorkerConfig()
        self.ready: asyncio.Event = asyncio.Event()
        """Set once the worker takes jobs."""
        self._store = store
        self._registry = registry
        self._schedules = schedules
        self._limits = limits or Limits()
        self._log = WorkerLog(self.id, emit or NoLog())
        self._run: WorkerRun | None = None
        self._stopping = threading.Lock()
        self._was_asked_to_stop = False
        hide(store.url)
        for handler in registry.values():
            check_isolated(handler)

    async def run(self) -> WorkerStats:
        """Work until stopped, drained, or done once. Answers what was done.

        Signals are left to the program that runs the event loop, unless `handle_signals` is set. If its task is
        cancelled, it stops at once as after two requests, which takes some seconds at most.

        Raises: ConfigError if there are no handlers, or heartbeats do not fit a queue's lease; StoreUnavailable if the
        database is not there.
        """
        return await self._serve(handle_signals=self.config.handle_signals is True)

    async def _serve(self, *, handle_signals: bool) -> WorkerStats:
        policies = Policies(self._store, self.config, self._registry)
        await policies.prepare(self.id)
        run = WorkerRun(
            self._store, self.id, self._registry, self.config, policies, self._log, self._schedules, self._limits
        )
        subscription = await asyncio.to_thread(self._store.subscribe, self.config.queue_names, run.fetcher.wake)
        run.fetcher.is_listening = subscription.is_alive
        try:
            if handle_signals:
                run.shutdown.install()
            with self._stopping:
                self._run = run
                if self._was_asked_to_stop:
                    run.shutdown.request()
            await run.serve(self.ready)
        finally:
            run.shutdown.uninstall()
            await asyncio.to_thread(subscription.close)
        return self.stats()

    def run_sync(self) -> WorkerStats:
        """The same for callers without an event loop. Handlers that ignore their cancellation do not keep it.

        Raises: UsageError on an event loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise UsageError(
                "A worker was started with `run_worker()` on an event loop, which it would block. "
                "Use `await app.aio.run_worker()` there."
            )
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            stats = loop.run_until_complete(self._serve(handle_signals=self.config.handle_signals is not False))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            return stats
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def stop(self) -> None:
        """Ask the worker to stop; asked twice, it stops at once. From any thread, and before it started, too. Harmless
        once it has ended."""
        with self._stopping:
            if self._run is None:
                self._was_asked_to_stop = True
            else:
                self._run.shutdown.request()

    def stats(self) -> WorkerStats:
        """Counters since the start, and what is held now."""
        run = self._run
        if run is None:
            return WorkerStats(self.id)
        return WorkerStats(
            id=self.id,
            claimed=run.fetcher.claimed,
            completed=run.outbox.completed,
            not_completed=run.outbox.not_completed,
            lost=run.outbox.lost,
            left_behind=run.executor.left_behind,
            held=len(run.held),
            waiting=run.executor.ready,
            prefetch=run.fetcher.prefetch.jobs,
            exchanges=run.fetcher.exchanges,
            heartbeats=run.leases.heartbeats,
            is_leader=run.leader.is_leader,
            is_away=run.fetcher.is_away,
            is_stopping=run.stopping.is_set(),
        )
