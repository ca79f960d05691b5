"""Acts on all that match, for the API and the console: count, start, stop, go on, undo. Each act is a job.

To pause and to abort are both a cancel of the act's job: what it has done stays done, and the audit says which of the
two was meant. To go on is to revive it: how far it came is kept with the job.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from tenure.effects.bulk_jobs import KIND, SUBJECT, bulk
from tenure.effects.bulk_looks import REVIVABLE, counts
from tenure.effects.bulk_payload import BulkAct, BulkFilter
from tenure.errors import InvalidArgument, NotFound, UsageError
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.state import ACTIVE, TERMINAL, State

if TYPE_CHECKING:
    from tenure.app import App

COUNT_MOST: Final = 100_000
"""Matches are counted up to here, or for COUNT_SECONDS; then the count says `at least`."""
COUNT_SECONDS: Final = 2.0
PAUSED: Final = "paused"
ABORTED: Final = "aborted"
Verb = Literal["cancel", "revive"]


@frozen
class Counted:
    """How many jobs an act would mean."""

    jobs: int
    is_exact: bool


@frozen
class ActShown:
    """One act and how far it is."""

    job: Job
    act: str
    filter: Mapping[str, Any]
    """The words that were given."""
    reason: str
    actor: str
    pace: float | None
    frozen_at: datetime
    total: int
    is_exact: bool
    done: int
    failed: int
    undoes: str | None
    word: str
    """waiting, working, stopping, paused, aborted, done, failed."""

    @property
    def is_over(self) -> bool:
        return self.job.state in TERMINAL

    @property
    def can_stop(self) -> bool:
        return self.word in {"waiting", "working"}

    @property
    def can_go_on(self) -> bool:
        return self.word in {PAUSED, "failed"}

    @property
    def can_undo(self) -> bool:
        """Whether what it did can be taken back: cancelled jobs can be revived. A revived job may have run."""
        return self.act == "cancel" and self.is_over and self.done > 0


def check(act: Verb, chosen: BulkFilter) -> None:
    """Refuse a filter that means everything, or nothing. Raises: InvalidArgument."""
    if chosen.is_empty:
        raise InvalidArgument("filter: it is empty and would match every job. Name a state, a queue or a kind.")
    unknown = set(chosen.state) - {state.value for state in State}
    if unknown:
        raise InvalidArgument(f"filter: {min(unknown)!r} is no state. States are {', '.join(State)}.")
    states = {"queued" if state == "retry_waiting" else state for state in (*chosen.state, *chosen.shown)}
    able = ACTIVE if act == "cancel" else REVIVABLE
    if states and not states & able:
        word = "cancelled" if act == "cancel" else "revived"
        raise InvalidArgument(f"filter: no job that is {' or '.join(sorted(states))} can be {word}.")


def frozen_act(app: App, act: Verb, chosen: BulkFilter, *, actor: str, reason: str, pace: float | None) -> BulkAct:
    """The act as it stands at this moment, with its count. Raises: InvalidArgument."""
    check(act, chosen)
    asked = BulkAct(act=act, filter=chosen, frozen_at=app.now(), total=0, pace=pace, actor=actor, reason=reason)
    counted = count(app, asked)
    return asked.model_copy(update={"total": counted.jobs, "is_exact": counted.is_exact})


def count(app: App, act: BulkAct) -> Counted:
    """How many jobs it means now. Stops at COUNT_MOST, and after COUNT_SECONDS."""
    until = time.monotonic() + COUNT_SECONDS
    total = 0
    for found in counts(app.store.do, act):
        if total >= COUNT_MOST or time.monotonic() > until:
            return Counted(total, is_exact=False)
        total += found
    return Counted(total, is_exact=True)


def start(app: App, act: BulkAct) -> str:
    """Enqueue the job that does it; its id."""
    if KIND not in app.registry:
        app.use(bulk())
    made = app.new_job(KIND, act, actor=act.actor)
    # Written first: an act that is not enqueued after all is passed over by `newest`, one without a row would be lost
    # to it. Acts are found by this row, because no index leads to the jobs of one kind.
    app.access.note(SUBJECT, SUBJECT, actor=act.actor, reason=act.reason, detail={"job": made.id})
    return app.enqueue(made).id


def find(app: App, act_id: str) -> ActShown:
    """One act. Raises: NotFound."""
    job = app.get(act_id)
    if job.kind != KIND:
        raise NotFound(f"Job {act_id} is no act on all that match.")
    return shown(app, job)


def newest(app: App, limit: int) -> list[ActShown]:
    """Acts, newest first."""
    rows = app.access.audit(subject=SUBJECT, limit=limit)
    ids = [row.detail["job"] for row in rows if row.act == SUBJECT and isinstance(row.detail, dict)]
    return [shown(app, job) for job in app.get_many(ids) if job is not None]


def stop(app: App, act_id: str, *, why: str, actor: str) -> str:
    """Pause or abort; `why` is PAUSED or ABORTED. Answers cancelled or requested. Raises: UsageError, NotFound."""
    found = find(app, act_id)
    if found.is_over:
        raise UsageError(f"This act is over: it is {found.word}. Nothing was changed.")
    return app.cancel(found.job.id, actor=actor, reason=why).answer


def go_on(app: App, act_id: str, *, actor: str) -> None:
    """Take up an act that was paused or has failed. Raises: UsageError, NotFound."""
    found = find(app, act_id)
    if not found.can_go_on:
        raise UsageError(f"Only an act that was paused, or has failed, can go on; this one is {found.word}.")
    app.revive(found.job.id, actor=actor, reason="go on")


def undo(app: App, act_id: str, *, actor: str, reason: str) -> str:
    """Revive what an act cancelled, by another act; its id. Raises: UsageError, NotFound."""
    found = find(app, act_id)
    if not found.can_undo:
        raise UsageError(
            "Only an act that cancelled jobs, and is over, can be undone: a job that was revived may have run. "
            "Nothing was changed."
        )
    old = BulkAct.model_validate(found.job.payload)
    undoing = BulkAct(
        act="revive",
        filter=old.filter,
        frozen_at=app.now(),
        total=found.done,
        pace=old.pace,
        actor=actor,
        reason=reason,
        undoes=found.job.id,
        undo_from=old.frozen_at,
    )
    return start(app, undoing)


def shown(app: App, job: Job) -> ActShown:
    """An act with its figures."""
    told: dict[str, Any] = job.payload if isinstance(job.payload, dict) else {}
    far = job.result if isinstance(job.result, dict) else job.progress if isinstance(job.progress, dict) else {}
    chosen = {name: value for name, value in told.get("filter", {}).items() if value}
    return ActShown(
        job=job,
        act=str(told.get("act", "")),
        filter=chosen,
        reason=str(told.get("reason", "")),
        actor=str(told.get("actor", "")),
        pace=told.get("pace"),
        frozen_at=_moment(told.get("frozen_at")) or job.created_at,
        total=int(told.get("total", 0)),
        is_exact=bool(told.get("is_exact", True)),
        done=int(far.get("done", 0)),
        failed=int(far.get("failed", 0)),
        undoes=told.get("undoes"),
        word=_word(app, job),
    )


def _word(app: App, job: Job) -> str:
    if job.state is State.SUCCEEDED:
        return "done"
    if job.state is State.CANCELLED:
        rows: Sequence[Any] = app.access.audit(subject=job.id, limit=5)
        last = next((row.reason for row in rows if row.act == "cancel"), None)
        return PAUSED if last == PAUSED else ABORTED
    if job.state in TERMINAL:
        return "failed"
    if job.cancel_requested_at is not None:
        return "stopping"
    return "waiting" if job.state is State.QUEUED else "working"


def _moment(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None
