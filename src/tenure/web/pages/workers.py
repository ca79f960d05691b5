"""`/ui/workers`: who is there, what they hold, who leads; those that are late or gone stand out. Of one worker: what it
holds, and drain, resume and forget."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from tenure import WorkerSeen
from tenure.errors import NotFound, UsageError
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.policy import QueuePolicy
from tenure.observe.browse import JobFilter, browse
from tenure.observe.liveness import drained, silence_limit
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import first_line

HELD: Final = 500
SHOWN: Final = 100
"""How many held jobs the page of one worker shows."""
ACTS: Final = ("drain", "resume", "forget")


@frozen
class Line:
    """One worker."""

    seen: WorkerSeen
    freshness: str
    silent_seconds: float
    running: Sequence[Job]
    """Jobs it holds now, some of them."""
    is_behind: bool
    is_drained: bool
    trouble: str

    @property
    def state(self) -> str:
        """The word that says how it stands: draining, unless it is late or gone."""
        return "draining" if self.is_drained and self.freshness == "fresh" else self.freshness


def workers(visit: Visit) -> Answer:
    """The page."""
    now = visit.app.now()
    seen = visit.app.workers.all()
    held = visit.app.jobs(state=["running", "leased"], limit=HELD) if any(one.held for one in seen) else None
    holds: dict[str, list[Job]] = {}
    for job in held or ():
        if job.lease_owner:
            holds.setdefault(job.lease_owner, []).append(job)
    versions = Counter(one.row.version for one in seen if one.row.version)
    lines = _lines(visit, seen, holds, now)
    lines.sort(key=lambda line: (line.freshness == "gone", not line.seen.is_leader, line.seen.row.id))
    alive = [line for line in lines if line.freshness != "gone"]
    leader = next((line.seen for line in alive if line.seen.is_leader), None)
    look = visit.pulse.now()
    return Shown(
        "workers.html",
        {
            "alive": len(alive),
            "gone": len(lines) - len(alive),
            "keys": (("j k", "move"), ("Enter", "open")),
            "leader": leader,
            "lines": lines,
            "now": now,
            "same": same_as.workers(),
            "room": sum(line.seen.row.concurrency for line in alive),
            "topic": "all",
            "unserved": [one for one in look.checks if one.name in {"unserved", "unknown kind"}] if look else [],
            "used": sum(line.seen.slots_used for line in alive),
            "versions": versions.most_common(),
        },
    )


def worker(visit: Visit) -> Answer:
    """One worker: how it stands, and what it holds."""
    seen = _find(visit, visit.asked("id"))
    found = browse(visit.app.store, JobFilter(worker=seen.row.id), limit=SHOWN)
    lines = _lines(visit, visit.app.workers.all(), {seen.row.id: found.items}, found.at)
    line = next((one for one in lines if one.seen.row.id == seen.row.id), None)
    if line is None:
        raise _gone(seen.row.id)
    gate = next((one for one in visit.app.gates.all() if one.name == f"worker:{seen.row.id}"), None)
    return Shown(
        "worker.html",
        {
            "gate": gate,
            "held": found.items,
            "keys": (("j k", "move"), ("Enter", "open")),
            "line": line,
            "now": found.at,
            "same": same_as.worker_act("resume" if line.is_drained else "drain", seen.row.id),
            "section": "/workers",
            "topic": "all",
        },
    )


def act(visit: Visit) -> Answer:
    """Drain a worker, let it take jobs again, or forget one that is gone."""
    verb, who = visit.params["act"], visit.viewer.name
    if verb not in ACTS:
        raise NotFound(f"There is no act {verb!r} of a worker.")
    seen = _find(visit, visit.given("worker"))
    name = seen.row.id
    visit.pulse.forget()
    if verb == "forget":
        return _forget(visit, seen)
    back = visit.link("/workers/one", id=name)
    if verb == "resume":
        visit.app.workers.resume(name, actor=who, reason=visit.given("reason") or None)
        return Moved(back, f"Worker {name} takes jobs again.")
    visit.app.workers.drain(name, actor=who, reason=visit.reason())
    return Moved(back, f"Worker {name} is given no more jobs; it ends what it holds.")


def _forget(visit: Visit, seen: WorkerSeen) -> Answer:
    """Remove the row of a worker that is gone. What it held is taken back first."""
    name = seen.row.id
    if (visit.app.now() - seen.last_seen_at).total_seconds() <= silence_limit(seen, _policies(visit)):
        raise UsageError(f"Worker {name!r} was heard of lately, so it is not forgotten. Stop it with SIGTERM instead.")
    visit.app.workers.remove(name)
    return Moved(visit.link("/workers"), f"Worker {name} is forgotten; what it held was taken back.")


def _lines(visit: Visit, seen: Sequence[WorkerSeen], holds: Mapping[str, Sequence[Job]], now: datetime) -> list[Line]:
    policies = _policies(visit)
    drains: Collection[str] = drained(visit.app.gates.all())
    newest = max((_rank(one.row.version) for one in seen if one.row.version), default=())
    lines = []
    for one in seen:
        silent = max(0.0, (now - one.last_seen_at).total_seconds())
        limit = silence_limit(one, policies)
        fresh = "fresh" if silent <= limit / 2 else "late" if silent <= limit else "gone"
        is_behind = bool(one.row.version) and _rank(one.row.version) < newest
        running = holds.get(one.row.id, ())
        lines.append(Line(one, fresh, silent, running, is_behind, one.row.id in drains, _trouble(one)))
    return lines


def _rank(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare it by: as a text 0.9 comes after 0.10."""
    return tuple(map(int, re.findall(r"[0-9]{1,9}", version)))


def _find(visit: Visit, name: str) -> WorkerSeen:
    seen = next((one for one in visit.app.workers.all() if one.row.id == name), None)
    if seen is None:
        raise _gone(name)
    return seen


def _gone(name: str) -> NotFound:
    return NotFound(f"There is no worker {first_line(name, 60)!r}. It may have stopped, or been removed.")


def _policies(visit: Visit) -> Mapping[str, QueuePolicy]:
    return {one.name: one.policy for one in visit.app.queues.all()}


def _trouble(seen: WorkerSeen) -> str:
    """What the worker says of itself: its status where it is not ok, and duties that its login may not do."""
    told = [] if seen.row.status in {"ok", ""} else [seen.row.status]
    if seen.row.denied:
        told.append("may not " + ", ".join(seen.row.denied))
    return "; ".join(told)
