"""Durable steps: what a job has behind it stands in the store, so a new attempt goes on instead of beginning anew.

The model. A durable handler runs from its first line in every stretch. Each step has a key, its name or `name/key`, and
the first record of a key stays: where there is one, the function is not called and the recorded value is returned.
Nothing else is remembered, so there is no history to replay and no order to keep; changed code means a new name.

    step      call the function, then record its value: it runs at least once and is recorded once
    wait      write an open step together with the job's suspend, and raise Parked: the slot is free meanwhile. In the
              stretch that follows the wake-up the step is closed, and its value is returned
    mark      a value drawn here (a moment, a number, a version): kept in memory until the next record takes it along

Every record is fenced by the attempt's token. What may go wrong is refused before anything is written: a repeated key,
a value that is no JSON or too large, a wait inside a step, a wait outside the handler's own task or thread.

Each operation is a generator that yields what is to be recorded, called or waited for. Two drivers carry it out, one
for threads and one for the event loop; neither the generators nor the journal know of stores.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextvars import ContextVar, copy_context
from datetime import date
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar
from uuid import UUID

from tenure.errors import HandlerError, InvalidArgument, InvalidPayload, StoreUnavailable
from tenure.handler import arguments
from tenure.handler.ledger import PATIENCE
from tenure.handler.payload import encode
from tenure.handler.signals import DeadlinePassed, HandlerEnd, Parked, Parking, Permanent, ReplayEnded
from tenure.handler.typed import adapter_for
from tenure.model.frozen import frozen
from tenure.model.job import NewJob
from tenure.model.policy import Limits
from tenure.model.step import DEADLINE, KEY_CHARS, NO_PROGRESS, OVERDUE, NewGroup, NewStep, Step

if TYPE_CHECKING:
    from tenure.handler.context import Context

R = TypeVar("R")
StepKey: TypeAlias = str | int | UUID | date
"""What tells steps of one name apart: its text is the same in every attempt."""

SHORT_SLEEP_SECONDS = 2.0
"""Sleeps below this stay in the process: a suspend is two commits and a claim."""
RETRY_SECONDS = (0.2, 30.0)
"""The pause before a step's first retry, and the longest one; it doubles in between."""
RETRIES_MAX = 100

_step_at_work: ContextVar[str] = ContextVar("tenure_step")
"""The key of the step whose function is running."""


class RepeatedStep(HandlerError):
    """One attempt used the same step key twice."""

    code = "repeated_step"


class StaleStep(HandlerError):
    """A recorded value does not fit the type that the handler declares for its step now."""

    code = "stale_step"


class StepTimeout(TimeoutError):
    """A step's function took longer than its `timeout`."""


# --- what an operation asks for ---------------------------------------------------------------------------------------


@frozen
class Record:
    """Write steps, fenced by the attempt's token, and jobs if the first step is new. Answered by the rows, in order."""

    steps: tuple[NewStep, ...]
    jobs: tuple[NewJob, ...] = ()


@frozen
class Call:
    """Call a step's function."""

    key: str
    function: Callable[[], Any]
    timeout_seconds: float | None = None


@frozen
class ReadSteps:
    """The steps of the job behind an ordinal. Answered by the rows."""

    after: int
    limit: int = 1000


@frozen
class Pause:
    """Wait inside the process; less if the work is not wanted any more."""

    seconds: float


Asks = Generator[Any, Any, R]
"""Yields Record, Call, Pause or a question about children; is sent the answers."""


# --- the journal ------------------------------------------------------------------------------------------------------


