"""What people ask of a whole database: how it goes, why one job waits, what the engine says, what a prune would take.

Reads that change nothing. Each is one request, answered from one snapshot, and bounded: none walks the finished jobs
beyond its window, which millions may have ended in: pages bound their number too. `seconds` in answers are measured by
the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Literal

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, WorkerId
from tenure.store.contract import Prune, Pruned, Request


@frozen
class Ran:
    """Jobs of one queue and kind that ended within the window."""

    queue: str
    kind: str
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    run_average: float | None
    """Seconds from claimed_at to finished_at of the succeeded ones; None if there is none. Likewise the next three."""
    run_p50: float | None
    run_p95: float | None
    run_max: float | None
    wait_p50: float | None
    """Seconds from run_at, when it was due, to claimed_at, of the succeeded ones. Never below 0."""
    last_at: datetime
    """The newest finished_at."""


@frozen
class Stuck:
    """A held job whose lease ran out and that was not taken back yet."""

    job_id: JobId
    queue: str
    kind: str
    state: str
    worker: WorkerId
    attempt: int
    lease_until: datetime


@frozen
class Backlog:
    """What is to do in one queue. Queues in which nothing waits or is held are left out."""

    queue: str
    due: int
    """queued, run_at passed."""
    delayed: int
    """queued for later, the retries among them."""
    retrying: int
    """queued after a failed attempt (attempt > 0 and failure_class set), due or delayed."""
    held: int
    waiting: int
    oldest_due_at: datetime | None
    """The earliest run_at among the due ones: how far the queue lags behind."""


@frozen
class Repeated:
    """A key of one kind that several jobs carry. A key of scope `active` is free again after an end: no fault."""

    queue: str
    kind: str
    key: str
    jobs: int
    active: int
    """How many of them are still to do. Above 1 only where the queue's policy has no scope."""
    newest_id: JobId


@frozen
class Summed:
    """The answer to a Summary."""

    at: datetime
    """The store's clock."""
    window_seconds: float
    """The window as it was asked for; less if more than `scan` jobs ended in it."""
    is_whole: bool
    """Whether the window is the one that was asked for."""
    ran: list[Ran]
    """By queue and kind."""
    stuck_count: int
    stuck: list[Stuck]
    """The longest run out first, `limit` of them."""
    backlog: list[Backlog]
    """By queue."""
    repeated: list[Repeated]
    """Most jobs first, `limit` of them."""


@frozen
class Summary(Request[Summed]):
    """How it goes: what ran in the window and how long it took, what is stuck, what waits, which keys came repeatedly.

    `ran` and `repeated` look at jobs that ended within the window (and still have their payload); `repeated` also at
    all jobs still to do. Percentiles are the smallest value that at least that share of the values does not exceed.
    With `scan` the window begins later if more than so many jobs ended in it: after the newest of those beyond.
    """

    window_seconds: float = 3600.0
    queues: Sequence[str] = ()
    """Only these; all if empty."""
    limit: int = 20
    scan: int | None = None
    """At most so many jobs that ended are looked at, of all queues; None: as many as there are."""


@frozen
class Stood:
    """The answer to a Standing: what stands between one job and its claim."""

    at: datetime
    ahead: int
    """Jobs of the same queue that are queued, due, and come before it by rank, run_at, id; at most `cap`."""
    held_in_queue: int
    held_with_key: int
    """Held jobs of the same queue with the same concurrency key; 0 if the job has none."""
    last_event: str | None = None
    """The kind of the job's newest event, if events are kept for it."""


@frozen
class Standing(Request[Stood | None]):
    """Where a job stands in its queue; None if there is no such job. Of one that is not queued, `ahead` is 0."""

    job_id: JobId
    cap: int = 10_000


@frozen
class LastMove:
    """The newest line of the ledger of moves: which part this database has in it."""

    role: Literal["source", "destination"]
    other: str
    """The other database's URL, without a password."""
    phase: str
    """As in store.moving.Move."""


@frozen
class Inspection:
    """The answer to an Inspect. What an engine does not have is None."""

    engine: str
    """`sqlite` or `postgresql`."""
    version: str
    """`3.40.1`, `18.1`."""
    at: datetime
    """The store's clock, read when the request was answered."""
    schema_version: int
    schema_wanted: int
    database_bytes: int | None = None
    wal_bytes: int | None = None
    """SQLite: the size of the -wal file."""
    free_bytes: int | None = None
    """SQLite: pages of the file that hold nothing; new rows use them before the file grows. PostgreSQL has
    `dead_rows`."""
    path: str | None = None
    """SQLite: the file; None in memory."""
    journal_mode: str | None = None
    synchronous: str | None = None
    """SQLite: FULL, NORMAL, …; PostgreSQL: synchronous_commit."""
    fsync: bool | None = None
    """PostgreSQL."""
    live_rows: int | None = None
    """PostgreSQL: the statistics' estimate for the job table."""
    dead_rows: int | None = None
    oldest_transaction_seconds: float | None = None
    """PostgreSQL: how long the oldest open transaction holds back vacuum."""
    connections: int | None = None
    max_connections: int | None = None
    is_standby: bool | None = None
    role: str | None = None
    """PostgreSQL: who we are."""
    roles: Mapping[str, bool] = field(default_factory=dict)
    """PostgreSQL: each of our five roles that exists → whether `role` may act as it. Missing ones are not there."""
    newest_created_at: datetime | None = None
    """created_at of the job with the highest id: in the future means that a clock was set back."""
    last_event: int = 0
    """The highest event number; 0 if there is none."""
    last_move: LastMove | None = None


@frozen
class Inspect(Request[Inspection]):
    """What the engine says about itself. Works, as far as it can, on a schema that is behind or not there."""


@frozen
class Prunable(Request[Pruned]):
    """What this Prune would remove if its limit were none. Nothing is changed; `more` is False."""

    prune: Prune


@frozen
class PruneLag(Request[float]):
    """How many seconds retention is late: since when the oldest ended job should have lost its payload. 0 if none is
    late.

    Looks at the `scan` jobs that ended first and still have theirs; those with a dead letter that is not closed are
    kept on purpose and do not count.
    """

    scan: int = 1_000
