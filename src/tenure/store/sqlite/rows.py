"""From rows to the model."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.model.event import Event
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.state import State
from tenure.store.contract import WorkerRow
from tenure.store.queries import Audit, Effect, Gate, QueueRow, WorkerSeen
from tenure.store.sqlite import policies
from tenure.store.sqlite.transaction import Row


def job(row: Row) -> Job:
    """A row of jobs_*.sql: the columns in the order of Job's fields."""
    values = list(row)
    values[3] = State(values[3])
    for place in _JOB_JSON:
        values[place] = _json(values[place])
    for place in _JOB_MOMENTS:
        values[place] = _moment(values[place])
    return Job(*values)


def attempt(row: Row) -> Attempt:
    """A row of attempts.sql."""
    job_id, token, number, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at = row
    return Attempt(
        job_id=job_id,
        token=token,
        attempt=number,
        worker=worker,
        claimed_at=_moment(claimed_at),
        ended_at=from_us(ended_at),
        outcome=outcome,
        failure_class=failure_class,
        error=error,
        fingerprint=fingerprint,
        run_at=_moment(run_at),
    )


def dead_letter(row: Row) -> DeadLetter:
    """A row of dead_letters.sql: the columns in the order of DeadLetter's fields."""
    values = list(row)
    values[4] = State(values[4])
    values[5] = _json(values[5])
    values[11] = _moment(values[11])
    values[15] = _moment(values[15])
    return DeadLetter(*values)


def queue(row: dict[str, Any]) -> QueueRow:
    """A row of queues.sql."""
    return QueueRow(
        name=row["name"],
        policy=policies.from_row(row),
        paused_at=_moment(row["paused_at"]),
        paused_by=row["paused_by"],
        created_at=from_us(row["created_at"]),
        updated_at=from_us(row["updated_at"]),
    )


def gate(row: Row) -> Gate:
    """A row of gates.sql."""
    name, is_open, updated_at, actor = row
    return Gate(name, bool(is_open), _moment(updated_at), actor)


def worker(row: Row) -> WorkerSeen:
    """A row of workers.sql."""
    (
        id_, hostname, pid, queues, kinds, concurrency, version, executor_kind, status, current_job_id, info,
        started_at, last_seen_at, ticks, held, leader_until, is_leader,
    ) = row  # fmt: skip
    return WorkerSeen(
        row=WorkerRow(
            id=id_,
            hostname=hostname,
            pid=pid,
            queues=tuple(json.loads(queues)),
            kinds=tuple(json.loads(kinds)),
            concurrency=concurrency,
            version=version,
            profile_kind=executor_kind,
            status=status,
            current_job_id=current_job_id,
            info=info,
        ),
        started_at=from_us(started_at),
        last_seen_at=from_us(last_seen_at),
        ticks=ticks,
        wants_wake=False,  # who listens has a socket, not a row
        held=held,
        is_leader=bool(is_leader),
        leader_until=_moment(leader_until),
    )


def event(row: Row) -> Event:
    """A row of events.sql."""
    seq, at, kind, job_id, queue_name, data = row
    return Event(seq, from_us(at), kind, job_id, queue_name, json.loads(data))


def audit(row: Row) -> Audit:
    """A row of audit.sql."""
    seq, at, actor, act, subject, reason, detail = row
    return Audit(seq, from_us(at), actor, act, subject, reason, json.loads(detail))


def effect(row: Row) -> Effect:
    """A row of effect.sql or effects.sql."""
    job_id, step, name, state, token, key, args, result, error, intended_at, updated_at = row
    return Effect(
        job_id=job_id,
        step=step,
        name=name,
        state=state,
        token=token,
        key=key,
        args=json.loads(args),
        result=_json(result),
        error=error,
        intended_at=from_us(intended_at),
        updated_at=from_us(updated_at),
    )


_JOB_FIELDS: Final = tuple(Job.__dataclass_fields__)
_JOB_JSON: Final = tuple(_JOB_FIELDS.index(name) for name in ("payload", "backoff", "progress", "result"))
_JOB_MOMENTS: Final = tuple(
    _JOB_FIELDS.index(name) for name in _JOB_FIELDS if name.endswith("_at") or name == "lease_until"
)


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
