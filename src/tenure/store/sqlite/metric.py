"""Metrics: what happened minute by minute. Counted by a leader, dropped by prune."""

from __future__ import annotations

import json
from typing import Final

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us
from tenure.store.metrics import ListMetrics, Metric, RolledUp, RollUp
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction, check_limit

_MINUTE: Final = 60_000_000
_LAG: Final = _MINUTE
"""A request reads the clock before it gets to write. What is older than this has been written or never will be."""
_FIRST: Final = 60 * _MINUTE
_LONGEST: Final = 30 * 1440 * _MINUTE
_PRESENT: Final = 5 * _MINUTE
"""How late a minute may be counted for the silence of workers to be told of it."""


def roll_up(transaction: Transaction, request: RollUp) -> RolledUp:
    """See store.metric.RollUp. One writer at a time: what is not committed by now has not begun."""
    if not 1 <= request.minutes <= 1440:
        raise InvalidArgument(f"Between 1 and 1440 minutes can be counted at once, not {request.minutes}.")
    row = transaction.one(load("metric_mark"))
    assert row is not None
    ripe = (transaction.now - _LAG) // _MINUTE * _MINUTE
    after = max(ripe - _FIRST if row[0] is None else int(row[0]), ripe - _LONGEST)
    until = max(after, min(ripe, after + request.minutes * _MINUTE))
    rows = 0
    if until > after:
        values = {"after": after, "until": until, "now": transaction.now, "minute": _MINUTE, "present": _PRESENT}
        rows = transaction.run(load("metric_count"), values).rowcount
    if until != row[0]:
        transaction.run(load("metric_move_mark"), (until,))
    return RolledUp(from_us(until), rows, more=until < ripe)


def list_metrics(transaction: Transaction, request: ListMetrics) -> list[Metric]:
    """See store.metric.ListMetrics."""
    check_limit(request.limit)
    values = {
        "since": transaction.now // _MINUTE * _MINUTE - round(request.minutes * _MINUTE),
        "queues": json.dumps(list(request.queues)) if request.queues else None,
        "limit": request.limit,
    }
    return [Metric(from_us(row[0]), *row[1:]) for row in transaction.all(load("metrics"), values)]


def drop(transaction: Transaction, seconds: float, limit: int) -> int:
    """Remove the oldest minutes that lie further back than that. Answers how many rows went."""
    values = {"until": transaction.now - round(seconds * 1_000_000), "limit": limit}
    return transaction.run(load("metric_drop"), values).rowcount
