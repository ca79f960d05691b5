"""A job as it is asked for, as it is granted, and as it is read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tenure.model.clock import from_us, to_us
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.state import State

if TYPE_CHECKING:
    from tenure.model.step import Step


@dataclass(slots=True)
class NewJob:
    """A job to enqueue. `payload` is JSON text, already checked. None means: as the queue's policy says.

    Not frozen only because a frozen one takes three times as long to make, and bulk enqueues make many.
    """

    id: JobId
    kind: str
    payload: str = "{}"
    queue: str = "default"
    priority: int | None = None
    run_at: datetime | None = None
    delay_seconds: float | None = None
    """Counted from the store's clock; wins over `run_at`."""
    key: str | None = None
    max_attempts: int | None = None
    backoff: str | None = None
    """JSON of a Backoff that overrides the queue's."""
    affinity_key: str | None = None
    concurrency_key: str | None = None
    limiter: str | None = None
    """Keys of limiters, sorted and joined by commas; see model.limiter."""
    source_ref: str | None = None
    target_ref: str | None = None
    payload_ref: str | None = None
    actor: str | None = None
    created_by_user_id: str | None = None
    requested_by_user_id: str | None = None
    tenant: str | None = None
    workflow_id: str | None = None
    parent_id: JobId | None = None
    run_id: str | None = None
    trace: str | None = None
    """W3C traceparent of the caller that enqueued it."""
    artifacts_path: str | None = None


NEW_JOB_EXTRAS = (
    "backoff",
    "affinity_key",
    "concurrency_key",
    "limiter",
    "source_ref",
    "target_ref",
    "payload_ref",
    "actor",
    "created_by_user_id",
    "requested_by_user_id",
    "tenant",
    "workflow_id",
    "parent_id",
    "run_id",
    "trace",
    "artifacts_path",
)
"""The columns of NewJob that most jobs leave empty. Wire formats send them only when set."""


HIDDEN: Final = {"$unreadable": "It belongs to another login."}
"""The payload of a job whose contents the asking login may not read. PostgreSQL's list_jobs writes it."""


NEVER_YEAR: Final = 9999
"""The year of `run_at` of a job that waits for no time."""


@frozen
class Enqueued:
    """What became of one enqueue: the job's id, or that of the job that already holds the key."""

    id: JobId
    duplicate: bool = False


@frozen
class Job:
    """A job as stored. Moments are aware and UTC; `payload`, `result` and `progress` are parsed JSON."""

    id: JobId
    queue: str
    kind: str
    state: State
    priority: int
    payload: Any
    run_at: datetime
    attempt: int
    max_attempts: int
    crashes: int
    token: Token
    created_at: datetime
    updated_at: datetime
    payload_hash: str | None = None
    lease_owner: WorkerId | None = None
    lease_until: datetime | None = None
    key: str | None = None
    affinity_key: str | None = None
    concurrency_key: str | None = None
    cancel_requested_at: datetime | None = None
    waiting_for: str | None = None
    source_ref: str | None = None
    target_ref: str | None = None
    payload_ref: str | None = None
    actor: str | None = None
    created_by_user_id: str | None = None
    requested_by_user_id: str | None = None
    tenant: str | None = None
    workflow_id: str | None = None
    parent_id: JobId | None = None
    run_id: str | None = None
    trace: str | None = None
    backoff: Any = None
    progress: Any = None
    result: Any = None
    result_summary: str | None = None
    artifacts_path: str | None = None
    last_error: str | None = None
    failure_class: str | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cleaned_at: datetime | None = None
    suspicion: int = 0
    """How many workers vanished while they held this job beside others. See model.state."""
    group_id: str | None = None
    """The group whose child it is. See model.step."""
    step_token: Token | None = None
    """The newest grant that recorded a new step; None for a job without steps."""
    limiter: str | None = None
    """The keys of its limiters, sorted and joined by commas; see model.limiter."""

    @property
    def due_at(self) -> datetime | None:
        """When it is due by its time alone; None where it waits for something else, for as long as that takes."""
        return self.run_at if self.run_at.year < NEVER_YEAR else None

    @property
    def is_hidden(self) -> bool:
        """Whether this login may know that the job is there, but not what it carries (PostgreSQL)."""
        return bool(self.payload == HIDDEN)

    @property
    def version(self) -> str:
        """What changes whenever the job does: an editor hands it back, so that it overwrites nothing unread."""
        return f"{self.token}.{to_us(self.updated_at)}"

    @property
    def shown_state(self) -> str:
        """The state as people see it: `retry_waiting` and `cleaned` are shown, not stored."""
        if self.cleaned_at is not None:
            return "cleaned"
        if self.state is State.QUEUED and self.failure_class is not None and self.attempt > 0:
            return "retry_waiting"
        return self.state.value


@dataclass(slots=True, eq=False)
class Grant:
    """A job held under a lease, with the token that proves it.

    Kept small, because the worker makes one per job: the payload stays JSON text until it is asked for,
    and the rarely set columns stay in `extras`.
    """

    id: JobId
    queue: str
    kind: str
    token: Token
    attempt: int
    max_attempts: int
    payload_text: str | bytes
    lease_until_us: int
    worker: WorkerId
    priority: int = 0
    crashes: int = 0
    started: bool = True
    """Whether the claim also started it; otherwise it is `leased` until a heartbeat, a settle or a start says so."""
    extras: dict[str, Any] | None = None
    """Columns of Job that are set, among NEW_JOB_EXTRAS and key, progress."""
    suspicion: int = 0
    """From ISOLATE_FROM on the job must run in a process of its own, from ALONE_FROM on also alone on its worker."""
    steps: tuple[Step, ...] = ()
    """What the job has behind it, in the order of first records, as far as GRANT_BYTES of values go."""
    has_more_steps: bool = False
    """There are further steps; ListSteps reads them."""

    @property
    def lease_until(self) -> datetime:
        """When the lease ends unless a heartbeat extends it, by the store's clock."""
        return from_us(self.lease_until_us)

    @property
    def payload(self) -> Any:
        """The payload, parsed."""
        return json.loads(self.payload_text)

    def extra(self, name: str) -> Any:
        """A rarely set column, or None."""
        return None if self.extras is None else self.extras.get(name)


@frozen
class Attempt:
    """One attempt that did not end well. A success leaves no such row."""

    job_id: JobId
    token: Token
    attempt: int
    worker: WorkerId | None
    claimed_at: datetime | None
    ended_at: datetime
    outcome: str
    """retried, dead, failed, released, expired, cancelled."""
    failure_class: str
    error: str | None
    fingerprint: str | None
    run_at: datetime | None
    """When the next attempt was due, if there was to be one."""


@frozen
class DeadLetter:
    """A death that needs a person. One row per death; survives retention."""

    id: str
    job_id: JobId
    queue: str
    kind: str
    state: State
    """dead or failed: how the job ended."""
    payload: Any
    attempts: int
    crashes: int
    failure_class: str
    final_error: str
    fingerprint: str
    moved_at: datetime
    moved_by: str
    triage: str
    triage_note: str | None = None
    triaged_at: datetime | None = None
    triaged_by: str | None = None
    owner: str | None = None
    """Who takes care of it, if a person was named."""
    key: str | None = None
    actor: str | None = None
    run_id: str | None = None
    workflow_id: str | None = None
    source_ref: str | None = None
    target_ref: str | None = None
    payload_ref: str | None = None
