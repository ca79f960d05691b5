"""Budgets. `store.budgets` is the specification. One writer at a time: whatever makes room looks at once who waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.model.budget import AMOUNT_MAX, Amounts, Budget, Refusal, budget_name, parts_of, window_of
from tenure.model.clock import from_us, to_us
from tenure.model.ids import JobId, Token, new_job_id
from tenure.store.budgets import (
    ListBudgets,
    RaiseBudgets,
    RemoveBudgets,
    ReserveBudget,
    Reserved,
    SetBudgets,
    SettleBudget,
    check_budgets,
    check_raise,
    check_reserve,
)
from tenure.store.sqlite import admin, flow, steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

_SQL: Final = load("budgets")
_FLOW: Final = load("flow")


class _Budget(NamedTuple):
    """A row of `budgets_of`."""

    id: str
    scope: str
    unit: str
    per: str
    cap: int
    used: int
    reserved: int
    on_empty: str
    window_from: int | None
    window_until: int | None
    updated_at: int
    raises: str

    @property
    def name(self) -> str:
        return budget_name(self.scope, self.unit, self.per)

    @property
    def room(self) -> int:
        return self.cap - self.used - self.reserved

    def fits(self, amount: int | None) -> bool:
        """None stands for a cost that is not known: it fits while anything is left."""
        return self.room > 0 if amount is None else amount == 0 or amount <= self.room


class _Spend(NamedTuple):
    """A row of `spends_of`."""

    job_id: str
    token: int
    key: str
    budget_id: str
    state: str
    reserved: int
    used: int
    window_from: int | None
    is_rest: int

    def place(self) -> dict[str, Any]:
        return {"job_id": self.job_id, "token": self.token, "key": self.key, "budget_id": self.budget_id}


# --- budgets: acts of people


def set_budgets(transaction: Transaction, request: SetBudgets) -> list[Budget]:
    """See store.budgets.SetBudgets."""
    check_budgets(request)
    for one in request.budgets:
        window = _window(one.per, transaction.now)
        values = {
            "id": new_job_id(),
            "scope": one.scope,
            "unit": one.unit,
            "per": one.per,
            "cap": one.limit,
            "on_empty": one.on_empty,
            "window_from": window[0],
            "window_until": window[1],
            "now": transaction.now,
        }
        transaction.run(_SQL["budget_put"], values)
        name = budget_name(one.scope, one.unit, one.per)
        detail = {"limit": one.limit, "on_empty": one.on_empty}
        admin.audit(transaction, request.actor, "set_budget", name, request.reason, detail)
        wake(transaction, name)
    return [_shown(transaction, one.scope, one.unit, one.per) for one in request.budgets]


def raise_budgets(transaction: Transaction, request: RaiseBudgets) -> list[Budget]:
    """See store.budgets.RaiseBudgets."""
    check_raise(request)
    for unit, amount in request.amounts.items():
        found = _find(transaction, request.scope, unit, request.per)
        if not found:
            raise NotFound(
                f"There is no budget of {request.scope} in {unit} per {request.per}, so there is nothing to raise. "
                "Nothing was changed. `tenure budgets ls` lists budgets, `tenure budgets set` makes one."
            )
        if request.id in json.loads(found[0].raises):
            continue
        if found[0].cap + amount > AMOUNT_MAX:
            raise InvalidArgument(
                f"{unit}: a budget holds up to {AMOUNT_MAX} (usd and seconds in millionths), and with {amount} more it "
                f"would have {found[0].cap + amount}. Nothing was changed."
            )
        values = {"id": found[0].id, "amount": amount, "raise_id": request.id, "now": transaction.now}
        transaction.run(_SQL["budget_raise"], values)
        detail = {"by": amount, "limit": found[0].cap + amount}
        admin.audit(transaction, request.actor, "raise_budget", found[0].name, request.reason, detail)
        wake(transaction, found[0].name)
    return [_shown(transaction, request.scope, unit, request.per) for unit in request.amounts]


def remove_budgets(transaction: Transaction, request: RemoveBudgets) -> list[str]:
    """See store.budgets.RemoveBudgets."""
    found = _find(transaction, request.scope, request.unit, request.per)
    for one in found:
        transaction.run(_SQL["budget_remove"], {"id": one.id})
        detail = {"limit": one.cap, "used": one.used, "reserved": one.reserved}
        admin.audit(transaction, request.actor, "remove_budget", one.name, request.reason, detail)
    for one in found:
        wake(transaction, one.name)
    return [one.name for one in found]


def list_budgets(transaction: Transaction, request: ListBudgets) -> list[Budget]:
    """See store.budgets.ListBudgets."""
    check_limit(request.limit)
    scope, unit, per = (None, None, None) if request.after is None else parts_of(request.after)
    scopes = dump(list(request.scopes)) if request.scopes else None
    place = {"scope": scope, "unit": unit, "per": per}
    values = {"scopes": scopes, **place, "limit": request.limit, "is_escalated": request.is_escalated}
    return [_budget(row, transaction.now) for row in transaction.all(_SQL["budgets_list"], values)]


# --- reservations


def reserve_budget(transaction: Transaction, request: ReserveBudget) -> Reserved | None:
    """See store.budgets.ReserveBudget."""
    check_reserve(request.key, request.amounts)
    if steps.held_job(transaction, request.job_id, request.token) is None:
        return None
    values = {"job_id": request.job_id, "key": request.key}
    found = [_Spend(*row) for row in transaction.all(_SQL["spends_of"], values)]
    mine = [one for one in found if one.token == request.token and one.key == request.key and one.state != "granted"]
    if any(one.state != "held" for one in mine):
        raise IllegalMove(f"The reservation {request.key!r} of job {request.job_id} is settled. Use another key.")
    if mine:
        return Reserved(is_limited=True)
    owed = _owed(found, request.key) if request.is_once else None
    if owed is not None and not owed:
        return Reserved(is_paid=True)
    for one in found:
        if one.state == "held" and one.token < request.token:
            _end(transaction, one, one.reserved, "broken")
    budgets = _budgets_of(transaction, request.job_id, owed)
    granted = [one for one in found if one.state == "granted"]
    if granted:
        if _is_same(granted, budgets, request.amounts):
            transaction.run(_SQL["spend_take_over"], {**values, "token": request.token})
            return Reserved(is_limited=True)
        _drop(transaction, granted)
        budgets = _budgets_of(transaction, request.job_id, owed)
    refusal = _hold(transaction, request.job_id, request.token, request.key, request.amounts, budgets, "held")
    return Reserved(refusal, is_limited=bool(budgets))


def settle_budget(transaction: Transaction, request: SettleBudget) -> bool:
    """See store.budgets.SettleBudget."""
    check_reserve(request.key, request.used)
    values = {"job_id": request.job_id, "token": request.token, "key": request.key}
    found = [_Spend(*row) for row in transaction.all(_SQL["spends_settled"], values)]
    open_ = [one for one in found if one.state in ("held", "broken")]
    if request.is_unused:
        _drop(transaction, open_)
        return bool(found)
    units: dict[str, str] = dict(transaction.all(_SQL["units"], {"ids": dump([one.budget_id for one in open_])}))
    freed = set()
    for one in open_:
        unit = units.get(one.budget_id, "")
        untold = one.used if one.state == "broken" else one.reserved
        state = "done" if request.is_done else "broken"
        if one.is_rest and request.is_done:
            untold = 0
            state = "broken" if request.is_parked else state
        amount = request.used.get(unit, untold)
        if request.is_parked:
            amount = max(amount, untold)
        freed.add(_end(transaction, one, amount, state))
    for name in sorted(name for name in freed if name is not None):
        wake(transaction, name)
    return bool(found)


def forget_spends(transaction: Transaction, ids: str) -> None:
    """Jobs (a JSON array of ids) have just been cleaned."""
    transaction.run(_SQL["spends_forget"], {"ids": ids})


def end_left(transaction: Transaction, limit: int) -> int:
    """Count reservations as used whose grant is over, and give back those that were made for jobs that have ended.
    Answers how many."""
    left = [_Spend(*row) for row in transaction.all(_SQL["spends_left"], {"limit": limit})]
    for one in left:
        if one.state == "held":
            _end(transaction, one, one.reserved, "broken")
    _drop(transaction, [one for one in left if one.state == "granted"])
    return len(left)


# --- those who wait


def turn_over(transaction: Transaction, limit: int) -> int:
    """Begin windows anew that jobs wait for, and leave events for these jobs. Answers how many windows."""
    over = transaction.all(_SQL["budgets_over"], {"now": transaction.now, "limit": limit})
    return len([_turned(transaction, _Budget(*row)) for row in over])


def close_if_fits(transaction: Transaction, job_id: JobId, token: Token, key: str) -> bool:
    """A job is about to wait for a budget: whether its reservation fits after all. It is made then."""
    row = transaction.one(_SQL["budget_step"], {"job_id": job_id, "key": key})
    if row is None:
        return False
    asked = json.loads(row[0] or "{}")
    if _hold_asked(transaction, job_id, token, asked) is not None:
        return False
    _close(transaction, job_id, key, row[0])
    return True


def wake(transaction: Transaction, awaits: str, limit: int = flow.WAKE_LIMIT) -> int:
    """A budget may have room: reserve for those who wait for it and fit, in the order in which they began to wait.
    Answers how many were woken."""
    scope, unit, per = parts_of(awaits)
    found = [_turned(transaction, one) for one in _find(transaction, scope, unit, per)]
    room = found[0].room if found else None
    if room is not None and room <= 0:
        return 0
    values = {"awaits": awaits, "unit": unit, "room": room, "limit": limit}
    waiters = transaction.all(_SQL["budget_waiters"], values)
    woken: list[str] = []
    for job_id, key, token, value in waiters:
        refusal = _hold_asked(transaction, job_id, token, json.loads(value or "{}"))
        if refusal is None or refusal.on_empty == "fail":  # the latter is told by its next attempt
            _close(transaction, job_id, key, value)
            woken.append(job_id)
        elif refusal.name != awaits:
            _await_other(transaction, job_id, key, refusal)
    if len(waiters) == limit:
        flow.put_event(transaction, "budget", awaits)
    return len(flow.queue_waiting(transaction, woken))


def _hold_asked(transaction: Transaction, job_id: JobId, token: Token, asked: Mapping[str, Any]) -> Refusal | None:
    key = asked.get("key", "")
    owed = None
    if asked.get("is_once"):
        owed = _owed([_Spend(*row) for row in transaction.all(_SQL["spends_of"], {"job_id": job_id, "key": key})], key)
    return _hold(
        transaction, job_id, token, key, asked.get("asked", {}), _budgets_of(transaction, job_id, owed), "granted"
    )


def _await_other(transaction: Transaction, job_id: JobId, key: str, refusal: Refusal) -> None:
    values = {"job_id": job_id, "key": key, "awaits": refusal.name}
    transaction.run(_SQL["step_await_other"], values)
    transaction.run(_SQL["job_await_other"], values)


def _close(transaction: Transaction, job_id: JobId, key: str, value: str) -> None:
    values = {"job_id": job_id, "key": key, "state": "done", "value": value, "now": transaction.now}
    transaction.run(_FLOW["step_close"], values)


# --- rows


def _hold(
    transaction: Transaction,
    job_id: JobId,
    token: Token,
    key: str,
    amounts: Amounts,
    budgets: list[_Budget],
    state: str,
) -> Refusal | None:
    """Reserve in all budgets, or in none: then the first that refuses is told."""
    for one in budgets:
        asked = amounts.get(one.unit)
        if not one.fits(asked):
            return _refusal(one, asked or 0, transaction.now)
    for one in budgets:
        amount = amounts.get(one.unit, one.room)
        values = {"id": one.id, "reserved": amount, "used": 0, "window_from": one.window_from}
        transaction.run(_SQL["budget_move"], values)
        spend = {"job_id": job_id, "token": token, "key": key, "budget_id": one.id, "state": state}
        put = {**spend, "reserved": amount, "is_rest": one.unit not in amounts}
        put |= {"window_from": one.window_from, "now": transaction.now}
        transaction.run(_SQL["spend_put"], put)
    return None


def _end(transaction: Transaction, spend: _Spend, used: int, state: str) -> str | None:
    """Settle one row. Answers the name of its budget if that has more room now."""
    is_held = spend.state == "held"
    reserved, counted = (-spend.reserved, used) if is_held else (0, used - spend.used)
    transaction.run(_SQL["spend_end"], {**spend.place(), "state": state, "used": used})
    values = {"id": spend.budget_id, "reserved": reserved, "used": counted, "window_from": spend.window_from}
    row = transaction.one(_SQL["budget_move"], values)
    return budget_name(*row) if row is not None and reserved + counted < 0 else None


def _drop(transaction: Transaction, spends: list[_Spend]) -> None:
    """Take reservations back that cost nothing, and wake those who fit now."""
    names = set()
    for one in spends:
        transaction.run(_SQL["spend_drop"], one.place())
        is_broken = one.state == "broken"
        reserved, used = (0, -one.used) if is_broken else (-one.reserved, 0)
        values = {"id": one.budget_id, "reserved": reserved, "used": used, "window_from": one.window_from}
        row = transaction.one(_SQL["budget_move"], values)
        if row is not None:
            names.add(budget_name(*row))
    for name in sorted(names):
        wake(transaction, name)


def _is_same(granted: list[_Spend], budgets: list[_Budget], amounts: Amounts) -> bool:
    """Whether what was reserved while the job waited is what it asks for now, in the windows of now."""
    wanted = {(one.id, one.window_from, amounts.get(one.unit)) for one in budgets}
    return {(one.budget_id, one.window_from, None if one.is_rest else one.reserved) for one in granted} == wanted


def _find(transaction: Transaction, scope: str, unit: str | None, per: str | None) -> list[_Budget]:
    rows = transaction.all(_SQL["budget_found"], {"scope": scope, "unit": unit, "per": per})
    return [_Budget(*row) for row in rows]


def _budgets_of(transaction: Transaction, job_id: JobId, owed: AbstractSet[str] | None) -> list[_Budget]:
    """The budgets that concern a job; of these only what it owes, unless None."""
    rows = transaction.all(_SQL["budgets_of"], {"job_id": job_id})
    return [_turned(transaction, _Budget(*row)) for row in rows if owed is None or row[0] in owed]


def _owed(spends: list[_Spend], key: str) -> AbstractSet[str] | None:
    """Of a key that is paid, the budgets whose rest was given back when the job began to wait; None if it is not
    paid."""
    of_key = [one for one in spends if one.key == key]
    paid = {one.budget_id for one in of_key if one.state == "done"}
    if not paid:
        return None
    return {one.budget_id for one in of_key if one.is_rest and one.state in ("held", "broken")} - paid


def _turned(transaction: Transaction, budget: _Budget) -> _Budget:
    """The budget in the window of now. A new one makes room, so those who wait are looked at."""
    if budget.window_until is None or transaction.now < budget.window_until:
        return budget
    window_from, window_until = _window(budget.per, transaction.now)
    values = {"id": budget.id, "window_from": window_from, "window_until": window_until}
    transaction.run(_SQL["budget_turn"], values)
    is_awaited = transaction.one(_SQL["budget_is_awaited"], {"awaits": budget.name}) is not None
    if is_awaited and budget.on_empty != "escalate":
        flow.put_event(transaction, "budget", budget.name)
    return budget._replace(used=0, reserved=0, window_from=window_from, window_until=window_until)


def _window(per: str, now: int) -> tuple[int | None, int | None]:
    window = window_of(per, from_us(now))
    return (None, None) if window is None else (to_us(window[0]), to_us(window[1]))


def _refusal(budget: _Budget, amount: int, now: int) -> Refusal:
    # An amount above the whole limit does not fit in the next window either: only a raise helps.
    ends = budget.window_until is not None and 0 < budget.cap >= amount
    seconds = (budget.window_until - now) / 1_000_000 if ends and budget.window_until is not None else None
    return Refusal(
        budget.scope,
        budget.unit,
        budget.per,
        budget.cap,
        budget.used,
        budget.reserved,
        amount,
        budget.on_empty,
        seconds,
    )


def _shown(transaction: Transaction, scope: str, unit: str, per: str) -> Budget:
    values = {"scopes": dump([scope]), "scope": None, "unit": None, "per": None, "limit": 1000, "is_escalated": False}
    rows = transaction.all(_SQL["budgets_list"], values)
    return next(_budget(row, transaction.now) for row in rows if row[2:4] == (unit, per))


def _budget(row: Row, now: int) -> Budget:
    one, (waiting, since) = _Budget(*row[:-1]), json.loads(row[-1])
    if one.window_until is not None and now >= one.window_until:
        window_from, window_until = _window(one.per, now)
        one = one._replace(used=0, reserved=0, window_from=window_from, window_until=window_until)
    return Budget(
        one.scope,
        one.unit,
        one.per,
        one.cap,
        one.used,
        one.reserved,
        one.on_empty,
        None if one.window_from is None else from_us(one.window_from),
        None if one.window_until is None else from_us(one.window_until),
        waiting,
        from_us(one.updated_at),
        None if since is None else from_us(since),
    )


WRITES: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {
    SetBudgets: set_budgets,
    RaiseBudgets: raise_budgets,
    RemoveBudgets: remove_budgets,
    ReserveBudget: reserve_budget,
    SettleBudget: settle_budget,
}
READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {ListBudgets: list_budgets}
