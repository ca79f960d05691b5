"""Reservations as a handler makes them: `async with ctx.reserve(usd="0.40", tokens=20_000) as r: …; r.used(usd=…)`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from tenure.errors import HandlerError, LeaseLost
from tenure.handler.signals import Parked, Permanent
from tenure.handler.steps import Asks, acarry_out, carry_out, current_step, is_on_loop
from tenure.model.budget import AMOUNT_MAX, Amounts, Money, Refusal, amounts_of, read_amount
from tenure.model.frozen import frozen
from tenure.model.step import NewStep

if TYPE_CHECKING:
    from tenure.handler.context import Context


STEP_CHARS: Final = 100
"""So much of a step's key stands in the keys of its reservations."""


class BudgetEmpty(Permanent):
    """A budget with `on_empty="fail"` has no room for what the job asked for. Uncaught it ends the job as failed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.says())
        self.refusal = refusal


@frozen
class MakeReservation:
    """Reserve for this job. Answered by Reserved, None if the lease is lost."""

    key: str
    amounts: Amounts
    is_once: bool = False


@frozen
class EndReservation:
    """Say what a reservation has cost."""

    key: str
    used: Amounts = field(default_factory=dict)
    is_unused: bool = False
    is_done: bool = True
    is_parked: bool = False


class Reservation:
    """What is reserved for a piece of work, as a context manager, sync or async.

    Entering reserves, or lets the job wait. Leaving settles: with what `used` was told; what it was not told counts as
    reserved, because it may have been spent. Seconds are measured if they were not told.
    """

    __slots__ = ("_begun", "_context", "_is_limited", "_is_once", "_is_open", "_is_unused", "_key", "_used", "amounts")

    def __init__(self, context: Context, key: str, amounts: Amounts, *, is_once: bool) -> None:
        self._context = context
        self._key = key
        self.amounts: Amounts = amounts
        """What is reserved, by unit; usd and seconds in millionths."""
        self._is_once = is_once
        self._used: dict[str, int] = {}
        self._is_unused = False
        self._is_open = False
        self._is_limited = False
        self._begun = 0.0

    def used(
        self,
        *,
        usd: Money | None = None,
        usd_micro: int | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Say what was really spent. Told several times, the amounts add up. Written when the block is left.

        Raises: InvalidArgument, for a float as money among others.
        """
        told = amounts_of(usd=usd, usd_micro=usd_micro, tokens=tokens, calls=calls, seconds=seconds)
        for unit, amount in told.items():
            self._used[unit] = min(self._used.get(unit, 0) + amount, AMOUNT_MAX)

    def release(self) -> None:
        """Say that nothing was spent, for example because the request was never sent. `used` takes it back."""
        self._is_unused = True

    def __enter__(self) -> Self:
        if is_on_loop():
            raise HandlerError("In an async handler write `async with ctx.reserve(…)`: `with` would block its loop.")
        carry_out(self._make(), self._context.ask, self._context.cancelled.wait)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        # A settle is wanted also when the work is not: its pauses are not cut short.
        carry_out(self._end(kind), self._context.ask, time.sleep)

    async def __aenter__(self) -> Self:
        await acarry_out(self._make(), self._context.aask)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        # Also when the task is being cancelled: what was spent is written before the block is left.
        await asyncio.shield(acarry_out(self._end(kind), self._context.aask))

    def _make(self) -> Asks[None]:
        if self._is_open:
            raise HandlerError("A reservation is entered once. Call `ctx.reserve(…)` anew for the next piece of work.")
        self._is_open = True
        if self._context.is_replay:  # nothing new begins while the job is undone
            return
        answer = yield MakeReservation(self._key, self.amounts, self._is_once)
        if answer is None:
            context = self._context
            raise LeaseLost(
                f"Job {context.id}: attempt {context.attempt} reserved nothing, because its lease has ended or the job "
                "was handed on."
            )
        if answer.refusal is not None:
            raise self._refused(answer.refusal)
        self._is_limited = answer.is_limited
        self._begun = time.monotonic()

    def _end(self, kind: type[BaseException] | None) -> Asks[None]:
        if not self._is_limited:
            return
        used = dict(self._used)
        if self.amounts.get("seconds") != 0 and "seconds" not in used:
            used["seconds"] = read_amount("seconds", time.monotonic() - self._begun)
        is_parked = kind is not None and issubclass(kind, Parked)
        yield EndReservation(self._key, used, self._is_unused and not self._used, kind is None or is_parked, is_parked)

    def _refused(self, refusal: Refusal) -> BaseException:
        context = self._context
        if refusal.on_empty == "fail":
            return BudgetEmpty(refusal)
        if refusal.on_empty == "escalate":
            context.event("escalation", {"budget": refusal.name, "message": refusal.says()})
        value = json.dumps({"key": self._key, "asked": dict(self.amounts), "is_once": self._is_once})
        # A new key for every wait: what is closed once stays closed.
        key = f"$budget/{context.token}/{self._key}"
        return context.park_on(refusal.name, NewStep(key, "budget", "open", value, None, refusal.name))


def reservation_key(context: Context, name: str | None, number: int) -> tuple[str, bool]:
    """The key of a reservation, and whether it is paid once for all attempts: that of a durable handler outside its
    steps, where the code before it runs again and finds its steps recorded."""
    step = current_step()
    own = str(number) if name is None else f"={name}"
    if step is not None:
        if len(step) > STEP_CHARS:  # a key has no room for all of it, and two that begin alike are two
            step = f"{step[: STEP_CHARS - 33]}#{hashlib.sha256(step.encode()).hexdigest()[:32]}"
        return f"{step}/{own}", False
    return own, context.is_durable
