"""Budgets: reserve before, settle after.

**Never above the limit.** A reservation is made only if it fits into every budget that concerns the job: those of `all`
and of its queue, kind, tenant, workflow and of the job itself. What is reserved counts as used. A reservation that
names no amount of a budget's unit reserves all that is left of it, because its cost is not known: until it is settled
no other job spends of that budget. Its settle says what it was; work that ended well and says nothing has spent nothing
of it. An amount of 0 says that nothing will be spent: it needs no room.

**Fails closed.** What a reservation did cost is told by its settle. Where that never comes, because the worker died or
its handler raised, the whole reservation counts as used: the money may be spent. A settle that comes late corrects it,
even after the job has passed on, because a known usage is better than a guess.

**Windows.** A budget per hour, day or month (UTC) begins anew with each; what was reserved in a window counts there,
whenever it is settled. A new window makes room like a raise: jobs are woken that fit, and no others. Jobs that wait for
a budget with `on_empty` escalate stay as they are until it is raised.

**No wake-up is lost.** A job that does not fit parks on an open step of kind `budget`; its `awaits` names the budget
that refused, its value tells what is asked for. Whatever makes room (a raise, a settle below the reservation, a removed
budget) leaves an event after it has changed the budget's row. The sweep locks that row before it looks, so it sees the
room, or the one who makes room sees the waiting step. It goes through those who wait in the order in which they began
to, and reserves for each that fits: so a raise wakes exactly as many as it pays for. The reservation belongs to the job
from then on; the attempt that follows takes it over. On SQLite the same is done at once, by the one writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from tenure.errors import InvalidArgument
from tenure.model.budget import (
    ON_EMPTY,
    PERIODS,
    UNITS,
    Amounts,
    Budget,
    NewBudget,
    Refusal,
    check_amount,
    check_choice,
    check_scope,
)
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, new_job_id
from tenure.store.contract import Request

KEY_CHARS = 200


@frozen
class SetBudgets(Request[list[Budget]]):
    """Create budgets, or change the limit and `on_empty` of those that are there. What they have used stays.

    All or none; answers them as they stand, in the order given. Leaves an audit row for each.

    Raises: InvalidArgument (a scope, unit, window or amount that is none).
    """

    budgets: Sequence[NewBudget]
    actor: str
    reason: str | None = None


@frozen
class RaiseBudgets(Request[list[Budget]]):
    """Add to the limits of the budgets of a scope and window, by unit. Wakes the jobs that fit now; audited.

    Repeating the same request (by `id`) adds nothing. All or none.

    Raises: NotFound (there is no such budget), InvalidArgument.
    """

    scope: str
    per: str
    amounts: Amounts
    actor: str
    reason: str | None = None
    id: str = field(default_factory=new_job_id)


@frozen
class RemoveBudgets(Request[list[str]]):
    """Remove the budgets of a scope, of all units and windows unless named. Answers their names; audited.

    Jobs that wait for one of them are looked at anew.
    """

    scope: str
    actor: str
    unit: str | None = None
    per: str | None = None
    reason: str | None = None


@frozen
class ListBudgets(Request[list[Budget]]):
    """Budgets by scope, unit and window, behind `after` (the last one's name); with `scopes`, only of these. With
    `is_escalated`, only those with `on_empty` escalate for which jobs wait.

    A window that has ended is shown as begun anew.
    """

    scopes: Sequence[str] = ()
    limit: int = 200
    after: str | None = None
    is_escalated: bool = False


@frozen
class Reserved:
    """What became of a reservation."""

    refusal: Refusal | None = None
    """None: it is made."""
    is_paid: bool = False
    """An earlier attempt has reserved and settled the same, so nothing was reserved."""
    is_limited: bool = False
    """Budgets concern this job, so that a settle has something to write."""


@frozen
class ReserveBudget(Request[Reserved | None]):
    """Reserve amounts for a held job in every budget that concerns it, all or none; None if the lease is lost.

    `key` tells the reservations of one attempt apart; repeating the request is harmless. A reservation that was made
    for the job while it waited is taken over. What earlier attempts have reserved and not settled counts as used from
    now on. With `is_once`, a key that an earlier attempt has settled well is paid for and reserves nothing, except what
    was given back when the job began to wait.

    Raises: InvalidArgument; IllegalMove (this attempt has settled the key already).
    """

    job_id: JobId
    token: Token
    key: str
    amounts: Amounts
    is_once: bool = False


@frozen
class SettleBudget(Request[bool]):
    """Say what a reservation has cost. False if there is no such reservation.

    Units that `used` leaves out count as reserved. `is_unused`: nothing was spent, and the reservation goes. Not
    `is_done`: the work did not end well, so a later attempt reserves anew. `is_parked`: the job waits in the middle of
    the work. Amounts that were named count from then on, in full at least; where none was named, what `used` does not
    tell is given back, and a later attempt reserves anew. Not fenced by the lease: a usage that is known counts however
    late it comes. Repeating is harmless.
    """

    job_id: JobId
    token: Token
    key: str
    used: Amounts = field(default_factory=dict)
    is_unused: bool = False
    is_done: bool = True
    is_parked: bool = False


def check_budgets(request: SetBudgets) -> None:
    """Refuse budgets that no store can hold."""
    for one in request.budgets:
        check_scope(one.scope)
        check_amount(one.unit, one.limit)
        check_choice("per", one.per, PERIODS)
        check_choice("on_empty", one.on_empty, ON_EMPTY)
    if not request.budgets:
        raise InvalidArgument(f"A budget needs at least one limit: {', '.join(UNITS)}. Nothing was changed.")
    if len({(one.scope, one.unit, one.per) for one in request.budgets}) < len(request.budgets):
        raise InvalidArgument("The same budget was given twice in one request. Nothing was changed.")


def check_raise(request: RaiseBudgets) -> None:
    """Refuse a raise that raises nothing."""
    check_scope(request.scope)
    check_choice("per", request.per, PERIODS)
    if not request.amounts:
        raise InvalidArgument(f"A raise needs at least one amount: {', '.join(UNITS)}. Nothing was changed.")
    for unit, amount in request.amounts.items():
        if check_amount(unit, amount) == 0:
            raise InvalidArgument(f"{unit}: a raise by 0 changes nothing. To lower a limit, set it anew.")


def check_reserve(key: str, amounts: Amounts) -> None:
    """Refuse a reservation that cannot be kept."""
    if not key.strip() or len(key) > KEY_CHARS or "\0" in key:
        raise InvalidArgument(f"A reservation's key is a text of 1 to {KEY_CHARS} characters, not {key[:50]!r}.")
    for unit, amount in amounts.items():
        check_amount(unit, amount)
