"""Minutes that are counted once, and the hours and days they are folded into."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us, to_us
from tenure.store.metrics import (
    COUNTED_MOST,
    SPANS,
    CountedSpans,
    ListMetrics,
    Metric,
    ReadMetrics,
    RolledUp,
    RollUp,
    SpanCounts,
)
from tenure.store.sqlite import gauges
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit

_SQL: Final = load("metrics")

_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_LAG: Final = _MINUTE
"""A request reads the clock before it gets to write. What is older than this has been written or never will be."""
_FIRST: Final = _HOUR
_LONGEST: Final = 30 * _DAY
_PRESENT: Final = 5 * _MINUTE
"""How late a minute may be counted for the silence of workers to be told of it."""
_KEPT: Final = {"minute": 2 * _DAY, "hour": 90 * _DAY}
"""How long buckets are kept; hours themselves as long as theirs, days for ever."""
_ALWAYS: Final = 2**62


def roll_up(transaction: Transaction, request: RollUp) -> RolledUp:
    """See store.metrics.RollUp. One writer at a time: a request that is not committed by now has not begun."""
    if not 1 <= request.minutes <= 1440:
        raise InvalidArgument(f"Between 1 and 1440 minutes can be counted at once, not {request.minutes}.")
    mark = transaction.one(_SQL["mark"])
    assert mark is not None
    ripe = (transaction.now - _LAG) // _MINUTE * _MINUTE
    after = max(ripe - _FIRST if mark[0] is None else int(mark[0]), ripe - _LONGEST)
    until = max(after, min(ripe, after + request.minutes * _MINUTE))
    hour = after // _HOUR * _HOUR if mark[1] is None else int(mark[1])
    day = after // _DAY * _DAY if mark[2] is None else int(mark[2])
    rows = 0
    if until > after:
        row = transaction.one(
            _SQL["full_at"], {"after": after, "until": until, "minute": _MINUTE, "most": COUNTED_MOST}
        )
        if row is not None and row[0] is not None:
            until = max(after + _MINUTE, int(row[0]) // _MINUTE * _MINUTE)
        values = {"after": after, "until": until, "now": transaction.now, "minute": _MINUTE, "present": _PRESENT}
        rows = transaction.run(_SQL["count"], values).rowcount
        transaction.run(_SQL["count_parts"], values)
        gauges.add_totals(transaction, after, until)
        hour, day = _fold(transaction, until, hour, day)
    if (until, hour, day) != tuple(mark):
        transaction.run(_SQL["move_mark"], {"counted": until, "hour": hour, "day": day})
    return RolledUp(from_us(until), rows, more=until < ripe)


def _fold(transaction: Transaction, counted: int, hour: int, day: int) -> tuple[int, int]:
    """Fold hours that are counted whole, and days. Answers up to where hours and days are folded."""
    to_hour, to_day = counted // _HOUR * _HOUR, counted // _DAY * _DAY
    if to_hour > hour:
        values = {"after": hour, "until": to_hour, "length": _HOUR}
        transaction.run(_SQL["fold_minutes"], values)
        transaction.run(_SQL["fold_parts"], {**values, "from": "minute", "to": "hour"})
    if to_day > day:
        values = {"after": day, "until": to_day, "length": _DAY}
        transaction.run(_SQL["fold_hours"], values)
        transaction.run(_SQL["fold_parts"], {**values, "from": "hour", "to": "day"})
    return max(hour, to_hour), max(day, to_day)


def list_metrics(transaction: Transaction, request: ListMetrics) -> list[Metric]:
    """See store.metrics.ListMetrics."""
    check_limit(request.limit)
    values = {
        "since": transaction.now // _MINUTE * _MINUTE - round(request.minutes * _MINUTE),
        "queues": _names(request.queues),
        "limit": request.limit,
        **_place(request.after, "after_minute"),
    }
    return [Metric(from_us(row[0]), *row[1:]) for row in transaction.all(_SQL["metrics"], values)]


def read_metrics(transaction: Transaction, request: ReadMetrics) -> CountedSpans:
    """See store.metrics.ReadMetrics."""
    check_limit(request.limit)
    if request.span not in SPANS:
        raise InvalidArgument(f"The span is {request.span!r}; it is minute, hour or day.")
    values = {
        "span": request.span,
        "since": -_ALWAYS if request.since is None else to_us(request.since),
        "until": _ALWAYS if request.until is None else to_us(request.until),
        "queues": _names(request.queues),
        "limit": request.limit,
        **_place(request.after, "after_at"),
    }
    query = _SQL["sums" if request.is_summed else "spans"]
    rows = [_counts(row) for row in transaction.all(query, values)]
    mark = transaction.one(_SQL["mark"])
    assert mark is not None
    return CountedSpans(rows, len(rows) == request.limit, moment(mark[0]), moment(mark[1]), moment(mark[2]))


def drop(transaction: Transaction, seconds: float, limit: int) -> int:
    """Remove the oldest minutes that lie further back than that, and what is kept for a fixed time. Answers how many
    rows of minutes went."""
    for span, kept in _KEPT.items():
        transaction.run(_SQL["drop_parts"], {"span": span, "until": transaction.now - kept, "limit": 10 * limit})
    transaction.run(_SQL["drop_spans"], {"until": transaction.now - _KEPT["hour"], "limit": limit})
    values = {"until": transaction.now - min(round(seconds * 1_000_000), transaction.now), "limit": limit}
    return transaction.run(_SQL["drop"], values).rowcount


def _names(names: Sequence[str]) -> str | None:
    return json.dumps(list(names)) if names else None


def _place(after: tuple[datetime, str] | None, name: str) -> dict[str, Any]:
    at, queue = (None, None) if after is None else (to_us(after[0]), after[1])
    return {name: at, "after_queue": queue}


def _counts(row: Row) -> SpanCounts:
    parts = [(what, part, number) for what, part, number in json.loads(row[13])]
    return SpanCounts(*(from_us(row[0]), *row[1:13], parts))
