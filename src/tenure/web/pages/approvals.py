"""`/ui/approvals`: what waits for a person; of one question its exact arguments, who asks, who has answered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

from tenure.errors import Forbidden, NotFound, UsageError
from tenure.model.access import parse_scope
from tenure.model.approval import Approval, is_among, is_asker, same_name
from tenure.model.frozen import frozen
from tenure.web.pages import same_as
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import asks, first_line, span

ROWS: Final = 100
"""Of each kind of entry, the oldest."""
DECIDED: Final = 10
LATEST: Final = datetime.max.replace(tzinfo=UTC)
TONES: Final = {
    "pending": ("waits", "waiting"),
    "granted": ("approved", "succeeded"),
    "used": ("approved, used", "succeeded"),
    "denied": ("denied", "failed"),
    "expired": ("expired", "cancelled"),
    "void": ("void", "cancelled"),
}
"""Word and tone of a state."""
DOORS: Final = {
    "cli": "the command line",
    "console": "the console",
    "http": "the API",
    "link": "a signed link",
    "mcp": "MCP",
    "python": "Python",
}
"""Through what a person answered."""
WHYS: Final = {
    "changed": "its arguments changed, and it was asked anew",
    "ended": "its job ended",
    "forgotten": "its step was forgotten",
    "expiry": "no answer came, and that was to mean yes",
}


@frozen
class Asked:
    """One line of the inbox."""

    kind: str
    title: str
    sub: str
    path: str
    due: str
    count: str
    tone: str
    is_here: bool = False


def approvals(visit: Visit) -> Answer:
    """The inbox; with the question that expires first, or the one that the address names."""
    entries = visit.app.inbox(limit=ROWS)
    chosen = _chosen(visit, entries)
    now = visit.app.now()
    may_see = visit.viewer.may("approve") or visit.viewer.may("read:payload")
    decided = visit.app.approvals.all(state=("granted", "used", "denied", "expired", "void"), limit=DECIDED)
    counts = Counter[str](one.kind for one in entries)
    counts["approval"] = visit.app.approvals.count()
    lines = [_line(one, now, chosen) for one in sorted(entries, key=lambda one: (one.due_at or LATEST, one.since))]
    return Shown(
        "approvals.html",
        {
            "args": "" if chosen is None else json.dumps(chosen.args, indent=2, ensure_ascii=False),
            "chosen": chosen,
            "decided": decided.items,
            "doors": DOORS,
            "due": None if chosen is None else _due(chosen.expires_at, now),
            "keys": (("j k", "move"), ("Enter", "open")),
            "lines": lines,
            "may_see": may_see,
            "now": now,
            "refusal": None if chosen is None else _refusal(visit, chosen),
            "same": same_as.inbox() if chosen is None else same_as.approval(chosen.id),
            "section": "/approvals",
            "tones": TONES,
            "topic": "all",
            "waits": asks(counts),
            "left_out": sum(counts.values()) - len(lines),
            "whys": WHYS,
        },
    )


def answer(visit: Visit) -> Answer:
    """Approve or deny what was shown."""
    found = _find(visit)
    choice, note, seen = visit.given("choice"), visit.given("note"), visit.given("args_hash")
    if choice not in {"approve", "deny"} or not seen:
        raise UsageError("Choose one of the two answers. Nothing was changed.")
    if _works_for(visit, found):
        raise Forbidden(
            f"Approval {found.id}: {visit.viewer.name!r} may work for queue {found.queue!r}, which asks this, so "
            "another person has to answer. Nothing was changed."
        )
    act = visit.app.approvals.approve if choice == "approve" else visit.app.approvals.deny
    done = act(
        found.id, by=visit.viewer.name, args_hash=seen, note=note or None, groups=visit.viewer.groups, door="console"
    )
    visit.pulse.forget()
    said = {
        "granted": "Approved: the job goes on.",
        "denied": "Denied: the job goes on without it.",
        "pending": f"Your yes counts: {done.approved} of {done.need}.",
    }
    return Moved(visit.link(f"/approvals/{found.id}"), said.get(done.state, f"It is {done.state}."))


def _chosen(visit: Visit, entries: Sequence[Any]) -> Approval | None:
    if "approval_id" in visit.params:
        return _find(visit)
    asked = [one.subject for one in entries if isinstance(one.subject, Approval)]
    return min(asked, key=lambda one: (one.expires_at or LATEST, one.created_at), default=None)


def _find(visit: Visit) -> Approval:
    given = visit.params["approval_id"].lower()
    if not is_job_id(given):
        raise NotFound(f"There is no approval {first_line(given, 40)!r}.")
    return visit.app.approvals.get(given)


def _line(one: Any, now: datetime, chosen: Approval | None) -> Asked:
    due = _due(one.due_at, now) or ""
    if one.kind == "approval":
        asked: Approval = one.subject
        sub = f"{asked.kind or 'a job'} in {asked.queue}" if asked.queue else (asked.kind or "a job")
        count = f"{asked.approved} of {asked.need}"
        is_here = chosen is not None and chosen.id == asked.id
        title = asked.text or asked.name
        return Asked("approval", title, sub, f"/approvals/{asked.id}", due, count, "waiting", is_here)
    if one.kind == "escalation":
        sub = f"escalation, level {one.subject.level}, asked of {one.subject.person}"
        return Asked("escalation", one.title, sub, f"/workflows/{one.workflow_id}", due, "", "dead")
    if one.kind == "budget":
        sub = f"budget used up, since {span((now - one.since).total_seconds())}"
        return Asked("budget", one.title, sub, "/budgets", "", "", "waiting")
    sub = f"unknown effect, since {span((now - one.since).total_seconds())}"
    return Asked("effect", one.title, sub, f"/jobs/{one.job_id}?tab=effects", "", "", "unknown")


def _due(at: datetime | None, now: datetime) -> str | None:
    if at is None:
        return None
    left = (at - now).total_seconds()
    return span(left) if left > 0 else "over"


def _refusal(visit: Visit, found: Approval) -> Literal["scope", "involved", "asked", "answered"] | None:
    """Why this viewer cannot answer, None if they can. The store decides; this only saves a click."""
    who = visit.viewer.name
    if not visit.viewer.may("approve"):
        return "scope"
    if any(same_name(who, one) for one in found.involved) or _works_for(visit, found):
        return "involved"
    if found.asked_of and not is_among((who, *visit.viewer.groups), found.asked_of):
        return "asked"
    return "answered" if any(same_name(who, vote.voter) for vote in found.votes) else None


def _works_for(visit: Visit, found: Approval) -> bool:
    """Whether the viewer is the agent that asks."""
    return is_asker(found, visit.viewer.token_id, (parse_scope(one) for one in visit.viewer.scopes))
