"""One time axis of a job: attempts, leases, steps, effects, what else happened to it, and its log. x in per cent, so
that it fits any width; dashed means that no worker held it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Final

from tenure import Effect
from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.model.job import Attempt, Job
from tenure.model.state import HELD, TERMINAL, State
from tenure.model.step import Step
from tenure.web.pages.words import LOOKS, clock, first_line, look, span

LEAST_SHARE: Final = 0.35
"""Per cent: shorter spans are drawn this wide, so that the eye finds them."""
LABEL_SHARE: Final = 7.0
"""Per cent that a span needs to hold its label."""
MARK_SHARE: Final = 1.5
CHAR_SHARE: Final = 0.65
"""Per cent that a mark and each character of its word take."""
LEFT_FROM: Final = 80.0
"""Words of marks behind this stand to their left, as the template has it."""
LOG_PLACES: Final = 400
"""Lines of the log share a place where they would stand nearer than this part of the axis."""
LEVELS: Final = ("", "retry", "failed", "dead")
"""Tones of log lines, the gravest last: of several at one place it is shown."""
MARKED: Final = frozenset({"cancel_requested", "suspended", "woken", "revived", "released", "reclaimed"})
"""Events that stand on the axis; the others are in the attempts or in the log."""


@frozen
class Bar:
    """A span on a row."""

    x: float
    width: float
    tone: str
    is_held: bool
    label: str
    short: str
    title: str
    token: int | None = None
    """The claim of an attempt that has a row of its own, to which the bar leads."""


@frozen
class LeaseBar:
    """A lease: from its grant to its end."""

    x: float
    width: float
    token: int
    is_lost: bool
    is_ahead: bool
    """What is left of it after now."""
    is_labelled: bool


@frozen
class Mark:
    """A point on a row."""

    x: float
    tone: str
    title: str
    label: str
    is_full: bool = False
    since_x: float | None = None
    """Where it began, if that is elsewhere: a line leads from there."""


@frozen
class StepBar:
    """A step: a span if it waited or is open, else a point."""

    x: float
    width: float | None
    tone: str
    label: str
    title: str


@frozen
class LogMark:
    """Lines of the log at one place."""

    x: float
    tone: str
    title: str


@frozen
class LogEntry:
    """One line of the log, as far as the axis shows it."""

    at: datetime
    tone: str
    says: str


@frozen
class Tick:
    """A moment on the axis."""

    x: float
    at: datetime
    word: str
    is_wide: bool


@frozen
class Happened:
    """One line of the same in words."""

    at: datetime
    state: str
    says: str


@frozen
class Timeline:
    """The whole axis."""

    bars: Sequence[Bar]
    leases: Sequence[LeaseBar]
    steps: Sequence[StepBar]
    effects: Sequence[Mark]
    marks: Sequence[Mark]
    logs: Sequence[LogMark]
    ticks: Sequence[Tick]
    now_x: float | None
    length: str
    title: str
    words: Sequence[Happened]

    @property
    def rows(self) -> Sequence[str]:
        """Rows from the top; those that would be empty are left out."""
        told = {"Steps": self.steps, "Effects": self.effects, "Events": self.marks, "Log": self.logs}
        return ("Attempts", "Leases", *(name for name, entries in told.items() if entries))


def timeline(
    job: Job,
    attempts: Sequence[Attempt],
    effects: Sequence[Effect],
    events: Sequence[Event],
    now: datetime,
    *,
    steps: Sequence[Step] = (),
    logs: Sequence[LogEntry] = (),
) -> Timeline:
    """The axis of one job, from its enqueue to its end or to now."""
    is_over = job.state in TERMINAL
    end = job.finished_at if is_over and job.finished_at is not None else now
    start = min([job.created_at, *(one.claimed_at for one in attempts if one.claimed_at is not None)])
    ahead = job.lease_until if job.state in HELD and job.lease_until is not None and job.lease_until > now else end
    axis = _Axis(start, max(end, ahead, start + timedelta(milliseconds=10)))
    words = sorted(_words(job, attempts, effects, events, steps), key=lambda one: one.at)
    return Timeline(
        bars=list(_bars(axis, job, attempts, end)),
        leases=list(_leases(axis, job, attempts, end)),
        steps=list(_steps(axis, steps, end)),
        effects=[_effect(axis, one) for one in effects],
        marks=list(_marks(axis, job, events)),
        logs=list(_logs(axis, logs)),
        ticks=axis.ticks(),
        now_x=None if is_over else axis.x(now),
        length=span((axis.end - axis.start).total_seconds()),
        title=_title(job, attempts),
        words=words,
    )


class _Axis:
    def __init__(self, start: datetime, end: datetime) -> None:
        self.start = start
        self.end = end
        self._seconds = (end - start).total_seconds()

    def x(self, at: datetime) -> float:
        return round(min(max(100.0 * (at - self.start).total_seconds() / self._seconds, 0.0), 100.0), 2)

    def width(self, first: datetime, last: datetime) -> float:
        return round(max(self.x(last) - self.x(first), LEAST_SHARE), 2)

    def ticks(self) -> list[Tick]:
        form = "%H:%M:%S" if self._seconds < 600 else "%H:%M" if self._seconds < 86_400 else "%m-%d %H:%M"
        moments = [self.start + (self.end - self.start) * place / 5 for place in range(5)]
        return [
            Tick(20.0 * place, at, at.astimezone(UTC).strftime(form), place % 2 == 1)
            for place, at in enumerate(moments)
        ]


def _bars(axis: _Axis, job: Job, attempts: Sequence[Attempt], end: datetime) -> Iterator[Bar]:
    before, waits_as = axis.start, ("queued", "")
    for one in attempts:
        began = one.claimed_at or before
        yield from _gap(axis, before, began, *waits_as)
        word = LOOKS[one.outcome].word if one.outcome in LOOKS else one.outcome
        label = f"{one.attempt} · {word}"
        where = f" on {one.worker}" if one.worker else ""
        lasted = span((one.ended_at - began).total_seconds())
        yield _bar(
            axis,
            began,
            one.ended_at,
            look(one.outcome).tone,
            label,
            str(one.attempt),
            f"attempt {label}{where}, {lasted}",
            token=one.token,
        )
        before = one.ended_at
        waits_as = ("retry", "backoff") if one.outcome == "retried" else ("queued", "")
    if job.claimed_at is not None and job.claimed_at >= before and not _is_told(job, attempts):
        yield from _gap(axis, before, job.claimed_at, *waits_as)
        held_until = _held_until(job, end)
        tone = "running" if job.state is State.WAITING else look(job.state.value).tone
        where = f" · {job.lease_owner}" if job.lease_owner else ""
        lasted = span((held_until - job.claimed_at).total_seconds())
        yield _bar(
            axis,
            job.claimed_at,
            held_until,
            tone,
            f"{job.attempt}{where}",
            str(job.attempt),
            f"attempt {job.attempt}{where}, {lasted}",
        )
        before = held_until
    if before < end:
        waiting = ("waiting", f"waits for {job.waiting_for}") if job.state is State.WAITING else waits_as
        yield from _gap(axis, before, end, *waiting)


def _held_until(job: Job, end: datetime) -> datetime:
    """When the newest claim let go of the job; a suspended one holds no slot since its last change."""
    return min(job.updated_at, end) if job.state is State.WAITING else end


def _is_told(job: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether the newest claim has a row among the attempts already."""
    return any(one.token == job.token for one in attempts)