class Journal:
    """The steps of one job, as one attempt sees them."""

    __slots__ = (
        "_deadline",
        "_drawn",
        "_ends_at",
        "_has_progressed",
        "_seen",
        "detached",
        "home",
        "is_undoing",
        "limits",
        "parked",
        "rows",
        "spawned",
        "undos",
    )

    def __init__(self, rows: Iterable[Step] = (), limits: Limits | None = None, *, is_undoing: bool = False) -> None:
        self.rows: dict[str, Step] = {row.key: row for row in rows}
        self.limits: Limits = limits or Limits()
        self.is_undoing: bool = is_undoing
        self.parked: Parking | None = None
        self.home: tuple[int, asyncio.Task[Any] | None] | None = None
        self.undos: dict[str, Callable[[], Any]] = {}
        """The functions of armed undos, by key, as the handler has given them in this attempt."""
        self.spawned: dict[str, NewJob] = {}
        """Children that no gather has taken up, by the key of their spawn."""
        self.detached: dict[str, NewJob] = {}
        """Children that nothing waits for and that are not on record yet."""
        self._seen: set[str] = set()
        self._drawn: list[NewStep] = []
        self._has_progressed = False
        self._deadline: NewStep | None = None
        self._ends_at = math.inf
        """When the deadline passes, by this process's monotonic clock; of the first stretch only."""

    def settle_in(self) -> None:
        """Called where the handler runs: waits are allowed in this thread and task only."""
        self.home = whereabouts()

    @property
    def has_progressed(self) -> bool:
        """Whether this attempt has recorded a new step, so that the next one counts as the first."""
        return self._has_progressed

    def set_deadline(self, seconds: float) -> None:
        """The whole life of the job may take so long from its first record on: every wait ends then at the latest, and
        nothing new begins. A later stretch learns from its grant that the time has passed."""
        self._deadline = NewStep(DEADLINE, "sleep", "open", due_seconds=seconds)
        if DEADLINE not in self.rows:
            self.draw(self._deadline)
            self._ends_at = time.monotonic() + seconds

    def enter(self, key: str) -> None:
        """The handler has come to this step. Raises: RepeatedStep; HandlerError inside a step; Parked again."""
        if self.parked is not None:
            raise Parked(self.parked)
        at_work = current_step()
        if at_work is not None:
            raise HandlerError(
                f"Step {key!r} was begun inside step {at_work!r}. A step is recorded whole, so nothing durable can "
                "happen inside it: call the two one after the other, or call the function itself."
            )
        if key in self._seen:
            raise RepeatedStep(
                f"Step {key!r} was used twice in one attempt, so the second would only return the value of the first. "
                "Tell them apart with `key=`, as in a loop: `ctx.step('fetch', fetch, url, key=url)`."
            )
        self._seen.add(key)

    def enter_wait(self, key: str) -> None:
        """The same for a wait. Raises: HandlerError outside the handler's own task or thread."""
        if self.home is not None and self.home != whereabouts():
            raise HandlerError(
                f"The handler waits for {key!r} in a task or thread that is not its own, as inside `asyncio.gather`. "
                "A wait gives the whole job's slot back, so only the handler itself may wait: name all conditions in "
                "one `ctx.wait_for(a, b)`, or gather children with `ctx.gather`."
            )
        self.enter(key)

    def closed(self, key: str) -> Step | None:
        """The record of a step that is over."""
        row = self.rows.get(key)
        return row if row is not None and row.state in {"done", "failed"} else None

    def draw(self, step: NewStep) -> None:
        """Keep a step in memory: it is written with the next record."""
        self._drawn.append(step)

    def take_drawn(self) -> tuple[NewStep, ...]:
        """The steps that are not written yet; each is handed out once."""
        drawn, self._drawn = self._drawn, []
        return tuple(drawn)

    @property
    def has_armed(self) -> bool:
        """Whether an undo is armed that no record has taken along yet."""
        return any(step.kind == "undo" for step in self._drawn)

    @property
    def has_drawn(self) -> bool:
        return bool(self._drawn)

    def is_ahead(self, after: str | None = None) -> bool:
        """Whether an earlier attempt got further than this place: than step `after`, or than all steps seen so far."""
        if after is not None:
            place = self.rows.get(after)
            return place is not None and any(row.ordinal > place.ordinal and _counts(row) for row in self.rows.values())
        return any(_counts(row) and row.key not in self._seen for row in self.rows.values())

    def record(self, *steps: NewStep) -> Asks[list[Step]]:
        """Write steps, with the drawn ones before them. Answers the rows of `steps`."""
        yield from self.release_detached()
        drawn = self.take_drawn()
        try:
            rows: list[Step] = yield Record((*drawn, *steps))
        except BaseException:
            self._drawn[:0] = drawn
            raise
        self._has_progressed |= any(row.kind not in NO_PROGRESS and row.key not in self.rows for row in rows)
        self.rows.update((row.key, row) for row in rows)
        return rows[len(drawn) :]

    def release_detached(self) -> Asks[None]:
        """Create the children that nothing waits for."""
        while self.detached:
            key, job = next(iter(self.detached.items()))
            (row,) = yield Record((NewStep(key, "mark", "done", value=json.dumps({"job": job.id})),), (job,))
            self.rows[key] = row
            del self.detached[key]

    def wait(self, waiting_for: str, *steps: NewStep, groups: Sequence[NewGroup] = ()) -> Asks[NoReturn]:
        """Let the job wait: the worker writes the steps and groups with the suspend. Raises: Parked."""
        self.end_of_replay()
        yield from self.release_detached()
        raise self.park_on(waiting_for, *steps, groups=groups)

    def park_on(self, waiting_for: str, *steps: NewStep, groups: Sequence[NewGroup] = ()) -> Parked:
        """What to raise for the job to wait for open steps and groups, wherever it runs; with what was drawn before."""
        limit = () if self._deadline is None else (self._deadline,)
        drawn = [step for step in self.take_drawn() if step.key != DEADLINE]
        return self.park(Parking(waiting_for, (*drawn, *steps, *limit), tuple(groups)))

    def park(self, parking: Parking) -> Parked:
        """What to raise for the job to wait."""
        self.parked = parking
        return Parked(parking)

    def end_of_replay(self) -> None:
        """Nothing new may begin while the job is undone or after its deadline. Raises: ReplayEnded, DeadlinePassed."""
        if self.is_undoing:
            raise ReplayEnded
        if self.closed(DEADLINE) is not None or time.monotonic() >= self._ends_at:
            raise DeadlinePassed(OVERDUE)


