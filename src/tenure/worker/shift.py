"""A shift: one run of a worker, with its parts and the wires between them.

All of it lives on the event loop's thread, but for what the lease's thread reads. A job is in `held` from its grant
until the store has taken in its end, or the lease is known to be lost.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Mapping, Sequence

from tenure.handler.context import Bench, Flag
from tenure.handler.payload import get_ready
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupt, Interrupted
from tenure.model.event import NewEvent
from tenure.model.ids import WorkerId
from tenure.model.job import Grant
from tenure.model.log_event import INFO, WARNING
from tenure.model.outcome import Outcome
from tenure.model.schedule import Schedule
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.contract import Heartbeat, Hold, Store, WorkerRow
from tenure.worker import systemd
from tenure.worker.config import WorkerConfig
from tenure.worker.end import clean, outcome_of
from tenure.worker.fetch import Exchanger
from tenure.worker.isolate import Isolate
from tenure.worker.lease import Leases
from tenure.worker.maintain import Maintainer
from tenure.worker.policies import Policies
from tenure.worker.report import Reporter
from tenure.worker.run import Runners
from tenure.worker.settle import Outbox
from tenure.worker.stop import Steps, Stopper
from tenure.worker.ticket import Held, Ticket, snapshot

WAITED_SECONDS = 1.0
"""A job that has waited in the worker for so long, while every runner is busy, is given back for others to take."""


class Shift:
    """Made on the event loop; `serve` runs it to its end."""

    def __init__(
        self,
        store: Store,
        worker: WorkerId,
        registry: Mapping[str, Handler],
        config: WorkerConfig,
        policies: Policies,
        report: Reporter,
        schedules: Sequence[Schedule],
    ) -> None:
        self._store = store
        self._worker = worker
        self._registry = registry
        self._config = config
        self._policies = policies
        self._report = report
        self._loop = asyncio.get_running_loop()
        self.held: Held = {}
        self.stopping = Flag()
        self.outbox = Outbox(self.held, report, self._poke)
        self._busy = asyncio.Event()
        """Set while jobs are held, so that what watches over them may sleep otherwise."""
        self.leases = Leases(store, self.held, self._row, policies, report, self._busy)
        self.exchanger = Exchanger(store, worker, config, self.held, self.outbox, report, self._take, self.leases)
        self.isolate = Isolate(config.jobs_per_process, config.artifacts_dir)
        self.runners = Runners(
            config.concurrency, self._bench(), self._ended, self._say, policies.no_handler, self.isolate, report
        )
        self.maintainer = Maintainer(
            store,
            worker,
            config,
            schedules,
            report,
            policies.refresh_unless_same,
            self.exchanger.turns,
            lambda: self.leases.led_until,
        )
        steps = Steps(self._ask, self._force, self._abandon, self.exchanger.give_up)
        self.stopper = Stopper(steps, config.grace_seconds)

    async def serve(self, ready: asyncio.Event) -> None:
        """Take jobs and run them until stopped, drained, or done once."""
        await self.maintainer.declare()
        _version()  # these before there are jobs: the first time takes longer than a thousand of them
        get_ready()
        self.runners.start()
        self.leases.start()
        try:
            async with asyncio.TaskGroup() as group:
                services = [
                    group.create_task(service)
                    for service in (
                        self.stopper.run(),
                        self.leases.fence(),
                        self.maintainer.run(),
                        self._give_back_what_waits(),
                    )
                ]
                self._report.say("worker_started", INFO, queues=list(self._config.queue_names))
                systemd.notify("READY=1")
                ready.set()
                await self.exchanger.run()
                for service in services:
                    service.cancel()
        finally:
            await self._close()
        self._report.say("worker_stopped", INFO, completed=self.outbox.completed, lost=self.outbox.lost)

    # --- the life of a ticket -----------------------------------------------------------------------------------------

    def _take(self, grants: list[Grant], sent: float) -> None:
        """Jobs were granted."""
        held, find, now = self.held, self._registry.get, self._loop.time()
        fences = {queue: sent + self._policies.granted_seconds(queue) for queue in self._config.queue_names}
        tickets = []
        for grant in grants:
            if grant.id in held:
                self._heed_return(held[grant.id])
            ticket = held[grant.id] = Ticket(grant, find(grant.kind), now, fences[grant.queue])
            tickets.append(ticket)
        self._report.claimed(tickets)
        if self.stopping.is_set():  # granted while the stop was asked for
            self._release(tickets)
        else:
            self.runners.feed(tickets)
        self._busy.set()  # last: whoever watches over the jobs wakes up after those who run them

    def _ended(self, ticket: Ticket, outcome: Outcome | None) -> None:
        """A handler has ended, or will not be waited for."""
        if ticket.ended:
            return
        ticket.ended = True
        self.exchanger.count_end(ticket.grant.queue)
        if outcome is None:
            if self.held.get(ticket.grant.id) is ticket:
                del self.held[ticket.grant.id]
            self.outbox.lost += 1
            self.exchanger.poke()
        else:
            self.outbox.add(outcome)

    def _heed_return(self, ticket: Ticket) -> None:
        """A held job has come back to us under a newer token: it has ended, and the store's answer to that is still on
        its way; or its lease was lost unnoticed. Then its handler is stopped, and nothing of it is written."""
        if ticket.ended:
            self.outbox.set_aside(ticket)
        elif ticket.stop(Interrupt.LOST):
            self._report.job("lease_lost", WARNING, ticket, "the job was granted anew, so the old handler is stopped")

    def _release(self, tickets: list[Ticket]) -> None:
        """Give jobs back that have not begun, or that nobody waits for."""
        for ticket in tickets:
            self._ended(ticket, outcome_of(ticket.grant, Interrupted(Interrupt.SHUTDOWN)))

    async def _give_back_what_waits(self) -> None:
        """Jobs that were fetched ahead of handlers that turned out slow are for other workers to take."""
        while True:
            if not self.held:
                self._busy.clear()
            await self._busy.wait()
            await asyncio.sleep(WAITED_SECONDS)
            if not self.runners.is_full:
                continue
            waited = self.runners.take_ready(self._loop.time() - WAITED_SECONDS)
            if waited:
                self._release(waited)
                self.exchanger.slow_down()  # after it: what is given back must not count as work that was done

    async def _say(self, ticket: Ticket, events: tuple[NewEvent, ...]) -> None:
        """Write what a handler said last, before its end is settled."""
        grant, context = ticket.grant, ticket.context
        if events:
            await self._store.ado(AppendEvents(grant.id, grant.token, events))
        if context is not None and context.progress_text is not None:
            hold = Hold(grant.id, grant.token, context.progress_text)
            await self._store.ado(Heartbeat([hold], self._policies.asked_seconds(ticket)))

    # --- the steps of a stop ------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Claim nothing more, and give back what has not begun."""
        self._report.say("stopping", INFO, held=len(self.held))
        systemd.notify("STOPPING=1")
        self.stopping.set()
        self.exchanger.finish()
        self._release(self.runners.take_ready())
        self.isolate.tell_stopping()

    def _force(self) -> None:
        """Stop what runs."""
        for ticket in snapshot(self.held):
            ticket.stop(Interrupt.SHUTDOWN)

    def _abandon(self) -> None:
        """What still runs will not stop: give its job back all the same. The token keeps it from doing harm."""
        left = [ticket for ticket in snapshot(self.held) if not ticket.ended]
        for ticket in left:
            self._report.job("left_behind", WARNING, ticket, "the handler did not stop, so its job is released anyway")
        self._release(left)

    async def _close(self) -> None:
        self.stopping.set()
        await self.isolate.close()
        if not await self.runners.close():
            self._report.say("left_behind", WARNING, "a handler ignored its cancellation and is left behind")
        await self.leases.close(timeout=2.0)
        if not self.exchanger.is_away:
            await self.maintainer.say_goodbye()

    # --- what the parts ask for ---------------------------------------------------------------------------------------

    def _poke(self) -> None:
        self.exchanger.poke()

    def _row(self) -> WorkerRow:
        """This worker as others see it."""
        running = next((ticket for ticket in snapshot(self.held) if ticket.started and not ticket.ended), None)
        told: dict[str, object] = {
            "claimed": self.exchanger.claimed,
            "completed": self.outbox.completed,
            "held": len(self.held),
            "is_stopping": self.stopping.is_set(),
        }
        denied = self.maintainer.denied
        if denied:
            told["denied"] = sorted(denied)
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
            info=json.dumps(told),
        )

    def _bench(self) -> Bench:
        return Bench(
            stopping=self.stopping,
            find=self._registry.get,
            speak=lambda _: self.leases.speak_soon(),
            beat=lambda _: self.leases.kick(),
            call=self._store.do,
            acall=self._store.ado,
            record=lambda ctx, effect: self._store.do(RecordEffect(ctx.id, ctx.token, effect)),
            arecord=lambda ctx, effect: self._store.ado(RecordEffect(ctx.id, ctx.token, effect)),
            clean=clean,
            artifacts_dir=self._config.artifacts_dir,
        )


@functools.cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tenure")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return ""
