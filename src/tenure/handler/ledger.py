"""The effect ledger: a side effect is written down before it is done, so that a crash cannot make it happen twice.

The model. An effect has a place: the job, a step, a name. The first record of a place fixes its arguments and its key,
whatever a later attempt (or a model that writes the arguments anew) would say; the key is handed to the outside and
is the same in every attempt. Every record is fenced by the attempt's token. An attempt goes

    intended ──► sent ──► do ──► confirmed        it happened; from now on its result is read back, never done again
                          │ └──► failed           it surely did not; another attempt may try
                          └────► (still sent)     not known: the reply was lost, or the process died

and an attempt that finds the row of an earlier one asks how far that got. `intended`: nothing was sent, for `sent` is
written first and a late attempt's write is refused. `sent` is the doubt that cannot be avoided. Then, in this order:

    verify    looks outside whether it happened, and decides
    keyed     the receiver tells repeats apart by the key, so it is called again with the same one
    neither   `unknown`: the job waits for a person (`App.resolve_effect`); never a blind repeat

What remains: an attempt that was paused between `sent` and its call may call while a newer one verifies. Only the
receiver can close that gap, by the key, or by refusing a token that is not the newest it has seen.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Protocol, TypeVar

from tenure.errors import HandlerError, IllegalMove, InvalidPayload, LeaseLost, StoreUnavailable
from tenure.handler.payload import encode
from tenure.handler.signals import NotApproved, Parked, Parking, Permanent, ReplayEnded, RetryAfter, Snooze
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.outcome import EffectRecord

ERROR_CHARS = 2000
PATIENCE = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Pauses between tries to record what has been done already: giving up would leave it in doubt."""

R = TypeVar("R")
Do = Callable[["EffectCall"], Any]


class NotDone(Exception):
    """Raised by `do`: the effect surely did not happen, so that another attempt may try it again."""


class EffectReused(HandlerError):
    """One attempt used the same place for two different effects."""

    code = "effect_reused"


@frozen
class EffectCall:
    """What `do` and `verify` are given.

    Attributes:
        key: Stable across attempts; hand it to the receiver as idempotency key.
        token: Rises with every attempt; hand it to receivers that can refuse an older one.
        args: As first recorded, in terms of JSON.
        result: For `verify` of a confirmed effect: what was recorded. None otherwise.
    """

    job_id: JobId
    step: str
    name: str
    key: str
    token: Token
    args: Any
    result: Any = None


@frozen
class Verdict:
    """What `verify` found. `result` stands for the reply that was lost; `found` tells people what is there."""

    done: bool
    result: Any = None
    found: str | None = None


Verify = Callable[[EffectCall], Verdict | bool | Awaitable[Verdict | bool]]


@frozen
class EffectPlan:
    """An effect as a handler asks for it."""

    name: str
    do: Do
    args: str = "null"
    """JSON text."""
    verify: Verify | None = None
    step: str = ""
    keyed: bool = False
    safe_errors: tuple[type[Exception], ...] = ()
    approval: str | None = None
    """The id of the approval that it uses."""


