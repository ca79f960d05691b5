"""Durable flow: steps, signals, groups of children, and the sweep that wakes those who wait for them.

**No wake-up is lost.** Two transactions may race: one that makes a condition true, and one that parks a job on it. Each
writes its row (a signal, the end of a child; an open step) and, on PostgreSQL, an event that names the condition. A
sweep reads events in a transaction of its own, so whichever of the two commits last has its event read when both rows
can be seen. An exchange only inserts events: it holds no lock that another transaction waits for while it claims.
SQLite has one writer: there the same looks are taken inside the transaction that makes the condition true, and events
are left only for work that is too much for one transaction.

**The path of a wait.** `Suspended` carries open steps and groups. In one transaction children are inserted, the group
and the steps are written, and the conditions are looked at: if one is met the job goes straight back to `queued`,
keeping its place; otherwise it is `waiting`. It is woken when a condition of a step that this suspend named is met, or
at the earliest `due_at` of these steps. A woken job keeps the place in its queue that it had before.

**The deadline.** A sleep with the key `$deadline`, which a worker records with the first steps of a job, ends every
wait when its time comes, named or not. The grant and each heartbeat tell then that it is over; a worker that suspends
the job all the same ends it as failed, with the class `deadline`.

**What is undone.** A step of kind `undo` is `armed` until it is carried out. A job that has armed ones and would end
badly (dead, failed or cancelled) is queued once more instead, with attempts anew, and the step `$undoing` tells the end
that it is to have: `{"end": "failed" | "cancelled", "error", "class"}`. The attempt that finds it carries the undos
out, records each as `undone`, and settles the job with that end.

**Attempts are counted per stretch.** Where a grant has recorded a new step, that attempt counts as the first: a job
that makes progress spends no budget on deploys, and one that makes none ends after `max_attempts`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from tenure.errors import InvalidArgument
from tenure.model.approval import parse_question
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, new_job_id
from tenure.model.job import NewJob
from tenure.model.state import State
from tenure.model.step import GROUP_PAGE, KEY_CHARS, KINDS, STATES, VALUE_BYTES, Group, NewGroup, NewStep, Step
from tenure.store.contract import Request

SIGNAL_SECONDS = 2_592_000.0
"""How long a signal is kept: 30 days."""


@frozen
class RecordSteps(Request[list[Step] | None]):
    """Record steps of a held job, fenced by the token; None and nothing written if the lease is lost.

    Answers the steps as they stand, in the order given. The first record of a key stays: a repeat, and a later attempt,
    read what was recorded first. An `open` step may be closed (`done`, `failed`), an `armed` one too (`undone`,
    `failed`), each once.

    `jobs` are enqueued in the same transaction, if the first of the steps is new: children that are not waited for.
    They pass every gate, as the follow-ups of a completed job do.

    Raises: InvalidArgument (a blank or repeated key, an unknown kind or state, a value that is no JSON or too large),
    IllegalMove (jobs, and a cancel of the parent was requested), UnknownQueue and what else an enqueue refuses.
    """

    job_id: JobId
    token: Token
    steps: Sequence[NewStep]
    jobs: Sequence[NewJob] = ()


@frozen
class ListSteps(Request[list[Step]]):
    """The steps of a job in the order of their first record, behind `after` (an ordinal)."""

    job_id: JobId
    after: int = 0
    limit: int = 1000


@frozen
class Sent:
    """What became of a signal. Not `is_taken`: another value was first for this key, and stays."""

    id: str
    is_taken: bool


@frozen
class Signal(Request[Sent]):
    """Tell those who wait for `key`, now or later. It may come before the wait.

    Scope `once`: the first value of a key stays, and everyone who waits for it, also later, reads that one. Scope
    `queue`: all are kept in order, and each wait takes the oldest. `to`: only that job may take it. Repeating the same
    request (by `id`) is harmless.

    Raises: InvalidArgument (a blank key, an unknown scope, a value that is no JSON), NotFound and IllegalMove (there is
    no job `to`, or it has ended).
    """

    key: str
    value: str = "null"
    """JSON text."""
    actor: str = "tenure"
    scope: str = "once"
    to: JobId | None = None
    keep_seconds: float = SIGNAL_SECONDS
    id: str = field(default_factory=new_job_id)


@frozen
class FillGroup(Request[Group | None]):
    """Create a page of a large group's children, up to GROUP_PAGE, under the parent's token; None if the lease is lost.

    `at` is the position of the first job of this page, counted from 0. The first page records the step and the group;
    the step's value tells how many were made, `{"group": ID, "made": n}`, so that after a crash the next attempt goes
    on there. Positions that were made before are left alone, so a repeat is harmless. With `total` the group is
    complete once so many were made; the parent then parks on the step (`awaits` is `group:ID`).

    Raises: InvalidArgument (a gap before `at`, too many jobs, another group under that step), IllegalMove (a cancel of
    the parent was requested), KeyConflict (the key of a child is taken), UnknownQueue.
    """

    job_id: JobId
    token: Token
    group: NewGroup
    at: int = 0
    total: int | None = None


@frozen
class GetGroup(Request[Group | None]):
    """A group, None if there is none."""

    group_id: str


@frozen
class Child:
    """One child of a group."""

    position: int
    job_id: JobId
    kind: str | None
    """None if the job has been deleted."""
    state: State | None
    result: Any = None
    """Parsed JSON."""
    result_summary: str | None = None
    failure_class: str | None = None
    error: str | None = None
    dead_letter_id: str | None = None
    """Of its newest death."""


@frozen
class ListChildren(Request[list[Child]]):
    """A group's children by position, behind `after`; with `states`, only those that are in one of them."""

    group_id: str
    after: int = -1
    limit: int = 500
    states: Sequence[str] = ()


