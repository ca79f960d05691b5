"""`/ui/schedules`: when each comes next, what became of its last jobs, pause, resume and run now."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final

from tenure.errors import NotFound
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.schedule import Schedule, tick_job_id
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Moved, Shown, Visit

NEXT: Final = 5
LAST: Final = 10
STEPS: Final = 2_000
"""Ticks that are walked at most to find the last ones."""


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
    now = visit.app.now()
    rows = visit.app.schedules.all()
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
    return Shown(
        "schedules.html",
        {
            "keys": (("j k", "move"),),
            "last": LAST,
            "lines": lines,
            "now": now,
            "same": same_as.schedules(),
            "topic": "all",
        },
    )


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
    name, verb = visit.params["name"], visit.params["act"]
    who, reason = visit.viewer.name, visit.given("reason") or None
    if not visit.app.schedules.all(name):
        raise NotFound(f"There is no schedule {name!r}.")
    back = visit.link("/schedules")
    if verb == "run":
        made = visit.app.schedules.run(name)
        return Moved(visit.link(f"/jobs/{made.id}"), f"Schedule {name}: one job, now.")
    if verb == "pause":
        changed = visit.app.schedules.pause(name, actor=who, reason=reason)
        return Moved(back, f"Schedule {name} paused." if changed else f"Schedule {name} was paused already.")
    if verb == "resume":
        changed = visit.app.schedules.resume(name, actor=who, reason=reason)
        return Moved(back, f"Schedule {name} goes on." if changed else f"Schedule {name} was not paused.")
    raise NotFound(f"There is no act {verb!r} of a schedule.")