def _gap(axis: _Axis, first: datetime, last: datetime, tone: str, label: str) -> Iterator[Bar]:
    """A span in which no worker held the job."""
    if axis.x(last) - axis.x(first) >= LEAST_SHARE:
        word = label or "waited"
        title = f"{word}, {span((last - first).total_seconds())}"
        shown = f"{label}, {span((last - first).total_seconds())}" if tone == "waiting" else label
        yield _bar(axis, first, last, tone, shown, "", title, is_held=False)


def _bar(
    axis: _Axis,
    first: datetime,
    last: datetime,
    tone: str,
    label: str,
    short: str,
    title: str,
    *,
    is_held: bool = True,
    token: int | None = None,
) -> Bar:
    width = axis.width(first, last)
    fits = width >= LABEL_SHARE + 0.55 * len(label)
    tight = width >= 2.0
    shown, narrow = label if fits else short if tight else "", short if tight else ""
    return Bar(axis.x(first), width, tone, is_held, shown, narrow, title, token)


def _leases(axis: _Axis, job: Job, attempts: Sequence[Attempt], end: datetime) -> Iterator[LeaseBar]:
    last_x = -100.0
    for one in attempts:
        if one.claimed_at is not None:
            x = axis.x(one.claimed_at)
            yield LeaseBar(
                x, axis.width(one.claimed_at, one.ended_at), one.token, one.outcome == "expired", False, x - last_x > 6
            )
            last_x = x if x - last_x > 6 else last_x
    if job.claimed_at is not None and not _is_told(job, attempts) and job.state is not State.QUEUED:
        x = axis.x(job.claimed_at)
        yield LeaseBar(x, axis.width(job.claimed_at, _held_until(job, end)), job.token, False, False, x - last_x > 6)
        if job.state in HELD and job.lease_until is not None and job.lease_until > end:
            yield LeaseBar(axis.x(end), axis.width(end, job.lease_until), job.token, False, True, False)


def _steps(axis: _Axis, steps: Sequence[Step], end: datetime) -> Iterator[StepBar]:
    """Steps in the order of their records: a span from the first record to the end, labelled where it has room."""
    for one in steps:
        shown = look(one.state)
        over = one.ended_at or end
        x, width = axis.x(one.created_at), axis.x(over) - axis.x(one.created_at)
        lasted = f", {span((over - one.created_at).total_seconds())}" if width >= LEAST_SHARE else ""
        label = one.key if width >= LABEL_SHARE + CHAR_SHARE * len(one.key) else ""
        title = f"{one.key}: {shown.word}{f' for {one.awaits}' if one.state == 'open' and one.awaits else ''}{lasted}"
        yield StepBar(x, round(width, 2) if width >= LEAST_SHARE else None, shown.tone, label, title)


