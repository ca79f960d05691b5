"""The context that a handler is given beside its payload: the job, its log and progress, and the request to stop.

A context knows neither stores nor workers. What it needs of them comes as `WorkerServices`, so the same class serves
handlers on the event loop, in threads and in processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

from tenure.errors import ConfigError, InvalidArgument
from tenure.handler import arguments
from tenure.handler.approvals import Decision, approved_args
from tenure.handler.arguments import Duration, Names
from tenure.handler.budgets import Reservation, reservation_key
from tenure.handler.building import MISSING, JobOptions, build_job
from tenure.handler.durable import DurableCalls
from tenure.handler.ledger import (
    EffectCall,
    EffectPlan,
    EffectReused,
    LedgerRow,
    Verify,
    acarry_out,
    carry_out,
    effect_steps,
)
from tenure.handler.payload import DEFAULT_LIMITS, encode
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupt, Interrupted
from tenure.handler.steps import current_step, is_on_loop
from tenure.handler.streams import JobStream
from tenure.model.budget import Money, amounts_of
from tenure.model.event import EventKind, NewEvent
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import EffectRecord
from tenure.model.policy import Limits

EVENTS_KEPT = 1000
"""Log lines of one job that may wait to be written. Beyond that the oldest are dropped, counted and reported."""
MESSAGE_CHARS = 8192
SUMMARY_CHARS = 1024
_INHERITED = ("workflow_id", "run_id", "tenant", "trace", "actor", "created_by_user_id", "requested_by_user_id")
"""What the jobs that a job makes take over from it. Who had it done had them done too, and answers no approval of
theirs."""

_log = logging.getLogger("tenure.job")
R = TypeVar("R")


class Flag:
    """A flag that is set once and stays set. It may be read and awaited from any thread and any event loop."""

    __slots__ = ("_event", "_is_set", "_lock", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._lock = _flags

    def is_set(self) -> bool:
        return self._is_set

    __bool__ = is_set

    def set(self) -> None:
        """Set it and wake all that wait for it."""
        with self._lock:
            self._is_set = True
            event, waiters, self._waiters = self._event, self._waiters, []
        if event is not None:
            event.set()
        for loop, waiter in waiters:
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # that loop has closed, and its waiters with it
                continue

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until it is set. For sync handlers; async ones await `wait_async`."""
        with self._lock:
            if self._is_set:
                return True
            if self._event is None:
                self._event = threading.Event()
        return self._event.wait(timeout)

    async def wait_async(self) -> None:
        """Wait until it is set without blocking the event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._is_set:
                return
            entry = (loop, loop.create_future())
            self._waiters.append(entry)
        try:
            await entry[1]
        finally:
            with self._lock:
                if entry in self._waiters:
                    self._waiters.remove(entry)


_flags = threading.Lock()  # one for all: it is held for nanoseconds, and a context should be cheap


@frozen
class WorkerServices:
    """What every context needs of its worker."""

    stopping: Flag
    find: Callable[[str], Handler | None]
    """The handler of a kind, for the queue and the codec of follow-ups."""
    write_soon: Callable[[Context], None]
    """There is progress or a log line to write within about a second."""
    heartbeat: Callable[[Context], None]
    """The lease should be extended now."""
    call: Callable[[Any], Any] | None = None
    """Carry out a store's request and wait: for ledgers and steps, which wrap a context."""
    acall: Callable[[Any], Any] | None = None
    record: Callable[[Context, EffectRecord], LedgerRow | None] | None = None
    """Write a row of the effect ledger, fenced by the context's token; None if the lease is lost."""
    arecord: Callable[[Context, EffectRecord], Awaitable[LedgerRow | None]] | None = None
    flow: Callable[[Context, Any], Any] | None = None
    """Write steps or look up children for a durable job, fenced by the context's token. Raises LeaseLost."""
    aflow: Callable[[Context, Any], Awaitable[Any]] | None = None
    stream: Callable[[Context, str, str], None] | None = None
    """Add text to a stream of the job; waits while too much is on its way. Raises LeaseLost."""
    astream: Callable[[Context, str, str], Awaitable[None]] | None = None
    clean: Callable[[str], str] = str
    """Takes secrets out of what is stored."""
    artifacts_dir: Path | None = None
    limits: Limits = DEFAULT_LIMITS
    """What follow-ups, results and progress may carry: the app's own limits."""
    memory: Any = None
    """What agents remember: `tenure.flow.memory.AgentMemory`."""


