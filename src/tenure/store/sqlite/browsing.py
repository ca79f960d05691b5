"""Reads for pages. See store.browsing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us, to_us
from tenure.model.ids import JobId
from tenure.store.browsing import Browsed, BrowseJobs, Death, ListDeaths
from tenure.store.queries import GetJobs
from tenure.store.sqlite import queries
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("browsing")


def browse_jobs(transaction: Transaction, request: BrowseJobs) -> Browsed:
    """See store.browsing.BrowseJobs."""
    _check(request.limit, request.scan)
    values = _values(request)
    look = _look(request)
    if look is None:
        scanned, first, last = transaction.one(_SQL["browse_span"], values) or (0, None, None)
        found = transaction.one(_SQL["browse_matching"], values | {"first": first, "last": last})
    else:
        ids = [str(row[0]) for row in transaction.all(_SQL[look], values)]
        scanned, last = len(ids), ids[-1] if ids else None
        found = transaction.one(_SQL["browse_those"], values | {"ids": json.dumps(ids)})
    assert found is not None
    counts, chosen = json.loads(found[0]), sorted(json.loads(found[1]), reverse=True)
    page = [JobId(job_id) for job_id in chosen[: request.limit]]
    is_whole = scanned < request.scan
    return Browsed(
        at=from_us(transaction.now),
        items=[job for job in queries.get_jobs(transaction, GetJobs(page)) if job is not None],
        counts=counts,
        scanned=scanned,
        next=page[-1] if len(chosen) > len(page) else None if is_whole else JobId(last),
        last=None if last is None else JobId(last),
        is_whole=is_whole,
    )


def list_deaths(transaction: Transaction, request: ListDeaths) -> list[Death]:
    """See store.browsing.ListDeaths."""
    _check(1, request.scan)
    statement = _SQL["deaths" if request.fingerprint is None else "deaths_of_group"]
    values = {"triage": request.triage, "scan": request.scan, "fingerprint": request.fingerprint}
    return [
        Death(*row[:8], *(None if at is None else from_us(at) for at in row[8:10]), *row[10:])
        for row in transaction.all(statement, values)
    ]


def _check(limit: int, scan: int) -> None:
    if limit < 1 or scan < 1:
        raise InvalidArgument(f"The limit and the scan must be at least 1, not {min(limit, scan)}.")


def _look(request: BrowseJobs) -> str | None:
    """The statement that finds the ids of those to look at by an index; None: the newest are looked at."""
    if request.parent_id is not None:
        return "browse_parent"
    if request.workflow_id is not None:
        return "browse_workflow"
    return None if request.worker is None else "browse_held"


def _values(request: BrowseJobs) -> dict[str, Any]:
    return {
        "states": _some(request.states),
        "limit": request.limit,
        "stored_states": _some(request.stored_states),
        "queues": _some(request.queues),
        "kinds": _some(request.kinds),
        "key": request.key,
        "tenant": request.tenant,
        "error": request.error,
        "workflow_id": request.workflow_id,
        "parent_id": request.parent_id,
        "worker": request.worker,
        "since": None if request.since is None else to_us(request.since),
        "scan": request.scan,
        "after": request.after,
    }


def _some(values: Sequence[str]) -> str | None:
    return json.dumps(list(values)) if values else None


READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {BrowseJobs: browse_jobs, ListDeaths: list_deaths}
