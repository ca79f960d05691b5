"""How it goes: the six questions that specification 004 asks of a queue, and what a live screen shows.

1. What is outstanding? 2. What failed and why? 3. Is anything stuck? 4. How long do jobs take? 5. Are there duplicates?
6. What ran in the last hour? Each is answered by the database at the moment of asking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.state import ACTIVE, HELD
from tenure.store.contract import Prune, Pruned, Store
from tenure.store.gauges import CAP_MAX, ReadQuotaUse
from tenure.store.gauges import QuotaUse as QuotaUse  # noqa: PLC0414 - the doors reach the store through here
from tenure.store.metrics import ListMetrics, Metric
from tenure.store.queries import (
    Count,
    CountJobs,
    DeadLetterGroup,
    Gate,
    GroupDeadLetters,
    ListGates,
    ListJobs,
    ListQueues,
    ListWorkers,
    QueueRow,
    WorkerSeen,
)
from tenure.store.summary import Backlog, Inspect, Prunable, Summary, Summed

HOUR = 3600.0


@frozen
class Overview:
    """Answers to the six questions."""

    outstanding: list[Count]
    """Jobs still to do, by queue, kind and state (1)."""
    failures: list[DeadLetterGroup]
    """Pending dead letters by what they died of, the largest group first (2)."""
    summary: Summed
    """Stuck (3), how long (4), repeated keys (5), what ran in the window (6)."""
    minutes: list[Metric]
    """What happened minute by minute, newest first, where it was asked for."""


def overview(
    store: Store,
    *,
    window_seconds: float = HOUR,
    queues: Sequence[str] = (),
    limit: int = 20,
    minutes: int = 0,
    scan: int | None = None,
) -> Overview:
    """Ask the six questions; with `minutes`, also what was counted in the last so many. `scan` bounds how many ended
    jobs are looked at."""
    failures = store.do(GroupDeadLetters(limit=limit))
    return Overview(
        outstanding=store.do(CountJobs(queues=queues, states=sorted(ACTIVE))),
        failures=[one for one in failures if not queues or one.queue in queues],
        summary=store.do(Summary(window_seconds=window_seconds, queues=queues, limit=limit, scan=scan)),
        minutes=_all_minutes(store, minutes, queues) if minutes else [],
    )


def backlogs(store: Store, queues: Sequence[str] = ()) -> dict[str, Backlog]:
    """What is to do, by queue. Nothing that has ended is looked at."""
    return {one.queue: one for one in store.do(Summary(queues=queues, limit=1, scan=1)).backlog}


def _all_minutes(store: Store, minutes: int, queues: Sequence[str]) -> list[Metric]:
    """Every counted minute, page by page."""
    request = ListMetrics(minutes, queues)
    found = page = store.do(request)
    while len(page) == request.limit:
        page = store.do(replace(request, after=(page[-1].minute, page[-1].queue)))
        found = found + page
    return found


@frozen
class Glance:
    """What a live screen shows at one moment."""

    summary: Summed
    queues: list[QueueRow]
    gates: list[Gate]
    workers: list[WorkerSeen]
    held: list[Job]
    failures: list[DeadLetterGroup]


def glance(store: Store, *, window_seconds: float = 300.0, held: int = 15) -> Glance:
    """Look once."""
    return Glance(
        summary=store.do(Summary(window_seconds=window_seconds, limit=5)),
        queues=store.do(ListQueues()),
        gates=store.do(ListGates()),
        workers=store.do(ListWorkers()),
        held=store.do(ListJobs(states=sorted(HELD), limit=held)).items,
        failures=store.do(GroupDeadLetters(limit=5)),
    )


def usage_of(store: Store, cap: int) -> QuotaUse:
    """What a database holds, each count up to `cap`: for quotas."""
    return store.do(ReadQuotaUse(min(CAP_MAX, cap)))


def schema_versions(store: Store) -> tuple[int, int]:
    """The schema's version, and the one that this Tenure wants. Raises: SchemaError (the applied text differs)."""
    return store.schema_version(), store.do(Inspect()).schema_wanted


def prunable(
    store: Store,
    *,
    older_than: float | None = None,
    delete_after: float | None = None,
    worker_after: float = 86_400.0,
    metric_after: float = 2_592_000.0,
) -> Pruned:
    """What a prune with these arguments would remove."""
    prune = Prune(
        older_than_seconds=older_than,
        delete_after_seconds=delete_after,
        worker_seconds=worker_after,
        metric_seconds=metric_after,
    )
    return store.do(Prunable(prune))
