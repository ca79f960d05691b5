"""Times, spans, numbers and states in the words of the console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, unquote

from tenure.model.frozen import frozen

NBSP: Final = "\u00a0"
MANY: Final = 10_000


@frozen
class Look:
    """How a state is shown: the word, the icon of the sprite, and the class that sets its colour."""

    word: str
    icon: str
    tone: str


def _looks() -> dict[str, Look]:
    plain = ("queued", "leased", "running", "waiting", "succeeded", "failed", "dead", "cancelled", "unknown")
    looks = {name: Look(name, name, name) for name in plain}
    told: dict[str, tuple[str, str, str]] = {
        # jobs
        "retry_waiting": ("retry", "retry", "retry"),
        "cleaned": ("cleaned", "cancelled", "cancelled"),
        # attempts
        "retried": ("error", "failed", "failed"),
        "expired": ("lease lost", "failed", "dead"),
        "released": ("released", "queued", "queued"),
        # effects
        "intended": ("intended", "queued", "queued"),
        "sent": ("sent", "running", "running"),
        "confirmed": ("confirmed", "succeeded", "succeeded"),
        # dead letters
        "pending": ("pending", "dead", "dead"),
        "acknowledged": ("acknowledged", "leased", "retry"),
        "manual_replay": ("manual_replay", "retry", "running"),
        "escalated": ("escalated", "warn", "failed"),
        "closed": ("closed", "succeeded", "succeeded"),
        # steps
        "open": ("waits", "waiting", "waiting"),
        "done": ("done", "succeeded", "succeeded"),
        "undone": ("undone", "cancelled", "cancelled"),
        # memos
        "memo_open": ("working", "running", "running"),
        "memo_done": ("kept", "succeeded", "succeeded"),
        # workers
        "fresh": ("fresh", "succeeded", "succeeded"),
        "late": ("late", "warn", "retry"),
        "gone": ("gone", "failed", "dead"),
        "draining": ("draining", "waiting", "retry"),
        # doctor
        "ok": ("ok", "succeeded", "succeeded"),
        "warn": ("worth knowing", "warn", "retry"),
        "wrong": ("needs you", "dead", "dead"),
        # switches
        "gate_open": ("open", "succeeded", "succeeded"),
        "gate_closed": ("closed", "gate", "retry"),
        "paused": ("paused", "waiting", "retry"),
        "serving": ("open", "succeeded", "succeeded"),
        # limiters
        "limit_blocked": ("blocked", "failed", "dead"),
        "limit_reopening": ("reopens", "retry", "retry"),
        "limit_limited": ("at its rate", "waiting", "waiting"),
        "limit_open": ("open", "succeeded", "succeeded"),
        # acts on all that match
        "bulk_waiting": ("waiting", "queued", "queued"),
        "bulk_working": ("working", "running", "running"),
        "bulk_stopping": ("stopping", "waiting", "retry"),
        "bulk_paused": ("paused", "waiting", "retry"),
        "bulk_aborted": ("aborted", "cancelled", "cancelled"),
        "bulk_done": ("done", "succeeded", "succeeded"),
        "bulk_failed": ("failed", "dead", "dead"),
        # events
        "claimed": ("claimed", "leased", "leased"),
        "started": ("started", "running", "running"),
        "completed": ("completed", "succeeded", "succeeded"),
        "suspended": ("suspended", "waiting", "waiting"),
        "woken": ("woken", "queued", "queued"),
        "reclaimed": ("reclaimed", "retry", "retry"),
        "cancel_requested": ("cancel asked", "cancelled", "cancelled"),
        "revived": ("revived", "retry", "running"),
        "progress": ("progress", "running", "running"),
        # workflows and approvals
        "tolerated": ("tolerated", "failed", "retry"),
        "blocked": ("blocked", "queued", "queued"),
        "skipped": ("skipped", "cancelled", "cancelled"),
        "compensated": ("compensated", "cancelled", "cancelled"),
        "approved": ("approved", "succeeded", "succeeded"),
        "denied": ("denied", "failed", "failed"),
        "active": ("active", "succeeded", "succeeded"),
        "revoked": ("revoked", "cancelled", "cancelled"),
    }
    looks.update({name: Look(*look) for name, look in told.items()})
    return looks


LOOKS: Final = _looks()


def look(state: str) -> Look:
    """How a state is shown; one that is not known keeps its own word in grey."""
    return LOOKS.get(state) or Look(state, "queued", "queued")


def number(value: float | None) -> str:
    """`1,284`; nothing for None."""
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def up_to(value: int, limit: int = MANY) -> str:
    """A count that stopped at `limit` says so."""
    return f"more than {limit:,}" if value > limit else f"{value:,}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """`1 job`, `1,284 jobs`."""
    return f"{value:,}{NBSP}{noun if value == 1 else plural or noun + 's'}"


ENTRIES: Final[Mapping[str, tuple[str, str]]] = {
    "approval": ("question", "questions"),
    "escalation": ("escalation", "escalations"),
    "effect": ("effect of unknown outcome", "effects of unknown outcome"),
    "budget": ("used-up budget", "used-up budgets"),
}
"""Kinds of what waits for a person: the word for one, for several."""


def asks(counts: Mapping[str, int]) -> str:
    """`2 questions and 1 effect of unknown outcome wait`; nothing if nothing does."""
    parts = [counted(counts[kind], *words) for kind, words in ENTRIES.items() if counts.get(kind)]
    told = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part) if parts else ""
    return f"{told} {'waits' if sum(counts.values()) == 1 else 'wait'}" if told else ""


def span(seconds: float | None) -> str:
    """A duration for people: `240 ms`, `8.2 s`, `5 min 33 s`, `2 h 4 min`, `3 d`."""
    if seconds is None:
        return ""
    value = abs(seconds)
    sign = "−" if seconds < 0 else ""
    if value < 0.9995:
        return f"{sign}{value * 1000:.0f}{NBSP}ms"
    if value < 9.95:
        return f"{sign}{value:.1f}{NBSP}s"
    whole = round(value)
    for unit, size, next_unit, next_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // next_size
            big = whole // size
            shows_rest = rest and not (unit == "d" and big >= 3)
            return f"{sign}{big}{NBSP}{unit}" + (f"{NBSP}{rest}{NBSP}{next_unit}" if shows_rest else "")
    return f"{sign}{whole}{NBSP}s"


def short_span(seconds: float | None) -> str:
    """The same with one unit: `5 min`, `2 h`."""
    told = span(seconds)
    return NBSP.join(told.split(NBSP)[:2])


def ago(at: datetime, now: datetime) -> str:
    """How far a moment lies from the store's time: `2 min ago`, `in 14 s`, `now`."""
    away = (now - at).total_seconds()
    if abs(away) < 1:
        return "now"
    return f"in{NBSP}{short_span(-away)}" if away < 0 else f"{short_span(away)}{NBSP}ago"


