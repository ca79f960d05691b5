"""`/ui/limits`: services outside that jobs share: rates, blocks after a refusal, and when the next job may start."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tenure import LimitedJobs, Limiter
from tenure.errors import NotFound, UsageError
from tenure.model.frozen import frozen
from tenure.web.pages import same_as
from tenure.web.pages.changes import limits_marker_of
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import span

ACTS: Final = ("set", "block", "clear", "remove")
ASKED: Final = ("clear", "remove")
"""Acts that have a page which asks."""
COUNTED: Final = 1_000
"""How many waiting jobs the store counts of each key and queue."""


@frozen
class Line:
    """One limiter."""

    limiter: Limiter
    state: str
    """blocked, reopening, limited, open."""
    says: str


@frozen
class Held:
    """Due jobs of one queue that carry the same keys."""

    jobs: LimitedJobs
    keys: Sequence[str]
    opens_at: datetime | None
    """When the last of its keys lets the next one start; None: now."""
    is_capped: bool


def limits(visit: Visit) -> Answer:
    """The page."""
    now = visit.app.now()
    found = visit.app.limits.all()
    lines = sorted((_line(one, now) for one in found), key=lambda line: (line.state != "blocked", line.limiter.key))
    return Shown(
        "limits.html",
        {
            "blocked": sum(1 for one in lines if one.state == "blocked"),
            "held": _held(visit, found, now),
            "keys": (("j k", "move"),),
            "lines": lines,
            "now": now,
            "same": same_as.limits(),
            "section": "/limits",
            "topic": "limits",
            "seen": limits_marker_of(found, now),
        },
    )


def confirm(visit: Visit) -> Answer:
    """The question before a block is cleared or a limiter removed."""
    act, key = visit.params["act"], visit.asked("key")
    if act not in ASKED:
        raise NotFound(f"There is no act {act!r} of a limiter.")
    line = _line(_find(visit, key), visit.app.now())
    same = same_as.limit(act, key)
    return Shown("limit_confirm.html", {"act": act, "line": line, "same": same, "section": "/limits"})


def act(visit: Visit) -> Answer:
    """Set the rates of a key, block it, clear its block, or forget it."""
    verb, key, who = visit.params["act"], visit.given("key"), visit.viewer.name
    if verb not in ACTS:
        raise NotFound(f"There is no act {verb!r} of a limiter.")
    reason = visit.reason()
    visit.pulse.forget()
    back = visit.link("/limits")
    if verb == "clear":
        visit.app.limits.clear(key, actor=who, reason=reason)
        return Moved(back, f"{key} is open again: its jobs start as their rates let them.")
    if verb == "remove":
        gone = visit.app.limits.remove(key, actor=who, reason=reason)
        return Moved(back, f"{key} limits nothing any more." if gone else f"There was no limiter {key}.")
    if verb == "block":
        blocked = visit.app.limits.block(key, _number(visit, "seconds") or 0.0, actor=who, reason=reason)
        return Moved(back, f"{key} is blocked: none of its jobs starts before {blocked.blocked_until:%H:%M:%S} UTC.")
    rates = {name: _number(visit, name) for name in ("per_minute", "tokens_per_minute")}
    if not any(rates.values()):
        raise UsageError("Give jobs per minute, tokens per minute, or both. Nothing was changed.")
    visit.app.limits.set(key, **rates, actor=who, reason=reason)
    return Moved(back, f"The rates of {key} are set.")


def _held(visit: Visit, limiters: Sequence[Limiter], now: datetime) -> list[Held]:
    """What waits, the longest to wait first."""
    opens = {one.key: one.opens_at for one in limiters if one.opens_at is not None and one.opens_at > now}
    found = []
    for one in visit.app.limits.waiting():
        keys = one.limiter.split(",")
        at = max((opens[key] for key in keys if key in opens), default=None)
        found.append(Held(one, keys, at, one.jobs >= COUNTED))
    return sorted(found, key=lambda held: (-(held.opens_at or now).timestamp(), held.jobs.oldest_at))


def _line(one: Limiter, now: datetime) -> Line:
    if one.blocked_until is not None and one.blocked_until > now:
        left = span((one.blocked_until - now).total_seconds())
        return Line(one, "blocked", f"No job that carries it starts for {left}.")
    if one.strikes:
        return Line(one, "reopening", "Let through one by one, twice as many each second, until one succeeds.")
    if one.room == 0:
        return Line(one, "limited", "Its rate is used up for the moment.")
    return Line(one, "open", "Jobs start as they come." if one.room is None else f"{one.room:,} may start at once.")


def _number(visit: Visit, name: str) -> float | None:
    text = visit.given(name).replace(",", "").replace("\u00a0", "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError as exc:
        raise UsageError(f"{name.replace('_', ' ')}: {text[:40]!r} is no number. Nothing was changed.") from exc


def _find(visit: Visit, key: str) -> Limiter:
    found = visit.app.limits.all([key]) if key else []
    if not found:
        raise NotFound(f"There is no limiter {key[:60]!r}. One without rates and without a block holds nothing back.")
    return found[0]
