"""What happened minute by minute: rolled up once by a leader, read by everybody, so that nobody counts live tables.

A minute is counted when it is over and nobody can add to it any more, some two minutes later. What one count looks at
is what happened in the minutes it counts, found through the indexes that are there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

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
    """Jobs enqueued, told by their ids: those whose UUIDv7 was made by a clock within a minute of the store's.
    Ids of another sort are not found without an index that every job would pay for, and are not counted."""
    completed: int
    failed: int
    """Deaths and rejections: the dead letters of that minute."""
    latency_average: float | None
    """Seconds from when a job was last due to its end, of the completed ones; None if there is none."""
    error_rate: float | None
    """failed / (completed + failed); None if nothing ended."""
    heartbeat_delay: float | None
    """The longest silence, in seconds, of a worker that serves the queue, seen when the minute was counted; None if
    there was no worker, or it was counted too late to tell."""


@frozen
class ListMetrics(Request[list[Metric]]):
    """Minutes that are counted, of the last `minutes` by the store's clock: newest first, then by queue."""

    minutes: int = 60
    queues: Sequence[str] = ()
    """Only these; all if empty."""
    limit: int = 10_000


@frozen
class RolledUp:
    """The answer to a RollUp."""

    until: datetime | None
    """Every minute before this one is counted; None if another is counting at this moment."""
    rows: int
    """How many rows of minutes and queues were written."""
    more: bool
    """Further minutes are over: call again. If `until` does not move, a transaction that began before still writes."""


@frozen
class RollUp(Request[RolledUp]):
    """Count minutes that are over, up to `minutes` of them. Any process may; a leader does.

    Each minute is counted once, in one transaction with the mark that says so: two that both believe to lead count
    nothing twice. The first count of a database begins an hour before it; what nobody counted for 30 days is given up.
    """

    minutes: int = 60
