"""The lease: heartbeats from a thread of their own, and the fence around handlers whose lease may be gone.

**Model.** One heartbeat extends the leases of everything held (running, waiting to run, or waiting to be settled) and
refreshes the worker's row. It is sent from a thread, through the store's blocking door: a handler that hogs the event
loop for minutes keeps its lease as long as the interpreter runs at all.

**What comes back.** *Lost*: the job has passed on, so its handler is stopped at once and nothing of it is written.
*Cancel requested*: the handler is stopped and settles as cancelled.

**When heartbeats fail** they are tried again soon. Each ticket knows, by a clock that never jumps and counts
suspension, when its lease may have run out: counted from before the request was sent, so always earlier than the
store's own judgement. A little before that moment the fence stops the handler, on the event loop, whether or not the
thread still hangs in a request to a silent database. So by the time somebody else may begin, this worker has stopped.

Progress and log lines of handlers go out with the heartbeat, at most once a second. Its answer brings news that an idle
worker would have to ask for otherwise: whether its queues' policies are the same, and for how long somebody leads.

**An idle worker's poll is its heartbeat**, if one would follow before the next poll and has nothing new to say
(`is_due_within`): the two share a round trip, and the thread sleeps on. It is the thread's turn again as soon as that
did not work, for whatever reason, and always while jobs are held.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from time import monotonic

from tenure.errors import GateClosed, StoreUnavailable, TenureError
from tenure.handler.signals import Interrupt
from tenure.model.clock import steady_now
from tenure.model.log_event import ERROR, INFO, WARNING
from tenure.model.outcome import Beat
from tenure.store.admin import AppendEvents
from tenure.store.contract import Heartbeat, Hold, Store, WorkerRow
from tenure.worker import systemd
from tenure.worker.policies import Policies
from tenure.worker.report import Reporter
from tenure.worker.ticket import Held, Ticket, snapshot

GAP_SECONDS = 0.5
"""Heartbeats that were asked for come no closer than this."""
SPEAK_SECONDS = 1.0
BATCH = 2000
FENCE_SHARE = 0.1
"""The handler is stopped when this share of the lease is left."""
FENCE_MOST_SECONDS = 5.0


class Leases:
    """Keeps the leases of all held jobs alive, and stops what is not ours any more."""

    def __init__(
        self,
        store: Store,
        held: Held,
        row: Callable[[], WorkerRow],
        policies: Policies,
        report: Reporter,
        busy: asyncio.Event,
    ) -> None:
        self._store = store
        self._held = held
        self._busy = busy
        self._row = row
        self._policies = policies
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._beat_at = monotonic()  # the first one at once: the worker shows itself
        self._last_beat = 0.0
        self._offered = self._offered_at = 0.0
        """Which heartbeat a poll was given to carry, by the moment at which it is due, and when."""
        self._told: WorkerRow | None = None
        """The row as the store knows it."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="tenure-lease", daemon=True)
        self.beats = 0
        self.failures = 0
        self.led_until = 0.0
        """Until when somebody else is known to lead, by the steady clock and earlier than the store would say."""

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._thread.start()

    def kick(self) -> None:
        """Send the next heartbeat soon. From any thread."""
        self._at_latest(max(monotonic(), self._last_beat + GAP_SECONDS))

    def speak_soon(self) -> None:
        """A handler said something; it goes out with a heartbeat within about a second. From any thread."""
        self._at_latest(max(monotonic(), self._last_beat + SPEAK_SECONDS))

    def is_due_within(self, seconds: float) -> bool:
        """Whether a poll may carry the next heartbeat: one that is due so soon and has nothing new to say.

        Each is offered once: one that does not get through is the thread's, which says what is wrong.
        """
        with self._changed:
            now = monotonic()
            if self._beat_at == self._offered or self._beat_at - now > seconds:
                return False
            self._offered, self._offered_at = self._beat_at, now
        return self._row() == self._told

    def carried(self, beat: Beat, sent: float) -> None:
        """A poll sent at `sent` was a heartbeat: the next may wait for as long as after any other."""
        with self._changed:
            if self._beat_at == self._offered:  # else the thread was quicker, or somebody asked for one meanwhile
                self._beat_at = self._offered_at + self._policies.heartbeat_seconds()
        self.beats += 1
        self._learn(beat, sent)
        if systemd.watchdog_seconds() is not None:
            systemd.notify("WATCHDOG=1")

    async def fence(self) -> None:
        """Watch the tickets whose lease could not be extended. Runs until cancelled; sleeps while nothing is held."""
        while True:
            await self._busy.wait()
            await asyncio.sleep(max(0.02, min(1.0, self._policies.heartbeat_seconds() / 4)))
            now = steady_now()
            for ticket in snapshot(self._held):
                lease = self._policies.lease_seconds(ticket)
                margin = min(lease * FENCE_SHARE, FENCE_MOST_SECONDS)
                if now >= ticket.fence_at - margin and ticket.stop(Interrupt.FENCED):
                    self._report.job(
                        "fenced",
                        WARNING,
                        ticket,
                        "no heartbeat came through for nearly a whole lease, so the handler is stopped",
                    )

    async def close(self, timeout: float) -> None:
        """Send no more heartbeats. Waits for one in flight, but not for ever."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, timeout)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _at_latest(self, at: float) -> None:
        with self._changed:
            if at < self._beat_at:
                self._beat_at = at
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closed and (wait := self._beat_at - monotonic()) > 0:
                    self._changed.wait(wait)
                if self._is_closed:
                    return
                self._last_beat = monotonic()
                self._beat_at = self._last_beat + self._policies.heartbeat_seconds()
            if systemd.watchdog_seconds() is not None:
                systemd.notify("WATCHDOG=1")
            if not self._beat():
                self._at_latest(monotonic() + min(1.0, self._policies.heartbeat_seconds() / 4))

    def _beat(self) -> bool:
        """One round of heartbeats. False if the store could not be reached, or refused."""
        try:
            tickets = snapshot(self._held)
            row: WorkerRow | None = self._row()
            for batch, lease in self._batches(tickets):
                self._send(batch, lease, row)
                row = None
            for ticket in tickets:
                self._write_events(ticket)
        except StoreUnavailable as exc:
            self._failed(exc)
            return False
        except TenureError as exc:
            self._report.say("heartbeat_refused", ERROR, str(exc), code=exc.code)
            self._failed(exc)
            return False
        self.beats += 1
        if self.failures:
            self._report.say("heartbeat_back", INFO, f"heartbeats come through again after {self.failures} tries")
            self.failures = 0
        return True

    def _batches(self, tickets: list[Ticket]) -> Iterable[tuple[list[Ticket], float | None]]:
        """Tickets by the lease they ask for; one empty batch if nothing is held, for the worker's row."""
        groups: dict[float | None, list[Ticket]] = {}
        for ticket in tickets:
            groups.setdefault(self._policies.asked_seconds(ticket), []).append(ticket)
        if not groups:
            yield [], None
        for lease, group in groups.items():
            for start in range(0, len(group), BATCH):
                yield group[start : start + BATCH], lease

    def _send(self, tickets: list[Ticket], lease: float | None, row: WorkerRow | None) -> None:
        holds, told = [], []
        for ticket in tickets:
            progress = None if ticket.context is None else ticket.context.progress_text
            if progress is not None:
                told.append((ticket, progress))
            holds.append(Hold(ticket.grant.id, ticket.grant.token, progress, ticket.started))
        sent = steady_now()
        try:
            beat = self._store.do(Heartbeat(holds, lease, row))
        except StoreUnavailable:
            raise
        except GateClosed:  # the gate keeps the worker's row from being written, and there was nothing else
            return
        except TenureError as exc:
            if row is None:
                raise
            self._report.say("row_refused", ERROR, str(exc), code=exc.code)
            self._send(tickets, lease, None)  # whatever is wrong with the row, the leases must not pay for it
            return
        if row is not None:
            self._told = row
            self._learn(beat, sent)
        self._kept(tickets, told, beat, sent)
        if beat.lost or beat.cancel_requested:
            self._loop.call_soon_threadsafe(self._heed, {ticket.grant.id: ticket for ticket in tickets}, beat)

    def _learn(self, beat: Beat, sent: float) -> None:
        self._policies.heard(beat.queues)
        self.led_until = sent + (beat.led_seconds or 0.0)

    def _kept(self, tickets: list[Ticket], told: list[tuple[Ticket, str]], beat: Beat, sent: float) -> None:
        for ticket in tickets:
            if ticket.grant.id not in beat.lost:
                ticket.fence_at = sent + self._policies.lease_seconds(ticket)
        for ticket, progress in told:
            if ticket.context is not None and ticket.context.progress_text is progress:
                ticket.context.progress_text = None

    def _write_events(self, ticket: Ticket) -> None:
        context = ticket.context
        if context is None or not context.events or ticket.ended:
            return
        events = context.take_events()
        try:
            self._store.do(AppendEvents(ticket.grant.id, ticket.grant.token, events))
        except StoreUnavailable:
            context.events.extendleft(reversed(events))
            raise

    def _failed(self, exc: TenureError) -> None:
        self.failures += 1
        self._report.say("heartbeat_failed", WARNING, str(exc), code=exc.code, failures=self.failures)

    # --- back on the loop ---------------------------------------------------------------------------------------------

    def _heed(self, tickets: Held, beat: Beat) -> None:
        """Stop what is not wanted any more. A handler that has ended meanwhile is settled, and its token judges."""
        for job_id in beat.lost:
            ticket = tickets.get(job_id)
            if ticket is not None and ticket.stop(Interrupt.LOST):
                self._report.job(
                    "lease_lost", WARNING, ticket, "the lease ran out or passed on, so the handler is stopped"
                )
        for job_id in beat.cancel_requested:
            ticket = tickets.get(job_id)
            if ticket is not None and ticket.stop(Interrupt.CANCEL):
                self._report.job("cancel_heard", INFO, ticket, "a cancel was requested, so the handler is stopped")
