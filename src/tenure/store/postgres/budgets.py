"""Budgets, as calls of PostgreSQL functions. See store.budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tenure.model.budget import Budget, Refusal
from tenure.model.clock import from_us
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
from tenure.store.contract import Request
from tenure.store.postgres.codec import Call, encode, maybe_moment, text


def _set(request: SetBudgets) -> str:
    check_budgets(request)
    budgets = [asdict(one) for one in request.budgets]
    return text({"budgets": budgets, "actor": request.actor, "reason": request.reason})


def _raise(request: RaiseBudgets) -> str:
    check_raise(request)
    return encode(request)


def _reserve(request: ReserveBudget) -> str:
    check_reserve(request.key, request.amounts)
    return encode(request)


def _settle(request: SettleBudget) -> str:
    check_reserve(request.key, request.used)
    return encode(request)


def _budgets(answer: Any, _: Any) -> list[Budget]:
    return [_budget(row) for row in answer]


def _budget(row: Sequence[Any]) -> Budget:
    scope, unit, per, limit, used, reserved, on_empty, window_from, window_until, waiting, updated_at, since = row
    window = maybe_moment(window_from), maybe_moment(window_until)
    counted = limit, used, reserved
    return Budget(scope, unit, per, *counted, on_empty, *window, waiting, from_us(updated_at), maybe_moment(since))


def _reserved(answer: Any, _: ReserveBudget) -> Reserved | None:
    if answer is None:
        return None
    refusal = None if answer["refusal"] is None else Refusal(*answer["refusal"])
    return Reserved(refusal, answer["is_paid"], answer["is_limited"])


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    SetBudgets: Call("set_budgets", _set, _budgets),
    RaiseBudgets: Call("raise_budgets", _raise, _budgets),
    RemoveBudgets: Call("remove_budgets", encode, lambda answer, _: list(answer)),
    ListBudgets: Call("list_budgets", encode, _budgets),
    ReserveBudget: Call("reserve_budget", _reserve, _reserved),
    SettleBudget: Call("settle_budget", _settle, lambda answer, _: bool(answer["is_found"])),
}
