"""How an attempt ended, as data. Each names the grant by job and token; the store's SQL decides what comes next.

Failure classes are counted apart. Infrastructure errors are not among them: they never reach a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tenure.model.event import NewEvent
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.job import NewJob
from tenure.model.step import NewGroup, NewStep


class FailureClass(StrEnum):
    """Why an attempt did not succeed."""

    ERROR = "error"
    CRASH = "crash"
    LEASE_LOST = "lease_lost"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    SHUTDOWN = "shutdown"
    SNOOZED = "snoozed"
    NO_HANDLER = "no_handler"
    INVALID_PAYLOAD = "invalid_payload"
    PERMANENT = "permanent"
    CANCELLED = "cancelled"
    STALE_STEP = "stale_step"
    """The recorded value of a step no longer fits the type that the code asks for."""
    DEADLINE = "deadline"
    """The job's whole life took longer than its deadline allows."""
    COMPENSATION = "compensation"
    """An undo step of a job that was to end badly could not be carried out."""


class Triage(StrEnum):
    """What a person has decided about a dead letter."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    MANUAL_REPLAY = "manual_replay"
    ESCALATED = "escalated"
    CLOSED = "closed"


@frozen
class EffectRecord:
    """A row of the effect ledger, written together with the outcome that carries it."""

    name: str
    state: str
    step: str = ""
    args: str = "null"
    result: str | None = None
    error: str | None = None
    key: str | None = None
    approval: str | None = None
    """The approval that it uses: granted for these very arguments, and used by no other effect."""


@dataclass(slots=True)
class Completed:
    """The attempt succeeded. Follow-up jobs, events and effects are committed with it or not at all.

    Not frozen only because one is made for every job that goes well, and a frozen one takes twice as long.
    """

    job_id: JobId
    token: Token
    result: str | None = None
    """JSON text."""
    result_summary: str | None = None
    artifacts_path: str | None = None
    jobs: tuple[NewJob, ...] = ()
    events: tuple[NewEvent, ...] = ()
    effects: tuple[EffectRecord, ...] = ()


@frozen
class Failed:
    """The attempt failed: queued again by backoff (`retry_after_seconds` wins), or dead when none are left."""

    job_id: JobId
    token: Token
    error: str
    failure_class: FailureClass = FailureClass.ERROR
    retry_after_seconds: float | None = None


@frozen
class Rejected:
    """The job can never succeed: failed at once, whatever attempts are left, with a dead letter."""

    job_id: JobId
    token: Token
    error: str
    failure_class: FailureClass = FailureClass.PERMANENT


@frozen
class Released:
    """The worker gives the job back unspent: queued, attempt refunded.

    `failure_class` None: the job only waited inside the worker and never started. Then no attempt row is written.
    """

    job_id: JobId
    token: Token
    delay_seconds: float = 0.0
    failure_class: FailureClass | None = FailureClass.SHUTDOWN
    error: str | None = None
    limiter: str | None = None
    """A service refused: this key is blocked for `delay_seconds`. A job that carries the key keeps its `run_at` and is
    held back by the block alone. See store.limits."""


@frozen
class Suspended:
    """The job waits without holding a slot, until `delay_seconds` pass or it is woken. Attempt refunded.

    With `steps` and `groups` it waits for any of the open steps among them; what that means stands in store.flow. A
    condition that is met already sends the job straight back to `queued`. Closed steps are recorded along.
    """

    job_id: JobId
    token: Token
    waiting_for: str
    delay_seconds: float | None = None
    steps: tuple[NewStep, ...] = ()
    groups: tuple[NewGroup, ...] = ()


@frozen
class Stopped:
    """The worker stopped the handler because a cancel was asked for: cancelled."""

    job_id: JobId
    token: Token
    error: str | None = None


Outcome = Completed | Failed | Rejected | Released | Suspended | Stopped


@frozen
class Settled:
    """What a store made of one outcome.

    `state` is where the job stands now, None if the lease was lost and nothing was changed.
    Repeating an outcome that was already taken in answers as it did the first time.
    """

    job_id: JobId
    token: Token
    state: str | None
    run_at_us: int | None = None
    """When the next attempt is due, if it was queued again."""

    @property
    def lost(self) -> bool:
        """The lease had passed on; the outcome was refused."""
        return self.state is None


@frozen
class Beat:
    """What a heartbeat found. Held jobs that are in none of the sets go on, with their lease extended."""

    lost: frozenset[JobId] = field(default_factory=frozenset)
    cancel_requested: frozenset[JobId] = field(default_factory=frozenset)
    overdue: frozenset[JobId] = field(default_factory=frozenset)
    """Durable jobs whose deadline has passed: to be rejected with the class `deadline`."""
