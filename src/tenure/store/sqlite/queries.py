"""Reads: one request, one short transaction, bounded answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us
from tenure.model.event import Event
from tenure.model.ids import JobId
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.state import ACTIVE
from tenure.store.contract import Pruned
from tenure.store.queries import (
    Audit,
    Count,
    CountJobs,
    DeadLetterGroup,
    Effect,
    Followed,
    FollowEvents,
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
from tenure.store.sqlite import codec, migrate
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit
from tenure.store.summary import (
    Backlog,
    Inspect,
    Inspection,
    LastMove,
    Prunable,
    PruneLag,
    Ran,
    Repeated,
    Standing,
    Stood,
    Stuck,
    Summary,
    Summed,
)

T = TypeVar("T")

_SQL: Final = load("queries")
_SYNCHRONOUS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")

_LAST: Final = 2**63 - 1

GET_AT_ONCE: Final = 1000
"""Ids looked up by one statement."""


def get_jobs(transaction: Transaction, request: GetJobs) -> list[Job | None]:
    """See store.queries.GetJobs."""
    found: dict[str, Job] = {}
    for first in range(0, len(request.job_ids), GET_AT_ONCE):
        ids = json.dumps(list(request.job_ids[first : first + GET_AT_ONCE]))
        found.update((row[0], codec.job(row)) for row in transaction.all(_SQL["jobs_by_id"], {"ids": ids}))
    return [found.get(job_id) for job_id in request.job_ids]


def list_jobs(transaction: Transaction, request: ListJobs) -> Page[Job]:
    """See store.queries.ListJobs."""
    statement = _SQL["jobs_list"]
    if request.parent_id is not None:
        statement = _SQL["jobs_list_parent"]
    elif request.workflow_id is not None:
        statement = _SQL["jobs_list_workflow"]
    elif request.worker is not None:
        statement = _SQL["jobs_list_held"]
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
    page = _page(transaction, statement, values, request.limit, lambda row: JobId(row[0]), lambda row: str(row[0]))
    return Page([job for job in get_jobs(transaction, GetJobs(page.items)) if job is not None], page.next)


def count_jobs(transaction: Transaction, request: CountJobs) -> list[Count]:
    """See store.queries.CountJobs."""
    values = {"queues": _some(request.queues), "states": _some(request.states)}
    statement = _SQL["count_live" if request.states and ACTIVE.issuperset(request.states) else "count"]
    return [
        Count(queue, kind, state, jobs, from_us(oldest))
        for queue, kind, state, jobs, oldest in transaction.all(statement, values)
    ]


def list_attempts(transaction: Transaction, request: ListAttempts) -> list[Attempt]:
    """See store.queries.ListAttempts."""
    return [codec.attempt(row) for row in transaction.all(_SQL["attempts"], (request.job_id,))]


def list_dead_letters(transaction: Transaction, request: ListDeadLetters) -> Page[DeadLetter]:
    """See store.queries.ListDeadLetters."""
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
        transaction,
        _SQL["dead_letters"],
        values,
        request.limit,
        codec.dead_letter,
        lambda row: json.dumps([row[11], row[0]], separators=(",", ":")),
    )


def group_dead_letters(transaction: Transaction, request: GroupDeadLetters) -> list[DeadLetterGroup]:
    """See store.queries.GroupDeadLetters."""
    check_limit(request.limit)
    values = {"triage": _some(request.triage), "limit": request.limit}
    return [
        DeadLetterGroup(fingerprint, kind, queue, letters, pending, from_us(first), from_us(last), error, job_id)
        for fingerprint, kind, queue, letters, pending, first, last, error, job_id in transaction.all(
            _SQL["dead_letter_groups"], values
        )
    ]


def list_queues(transaction: Transaction, request: ListQueues) -> list[QueueRow]:
    """See store.queries.ListQueues."""
    cursor = transaction.run(_SQL["queues"], {"names": _some(request.names)})
    names = [column[0] for column in cursor.description]
    return [codec.queue(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def list_gates(transaction: Transaction, _request: ListGates) -> list[Gate]:
    """See store.queries.ListGates."""
    return [codec.gate(row) for row in transaction.all(_SQL["gates"])]


def list_workers(transaction: Transaction, _request: ListWorkers) -> list[WorkerSeen]:
    """See store.queries.ListWorkers."""
    return [codec.worker(row) for row in transaction.all(_SQL["workers"], {"now": transaction.now})]


def list_events(transaction: Transaction, request: ListEvents) -> list[Event]:
    """See store.queries.ListEvents."""
    check_limit(request.limit)
    return _events(transaction, request, request.after, _LAST, request.limit)


def follow_events(transaction: Transaction, request: FollowEvents) -> Followed:
    """See store.queries.FollowEvents. There is one writer, so numbers are committed in order: a place is a number."""
    if request.limit < 1:
        raise InvalidArgument(f"limit: expected 1 or more, got {request.limit}.")
    (newest,) = transaction.one(_SQL["newest_event"]) or (0,)
    since = _place(request.place)
    until = _place(request.until)
    if since is None and request.after is None:
        return Followed([], str(newest), False, newest)
    behind = since if since is not None else request.after or 0
    last = until if until is not None else max(newest, since or 0)
    found = _events(transaction, request, behind, last, request.limit + 1)
    page = found[: request.limit]
    more = len(found) > request.limit
    return Followed(page, str(page[-1].seq if more else last), more, newest)


def _events(
    transaction: Transaction, request: ListEvents | FollowEvents, after: int, until: int, limit: int
) -> list[Event]:
    values = {
        "after": after,
        "until": until,
        "job_id": request.job_id,
        "queues": _some(request.queues),
        "kinds": _some(request.kinds),
        "limit": limit,
    }
    statement = _SQL["events"] if request.job_id is None else _SQL["events_of_job"]
    return [codec.event(row) for row in transaction.all(statement, values)]


def _place(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) > _LAST:
        raise InvalidArgument(f"{text[:80]!r} is no place among this database's events. Begin anew without it.")
    return int(text)


def list_audit(transaction: Transaction, request: ListAudit) -> list[Audit]:
    """See store.queries.ListAudit."""
    check_limit(request.limit)
    values = {"subject": request.subject, "before": request.before, "limit": request.limit}
    statement = _SQL["audit" if request.subject is None else "audit_of"]
    return [codec.audit(row) for row in transaction.all(statement, values)]


def list_effects(transaction: Transaction, request: ListEffects) -> Page[Effect]:
    """See store.queries.ListEffects."""
    after_job, after_step, after_name = _cursor(request.after, 3)
    values = {
        "job_id": request.job_id,
        "states": _some(request.states),
        "after_job": after_job,
        "after_step": after_step,
        "after_name": after_name,
    }
    return _page(transaction, _SQL["effects"], values, request.limit, codec.effect, lambda row: json.dumps(row[:3]))


def _page(
    transaction: Transaction,
    statement: str,
    values: dict[str, Any],
    limit: int,
    make: Callable[[Row], T],
    cursor: Callable[[Row], str],
) -> Page[T]:
    """One row more than asked for tells whether there is a next page."""
    check_limit(limit, 1)
    found = transaction.all(statement, {**values, "limit": limit + 1})
    items = [make(row) for row in found[:limit]]
    return Page(items, cursor(found[limit - 1]) if len(found) > limit else None)


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


# --- looks at the whole database --------------------------------------------------------------------------------------


def summarize(transaction: Transaction, request: Summary) -> Summed:
    """See store.summary.Summary."""
    check_limit(request.limit)
    if request.scan is not None and request.scan < 1:
        raise InvalidArgument(f"The scan must be at least 1, not {request.scan}.")
    values: dict[str, Any] = {
        "now": transaction.now,
        "since": transaction.now - round(request.window_seconds * 1_000_000),
        "queues": json.dumps(list(request.queues)) if request.queues else None,
        "limit": request.limit,
    }
    is_whole = True
    if request.scan is not None:
        beyond = transaction.one(_SQL["summary_since"], {**values, "scan": request.scan})
        if beyond is not None:
            values["since"], is_whole = beyond[0], False
    stuck = transaction.all(_SQL["summary_stuck"], {**values, "limit": max(request.limit, 1)})
    return Summed(
        at=from_us(transaction.now),
        window_seconds=request.window_seconds if is_whole else (transaction.now - values["since"]) / 1e6,
        is_whole=is_whole,
        ran=[Ran(*(*row[:-1], from_us(row[-1]))) for row in transaction.all(_SQL["summary_ran"], values)],
        stuck_count=stuck[0][0] if stuck else 0,
        stuck=[Stuck(*(*row[1:-1], from_us(row[-1]))) for row in stuck[: request.limit]],
        backlog=[
            Backlog(*(*row[:-1], codec.moment(row[-1]))) for row in transaction.all(_SQL["summary_backlog"], values)
        ],
        repeated=[Repeated(*row) for row in transaction.all(_SQL["summary_repeated"], values)],
    )


def stand(transaction: Transaction, request: Standing) -> Stood | None:
    """See store.summary.Standing."""
    check_limit(request.cap)
    row = transaction.one(_SQL["standing"], {"job_id": request.job_id, "cap": request.cap})
    return None if row is None else Stood(from_us(transaction.now), *row)


def inspect(transaction: Transaction, _request: Inspect) -> Inspection:
    """See store.summary.Inspect."""
    row = transaction.one(_SQL["inspect"])
    assert row is not None
    version, size, free, journal_mode, synchronous, path = row
    schema = migrate.version(transaction, None)
    newest, last_event = (transaction.one(_SQL["inspect_jobs"]) if schema else None) or (None, 0)
    moved = transaction.one(_SQL["last_move"]) if schema else None
    wal = Path(f"{path}-wal")
    return Inspection(
        engine="sqlite",
        version=version,
        at=from_us(transaction.now),
        schema_version=schema,
        schema_wanted=migrate.newest(),
        database_bytes=size,
        free_bytes=free,
        wal_bytes=wal.stat().st_size if wal.exists() else 0,
        path=path,
        journal_mode=journal_mode,
        synchronous=_SYNCHRONOUS[synchronous],
        newest_created_at=codec.moment(newest),
        last_event=last_event,
        last_move=LastMove(*moved) if moved else None,
    )


def prune_lag(transaction: Transaction, request: PruneLag) -> float:
    """See store.summary.PruneLag."""
    (late,) = transaction.one(_SQL["prune_lag"], {"now": transaction.now, "scan": request.scan}) or (None,)
    return (late or 0) / 1_000_000


def count_prunable(transaction: Transaction, request: Prunable) -> Pruned:
    """See store.summary.Prunable."""
    row = transaction.one(
        _SQL["prunable"],
        {
            "now": transaction.now,
            "older_than_seconds": request.prune.older_than_seconds,
            "delete_after_seconds": request.prune.delete_after_seconds,
            "worker_seconds": request.prune.worker_seconds,
            "metric_seconds": request.prune.metric_seconds,
        },
    )
    assert row is not None
    cleaned, deleted, events, workers, metrics, memories = row
    return Pruned(cleaned, deleted, events, workers, more=False, metrics=metrics, memories=memories)
