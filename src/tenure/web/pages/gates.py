"""`/ui/gates`: switches that stop work, with who closed them."""

from __future__ import annotations

from tenure.errors import NotFound
from tenure.observe import audited
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Moved, Shown, Visit

MEANS = {
    "master": "Nothing is enqueued and nothing is claimed.",
    "worker": "No worker is given jobs. Enqueue goes on.",
    "notify": "Workers are not woken; they find jobs by polling.",
    "queue:": "No job of this queue is claimed.",
    "kind:": "No job of this kind is claimed.",
    "worker:": "This worker is given no jobs, and ends what it holds.",
    "heartbeat": "The rows of workers are not refreshed; leases are.",
}


def gates(visit: Visit) -> Answer:
    """The page."""
    rows = visit.app.gates.all()
    reasons = {one.name: audited.reason(visit.app.store, one.name, "close_gate") for one in rows if not one.is_open}
    return Shown(
        "gates.html",
        {
            "gates": rows,
            "keys": (("j k", "move"),),
            "means": MEANS,
            "now": visit.app.now(),
            "queues": [one.name for one in visit.app.queues.all()],
            "reasons": reasons,
            "same": same_as.gates(),
            "topic": "all",
        },
    )


def act(visit: Visit) -> Answer:
    """Open or close a gate."""
    verb, name = visit.params["act"], visit.given("gate")
    if verb not in {"open", "close"}:
        raise NotFound(f"There is no act {verb!r} of a gate.")
    reason = visit.reason() if verb == "close" else visit.given("reason") or None
    change = visit.app.gates.open if verb == "open" else visit.app.gates.close
    gate = change(name, actor=visit.viewer.name, reason=reason)
    visit.pulse.forget()
    return Moved(visit.link("/gates"), f"Gate {gate.name} is {'open' if gate.is_open else 'closed'}.")
