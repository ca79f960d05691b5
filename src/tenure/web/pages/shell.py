"""What stands around every page: navigation, health, preferences; and how a view's answer becomes HTML."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.errors import TenureError
from tenure.model.frozen import frozen
from tenure.web.pages.changes import board_marker, with_shell
from tenure.web.pages.pulse import Health, Look
from tenure.web.pages.render import render
from tenure.web.pages.visit import Shown, Visit
from tenure.web.pages.words import number, span

TONES: Final = {"production": "dead", "staging": "retry"}
"""Colours of the environment's badge; others are green."""

KEYS: Final = (
    ("/", "filter, or find an id"),
    ("g o", "overview"),
    ("g j", "jobs"),
    ("g d", "dead letters"),
    ("g f", "workflows"),
    ("g a", "approvals"),
    ("g b", "bulk acts"),
    ("g q", "queues"),
    ("g w", "workers"),
    ("g s", "schedules"),
    ("g g", "gates"),
    ("g e", "agents"),
    ("g u", "budgets"),
    ("g l", "limits"),
    ("g r", "memory"),
    ("g n", "memos"),
    ("g m", "metrics"),
    ("g h", "health"),
    ("j", "next row"),
    ("k", "row before"),
    ("x", "select the row"),
    ("Enter", "open the row"),
    (".", "pause or go on with live updates"),
    ("?", "all keys"),
)


@frozen
class Entry:
    """One line of the navigation. A count that needs a person has a tone."""

    path: str
    name: str
    icon: str
    count: str = ""
    tone: str = ""


def page(visit: Visit, shown: Shown, began: float) -> str:
    """The whole page as HTML."""
    look, failed = _look(visit)
    now = look.at if look is not None else visit.app.now()
    here = visit.link(visit.path, **{name: value for name, value in visit.query.items() if name != "upto"})
    base: dict[str, Any] = {
        "answered_in": lambda: span(time.monotonic() - began),
        "all_keys": KEYS,
        "base": visit.root,
        "csrf": visit.csrf,
        "env_tone": TONES.get(visit.place.environment.lower(), "succeeded"),
        "health": failed or (look.health if look else _unknown()),
        "here": here,
        "is_live": visit.preferences.live == "on",
        "keys": (),
        "may": visit.viewer.may,
        "nav": _navigation(look),
        "notice": visit.notice,
        "now": now,
        "place": visit.place,
        "preferences": visit.preferences,
        "renew": here,
        "root": visit.root,
        "scripts": [],
        "seen": board_marker(look) if look is not None and shown.context.get("topic") == "all" else "",
        "output": "",
        "output_after": 0,
        "section": "/" + visit.path.strip("/").partition("/")[0],
        "styles": [],
        "times": visit.preferences.times,
        "topic": "",
        "viewer": visit.viewer,
        "link": visit.link,
    }
    context = base | dict(shown.context)
    context["page_keys"] = [one for one in context["keys"] if one[0] not in {"j k", *(key for key, _ in KEYS)}]
    if context["seen"] and context["topic"] != "all":
        context["seen"] = with_shell(context["seen"], look)
    return render(shown.template, context)


def _look(visit: Visit) -> tuple[Look | None, Health | None]:
    try:
        return visit.pulse.now(), None
    except TenureError as exc:
        return None, Health("The database does not answer.", f"No job is lost. {exc.code}", "dead", "warn")


def _unknown() -> Health:
    return Health("Looking.", "The first look at this database takes longer than two seconds.", "queued", "waiting")


def _navigation(look: Look | None) -> Sequence[tuple[str, Sequence[Entry]]]:
    counts: Mapping[str, tuple[str, str]] = {}
    if look is not None:
        seen = look.seen
        counts = {
            "/jobs": (number(look.outstanding), ""),
            "/dead-letters": (f"{look.pending_groups} new", "dead") if look.pending_groups else ("", ""),
            "/approvals": (f"{look.asking} ask", "waiting") if look.asking else ("", ""),
            "/queues": (number(len(seen.queues)), ""),
            "/workers": (number(look.live_workers), ""),
            "/gates": (f"{look.shut_gates} shut", "retry") if look.shut_gates else ("", ""),
        }

    def entry(path: str, name: str, icon: str) -> Entry:
        return Entry(path, name, icon, *counts.get(path, ("", "")))

    return (
        (
            "",
            (
                entry("/", "Overview", "overview"),
                entry("/jobs", "Jobs", "jobs"),
                entry("/dead-letters", "Dead letters", "letters"),
                entry("/workflows", "Workflows", "flow"),
                entry("/approvals", "Approvals", "approve"),
                entry("/bulk", "Bulk acts", "bulk"),
            ),
        ),
        (
            "Run",
            (
                entry("/queues", "Queues", "queues"),
                entry("/workers", "Workers", "workers"),
                entry("/schedules", "Schedules", "clock"),
                entry("/gates", "Gates", "gate"),
            ),
        ),
        (
            "Agents",
            (
                entry("/agents", "Agents", "agent"),
                entry("/memory", "Memory", "memory"),
                entry("/memos", "Memos", "copy"),
                entry("/budgets", "Budgets", "budget"),
                entry("/limits", "Limits", "limit"),
            ),
        ),
        (
            "Look back",
            (
                entry("/metrics", "Metrics", "health"),
                entry("/health", "Health", "check"),
                entry("/audit", "Audit", "audit"),
            ),
        ),
        ("Set up", (entry("/access", "Access", "key"), entry("/connect", "Connect", "plug"))),
    )
