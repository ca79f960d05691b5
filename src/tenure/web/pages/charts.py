"""Charts as numbers for SVG: x in per cent, y in pixels, so that text keeps its size at any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, Protocol

from tenure.model.frozen import frozen
from tenure.observe.browse import sums

if TYPE_CHECKING:
    from tenure.app import App

PLOT_TOP: Final = 32
PLOT_HEIGHT: Final = 168
LATE: Final = timedelta(minutes=10)
"""Minutes are counted some two minutes after they are over. So far behind, no worker leads, and the chart shows it."""


@frozen
class Range:
    """A stretch of time up to now that a chart shows."""

    word: str
    """In the address."""
    name: str
    """On the page."""
    minutes: int
    span: Literal["minute", "hour", "day"]
    """What is read of it: coarser spans for longer stretches, so that every chart reads a bounded number of rows."""
    step: int
    """Minutes of one point."""
    says: str
    tick: str = "%H:%M"
    """How moments of its axis are written, for strftime."""
    form: str = "%H:%M"
    """How moments of its points are written."""


RANGES: Final = (
    Range("15m", "15 min", 15, "minute", 1, "15 minutes"),
    Range("1h", "1 h", 60, "minute", 1, "hour"),
    Range("6h", "6 h", 360, "minute", 5, "6 hours"),
    Range("24h", "24 h", 1_440, "hour", 60, "24 hours"),
    Range("7d", "7 d", 10_080, "hour", 120, "7 days", "%d %b", "%d %b %H:%M"),
    Range("30d", "30 d", 43_200, "day", 1_440, "30 days", "%d %b", "%d %b"),
)


def range_of(word: str, default: Range) -> Range:
    """The range that an address names."""
    return next((one for one in RANGES if one.word == word), default)


class Counted(Protocol):
    """What was counted from a moment on."""

    @property
    def at(self) -> datetime: ...
    @property
    def created(self) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def failed(self) -> int: ...


@frozen
class Point:
    """Rates per second within one step."""

    at: datetime
    created: int
    completed: int
    failed: int
    seconds: float

    @property
    def enqueued_rate(self) -> float:
        return self.created / self.seconds

    @property
    def succeeded_rate(self) -> float:
        return self.completed / self.seconds

    @property
    def failed_rate(self) -> float:
        return self.failed / self.seconds


@frozen
class Grid:
    """One horizontal line with its word."""

    y: float
    word: str


@frozen
class Tick:
    """One moment on the axis."""

    x: float
    at: datetime
    word: str
    is_wide: bool
    """Left out where the chart is narrow."""


@frozen
class Throughput:
    """A chart of rates over time."""

    points: Sequence[Point]
    top: float
    grid: Sequence[Grid]
    ticks: Sequence[Tick]
    last: Tick
    enqueued: str
    succeeded: str
    area: str
    bars: Sequence[tuple[float, float, float]]
    """x, y, height of the failures."""
    width: int
    says: str
    form: str
    late_since: datetime | None
    """Up to when minutes are counted, if that is long ago."""

    @property
    def newest(self) -> Point | None:
        return self.points[-1] if self.points else None


def throughput(app: App, chosen: Range, now: datetime, queues: Sequence[str] = ()) -> Throughput:
    """The chart of these queues, or of all."""
    begin = _floor(now - timedelta(minutes=chosen.minutes) - LATE, chosen.step)
    rows, until = sums(app.store, begin, chosen.span, queues)
    return drawn(rows, chosen, now, until)


def drawn(rows: Sequence[Counted], chosen: Range, now: datetime, until: datetime | None) -> Throughput:
    """What was counted until `until` as a chart. Its lines end there: a minute that is not counted yet is no minute in
    which nothing happened. Where counting is not late, the axis ends there too."""
    step = timedelta(minutes=chosen.step)
    counted = now if until is None else min(until, now)
    last = _floor((counted if now - counted < LATE else now) - timedelta(minutes=1), chosen.step)
    count = chosen.minutes // chosen.step
    first = last - step * (count - 1)
    totals = [[0, 0, 0] for _ in range(count)]
    for row in rows:
        place = (row.at - first) // step
        if 0 <= place < count:
            totals[place][0] += row.created
            totals[place][1] += row.completed
            totals[place][2] += row.failed
    points = []
    for place, (created, completed, failed) in enumerate(totals):
        at = first + step * place
        if at < counted:
            points.append(Point(at, created, completed, failed, (min(at + step, counted) - at).total_seconds()))
    top = nice_top(max((max(one.enqueued_rate, one.succeeded_rate, one.failed_rate) for one in points), default=0.0))

    def line(values: Sequence[float]) -> str:
        return " ".join(f"{x},{100 - 100 * value / top:.1f}" for x, value in enumerate(values))

    succeeded = line([one.succeeded_rate for one in points])
    bars = [
        (x - 0.35, round(100 - 100 * one.failed_rate / top, 2), round(100 * one.failed_rate / top, 2))
        for x, one in enumerate(points)
        if one.failed
    ]
    return Throughput(
        points=points,
        top=top,
        grid=[
            Grid(PLOT_TOP + PLOT_HEIGHT * part / 4, _rate(top * (4 - part) / 4) + (" /s" if part == 0 else ""))
            for part in range(4)
        ],
        ticks=_ticks(first, last, chosen.tick),
        last=Tick(100.0, last, last.strftime(chosen.tick), False),
        enqueued=line([one.enqueued_rate for one in points]),
        succeeded=succeeded,
        area=f"0,100 {succeeded} {len(points) - 1},100" if points else "",
        bars=bars,
        width=count - 1,
        says=_says(points, chosen),
        form=chosen.form,
        late_since=counted if now - counted >= LATE else None,
    )


def nice_top(value: float) -> float:
    """The next round number above a value: 1, 2, 4 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    for factor in (1, 2, 4, 8):
        if value <= factor * size:
            return factor * size
    return 10 * size


def _floor(at: datetime, minutes: int) -> datetime:
    """The step that a moment lies in: steps begin with the day, in UTC."""
    at = at.astimezone(UTC)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0)
    step = timedelta(minutes=minutes)
    return day + (at - day) // step * step


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _ticks(first: datetime, last: datetime, form: str) -> list[Tick]:
    moments = [first + (last - first) * place / 5 for place in range(5)]
    return [Tick(20.0 * place, at, at.strftime(form), place % 2 == 1) for place, at in enumerate(moments)]


def _says(points: Sequence[Point], chosen: Range) -> str:
    created = sum(one.created for one in points)
    completed = sum(one.completed for one in points)
    failed = sum(one.failed for one in points)
    return f"Throughput of the last {chosen.says}: {created:,} enqueued, {completed:,} succeeded, {failed:,} failed."
