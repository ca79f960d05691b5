"""`/ui/schedules`: when each comes next, what became of its last jobs; change, pause, resume and run now."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from tenure import ScheduleRow
from tenure.errors import InvalidArgument, InvalidPayload, NotFound, UsageError
from tenure.model.duration import duration_seconds, duration_text
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.schedule import Schedule, tick_job_id
from tenure.web.pages import same_as
from tenure.web.pages.json_text import read_json
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import first_line, name_of, segment

NEXT: Final = 5
LAST: Final = 10
STEPS: Final = 2_000
"""Ticks that are walked at most to find the last ones."""
MISSES: Final = {"skip": "drop them", "one": "one job for all of them", "all": "a job for each"}
"""What becomes of ticks at which no worker was there."""


@frozen
class Line:
    """One schedule."""

    name: str
    told: Schedule | None
    problem: str
    paused_at: datetime | None
    paused_by: str | None
    last_tick: datetime
    next: list[datetime]
    last: list[Job]
    """The jobs of its last ticks, newest first."""
    drift_seconds: float | None
    """How long after its tick the newest of them was made; None if none is there."""


def schedules(visit: Visit) -> Answer:
    """The page."""
    return Shown(
        "schedules.html",
        {
            "keys": (("j k", "move"), ("Enter", "open")),
            "last": LAST,
            "lines": _lines(visit, visit.app.schedules.all()),
            "now": visit.app.now(),
            "same": same_as.schedules(),
            "topic": "all",
        },
    )


def schedule(visit: Visit, *, wrong: str = "", status: int = 200) -> Answer:
    """One schedule: when it comes in words and by the clock, what became of it, and a form to change it."""
    (line,) = _lines(visit, [_find(visit)])
    may_read = visit.viewer.may("read:payload")
    return Shown(
        "schedule.html",
        {
            "given": {name: visit.given(name, value) for name, value in _fields(line.told, may_read).items()},
            "keys": (("j k", "move"),),
            "line": line,
            "may_read": may_read,
            "misses": MISSES,
            "now": visit.app.now(),
            "queues": [one.name for one in visit.app.queues.all()],
            "same": same_as.schedule(line.name),
            "section": "/schedules",
            "topic": "" if wrong else "all",
            "why": visit.given("reason"),
            "wrong": wrong,
            "zoned": [at.astimezone(ZoneInfo(line.told.tz)) for at in line.next] if line.told else [],
        },
        status,
    )


def edit(visit: Visit) -> Answer:
    """Change what differs from the schedule as it stands."""
    row = _find(visit)
    (line,) = _lines(visit, [row])
    if line.told is None:
        raise UsageError(f"{line.problem}. It was written by another version; change it there. Nothing was changed.")
    now = _fields(line.told, visit.viewer.may("read:payload"))
    told = {name: visit.given(name) for name, value in now.items() if visit.given(name, value) != value}
    try:
        if not told:
            raise UsageError("Nothing differs from the schedule as it stands, so nothing was changed.")
        reason = visit.reason()
        visit.app.schedules.change(row.name, actor=visit.viewer.name, reason=reason, **_changes(told))
    except (InvalidArgument, InvalidPayload, UsageError) as exc:
        return schedule(visit, wrong=str(exc), status=400)
    return Moved(visit.link(f"/schedules/{segment(row.name)}"), f"Schedule {row.name} changed.")


def _fields(told: Schedule | None, may_read: bool) -> dict[str, str]:
    """What the form shows, by its fields. The payload is left out for those who may not read it."""
    if told is None:
        return {}
    fields = {"when": told.says if told.every_seconds is None else duration_text(told.every_seconds)}
    fields |= {"tz": told.tz, "missed": told.missed, "queue": told.queue}
    return fields | ({"payload": told.payload} if may_read else {})


def _changes(told: Mapping[str, str]) -> dict[str, Any]:
    """The form's words as arguments of `app.schedules.change`. Raises: InvalidPayload."""
    changes: dict[str, Any] = {name: value for name, value in told.items() if name not in {"when", "payload"}}
    if "when" in told:
        try:
            changes["every"] = duration_seconds(told["when"])
        except ValueError:
            changes["cron"] = told["when"]
    if "payload" in told:
        changes["payload"] = read_json(told["payload"])
    return changes


def _find(visit: Visit) -> ScheduleRow:
    name = name_of(visit.params["name"])
    rows = visit.app.schedules.all(name) if name.strip() else []
    if not rows:
        raise NotFound(f"There is no schedule {first_line(name, 60)!r}.")
    return rows[0]


def _lines(visit: Visit, rows: Sequence[ScheduleRow]) -> list[Line]:
    now = visit.app.now()
    told: dict[str, Schedule] = {}
    problems: dict[str, str] = {}
    for row in rows:
        try:
            told[row.name] = Schedule.from_spec(row.name, row.spec)
        except ValueError as exc:
            problems[row.name] = str(exc)
    ticks = {row.name: last_ticks(told[row.name], row.last_tick) for row in rows if row.name in told}
    ids = [tick_job_id(name, tick) for name, some in ticks.items() for tick in some]
    made = {one.id: one for one in (visit.app.get_many(ids) if ids else ()) if one is not None}
    lines = []
    for row in rows:
        name = row.name
        last = [made[one] for tick in ticks.get(name, ()) if (one := tick_job_id(name, tick)) in made]
        is_newest = bool(last) and last[0].id == tick_job_id(name, row.last_tick)
        drift = max(0.0, (last[0].created_at - row.last_tick).total_seconds()) if is_newest else None
        coming = next_ticks(told[name], now) if name in told else []
        paused = row.paused_at, row.paused_by
        lines.append(Line(name, told.get(name), problems.get(name, ""), *paused, row.last_tick, coming, last, drift))
    return lines


def next_ticks(schedule: Schedule, after: datetime) -> list[datetime]:
    """The next NEXT ticks."""
    coming: list[datetime] = []
    for _ in range(NEXT):
        coming.append(schedule.next_tick(coming[-1] if coming else after))
    return coming


def last_ticks(schedule: Schedule, last: datetime) -> list[datetime]:
    """The last tick and those before it, newest first, LAST of them at most.

    Ticks are known forwards only, so they are walked from so far back that LAST of them lie in between where they come
    as far apart as the next one does; a schedule whose ticks are uneven shows fewer or is walked further.
    """
    gap = schedule.next_tick(last) - last
    at, found = last - LAST * gap - gap / 2, deque[datetime](maxlen=LAST)
    for _ in range(STEPS):
        at = schedule.next_tick(at)
        if at > last:
            break
        found.append(at)
    return list(reversed(found))


def act(visit: Visit) -> Answer:
    """Run a schedule's job now, pause it, or let it go on."""
    name, verb = _find(visit).name, visit.params["act"]
    who, reason = visit.viewer.name, visit.given("reason") or None
    back = visit.link("/schedules")
    if verb == "run":
        made = visit.app.schedules.run(name)
        return Moved(visit.link(f"/jobs/{made.id}"), f"Schedule {name}: one job, now.")
    if verb == "pause":
        changed = visit.app.schedules.pause(name, actor=who, reason=visit.reason())
        return Moved(back, f"Schedule {name} paused." if changed else f"Schedule {name} was paused already.")
    if verb == "resume":
        changed = visit.app.schedules.resume(name, actor=who, reason=reason)
        return Moved(back, f"Schedule {name} goes on." if changed else f"Schedule {name} was not paused.")
    raise NotFound(f"There is no act {verb!r} of a schedule.")
