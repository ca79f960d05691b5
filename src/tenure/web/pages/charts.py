"""Charts as numbers for SVG: x in per cent, y in pixels, so that text keeps its size at any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from tenure.model.frozen import frozen

PLOT_TOP: Final = 32
PLOT_HEIGHT: Final = 168
RANGES: Final = (("15m", "15 min", 15), ("1h", "1 h", 60), ("6h", "6 h", 360), ("24h", "24 h", 1440))
"""Word in the URL, word on the page, minutes."""
STEPS: Final = {15: 1, 60: 1, 360: 5, 1440: 15}
"""Minutes of one point, so that no chart has more than about a hundred."""


class Counted(Protocol):
    """A counted minute, or what looks like one."""

    @property
    def minute(self) -> datetime: ...
    @property
    def created(self) -> int: ...
    @property
    def completed(self) -> int: ...
    @property
    def failed(self) -> int: ...


class QueueMinute(Counted, Protocol):
    """The same of one queue."""

    @property
    def queue(self) -> str: ...


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
    enqueued: str
    succeeded: str
    area: str
    bars: Sequence[tuple[float, float, float]]
    """x, y, height of the failures."""
    width: int
    says: str

    @property
    def newest(self) -> Point | None:
        return self.points[-1] if self.points else None


def throughput(rows: Sequence[Counted], minutes: int, now: datetime) -> Throughput:
    """Counted minutes of all queues as one chart that ends at the newest minute that can be counted."""
    step = STEPS.get(minutes, max(1, minutes // 96))
    end = now.astimezone(UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
    count = max(minutes // step, 2)
    first = end - timedelta(minutes=step * count)
    sums = [[0, 0, 0] for _ in range(count)]
    for row in rows:
        place = int((row.minute - first).total_seconds() // 60 // step)
        if 0 <= place < count:
            sums[place][0] += row.created
            sums[place][1] += row.completed
            sums[place][2] += row.failed
    points = [
        Point(first + timedelta(minutes=step * place), sums[place][0], sums[place][1], sums[place][2], 60.0 * step)
        for place in range(count)
    ]
    top = nice_top(max((max(one.enqueued_rate, one.succeeded_rate, one.failed_rate) for one in points), default=0.0))
    width = count - 1

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
        ticks=_ticks(first, end),
        enqueued=line([one.enqueued_rate for one in points]),
        succeeded=succeeded,
        area=f"0,100 {succeeded} {width},100",
        bars=bars,
        width=width,
        says=_says(points, minutes),
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


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _ticks(first: datetime, end: datetime) -> list[Tick]:
    span = (end - first) / 5
    words = [(first + span * place).strftime("%H:%M") for place in range(5)]
    return [Tick(20.0 * place, word, place % 2 == 1) for place, word in enumerate(words)]


def _says(points: Sequence[Point], minutes: int) -> str:
    created = sum(one.created for one in points)
    completed = sum(one.completed for one in points)
    failed = sum(one.failed for one in points)
    window = f"{minutes} minutes" if minutes < 120 else f"{minutes // 60} hours"
    return f"Throughput of the last {window}: {created:,} enqueued, {completed:,} succeeded, {failed:,} failed."
