"""What a durable handler does with its context: steps, waits, children, marks and undos.

The methods that reach the store are awaited in an async handler and block in a sync one. `now`, `uuid`, `random`,
`changed`, `spawn` and `on_failure` answer at once in both: they keep in memory what the next record takes along.
"""

from __future__ import annotations

import functools
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Sized
from datetime import UTC, datetime, timedelta
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tenure.errors import ConfigError, HandlerError, InvalidArgument
from tenure.handler import arguments
from tenure.handler.approvals import plan_approval, run_approval
from tenure.handler.arguments import Duration, Names
from tenure.handler.building import MISSING, ChildOptions
from tenure.handler.children import (
    Child,
    Fail,
    GroupTerms,
    MapPlan,
    Tolerate,
    gather_children,
    group_key,
    map_children,
    take_first,
    tolerated,
)
from tenure.handler.memo import MemoPlan, payload_key, run_memo
from tenure.handler.signals import Parked, Parking
from tenure.handler.steps import (
    RETRIES_MAX,
    Asks,
    Journal,
    StepKey,
    StepPlan,
    acarry_out,
    carry_out,
    current_step,
    drawn_value,
    has_changed,
    is_on_loop,
    run_step,
    step_key,
)
from tenure.handler.undo import UNDOING, compensate
from tenure.handler.waits import WaitPlan, run_sleep, run_wait, run_wait_for_job, wait_key
from tenure.model.job import Grant, NewJob
from tenure.model.memo import JOB_PREFIX, TTL_SECONDS_MAX, memo_id
from tenure.model.outcome import Outcome
from tenure.model.step import NewStep

if TYPE_CHECKING:
    from tenure.handler.context import Context, Flag, WorkerServices
    from tenure.handler.registry import Handler

R = TypeVar("R")
WINDOW = 500
"""How many children of a `map` may be claimable or held at once, unless it says otherwise."""
_lots = SystemRandom()


