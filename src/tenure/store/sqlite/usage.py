"""Sums of what agents used. `store.usage` is the specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenure.model.usage import Usage, UsageRow, first_id
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit, dump
from tenure.store.usage import SumUsage

_SQL: Final = load("usage")
LAST_ID: Final = "g"
"""Above every id."""


def sum_usage(transaction: Transaction, request: SumUsage) -> Usage:
    """See store.usage.SumUsage."""
    check_limit(request.limit)
    values = {
        "by": request.by,
        "low": "" if request.since is None else first_id(request.since),
        "high": LAST_ID if request.until is None else first_id(request.until),
        "queues": dump(list(request.queues)) if request.queues else None,
        "kinds": dump(list(request.kinds)) if request.kinds else None,
        "limit": request.limit,
        "steps": request.steps,
    }
    rows = transaction.all(_SQL["sum_usage"], values)
    return Usage(tuple(UsageRow(*row[:6]) for row in rows), is_cut=bool(rows) and rows[0][6] >= request.steps)


READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {SumUsage: sum_usage}
