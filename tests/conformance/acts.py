"""What a test does with a store, one short word each. Nothing here decides anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypedDict, TypeVar, Unpack

from anyio.from_thread import BlockingPortal

from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token, WorkerId, new_job_id
from tenure.model.job import Attempt, DeadLetter, Enqueued, Grant, Job, NewJob
from tenure.model.outcome import (
    Completed,
    EffectRecord,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Settled,
    Stopped,
    Suspended,
)
from tenure.model.policy import (
    AgentEventsRule,
    Backoff,
    KeyConflictRule,
    KeyScope,
    KeySpace,
    PriorityOrder,
    QueuePolicy,
    ReviveRule,
    UnknownKindRule,
)
from tenure.model.state import State
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Cancel, Cancelled, Claim, Enqueue, Hold, Reap, Request, Revive, Settle, Store
from tenure.store.queries import GetJobs, ListAttempts, ListDeadLetters
from tests.conformance.engines import SteeredClock

T = TypeVar("T")

NO_BACKOFF = Backoff(shape="none", jitter=0.0)


class Subject:
    """A store under test, used through its sync door or its async one."""

    def __init__(
        self,
        engine: str,
        store: Store,
        clock: SteeredClock,
        portal: BlockingPortal | None = None,
        *,
        is_pooled: bool = False,
    ) -> None:
        self.engine = engine
        self.is_pooled = is_pooled
        """Behind a pooler in transaction mode, where nothing can listen."""
        self.store = store
        self.clock = clock
        self._portal = portal

    def do(self, request: Request[T]) -> T:
        if self._portal is None:
            return self.store.do(request)
        return self._portal.call(self.store.ado, request)


class JobFields(TypedDict, total=False):
    """What a test may set of a NewJob beside what `new_job` names."""

    queue: str
    priority: int | None
    run_at: datetime | None
    delay_seconds: float | None
    key: str | None
    max_attempts: int | None
    backoff: str | None
    affinity_key: str | None
    concurrency_key: str | None
    limiter: str | None
    source_ref: str | None
    target_ref: str | None
    payload_ref: str | None
    actor: str | None
    created_by_user_id: str | None
    requested_by_user_id: str | None
    tenant: str | None
    workflow_id: str | None
    parent_id: JobId | None
    run_id: str | None
    trace: str | None
    artifacts_path: str | None


class PolicyFields(TypedDict, total=False):
    """What a test may set of a QueuePolicy."""

    profile: str
    priority_order: PriorityOrder
    priority_default: int
    aging_seconds: float | None
    start_on_claim: bool
    max_attempts: int
    backoff: Backoff
    lease_seconds: float
    lease_max_seconds: float
    key_scope: KeyScope
    key_space: KeySpace
    key_required: bool
    key_window_seconds: float
    key_conflict: KeyConflictRule
    revive: ReviveRule
    on_unknown_kind: UnknownKindRule
    forbidden_keys: tuple[str, ...]
    concurrency: int | None
    concurrency_per_key: int | None
    retain_seconds: float | None
    events: bool
    agent_events: AgentEventsRule


class CompletedFields(TypedDict, total=False):
    """What a test may hand to a Completed."""

    result: str | None
    result_summary: str | None
    artifacts_path: str | None
    jobs: tuple[NewJob, ...]
    events: tuple[NewEvent, ...]
    effects: tuple[EffectRecord, ...]


def new_job(
    kind: str = "work", payload: object = None, job_id: JobId | None = None, **fields: Unpack[JobFields]
) -> NewJob:
    """A job with a fresh id; a payload that is a str is taken as JSON text."""
    text = payload if isinstance(payload, str) else json.dumps({} if payload is None else payload)
    return NewJob(id=job_id or new_job_id(), kind=kind, payload=text, **fields)


def enqueue(store: Subject, kind: str = "work", payload: object = None, **fields: Unpack[JobFields]) -> JobId:
    """Enqueue one job and answer its id; a duplicate fails the test."""
    [answer] = store.do(Enqueue([new_job(kind, payload, **fields)]))
    assert not answer.duplicate
    return answer.id


def enqueue_many(store: Subject, count: int, kind: str = "work", **fields: Unpack[JobFields]) -> list[JobId]:
    """Enqueue `count` alike jobs in one batch."""
    return [answer.id for answer in store.do(Enqueue([new_job(kind, **fields) for _ in range(count)]))]


def offer(store: Subject, kind: str = "work", payload: object = None, **fields: Unpack[JobFields]) -> Enqueued:
    """Enqueue one job that may be a duplicate."""
    [answer] = store.do(Enqueue([new_job(kind, payload, **fields)]))
    return answer


def claim(
    store: Subject,
    limit: int = 1,
    *,
    worker: str = "w1",
    queues: Sequence[str] = ("default",),
    kinds: Sequence[str] | None = None,
    affinity: Sequence[str | None] | None = None,
    lease_seconds: float | None = None,
    strict: bool = False,
    held: Sequence[JobId] | None = None,
) -> list[Grant]:
    return store.do(
        Claim(
            worker=WorkerId(worker),
            queues=queues,
            limit=limit,
            kinds=kinds,
            affinity=affinity,
            lease_seconds=lease_seconds,
            strict=strict,
            held=held,
        )
    )


def claim_one(store: Subject, worker: str = "w1", queue: str = "default", lease_seconds: float | None = None) -> Grant:
    """Claim exactly one job."""
    [grant] = claim(store, worker=worker, queues=[queue], lease_seconds=lease_seconds)
    return grant


def settle(store: Subject, outcome: Outcome) -> Settled:
    [settled] = store.do(Settle([outcome]))
    return settled


def complete(store: Subject, grant: Grant, **fields: Unpack[CompletedFields]) -> Settled:
    return settle(store, Completed(grant.id, grant.token, **fields))


def fail(
    store: Subject,
    grant: Grant,
    error: str = "boom",
    failure_class: FailureClass = FailureClass.ERROR,
    retry_after_seconds: float | None = None,
) -> Settled:
    return settle(store, Failed(grant.id, grant.token, error, failure_class, retry_after_seconds))


def reject(store: Subject, grant: Grant, error: str = "never") -> Settled:
    return settle(store, Rejected(grant.id, grant.token, error))


def release(store: Subject, grant: Grant, delay_seconds: float = 0.0) -> Settled:
    return settle(store, Released(grant.id, grant.token, delay_seconds))


def suspend(store: Subject, grant: Grant, waiting_for: str = "event", delay_seconds: float | None = None) -> Settled:
    return settle(store, Suspended(grant.id, grant.token, waiting_for, delay_seconds))


def stop(store: Subject, grant: Grant) -> Settled:
    return settle(store, Stopped(grant.id, grant.token))


def cancel(store: Subject, job_id: JobId, versions: Mapping[JobId, str] | None = None) -> Cancelled:
    [answer] = store.do(Cancel([job_id], actor="ops", reason="not needed", versions=versions or {}))
    return answer


def revive(store: Subject, job_id: JobId, versions: Mapping[JobId, str] | None = None) -> Settled:
    [answer] = store.do(Revive([job_id], actor="ops", reason="fixed", versions=versions or {}))
    return answer


def reap(store: Subject, limit: int = 1000) -> list[Settled]:
    return store.do(Reap(limit))


def get(store: Subject, job_id: JobId) -> Job:
    [job] = store.do(GetJobs([job_id]))
    assert job is not None, f"job {job_id} is gone"
    return job


def exists(store: Subject, job_id: JobId) -> bool:
    return store.do(GetJobs([job_id])) != [None]


def attempts(store: Subject, job_id: JobId) -> list[Attempt]:
    return store.do(ListAttempts(job_id))


def letters(store: Subject, job_id: JobId | None = None) -> list[DeadLetter]:
    return store.do(ListDeadLetters(job_id=job_id)).items


def make_queue(store: Subject, name: str = "q", **policy: Unpack[PolicyFields]) -> str:
    store.do(SetQueues({name: QueuePolicy(**policy)}, actor="test"))
    return name


def set_gate(store: Subject, name: str, is_open: bool) -> None:
    store.do(SetGate(name, is_open=is_open, actor="ops", reason="test"))


def hold(grant: Grant, progress: str | None = None, started: bool = True) -> Hold:
    return Hold(grant.id, grant.token, progress, started)


def stale(grant: Grant) -> Grant:
    """The same grant with a token that is not the newest."""
    return with_token(grant, grant.token - 1)


def with_token(grant: Grant, token: int) -> Grant:
    return Grant(
        id=grant.id,
        queue=grant.queue,
        kind=grant.kind,
        token=Token(token),
        attempt=grant.attempt,
        max_attempts=grant.max_attempts,
        payload_text=grant.payload_text,
        lease_until=grant.lease_until,
        worker=grant.worker,
    )


def bring(store: Subject, state: State, queue: str = "default") -> Job:
    """A job in the wanted state, by the shortest way. Other jobs of the queue must not be claimable."""
    job_id = enqueue(store, queue=queue, max_attempts=1 if state is State.DEAD else None)
    match state:
        case State.QUEUED:
            pass
        case State.LEASED | State.RUNNING:
            claim_one(store, queue=queue)
        case State.WAITING:
            suspend(store, claim_one(store, queue=queue))
        case State.SUCCEEDED:
            complete(store, claim_one(store, queue=queue))
        case State.FAILED:
            reject(store, claim_one(store, queue=queue))
        case State.DEAD:
            fail(store, claim_one(store, queue=queue))
        case State.CANCELLED:
            cancel(store, job_id)
    job = get(store, job_id)
    assert job.state is state
    return job
