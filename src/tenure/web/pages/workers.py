"""`/ui/workers`: who is there, what they hold, who leads; those that are late or gone stand out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tenure import WorkerSeen
from tenure.errors import UsageError
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.observe.liveness import silence_limit
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Moved, Shown, Visit

HELD: Final = 500


@frozen
class Line:
    """One worker."""

    seen: WorkerSeen
    freshness: str
    silent_seconds: float
    running: Sequence[Job]
    """Jobs it holds now, some of them."""
    is_behind: bool
    trouble: str


def workers(visit: Visit) -> Answer:
    """The page."""
    now = visit.app.now()
    seen = visit.app.workers.all()
    policies = {one.name: one.policy for one in visit.app.queues.all()}
    held = visit.app.jobs(state=["running", "leased"], limit=HELD) if any(one.held for one in seen) else None
    holds: dict[str, list[Job]] = {}
    for job in held or ():
        if job.lease_owner:
            holds.setdefault(job.lease_owner, []).append(job)
    versions = Counter(one.row.version for one in seen if one.row.version)
    newest = max(versions, default="")
    lines = []
    for one in seen:
        silent = max(0.0, (now - one.last_seen_at).total_seconds())
        limit = silence_limit(one, policies)
        fresh = "fresh" if silent <= limit / 2 else "late" if silent <= limit else "gone"
        running = holds.get(one.row.id, [])
        lines.append(Line(one, fresh, silent, running, bool(newest) and one.row.version != newest, _trouble(one)))
    lines.sort(key=lambda line: (line.freshness == "gone", not line.seen.is_leader, line.seen.row.id))
    alive = [line for line in lines if line.freshness != "gone"]
    leader = next((line.seen for line in alive if line.seen.is_leader), None)
    look = visit.pulse.now()
    return Shown(
        "workers.html",
        {
            "alive": len(alive),
            "gone": len(lines) - len(alive),
            "keys": (("j k", "move"),),
            "leader": leader,
            "lines": lines,
            "now": now,
            "same": same_as.workers(),
            "room": sum(line.seen.row.concurrency for line in alive),
            "topic": "all",
            "unserved": [one for one in look.checks if one.name in {"unserved", "unknown kind"}] if look else [],
            "used": sum(line.seen.held for line in alive),
            "versions": versions.most_common(),
        },
    )


def forget(visit: Visit) -> Answer:
    """Remove the row of a worker that is gone. What it held is taken back first."""
    name = visit.given("worker")
    seen = next((one for one in visit.app.workers.all() if one.row.id == name), None)
    if seen is None:
        raise UsageError(f"There is no worker {name!r}. It may have been removed already.")
    policies = {one.name: one.policy for one in visit.app.queues.all()}
    if (visit.app.now() - seen.last_seen_at).total_seconds() <= silence_limit(seen, policies):
        raise UsageError(f"Worker {name!r} was heard of lately, so it is not forgotten. Stop it with SIGTERM instead.")
    visit.app.workers.remove(name)
    visit.pulse.forget()
    return Moved(visit.link("/workers"), f"Worker {name} is forgotten; what it held was taken back.")


def _trouble(seen: WorkerSeen) -> str:
    """What the worker says of itself: its status where it is not ok, and duties that its login may not do."""
    told = [] if seen.row.status in {"ok", ""} else [seen.row.status]
    try:
        denied = json.loads(seen.row.info).get("denied", ())
    except (ValueError, AttributeError):
        denied = ()
    if denied:
        told.append("may not " + ", ".join(map(str, denied)))
    return "; ".join(told)
