"""Which jobs an act on all that match means: looks of bounded size through a frozen filter, newest first.

A job is meant if it matches, existed when the act was asked for, and is in a state from which the act can move it. Both
the count before the act and the act itself go through here, so they cannot differ in what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, WorkerId
from tenure.model.job import Job
from tenure.model.outcome import Triage
from tenure.model.state import ACTIVE, State
from tenure.store.browsing import BrowseJobs
from tenure.store.queries import GetJobs, ListAudit, ListDeadLetters

if TYPE_CHECKING:
    from tenure.effects.bulk_payload import BulkAct

LOOK: Final = 500
"""Jobs that one look goes through; those that are meant come with their payloads."""
WINDOW: Final = 10_000
"""Jobs that one look goes through to count them."""
AUDIT: Final = 2_000
"""Audit rows of one look."""
REVIVABLE: Final = frozenset({State.FAILED, State.DEAD, State.CANCELLED})
OPEN: Final = (Triage.PENDING.value, Triage.ACKNOWLEDGED.value, Triage.ESCALATED.value)
"""What can be decided about letters that were not replayed yet."""

Do = Callable[[Any], Any]
"""Asks the store."""


@frozen
class Look:
    """What one look found. `next` goes on from here; None: that was all."""

    ids: list[JobId]
    next: str | None


def mark(reason: str, act_id: str) -> str:
    """The reason in the audit row of each job: an undo finds the jobs of an act by it."""
    return f"{reason} (bulk {act_id})"


def looks(do: Do, act: BulkAct, after: str | None = None, *, own: str | None = None) -> Iterator[Look]:
    """The jobs that are meant, look by look, from a place on. `own` is the act's own job, which it never means."""
    find = _cancelled_by if act.undoes is not None else _letters if act.filter.fingerprint is not None else _jobs
    while True:
        look = find(do, act, after)
        yield Look([one for one in dict.fromkeys(look.ids) if one != own], look.next)
        if look.next is None:
            return
        after = look.next


def counts(do: Do, act: BulkAct) -> Iterator[int]:
    """How many jobs are meant, a number for each look: shorter ones than those of the act, where an index allows it."""
    if act.undoes is not None or act.filter.fingerprint is not None:
        for look in looks(do, act):
            yield len(look.ids)
        return
    after: JobId | None = None
    while True:
        window = do(_browsing(act, after, limit=1, scan=WINDOW))
        yield sum(window.counts.get(state, 0) for state in _states(act))
        if window.is_whole:
            return
        after = window.last


def _states(act: BulkAct) -> list[str]:
    """The shown states of jobs that are meant."""
    able = [*ACTIVE, "retry_waiting"] if act.act == "cancel" else [*REVIVABLE]
    chosen = act.filter
    asked = {*chosen.shown, *chosen.state} | ({"retry_waiting"} if "queued" in chosen.state else set())
    return [str(state) for state in able if not asked or state in asked]


def _browsing(act: BulkAct, after: JobId | None, *, limit: int, scan: int) -> BrowseJobs:
    chosen = act.filter
    return BrowseJobs(
        states=_states(act),
        queues=chosen.queue,
        kinds=chosen.kind,
        key=chosen.key,
        tenant=chosen.tenant,
        error=chosen.error,
        workflow_id=chosen.workflow,
        parent_id=None if chosen.parent is None else JobId(chosen.parent),
        worker=None if chosen.worker is None else WorkerId(chosen.worker),
        since=chosen.since,
        limit=limit,
        scan=scan,
        after=after,
    )


def _jobs(do: Do, act: BulkAct, after: str | None) -> Look:
    found = do(_browsing(act, None if after is None else JobId(after), limit=LOOK, scan=LOOK))
    return Look(_meant(found.items, act), None if found.is_whole else found.last)


def _letters(do: Do, act: BulkAct, after: str | None) -> Look:
    """The jobs of a group of dead letters that are still where they died."""
    chosen = act.filter
    page = do(
        ListDeadLetters(
            triage=OPEN,
            queues=chosen.queue,
            kinds=chosen.kind,
            fingerprint=chosen.fingerprint,
            limit=LOOK,
            after=after,
        )
    )
    ids = [letter.job_id for letter in page.items if letter.moved_at <= act.frozen_at]
    found = do(GetJobs(list(dict.fromkeys(ids)))) if ids else []
    return Look(_meant((job for job in found if job is not None), act), page.next)


def _cancelled_by(do: Do, act: BulkAct, after: str | None) -> Look:
    """The jobs that another act cancelled, as the audit tells, from the newest row back to when that act was asked for.

    A job that was revived and cancelled again since is not meant: the moment of its cancel is another one.
    """
    rows = do(ListAudit(before=None if after is None else int(after), limit=AUDIT))
    at = {
        row.subject: row.at
        for row in reversed(rows)
        if row.act == "cancel" and str(row.reason or "").endswith(f"(bulk {act.undoes})")
    }
    found = do(GetJobs([JobId(subject) for subject in at])) if at else []
    cancelled = [
        job
        for job in found
        if job is not None and job.state is State.CANCELLED and at[job.id] in {job.finished_at, job.cancel_requested_at}
    ]
    is_over = len(rows) < AUDIT or (act.undo_from is not None and rows[-1].at < act.undo_from)
    return Look(_meant(cancelled, act), None if is_over else str(rows[-1].seq))


def _meant(jobs: Iterable[Job], act: BulkAct) -> list[JobId]:
    return [job.id for job in jobs if _is_meant(job, act.act, act.frozen_at)]


def _is_meant(job: Job, act: str, frozen_at: datetime) -> bool:
    if job.created_at > frozen_at or job.cleaned_at is not None:
        return False
    return job.state in (ACTIVE if act == "cancel" else REVIVABLE)