def clock(at: datetime) -> str:
    """`14:32:08`, in UTC."""
    return at.astimezone(UTC).strftime("%H:%M:%S")


def exact(at: datetime) -> str:
    """`2026-11-17 14:32:08 UTC`."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: datetime) -> str:
    """For `datetime=` attributes."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def size(value: int | None) -> str:
    """A number of bytes for people."""
    if value is None:
        return ""
    amount = float(value)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f}{NBSP}{unit}" if unit == "bytes" else f"{amount:.1f}{NBSP}{unit}"
        amount /= 1024
    return f"{amount:.1f}{NBSP}TiB"


def first_line(text: str | None, width: int = 200) -> str:
    """The first line of an error, cut."""
    line = (text or "").strip().split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def last_line(text: str | None, width: int = 200) -> str:
    """The last line of a traceback, which says what went wrong; cut."""
    line = (text or "").strip().rsplit("\n", 1)[-1]
    return line if len(line) <= width else line[: width - 1] + "…"


def is_command(text: str | None) -> bool:
    """Whether a line that helps is one command, to be copied as it stands: not several, not a sentence."""
    return bool(text and text.startswith("tenure ") and not re.search(r", (?:then|or):|  \(|…", text))


def segment(name: str) -> str:
    """A name as one part of an address. Servers hand addresses on decoded, so a slash is encoded twice."""
    return quote(name.replace("%", "%25").replace("/", "%2F"), safe="")


def name_of(part: str) -> str:
    """The name that a part of an address, as the server hands it on, was made from."""
    return unquote(part)


def short_id(value: str) -> str:
    """Enough of a UUIDv7 to tell jobs apart on one page: its beginning is a time, which many share, so its end too."""
    return f"{value[:8]}…{value[-4:]}" if len(value) > 20 else value
