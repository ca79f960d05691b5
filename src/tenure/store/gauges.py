"""What a monitor or an autoscaler reads every few seconds: figures whose cost does not grow with the database.

Counts stop at a cap, so that ten million jobs cost no more than the cap. Counters only rise: they are added up when a
minute is counted (store.metrics.RollUp), in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from tenure.model.frozen import frozen
from tenure.store.contract import Request

CAP: Final = 10_000
"""How far CountBacklog counts."""
GAUGE_CAP: Final = 100_000
"""How far ReadGauges counts, for each figure of each queue."""
CAP_MAX: Final = 1_000_000
KINDS_MAX: Final = 200
"""How many kinds have totals of their own, first come first served; the others are added up under the kind ''. Both
engines have the number in their SQL."""


@frozen
class QueueLoad:
    """What one queue asks of its workers now."""

    queue: str
    ready: int
    """Jobs that a worker could take now, those included whose time came while no worker ran. At most the cap."""
    held: int
    """Jobs that workers hold. At most the cap."""
    oldest_ready_at: datetime | None
    """Since when the longest-waiting ready job is due. Above the cap it is read from the head of each priority, for
    the first thousand of them; jobs that a limiter holds back count too."""
    is_paused: bool

    @property
    def backlog(self) -> int:
        """How much work there is for workers: held and, unless the queue is paused, ready jobs.

        Held ones count: a scaler that looked at ready jobs alone would stop the workers that run the last ones.
        """
        return self.held if self.is_paused else self.ready + self.held


@frozen
class CountBacklog(Request[QueueLoad]):
    """What one queue asks of its workers. Costs at most `cap` index entries, whatever the database holds.

    Raises: InvalidArgument (a cap below 1 or above 1,000,000), UnknownQueue.
    """

    queue: str
    cap: int = CAP


@frozen
class Gauges:
    """The answer to a ReadGauges."""

    at: datetime
    queues: Sequence[QueueLoad]
    """Every queue, by name."""
    delayed: int
    """Jobs that are queued for later, over all queues. At most the cap."""
    leases_run_out: int
    """Held jobs whose lease is over and that were not taken back yet. At most the cap."""
    dead_letters: Mapping[str, int]
    """Dead letters by triage, each at most the cap. A triage without letters is left out."""


@frozen
class ReadGauges(Request[Gauges]):
    """The state of all queues from one snapshot. Raises: InvalidArgument (the cap)."""

    cap: int = GAUGE_CAP


@frozen
class QuotaUse:
    """The answer to a ReadQuotaUse."""

    queued: int
    """Jobs in state `queued`, due or not. At most the cap, as the next two."""
    queues: int
    tokens: int
    """API tokens that are valid."""
    bytes: int
    """What the tables and their indexes take up on disk, free pages apart where the engine can tell them (SQLite)."""


@frozen
class ReadQuotaUse(Request[QuotaUse]):
    """What a database holds, for quotas. Costs at most `cap` index entries for each count, whatever the database holds.

    Raises: InvalidArgument (the cap).
    """

    cap: int


@frozen
class Total:
    """One counter: it only rises, and outlives jobs, minutes and processes."""

    queue: str
    what: str
    """`created`, `retried`, `expired` (`part` is ''); `succeeded`, `cancelled`, `dead`, `failed` (`part` is the kind,
    or '' for all kinds beyond the first KINDS_MAX); `run` and `wait` (`part` is a bucket of tenure.model.buckets);
    `run_us` and `wait_us`, the sums of those durations in microseconds (`part` is '')."""
    part: str
    n: int


@frozen
class ReadTotals(Request[list[Total]]):
    """All counters of the queues that exist, by queue, what and part. They are up to where minutes are counted."""
