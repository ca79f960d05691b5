"""The shapes of `--json`: what each command answers, as records. docs/reference/cli.md is made from them.

Commands build plain dictionaries, because making these classes takes longer than answering; tests hold every answer to
its shape. A field may be added; none is ever renamed, removed or given another meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Jobs:
    jobs: list[Job]
    next: str | None


@dataclass(frozen=True, slots=True)
class JobShown:
    job: Job
    attempts: list[Attempt]
    dead_letters: list[DeadLetter]
    effects: list[Effect]
    events: list[Event]


@dataclass(frozen=True, slots=True)
class CancelledJobs:
    jobs: list[Cancelled]


@dataclass(frozen=True, slots=True)
class SettledJobs:
    jobs: list[Settled]


@dataclass(frozen=True, slots=True)
class EnqueuedJobs:
    jobs: list[Enqueued]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Grants:
    grants: list[Granted]


@dataclass(frozen=True, slots=True)
class Held:
    job_id: str
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class DeadLetters:
    dead_letters: list[DeadLetter]
    next: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterShown:
    dead_letter: DeadLetter
    attempts: list[Attempt]


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    groups: list[DeadLetterGroup]


@dataclass(frozen=True, slots=True)
class Changed:
    changed: list[str]


@dataclass(frozen=True, slots=True)
class Queues:
    queues: list[QueueRow]


@dataclass(frozen=True, slots=True)
class Gates:
    gates: list[Gate]


@dataclass(frozen=True, slots=True)
class Workers:
    workers: list[WorkerSeen]


@dataclass(frozen=True, slots=True)
class Migrated:
    applied: list[str]
    schema_version: int


@dataclass(frozen=True, slots=True)
class PruneDone:
    pruned: Pruned


@dataclass(frozen=True, slots=True)
class Version:
    version: str
    python: str


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Schedules:
    schedules: list[Schedule]


@dataclass(frozen=True, slots=True)
class ProfileSeen:
    name: str
    title: str
    specification: str | None
    queues: list[str]
    shows: list[str]
    installed_at: datetime | None
    installed_by: str | None


@dataclass(frozen=True, slots=True)
class Profiles:
    profiles: list[ProfileSeen]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ProfileShown:
    profile: ProfileTold


@dataclass(frozen=True, slots=True)
class ProfileInstall:
    name: str
    is_new: bool
    queues: list[str]
    gates: list[str]


@dataclass(frozen=True, slots=True)
class ProfileInstalled:
    installed: ProfileInstall