def _effect(axis: _Axis, effect: Effect) -> Mark:
    shown = look(effect.state)
    label = f"{effect.name} is unknown" if effect.state == "unknown" else ""
    x, since = axis.x(effect.updated_at), axis.x(effect.intended_at)
    title = f"{effect.name} {shown.word} at {clock(effect.updated_at)}, intended at {clock(effect.intended_at)}"
    return Mark(x, shown.tone, title, label, since_x=since if x - since >= LEAST_SHARE else None)


def _logs(axis: _Axis, logs: Sequence[LogEntry]) -> Iterator[LogMark]:
    """Lines of the log; those at one place are one mark, in the tone of the gravest."""
    places: dict[int, list[LogEntry]] = {}
    for one in logs:
        places.setdefault(int(axis.x(one.at) * LOG_PLACES / 100), []).append(one)
    for some in places.values():
        gravest = max(some, key=lambda one: LEVELS.index(one.tone) if one.tone in LEVELS else 0)
        more = f", and {len(some) - 1} more" if len(some) > 1 else ""
        yield LogMark(axis.x(some[0].at), gravest.tone, f"{clock(gravest.at)} {first_line(gravest.says, 80)}{more}")


def _marks(axis: _Axis, job: Job, events: Sequence[Event]) -> Iterator[Mark]:
    """Marks of one row, each with its word where that does not run into the next."""
    found = [Mark(axis.x(job.created_at), "queued", "enqueued", "enqueued")]
    if job.cancel_requested_at is not None:
        found.append(Mark(axis.x(job.cancel_requested_at), "cancelled", "cancel asked", "cancel asked", is_full=True))
    for event in events:
        if event.kind in MARKED and not (event.kind == "cancel_requested" and job.cancel_requested_at is not None):
            shown = look(event.kind)
            found.append(Mark(axis.x(event.at), shown.tone, shown.word, shown.word, is_full=True))
    if job.state is State.SUCCEEDED and job.finished_at is not None:
        found.append(Mark(axis.x(job.finished_at), "succeeded", "succeeded", "", is_full=True))
    found.sort(key=lambda mark: mark.x)
    until = 0.0
    for mark, following in zip_longest(found, found[1:]):
        room = MARK_SHARE + CHAR_SHARE * len(mark.label)
        goes_left = mark.x > LEFT_FROM
        fits = mark.x - room >= until if goes_left else following is None or following.x - mark.x >= room
        yield mark if fits else replace(mark, label="")
        until = mark.x if goes_left or not fits else mark.x + room


def _words(
    job: Job,
    attempts: Sequence[Attempt],
    effects: Sequence[Effect],
    events: Sequence[Event],
    steps: Sequence[Step],
) -> Iterator[Happened]:
    by = f"by {job.actor}" if job.actor else ""
    key = f" with key {job.key}" if job.key else ""
    yield Happened(job.created_at, "queued", f"enqueued {by}{key}".strip())
    for one in attempts:
        where = f" on {one.worker}" if one.worker else ""
        again = f"; next due {one.run_at:%H:%M:%S} UTC" if one.run_at else ""
        yield Happened(one.ended_at, one.outcome, f"attempt {one.attempt}{where}: {first_line(one.error, 120)}{again}")
    for step in steps:
        awaits = f" for {step.awaits}" if step.state == "open" and step.awaits else ""
        yield Happened(step.ended_at or step.created_at, step.state, f"step {step.key}{awaits}")
    for effect in effects:
        yield Happened(
            effect.updated_at, effect.state, f"effect {effect.name}{f' of step {effect.step}' if effect.step else ''}"
        )
    for event in events:
        if event.kind in MARKED:
            yield Happened(event.at, event.kind, look(event.kind).word)
    if job.state in HELD and job.claimed_at is not None:
        yield Happened(
            job.claimed_at, job.state.value, f"attempt {job.attempt} on {job.lease_owner}, token {job.token}"
        )
    if job.state is State.SUCCEEDED and job.finished_at is not None:
        yield Happened(job.finished_at, "succeeded", f"attempt {job.attempt}")
    if job.state is State.CANCELLED and job.finished_at is not None:
        yield Happened(job.finished_at, "cancelled", "never runs again unless revived")


def _title(job: Job, attempts: Sequence[Attempt]) -> str:
    ends = "; ".join(f"attempt {one.attempt} {look(one.outcome).word}" for one in attempts[-5:])
    told = f" {ends}." if ends else ""
    return f"Timeline of a job that is {look(job.shown_state).word}.{told} The list below says the same in words."