class Context(DurableCalls):
    """The job at hand. Made by the worker for handlers that ask for it by a parameter of this type."""

    __slots__ = (
        "_artifacts_path",
        "_logger",
        "_places",
        "_reservations",
        "dropped_events",
        "events",
        "follow_ups",
        "interrupt",
        "outgoing",
        "progress_text",
        "result_summary",
    )

    def __init__(self, job: Grant, services: WorkerServices) -> None:
        super().__init__(job, services, Flag())
        self.interrupt: Interrupt | None = None
        self.follow_ups: list[NewJob] = []
        self.events: deque[NewEvent] = deque(maxlen=EVENTS_KEPT)
        self.dropped_events: int = 0
        self.progress_text: str | None = None
        self.result_summary: str | None = None
        self._artifacts_path: Path | None = None
        self._logger: JobLogger | None = None
        self.outgoing: Any = None
        """For the worker: what was written to streams and is not stored yet."""
        self._places: dict[tuple[str, str], str] = {}
        self._reservations: dict[str | None, int] = {}
        """How many reservations this attempt has made, by the step that it was in."""

    @property
    def id(self) -> JobId:
        return self.job.id

    @property
    def kind(self) -> str:
        return self.job.kind

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self.job.attempt

    @property
    def max_attempts(self) -> int:
        return self.job.max_attempts

    @property
    def token(self) -> Token:
        """The fence. Hand it to whatever you write to: it rises with every grant, so a late writer can be refused."""
        return self.job.token

    @property
    def stopping(self) -> Flag:
        """Set when the worker is stopping. A long handler saves what it has and raises Snooze, or calls `check`."""
        return self.services.stopping

    def check(self) -> None:
        """Do nothing if the work should go on; otherwise raise what ends the handler in the right way."""
        if self.cancelled.is_set():
            raise Interrupted(self.interrupt or Interrupt.CANCEL)
        if self.services.stopping.is_set():
            raise Interrupted(Interrupt.SHUTDOWN)

    def heartbeat(self) -> None:
        """Ask for the lease to be extended now, and raise if the work is not wanted any more. Does not wait.

        The worker extends leases by itself; this only makes it happen sooner.
        """
        if self.cancelled.is_set():
            raise Interrupted(self.interrupt or Interrupt.CANCEL)
        self.services.heartbeat(self)

    def progress(self, value: Any, message: str | None = None) -> None:
        """Show how far it is: any JSON value, usually 0.0 to 1.0. Written within about a second; the newest wins."""
        shown = {"value": value, "message": message} if message is not None else value
        self.progress_text = encode(shown, self.services.limits, what="The progress")
        self.services.write_soon(self)

    def log(self, message: str, level: str = "info", **fields: Any) -> None:
        """Add a line to the job's own log, which is kept with the job. What looks like a secret is taken out."""
        clean = self.services.clean
        data: dict[str, Any] = {"level": level, "message": clean(str(message)[:MESSAGE_CHARS])}
        if fields:  # a secret is known by its own shape, or by the name it goes under
            data["fields"] = {
                name: clean(f"{name}={value}").partition("=")[2] if isinstance(value, str) else value
                for name, value in fields.items()
            }
        self.event(EventKind.LOG, data)

    def event(self, kind: str, data: Any = None) -> None:
        """Add an event of your own to the job. Raises: InvalidArgument for a kind that is no name."""
        if not kind or not str(kind).strip():
            raise InvalidArgument(f"An event needs a kind, such as 'custom', got {kind!r}.")
        self.keep_event(NewEvent(kind, _event_text(data), self.job.id))
        self.services.write_soon(self)

    def stream(self, name: str = "output") -> JobStream:
        """A stream of this job, which others read while it runs: `await ctx.stream().write(text)`."""
        return JobStream(self, arguments.name("name", name))

    @property
    def logger(self) -> JobLogger:
        """A standard logger whose lines name the job; from INFO on they are also kept with it."""
        if self._logger is None:
            self._logger = JobLogger(self)
        return self._logger

    def enqueue(self, kind: Any, payload: Any = MISSING, **options: Unpack[JobOptions]) -> JobId:
        """Add a follow-up job. It is committed together with this job's completion, or not at all.

        `kind` is a name or a decorated handler. Workflow, run, tenant, trace and who had it done are taken over from
        this job, which is the parent, unless given.

        Raises: InvalidPayload, InvalidArgument.
        """
        job = self._new_job(kind, payload, options)
        self.follow_ups.append(job)
        return job.id

    def new_child(self, kind: Any, payload: Any, options: Any) -> NewJob:
        """A job that is known by its place among the children, so it holds no idempotency key."""
        job = self._new_job(kind, payload, options)
        job.key = None
        return job

    def _new_job(self, kind: Any, payload: Any, options: Any) -> NewJob:
        name = kind if isinstance(kind, str) else getattr(kind, "kind", None)
        if not isinstance(name, str):
            raise InvalidArgument(f"A job needs a kind: a name or a handler made by `@app.job`, got {kind!r}.")
        taken_over = {column: self.job.extra(column) for column in _INHERITED}  # noqa: S610 - no Django here
        given: dict[str, Any] = {**taken_over, "parent_id": self.job.id, **options}
        return build_job(name, payload, given, self.services.find(name), self.services.limits, "default")

    def _whole(self) -> Context:
        return self

    @overload
    def effect(
        self,
        name: str,
        args: Any = None,
        *,
        do: Callable[[EffectCall], Awaitable[R]],
        verify: Verify | None = None,
        step: str = "",
        keyed: bool = False,
        safe_errors: tuple[type[Exception], ...] = (),
        approval: Decision | None = None,
    ) -> Awaitable[R]: ...
    @overload
    def effect(
        self,
        name: str,
        args: Any = None,
        *,
        do: Callable[[EffectCall], Any],
        verify: Verify | None = None,
        step: str = "",
        keyed: bool = False,
        safe_errors: tuple[type[Exception], ...] = (),
        approval: Decision | None = None,
    ) -> Any: ...
    def effect(
        self,
        name: str,
        args: Any = None,
        *,
        do: Callable[[EffectCall], Any],
        verify: Verify | None = None,
        step: str = "",
        keyed: bool = False,
        safe_errors: tuple[type[Exception], ...] = (),
        approval: Decision | None = None,
    ) -> Any:
        """Do something to the outside world at most once per job, whatever crashes. Await it in an async handler.

        Written down before `do` is called and after; an effect that is confirmed is not done again, its result is read
        back. Where an earlier attempt died in between, `verify` looks whether it happened; with `keyed` the receiver
        is trusted to tell repeats apart by `call.key`; with neither the job waits for a person. See `tenure.Verdict`.

        Args:
            args: Any JSON value, fixed by the first attempt: `do` gets them as `call.args`.
            step: Tells effects of the same name apart, as in a loop.
            safe_errors: Exceptions that prove that nothing happened; `tenure.NotDone` always does.
            approval: The decision that allows it, from `ctx.approve`: it must be granted, for these very arguments
                (its own if `args` is left out), and is used up by this effect.

        Raises: what `do` raises; LeaseLost; Permanent if a person gave the effect up; NotApproved; EffectReused.
        """
        if approval is not None:
            args = approved_args(name, args, approval, self.services.limits)
        plan = EffectPlan(
            name,
            do,
            encode(args, self.services.limits, what=f"Effect {name!r}: its arguments"),
            verify,
            step,
            keyed,
            safe_errors,
            None if approval is None else approval.id,
        )
        if self._places.setdefault((step, name), plan.args) != plan.args:
            raise EffectReused(
                f"Effect {name!r} was used twice in one attempt with different arguments, so the second would never "
                "happen. Tell them apart with `step=`."
            )
        steps = effect_steps(plan, self, self.services.clean)
        record, arecord = self.services.record, self.services.arecord
        if record is None or arecord is None:
            raise ConfigError(f"Effect {name!r} needs a worker that keeps the ledger, and this one has none.")
        if is_on_loop():
            return self._awrite_drawn(lambda: acarry_out(steps, lambda effect: arecord(self, effect)))
        if self._journal is not None and self._journal.has_drawn:
            self.write_drawn()
        return carry_out(steps, lambda effect: record(self, effect), self.cancelled.wait)

    def reserve(
        self,
        *,
        usd: Money | None = None,
        usd_micro: int | None = None,
        tokens: int | None = None,
        calls: int = 1,
        seconds: float | None = None,
        name: str | None = None,
    ) -> Reservation:
        """Reserve from the budgets that concern this job before it spends; for `with`, or `async with`.

            async with ctx.reserve(usd="0.40", tokens=20_000) as r:
                answer = await call()
                r.used(usd=answer.cost, tokens=answer.tokens)

        Reserve the most that the work may cost. If a budget has no room for it the job waits without a slot, and no
        attempt is spent; it runs again from its beginning, and its reservation is made by then. Without a budget
        nothing is limited. What `used` is not told counts as reserved in full, also after an exception or a crash.

        In a durable handler a reservation outside of steps is paid once: an attempt that comes by again reserves
        nothing. One inside a step's function is made whenever that function runs.

        Args:
            usd: Dollars, as text, Decimal or int; `usd_micro` in millionths. An amount that is left out is unknown: all
                that a budget of its unit has left is reserved, so no other job spends of it meanwhile. 0 says that
                nothing will be spent.
            seconds: Measured, unless `used` tells them.
            name: Tells reservations of one attempt apart. Without it they are counted.

        Raises: BudgetEmpty, where a budget says `on_empty="fail"`; LeaseLost; InvalidArgument.
        """
        step = current_step()
        number = self._reservations[step] = self._reservations.get(step, 0) + 1
        key, is_once = reservation_key(self, None if name is None else arguments.text("name", name, 90), number)
        amounts = amounts_of(usd=usd, usd_micro=usd_micro, tokens=tokens, calls=calls, seconds=seconds)
        return Reservation(self, key, amounts, is_once=is_once)

    def recall(
        self,
        text: str,
        *,
        agent: Names | None = None,
        kind: Names | None = None,
        limit: int = 5,
        by: Literal["both", "words", "meaning"] = "both",
    ) -> Any:
        """What agents remember that suits the text, best first: a list of `Hit`. Await it in an async handler.

        A job that belongs to a tenant finds that tenant's memories only. Without `agent`, those of all agents.

        Raises: ConfigError, in a process of its own, or by meaning where no embedder knows any.
        """
        return self._agent_memory().recall_for(self, text, agent, kind, limit, by)

    def remember(self, text: str, *, kind: str = "note", ttl: Duration | None = None, meta: Any = None) -> Any:
        """Remember a text as this job's agent (its queue), without the secrets in it. Answers the memory's id.

        At once, whatever becomes of the job; a later attempt that remembers the same changes nothing. Await it in an
        async handler. `ttl` is how long it is kept.
        """
        return self._agent_memory().remember_for(self, text, kind, ttl, meta)

    def _agent_memory(self) -> Any:
        if self.services.memory is None:
            raise ConfigError(f"Job {self.job.id} runs in a process of its own, which has no memory at hand.")
        return self.services.memory

    async def _awrite_drawn(self, go_on: Callable[[], Awaitable[Any]]) -> Any:
        """An effect may depend on what was drawn before it, so that is on record first."""
        if self._journal is not None and self._journal.has_drawn:
            await self.awrite_drawn()
        return await go_on()

    def set_result_summary(self, text: str) -> None:
        """One line for people, kept beside the result."""
        self.result_summary = storable(str(text))[:SUMMARY_CHARS]

    @property
    def artifacts(self) -> Path:
        """A folder for this job's files, the same for all attempts. Made when first asked for, for the owner only."""
        if self._artifacts_path is None:
            if self.services.artifacts_dir is None:
                raise ConfigError(
                    f"Job {self.job.id} asks for its artifacts folder, but the worker has none. "
                    "Start it with `--artifacts DIR` or `artifacts_dir=`."
                )
            path = self.services.artifacts_dir.absolute() / self.job.id
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._artifacts_path = path
        return self._artifacts_path

    @property
    def artifacts_path(self) -> str | None:
        """Where the artifacts are, if any were asked for."""
        return None if self._artifacts_path is None else str(self._artifacts_path)

    def keep_event(self, event: NewEvent) -> None:
        """For the worker: one more event to write. The oldest gives way when there are too many, and is counted."""
        if len(self.events) >= EVENTS_KEPT:
            self.dropped_events += 1
        self.events.append(event)

    def return_events(self, events: Sequence[NewEvent]) -> None:
        """For the worker: events that it took and could not write. The oldest give way here too."""
        kept = events[max(0, len(events) + len(self.events) - EVENTS_KEPT) :]
        self.dropped_events += len(events) - len(kept)
        self.events.extendleft(reversed(kept))

    def take_events(self) -> tuple[NewEvent, ...]:
        """For the worker: the events that are not written yet. Each is handed out once, whichever thread asks."""
        taken: list[NewEvent] = []
        if self.dropped_events:
            dropped, self.dropped_events = self.dropped_events, 0
            lines = "1 log line was" if dropped == 1 else f"{dropped} log lines were"
            data = {"level": "warning", "message": f"{lines} dropped: written faster than the worker stores them"}
            taken.append(NewEvent(EventKind.LOG, _event_text(data), self.job.id))
        while self.events:
            try:
                taken.append(self.events.popleft())
            except IndexError:  # another thread was first
                break
        return tuple(taken)

    def stop(self, why: Interrupt) -> None:
        """For the worker: the work is not wanted any more."""
        if self.interrupt is None:
            self.interrupt = why
        self.cancelled.set()


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that names the job and keeps its lines with it."""

    def __init__(self, context: Context) -> None:
        job = context.job
        super().__init__(_log, {"job": job.id, "kind": job.kind, "queue": job.queue, "attempt": job.attempt})
        self._context = context

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if level >= logging.INFO:
            self._context.log(_log_text(level, msg, args), logging.getLevelName(level).lower())
        kwargs.setdefault("stacklevel", 3)
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


def storable(text: str) -> str:
    """Text without the characters that PostgreSQL cannot hold: NUL and lone surrogates."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _log_text(level: int, msg: object, args: tuple[Any, ...]) -> str:
    """The line as the standard library formats it; unformatted where message and arguments do not fit."""
    try:
        return logging.LogRecord("", level, "", 0, msg, args, None).getMessage()
    except Exception:  # noqa: BLE001 - a log line must never be what breaks a job
        return f"{msg!a} {args!a}"


def _event_text(data: Any) -> str:
    if data is None:
        return "{}"
    try:
        return encode(data, what="The event")
    except Exception:  # noqa: BLE001 - a log line must never be what breaks a job
        return json.dumps({"message": ascii(data)[:MESSAGE_CHARS]})


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
