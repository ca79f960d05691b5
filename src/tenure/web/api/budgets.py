"""Budgets: how much jobs may spend. Amounts are answered as whole numbers, of usd and seconds in millionths."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response
from pydantic import Field, StrictFloat, StrictInt

from tenure.web.api.operate import ChangedNames, Listed
from tenure.web.api.shapes import (
    Answer,
    Cursor,
    Here,
    JsonAnswer,
    Limit,
    Names,
    Reason,
    Strict,
    Who,
    next_cursor,
    paged,
    plain,
)
from tenure.web.problems import Problem, not_found
from tenure.web.routes import Route

ScopeText = Annotated[
    str, Field(min_length=1, max_length=250, description="all, queue:NAME, kind:NAME, tenant:NAME, …")
]
Word = Annotated[str, Field(min_length=1, max_length=20)]


class Amounts(Strict):
    """What to set or to add, by unit. Dollars as text, as in "5.00", so that no digit is lost; or `usd_micro`."""

    scope: ScopeText
    per: Word = "total"
    usd: Annotated[str, Field(max_length=40)] | StrictInt | StrictFloat | None = None
    usd_micro: StrictInt | None = None
    tokens: StrictInt | None = None
    calls: StrictInt | None = None
    seconds: StrictInt | StrictFloat | None = None
    reason: Reason | None = None

    def given(self) -> dict[str, Any]:
        """The amounts alone."""
        return {name: getattr(self, name) for name in ("usd", "usd_micro", "tokens", "calls", "seconds")}


class BudgetBody(Amounts):
    """Limits of a scope, and what becomes of a job that does not fit."""

    on_empty: Word = "park"


class RemoveBody(Strict):
    """Which budgets of a scope; all of them unless chosen."""

    scope: ScopeText
    unit: Word | None = None
    per: Word | None = None
    reason: Reason | None = None


async def budgets(
    site: Here,
    who: Who,
    scope: Annotated[list[ScopeText] | None, Query(max_length=50)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List budgets with what is used, reserved and left, and how many jobs wait for them."""
    chosen, after = await paged(site, who, "budgets", cursor, {"scope": scope})
    found = await who.app.aio.budgets.all(chosen.get("scope"), limit=limit, after=after)
    last = found[-1].name if len(found) == limit else None
    items = [{**plain(one), "name": one.name, "left": one.left} for one in found]
    return JsonAnswer({"items": items, "next": await next_cursor(site, who, "budgets", chosen, last)})


async def set_budget(who: Who, body: BudgetBody) -> Response:
    """Set what the jobs of a scope may spend. What is used already stays."""
    found = await who.app.aio.budgets.set(
        body.scope, **body.given(), per=body.per, on_empty=body.on_empty, actor=who.name, reason=body.reason
    )
    return JsonAnswer({"items": plain(found), "next": None})


async def raise_budget(who: Who, body: Amounts) -> Response:
    """Add to the limits of a scope. Waiting jobs that fit now are woken."""
    found = await who.app.aio.budgets.raise_by(
        body.scope, **body.given(), per=body.per, actor=who.name, reason=body.reason
    )
    return JsonAnswer({"items": plain(found), "next": None})


async def remove_budgets(who: Who, body: RemoveBody) -> Response:
    """Remove budgets of a scope, all of them unless unit or window chooses."""
    removed = await who.app.aio.budgets.remove(
        body.scope, unit=body.unit, per=body.per, actor=who.name, reason=body.reason
    )
    if not removed:
        raise not_found()
    return JsonAnswer({"changed": removed})


async def usage(
    who: Who,
    by: Annotated[Literal["agent", "kind", "job"], Query(description="`agent` is the job's queue.")] = "agent",
    since: Annotated[datetime | None, Query(description="Jobs made at this moment or later.")] = None,
    until: Annotated[datetime | None, Query(description="Jobs made before this moment.")] = None,
    queue: Names = None,
    kind: Names = None,
    limit: Limit = 100,
) -> Response:
    """Add up tokens and cost of the model calls that agents recorded, the most tokens first.

    `is_cut` says that there were more steps than one sum reads, so that older jobs of the span are missing.
    """
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise Problem(422, "invalid_argument", f"/{name}: it needs a time zone, as in 2026-01-31T12:00:00Z.")
    found = await who.app.aio.budgets.usage(since, until, by=by, queues=queue, kinds=kind, limit=limit)
    return JsonAnswer({"items": found.rows, "is_cut": found.is_cut})


class UsageAnswer(Answer):
    """One row for each agent, kind or job. `usd_micro` are millionths of a dollar."""

    items: list[dict[str, Any]]
    is_cut: bool


_V: Final = "/api/v1"
ROUTES: Final = (
    Route("GET", f"{_V}/budgets", "read:meta", None, budgets, "budgets", answers=Listed),
    Route("PUT", f"{_V}/budgets", "operate", "set_budget", set_budget, "budgets", answers=Listed),
    Route("POST", f"{_V}/budgets/raise", "operate", "raise_budget", raise_budget, "budgets", answers=Listed),
    Route("POST", f"{_V}/budgets/remove", "operate", "remove_budget", remove_budgets, "budgets", answers=ChangedNames),
    Route("GET", f"{_V}/usage", "read:meta", None, usage, "budgets", answers=UsageAnswer),
)
