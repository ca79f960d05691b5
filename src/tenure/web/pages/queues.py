"""`/ui/queues`: how far each queue lags, its policy, and pause and resume with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tenure import QueueRow
from tenure.errors import NotFound, UsageError
from tenure.observe.browse import JobFilter, browse, minutes
from tenure.web.pages import same_as
from tenure.web.pages.charts import RANGES, throughput
from tenure.web.pages.overview import counted_minutes, queue_lags
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import first_line, span

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
    chosen = next((one for one in RANGES if one[0] == visit.asked("range")), RANGES[1])
    found = browse(visit.app.store, JobFilter(queues=[row.name]), limit=NEWEST)
    serving = [one for one in look.seen.workers if row.name in one.row.queues] if look else []
    return Shown(
        "queue.html",
        {
            "backlog": backlog,
            "chart": throughput(minutes(visit.app.store, chosen[2] + 3, [row.name]), chosen[2], found.at),
            "keys": (("e", "change the policy"), ("j k", "move")),
            "lag": lag,
            "newest": found.items,
            "now": found.at,
            "policy": policy_lines(row.policy),
            "queue": row,
            "range": chosen[0],
            "ranges": RANGES,
            "same": same_as.resume(row.name) if row.paused_at else same_as.pause(row.name),
            "section": "/queues",
            "topic": "all",
            "workers": serving,
        },
    )


def act(visit: Visit) -> Answer:
    """Pause or resume a queue."""
    row = find(visit)
    verb, reason = visit.params["act"], visit.given("reason")
    if verb not in {"pause", "resume"}:
        raise NotFound(f"There is no act {verb!r} of a queue.")
    if verb == "pause" and not reason:
        raise UsageError("A reason is needed: it goes into the audit. Nothing was changed.")
    visit.pulse.forget()
    change = visit.app.queues.pause if verb == "pause" else visit.app.queues.resume
    changed = change(row.name, actor=visit.viewer.name, reason=reason or None)
    word = "paused" if verb == "pause" else "resumed"
    said = f"Queue {row.name} {word}." if changed else f"Queue {row.name} was {word} already."
    return Moved(visit.link(f"/queues/{row.name}"), said)


def policy_lines(policy: Any) -> Mapping[str, str]:
    """A queue's policy in words."""
    told: dict[str, str] = {}
    for one in fields(policy):
        value = getattr(policy, one.name)
        if one.name == "backoff":
            told["backoff"] = (
                f"{value.shape}, from {span(value.base_seconds)} to {span(value.cap_seconds)}, ± {value.jitter:.0%}"
            )
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
    name = visit.params["name"]
    rows = visit.app.queues.all(name) if name.strip() else []
    if not rows:
        raise NotFound(f"There is no queue {first_line(name, 60)!r}.")
    return rows[0]
