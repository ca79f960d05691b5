"""Between rows and the model."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.model.event import Event
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import State
from tenure.model.step import Group, Step
from tenure.store.contract import WorkerRow
from tenure.store.flow import Child
from tenure.store.queries import Audit, Effect, Gate, QueueRow, WorkerSeen
from tenure.store.sqlite.transaction import Row

_BACKOFF: Final = tuple(field.name for field in fields(Backoff))
_POLICY: Final = tuple(field.name for field in fields(QueuePolicy) if field.name not in {"backoff", "forbidden_keys"})
_BOOLEANS: Final = frozenset({"start_on_claim", "key_required", "events"})


def policy_row(name: str, policy: QueuePolicy) -> dict[str, Any]:
    """The columns that hold a policy."""
    row: dict[str, Any] = {"name": name}
    for field in _POLICY:
        value = getattr(policy, field)
        row[field] = int(value) if isinstance(value, bool) else value
    for field in _BACKOFF:
        row[f"backoff_{field}"] = getattr(policy.backoff, field)
    row["forbidden_keys"] = json.dumps(list(policy.forbidden_keys)) if policy.forbidden_keys else None
    return row


def policy_detail(policy: QueuePolicy) -> dict[str, Any]:
    """A policy as an audit row tells it: flat, by the names of the columns."""
    detail: dict[str, Any] = {field: getattr(policy, field) for field in _POLICY}
    detail |= {f"backoff_{field}": getattr(policy.backoff, field) for field in _BACKOFF}
    detail["forbidden_keys"] = list(policy.forbidden_keys) or None
    return detail


def policy(row: dict[str, Any]) -> QueuePolicy:
    """The policy that the columns hold."""
    plain: dict[str, Any] = {field: bool(row[field]) if field in _BOOLEANS else row[field] for field in _POLICY}
    return QueuePolicy(
        **plain,
        backoff=Backoff(**{field: row[f"backoff_{field}"] for field in _BACKOFF}),
        forbidden_keys=tuple(json.loads(row["forbidden_keys"])) if row["forbidden_keys"] else (),
    )


def step(row: Row) -> Step:
    """A row of `steps_*`: the columns in the order of Step's fields."""
    values = list(row)
    values[9:] = map(moment, values[9:])
    return Step(*values)


def group(row: Row) -> Group:
    """A row of `group`: the columns in the order of Group's fields."""
    values = list(row)
    values[11], values[13] = bool(values[11]), bool(values[13])
    values[14:] = map(moment, values[14:])
    return Group(*values)


def child(row: Row) -> Child:
    """A row of `children`: the columns in the order of Child's fields."""
    values = list(row)
    values[3] = None if values[3] is None else State(values[3])
    values[4] = readable(values[4])
    return Child(*values)


def job(row: Row) -> Job:
    """A row of `jobs_*`: the columns in the order of Job's fields."""
    values = list(row)
    values[3] = State(values[3])
    for place in _JOB_JSON:
        values[place] = readable(values[place])
    for place in _JOB_MOMENTS:
        values[place] = moment(values[place])
    return Job(*values)


def attempt(row: Row) -> Attempt:
    """A row of `attempts`."""
    job_id, token, number, worker, claimed_at, ended_at, outcome, failure_class, error, fingerprint, run_at = row
    return Attempt(
        job_id=job_id,
        token=token,
        attempt=number,
        worker=worker,
        claimed_at=moment(claimed_at),
        ended_at=from_us(ended_at),
        outcome=outcome,
        failure_class=failure_class,
        error=error,
        fingerprint=fingerprint,
        run_at=moment(run_at),
    )


def dead_letter(row: Row) -> DeadLetter:
    """A row of `dead_letters`: the columns in the order of DeadLetter's fields."""
    values = list(row)
    values[4] = State(values[4])
    values[5] = readable(values[5])
    values[11] = moment(values[11])
    values[15] = moment(values[15])
    return DeadLetter(*values)


def queue(row: dict[str, Any]) -> QueueRow:
    """A row of `queues`."""
    return QueueRow(
        name=row["name"],
        policy=policy(row),
        paused_at=moment(row["paused_at"]),
        paused_by=row["paused_by"],
        created_at=from_us(row["created_at"]),
        updated_at=from_us(row["updated_at"]),
    )


def gate(row: Row) -> Gate:
    """A row of `gates`."""
    name, is_open, updated_at, actor = row
    return Gate(name, bool(is_open), moment(updated_at), actor)


def worker(row: Row) -> WorkerSeen:
    """A row of `workers`."""
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
        held=held,
        is_leader=bool(is_leader),
        leader_until=moment(leader_until),
    )


def event(row: Row) -> Event:
    """A row of `events`."""
    seq, at, kind, job_id, queue_name, data = row
    return Event(seq, from_us(at), kind, job_id, queue_name, json.loads(data))


def audit(row: Row) -> Audit:
    """A row of `audit`."""
    seq, at, actor, act, subject, reason, detail = row
    return Audit(seq, from_us(at), actor, act, subject, reason, json.loads(detail))


def effect(row: Row) -> Effect:
    """A row of `effect` or `effects`."""
    job_id, step, name, state, token, key, args, result, error, intended_at, updated_at = row
    return Effect(
        job_id=job_id,
        step=step,
        name=name,
        state=state,
        token=token,
        key=key,
        args=readable(args),
        result=readable(result),
        error=error,
        intended_at=from_us(intended_at),
        updated_at=from_us(updated_at),
    )


DEPTH_MAX: Final = 100
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')

_JOB_FIELDS: Final = tuple(Job.__dataclass_fields__)
_JOB_JSON: Final = tuple(_JOB_FIELDS.index(name) for name in ("payload", "backoff", "progress", "result"))
_JOB_MOMENTS: Final = tuple(
    _JOB_FIELDS.index(name) for name in _JOB_FIELDS if name.endswith("_at") or name == "lease_until"
)


def moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def readable(text: str | None) -> Any:
    """A stored value, parsed. What came in by plain SQL and no client may be able to parse is shown as such, so that
    one row never hides the others. The bounds are those of PostgreSQL's `tenure.readable`."""
    if text is None:
        return None
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        return {"$unreadable": f"It is nested deeper than {DEPTH_MAX} levels."}
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError) as exc:
        return {"$unreadable": str(exc)}
    return value


def _depth(text: str) -> int:
    """How deep brackets nest, strings apart."""
    depth = deepest = 0
    for mark in _BRACKETS.findall(text):
        if not mark.startswith('"'):
            depth += 1 if mark in "[{" else -1
            deepest = max(deepest, depth)
    return deepest
