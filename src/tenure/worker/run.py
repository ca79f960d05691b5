"""The runners: a fixed set of tasks, as many as handlers may run at once, fed from one line of tickets.

There is no task, timer or lock per job on the way of a job that goes well: a runner takes a ticket, awaits the handler,
leaves the outcome in the outbox and takes the next. Sync handlers are passed on to threads, isolated ones to processes;
the runner waits for them meanwhile, so the number of runners bounds all of them together.

Stopping a handler that is awaited means cancelling its runner's task. `Ticket.body` is set exactly while the handler
has the task, on the same thread that cancels; so a cancellation can hit nothing but the handler, and the runner takes
it back (`uncancel`) and lives on.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import Context as ContextVars
from time import perf_counter
from typing import Any, Protocol

from tenure.errors import InvalidPayload, StoreUnavailable
from tenure.handler.context import Bench, Context
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupt, Interrupted
from tenure.model.event import NewEvent
from tenure.model.log_event import DEBUG
from tenure.model.outcome import Completed, Outcome
from tenure.model.policy import UnknownKindRule
from tenure.worker.deadlines import Deadlines
from tenure.worker.end import BadPayload, NoHandler, completed, interrupted_or, outcome_of
from tenure.worker.report import Reporter
from tenure.worker.threads import OVERDUE_SECONDS, Chunk, Threads
from tenure.worker.ticket import Ticket

SLICE_JOBS = 256
SLICE_SECONDS = 0.004
"""After so many jobs or so much time without a pause the runners let the loop go round."""


class Isolation(Protocol):
    """Where handlers run that get a process of their own."""

    async def run(self, ticket: Ticket) -> Outcome | None: ...


class Runners:
    """Runs what it is fed, at most `count` at once."""

    def __init__(
        self,
        count: int,
        bench: Bench,
        ended: Callable[[Ticket, Outcome | None], None],
        say: Callable[[Ticket, tuple[NewEvent, ...]], Awaitable[None]],
        no_handler: Callable[[str], UnknownKindRule],
        isolation: Isolation,
        report: Reporter,
    ) -> None:
        self._count = count
        self._bench = bench
        self._ended = ended
        self._say = say
        self._no_handler = no_handler
        self._isolation = isolation
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._threads = Threads(count, self._run_in_thread)
        self._ready: deque[Ticket] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._slice_left = SLICE_JOBS
        self._slice_until = 0.0
        self._is_closed = False
        self._tells_starts = False
        self._slice_is_coming = False

    def start(self) -> None:
        """Begin to run what is fed."""
        for _ in range(self._count):
            self._spawn()

    def feed(self, tickets: Iterable[Ticket]) -> None:
        """Line tickets up."""
        self._ready.extend(tickets)
        self._tells_starts = self._report.wants(DEBUG)
        for _ in range(min(len(self._idle), len(self._ready))):
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)

    def take_ready(self, taken_before: float | None = None) -> list[Ticket]:
        """Take back tickets that have not begun: all, or those that have waited since before a moment."""
        if taken_before is None:
            taken = list(self._ready)
            self._ready.clear()
            return taken
        taken = []
        while self._ready and self._ready[0].taken_at < taken_before:
            taken.append(self._ready.popleft())
        return taken

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def is_full(self) -> bool:
        """Whether every runner has something to do."""
        return not self._idle

    async def close(self) -> bool:
        """End the runners. False if a handler ignores its cancellation; its task is left behind."""
        self._is_closed = True
        self._deadlines.close()
        self._threads.close()
        for waiter in self._idle:
            waiter.cancel()
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        return all(task.done() for task in tasks)

    # --- one runner ---------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        variables = ContextVars()
        task = self._loop.create_task(self._serve(variables), name="tenure-runner", context=variables)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, variables: ContextVars) -> None:
        """Run tickets until closed. What a handler raises becomes an outcome; nothing escapes.

        Async handlers are awaited in this very task, and its context variables are `variables`: none, to begin with. If
        a handler leaves one behind, the runner ends early, with a successor.
        """
        task = asyncio.current_task()
        assert task is not None
        ready, ended, watch = self._ready, self._ended, self._deadlines.add
        while not self._is_closed:
            if not ready:
                await self._wait_for_work()
                continue
            began = perf_counter()
            if self._slice_left <= 0 or began > self._slice_until:
                await self._pause()
                continue
            self._slice_left -= 1
            ticket = ready.popleft()
            handler = ticket.handler
            if handler is None or handler.mode != "async" or ticket.interrupt is not None:
                await self._run_elsewhere(ticket, handler)
                continue
            ticket.body = task
            outcome: Outcome | None
            try:
                outcome = completed(ticket.grant, await self._call(ticket, handler, watch), ticket.context)
            except BaseException as exc:  # SystemExit in a handler must not end the worker either
                if self._is_ended_by(exc, ticket):
                    raise
                outcome = _outcome_of_raised(ticket, handler, exc)
            ticket.body = None
            ticket.duration = perf_counter() - began
            if task.cancelling():
                await _outlive_cancellation(task)
            if ticket.context is not None:
                await self._say_last(ticket, outcome)
            ended(ticket, outcome)
            if variables:
                self._spawn()
                return

    def _call(self, ticket: Ticket, handler: Handler, watch: Callable[[Ticket, float], None]) -> Any:
        """Call the handler, with its time limit watched. Raises InvalidPayload, and then it was not `started`."""
        payload: Any = None
        if handler.wants_payload:
            try:
                payload = handler.decode(ticket.grant.payload_text)
            except InvalidPayload:
                raise
            except Exception as exc:  # a validator of the author's own broke; the payload is what it broke on
                raise InvalidPayload(f"The payload cannot be read: {type(exc).__name__}: {exc}") from exc
        if handler.wants_context:  # before the limit is watched: a handler in a thread is told by its context to stop
            ticket.context = Context(ticket.grant, self._bench)
        ticket.started = True
        if self._tells_starts:
            self._report.started(ticket)
        if handler.timeout_seconds is not None:
            watch(ticket, handler.timeout_seconds)
        if handler.wants_context:
            arguments = (payload, ticket.context) if handler.wants_payload else (ticket.context,)
            return handler.function(*arguments)
        return handler.function(payload) if handler.wants_payload else handler.function()

    def _is_ended_by(self, exc: BaseException, ticket: Ticket) -> bool:
        """Whether it is the runner itself, and not its handler, that is to end."""
        if isinstance(exc, CancelledError):
            return self._is_closed and ticket.interrupt is None
        return isinstance(exc, GeneratorExit)

    # --- not on the loop ----------------------------------------------------------------------------------------------

    async def _run_elsewhere(self, ticket: Ticket, handler: Handler | None) -> None:
        """A ticket that does not run on the loop, or not at all."""
        if ticket.interrupt is not None:
            self._ended(ticket, outcome_of(ticket.grant, Interrupted(ticket.interrupt), None, handler))
        elif handler is None:
            self._ended(ticket, outcome_of(ticket.grant, NoHandler(self._no_handler(ticket.grant.queue))))
        elif handler.mode == "thread":
            await self._run_chunk(self._chunk(ticket, handler.kind))
        else:
            await self._run_isolated(ticket, handler)

    async def _run_isolated(self, ticket: Ticket, handler: Handler) -> None:
        began = perf_counter()
        ticket.started = True
        ticket.context = Context(ticket.grant, self._bench)
        self._report.started(ticket)
        if handler.timeout_seconds is not None:
            self._deadlines.add(ticket, handler.timeout_seconds)
        outcome = await self._isolation.run(ticket)
        ticket.duration = perf_counter() - began
        await self._say_last(ticket, outcome)
        self._ended(ticket, outcome)

    def _chunk(self, first: Ticket, kind: str) -> list[Ticket]:
        """The ticket, and behind it those of the same quick kind."""
        size = self._threads.chunk_size(kind)
        tickets, ready = [first], self._ready
        while len(tickets) < size and ready and ready[0].grant.kind == kind and ready[0].interrupt is None:
            tickets.append(ready.popleft())
        return tickets

    async def _run_chunk(self, tickets: list[Ticket]) -> None:
        began, kind = perf_counter(), tickets[0].grant.kind
        chunk = self._threads.start(tickets)
        done = 0
        if len(tickets) > 1:
            await asyncio.wait({chunk.done}, timeout=OVERDUE_SECONDS)
            if not chunk.done.done():
                done += await self._collect(chunk)
                self._take_back(chunk)
        await chunk.done
        done += await self._collect(chunk)
        self._threads.learn(kind, (perf_counter() - began) / max(done, 1))

    async def _collect(self, chunk: Chunk) -> int:
        done = 0
        while chunk.results:
            ticket, outcome = chunk.results.popleft()
            if ticket.context is not None:
                await self._say_last(ticket, outcome)
            self._ended(ticket, outcome)
            done += 1
        return done

    def _take_back(self, chunk: Chunk) -> None:
        """One job of a chunk turned out slow: the others need not wait for it."""
        back: list[Ticket] = []
        while chunk.tickets:
            try:
                back.append(chunk.tickets.pop())
            except IndexError:  # the thread has just begun the last one
                break
        self._ready.extendleft(back)
        self.feed(())

    def _run_in_thread(self, ticket: Ticket) -> Outcome | None:
        """The whole of a sync handler's attempt, on a thread of the pool."""
        handler = ticket.handler
        assert handler is not None
        if ticket.interrupt is not None:
            return outcome_of(ticket.grant, Interrupted(ticket.interrupt), None, handler)
        try:
            value = self._call(ticket, handler, self._watch_from_thread)
        except BaseException as exc:  # noqa: BLE001 - whatever a handler raises is its own end, not the thread's
            return _outcome_of_raised(ticket, handler, exc)
        if _was_timed_out(ticket):
            # A thread cannot be stopped from outside: it ran on, with its lease held. The limit stands all the same.
            return outcome_of(ticket.grant, Interrupted(Interrupt.TIMEOUT), None, handler)
        return completed(ticket.grant, value, ticket.context)

    def _watch_from_thread(self, ticket: Ticket, seconds: float) -> None:
        self._loop.call_soon_threadsafe(self._deadlines.add, ticket, seconds)

    # --- small steps --------------------------------------------------------------------------------------------------

    async def _say_last(self, ticket: Ticket, outcome: Outcome | None) -> None:
        """Write what the handler said last, if its outcome does not carry it: progress, and the log of a failure."""
        context = ticket.context
        if context is None or outcome is None or (isinstance(outcome, Completed) and context.progress_text is None):
            return
        events = () if isinstance(outcome, Completed) else context.take_events()
        if not events and context.progress_text is None:
            return
        try:
            await self._say(ticket, events)
        except StoreUnavailable:  # the outcome matters more, and has a place to wait
            return

    async def _wait_for_work(self) -> None:
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        await waiter
        if self._slice_until < perf_counter():
            self._new_slice()

    async def _pause(self) -> None:
        """Let the loop go round. The slice is for all runners together, or ten of them would take ten slices."""
        if not self._slice_is_coming:
            self._slice_is_coming = True
            self._loop.call_soon(self._new_slice)
        await asyncio.sleep(0)

    def _new_slice(self) -> None:
        self._slice_is_coming = False
        self._slice_left = SLICE_JOBS
        self._slice_until = perf_counter() + SLICE_SECONDS


def _outcome_of_raised(ticket: Ticket, handler: Handler, exc: BaseException) -> Outcome | None:
    """What a handler's exception means, or that its payload does not fit: then it was not even started."""
    if isinstance(exc, InvalidPayload) and not ticket.started:
        return outcome_of(ticket.grant, BadPayload(exc))
    return outcome_of(ticket.grant, interrupted_or(exc, ticket.interrupt), ticket.context, handler)


async def _outlive_cancellation(task: asyncio.Task[None]) -> None:
    """Take back what cancelled the handler. If that was the handler itself, just before it ended, the cancellation is
    still to come, and comes here."""
    while task.cancelling():
        task.uncancel()
    with suppress(CancelledError):
        await asyncio.sleep(0)


def _was_timed_out(ticket: Ticket) -> bool:
    return ticket.interrupt is Interrupt.TIMEOUT