class LedgerRow(Protocol):
    """A row of the ledger, as far as it matters here."""

    @property
    def state(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def args(self) -> Any: ...
    @property
    def result(self) -> Any: ...
    @property
    def error(self) -> str | None: ...


class Holder(Protocol):
    """The attempt that acts: what the ledger needs of a context."""

    @property
    def id(self) -> JobId: ...
    @property
    def token(self) -> Token: ...

    def log(self, message: str, level: str = ..., **fields: Any) -> None: ...
    def park(self, parking: Parking) -> Parked: ...
    @property
    def is_replay(self) -> bool: ...


@frozen
class _Write:
    """Record a state. `patient`: something has been done, so an absent database is waited for."""

    record: EffectRecord
    patient: bool = False


_Ask = _Write | Callable[[], Any]
EffectSteps = Generator[_Ask, Any, Any]
"""Yields what is to be recorded and what is to be called; is sent rows and results."""


def effect_steps(plan: EffectPlan, holder: Holder, clean: Callable[[str], str]) -> EffectSteps:
    """The whole of one effect in one attempt. Returns its result in terms of JSON, also the first time."""
    try:
        row = yield from _record(plan, "intended")
    except (IllegalMove, HandlerError) as exc:
        if plan.approval is None:
            raise
        raise NotApproved(str(exc)) from exc
    call = EffectCall(holder.id, plan.step, plan.name, row.key, holder.token, row.args)
    if holder.is_replay and row.state != "confirmed":
        raise ReplayEnded
    if row.args != json.loads(plan.args):
        holder.log(f"Effect {plan.name!r}: an earlier attempt recorded other arguments, and those are used.", "warning")
    match row.state:
        case "confirmed":
            return row.result
        case "unknown":
            raise _waits(call, holder)
        case "failed" if row.result is not None:
            raise Permanent(f"Effect {plan.name!r} was given up by {_who(row)}: {row.error or 'no note was left'}")
        case "sent":
            verdict = yield from _look(plan, call)
            if verdict is not None and verdict.done:
                return (yield from _confirm(plan, verdict.result))
            if verdict is None and not plan.keyed:
                yield from _record(
                    plan, "unknown", error=row.error or "the attempt ended before its reply was recorded"
                )
                raise _waits(call, holder)
    yield from _record(plan, "sent")
    return (yield from _act(plan, call, holder, clean))


def _act(plan: EffectPlan, call: EffectCall, holder: Holder, clean: Callable[[str], str]) -> EffectSteps:
    not_done: tuple[type[Exception], ...] = (NotDone, Permanent, RetryAfter, Snooze, *plan.safe_errors)
    try:
        value = yield partial(plan.do, call)
    except not_done as exc:
        yield from _record(plan, "failed", error=_said(exc, clean), patient=True)
        raise
    except Exception as exc:
        in_doubt = plan.verify is None and not plan.keyed
        yield from _record(plan, "unknown" if in_doubt else "sent", error=_said(exc, clean), patient=True)
        if in_doubt:
            raise _waits(call, holder) from exc
        raise
    return (yield from _confirm(plan, value))


def _confirm(plan: EffectPlan, value: Any) -> EffectSteps:
    try:
        text = encode(value, what=f"Effect {plan.name!r}: its result")
    except InvalidPayload as exc:
        yield from _record(plan, "confirmed", error=str(exc), patient=True)
        raise Permanent(f"{exc} The effect itself was done, and is not done again.") from exc
    yield from _record(plan, "confirmed", result=text, patient=True)
    return json.loads(text)


def _look(plan: EffectPlan, call: EffectCall) -> Generator[_Ask, Any, Verdict | None]:
    if plan.verify is None:
        return None
    return judged(plan.name, (yield partial(plan.verify, call)))


def _record(
    plan: EffectPlan, state: str, *, result: str | None = None, error: str | None = None, patient: bool = False
) -> Generator[_Ask, Any, LedgerRow]:
    approval = plan.approval if state == "intended" else None
    record = EffectRecord(plan.name, state, plan.step, plan.args, result, error, approval=approval)
    row: LedgerRow | None = yield _Write(record, patient)
    if row is None:
        raise LeaseLost(
            f"Effect {plan.name!r} was not recorded as {state}, because the lease has ended or the job was handed on. "
            "Nothing was changed; the newer attempt finds out what became of it."
        )
    return row


def judged(name: str, answer: Any) -> Verdict:
    """What `verify` answered, as a Verdict. Raises: HandlerError for what is neither that nor a bool."""
    if isinstance(answer, Verdict):
        return answer
    if isinstance(answer, bool):
        return Verdict(answer)
    raise HandlerError(
        f"`verify` of effect {name!r} answered {type(answer).__name__}. It must answer True, False or a "
        "tenure.Verdict; None could mean either."
    )


def _waits(call: EffectCall, holder: Holder) -> Parked:
    place = f"{call.step}:{call.name}" if call.step else call.name
    return holder.park(Parking(f"effect:{call.job_id}:{place}"))


def _who(row: LedgerRow) -> str:
    return str(row.result.get("given_up_by", "an operator")) if isinstance(row.result, dict) else "an operator"


def _said(exc: BaseException, clean: Callable[[str], str]) -> str:
    text = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    return clean(text)[:ERROR_CHARS]


# --- carrying the steps of an effect out ------------------------------------------------------------------------------


def carry_out(
    steps: EffectSteps, record: Callable[[EffectRecord], LedgerRow | None], wait: Callable[[float], Any]
) -> Any:
    """For a sync handler. `wait` pauses for so many seconds, or less if the work is not wanted any more."""
    try:
        ask = next(steps)
        while True:
            try:
                answer = _written(ask, record, wait) if isinstance(ask, _Write) else _called(ask)
            except BaseException as exc:  # noqa: BLE001 - the steps decide what it means
                ask = steps.throw(exc)
            else:
                ask = steps.send(answer)
    except StopIteration as end:
        return end.value


async def acarry_out(steps: EffectSteps, record: Callable[[EffectRecord], Awaitable[LedgerRow | None]]) -> Any:
    """For an async handler. What is not a coroutine function is called in a thread."""
    try:
        ask = next(steps)
        while True:
            try:
                answer = await (_awritten(ask, record) if isinstance(ask, _Write) else _acalled(ask))
            except BaseException as exc:  # noqa: BLE001 - the steps decide what it means
                ask = steps.throw(exc)
            else:
                ask = steps.send(answer)
    except StopIteration as end:
        return end.value


def _written(ask: _Write, record: Callable[[EffectRecord], LedgerRow | None], wait: Callable[[float], Any]) -> Any:
    for pause in PATIENCE if ask.patient else ():
        try:
            return record(ask.record)
        except StoreUnavailable:
            wait(pause)
    return record(ask.record)


def _called(ask: Callable[[], Any]) -> Any:
    answer = ask()
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awritten(ask: _Write, record: Callable[[EffectRecord], Awaitable[LedgerRow | None]]) -> Any:
    async def write() -> LedgerRow | None:
        for pause in PATIENCE if ask.patient else ():
            try:
                return await record(ask.record)
            except StoreUnavailable:
                await asyncio.sleep(pause)
        return await record(ask.record)

    # A cancellation that comes while it is recorded must not leave the effect in doubt.
    return await (asyncio.shield(write()) if ask.patient else write())


async def _acalled(ask: Callable[[], Any]) -> Any:
    function = ask.func if isinstance(ask, partial) else ask
    if not inspect.iscoroutinefunction(function):
        answer = await asyncio.to_thread(ask)
        return await _awaited(answer) if inspect.isawaitable(answer) else answer
    return await ask()


async def _awaited(answer: Awaitable[R]) -> R:
    return await answer
