"""The executor: a fixed set of runner tasks, as many as handlers may run at once, fed from one queue of executions.

A runner takes an execution, awaits the handler, leaves the outcome in the outbox and takes the next one. Sync handlers
run in threads, isolated ones and suspects in processes; the runner waits for them meanwhile, so the number of runners
bounds all of them together.

**Every way out of a handler ends in an outcome, and its slot comes back.** Whatever a handler raises becomes one. A
runner that ends for any other reason is replaced. A handler that does not stop is left behind after the grace period:
its job is settled as the interrupt says, and a new runner or thread takes the slot. That holds for async handlers that
ignore their cancellation, and for sync ones that run past their time limit or a lost lease. A sync handler that does
not hear a cancel request may finish.

Stopping a handler that is awaited means cancelling its runner's task. `Execution.body` is set exactly while the handler
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
from typing import Any, NamedTuple

from tenure.errors import InvalidPayload, LeaseLost, StoreUnavailable
from tenure.handler.context import Context, WorkerServices
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupt, Interrupted
from tenure.handler.steps import read_all_steps
from tenure.model.event import NewEvent
from tenure.model.job import Grant
from tenure.model.limiter import keys_of
from tenure.model.log_event import ERROR, INFO, WARNING
from tenure.model.outcome import Completed, Outcome
from tenure.model.policy import UnknownKindRule
from tenure.model.state import ISOLATE_FROM
from tenure.worker.execution import Body, Execution
from tenure.worker.log import WorkerLog
from tenure.worker.outcomes import BadPayload, NoHandler, completed, interrupted_or, only_waited, outcome_of
from tenure.worker.process import HandlerNotFound, Processes, is_importable
from tenure.worker.threads import ThreadCall, Threads

CANNOT_RUN_SECONDS = 10.0
"""How long a job is delayed that this worker could not start for want of threads or processes."""
TURN_SECONDS = 0.001
"""For so long a runner goes from one job to the next without letting the event loop turn."""
MIN_GRACE_SECONDS = 1.0
"""The least time a cancelled handler has before it is left behind."""
THREADS_LEFT_AFTER = (Interrupt.TIMEOUT, Interrupt.DEADLINE, Interrupt.LOST, Interrupt.FENCED)


class _Limit(NamedTuple):
    """How long a handler may run, and why it is stopped then."""

    seconds: float
    why: Interrupt


class Executor:
    """Runs what it is fed, at most `count` at once.

    Args:
        ended: takes the outcome of an execution, once; None if nothing may be written.
        write: writes events and progress of an execution before its outcome is settled.
        run_alone: takes back a suspect that no process of its own can run.
        cannot_run: says that the machine refuses threads or processes.
    """

    def __init__(
        self,
        count: int,
        grace_seconds: float,
        services: WorkerServices,
        processes: Processes,
        log: WorkerLog,
        *,
        ended: Callable[[Execution, Outcome | None], None],
        write: Callable[[Execution, tuple[NewEvent, ...]], Awaitable[None]],
        unknown_kind_rule: Callable[[str], UnknownKindRule],
        run_alone: Callable[[Execution], None],
        cannot_run: Callable[[], None],
    ) -> None:
        self._count = count
        self._grace_seconds = max(grace_seconds, MIN_GRACE_SECONDS)
        self._services = services
        self._processes = processes
        self._log = log
        self._ended = ended
        self._write = write
        self._unknown_kind_rule = unknown_kind_rule
        self._run_alone = run_alone
        self._cannot_run = cannot_run
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(count, self._run_in_thread)
        self._ready: deque[Execution] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._named: set[str] = set()
        """Kinds that the log has named as not importable."""
        self.ran_on_loop: set[str] = set()
        """Kinds of the async handlers that began lately; emptied by the look whether one of them blocks."""
        self.left_behind = 0
        """Handlers that did not stop when asked to and may still be running."""

    def start(self) -> None:
        """Begin to run what is fed."""
        for _ in range(self._count):
            self._spawn()

    def feed(self, executions: Iterable[Execution]) -> None:
        """Queue executions."""
        self._ready.extend(executions)
        for _ in range(min(len(self._idle), len(self._ready))):
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)

    def take_ready(self, taken_before: float | None = None) -> list[Execution]:
        """Take back executions that have not begun: all, or those that have waited since before a moment."""
        taken: list[Execution] = []
        while self._ready and (taken_before is None or self._ready[0].taken_at < taken_before):
            taken.append(self._ready.popleft())
        return taken

    def take_limited(self, key: str) -> list[Execution]:
        """Take back executions that have not begun and whose job carries this limiter."""
        taken = [one for one in self._ready if key in keys_of(one.grant.extra("limiter"))]  # noqa: S610 - no Django here
        if taken:
            left = [one for one in self._ready if one not in taken]
            self._ready.clear()
            self._ready.extend(left)
        return taken

    def interrupt(self, execution: Execution, why: Interrupt) -> bool:
        """Ask a handler to stop, once. True if it was this call that asked.

        One that has not stopped after the grace period is left behind.
        """
        if not execution.stop(why):
            return False
        body = execution.body
        if isinstance(body, asyncio.Task) or (isinstance(body, ThreadCall) and why in THREADS_LEFT_AFTER):
            self._loop.call_later(self._grace_seconds, self._leave_behind, execution, body)
        return True

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
        task.add_done_callback(self._runner_ended)

    def _runner_ended(self, task: asyncio.Task[None]) -> None:
        """Replace a runner that ended by an error of this worker, or was cancelled by code that is not ours."""
        self._tasks.discard(task)
        if self._is_closed or (not task.cancelled() and task.exception() is None):
            return
        why = "was cancelled" if task.cancelled() else f"raised {task.exception()!r}"
        self._log.event("runner_died", ERROR, f"a runner {why}, so another one takes its place")
        self._spawn()

    async def _serve(self, variables: ContextVars) -> None:
        """Run executions until closed.

        Async handlers are awaited in this very task, whose context variables are `variables`: none, to begin with. If a
        handler leaves one behind, the runner ends and another one takes its place.
        """
        task = asyncio.current_task()
        assert task is not None
        turn_ends = 0.0
        while not self._is_closed:
            if not self._ready:
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                try:
                    await waiter
                finally:
                    if waiter in self._idle:  # cancelled by code that is not ours: no job may be meant for it
                        self._idle.remove(waiter)
                continue
            execution = self._ready.popleft()
            began = perf_counter()
            try:
                outcome = await self._run(execution, task)
                execution.duration = perf_counter() - began
                if execution.context is not None and outcome is not None:
                    await self._write_last(execution, execution.context, outcome)
            except HandlerNotFound as exc:
                self._log_not_importable(execution, exc)
                self._run_alone(execution)
                continue
            except BaseException as exc:
                if self._must_end(exc):
                    raise
                outcome = outcome_of(execution.grant, exc, None, execution.handler)
            if execution.timer is not None:
                execution.timer.cancel()
            self._ended(execution, outcome)
            if execution.is_left_behind:
                return  # another runner has taken the slot
            if variables:
                self._spawn()
                return
            if perf_counter() > turn_ends:  # handlers that never wait must not keep the loop from all others
                await asyncio.sleep(0)
                turn_ends = perf_counter() + TURN_SECONDS

    def _must_end(self, exc: BaseException) -> bool:
        """Whether the runner itself, and not its handler, was cancelled."""
        return self._is_closed and type(exc) in {CancelledError, GeneratorExit}

    async def _run(self, execution: Execution, task: asyncio.Task[Any]) -> Outcome | None:
        """One attempt, wherever it is to run. `task`: the runner's."""
        handler, grant = execution.handler, execution.grant
        if grant.has_more_steps and handler is not None and execution.interrupt is None:
            grant.steps = await read_all_steps(Context(grant, self._services))
            grant.has_more_steps = False
        if execution.interrupt is not None:  # it may have come while the steps were read
            return outcome_of(grant, Interrupted(execution.interrupt), None, handler)
        if handler is None:
            return outcome_of(grant, NoHandler(self._unknown_kind_rule(grant.queue)))
        is_suspect = grant.suspicion >= ISOLATE_FROM and not execution.stays_here
        if handler.mode == "process" or is_suspect:
            return await self._run_in_process(execution, handler)
        if handler.mode == "thread":
            try:
                return await self._threads.run(execution)
            except RuntimeError as exc:
                return self._refused_by_machine(execution, exc)
        return await self._run_here(execution, handler, task)

    async def _run_here(self, execution: Execution, handler: Handler, task: asyncio.Task[Any]) -> Outcome | None:
        """Await an async handler in the runner's task."""
        outcome: Outcome | None
        execution.body = task
        self.ran_on_loop.add(handler.kind)
        try:
            value = await self._call(execution, handler, self._watch)
            outcome = completed(execution.grant, value, execution.context, self._services.limits)
        except BaseException as exc:
            if execution.interrupt is None and self._must_end(exc):
                raise
            outcome = _outcome_of_raised(execution, handler, exc)
        execution.body = None
        if task.cancelling():
            await _outlive_cancellation(task)
        if handler.is_durable and outcome is not None and execution.context is not None:
            try:
                outcome = await execution.context.acompensated(outcome)
            except (StoreUnavailable, LeaseLost) as exc:
                outcome = outcome_of(execution.grant, exc)
        return outcome

    def _call(self, execution: Execution, handler: Handler, watch: Callable[[Execution, _Limit], None]) -> Any:
        """Call the handler, with its time limit watched. Raises InvalidPayload, and then it was not `started`."""
        payload: Any = None
        if handler.wants_payload:
            try:
                payload = handler.decode(execution.grant.payload_text)
            except InvalidPayload:
                raise
            except Exception as exc:  # a validator of the author's own raised
                raise InvalidPayload(f"The payload cannot be read: {type(exc).__name__}: {exc}") from exc
        if handler.wants_context or handler.memo_seconds is not None or handler.middleware:
            # Before the limit is watched: a handler in a thread is told by its context to stop.
            execution.context = Context(execution.grant, self._services)
        execution.started = True
        self._log.job("started", INFO, execution)
        if handler.is_durable and execution.context is not None:
            execution.context.journal.settle_in()
        is_limited = handler.timeout_seconds is not None or handler.deadline_seconds is not None
        if is_limited and (limit := _limit(execution.grant, handler)) is not None:
            watch(execution, limit)
        return handler.call(payload, execution.context)

    def _watch(self, execution: Execution, limit: _Limit) -> None:
        """Stop the handler when its time is over."""
        execution.timer = self._loop.call_later(limit.seconds, self.interrupt, execution, limit.why)

    def _leave_behind(self, execution: Execution, body: Body) -> None:
        """The handler did not stop: settle its job without it and give its slot to a new runner or thread.

        The token keeps whatever it still does from counting.
        """
        if execution.ended or execution.body is not body or self._is_closed:
            return
        assert execution.interrupt is not None
        outcome = outcome_of(execution.grant, Interrupted(execution.interrupt), None, execution.handler)
        if isinstance(body, ThreadCall):
            if not self._threads.abandon(body, outcome):
                return
        else:
            execution.is_left_behind = True
            self._ended(execution, outcome)
            self._spawn()
        self.left_behind += 1
        self._log.job(
            "left_behind",
            ERROR,
            execution,
            f"the handler was asked to stop ({execution.interrupt}) and has not, so its job ends without it",
            left_behind=self.left_behind,
        )

    # --- threads and processes ----------------------------------------------------------------------------------------

    def _run_in_thread(self, execution: Execution) -> Outcome | None:
        """The whole of a sync handler's attempt, on a thread of the pool."""
        outcome = self._run_in_this_thread(execution)
        context = execution.context
        if outcome is None or context is None:
            return outcome
        try:
            return context.compensated(outcome)
        except (StoreUnavailable, LeaseLost) as exc:
            return outcome_of(execution.grant, exc)

    def _run_in_this_thread(self, execution: Execution) -> Outcome | None:
        handler = execution.handler
        assert handler is not None
        if execution.interrupt is not None:
            return outcome_of(execution.grant, Interrupted(execution.interrupt), None, handler)
        try:
            value = self._call(execution, handler, self._watch_from_thread)
        except BaseException as exc:  # noqa: BLE001 - whatever a handler raises is its own end, not the thread's
            return _outcome_of_raised(execution, handler, exc)
        if (why := _ran_out(execution)) is not None:
            # A thread cannot be stopped from outside: it ran on, with its lease held. The limit stands all the same.
            return outcome_of(execution.grant, Interrupted(why), None, handler)
        return completed(execution.grant, value, execution.context, self._services.limits)

    def _watch_from_thread(self, execution: Execution, limit: _Limit) -> None:
        self._loop.call_soon_threadsafe(self._watch, execution, limit)

    async def _run_in_process(self, execution: Execution, handler: Handler) -> Outcome | None:
        """One attempt in a process of its own. Raises HandlerNotFound for a suspect that no process can import."""
        if handler.mode != "process" and not is_importable(handler):
            raise HandlerNotFound(f"kind {handler.kind!r} cannot run in a process of its own, so it runs here, alone")
        execution.context = Context(execution.grant, self._services)
        execution.started = True
        self._log.job("started", INFO, execution)
        if (limit := _limit(execution.grant, handler)) is not None:
            self._watch(execution, limit)
        try:
            return await self._processes.run(execution)
        except OSError as exc:
            return self._refused_by_machine(execution, exc)

    def _refused_by_machine(self, execution: Execution, exc: Exception) -> Outcome:
        """No thread or process could be started: the job is given back, and the worker claims nothing for a while."""
        self._log.job("cannot_run", ERROR, execution, f"no thread or process can be started: {exc}")
        self._cannot_run()
        return only_waited(execution.grant, CANNOT_RUN_SECONDS)

    def _log_not_importable(self, execution: Execution, exc: HandlerNotFound) -> None:
        if execution.grant.kind not in self._named:
            self._named.add(execution.grant.kind)
            self._log.job("suspect_not_importable", WARNING, execution, str(exc))

    # --- small steps --------------------------------------------------------------------------------------------------

    async def _write_last(self, execution: Execution, context: Context, outcome: Outcome) -> None:
        """Write what the handler reported last and its outcome does not carry: streams, progress, the log of a failure.

        If the store refuses it the outcome goes out all the same.
        """
        if execution.ended:
            return
        events = () if isinstance(outcome, Completed) else context.take_events()
        try:
            await self._write(execution, events)
        except StoreUnavailable:
            return
        except Exception as exc:  # noqa: BLE001 - an event that the store cannot take must not cost the slot
            self._log.job("events_refused", WARNING, execution, f"{len(events)} events were dropped: {exc}")


