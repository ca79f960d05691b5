"""Waits of a durable handler: for a time, a signal or the end of a job: open steps, written with the suspend."""

from __future__ import annotations

import json
from typing import Any

from tenure.errors import InvalidArgument
from tenure.handler import arguments
from tenure.handler.building import MISSING
from tenure.handler.signals import Permanent
from tenure.handler.steps import SHORT_SLEEP_SECONDS, Asks, Journal, Pause, StepKey, StepPlan, key_text, read_value
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.step import KEY_CHARS, TIMEOUT, NewStep, Step

WITHDRAWN = "another signal came first"
SIGNALS_MAX = 100


class WaitTimeout(Permanent, TimeoutError):
    """No signal came in time, and the wait has no `default`. Uncaught it ends the job: the time stays over."""


@frozen
class Received:
    """What ended a wait for any of several signals."""

    key: str
    value: Any


@frozen
class WaitPlan:
    """A wait for one of several signals, as a handler asks for it."""

    key: str
    signals: tuple[str, ...]
    timeout_seconds: float | None = None
    default: Any = MISSING
    returns: Any = None

    def steps(self) -> dict[str, str]:
        """The keys of the open steps, one for each signal."""
        if len(self.signals) == 1:
            return {self.key: self.signals[0]}
        return {f"{self.key}:{place}": signal for place, signal in enumerate(self.signals)}


def wait_key(signals: tuple[str, ...], key: StepKey | None) -> str:
    """The step's key of a wait. Raises: InvalidArgument."""
    if not signals:
        raise InvalidArgument("`wait_for` needs the key of a signal, as in `ctx.wait_for('paid:7')`.")
    if len(signals) > SIGNALS_MAX or len(set(signals)) != len(signals):
        raise InvalidArgument(f"`wait_for` takes up to {SIGNALS_MAX} different signals.")
    for signal in signals:
        arguments.text("key", signal, KEY_CHARS - 50)
    named = "|".join(signals) if len(signals) <= 3 else f"{signals[0]}|{len(signals) - 1} more"
    whole = f"wait/{named}" if key is None else f"wait/{named}/{key_text(key)}"
    return arguments.text("key", whole, KEY_CHARS - 10)


def run_sleep(journal: Journal, key: str, seconds: float) -> Asks[None]:
    """Sleep until `seconds` after the first time that the job came here."""
    journal.enter_wait(key)
    if journal.closed(key) is not None:
        return
    if seconds < SHORT_SLEEP_SECONDS and key not in journal.rows:
        journal.end_of_replay()
        yield Pause(seconds)
        journal.draw(NewStep(key, "sleep", "done"))
        return
    yield from journal.wait(f"sleep:{key}", NewStep(key, "sleep", "open", due_seconds=seconds))


def run_wait_for_job(journal: Journal, job_id: JobId, key: str, timeout_seconds: float | None) -> Asks[None]:
    """Wait until a job has ended, well or badly, or is gone."""
    journal.enter_wait(key)
    row = journal.closed(key)
    if row is None:
        step = NewStep(key, "job", "open", awaits=f"job:{job_id}", due_seconds=timeout_seconds)
        yield from journal.wait(f"job:{job_id}", step)
    elif row.state == "failed":
        raise WaitTimeout(
            f"Job {job_id} did not end within {timeout_seconds or 0:g} s. Catch tenure.WaitTimeout. ({TIMEOUT})"
        )


def run_wait(journal: Journal, plan: WaitPlan) -> Asks[Any]:
    """The value of the first signal that comes, or the default."""
    journal.enter_wait(plan.key)
    steps = plan.steps()
    if len(plan.signals) > 1:
        chosen = journal.closed(plan.key)
        if chosen is None:
            chosen = yield from _choose(journal, plan, steps)
        place = json.loads(chosen.value or "null")
        key = plan.key if place is None else f"{plan.key}:{place}"
        row = None if place is None else journal.closed(key)
        if row is None:
            return _timed_out(plan)
        return Received(steps[key], read_value(StepPlan(key, _nothing, returns=plan.returns), row))
    row = journal.closed(plan.key)
    if row is None:
        return (yield from journal.wait(f"signal:{plan.signals[0]}", *_open(plan, steps)))
    if row.state == "failed":
        return _timed_out(plan)
    return read_value(StepPlan(plan.key, _nothing, returns=plan.returns), row)


def _choose(journal: Journal, plan: WaitPlan, steps: dict[str, str]) -> Asks[Step]:
    """Fix which of several signals ended the wait: others may come later and must not change it."""
    closed = [row for key in steps if (row := journal.closed(key)) is not None]
    if not closed:
        yield from journal.wait(" or ".join(f"signal:{signal}" for signal in plan.signals[:5]), *_open(plan, steps))
    came = next((row for row in closed if row.state == "done"), None)
    place = None if came is None else list(steps).index(came.key)
    journal.end_of_replay()
    withdrawn = [
        NewStep(key, "signal", "failed", error=WITHDRAWN, awaits=f"signal:{signal}")
        for key, signal in steps.items()
        if journal.closed(key) is None
    ]
    rows = yield from journal.record(NewStep(plan.key, "signal", "done", value=json.dumps(place)), *withdrawn)
    return rows[0]


def _open(plan: WaitPlan, steps: dict[str, str]) -> list[NewStep]:
    return [
        NewStep(key, "signal", "open", awaits=f"signal:{signal}", due_seconds=plan.timeout_seconds)
        for key, signal in steps.items()
    ]


def _timed_out(plan: WaitPlan) -> Any:
    if plan.default is not MISSING:
        return plan.default
    raise WaitTimeout(
        f"No signal {' or '.join(map(repr, plan.signals[:5]))} came within {plan.timeout_seconds or 0:g} s. "
        f"Catch tenure.WaitTimeout, or give `wait_for` a `default`. ({TIMEOUT})"
    )


def _nothing() -> None: ...
