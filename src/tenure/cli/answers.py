"""The shapes of `--json`: what each command answers, as records. docs/reference/cli.md is made from them.

Commands build plain dictionaries, because making these classes takes longer than answering; tests hold every answer to
its shape. A field may be added; none is ever renamed, removed or given another meaning.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenure import (
    Attempt,
    Cancelled,
    DeadLetter,
    DeadLetterGroup,
    Effect,
    Enqueued,
    Event,
    Gate,
    Job,
    Pruned,
    QueuePolicy,
    QueueRow,
    Settled,
    WorkerSeen,
)
from tenure.model.frozen import frozen


@frozen
class Jobs:
    jobs: list[Job]
    next: str | None


@frozen
class JobShown:
    job: Job
    attempts: list[Attempt]
    dead_letters: list[DeadLetter]
    effects: list[Effect]
    events: list[Event]


@frozen
class CancelledJobs:
    jobs: list[Cancelled]


@frozen
class SettledJobs:
    jobs: list[Settled]


@frozen
class EnqueuedJobs:
    jobs: list[Enqueued]


@frozen
class Granted:
    """A job held under a lease. `token` proves it."""

    id: str
    token: int
    queue: str
    kind: str
    payload: Any
    attempt: int
    max_attempts: int
    crashes: int
    priority: int
    worker: str
    lease_until: datetime
    is_started: bool


@frozen
class Grants:
    grants: list[Granted]


@frozen
class Held:
    job_id: str
    cancel_requested: bool


@frozen
class DeadLetters:
    dead_letters: list[DeadLetter]
    next: str | None


@frozen
class DeadLetterShown:
    dead_letter: DeadLetter
    attempts: list[Attempt]


@frozen
class DeadLetterGroups:
    groups: list[DeadLetterGroup]


@frozen
class Changed:
    changed: list[str]


@frozen
class Queues:
    queues: list[QueueRow]


@frozen
class Gates:
    gates: list[Gate]


@frozen
class Workers:
    workers: list[WorkerSeen]


@frozen
class Migrated:
    applied: list[str]
    schema_version: int


@frozen
class PruneDone:
    pruned: Pruned


@frozen
class Version:
    version: str
    python: str


@frozen
class Schedule:
    name: str
    cron: str
    tz: str
    kind: str
    queue: str
    missed: str
    payload: Any
    last_tick: datetime
    next_tick: datetime | None
    paused_at: datetime | None
    paused_by: str | None


@frozen
class Schedules:
    schedules: list[Schedule]


@frozen
class ProfileSeen:
    name: str
    title: str
    specification: str | None
    queues: list[str]
    shows: list[str]
    installed_at: datetime | None
    installed_by: str | None


@frozen
class Profiles:
    profiles: list[ProfileSeen]


@frozen
class ProfileTold:
    name: str
    title: str
    specification: str | None
    queues: list[str]
    closed_gates: list[str]
    words: dict[str, str]
    settings: dict[str, Any]
    shows: list[str]
    policy: QueuePolicy


@frozen
class ProfileShown:
    profile: ProfileTold


@frozen
class ProfileInstall:
    name: str
    is_new: bool
    queues: list[str]
    gates: list[str]


@frozen
class ProfileInstalled:
    installed: ProfileInstall
