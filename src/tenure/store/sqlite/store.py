"""The Store on one SQLite file: each request goes to its function, by way of the writer or a reader."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, TypeVar, cast

from tenure.errors import InternalError, StoreClosed, StoreUnavailable
from tenure.model import failpoints
from tenure.model.clock import Clock, SystemClock, from_us
from tenure.model.job import Enqueued
from tenure.store import admin as ordered
from tenure.store import contract, measuring
from tenure.store import flow as flowing
from tenure.store import memory as remembered
from tenure.store import metrics as metered
from tenure.store import queries as asked
from tenure.store import schedules as timed
from tenure.store import summary as summed
from tenure.store import workflows as graphed
from tenure.store.checks import CHECKED_APART, check_request
from tenure.store.migrations import Migration
from tenure.store.sqlite import (
    access,
    admin,
    approvals,
    browsing,
    budgets,
    claim,
    database,
    edit,
    effects,
    enqueue,
    files,
    flow,
    gauges,
    groups,
    heartbeat,
    limits,
    maintenance,
    memo,
    memory,
    metrics,
    migrate,
    profiles,
    queries,
    schedules,
    settle,
    steps,
    streams,
    sweep,
    usage,
    workflow_acts,
    workflow_fold,
    workflow_reading,
    workflow_start,
)
from tenure.store.sqlite import measuring as bench
from tenure.store.sqlite.errors import translate
from tenure.store.sqlite.moving import SqliteTables
from tenure.store.sqlite.transaction import Act

T = TypeVar("T")

BUSY_SECONDS: Final = 30.0
"""How long a write waits for another process's lock before it gives up with StoreBusy."""

WRITES: Final[Mapping[type, Act]] = {
    contract.Enqueue: enqueue.enqueue,
    contract.Claim: claim.claim,
    contract.Settle: settle.settle,
    contract.Exchange: claim.exchange,
    contract.Heartbeat: heartbeat.heartbeat,
    contract.Start: heartbeat.start,
    contract.Wake: flow.wake,
    contract.Cancel: admin.cancel,
    contract.Revive: admin.revive,
    contract.Clone: admin.clone,
    contract.EditJob: edit.edit_job,
    contract.Reap: settle.reap,
    contract.Prune: maintenance.prune,
    ordered.TriageDeadLetters: admin.triage,
    ordered.SetQueues: admin.set_queues,
    ordered.PauseQueues: admin.pause_queues,
    ordered.RemoveQueues: admin.remove_queues,
    ordered.SetGate: admin.set_gate,
    ordered.AcquireLease: admin.acquire_lease,
    ordered.ReleaseLease: admin.release_lease,
    ordered.RemoveWorkers: maintenance.remove_workers,
    ordered.AppendEvents: effects.append_events,
    ordered.RecordEffect: effects.record_effect,
    ordered.ResolveEffect: effects.resolve_effect,
    flowing.RecordSteps: steps.record_steps,
    flowing.FillGroup: groups.fill_group,
    flowing.ForgetSteps: admin.forget_steps,
    flowing.Signal: flow.signal,
    flowing.SweepFlow: sweep.sweep_flow,
    metered.RollUp: metrics.roll_up,
    timed.SetSchedules: schedules.set_schedules,
    timed.TickSchedule: schedules.tick_schedule,
    timed.PauseSchedules: schedules.pause_schedules,
    timed.RemoveSchedules: schedules.remove_schedules,
    remembered.WriteAgentEvents: memory.write_agent_events,
    remembered.WriteMemories: memory.write_memories,
    remembered.ForgetMemories: memory.forget_memories,
    graphed.StartWorkflow: workflow_start.start,
    graphed.JoinWorkflow: workflow_start.join,
    graphed.AdvanceWorkflows: workflow_fold.advance,
    graphed.TendWorkflows: workflow_acts.tend,
    graphed.CancelWorkflow: workflow_acts.cancel,
    graphed.RetryWorkflow: workflow_acts.retry,
    graphed.AnswerEscalation: workflow_acts.answer_escalation,
    measuring.DropQueue: bench.drop_queue,
    **access.WRITES,
    **limits.WRITES,
    **memo.WRITES,
    **streams.WRITES,
    **approvals.WRITES,
    **budgets.WRITES,
}

