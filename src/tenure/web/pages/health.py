"""`/ui/health`: what the doctor finds, each with the command that fixes it."""

from __future__ import annotations

from tenure.observe.browse import inspect
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Shown, Visit

ORDER = {"wrong": 0, "warn": 1, "ok": 2}


def health(visit: Visit) -> Answer:
    """The page."""
    look = visit.pulse.now()
    checks = sorted(look.checks, key=lambda one: ORDER[one.status]) if look else []
    return Shown(
        "health.html",
        {
            "checks": checks,
            "engine": inspect(visit.app.store),
            "keys": (("j k", "move"),),
            "glance": look,
            "now": visit.app.now(),
            "same": same_as.health(),
            "topic": "",
        },
    )
