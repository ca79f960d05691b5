"""Schedules in the store: what is declared, which tick was the last, and whether it is paused.

The store does not read cron expressions. A leader computes the ticks; the store decides that each happens once.
Columns of `schedule`: name (primary key), spec (JSON text as declared), last_tick (moment, not null), paused_at,
paused_by, created_at, updated_at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tenure.model.frozen import frozen
from tenure.model.job import NewJob
from tenure.store.contract import Request


@frozen
class ScheduleRow:
    """A schedule as stored. `spec` is JSON text, as its declarer wrote it."""

    name: str
    spec: str
    last_tick: datetime
    """Ticks up to and including this one are dealt with."""
    paused_at: datetime | None
    paused_by: str | None
    created_at: datetime
    updated_at: datetime


@frozen
class ListSchedules(Request[list[ScheduleRow]]):
    """Schedules by name; all of them unless `names` are given."""

    names: Sequence[str] | None = None


@frozen
class SetSchedules(Request[list[ScheduleRow]]):
    """Declare schedules: name → spec (JSON text). Answers their rows, by name.

    A new one starts with `last_tick` = now by the store's clock, so nothing before its declaration is due.
    A known one keeps its `last_tick` and its pause; an unchanged spec writes nothing. Others are left alone.
    """

    specs: Mapping[str, str]
    actor: str
    reason: str | None = None
    """Why; kept in the audit row of each that changed."""


@frozen
class TickSchedule(Request[bool]):
    """Deal with all ticks up to `tick`: enqueue `jobs` and move `last_tick` from `after` to `tick`, in one transaction.

    The row decides, under its lock: if `last_tick` is not `after` any more (another believer was first), or the
    schedule is paused or gone, nothing is changed and the answer is False. `jobs` may be empty (missed ticks that
    are skipped). Jobs are enqueued as Enqueue does, with its errors, except that a taken key is not an error:
    that job is left out. A repeat after a lost reply answers False, and the job is there all the same.
    """

    name: str
    after: datetime
    tick: datetime
    jobs: Sequence[NewJob] = ()


@frozen
class PauseSchedules(Request[list[str]]):
    """Pause or resume schedules. Answers the names that changed; leaves an audit row each.

    Resuming moves `last_tick` to now: what would have run during a pause was not missed but not wanted.
    """

    names: Sequence[str]
    paused: bool
    actor: str
    reason: str | None = None


@frozen
class RemoveSchedules(Request[list[str]]):
    """Forget schedules. Jobs they made stay. Answers the names that were there; leaves an audit row each."""

    names: Sequence[str]
    actor: str