READS: Final[Mapping[type, Act]] = {
    asked.ListProfiles: profiles.list_profiles,
    asked.GetJobs: queries.get_jobs,
    asked.ListJobs: queries.list_jobs,
    asked.CountJobs: queries.count_jobs,
    asked.ListAttempts: queries.list_attempts,
    asked.ListDeadLetters: queries.list_dead_letters,
    asked.GroupDeadLetters: queries.group_dead_letters,
    asked.ListQueues: queries.list_queues,
    asked.ListGates: queries.list_gates,
    asked.ListWorkers: queries.list_workers,
    asked.ListEvents: queries.list_events,
    asked.FollowEvents: queries.follow_events,
    asked.ListAudit: queries.list_audit,
    asked.ListEffects: queries.list_effects,
    flowing.ListSteps: steps.list_steps,
    flowing.GetGroup: groups.get_group,
    flowing.ListChildren: groups.list_children,
    timed.ListSchedules: schedules.list_schedules,
    metered.ListMetrics: metrics.list_metrics,
    metered.ReadMetrics: metrics.read_metrics,
    remembered.ListAgentEvents: memory.list_agent_events,
    remembered.ReadEvents: memory.read_events,
    remembered.ListUnremembered: memory.list_unremembered,
    remembered.FindWords: memory.find_words,
    remembered.FindNear: memory.find_near,
    remembered.ListVectors: memory.list_vectors,
    remembered.GetMemories: memory.get_memories,
    remembered.ListMemories: memory.list_memories,
    remembered.CountMemories: memory.count_memories,
    graphed.AreWorkflowsDue: workflow_acts.are_due,
    graphed.GetWorkflow: workflow_reading.get_workflow,
    graphed.ListWorkflows: workflow_reading.list_workflows,
    graphed.ListTasks: workflow_reading.list_tasks,
    graphed.GetGraph: workflow_reading.get_graph,
    graphed.ListEscalations: workflow_reading.list_escalations,
    summed.Summary: queries.summarize,
    summed.Standing: queries.stand,
    summed.Inspect: queries.inspect,
    summed.Prunable: queries.count_prunable,
    summed.PruneLag: queries.prune_lag,
    **access.READS,
    **browsing.READS,
    **limits.READS,
    **memo.READS,
    **streams.READS,
    **approvals.READS,
    **budgets.READS,
    **usage.READS,
    **gauges.READS,
}

URGENT: Final = frozenset({contract.Heartbeat, contract.Start})
"""They go before everything else in the writer's queue."""


