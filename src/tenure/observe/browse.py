"""What pages show of many jobs: the newest that match with counts beside them, deaths grouped by what they died of,
and the whole database at a glance. Every look has a bound, whatever the database holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, WorkerId
from tenure.model.outcome import Triage
from tenure.model.step import Step
from tenure.store.browsing import Browsed, BrowseJobs, ListDeaths
from tenure.store.browsing import Death as Death  # noqa: PLC0414 - pages reach the store through here
from tenure.store.browsing import bounded_looks as bounded_looks  # noqa: PLC0414 - pages reach the store through here
from tenure.store.contract import Store
from tenure.store.flow import ListSteps
from tenure.store.metrics import SPANS, ListMetrics, ReadMetrics, Span, SpanCounts
from tenure.store.metrics import Metric as Metric  # noqa: PLC0414 - pages reach the store through here
from tenure.store.queries import (
    FollowEvents,
    Gate,
    ListEvents,
    ListGates,
    ListQueues,
    ListWorkers,
    QueueRow,
    WorkerSeen,
)
from tenure.store.summary import Inspect, Inspection, PruneLag, Summary, Summed

SCAN: Final = 10_000
"""How many jobs one look at the list takes in."""
BOARD_SCAN: Final = 2_000
"""How many ended jobs the look at the whole database takes in: enough to tell how long jobs take and wait."""
TREND_BUCKETS: Final = 16
METRIC_ROWS: Final = 10_000
"""Half an hour of minutes of three hundred queues."""
SUMS: Final = 2_000
"""Spans of time that a chart may have: a day of minutes, thirty days of hours."""
DEATHS: Final = 2_000
"""How many letters of each triage are looked at."""


@frozen
class JobFilter:
    """Which jobs a page shows. See store.browsing.BrowseJobs."""

    states: Sequence[str] = ()
    stored_states: Sequence[str] = ()
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    key: str | None = None
    tenant: str | None = None
    error: str | None = None
    workflow_id: str | None = None
    parent_id: str | None = None
    worker: str | None = None
    since: datetime | None = None


def browse(store: Store, wanted: JobFilter, *, limit: int, scan: int = SCAN, after: str | None = None) -> Browsed:
    """The newest jobs that match, and how many match by state."""
    return store.do(
        BrowseJobs(
            states=wanted.states,
            stored_states=wanted.stored_states,
            queues=wanted.queues,
            kinds=wanted.kinds,
            key=wanted.key,
            tenant=wanted.tenant,
            error=wanted.error,
            workflow_id=wanted.workflow_id,
            parent_id=None if wanted.parent_id is None else JobId(wanted.parent_id),
            worker=None if wanted.worker is None else WorkerId(wanted.worker),
            since=wanted.since,
            limit=limit,
            scan=scan,
            after=None if after is None else JobId(after),
        )
    )


@frozen
class DeathGroup:
    """Deaths that look alike, in one triage."""

    fingerprint: str
    triage: str
    title: str
    """The error's class, or the failure class where it has none."""
    message: str
    letters: int
    kinds: Sequence[str]
    queues: Sequence[str]
    first_at: datetime
    last_at: datetime
    last_hour: int
    trend: Sequence[int]
    """Deaths from the group's first to now, in TREND_BUCKETS steps."""
    owner: str | None
    """Who takes care of it: who was named last, else who triaged it last."""
    decided_at: datetime | None
    note: str | None
    sample_job_id: JobId


@frozen
class DeathColumn:
    """The groups of one triage, most letters first."""

    triage: str
    groups: Sequence[DeathGroup]
    letters: int
    is_whole: bool
    """Whether all letters of this triage were looked at; otherwise the newest DEATHS."""


def death_board(store: Store, now: datetime) -> list[DeathColumn]:
    """Every triage with its groups."""
    columns = []
    for triage in Triage:
        deaths = store.do(ListDeaths(triage.value, scan=DEATHS))
        groups = group_deaths(deaths, now)
        columns.append(DeathColumn(triage.value, groups, len(deaths), len(deaths) < DEATHS))
    return columns


def deaths_of(store: Store, fingerprint: str, limit: int = DEATHS) -> list[Death]:
    """The letters of one fingerprint that are not closed, and then the closed ones, newest first each."""
    found: list[Death] = []
    for triage in Triage:
        found += store.do(ListDeaths(triage.value, scan=limit, fingerprint=fingerprint))
    return found


def group_deaths(deaths: Sequence[Death], now: datetime) -> list[DeathGroup]:
    """Deaths by fingerprint, most letters first."""
    by_print: dict[str, list[Death]] = {}
    for death in deaths:
        by_print.setdefault(death.fingerprint, []).append(death)
    groups = [_group(members, now) for members in by_print.values()]
    return sorted(groups, key=lambda one: (-one.letters, one.fingerprint))