def _counts(row: Step) -> bool:
    return not row.key.startswith("$") and row.kind not in {"mark", "undo"}


def current_step() -> str | None:
    """The key of the step whose function is running here, if one is."""
    return _step_at_work.get(None)


def is_on_loop() -> bool:
    """Whether this runs on an event loop's thread, so that waiting means awaiting."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def whereabouts() -> tuple[int, asyncio.Task[Any] | None]:
    """The thread and the task that this runs in."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task


def key_text(key: Any) -> str:
    """A key as text, which must be the same in every attempt. Raises: InvalidArgument."""
    if not isinstance(key, StepKey):
        hint = " `ctx.map` itself tells its items apart." if callable(key) else ""
        raise InvalidArgument(
            f"`key` is {key!r:.80}, whose text may be another in the next attempt, and then the step would run again. "
            f"Give a str, int, UUID or date.{hint}"
        )
    return str(key)


def step_key(name: Any, key: StepKey | None = None) -> str:
    """`name` or `name/key`. Raises: InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument(
            f"The first argument is a name, under which later attempts find the record again, got {name!r:.80}. Write "
            '`ctx.step("fetch", fetch, url)`, `ctx.sleep("pause", 60)`, `ctx.spawn("resize", resize, 7)`.'
        )
    found = arguments.name("name", name)
    if "/" in found or found.startswith("$"):
        raise InvalidArgument(f"A step's name has no '/' and does not begin with '$', got {found!r}. Use `key=`.")
    whole = found if key is None else f"{found}/{key_text(key)}"
    return arguments.text("key", whole, KEY_CHARS)


async def read_all_steps(context: Context) -> tuple[Step, ...]:
    """The steps of a job that has more of them than come with a grant."""
    rows = list(context.job.steps)
    while True:
        page = await context.aask(ReadSteps(rows[-1].ordinal if rows else 0))
        rows += page
        if len(page) < ReadSteps(0).limit:
            return tuple(rows)


# --- step -------------------------------------------------------------------------------------------------------------


@frozen
class StepPlan:
    """A step as a handler asks for it."""

    key: str
    function: Callable[[], Any]
    retries: int = 0
    timeout_seconds: float | None = None
    returns: Any = None
    """A type; None takes any JSON value."""


def run_step(journal: Journal, plan: StepPlan) -> Asks[Any]:
    """One step in one attempt. Returns its value in terms of JSON (or of `returns`), also the first time."""
    journal.enter(plan.key)
    row = journal.closed(plan.key)
    if row is not None:
        return read_value(plan, row)
    journal.end_of_replay()
    if journal.has_armed:  # what undoes this step is on record before it begins
        yield from journal.record()
    value = yield from tried(plan)
    new = NewStep(plan.key, "step", "done", value=step_text(plan, value, journal.limits))
    (row,) = yield from journal.record(new)
    return read_value(plan, row)


def tried(plan: StepPlan) -> Asks[Any]:
    """Call the function of a step, as often as its retries allow."""
    pause, longest = RETRY_SECONDS
    for left in range(plan.retries, -1, -1):
        try:
            return (yield Call(plan.key, plan.function, plan.timeout_seconds))
        except HandlerEnd:
            raise
        except Exception:
            if not left:
                raise
        yield Pause(pause)
        pause = min(2 * pause, longest)
    raise AssertionError("a step has at least one try")


def step_text(plan: StepPlan, value: Any, limits: Limits) -> str:
    """JSON text of a step's value. Raises: Permanent, before anything is written."""
    try:
        text = encode(value, limits, what=f"Step {plan.key!r}: its result")
        if plan.returns is not None:
            _validated(plan.returns, text)
    except InvalidPayload as exc:
        raise Permanent(f"{exc} The step ran and nothing was recorded.") from exc
    except ValueError as exc:
        raise Permanent(
            f"Step {plan.key!r}: its result does not fit {_type_name(plan.returns)}. The step ran and nothing was "
            f"recorded. {exc}"
        ) from exc
    return text


