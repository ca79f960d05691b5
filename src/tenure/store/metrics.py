"""What happened by minute, hour and day: counted once by a leader, read by all, so that live tables are not counted.

A minute is counted when it is over and no transaction can add to it any more, some two minutes later. What one count
looks at is what happened in the minutes it counts, found by indexes. Hours are folded from minutes and days from hours;
durations are counted in buckets (tenure.model.buckets), so that any window and any set of queues has its quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from tenure.model.frozen import frozen
from tenure.store.contract import Request


@frozen
class Metric:
    """What happened in one queue within one minute."""

    minute: datetime
    """Its beginning."""
    queue: str
    profile: str
    created: int
    """Jobs enqueued. A UUIDv7 is found by the time in it, so one that was made by a clock more than a minute off is not
    counted; ids of another sort are."""
    completed: int
    failed: int
    """Deaths and rejections: the dead letters of that minute."""
    latency_average: float | None
    """Seconds from enqueue to end, retries and waits included, of the completed ones; None if there is none."""
    error_rate: float | None
    """attempts_failed / (completed + attempts_failed); None if nothing ended."""
    heartbeat_delay: float | None
    """The longest silence, in seconds, of a worker that serves the queue, seen when the minute was counted; None if
    there was no worker in that minute, or it was counted too late to tell."""
    attempts_failed: int = 0
    """Attempts that failed: retried, dead, rejected, or lost with their lease."""


@frozen
class ListMetrics(Request[list[Metric]]):
    """Minutes that are counted, of the last `minutes` by the store's clock: newest first, then by queue.

    A page of `limit` rows; a full one may go on, behind the minute and queue of its last row.
    """

    minutes: int = 60
    queues: Sequence[str] = ()
    """Only these; all if empty."""
    limit: int = 10_000
    after: tuple[datetime, str] | None = None
    """The minute and queue of the last row of the page before."""


@frozen
class RolledUp:
    """The answer to a RollUp."""

    until: datetime | None
    """Every minute before this one is counted; None if another is counting at this moment."""
    rows: int
    """How many rows of minutes and queues were written."""
    more: bool
    """Further minutes are over: call again. If `until` does not move, a transaction that began before still writes."""


COUNTED_MOST: Final = 5_000
"""A count is one transaction, and on SQLite nothing else is written meanwhile."""


@frozen
class RollUp(Request[RolledUp]):
    """Count minutes that are over, up to `minutes` of them, and fewer where more than COUNTED_MOST jobs were made or
    ended in them, but one at least. Any process may; a leader does.

    Each minute is counted once, in one transaction with the mark that says so: two that both believe to lead count
    nothing twice. The first count of a database begins an hour before it; what was not counted for 30 days is given up.
    """

    minutes: int = 60


Span = Literal["minute", "hour", "day"]
SPANS: Final[tuple[Span, ...]] = ("minute", "hour", "day")


@frozen
class SpanCounts:
    """What happened in one queue within one minute, hour or day. Two of them are merged by adding."""

    at: datetime
    """Its beginning, in UTC."""
    queue: str
    profile: str
    created: int
    completed: int
    failed: int
    attempts_failed: int
    retried: int
    expired: int
    cancelled: int
    latency_seconds: float
    """The sum over the completed jobs."""
    busy_seconds: float
    """The sum over all attempts, however they ended."""
    heartbeat_delay: float | None
    parts: Sequence[tuple[str, str, int]]
    """What, part and count: buckets of `wait`, `run` and `total` of completed jobs and of workers' `silence`; failed
    attempts by `class`. Buckets of minutes are kept for two days, those of hours for ninety."""


@frozen
class CountedSpans:
    """The answer to a ReadMetrics."""

    rows: Sequence[SpanCounts]
    more: bool
    """The page is full: go on behind its last row."""
    counted_until: datetime | None
    """Every minute before this one is counted; None if none is yet."""
    hour_until: datetime | None
    """Hours before this one are folded; later ones are told by their minutes."""
    day_until: datetime | None


@frozen
class ReadMetrics(Request[CountedSpans]):
    """What was counted, by minute, or folded, by hour or day: oldest first, then by queue, in pages.

    Raises: InvalidArgument (an unknown span).
    """

    span: Span
    since: datetime | None = None
    until: datetime | None = None
    """Spans that begin before it."""
    queues: Sequence[str] = ()
    """Only these; all if empty."""
    after: tuple[datetime, str] | None = None
    """The beginning and queue of the last row of the page before."""
    limit: int = 1000
    is_summed: bool = False
    """One row for each span, over its queues: without a queue, a profile and parts. For charts, which would otherwise
    read a row for each queue."""
