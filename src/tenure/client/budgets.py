"""Budgets: `app.budgets`. How much jobs may spend, by scope and window, and what model calls used."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tenure.client.metrics import begin_of
from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import InvalidArgument
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.budget import (
    ON_EMPTY,
    PERIODS,
    SCOPE_CHARS,
    UNITS,
    Budget,
    Money,
    NewBudget,
    amounts_of,
    check_choice,
    check_scope,
)
from tenure.model.usage import BY, Usage
from tenure.store.budgets import ListBudgets, RaiseBudgets, RemoveBudgets, SetBudgets
from tenure.store.usage import SumUsage

PAGE_MAX = 1000
USAGE_ROWS_MAX = 1000
Found = list[Budget]
Removed = list[str]


class BudgetClient(Client):
    """Limits on what jobs spend."""

    @operation
    def set(
        self,
        scope: str,
        *,
        usd: Money | None = None,
        usd_micro: int | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        seconds: float | None = None,
        per: str = "total",
        on_empty: str = "park",
        actor: str | None = None,
        reason: str | None = None,
    ) -> Steps[Found]:
        """Set what the jobs of a scope may spend: one budget for each unit given. What is used already stays.

        Args:
            scope: `all`, `queue:NAME`, `kind:NAME`, `tenant:NAME`, `workflow:ID` or `job:ID`.
            usd: Dollars, as text (`"5.00"`), Decimal or int; `usd_micro` in millionths. Floats are refused.
            per: `hour`, `day`, `month` (in UTC) or `total`. A scope may have a budget for each.
            on_empty: `park`: a job that does not fit waits until the window ends or the budget is raised. `fail`: it
                ends as failed. `escalate`: it waits until a person raises the budget, and `tenure doctor` says so.

        Raises: InvalidArgument.
        """
        limits = amounts_of(usd=usd, usd_micro=usd_micro, tokens=tokens, calls=calls, seconds=seconds, is_limit=True)
        check_scope(scope)
        check_choice("per", per, PERIODS)
        check_choice("on_empty", on_empty, ON_EMPTY)
        budgets = [NewBudget(scope, unit, limit, per, on_empty) for unit, limit in limits.items()]
        return (yield from ask(SetBudgets(budgets, self._by(actor), reason)))

    @operation
    def raise_by(
        self,
        scope: str,
        *,
        usd: Money | None = None,
        usd_micro: int | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        seconds: float | None = None,
        per: str = "total",
        actor: str | None = None,
        reason: str | None = None,
    ) -> Steps[Found]:
        """Add to the limits of a scope's budgets. The waiting jobs that fit now are woken, and no others.

        Raises: NotFound, if there is no such budget; InvalidArgument.
        """
        amounts = amounts_of(usd=usd, usd_micro=usd_micro, tokens=tokens, calls=calls, seconds=seconds, is_limit=True)
        return (yield from ask(RaiseBudgets(scope, per, amounts, self._by(actor), reason)))

    @operation
    def all(self, scope: Names | None = None, *, limit: int = 200, after: str | None = None) -> Steps[Found]:
        """Budgets with what is used, reserved and left, by scope; behind `after`, the `name` of the last one."""
        scopes = (scope,) if isinstance(scope, str) else tuple(scope or ())
        for one in scopes:
            check_scope(one)
        if after is not None:
            arguments.text("after", after, SCOPE_CHARS * 4 + 50)
            if after.removeprefix("budget:").count(":") < 2:
                raise InvalidArgument(f"`after` is {after!r}; it is the `name` of a budget, as budget:SCOPE:UNIT:PER.")
        return (yield from ask(ListBudgets(scopes, arguments.whole("limit", limit, 1, PAGE_MAX), after)))

    @operation
    def remove(
        self,
        scope: str,
        *,
        unit: str | None = None,
        per: str | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Steps[Removed]:
        """Remove the budgets of a scope, all of them unless `unit` or `per` chooses. Answers their names.

        Jobs that wait for one of them go on, unless another budget holds them back.
        """
        check_scope(scope)
        if unit is not None:
            check_choice("unit", unit, UNITS)
        if per is not None:
            check_choice("per", per, PERIODS)
        return (yield from ask(RemoveBudgets(scope, self._by(actor), unit, per, reason)))

    @operation
    def usage(
        self,
        since: datetime | Duration | None = None,
        until: datetime | None = None,
        *,
        by: Literal["agent", "kind", "job"] = "agent",
        queues: Names | None = None,
        kinds: Names | None = None,
        limit: int = 100,
    ) -> Steps[Usage]:
        """Tokens and cost of the model calls that agent frameworks recorded as steps, the most tokens first.

        Counts the jobs that were made in the span, the newest first, up to 10,000 steps; `is_cut` says that there were
        more. A call whose worker died before it was recorded is not told, and neither are jobs whose data was pruned.

        Args:
            since: A moment, or how far back from now, in seconds or as a timedelta; all there is if left out.
            by: `agent` is the job's queue.

        Raises: InvalidArgument.
        """
        begin = yield from begin_of(since)
        request = SumUsage(
            arguments.word("by", by, BY),
            begin,
            None if until is None else arguments.moment("until", until),
            arguments.names("queues", queues),
            arguments.names("kinds", kinds),
            arguments.whole("limit", limit, 1, USAGE_ROWS_MAX),
        )
        return (yield from ask(request))


class SyncBudgets(BudgetClient, SyncClient):
    """`app.budgets`."""


class AsyncBudgets(BudgetClient, AsyncClient):
    """`app.aio.budgets`."""