class DurableCalls(ABC):
    """The durable half of a Context."""

    __slots__ = ("_journal", "cancelled", "job", "services")

    def __init__(self, job: Grant, services: WorkerServices, cancelled: Flag) -> None:
        self.job: Grant = job
        self.services: WorkerServices = services
        self.cancelled: Flag = cancelled
        """Set when the work is not wanted any more: cancelled, timed out, or the lease is lost."""
        self._journal: Journal | None = None

    # --- steps ---

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: StepKey | None = None,
        retries: int = 0,
        timeout: Duration | None = None,
        returns: Any = None,
    ) -> Any:
        """Call `function(*args)` and record what it returns; a later attempt reads that back instead of calling it.

        It runs at least once and is recorded once. A function that raises is not recorded and runs again with the next
        attempt. The value is returned in terms of JSON, or of the type `returns`, also the first time.

        Args:
            key: Tells steps of one name apart, as in a loop.
            retries: Further tries within this attempt, with growing pauses.
            timeout: How long one try may take.
            returns: A type that the value must fit: a pydantic model, dataclass or plain type.

        Raises: what the function raises; StepTimeout; Permanent for a value that is no JSON or too large; StaleStep if
        the recorded value does not fit `returns`; RepeatedStep; LeaseLost.
        """
        plan = StepPlan(
            step_key(name, key),
            functools.partial(function, *args),
            arguments.whole("retries", retries, 0, RETRIES_MAX),
            None if timeout is None else arguments.seconds("timeout", timeout, positive=True),
            returns,
        )
        return self._carry_out(lambda journal: run_step(journal, plan))

    def sleep(
        self,
        name: str,
        duration: Duration = 0.0,
        /,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
        key: StepKey | None = None,
    ) -> Any:
        """Wait until a time after the job first came here, without a slot. Under 2 s it waits in the process.

        The moment is fixed by the first record: neither a crash nor a deploy moves it.
        """
        whole = arguments.seconds("duration", duration) + arguments.seconds(
            "duration", timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        )
        place = step_key(name, key)
        return self._carry_out(lambda journal: run_sleep(journal, place, whole))

    def wait_for(
        self,
        *signals: str,
        timeout: Duration | None = None,
        default: Any = MISSING,
        key: StepKey | None = None,
        returns: Any = None,
    ) -> Any:
        """Wait for a signal without a slot, and answer its value. The signal may have come before.

        With several signals the first that comes ends the wait, and the answer is a Received with its key and value.

        Args:
            timeout: How long, counted from the first time the job came here. Then the answer is `default`.
            key: Tells repeated waits for the same signal apart.
            returns: A type that the value must fit.

        Raises: WaitTimeout if the time is over and there is no `default`.
        """
        plan = WaitPlan(
            wait_key(signals, key),
            signals,
            None if timeout is None else arguments.seconds("timeout", timeout),
            default,
            returns,
        )
        return self._carry_out(lambda journal: run_wait(journal, plan))

    def wait_for_job(self, job_id: str, *, timeout: Duration | None = None, key: StepKey | None = None) -> Any:
        """Wait without a slot until a job that is no child has ended, well or badly. `ctx.gather` awaits children.

        Whether it ended well, `app.get` says. A job that does not exist counts as ended. The end is noticed within
        some seconds, by the worker that leads.

        Args:
            timeout: How long, counted from the first time the job came here.
            key: Tells repeated waits for the same job apart.

        Raises: WaitTimeout if the time is over.
        """
        awaited = arguments.job_id("job_id", job_id)
        seconds = None if timeout is None else arguments.seconds("timeout", timeout)
        place = step_key(f"job:{awaited}", key)
        return self._carry_out(lambda journal: run_wait_for_job(journal, awaited, place, seconds))

    def approve(
        self,
        name: str,
        *,
        args: Any,
        text: str = "",
        ask: Names | None = None,
        need: int = 1,
        expires: Duration | None = None,
        on_expiry: str = "deny",
        key: StepKey | None = None,
    ) -> Any:
        """Ask people whether this may be done with exactly these arguments, and wait for the answer without a slot.

        Answers a Decision, which is true if it was granted. Go on with its `args`, and hand it to the effect that it
        allows: `ctx.effect("refund", ok.args, do=…, approval=ok)`.

        Args:
            args: Any JSON value. It is frozen, hashed and shown as it is, so it must hold no secret.
            text: What is asked, for people.
            ask: Who may answer: names of people or groups; anyone with the right to, if left out.
            need: So many must approve. One denial denies.
            expires: How long to wait for an answer.
            on_expiry: `deny` or `grant`: what no answer means.
            key: Tells approvals of one name apart, as in a loop.

        Raises: InvalidArgument; NotApproved if the arguments changed three times while it was asked about.
        """
        plan = plan_approval(name, args, text, ask, need, expires, on_expiry, key, self.services.limits)
        return self._carry_out(lambda journal: run_approval(journal, plan))

    # --- memos ---

    def memo(
        self,
        name: str,
        *,
        key: str,
        ttl: Duration,
        do: Callable[..., Any],
        retries: int = 0,
        timeout: Duration | None = None,
        returns: Any = None,
    ) -> Any:
        """The value of `do()`, worked out once for this name and key within the job's tenant, and kept for `ttl`.

        The first job that comes here calls the function. Jobs that come meanwhile wait without a slot, and later ones
        read what it returned. If the first one ends without a value, the right passes to the first that waits. What
        raises is not kept. Only for work whose answer may be shared: the same key means the same answer.

        Raises: as `step` does.
        """
        plan = StepPlan(
            step_key(name, key),
            do,
            arguments.whole("retries", retries, 0, RETRIES_MAX),
            None if timeout is None else arguments.seconds("timeout", timeout, positive=True),
            returns,
        )
        return self._memo(plan, name, arguments.text("key", key), arguments.seconds("ttl", ttl, positive=True))

    def memo_whole(self, seconds: float, do: Callable[[], Any]) -> Any:
        """The result of a handler that was declared with `memo=`, by its kind and payload."""
        plan = StepPlan("$memo", do)
        return self._memo(plan, f"{JOB_PREFIX}{self.job.kind}", payload_key(self.job.payload), seconds)

    def _memo(self, step: StepPlan, name: str, key: str, seconds: float) -> Any:
        if seconds > TTL_SECONDS_MAX:
            raise InvalidArgument(f"`ttl` is {seconds:g} s; a memo is kept for ten years at most.")
        tenant = self.job.extra("tenant")  # noqa: S610 - no Django here
        plan = MemoPlan(step, memo_id(tenant, name, key), name, key, tenant, seconds)
        return self._carry_out(lambda journal: run_memo(journal, plan))

    # --- marks ---

    def now(self, name: str | None = None) -> datetime:
        """The moment at which the job first came here, the same in every attempt. `name` tells several apart."""
        drawn = drawn_value(self.journal, _mark("now", name), lambda: datetime.now(UTC).isoformat())
        return datetime.fromisoformat(drawn)

    def uuid(self, name: str | None = None) -> uuid.UUID:
        """A random UUID that is the same in every attempt."""
        return uuid.UUID(drawn_value(self.journal, _mark("uuid", name), lambda: str(uuid.uuid4())))

    def random(self, name: str | None = None) -> float:
        """A random number from 0 to 1 that is the same in every attempt."""
        drawn: float = drawn_value(self.journal, _mark("random", name), _lots.random)
        return drawn

    @property
    def version(self) -> str | None:
        """The `version` of the handler under which this job began; None if it declared none then."""
        row = self.journal.rows.get("$version")
        if row is not None:
            recorded: str | None = json.loads(row.value or "null")
            return recorded
        has_begun = any(not one.startswith("$") for one in self.journal.rows)
        return None if has_begun else self._handler().version

    def changed(self, name: str, *, after: str | None = None) -> bool:
        """Whether this job takes the new way at a place where the code was changed.

        True for every job that had not passed the place when the new code came, and from then on always; False for
        jobs that went the old way. Place it where the old and the new code part.

        Args:
            after: The key of the step before the place. Without it: the last step that this attempt has come to.
        """
        return has_changed(self.journal, arguments.name("name", name), after)

    # --- children ---

    def spawn(
        self,
        name: str,
        kind: Any,
        payload: Any = MISSING,
        *,
        key: StepKey | None = None,
        detached: bool = False,
        **options: Unpack[ChildOptions],
    ) -> Child:
        """A child job. `ctx.gather` and `ctx.first` create it together with the wait for it.

        A child that none of them has taken up is created with this job's completion. A detached one is created with
        the next record: nothing waits for it, and cancelling this job does not reach it.

        Raises: InvalidPayload, InvalidArgument.
        """
        journal = self.journal
        place = f"spawn/{step_key(name, key)}"
        journal.enter(place)
        job = self.new_child(kind, payload, options)
        if detached:
            if place not in journal.rows:
                journal.end_of_replay()
                journal.detached[place] = job
        else:
            journal.spawned[place] = job
        return Child(place, job)

    def gather(
        self,
        *children: Child,
        tolerate: Tolerate = 0,
        fail: Fail = "all",
        timeout: Duration | None = None,
        key: StepKey | None = None,
    ) -> Any:
        """Create the children and wait for all of them without a slot, in one transaction. Answers their results.

        Args:
            tolerate: So many (or such a share, "5%") may fail; in their place stands the ChildFailed.
            fail: `all` waits for every child; `fast` ends at the first failure that is not tolerated and cancels the
                others.
            timeout: How long to wait. The children go on after it.

        Raises: ChildFailed, with the job and its dead letter, if more failed than is tolerated.
        """
        taken = _children(children)
        terms = _terms(tolerated(tolerate, len(taken)), fail, timeout)
        place = group_key(taken, "gather", key)
        return self._carry_out(lambda journal: gather_children(journal, place, taken, terms))

    def first(self, *children: Child, timeout: Duration | None = None, key: StepKey | None = None) -> Any:
        """Create the children and wait until one of them succeeds; the others are cancelled. Answers a ChildResult.

        Raises: ChildFailed if none succeeded.
        """
        taken = _children(children)
        terms = GroupTerms(max(len(taken) - 1, 0), 1, True, True, None, _timeout(timeout))
        place = group_key(taken, "first", key)
        return self._carry_out(lambda journal: take_first(journal, place, taken, terms))

    def map(
        self,
        name: str,
        kind: Any,
        items: Iterable[Any],
        *,
        tolerate: Tolerate = 0,
        fail: Fail = "all",
        window: int | None = WINDOW,
        timeout: Duration | None = None,
        key: StepKey | None = None,
        **options: Unpack[ChildOptions],
    ) -> Any:
        """Create a child for each item, wait for all of them without a slot, and answer Children.

        Items must be the same in every attempt: let them come from the payload or from a step. More than 1,000 are
        created in pages, and after a crash it goes on where it was. The parent is woken once.

        Args:
            items: The payloads.
            window: At most so many children are claimable or held at once; None: all of them.
            tolerate, fail, timeout: As for `gather`.

        Raises: ChildFailed if more failed than is tolerated; InvalidPayload before anything is written.
        """
        place = step_key(name, key)
        total = len(items) if isinstance(items, Sized) else None
        if window is not None:
            arguments.whole("window", window, 1)
        terms = _terms(tolerated(tolerate, total), fail, timeout, window)
        plan = MapPlan(place, items, lambda item: self.new_child(kind, item, options), terms)
        context: Any = self
        return self._carry_out(lambda journal: map_children(journal, plan, context))

    # --- undo ---

    def on_failure(self, name: str, function: Callable[..., Any], /, *args: Any, key: StepKey | None = None) -> None:
        """Arm a compensation: if the job ends dead, failed or cancelled, `function(*args)` is called.

        Call it before the step that it undoes: it is on record before that step begins, so the function must cope with
        a step that was not done. Armed functions run in reverse order, each as a step of its own, in attempts of their
        own; then the job gets the end that it had. A completed job undoes nothing.
        """
        journal = self.journal
        place = f"undo/{step_key(name, key)}"
        journal.enter(place)
        journal.undos[place] = functools.partial(function, *args)
        if place not in journal.rows:
            journal.end_of_replay()
            journal.draw(NewStep(place, "undo", "armed"))

    # --- for the worker and the ledger ---

    def left_over(self) -> tuple[NewJob, ...]:
        """Children that were spawned and not created yet: they go along with the completion."""
        if self._journal is None:
            return ()
        return (*self._journal.spawned.values(), *self._journal.detached.values())

    def park(self, parking: Parking) -> Parked:
        """What to raise for the job to wait."""
        return self._get_journal().park(parking)

    def park_on(self, waiting_for: str, step: NewStep) -> Parked:
        """What to raise for the job to wait for one open step. Also for handlers that are not durable."""
        return self._get_journal().park_on(waiting_for, step)

    @property
    def is_durable(self) -> bool:
        """Whether the handler is durable: its body runs again, and its steps are read back."""
        handler = self.services.find(self.job.kind)
        return handler is not None and handler.is_durable

    @property
    def parked(self) -> Parking | None:
        """What the job waits for, once a wait has been begun in this attempt."""
        return None if self._journal is None else self._journal.parked

    @property
    def journal(self) -> Journal:
        """The steps of this job. Raises: HandlerError for a handler that is not durable."""
        if not self._handler().is_durable:
            raise HandlerError(
                f"Kind {self.job.kind!r} is not durable, so it has neither steps nor waits nor children. Declare it "
                "with `@app.job(durable=True)`."
            )
        return self._get_journal()

    def _get_journal(self) -> Journal:
        if self._journal is None:
            handler = self.services.find(self.job.kind)
            is_undoing = any(step.key == UNDOING for step in self.job.steps)
            self._journal = Journal(self.job.steps, self.services.limits, is_undoing=is_undoing)
            if handler is not None and handler.deadline_seconds is not None:
                self._journal.set_deadline(handler.deadline_seconds)
            if handler is not None and handler.version is not None and not self._journal.rows:
                self._journal.draw(NewStep("$version", "mark", "done", value=json.dumps(handler.version)))
        return self._journal

    def _carry_out(self, operation: Callable[[Journal], Asks[Any]]) -> Any:
        """Run an operation: here and now in a thread, when awaited on an event loop."""
        journal = self.journal
        if is_on_loop():
            return acarry_out(operation(journal), self.aask)
        return carry_out(operation(journal), self.ask, self._pause)

    def write_drawn(self) -> None:
        """Record what was drawn and armed and has not been taken along yet."""
        carry_out(self._get_journal().record(), self.ask, self._pause)

    async def awrite_drawn(self) -> None:
        """`write_drawn` on an event loop."""
        await acarry_out(self._get_journal().record(), self.aask)

    @property
    def is_replay(self) -> bool:
        """Whether the job is being undone and its handler only replays what is recorded."""
        return self._journal is not None and self._journal.is_undoing and current_step() is None

    def compensated(self, outcome: Outcome) -> Outcome:
        """Undo what is armed if this outcome ends the job badly. Answers the outcome to settle."""
        if self._journal is None:
            return outcome
        return carry_out(compensate(self._journal, outcome, self._attempts_left), self.ask, time.sleep)

    async def acompensated(self, outcome: Outcome) -> Outcome:
        """`compensated` on an event loop."""
        if self._journal is None:
            return outcome
        return await acarry_out(compensate(self._journal, outcome, self._attempts_left), self.aask)

    @property
    def _attempts_left(self) -> bool:
        return self.job.attempt < self.job.max_attempts

    def ask(self, question: Any) -> Any:
        """Have the worker write steps or look up children, and wait."""
        if self.services.flow is None:
            raise ConfigError(f"Job {self.job.id} is durable and needs a worker that keeps steps.")
        return self.services.flow(self._whole(), question)

    async def aask(self, question: Any) -> Any:
        """`ask` on an event loop."""
        if self.services.aflow is None:
            raise ConfigError(f"Job {self.job.id} is durable and needs a worker that keeps steps.")
        return await self.services.aflow(self._whole(), question)

    def _pause(self, seconds: float) -> None:
        if self.cancelled.wait(seconds):
            self.check()

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def new_child(self, kind: Any, payload: Any, options: Any) -> NewJob: ...

    @abstractmethod
    def _whole(self) -> Context: ...

    def _handler(self) -> Handler:
        handler = self.services.find(self.job.kind)
        if handler is None:
            raise HandlerError(f"No handler is registered for kind {self.job.kind!r}, so it is not known as durable.")
        return handler


def _mark(sort: str, name: str | None) -> str:
    return f"${sort}" if name is None else f"${sort}/{arguments.name('name', name)}"


def _children(given: Sequence[Child]) -> list[Child]:
    for child in given:
        if not isinstance(child, Child):
            raise InvalidArgument(f"Children come from `ctx.spawn`, got {type(child).__name__}.")
    return list(given)


def _terms(tolerate: int, fail: str, timeout: Duration | None, window: int | None = None) -> GroupTerms:
    if fail not in {"all", "fast"}:
        raise InvalidArgument(f"`fail` is {fail!r}; it must be 'all' or 'fast'.")
    is_fast = fail == "fast"
    return GroupTerms(tolerate, None, is_fast, is_fast, window, _timeout(timeout))


def _timeout(value: Duration | None) -> float | None:
    return None if value is None else arguments.seconds("timeout", value)
