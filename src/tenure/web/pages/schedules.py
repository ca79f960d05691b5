"""`/ui/schedules`: when each comes next, what became of its last jobs, pause, resume and run now."""

from __future__ import annotations

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
    """The jobs of its last tick and those before it, newest first."""


def schedules(visit: Visit) -> Answer:
    """The page."""
    now = visit.app.now()
    lines = []
    for row in visit.app.schedules.all():
        try:
            told = Schedule.from_spec(row.name, row.spec)
        except ValueError as exc:
            lines.append(Line(row.name, None, str(exc), row.paused_at, row.paused_by, row.last_tick, [], []))
            continue
        coming, at = [], now
        for _ in range(NEXT):
            at = told.next_tick(at)
            coming.append(at)
        found = visit.app.get_many([tick_job_id(row.name, row.last_tick)])
        last = [one for one in found if one is not None]
        lines.append(Line(row.name, told, "", row.paused_at, row.paused_by, row.last_tick, coming, last))
    return Shown(
        "schedules.html",
        {
            "keys": (("j k", "move"),),
            "lines": lines,
            "now": now,
            "same": same_as.schedules(),
            "topic": "all",
        },
    )


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