def _group(members: Sequence[Death], now: datetime) -> DeathGroup:
    newest = max(members, key=lambda one: one.moved_at)
    decided = max(members, key=lambda one: (one.triaged_at is not None, one.triaged_at or one.moved_at))
    title, message = split_error(newest.error, newest.failure_class)
    first = min(one.moved_at for one in members)
    return DeathGroup(
        fingerprint=newest.fingerprint,
        triage=newest.triage,
        title=title,
        message=message,
        letters=len(members),
        kinds=sorted({one.kind for one in members}),
        queues=sorted({one.queue for one in members}),
        first_at=first,
        last_at=newest.moved_at,
        last_hour=sum(1 for one in members if one.moved_at > now - timedelta(hours=1)),
        trend=trend([one.moved_at for one in members], first, now),
        owner=decided.owner or next((one.owner for one in members if one.owner), decided.triaged_by),
        decided_at=decided.triaged_at,
        note=decided.triage_note,
        sample_job_id=newest.job_id,
    )


def split_error(error: str, failure_class: str) -> tuple[str, str]:
    """The class and the message of an error: `ValueError: no such part` → (`ValueError`, `no such part`).

    Of a traceback the last line says it.
    """
    lines = [line for line in error.strip().splitlines() if line.strip()]
    if not lines:
        return failure_class, "no error was written down"
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    name, colon, rest = line.partition(": ")
    is_class = bool(colon) and name.replace(".", "_").isidentifier() and len(name) <= 80
    return (name.rpartition(".")[2], rest) if is_class else (failure_class, line)


def trend(moments: Sequence[datetime], first: datetime, now: datetime, buckets: int = TREND_BUCKETS) -> list[int]:
    """How many of the moments lie in each of the equal steps from `first` to `now`."""
    width = max((now - first).total_seconds(), 1.0) / buckets
    counts = [0] * buckets
    for moment in moments:
        counts[min(max(int((moment - first).total_seconds() / width), 0), buckets - 1)] += 1
    return counts


@frozen
class Board:
    """The whole database at a glance."""

    summary: Summed
    queues: list[QueueRow]
    gates: list[Gate]
    workers: list[WorkerSeen]
    deaths: list[Death]
    """Pending ones, the newest DEATHS."""
    groups: list[DeathGroup]
    """The same by what they died of."""
    groups_are_whole: bool


def board(store: Store, *, window_seconds: float = 3600.0, scan: int = BOARD_SCAN) -> Board:
    """Look once. Of the jobs that ended within the window at most `scan` are looked at."""
    summary = store.do(Summary(window_seconds=window_seconds, limit=20, scan=scan))
    deaths = store.do(ListDeaths(Triage.PENDING.value, scan=DEATHS))
    return Board(
        summary=summary,
        queues=store.do(ListQueues()),
        gates=store.do(ListGates()),
        workers=store.do(ListWorkers()),
        deaths=deaths,
        groups=group_deaths(deaths, summary.at),
        groups_are_whole=len(deaths) < DEATHS,
    )


def minutes(store: Store, count: int, queues: Sequence[str] = ()) -> list[Metric]:
    """What was counted in the last so many minutes, newest first."""
    return store.do(ListMetrics(count, queues, METRIC_ROWS))


def sums(
    store: Store, since: datetime, coarsest: Span, queues: Sequence[str] = ()
) -> tuple[list[SpanCounts], datetime | None]:
    """What was counted since then over these queues, or all, in rows of `coarsest` as far as those are folded and of
    finer ones behind that, oldest first; and up to when anything is counted."""
    rows: list[SpanCounts] = []
    begin, until = since, None
    for span in reversed(SPANS[: SPANS.index(coarsest) + 1]):
        found = store.do(ReadMetrics(span, begin, queues=queues, limit=SUMS, is_summed=True))
        rows += found.rows
        folded = {"minute": found.counted_until, "hour": found.hour_until, "day": found.day_until}[span]
        begin, until = max(begin, folded or begin), found.counted_until
    return rows, until


def newest_events(store: Store, count: int) -> list[Event]:
    """The newest events, newest first."""
    last = store.do(FollowEvents()).newest
    found = store.do(ListEvents(after=max(0, last - 20 * count), limit=20 * count))
    return found[::-1][:count]


def first_steps(store: Store, job_id: str, limit: int) -> list[Step]:
    """The first steps of a durable job, in the order of their first records."""
    return store.do(ListSteps(JobId(job_id), 0, limit))


def inspect(store: Store) -> Inspection:
    """What the engine says about itself."""
    return store.do(Inspect())


def prune_lag(store: Store) -> float:
    """How many seconds retention is late."""
    return store.do(PruneLag())