@frozen
class Swept:
    """What a sweep did."""

    events: int
    """Events that were dealt with."""
    jobs: int
    """Jobs that were woken, let go or cancelled."""
    more: bool
    """There is more to do; call again."""


@frozen
class SweepFlow(Request[Swept]):
    """Deal with up to `limit` events: count the ends of children, close steps whose condition is met and wake their
    jobs, let children go whose group has room, cancel the children of cancelled parents.

    Any process may; several at once do no harm. Each call does one sort of work in one bounded transaction. Where there
    are no events, or with `by_time`, it looks for what no event tells of instead: budgets whose window is over,
    approvals that expire, reservations that were left behind. The leader asks for it `by_time`, so that a stream of
    events does not keep it from looking.
    """

    limit: int = 1000
    by_time: bool = False


@frozen
class ForgetSteps(Request[list[str]]):
    """Forget a step of a job, with `and_later` also all that were first recorded after it, so that they run again.

    An operator's act with actor and reason; leaves an audit row. Answers the keys that were forgotten. The groups of
    forgotten steps are forgotten with them: their children go on, and nothing waits for them.

    A job that waits is queued, so that it meets what is missing now.

    Raises: NotFound (no such job or step), IllegalMove (a worker holds the job).
    """

    job_id: JobId
    key: str
    actor: str
    reason: str
    and_later: bool = False


# --- what both engines refuse before they write
# ------------------------------------------------------------------------


def check_steps(steps: Sequence[NewStep]) -> None:
    """Refuse steps that no store can hold.

    Raises: InvalidArgument.
    """
    for step in steps:
        _check_key("step", step.key)
        if step.kind not in KINDS:
            raise InvalidArgument(f"Step {step.key!r}: kind {step.kind!r} is none of {', '.join(KINDS)}.")
        if step.state not in STATES:
            raise InvalidArgument(f"Step {step.key!r}: state {step.state!r} is none of {', '.join(STATES)}.")
        if step.value is not None:
            _check_value(f"Step {step.key!r}", step.value)
        if step.due_seconds is not None and not math.isfinite(step.due_seconds):
            raise InvalidArgument(f"Step {step.key!r}: due_seconds {step.due_seconds} is no duration.")
        if step.kind == "approval" and step.state == "open":
            parse_question(f"Step {step.key!r}", step.value)
        if step.awaits is not None and ("\0" in step.awaits or ":" not in step.awaits):
            raise InvalidArgument(f"Step {step.key!r}: awaits {step.awaits!r} is no condition such as signal:KEY.")
    if len({step.key for step in steps}) < len(steps):
        raise InvalidArgument("Two steps in one request have the same key. Give each its own, in loops by `key=`.")


def check_group(group: NewGroup) -> None:
    """Refuse a group that no store can hold.

    Raises: InvalidArgument.
    """
    check_steps([NewStep(group.step_key, "group", "open", due_seconds=group.due_seconds)])
    if len(group.jobs) > GROUP_PAGE:
        raise InvalidArgument(
            f"Group {group.step_key!r}: up to {GROUP_PAGE} children are created at once, not {len(group.jobs)}. "
            "Create them by pages (FillGroup). Nothing was created."
        )
    if len({job.id for job in group.jobs}) < len(group.jobs):
        raise InvalidArgument(f"Group {group.step_key!r}: two of its jobs have the same id. Nothing was created.")
    if group.tolerate < 0 or (group.need or 0) < 0 or (group.window is not None and group.window < 1):
        raise InvalidArgument(
            f"Group {group.step_key!r}: tolerate and need cannot be negative, and a window has room for at least 1."
        )


def check_signal(signal: Signal) -> None:
    """Refuse a signal that no store can hold.

    Raises: InvalidArgument.
    """
    _check_key("signal", signal.key)
    _check_value(f"Signal {signal.key!r}", signal.value)
    if signal.scope not in ("once", "queue"):
        raise InvalidArgument(f"Signal {signal.key!r}: scope {signal.scope!r} is neither once nor queue.")
    if not 0 < signal.keep_seconds <= 10 * 365 * 86_400:
        raise InvalidArgument(f"Signal {signal.key!r}: it is kept for up to ten years, not {signal.keep_seconds} s.")
    if not signal.actor.strip():
        raise InvalidArgument(f"Signal {signal.key!r}: actor is blank; it must say who sends this.")


def _check_key(what: str, key: str) -> None:
    if not key.strip() or len(key) > KEY_CHARS or "\0" in key:
        raise InvalidArgument(f"The key of a {what} must be a text of 1 to {KEY_CHARS} characters, not {key[:50]!r}.")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_value(where: str, value: str) -> None:
    size = len(value.encode("utf-8", "replace"))
    if size > VALUE_BYTES:
        raise InvalidArgument(
            f"{where}: its value has {size:,} bytes, and {VALUE_BYTES:,} are the limit. Keep it in a file or a "
            "table of your own and record where it is. Nothing was changed."
        )
    try:
        json.loads(value, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise InvalidArgument(f"{where}: its value is no JSON ({exc}). Nothing was changed.") from exc