class SqliteStore:
    """Jobs in one SQLite file. Thread-safe; may be made before a fork and used after it.

    All stores of one process on the same file share one writer, so their requests share commits.
    `clock` is for tests; the machine's clock judges leases otherwise.
    """

    def __init__(self, url: str, clock: Clock | None = None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.url = url
        self._clock = clock or SystemClock()
        self._path = files.path_of(url)
        self._database = database.acquire(self._path, busy_seconds)
        self._requests = 0
        self._is_closed = False
        self._close_lock = threading.Lock()
        self._before = self._counted()

    def do(self, request: contract.Request[T]) -> T:
        """See store.contract.Store."""
        shared, kind = self._shared(), type(request)
        if kind not in CHECKED_APART:
            check_request(request)
        if isinstance(request, measuring.Measure):
            return cast(T, bench.measure(self._path, request))
        if kind in READS:
            return cast(T, shared.readers.call(READS[kind], request, self._clock))
        act = WRITES.get(kind) or _unknown(kind)
        for may_give_way in (True, False):  # once without the reserve; then with the space that it gave
            admitted = shared.reserve.admit(request)
            future = shared.writer.submit(act, admitted, self._clock, is_urgent=kind in URGENT)
            try:
                answer = future.result()
                break
            except StoreUnavailable as exc:
                if not (may_give_way and shared.reserve.gives_way(request, exc)):
                    raise
            except BaseException:
                future.cancel()  # the caller was interrupted while it waited; a refusal has ended the future
                raise
        failpoints.point("after_commit_before_reply")
        return cast(T, answer if admitted is request else shared.reserve.explain(answer))

    async def ado(self, request: contract.Request[T]) -> T:
        """See store.contract.Store."""
        import asyncio  # late: a command that is over in a moment never needs it

        shared, kind = self._shared(), type(request)
        if kind not in CHECKED_APART:
            check_request(request)
        if isinstance(request, measuring.Measure):
            return cast(T, await asyncio.to_thread(bench.measure, self._path, request))
        if kind in READS:
            return cast(T, await shared.readers.acall(READS[kind], request, self._clock))
        act = WRITES.get(kind) or _unknown(kind)
        for may_give_way in (True, False):
            admitted = shared.reserve.admit(request)
            future = shared.writer.submit(act, admitted, self._clock, is_urgent=kind in URGENT)
            try:
                answer = await asyncio.wrap_future(future)
                break
            except StoreUnavailable as exc:
                if not (may_give_way and shared.reserve.gives_way(request, exc)):
                    raise
        failpoints.point("after_commit_before_reply")
        return cast(T, answer if admitted is request else shared.reserve.explain(answer))

    def enqueue_on(self, connection: Any, request: contract.Enqueue) -> list[Enqueued]:
        """See store.contract.Store. Workers find the jobs by their poll, within 50 ms of the caller's commit."""
        from tenure.store import transactions

        self._shared().reserve.admit(request)
        try:
            return transactions.use_sqlite(connection, lambda raw: self._enqueue_on(raw, request))
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._path) from exc

    async def aenqueue_on(self, connection: Any, request: contract.Enqueue) -> list[Enqueued]:
        """See store.contract.Store. Also for aiosqlite."""
        from tenure.store import transactions

        self._shared().reserve.admit(request)
        try:
            return await transactions.ause_sqlite(connection, lambda raw: self._enqueue_on(raw, request))
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._path) from exc

    def _enqueue_on(self, raw: sqlite3.Connection, request: contract.Enqueue) -> list[Enqueued]:
        return enqueue.enqueue_on(raw, request, self._path, self._clock.now_us())

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> contract.Subscription:
        """See store.contract.Store."""
        return self._shared().hub.subscribe(queues, wake)

    def migrate(self) -> list[str]:
        """See store.contract.Store. Makes the file if there is none. Takes no lock where there is nothing to do."""
        shared = self._shared()
        if shared.watched.is_awaited():
            files.create(self._path)
        if not shared.readers.call(migrate.missing, None, self._clock):
            return []
        applied: list[str] = []
        while names := cast(list[str], shared.writer.submit(migrate.migrate, None, self._clock).result()):
            applied += names
        return applied

    def foreign_table(self) -> str | None:
        """A table of another program in a file that has no schema of ours yet; None if there is none."""
        shared = self._shared()
        if shared.watched.is_awaited():
            return None
        return cast("str | None", shared.readers.call(migrate.foreign_table, None, self._clock))

    def migration_sql(self) -> str:
        """See store.contract.Store."""
        shared = self._shared()
        if shared.watched.is_awaited():
            return migrate.printed(migrate.migrations(), self._clock.now_us())
        missing = cast(list[Migration], shared.readers.call(migrate.missing, None, self._clock))
        return migrate.printed(missing, self._clock.now_us())

    def schema_version(self) -> int:
        """See store.contract.Store."""
        return cast(int, self._shared().readers.call(migrate.version, None, self._clock))

    def install_profile(self, install: ordered.InstallProfile) -> ordered.InstalledProfile:
        """See store.contract.Store."""
        future = self._shared().writer.submit(profiles.install, install, self._clock)
        return cast(ordered.InstalledProfile, future.result())

    def tables(self) -> SqliteTables:
        """See store.contract.Store."""
        return SqliteTables(self._path, lambda act: self._shared().writer.submit(act, None, self._clock).result())

    def now(self) -> datetime:
        """See store.contract.Store."""
        return from_us(self._clock.now_us())

    def stats(self) -> contract.StoreStats:
        """See store.contract.Store. The writer is shared: what other stores on this file did since counts too."""
        now = self._counted()
        transactions, statements, retries = (after - before for after, before in zip(now, self._before, strict=True))
        return contract.StoreStats(self._requests, transactions, statements, retries)

    def close(self) -> None:
        """See store.contract.Store."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
        database.release(self._database)

    async def aclose(self) -> None:
        """See store.contract.Store."""
        import asyncio

        await asyncio.to_thread(self.close)

    def _shared(self) -> database.Database:
        if self._is_closed:
            raise StoreClosed
        self._requests += 1
        shared = self._database
        if os.getpid() != shared.pid:
            shared.abandon()
        return shared

    def _counted(self) -> tuple[int, int, int]:
        writer, readers = self._database.writer, self._database.readers
        return (
            writer.transactions + readers.transactions,
            writer.statements + readers.statements,
            writer.writing.retries,
        )


def _unknown(kind: type) -> NoReturn:
    raise InternalError(f"The SQLite store does not know the request {kind.__name__}. Please report it.")
