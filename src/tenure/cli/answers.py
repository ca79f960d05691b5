"""The shapes of `--json`: what each command answers, as records. docs/reference/cli.md is made from them.

Commands build plain dictionaries, because making these classes takes longer than answering; tests hold every answer to
its shape. A field may be added; none is ever renamed, removed or given another meaning.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenure import (
    Approval,
    Attempt,
    Audit,
    Budget,
    Cancelled,
    DeadLetter,
    DeadLetterGroup,
    Effect,
    Enqueued,
    EscalationRow,
    Event,
    Figures,
    Gate,
    Graph,
    Hit,
    Job,
    LimitedJobs,
    Limiter,
    Memo,
    MemoryStats,
    Pruned,
    QueuePolicy,
    QueueRow,
    Reindexed,
    Settled,
    Step,
    WorkerSeen,
    WorkflowRow,
)
from tenure.model.frozen import frozen
from tenure.observe.stats import Overview


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
    steps: list[Step]
    approvals: list[Approval]


@frozen
class ForgottenSteps:
    forgotten: list[str]


@frozen
class SentSignal:
    id: str
    key: str
    is_taken: bool


@frozen
class Stats(Overview):
    metrics: list[Figures]
    """What was counted, with --since."""


@frozen
class MemoriesFound:
    memories: list[Hit]


@frozen
class Forgotten:
    forgotten: int


@frozen
class ReindexAsked:
    reindexed: Reindexed


@frozen
class MemoryShown:
    stats: MemoryStats
    embedder: str


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
    overdue: bool


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
class PolicyDifference:
    queue: str
    setting: str
    in_code: Any
    in_database: Any


@frozen
class Applied:
    """What `apply` found and, unless it only checked, brought over."""

    differences: list[PolicyDifference]
    applied: bool
    strange_schedules: list[str]


@frozen
class Changed:
    changed: list[str]


@frozen
class SkillFiles:
    changed: list[str]
    """Files that were written or removed; with --dry-run, those that would be."""
    dry_run: bool


@frozen
class Agreed:
    code: str


@frozen
class Queues:
    queues: list[QueueRow]


@frozen
class Budgets:
    budgets: list[Budget]


@frozen
class BudgetPage:
    budgets: list[Budget]
    next: str | None


@frozen
class MemoPage:
    memos: list[Memo]
    next: str | None


@frozen
class MemosForgotten:
    forgotten: int


@frozen
class QueueBacklog:
    queue: str
    backlog: int


@frozen
class Gates:
    gates: list[Gate]


@frozen
class Limits:
    limiters: list[Limiter]


@frozen
class LimitedWaits:
    waiting: list[LimitedJobs]


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
    cron: str | None
    every_seconds: float | None
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
class Workflows:
    workflows: list[WorkflowRow]
    next: str | None


@frozen
class WorkflowShown:
    workflow: WorkflowRow
    counts: dict[str, int]
    graph: Graph
    escalations: list[EscalationRow]


@frozen
class WorkflowMoved:
    workflow: WorkflowRow
    counts: dict[str, int]


@frozen
class Escalations:
    escalations: list[EscalationRow]


@frozen
class EscalationAnswered:
    escalation: EscalationRow
    workflow: WorkflowRow


@frozen
class InboxLine:
    kind: str
    id: str
    title: str
    state: str
    since: datetime
    due_at: datetime | None
    asked_of: list[str]
    job_id: str | None
    workflow_id: str | None


@frozen
class Inbox:
    inbox: list[InboxLine]
    next: str | None


@frozen
class ApprovalShown:
    approval: Approval


@frozen
class ApprovalLink:
    link: str
    approval: str
    person: str
    valid_seconds: float


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
    adopted: list[str]
    gates: list[str]


@frozen
class ProfileInstalled:
    installed: ProfileInstall


@frozen
class Served:
    """Said once the port is open. `links` sign a browser in, once, by tenant."""

    url: str
    links: dict[str, str]


@frozen
class TokenShown:
    id: str
    name: str
    scopes: list[str]
    is_valid: bool
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


@frozen
class TokenNew:
    """A token with its secret, which is shown this once."""

    token: str
    id: str
    name: str
    scopes: list[str]
    is_valid: bool
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


@frozen
class Tokens:
    tokens: list[TokenShown]


@frozen
class AuditRows:
    audit: list[Audit]


@frozen
class AuditSealed:
    links: int
    head: str
    added: int


@frozen
class AuditVerified:
    links: int
    head: str
    unsealed: int
    faults: list[str]
    is_sound: bool
