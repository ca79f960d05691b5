"""Figures of queues over any window, merged from what was counted by minute, hour and day.

Days and hours that are folded are read as such, what came later by its hours and minutes: counts add up, and so do the
buckets from which quantiles are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from tenure.errors import InvalidArgument
from tenure.model.buckets import quantile
from tenure.model.frozen import frozen
from tenure.store.contract import Request
from tenure.store.metrics import SPANS, CountedSpans, ReadMetrics, Span, SpanCounts

By = Literal["minute", "hour", "day", "total"]
BY: Final = ("minute", "hour", "day", "total")
QUANTILES: Final = (0.5, 0.95, 0.99)
PAGE: Final = 1000
_COUNTED: Final = ("created", "completed", "failed", "attempts_failed", "retried", "expired", "cancelled")
_HOURS_FROM: Final = timedelta(hours=6)
"""A total over a longer window begins at a full hour, one over days at a full day, and is read from those."""


@frozen
class Figures:
    """What happened in one queue within one minute, hour or day, or in all of a window."""

    at: datetime
    """The beginning, in UTC; of a total that of the window."""
    queue: str
    profile: str
    created: int
    completed: int
    failed: int
    """Deaths and rejections."""
    attempts_failed: int
    """Attempts that failed: retried, dead, rejected, or lost with their lease."""
    retried: int
    expired: int
    cancelled: int
    latency_average: float | None
    """Seconds from enqueue to end of the completed jobs, retries and waits included."""
    error_rate: float | None
    """attempts_failed / (completed + attempts_failed)."""
    busy_seconds: float
    """All attempts together, however they ended."""
    heartbeat_delay: float | None
    """The longest silence of a worker that serves the queue, in seconds."""
    wait: Mapping[float, float | None]
    """Seconds from due to granted, by quantile: completed jobs, their last attempt. At most 5 % off."""
    run: Mapping[float, float | None]
    """Seconds from granted to completed."""
    total: Mapping[float, float | None]
    """Seconds from enqueued to completed."""
    silence: Mapping[float, float | None]
    """Seconds for which workers were silent when their minute was counted."""
    classes: Mapping[str, int]
    """Failed attempts by class."""


def read_figures(
    since: datetime | None, until: datetime | None, by: By, queues: Sequence[str], quantiles: Sequence[Any]
) -> Generator[Request[Any], Any, list[Figures]]:
    """Figures by time and queue. Yields requests and is sent their answers; reads everything, page by page.

    Raises: InvalidArgument.
    """
    if by not in BY:
        raise InvalidArgument(f"`by` is {by!r}; it is minute, hour, day or total.")
    if wrong := [one for one in quantiles if not (isinstance(one, int | float) and 0 < one <= 1)]:
        raise InvalidArgument(
            f"`quantiles`: {wrong[0]!r} is none; write 0.95 for the time that 95 of 100 do not exceed."
        )
    coarsest: Span = _coarsest(since, until) if by == "total" else by
    since = None if since is None else _floor(since, coarsest)
    rows: list[SpanCounts] = []
    begin = since
    for span in reversed(SPANS[: SPANS.index(coarsest) + 1]):
        mark = yield from _read(span, begin, until, queues, rows)
        if mark is not None and (begin is None or mark > begin):
            begin = mark
    merged: dict[tuple[datetime, str], _Sum] = {}
    first = since or min((row.at for row in rows), default=None)
    for row in rows:
        at = first if by == "total" else _floor(row.at, by)
        assert at is not None
        merged.setdefault((at, row.queue), _Sum(at)).add(row)
    return [merged[key].figures(quantiles) for key in sorted(merged)]


def _read(
    span: Span, since: datetime | None, until: datetime | None, queues: Sequence[str], rows: list[SpanCounts]
) -> Generator[Request[Any], Any, datetime | None]:
    """Read the spans that are folded. Answers up to where they are."""
    request = ReadMetrics(span, since, until, queues, limit=PAGE)
    while True:
        page: CountedSpans = yield request
        rows.extend(page.rows)
        if not page.more:
            return {"minute": page.counted_until, "hour": page.hour_until, "day": page.day_until}[span]
        request = ReadMetrics(span, since, until, queues, (page.rows[-1].at, page.rows[-1].queue), PAGE)


def _coarsest(since: datetime | None, until: datetime | None) -> Span:
    """Which spans make up a total, at most."""
    if since is None:
        return "day"
    window = (until or datetime.now(UTC)) - since
    if window <= _HOURS_FROM:
        return "minute"
    return "hour" if window <= timedelta(days=7) else "day"


def _floor(at: datetime, span: str) -> datetime:
    at = at.astimezone(UTC).replace(second=0, microsecond=0)
    if span == "minute":
        return at
    return at.replace(minute=0) if span == "hour" else at.replace(hour=0, minute=0)


class _Sum:
    """A sum of counts."""

    def __init__(self, at: datetime) -> None:
        self._at = at
        self._counts: Counter[str] = Counter()
        self._latency = self._busy = 0.0
        self._delay: float | None = None
        self._parts: dict[str, Counter[Any]] = {}
        self._queue = self._profile = ""

    def add(self, row: SpanCounts) -> None:
        self._queue, self._profile = row.queue, row.profile
        self._counts.update({name: getattr(row, name) for name in _COUNTED})
        self._latency += row.latency_seconds
        self._busy += row.busy_seconds
        if row.heartbeat_delay is not None:
            self._delay = max(self._delay or 0.0, row.heartbeat_delay)
        for what, part, number in row.parts:
            self._parts.setdefault(what, Counter())[part if what == "class" else int(part)] += number

    def figures(self, quantiles: Sequence[float]) -> Figures:
        counts = {name: self._counts[name] for name in _COUNTED}
        ends = counts["completed"] + counts["attempts_failed"]

        def read(what: str) -> dict[float, float | None]:
            return {share: quantile(self._parts.get(what, {}), share) for share in quantiles}

        return Figures(
            at=self._at,
            queue=self._queue,
            profile=self._profile,
            **counts,
            latency_average=self._latency / counts["completed"] if counts["completed"] else None,
            error_rate=counts["attempts_failed"] / ends if ends else None,
            busy_seconds=self._busy,
            heartbeat_delay=self._delay,
            wait=read("wait"),
            run=read("run"),
            total=read("total"),
            silence=read("silence"),
            classes=dict(self._parts.get("class", {})),
        )
