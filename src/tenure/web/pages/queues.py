"""`/ui/queues`: how far each queue lags, its policy, and pause and resume with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tenure import QueueRow, WorkerSeen
from tenure.errors import NotFound
from tenure.observe import audited
from tenure.observe.browse import JobFilter, browse
from tenure.observe.liveness import alive
from tenure.web.pages import same_as
from tenure.web.pages.charts import RANGES, range_of, throughput
from tenure.web.pages.overview import counted_minutes, queue_lags
from tenure.web.pages.pulse import Look
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import NBSP, first_line, name_of, segment, span

NEWEST: Final = 10
SPARK: Final = 30


def queues(visit: Visit) -> Answer:
    """Every queue."""
    look = visit.pulse.now()
    sparks: dict[str, list[int]] = {}
    now = look.at if look else visit.app.now()
    for row in counted_minutes(visit, SPARK):
        place = SPARK - 1 - int((now - row.minute).total_seconds() // 60 - 2)
        if 0 <= place < SPARK:
            sparks.setdefault(row.queue, [0] * SPARK)[place] += row.completed
    rates = {name: sum(values) / (60.0 * SPARK) for name, values in sparks.items()}
    rows = list(look.seen.queues) if look else visit.app.queues.all()
    backlog = {one.queue: one for one in look.seen.summary.backlog} if look else {}
    lags = {one.name: one for one in queue_lags(look.seen, rates)} if look else {}
    places = {name: place for place, name in enumerate(lags)}
    rows.sort(key=lambda row: (places.get(row.name, len(places)), row.name))
    return Shown(
        "queues.html",
        {
            "backlog": backlog,
            "keys": (("j k", "move"), ("Enter", "open")),
            "lags": lags,
            "now": now,
            "queues": rows,
            "same": same_as.queues(),
            "sparks": sparks,
            "topic": "all",
        },
    )


def queue(visit: Visit) -> Answer:
    """One queue: what is in it, its policy, its last hour."""
    row = find(visit)
    look = visit.pulse.now()
    backlog = next((one for one in look.seen.summary.backlog if one.queue == row.name), None) if look else None
    lag = next((one for one in queue_lags(look.seen, {}) if one.name == row.name), None) if look else None
    chosen = range_of(visit.asked("range"), RANGES[1])
    found = browse(visit.app.store, JobFilter(queues=[row.name]), limit=NEWEST)
    serving = serving_workers(look, row.name) if look else []
    return Shown(
        "queue.html",
        {
            "backlog": backlog,
            "chart": throughput(visit.app, chosen, found.at, [row.name]),
            "keys": (*((("e", "change the policy"),) if visit.viewer.may("admin") else ()), ("j k", "move")),
            "lag": lag,
            "newest": found.items,
            "now": found.at,
            "paused_why": audited.reason(visit.app.store, row.name, "pause_queue") if row.paused_at else None,
            "policy": policy_lines(row.policy),
            "queue": row,
            "range": chosen,
            "ranges": RANGES,
            "same": same_as.queues(row.name),
            "same_act": same_as.resume(row.name) if row.paused_at else same_as.pause(row.name),
            "slots_in_all": sum(one.row.concurrency for one in serving),
            "slots_used": sum(one.slots_used for one in serving),
            "section": "/queues",
            "topic": "all",
            "workers": serving,
        },
    )


def serving_workers(look: Look, name: str) -> list[WorkerSeen]:
    """Live workers that take jobs of a queue."""
    policies = {one.name: one.policy for one in look.seen.queues}
    return [one for one in alive(look.seen.workers, policies, look.at) if name in one.row.queues]


def act(visit: Visit) -> Answer:
    """Pause or resume a queue."""
    row = find(visit)
    verb = visit.params["act"]
    if verb not in {"pause", "resume"}:
        raise NotFound(f"There is no act {verb!r} of a queue.")
    reason = visit.reason() if verb == "pause" else visit.given("reason") or None
    visit.pulse.forget()
    change = visit.app.queues.pause if verb == "pause" else visit.app.queues.resume
    changed = change(row.name, actor=visit.viewer.name, reason=reason)
    word = "paused" if verb == "pause" else "resumed"
    said = f"Queue {row.name} {word}." if changed else f"Queue {row.name} was {word} already."
    return Moved(visit.link(f"/queues/{segment(row.name)}"), said)


def policy_lines(policy: Any) -> Mapping[str, str]:
    """A queue's policy in words."""
    told: dict[str, str] = {}
    for one in fields(policy):
        value = getattr(policy, one.name)
        if one.name == "backoff":
            told["backoff"] = f"{value.shape}, from {span(value.base_seconds)} to {span(value.cap_seconds)}"
            told["backoff"] += f", ± {100 * value.jitter:.0f}{NBSP}%"
        elif value is None:
            told[one.name] = "none"
        elif one.name.endswith("_seconds"):
            told[one.name] = span(float(value))
        elif isinstance(value, bool):
            told[one.name] = "yes" if value else "no"
        elif isinstance(value, tuple):
            told[one.name] = ", ".join(value) or "none"
        else:
            told[one.name] = str(value)
    return told


def find(visit: Visit) -> QueueRow:
    """The queue that the address names. Raises: NotFound."""
    name = name_of(visit.params["name"])
    rows = visit.app.queues.all(name) if name.strip() else []
    if not rows:
        raise NotFound(f"There is no queue {first_line(name, 60)!r}.")
    return rows[0]