def read_value(plan: StepPlan, row: Step) -> Any:
    """The recorded value. Raises: StaleStep."""
    text = "null" if row.value is None else row.value
    if plan.returns is None:
        return json.loads(text)
    try:
        return _validated(plan.returns, text)
    except ValueError as exc:
        raise StaleStep(
            f"Step {plan.key!r} was recorded with a value that does not fit {_type_name(plan.returns)} any more. Give "
            f"the step a new name, or let it run again with `app.steps.forget(job_id, {plan.key!r}, reason=…)`. {exc}"
        ) from exc


def _validated(returns: Any, text: str) -> Any:
    return _adapter(returns).validate_json(text)


@functools.lru_cache(maxsize=256)
def _adapter(returns: Any) -> Any:
    return adapter_for(returns)


def _type_name(returns: Any) -> str:
    return getattr(returns, "__name__", None) or str(returns)


# --- marks ------------------------------------------------------------------------------------------------------------


def drawn_value(journal: Journal, key: str, draw: Callable[[], Any]) -> Any:
    """A value that is the same in every attempt: drawn here for the first time, read back afterwards."""
    journal.enter(key)
    row = journal.closed(key)
    if row is not None:
        return json.loads(row.value or "null")
    journal.end_of_replay()
    value = draw()
    journal.draw(NewStep(key, "mark", "done", value=json.dumps(value)))
    return value


def has_changed(journal: Journal, name: str, after: str | None) -> bool:
    """Whether the new way is to be taken here: by every job that has not gone the old one."""
    key = f"$changed/{name}"
    journal.enter(key)
    if journal.closed(key) is not None:
        return True
    if journal.is_ahead(after):
        return False
    if not journal.is_undoing:
        journal.draw(NewStep(key, "mark", "done", value="true"))
    return True


