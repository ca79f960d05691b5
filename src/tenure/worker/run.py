"""One run of a worker: its parts, and the path of a job through them.

All of it lives on the event loop's thread, but for what the heartbeat thread reads. A job is in `held` from its grant
until the store has taken in its end, or the lease is known to be lost.

**Suspects.** A job that was held when a worker vanished may be what killed it. The first time it is run in a process of
its own (`ISOLATE_FROM`). The second time (`ALONE_FROM`) it is also run alone: the worker claims nothing more, releases
jobs that have not started, and begins once everything else that it holds has ended and been settled.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Mapping, Sequence

from tenure.handler.context import Flag, WorkerServices
from tenure.handler.payload import get_ready
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupt, Interrupted
from tenure.model.event import NewEvent
from tenure.model.ids import WorkerId
from tenure.model.job import Grant
from tenure.model.log_event import INFO, WARNING
from tenure.model.outcome import Outcome, Released
from tenure.model.policy import Limits
from tenure.model.redact import clean
from tenure.model.schedule import Schedule
from tenure.model.state import ALONE_FROM
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.contract import Heartbeat, Hold, Store, WorkerRow
from tenure.worker import systemd
from tenure.worker.claims import QueueGroups
from tenure.worker.config import WorkerConfig
from tenure.worker.execution import Execution, Held, snapshot
from tenure.worker.executor import CANNOT_RUN_SECONDS, Executor
from tenure.worker.fetcher import Fetcher
from tenure.worker.flow import Flow
from tenure.worker.leader import Leader
from tenure.worker.leases import Leases, until_fence
from tenure.worker.log import WorkerLog
from tenure.worker.outcomes import only_waited, outcome_of
from tenure.worker.policies import Policies
from tenure.worker.process import Processes
from tenure.worker.settle import Outbox
from tenure.worker.shutdown import Shutdown, Steps
from tenure.worker.streams import Streams
from tenure.worker.workflows import Workflows

WAITED_SECONDS = 1.0
"""A job that has waited in the worker for so long, while every runner is busy, is given back for others to take."""

LOOK_SECONDS = 1.0
COUNT_AFTER_LOOKS = 60
"""A worker that had jobs to claim at so many looks counts what waits all the same."""
BLOCKED_SECONDS = 1.0
"""An event loop that is late by this much was blocked by a handler."""


class WorkerRun:
    """Made on the event loop; `serve` runs it to its end."""

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        registry: Mapping[str, Handler],
        config: WorkerConfig,
        policies: Policies,
        log: WorkerLog,
        schedules: Sequence[Schedule],
        limits: Limits,
    ) -> None:
        self._store = store
        self._worker = worker
        self._registry = dict(registry)
        self._memory = getattr(registry, "memory", None)
        self._config = config
        self._policies = policies
        self._log = log
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self.held: Held = {}
        self.stopping = Flag()
        self._alone: list[Execution] = []
        """Suspects that run alone: the first one now if `_runs_alone`, the others after it."""
        self._runs_alone = False
        self._busy = asyncio.Event()
        """Set while jobs are held, so that the tasks that watch them sleep otherwise."""
        self._streams = Streams(store, log)
        self.outbox = Outbox(self.held, log, lambda: self._run_suspects() if self._alone else None)
        self.leases = Leases(store, self.held, self._row, policies, log, self._busy)
        self._groups = QueueGroups(worker, config, policies.claimed_kinds, policies.is_there)
        self.fetcher = Fetcher(store, config, self.held, self.outbox, log, self._take, self.leases, self._groups)
        self.fetcher.find_queues = self._refresh_policies
        self.outbox.observers = getattr(registry, "settle_observers", ())
        self.leases.sent = self.fetcher.poke
        self._processes = Processes(config.jobs_per_process, config.artifacts_dir, limits)
        self.executor = Executor(
            config.concurrency,
            config.grace_seconds,
            self._services(),
            self._processes,
            log,
            ended=self._ended,
            write=self._write,
            unknown_kind_rule=policies.unknown_kind_rule,
            run_alone=self._run_here_alone,
            cannot_run=lambda: self.fetcher.hold_off(CANNOT_RUN_SECONDS),
        )
        self.leases.interrupt = self.executor.interrupt
        self._workflows = Workflows(store, log)
        self.outbox.tasks_ended = self._workflows.wake
        self.leader = Leader(
            store,
            worker,
            config,
            schedules,
            log,
            self._refresh_policies,
            self._log_unknown_kinds,
            lambda: policies.profiles,
        )
        steps = Steps(self._ask, self._force, self._abandon, self.fetcher.give_up)
        self.shutdown = Shutdown(steps, config.grace_seconds)

    async def serve(self, ready: asyncio.Event) -> None:
        """Take jobs and run them until stopped, drained, or done once.

        If it is cancelled it stops at once, as after a second signal: what it holds is given back. Otherwise its jobs
        would be taken back like those of a worker that crashed.
        """
        await self.leader.declare()
        serving = self._loop.create_task(self._serve(ready), name="tenure-worker")
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.shutdown.request()
            self.shutdown.request()
            await asyncio.wait({serving})
            raise

    async def _serve(self, ready: asyncio.Event) -> None:
        _version()  # before there are jobs: the first call takes longer than a thousand jobs
        get_ready()
        self.executor.start()
        self.leases.start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service)
                    for service in (
                        self.shutdown.run(),
                        self.leases.fence(),
                        self.leader.run(),
                        self._workflows.run(),
                        self._give_back_waiting(),
                        self._watch_loop(),
                    )
                ]
                self._log.event("worker_started", INFO, queues=list(self._config.queue_names))
                systemd.notify("READY=1")
                ready.set()
                fetching = group.create_task(self.fetcher.run())
                fetching.add_done_callback(lambda _: [service.cancel() for service in services])
        finally:
            await self._close()
        self._log.event("worker_stopped", INFO, completed=self.outbox.completed, lost=self.outbox.lost)

    # --- the path of a job --------------------------------------------------------------------------------------------

    def _take(self, grants: list[Grant], sent: float) -> None:
        """Jobs were granted."""
        held, find, now = self.held, self._registry.get, self._loop.time()
        leases = self._policies.granted_seconds
        executions = []
        for grant in grants:
            if grant.id in held:
                self._granted_again(held[grant.id])
            execution = held[grant.id] = Execution(
                grant, find(grant.kind), now, sent + until_fence(leases[grant.queue])
            )
            executions.append(execution)
            self._log.job("claimed", INFO, execution)
        self._alone.extend(execution for execution in executions if execution.grant.suspicion >= ALONE_FROM)
        if self.fetcher.is_finishing:  # granted while the stop was asked for
            self._give_back(executions)
        elif self._alone:
            self._give_back([execution for execution in executions if execution not in self._alone])
            self._run_suspects()
        else:
            self.executor.feed(executions)
        self._busy.set()

    def _ended(self, execution: Execution, outcome: Outcome | None) -> None:
        """A handler has ended, or is not waited for any more."""
        if execution.ended:
            return
        execution.ended = True
        self.fetcher.count_end(execution.grant.queue)
        if outcome is None:
            if self._is_held(execution):
                del self.held[execution.grant.id]
            self.outbox.lost += 1
            self._run_suspects()
        else:
            self.outbox.waiting.append(outcome)
            if type(outcome) is Released and outcome.limiter is not None:
                self._give_back(self.executor.take_limited(outcome.limiter))  # they would meet the same refusal
        self.fetcher.poke()

    def _granted_again(self, execution: Execution) -> None:
        """A held job was granted to this worker again under a newer token. Either it has ended, and the store's answer
        is still on its way; or its lease ran out unnoticed: then its handler is stopped, and nothing is written."""
        if execution.ended:
            self.outbox.set_aside(execution)
        elif self.executor.interrupt(execution, Interrupt.LOST):
            self._log.job("lease_lost", WARNING, execution, "the job was granted anew, so the old handler is stopped")

    def _give_back(self, executions: list[Execution]) -> None:
        """Give back jobs that only waited inside this worker."""
        for execution in executions:
            self._ended(execution, only_waited(execution.grant))

    async def _give_back_waiting(self) -> None:
        """Give back jobs that were fetched ahead of handlers that turned out slow, for other workers to take."""
        while True:
            if not self.held:
                self._busy.clear()
            await self._busy.wait()
            await asyncio.sleep(WAITED_SECONDS)
            if not self.executor.is_full:
                continue
            waited = self.executor.take_ready(self._loop.time() - WAITED_SECONDS)
            if waited:
                self._give_back(waited)
                self.fetcher.slow_down()  # after it: jobs that are given back must not count as work done

    async def _write(self, execution: Execution, events: tuple[NewEvent, ...]) -> None:
        """Write what a handler reported last, before its end is settled."""
        grant, context = execution.grant, execution.context
        await self.leases.written(execution)
        if context is not None:
            await self._streams.finish(context)
        if events:
            await self._store.ado(AppendEvents(grant.id, grant.token, events))
        if context is not None and context.progress_text is not None:
            hold = Hold(grant.id, grant.token, context.progress_text)
            await self._store.ado(Heartbeat([hold], self._policies.asked_seconds(execution)))

    # --- suspects -----------------------------------------------------------------------------------------------------

    def _run_suspects(self) -> None:
        """Run the next suspect alone, once nothing else is held; claim again after the last one."""
        if not self._alone or (self._runs_alone and self._is_held(self._alone[0])):
            return
        self._runs_alone = False  # it has ended and is settled, or its lease was lost
        self._alone = [execution for execution in self._alone if self._is_held(execution) and not execution.ended]
        if not self._alone:
            self.fetcher.resume()
            return
        self.fetcher.pause()
        self._give_back(self.executor.take_ready())
        if len(self.held) == len(self._alone):
            self._runs_alone = True
            self._log.job("runs_alone", WARNING, self._alone[0], "workers vanished while they held this job")
            self.executor.feed([self._alone[0]])

    def _is_held(self, execution: Execution) -> bool:
        """Whether it still is; its job may have been granted anew."""
        return self.held.get(execution.grant.id) is execution

    def _run_here_alone(self, execution: Execution) -> None:
        """A suspect whose handler no process of its own can import runs in this process, alone."""
        again = Execution(execution.grant, execution.handler, self._loop.time(), execution.fence_at)
        again.stays_here = True
        execution.ended = True
        self.held[execution.grant.id] = again
        if self._runs_alone:
            self._alone[0] = again
            self.executor.feed([again])
        elif self.stopping.is_set():
            self._give_back([again])
        else:
            self._alone.append(again)
            self._run_suspects()

    # --- the steps of a stop ------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Claim nothing more, and give back what has not begun."""
        grace = f"what runs may go on for {self._config.grace_seconds:g} s; a second signal gives it back at once"
        self._log.event("stopping", INFO, grace if self.held else None, held=len(self.held))
        systemd.notify("STOPPING=1")
        self.stopping.set()
        self.fetcher.finish()
        waiting = self._alone[1:] if self._runs_alone else self._alone
        self._give_back([*self.executor.take_ready(), *waiting])
        self._processes.tell_stopping()

    def _force(self) -> None:
        """Stop what runs."""
        for execution in snapshot(self.held):
            self.executor.interrupt(execution, Interrupt.SHUTDOWN)

    def _abandon(self) -> None:
        """Give back the jobs of handlers that will not stop. The token keeps what they still do from counting."""
        for execution in snapshot(self.held):
            if not execution.ended:
                self._log.job("left_behind", WARNING, execution, "the handler did not stop, so its job is released")
                self._ended(execution, outcome_of(execution.grant, Interrupted(Interrupt.SHUTDOWN)))

    async def _close(self) -> None:
        self.stopping.set()
        self._streams.close()
        await self._processes.close()
        if not await self.executor.close():
            self._log.event("left_behind", WARNING, "a handler ignored its cancellation and is left behind")
        await self.leases.close(timeout=2.0)
        if not self.fetcher.is_away:
            await self.leader.say_goodbye()

    # --- what the parts ask for ---------------------------------------------------------------------------------------

    async def _watch_loop(self) -> None:
        """Say when the event loop stood still: an async handler that blocks holds up all others, and no error tells."""
        while True:
            await self._busy.wait()
            before = self._loop.time()
            await asyncio.sleep(LOOK_SECONDS)
            late = self._loop.time() - before - LOOK_SECONDS
            if late > BLOCKED_SECONDS:
                running = {one.grant.kind for one in snapshot(self.held) if isinstance(one.body, asyncio.Task)}
                self._log.event(
                    "loop_blocked",
                    WARNING,
                    f"the event loop stood still for {late:.1f} s, and every async handler with it. Blocking code "
                    "(time.sleep, requests, a long computation) belongs into a `def` handler or asyncio.to_thread.",
                    seconds=round(late, 3),
                    kinds=sorted(self.executor.ran_on_loop | running),
                )
            self.executor.ran_on_loop.clear()

    async def _refresh_policies(self) -> None:
        await self._policies.refresh()
        self._groups.refresh()

    async def _log_unknown_kinds(self) -> None:
        """Name the kinds that wait in this worker's queues and have no handler here, each once.

        The store reads every waiting job to count them, so it is asked when this worker finds nothing more to claim, or
        has not come to that for a minute.
        """
        for _ in range(COUNT_AFTER_LOOKS):
            if self._groups.is_empty:
                break
            await asyncio.sleep(LOOK_SECONDS)
        for kind, queues in (await self._policies.unknown_kinds()).items():
            names = ", ".join(sorted(set(queues)))
            self._log.event(
                "unknown_kind",
                WARNING,
                f"jobs of kind {kind!r} wait in {names}, and this worker has no handler for it",
                kind_without_handler=kind,
            )

    def _row(self) -> WorkerRow:
        """This worker's row in the store."""
        running = next(
            (execution for execution in snapshot(self.held) if execution.started and not execution.ended), None
        )
        info: dict[str, object] = {
            "claimed": self.fetcher.claimed,
            "completed": self.outbox.completed,
            "held": len(self.held),
            "is_stopping": self.stopping.is_set(),
        }
        if self.executor.left_behind:
            info["left_behind"] = self.executor.left_behind
        denied = self.leader.denied
        if denied:
            info["denied"] = sorted(denied)
        return WorkerRow(
            id=self._worker,
            hostname=os.uname().nodename,
            pid=os.getpid(),
            queues=self._config.queue_names,
            kinds=tuple(self._config.kinds or self._registry),
            concurrency=self._config.concurrency,
            version=_version(),
            status="warn" if denied else "ok",
            current_job_id=running.grant.id if running else None,
            info=json.dumps(info),
        )

    def _services(self) -> WorkerServices:
        flow = Flow(self._store)
        return WorkerServices(
            stopping=self.stopping,
            find=self._registry.get,
            write_soon=lambda _: self.leases.write_soon(),
            heartbeat=lambda _: self.leases.send_soon(),
            call=self._store.do,
            acall=self._store.ado,
            record=lambda ctx, effect: self._store.do(RecordEffect(ctx.id, ctx.token, effect)),
            arecord=lambda ctx, effect: self._store.ado(RecordEffect(ctx.id, ctx.token, effect)),
            flow=flow.answer,
            aflow=flow.aanswer,
            stream=self._streams.write,
            astream=self._streams.awrite,
            clean=clean,
            artifacts_dir=self._config.artifacts_dir,
            limits=self._limits,
            memory=self._memory,
        )


@functools.cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tenure")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return ""
