"""Leases: heartbeats from a thread of their own, and the fence around handlers whose lease may have run out.

**Model.** One heartbeat extends the leases of everything held (running, waiting to run, or waiting to be settled) and
refreshes the worker's row. It is sent from a thread, by the store's blocking call: a handler that blocks the event loop
for minutes keeps its lease as long as the interpreter runs at all.

**What comes back.** *Lost*: the job has passed on, so its handler is stopped at once and nothing of it is written.
*Cancel requested*: the handler is stopped and settles as cancelled. *Overdue*: the deadline of a durable job has
passed; the handler is stopped and the job fails.

**When heartbeats fail** they are tried again soon. Each execution knows, by a clock that never jumps and counts
suspension, when its lease may have run out: counted from before the request was sent, so always earlier than the
store's own judgement. A little before that moment the fence stops the handler, on the event loop, whether or not the
thread still hangs in a request to a silent database. So by the time another worker may begin, this one has stopped.

**How much may be held** follows from how long heartbeats take: no more jobs than one can carry within a third of the
lease (`capacity`). A heartbeat that is due goes before the next claim (`is_due`).

Progress of handlers goes out with the heartbeat, at most once a second. Their log lines go out behind it, from the
event loop: a store that cannot take one now must cost no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from tenure.errors import GateClosed, StoreUnavailable
from tenure.handler.context import Context
from tenure.handler.signals import Interrupt
from tenure.model.clock import steady_now
from tenure.model.log_event import ERROR, INFO, WARNING
from tenure.model.outcome import Beat
from tenure.store.admin import AppendEvents
from tenure.store.contract import Heartbeat, Hold, Store, WorkerRow
from tenure.worker import systemd
from tenure.worker.config import HEARTBEATS_PER_LEASE
from tenure.worker.execution import Execution, Held, snapshot
from tenure.worker.log import WorkerLog, code_of
from tenure.worker.policies import Policies

GAP_SECONDS = 0.5
"""Heartbeats that were asked for come no closer than this."""
WRITE_SECONDS = 1.0
BATCH = 2000
FENCE_SHARE = 0.1
"""The handler is stopped when this share of the lease is left."""
FENCE_MOST_SECONDS = 5.0
OLDER = 0.7
"""How much an earlier heartbeat counts beside the next one in the measured duration."""


def until_fence(lease_seconds: float) -> float:
    """How long after a lease was asked for its handler may run without a further heartbeat."""
    return lease_seconds - min(lease_seconds * FENCE_SHARE, FENCE_MOST_SECONDS)


class Leases:
    """Keeps the leases of all held jobs alive, and stops handlers whose job has passed on."""

    def __init__(
        self,
        store: Store,
        held: Held,
        row: Callable[[], WorkerRow],
        policies: Policies,
        log: WorkerLog,
        busy: asyncio.Event,
    ) -> None:
        self._store = store
        self._held = held
        self._busy = busy
        self._row = row
        self._policies = policies
        self._log = log
        self._loop = asyncio.get_running_loop()
        self.interrupt: Callable[[Execution, Interrupt], bool] = Execution.stop
        """Stops a handler; called on the event loop."""
        self.sent: Callable[[], None] = lambda: None
        """Called on the event loop after each round of heartbeats."""
        self._changed = threading.Condition()
        self._next_at = monotonic()  # the first one at once, so that the worker's row is there
        self._last_at = 0.0
        self._is_sending = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tenure-heartbeat", daemon=True)
        self.heartbeats = 0
        self.failures = 0
        self.capacity: int | None = None
        """How many jobs one round of heartbeats can carry within a third of the lease; None before it was measured."""
        self._seconds = self._jobs = 0.0
        """What the last heartbeats took and how many jobs they carried, older ones counting less and less."""
        self._writing: asyncio.Task[None] | None = None
        """Writes log lines, of one job after the other."""
        self._append: tuple[Execution, asyncio.Task[None]] | None = None
        """The log lines that are on their way to the store, and whose they are."""

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._thread.start()

    def send_soon(self) -> None:
        """Send the next heartbeat soon. From any thread."""
        self._send_by(max(monotonic(), self._last_at + GAP_SECONDS))

    def write_soon(self) -> None:
        """A handler reported progress or a log line, which goes out within about a second. From any thread."""
        self._send_by(max(monotonic(), self._last_at + WRITE_SECONDS))

    def is_due(self) -> bool:
        """Whether a heartbeat for held jobs should go out before anything is claimed."""
        return bool(self._held) and not self.failures and (self._is_sending or self._next_at <= monotonic())

    async def fence(self) -> None:
        """Stop the handlers whose lease could not be extended. Runs until cancelled; sleeps while nothing is held."""
        while True:
            await self._busy.wait()
            await asyncio.sleep(max(0.02, min(1.0, self._policies.heartbeat_seconds() / 4)))
            now = steady_now()
            for execution in snapshot(self._held):
                if now >= execution.fence_at and self.interrupt(execution, Interrupt.FENCED):
                    self._log.job(
                        "fenced",
                        WARNING,
                        execution,
                        "no heartbeat came through for nearly a whole lease, so the handler is stopped",
                    )

    async def written(self, execution: Execution) -> None:
        """Wait for log lines of a job that are on their way to the store."""
        if self._append is not None and self._append[0] is execution:
            await asyncio.wait({self._append[1]})

    async def close(self, timeout: float) -> None:
        """Send no more heartbeats. Waits for one in flight, but not for ever."""
        if self._writing is not None:
            self._writing.cancel()
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, timeout)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _send_by(self, at: float) -> None:
        with self._changed:
            if at < self._next_at:
                self._next_at = at
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (wait := self._next_at - monotonic()) > 0:
                    self._changed.wait(wait)
                if self._is_closed:
                    return
                self._is_sending = True
                self._last_at = monotonic()
                self._next_at = self._last_at + self._policies.heartbeat_seconds()
            if systemd.watchdog_seconds() is not None:
                systemd.notify("WATCHDOG=1")
            if not self._heartbeat():
                self._send_by(monotonic() + min(1.0, self._policies.heartbeat_seconds() / 4))
            self._is_sending = False
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self._after_heartbeat)

    def _heartbeat(self) -> bool:
        """One round of heartbeats. False if the store could not be reached, or refused."""
        try:
            executions = snapshot(self._held)
            began = monotonic()
            row: WorkerRow | None = self._row()
            for batch, lease in self._batches(executions):
                self._send(batch, lease, row)
                row = None
            if executions:
                self._seconds = self._seconds * OLDER + monotonic() - began
                self._jobs = self._jobs * OLDER + len(executions)
                per_job = max(self._seconds, 1e-6) / self._jobs
                self.capacity = int(self._policies.shortest_lease() / HEARTBEATS_PER_LEASE / per_job)
        except StoreUnavailable as exc:
            self._failed(exc)
            return False
        except Exception as exc:  # noqa: BLE001 - without this thread every lease of the worker would run out
            self._log.event("heartbeat_refused", ERROR, str(exc), code=code_of(exc))
            self._failed(exc)
            return False
        self.heartbeats += 1
        if self.failures:
            self._log.event("heartbeat_back", INFO, f"heartbeats come through again after {self.failures} tries")
            self.failures = 0
        return True

    def _batches(self, executions: list[Execution]) -> Iterable[tuple[list[Execution], float | None]]:
        """Executions by the lease they ask for; one empty batch if nothing is held, for the worker's row."""
        groups: dict[float | None, list[Execution]] = {}
        for execution in executions:
            groups.setdefault(self._policies.asked_seconds(execution), []).append(execution)
        if not groups:
            yield [], None
        for lease, group in groups.items():
            for start in range(0, len(group), BATCH):
                yield group[start : start + BATCH], lease

    def _send(
        self, executions: list[Execution], lease: float | None, row: WorkerRow | None, *, is_bare: bool = False
    ) -> None:
        """One heartbeat. If the store refuses it, it is sent again bare, without the worker's row and without progress:
        the leases must not pay for either."""
        holds, progress = [], []
        for execution in executions:
            text = None if execution.context is None else execution.context.progress_text
            if text is not None:
                progress.append((execution, text))
            hold_text = None if is_bare else text
            holds.append(Hold(execution.grant.id, execution.grant.token, hold_text, execution.started))
        sent = steady_now()
        try:
            beat = self._store.do(Heartbeat(holds, lease, row))
        except StoreUnavailable:
            raise
        except GateClosed:  # the gate keeps the worker's row from being written, and there was nothing else
            return
        except Exception as exc:
            if is_bare or (row is None and not progress):
                raise
            self._log.event("row_refused", ERROR, str(exc), code=code_of(exc))
            self._send(executions, lease, None, is_bare=True)
            return
        self._kept(executions, progress, beat, sent)
        if beat.lost or beat.cancel_requested or beat.overdue:
            by_id = {execution.grant.id: execution for execution in executions}
            self._loop.call_soon_threadsafe(self._stop_unwanted, by_id, beat)

    def _kept(
        self, executions: list[Execution], progress: list[tuple[Execution, str]], beat: Beat, sent: float
    ) -> None:
        for execution in executions:
            if execution.grant.id not in beat.lost:
                execution.fence_at = sent + until_fence(self._policies.lease_seconds(execution))
        for execution, text in progress:
            if execution.context is not None and execution.context.progress_text is text:
                execution.context.progress_text = None

    def _failed(self, exc: Exception) -> None:
        self.failures += 1
        self._log.event("heartbeat_failed", WARNING, str(exc), code=code_of(exc), failures=self.failures)

    # --- back on the loop ---------------------------------------------------------------------------------------------

    def _after_heartbeat(self) -> None:
        self.sent()
        if self._have_events() and not self._is_closed and (self._writing is None or self._writing.done()):
            self._writing = self._loop.create_task(self._write_events(), name="tenure-events")

    def _have_events(self) -> bool:
        """Whether a held job has log lines that are not written yet."""
        return any(one.context is not None and one.context.events and not one.ended for one in self._held.values())

    async def _write_events(self) -> None:
        """Write the log lines of all held jobs, one job after the other."""
        try:
            for execution in snapshot(self._held):
                if execution.context is not None and execution.context.events and not execution.ended:
                    append = self._loop.create_task(self._append_events(execution, execution.context))
                    self._append = (execution, append)
                    await append
        except StoreUnavailable:
            pass  # the fetcher logs it already
        finally:
            self._append = None
            if self._have_events():
                self.write_soon()

    async def _append_events(self, execution: Execution, context: Context) -> None:
        events = context.take_events()
        try:
            await self._store.ado(AppendEvents(execution.grant.id, execution.grant.token, events))
        except StoreUnavailable:
            context.return_events(events)
            raise
        except Exception as exc:  # noqa: BLE001 - what one job says must not keep the others from being heard
            self._log.job("events_refused", WARNING, execution, f"{len(events)} events were dropped: {exc}")

    def _stop_unwanted(self, executions: Held, beat: Beat) -> None:
        """Stop handlers whose job has passed on or was cancelled. One that has ended is settled by its token."""
        for job_id in beat.lost:
            execution = executions.get(job_id)
            if execution is not None and self.interrupt(execution, Interrupt.LOST):
                self._log.job(
                    "lease_lost", WARNING, execution, "the lease ran out or passed on, so the handler is stopped"
                )
        for job_id in beat.cancel_requested:
            execution = executions.get(job_id)
            if execution is not None and self.interrupt(execution, Interrupt.CANCEL):
                self._log.job("cancel_heard", INFO, execution, "a cancel was requested, so the handler is stopped")
        for job_id in beat.overdue:
            execution = executions.get(job_id)
            if execution is not None and self.interrupt(execution, Interrupt.DEADLINE):
                self._log.job("overdue", WARNING, execution, "its deadline has passed, so the handler is stopped")
