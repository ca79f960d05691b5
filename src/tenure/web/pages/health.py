"""`/ui/health`: what the doctor finds, each with the command that fixes it; and the records compared with the world."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from tenure.effects.reconcile import Discrepancy
from tenure.errors import UsageError
from tenure.model.frozen import frozen
from tenure.observe.browse import inspect
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Shown, Visit

ORDER = {"wrong": 0, "warn": 1, "ok": 2}
SINCE: Final[Mapping[str, tuple[str, timedelta | None]]] = {
    "1h": ("the last hour", timedelta(hours=1)),
    "1d": ("the last day", timedelta(days=1)),
    "7d": ("the last seven days", timedelta(days=7)),
    "all": ("all that is kept", None),
}
PLACES: Final[Mapping[str, str]] = {
    "budget": "/budgets",
    "dead letters": "/dead-letters",
    "gate": "/gates",
    "lag": "/queues",
    "limiter": "/limits",
    "paused": "/queues",
    "quarantine": "/gates",
    "stuck": "/jobs?q=state:running,leased",
    "unknown kind": "/workers",
    "unserved": "/workers",
    "upkeep": "/workers",
    "workers": "/workers",
}
"""Where a page has more about a finding, and the buttons that help."""
SECONDS: Final = 20.0
"""How long a page compares; the command line has no such bound."""
FOUND: Final = 200


class _TimeIsOver(Exception):
    """Ends a comparison in the middle."""


@frozen
class Compared:
    """What a comparison found."""

    checked: int
    found: list[Discrepancy]
    since: str
    is_whole: bool
    """Whether all of it was compared: neither time nor room ran out."""
    seconds: float


def health(visit: Visit) -> Answer:
    """The page."""
    return _page(visit, None)


def reconcile(visit: Visit) -> Answer:
    """Compare what succeeded with the world, within a bound, and show what differs. Nothing is fixed."""
    since = visit.given("since", "1d")
    if since not in SINCE:
        raise UsageError(f"Since when? One of {', '.join(SINCE)}.")
    if not _can_compare(visit):
        raise UsageError(
            "This server knows no kind or effect that can be compared with the world. Start it with the app that does "
            "the work: `tenure serve MODULE:APP`."
        )
    return _page(visit, _compare(visit, since))


def _compare(visit: Visit, since: str) -> Compared:
    began = time.monotonic()
    checked, found = 0, []
    says, back = SINCE[since]

    def tell(by: int) -> None:
        nonlocal checked
        checked += by
        if time.monotonic() - began > SECONDS:
            raise _TimeIsOver

    is_whole = True
    try:
        for one in visit.app.effects.reconcile(since=None if back is None else visit.app.now() - back, progress=tell):
            found.append(one)
            if len(found) >= FOUND:
                is_whole = False
                break
    except _TimeIsOver:
        is_whole = False
    return Compared(checked, found, says, is_whole, time.monotonic() - began)


def _can_compare(visit: Visit) -> bool:
    registry: Any = visit.app.registry
    return bool(registry.checkers or registry.verifiers)


def _page(visit: Visit, compared: Compared | None) -> Answer:
    look = visit.pulse.now()
    return Shown(
        "health.html",
        {
            "can_compare": _can_compare(visit),
            "checks": sorted(look.checks, key=lambda one: ORDER[one.status]) if look else [],
            "compared": compared,
            "engine": inspect(visit.app.store),
            "keys": (("j k", "move"),),
            "glance": look,
            "now": visit.app.now(),
            "places": PLACES,
            "same": same_as.health(),
            "since": SINCE,
            "topic": "",
        },
    )
