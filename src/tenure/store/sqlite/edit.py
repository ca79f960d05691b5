"""Edit a job that waits in its queue: another payload or priority, on the terms on which the queue takes jobs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tenure.errors import IllegalMove, NotFound
from tenure.model.job import Job, NewJob
from tenure.model.state import State
from tenure.store.contract import EditJob
from tenure.store.queries import GetJobs
from tenure.store.sqlite import admin, enqueue, queries
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("admin")


class _Row(NamedTuple):
    """A row of `edit_look`."""

    token: int
    updated_at: int
    created_at: int
    state: str
    has_steps: int
    queue: str
    kind: str
    key: str | None
    payload: str | None
    priority: int
    rank: int
    payload_hash: str | None
    forbidden_keys: str | None


def edit_job(transaction: Transaction, request: EditJob) -> Job:
    """See store.contract.EditJob."""
    found = transaction.one(_SQL["edit_look"], (request.job_id,))
    if found is None:
        raise NotFound(f"There is no job {request.job_id}, so nothing was changed. Look for it with `tenure jobs ls`.")
    row = _Row(*found)
    payload = row.payload if request.payload is None else request.payload
    priority = row.priority if request.priority is None else request.priority
    if (payload, priority) != (row.payload, row.priority):
        _refuse(request, row)
        _write(transaction, request, row, "null" if payload is None else payload, priority)
    (job,) = queries.get_jobs(transaction, GetJobs([request.job_id]))
    assert job is not None
    return job


def _refuse(request: EditJob, row: _Row) -> None:
    if row.state != State.QUEUED:
        raise IllegalMove(
            f"Job {request.job_id} is {row.state}, so nothing was changed: only a job that waits in its queue can be "
            "edited."
        )
    admin.refuse_outdated(request.job_id, request.version, row.token, row.updated_at)
    if row.has_steps and request.payload not in (None, row.payload):
        raise IllegalMove(
            f"Job {request.job_id} has recorded steps, which go by its payload, so nothing was changed. Forget them "
            "first with `tenure jobs forget-step`, or cancel it and enqueue a new job."
        )


def _write(transaction: Transaction, request: EditJob, row: _Row, payload: str, priority: int) -> None:
    job = NewJob(request.job_id, row.kind, payload, queue=row.queue, priority=priority, key=row.key)
    terms = enqueue.terms_of(transaction, [job])[row.queue]
    values: dict[str, Any] = {"now": transaction.now, "job_id": request.job_id, "payload": payload}
    values |= {"payload_hash": row.payload_hash, "forbidden_keys": row.forbidden_keys}
    values |= {"priority": priority, "rank": row.rank}
    if payload != row.payload:
        enqueue.check_payload(job, terms)
        values["payload_hash"] = None if job.key is None else enqueue.payload_hash(payload)
        values["forbidden_keys"] = terms.forbidden_keys
    if priority != row.priority:
        enqueue.check_priority(job, priority, terms)
        values["rank"] = terms.rank(priority, row.created_at)
    transaction.run(_SQL["edit"], values)
    transaction.record("edited", [request.job_id])
    detail = {
        "from": {"payload": enqueue.payload_hash(row.payload or "null"), "priority": row.priority},
        "to": {"payload": enqueue.payload_hash(payload), "priority": priority},
    }
    admin.audit(transaction, request.actor, "edit", request.job_id, request.reason, detail)
