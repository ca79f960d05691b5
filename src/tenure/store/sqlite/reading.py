"""Reads: one request, one short transaction, bounded answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us
from tenure.model.event import Event
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.store.queries import (
    Audit,
    Count,
    CountJobs,
    DeadLetterGroup,
    Effect,
    Gate,
    GetJobs,
    GroupDeadLetters,
    ListAttempts,
    ListAudit,
    ListDeadLetters,
    ListEffects,
    ListEvents,
    ListGates,
    ListJobs,
    ListQueues,
    ListWorkers,
    Page,
    QueueRow,
    WorkerSeen,
)
from tenure.store.sqlite import rows
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit

T = TypeVar("T")

GET_AT_ONCE: Final = 1000
"""Ids looked up by one statement."""


def get_jobs(transaction: Transaction, request: GetJobs) -> list[Job | None]:
    """See store.reading.GetJobs."""
    found: dict[str, Job] = {}
    for first in range(0, len(request.job_ids), GET_AT_ONCE):
        ids = json.dumps(list(request.job_ids[first : first + GET_AT_ONCE]))
        found.update((row[0], rows.job(row)) for row in transaction.all(load("jobs_by_id"), {"ids": ids}))
    return [found.get(job_id) for job_id in request.job_ids]


def list_jobs(transaction: Transaction, request: ListJobs) -> Page[Job]:
    """See store.reading.ListJobs."""
    statement = "jobs_list"
    if request.parent_id is not None:
        statement = "jobs_list_parent"
    elif request.workflow_id is not None:
        statement = "jobs_list_workflow"
    elif request.worker is not None:
        statement = "jobs_list_held"
    values = {
        "states": _some(request.states),
        "queues": _some(request.queues),
        "kinds": _some(request.kinds),
        "key": request.key,
        "workflow_id": request.workflow_id,
        "parent_id": request.parent_id,
        "profile": request.profile,
        "worker": request.worker,
        "after": request.after,
    }
    return _page(transaction, statement, values, request.limit, rows.job, lambda row: str(row[0]))


def count_jobs(transaction: Transaction, request: CountJobs) -> list[Count]:
    """See store.reading.CountJobs."""
    values = {"queues": _some(request.queues), "states": _some(request.states)}
    return [
        Count(queue, kind, state, jobs, from_us(oldest))
        for queue, kind, state, jobs, oldest in transaction.all(load("count"), values)
    ]


def list_attempts(transaction: Transaction, request: ListAttempts) -> list[Attempt]:
    """See store.reading.ListAttempts."""
    return [rows.attempt(row) for row in transaction.all(load("attempts"), (request.job_id,))]


def list_dead_letters(transaction: Transaction, request: ListDeadLetters) -> Page[DeadLetter]:
    """See store.reading.ListDeadLetters."""
    after_at, after_id = _cursor(request.after, 2)
    values = {
        "triage": _some(request.triage),
        "queues": _some(request.queues),
        "kinds": _some(request.kinds),
        "ids": _some(request.ids),
        "fingerprint": request.fingerprint,
        "job_id": request.job_id,
        "after_at": after_at,
        "after_id": after_id,
    }
    return _page(
        transaction, "dead_letters", values, request.limit, rows.dead_letter, lambda row: json.dumps([row[11], row[0]])
    )


def group_dead_letters(transaction: Transaction, request: GroupDeadLetters) -> list[DeadLetterGroup]:
    """See store.reading.GroupDeadLetters."""
    check_limit(request.limit)
    values = {"triage": _some(request.triage), "limit": request.limit}
    return [
        DeadLetterGroup(fingerprint, kind, queue, letters, pending, from_us(first), from_us(last), error, job_id)
        for fingerprint, kind, queue, letters, pending, first, last, error, job_id in transaction.all(
            load("dead_letter_groups"), values
        )
    ]


def list_queues(transaction: Transaction, request: ListQueues) -> list[QueueRow]:
    """See store.reading.ListQueues."""
    cursor = transaction.run(load("queues"), {"names": _some(request.names)})
    names = [column[0] for column in cursor.description]
    return [rows.queue(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def list_gates(transaction: Transaction, _request: ListGates) -> list[Gate]:
    """See store.reading.ListGates."""
    return [rows.gate(row) for row in transaction.all(load("gates"))]


def list_workers(transaction: Transaction, _request: ListWorkers) -> list[WorkerSeen]:
    """See store.reading.ListWorkers."""
    return [rows.worker(row) for row in transaction.all(load("workers"), {"now": transaction.now})]


def list_events(transaction: Transaction, request: ListEvents) -> list[Event]:
    """See store.reading.ListEvents."""
    check_limit(request.limit)
    values = {
        "after": request.after,
        "job_id": request.job_id,
        "queues": _some(request.queues),
        "kinds": _some(request.kinds),
        "limit": request.limit,
    }
    statement = "events" if request.job_id is None else "events_of_job"
    return [rows.event(row) for row in transaction.all(load(statement), values)]


def list_audit(transaction: Transaction, request: ListAudit) -> list[Audit]:
    """See store.reading.ListAudit."""
    check_limit(request.limit)
    values = {"subject": request.subject, "limit": request.limit}
    return [rows.audit(row) for row in transaction.all(load("audit"), values)]


def list_effects(transaction: Transaction, request: ListEffects) -> Page[Effect]:
    """See store.reading.ListEffects."""
    after_job, after_step, after_name = _cursor(request.after, 3)
    values = {
        "job_id": request.job_id,
        "states": _some(request.states),
        "after_job": after_job,
        "after_step": after_step,
        "after_name": after_name,
    }
    return _page(transaction, "effects", values, request.limit, rows.effect, lambda row: json.dumps(row[:3]))


def _page(
    transaction: Transaction,
    statement: str,
    values: dict[str, Any],
    limit: int,
    make: Callable[[Row], T],
    cursor: Callable[[Row], str],
) -> Page[T]:
    """One row more than asked for tells whether there is a next page."""
    check_limit(limit)
    found = transaction.all(load(statement), {**values, "limit": limit + 1})
    items = [make(row) for row in found[:limit]]
    return Page(items, cursor(found[limit - 1]) if len(found) > limit > 0 else None)


def _cursor(after: str | None, parts: int) -> Sequence[Any]:
    if after is None:
        return (None,) * parts
    try:
        values = json.loads(after)
    except ValueError:
        values = None
    if not isinstance(values, list) or len(values) != parts:
        raise InvalidArgument(f"after: {after!r} is not what `next` of an earlier page said.")
    return values


def _some(values: Sequence[Any]) -> str | None:
    """A JSON array for a filter; None, which lets all through, if it is empty."""
    return json.dumps(list(values)) if values else None