def _outcome_of_raised(execution: Execution, handler: Handler, exc: BaseException) -> Outcome | None:
    """The outcome of an exception: of the handler, or of its payload, which then was not even started. Never raises."""
    try:
        if isinstance(exc, InvalidPayload) and not execution.started:
            return outcome_of(execution.grant, BadPayload(exc))
        end = interrupted_or(exc, execution.interrupt)
    except BaseException as broken:  # noqa: BLE001 - even asking for the class of a hostile exception may raise
        end = broken
    return outcome_of(execution.grant, end, execution.context, handler)


async def _outlive_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back what cancelled the handler. If the handler cancelled itself just before it ended, the cancellation is
    delivered at the next await, which is here."""
    while task.cancelling():
        task.uncancel()
    with suppress(CancelledError):
        await asyncio.sleep(0)


def _limit(grant: Grant, handler: Handler) -> _Limit | None:
    """What ends the handler's time in this attempt: its time limit, or the deadline of a job that has recorded nothing
    yet. Once it has, the store knows the deadline, and a heartbeat tells."""
    limits = [] if handler.timeout_seconds is None else [_Limit(handler.timeout_seconds, Interrupt.TIMEOUT)]
    if handler.deadline_seconds is not None and not grant.steps:
        limits.append(_Limit(handler.deadline_seconds, Interrupt.DEADLINE))
    return min(limits, default=None)


def _ran_out(execution: Execution) -> Interrupt | None:
    return execution.interrupt if execution.interrupt in {Interrupt.TIMEOUT, Interrupt.DEADLINE} else None
