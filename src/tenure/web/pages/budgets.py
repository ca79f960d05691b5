"""`/ui/budgets`: how much jobs may spend, what is used and reserved, who waits; raise, set and remove with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from tenure import Budget
from tenure.errors import NotFound, UsageError
from tenure.model.budget import ON_EMPTY, PERIODS, UNITS, check_choice, show_amount
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.web.pages import same_as
from tenure.web.pages.changes import BUDGETS, budgets_marker_of
from tenure.web.pages.filter_words import token
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted, segment

WAITING: Final = 200
"""How many of the newest waiting jobs are looked at to tell who waits for which budget."""
NAMED: Final = 4
"""How many of them one line names."""
NEARLY: Final = 0.9
MEANS: Final = {"park": "waits", "fail": "fails", "escalate": "waits for a person"}
TONES: Final = {"full": "dead", "nearly": "retry", "room": "succeeded"}


@frozen
class Line:
    """One budget."""

    budget: Budget
    path: str
    """The page of what it limits; empty for all."""
    state: str
    """full, nearly, room."""
    used_share: float
    reserved_share: float
    amounts: Mapping[str, str]
    """used, reserved, limit and left, with their unit; `_bare` without."""
    waiting: Sequence[Job]
    """Some of the jobs that wait for it."""

    @property
    def tone(self) -> str:
        return TONES[self.state]


def budgets(visit: Visit) -> Answer:
    """The page."""
    found = visit.app.budgets.all(limit=BUDGETS, after=visit.asked("after") or None)
    waiting: dict[str, list[Job]] = {}
    if any(one.waiting for one in found):
        for job in visit.app.jobs(state="waiting", limit=WAITING):
            waiting.setdefault(job.waiting_for or "", []).append(job)
    lines = [_line(one, waiting.get(one.name, ())) for one in found]
    return Shown(
        "budgets.html",
        {
            "full": sum(1 for one in lines if one.state == "full"),
            "keys": (("j k", "move"),),
            "lines": lines,
            "means": MEANS,
            "named": NAMED,
            "newest": visit.link("/budgets") if visit.asked("after") else None,
            "now": visit.app.now(),
            "older": visit.link("/budgets", after=found[-1].name) if len(found) == BUDGETS else None,
            "on_empty": ON_EMPTY,
            "periods": PERIODS,
            "same": same_as.budgets(),
            "section": "/budgets",
            "topic": "budgets",
            "seen": budgets_marker_of(found),
            "units": UNITS,
            "waiting": sum(one.waiting for one in found),
        },
    )


def confirm(visit: Visit) -> Answer:
    """The question before a budget is raised or removed."""
    act = visit.params["act"]
    if act not in {"raise", "remove"}:
        raise NotFound(f"There is no act {act!r} of a budget.")
    found = _find(visit, visit.asked("scope"), visit.asked("unit"), visit.asked("per"))
    return Shown(
        "budget_confirm.html",
        {
            "act": act,
            "line": _line(found, ()),
            "same": same_as.budget(act, found.scope, found.unit, found.per),
            "section": "/budgets",
        },
    )


def act(visit: Visit) -> Answer:
    """Set, raise or remove a budget."""
    verb, who = visit.params["act"], visit.viewer.name
    scope, unit, per = visit.given("scope"), visit.given("unit"), visit.given("per")
    if verb not in {"set", "raise", "remove"}:
        raise NotFound(f"There is no act {verb!r} of a budget.")
    reason = visit.reason()
    check_choice("unit", unit, UNITS)
    back = visit.link("/budgets")
    visit.pulse.forget()
    if verb == "remove":
        gone = visit.app.budgets.remove(scope, unit=unit, per=per, actor=who, reason=reason)
        return Moved(back, f"The budget of {scope} is removed." if gone else "It was removed already.")
    amount = visit.given("amount")
    if not amount:
        raise UsageError("How much? Write an amount, as in 5.00. Nothing was changed.")
    given: dict[str, Any] = {unit: amount}
    if verb == "raise":
        before = _find(visit, scope, unit, per)
        (now,) = visit.app.budgets.raise_by(scope, **given, per=per, actor=who, reason=reason)
        went_on = before.waiting - now.waiting
        woken = f" {counted(went_on, 'job')} went on." if went_on > 0 else ""
        return Moved(back, f"{scope}: the limit is {show_amount(unit, now.limit)} now.{woken}")
    on_empty = visit.given("on_empty") or "park"
    (made,) = visit.app.budgets.set(scope, **given, per=per, on_empty=on_empty, actor=who, reason=reason)
    return Moved(back, f"{scope}: {show_amount(unit, made.limit)}{'' if per == 'total' else f' per {per}'}.")


def _line(one: Budget, waiting: Sequence[Job]) -> Line:
    whole = max(one.limit, 1)
    used = min(1.0, one.used / whole)
    reserved = min(1.0 - used, one.reserved / whole)
    taken = (one.used + one.reserved) / whole
    state = "full" if not one.left else "nearly" if taken >= NEARLY else "room"
    amounts = {name: show_amount(one.unit, getattr(one, name)) for name in ("used", "reserved", "limit", "left")}
    amounts |= {f"{name}_bare": amounts[name].rpartition(" ")[0] for name in ("used", "reserved", "left")}
    return Line(one, _path(one.scope), state, round(100 * used, 2), round(100 * reserved, 2), amounts, waiting)


def _path(scope: str) -> str:
    sort, _, name = scope.partition(":")
    if sort in {"queue", "workflow", "job"}:
        return f"/{sort}s/{segment(name)}"
    return f"/jobs?{urlencode({'q': token(sort, name)})}" if sort in {"kind", "tenant"} else ""


def _find(visit: Visit, scope: str, unit: str, per: str) -> Budget:
    found = next((one for one in visit.app.budgets.all(scope) if (one.unit, one.per) == (unit, per)), None)
    if found is None:
        raise NotFound(f"There is no budget of {scope[:60]!r} in {unit[:20]} ({per[:20]}). It may have been removed.")
    return found
