"""What can be asked of a store: jobs, attempts, dead letters, queues, gates, workers, events, audit.
Reads change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Request, WorkerRow

T = TypeVar("T")


@frozen
class Page(Generic[T]):
    """A part of a list. `next` continues it; None at the end."""

    items: list[T]
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@frozen
class GetJobs(Request[list[Job | None]]):
    """Jobs by id, in order; None where there is none."""

    job_ids: Sequence[JobId]


@frozen
class ListJobs(Request[Page[Job]]):
    """Jobs that match, newest first by id. Bounded by `limit`; `after` continues a page."""

    states: Sequence[str] = ()
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    key: str | None = None
    workflow_id: str | None = None
    parent_id: JobId | None = None
    profile: str | None = None
    worker: WorkerId | None = None
    limit: int = 50
    after: str | None = None


@frozen
class Count:
    """Jobs of one queue, kind and state. `oldest_at`: the earliest created_at among them."""

    queue: str
    kind: str
    state: str
    jobs: int
    oldest_at: datetime | None


@frozen
class CountJobs(Request[list[Count]]):
    """Jobs grouped by queue, kind and state; exact at the moment of asking.

    It reads every job that it counts: with `states` that are still to do, those through their indexes, otherwise the
    whole table. A caller that must answer soon bounds its time (store.browsing.bounded_looks), or reads ReadGauges,
    which count up to a cap, or ReadTotals, which are kept.
    """

    queues: Sequence[str] = ()
    states: Sequence[str] = ()


@frozen
class ListAttempts(Request[list[Attempt]]):
    """The attempts of a job that did not end well, oldest first."""

    job_id: JobId


@frozen
class ListDeadLetters(Request[Page[DeadLetter]]):
    """Dead letters, newest first."""

    triage: Sequence[str] = ()
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    fingerprint: str | None = None
    job_id: JobId | None = None
    ids: Sequence[str] = ()
    limit: int = 50
    after: str | None = None


@frozen
class DeadLetterGroup:
    """Deaths that look alike."""

    fingerprint: str
    kind: str
    queue: str
    letters: int
    pending: int
    first_at: datetime
    last_at: datetime
    sample_error: str
    sample_job_id: JobId


@frozen
class GroupDeadLetters(Request[list[DeadLetterGroup]]):
    """Dead letters grouped by error fingerprint, kind and queue; most letters first."""

    triage: Sequence[str] = ("pending",)
    limit: int = 50


@frozen
class QueueRow:
    """A queue as stored."""

    name: str
    policy: QueuePolicy
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    updated_at: datetime


@frozen
class ListQueues(Request[list[QueueRow]]):
    """Every queue, by name."""

    names: Sequence[str] = ()


@frozen
class Gate:
    """A switch. A gate that has no row is open."""

    name: str
    is_open: bool
    updated_at: datetime | None
    actor: str | None


@frozen
class ListGates(Request[list[Gate]]):
    """The four global gates (master, worker, notify, heartbeat) and every other that has a row, by name."""


@frozen
class WorkerSeen:
    """A worker's row as stored."""

    row: WorkerRow
    started_at: datetime
    last_seen_at: datetime
    ticks: int
    held: int
    is_leader: bool
    leader_until: datetime | None

    @property
    def slots_used(self) -> int:
        """How many of its slots work. What it holds beyond them it has fetched ahead."""
        return min(self.held, self.row.concurrency)


@frozen
class ListWorkers(Request[list[WorkerSeen]]):
    """Every worker that has a row, most recently seen first."""


@frozen
class ListEvents(Request[list[Event]]):
    """Events above `after`, by number. A low number may be committed after a higher one: FollowEvents misses none."""

    after: int = 0
    job_id: JobId | None = None
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    limit: int = 500


@frozen
class Followed:
    """The answer to a FollowEvents."""

    events: list[Event]
    """By number."""
    place: str
    """Goes on from here, as `place` of the next request."""
    more: bool
    """Whether there is more already: ask again at once."""
    newest: int
    """The highest event number that is there; 0 if there is none."""


@frozen
class FollowEvents(Request[Followed]):
    """Events that were committed since `place`: each once, none passed over, however long its transaction was open.

    `place` comes from an earlier answer, also to another process. Without it the events behind number `after` come
    first; without that too, the answer is empty, and its place stands before all that is committed from now on.

    With `until`, a later place, the answer is what was committed between the two, the same whenever it is asked for
    (as long as nothing is pruned). `after` has no meaning beside `place`.

    Raises: InvalidArgument (a place that this database did not give).
    """

    place: str | None = None
    until: str | None = None
    after: int | None = None
    job_id: JobId | None = None
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    limit: int = 500


@frozen
class Audit:
    """What a person or program with power did."""

    seq: int
    at: datetime
    actor: str
    act: str
    subject: str
    reason: str | None
    detail: Any


@frozen
class ListAudit(Request[list[Audit]]):
    """Audit rows, newest first."""

    subject: str | None = None
    limit: int = 100
    before: int | None = None
    """Only rows with a lower `seq`: the last of the page before."""


@frozen
class Effect:
    """A row of the effect ledger. Its place is (job, step, name); `key` is stable across attempts."""

    job_id: JobId
    step: str
    name: str
    state: str
    """intended, sent, confirmed, failed, unknown."""
    token: Token
    key: str
    args: Any
    result: Any
    error: str | None
    intended_at: datetime
    updated_at: datetime


@frozen
class ListEffects(Request[Page[Effect]]):
    """Effects of a job, or all in the given states, ordered by job and place."""

    job_id: JobId | None = None
    states: Sequence[str] = ()
    limit: int = 500
    after: str | None = None


@frozen
class ProfileRow:
    """A profile that is installed in this database."""

    name: str
    title: str
    policy: QueuePolicy
    """The rules that a queue takes when it comes to the profile."""
    words: Mapping[str, str]
    settings: Mapping[str, Any]
    shows: Sequence[str]
    queues: Sequence[str]
    checksum: str
    actor: str
    installed_at: datetime
    updated_at: datetime


@frozen
class ListProfiles(Request[list[ProfileRow]]):
    """Every profile that is installed here, by name."""
