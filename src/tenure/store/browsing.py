"""What a page that people look at asks of a store: the newest jobs with counts beside them, and deaths to be grouped.

Reads that change nothing, and whose cost has a bound whatever the database holds: each looks at the newest `scan` rows
and says whether there were more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, TypeVar

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, WorkerId
from tenure.model.job import Job
from tenure.store.contract import Request

T = TypeVar("T")

_LOOK_SECONDS: Final[ContextVar[float | None]] = ContextVar("look_seconds", default=None)


@contextmanager
def bounded_looks(seconds: float) -> Iterator[None]:
    """Within it, a read by `Store.do` or `Store.ado` that takes longer is stopped by the engine and raises TooWide.

    PostgreSQL stops it by `statement_timeout`. SQLite stops it by its progress handler, and takes the processor time of
    the reading thread, of which the process may have little on a busy machine; by the clock it may take five times as
    long. Reads outside cost nothing more.
    """
    kept = _LOOK_SECONDS.set(seconds)
    try:
        yield
    finally:
        _LOOK_SECONDS.reset(kept)


def within_look(call: Callable[..., T]) -> Callable[..., T]:
    """`call` for a thread of a pool, with the bound of the task that hands it over."""
    seconds = look_seconds()
    if seconds is None:
        return call

    def bounded(*given: Any) -> T:
        with bounded_looks(seconds):
            return call(*given)

    return bounded


def look_seconds() -> float | None:
    """How long a read may take here; None: as long as it takes."""
    return _LOOK_SECONDS.get()


@frozen
class Browsed:
    """The answer to a BrowseJobs."""

    at: datetime
    """The store's clock."""
    items: list[Job]
    counts: Mapping[str, int]
    """Jobs that match all but `states`, by their shown state (`retry_waiting` and `cleaned` among them)."""
    scanned: int
    """How many jobs were looked at."""
    next: JobId | None
    """Goes on from here, as `after`; None if nothing is left to look at."""
    last: JobId | None
    """The last job that was looked at: `after` of a look that goes on behind this one."""
    is_whole: bool
    """Whether the counts cover all jobs that are there, below `after`; otherwise only the newest `scanned`."""


@frozen
class BrowseJobs(Request[Browsed]):
    """The newest jobs that match, and how many match by state, from one look at the newest `scan` jobs below `after`.

    With `workflow_id`, `parent_id` or `worker` the look is at those that carry it, through their index. A page that
    is not full although there is a `next` says that the scan ended first: further matches may lie beyond it.
    `states` are shown states. `error` is looked for as it is, in any case of letters.
    """

    states: Sequence[str] = ()
    stored_states: Sequence[str] = ()
    """Only jobs in one of these states as they are stored, or in `retry_waiting` or `cleaned` as they are shown: the
    words of ListJobs. The counts are of those alone."""
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    key: str | None = None
    tenant: str | None = None
    error: str | None = None
    workflow_id: str | None = None
    parent_id: JobId | None = None
    worker: WorkerId | None = None
    since: datetime | None = None
    """Only jobs created at this moment or later."""
    limit: int = 50
    scan: int = 10_000
    after: JobId | None = None


@frozen
class Death:
    """A dead letter without what it carries: enough to group and to plot it."""

    id: str
    job_id: JobId
    queue: str
    kind: str
    failure_class: str
    fingerprint: str
    triage: str
    attempts: int
    moved_at: datetime
    triaged_at: datetime | None
    triaged_by: str | None
    triage_note: str | None
    owner: str | None
    error: str
    """The first 500 characters."""


@frozen
class ListDeaths(Request[list[Death]]):
    """The newest dead letters of one triage, newest first, `scan` of them at most."""

    triage: str
    scan: int = 2_000
    fingerprint: str | None = None