# --- carrying it out --------------------------------------------------------------------------------------------------


def carry_out(asks: Asks[R], answer: Callable[[Any], Any], pause: Callable[[float], Any]) -> R:
    """For a sync handler.

    Args:
        answer: Asks the worker for everything that is no Call and no Pause.
        pause: Waits for so many seconds, or less if the work is not wanted any more.
    """
    try:
        ask = next(asks)
        while True:
            try:
                match ask:
                    case Call():
                        found = _called(ask)
                    case Pause(seconds):
                        found = pause(seconds)
                    case _:
                        found = _answered(ask, answer, pause)
            except BaseException as exc:  # noqa: BLE001 - the operation decides what it means
                ask = asks.throw(exc)
            else:
                ask = asks.send(found)
    except StopIteration as end:
        result: R = end.value
        return result


async def acarry_out(asks: Asks[R], answer: Callable[[Any], Awaitable[Any]]) -> R:
    """For an async handler. What is no coroutine function is called in a thread."""
    try:
        ask = next(asks)
        while True:
            try:
                match ask:
                    case Call():
                        found = await _acalled(ask)
                    case Pause(seconds):
                        found = None
                        await asyncio.sleep(seconds)
                    case _:
                        # A cancellation that comes while a step is recorded must not leave it in doubt.
                        found = await asyncio.shield(_aanswered(ask, answer))
            except BaseException as exc:  # noqa: BLE001 - the operation decides what it means
                ask = asks.throw(exc)
            else:
                ask = asks.send(found)
    except StopIteration as end:
        result: R = end.value
        return result


def _answered(ask: Any, answer: Callable[[Any], Any], pause: Callable[[float], Any]) -> Any:
    for seconds in PATIENCE:
        try:
            return answer(ask)
        except StoreUnavailable:  # what was done is lost if it is not recorded, so an absent database is waited for
            pause(seconds)
    return answer(ask)


async def _aanswered(ask: Any, answer: Callable[[Any], Awaitable[Any]]) -> Any:
    for seconds in PATIENCE:
        try:
            return await answer(ask)
        except StoreUnavailable:
            await asyncio.sleep(seconds)
    return await answer(ask)


def _called(call: Call) -> Any:
    if call.timeout_seconds is None:
        return _run_here(call)
    return _run_aside(call, call.timeout_seconds)


def _run_here(call: Call) -> Any:
    mark = _step_at_work.set(call.key)
    try:
        value = call.function()
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
    finally:
        _step_at_work.reset(mark)


def _run_aside(call: Call, seconds: float) -> Any:
    """A thread cannot be stopped from outside: a function that runs past its time is left behind."""
    ended = threading.Event()
    answer: list[Any] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(_run_here(call))
        except BaseException as exc:  # noqa: BLE001 - it is raised again where the step was called
            error.append(exc)
        ended.set()

    threading.Thread(target=copy_context().run, args=(run,), name=f"tenure-step-{call.key}", daemon=True).start()
    if not ended.wait(seconds):
        raise _late(call)
    if error:
        raise error[0]
    return answer[0]


async def _acalled(call: Call) -> Any:
    mark = _step_at_work.set(call.key)
    try:
        if call.timeout_seconds is None:
            return await _value_of(call.function)
        try:
            async with asyncio.timeout(call.timeout_seconds) as limit:
                return await _value_of(call.function)
        except TimeoutError:
            if limit.expired():
                raise _late(call) from None
            raise
    finally:
        _step_at_work.reset(mark)


async def _value_of(function: Callable[[], Any]) -> Any:
    inner = function.func if isinstance(function, functools.partial) else function
    if inspect.iscoroutinefunction(inner):
        return await function()
    value = await asyncio.to_thread(function)
    return await value if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[R]) -> R:
    return await value


def _late(call: Call) -> StepTimeout:
    return StepTimeout(f"Step {call.key!r} was still running after its time limit of {call.timeout_seconds:g} s")
