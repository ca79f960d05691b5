"""Gauges and counters. See store.gauges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenure.errors import InvalidArgument, UnknownQueue, nearest
from tenure.model.clock import from_us
from tenure.model.outcome import Triage
from tenure.store.gauges import (
    CAP_MAX,
    CountBacklog,
    Gauges,
    QueueLoad,
    QuotaUse,
    ReadGauges,
    ReadQuotaUse,
    ReadTotals,
    Total,
)
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("gauges")


def count_backlog(transaction: Transaction, request: CountBacklog) -> QueueLoad:
    """See store.gauges.CountBacklog."""
    _check(request.cap)
    row = transaction.one(_SQL["queues"], {"queue": request.queue})
    if row is None:
        known = [name for name, _ in transaction.all(_SQL["queues"], {"queue": None})]
        raise UnknownQueue(
            f"Queue {request.queue!r} does not exist.{nearest(request.queue, known)} "
            f"Create it with `tenure queues set {request.queue}`, or declare it in the app."
        )
    return _load(transaction, row[0], row[1], request.cap)


def read_gauges(transaction: Transaction, request: ReadGauges) -> Gauges:
    """See store.gauges.ReadGauges."""
    _check(request.cap)
    values = {"now": transaction.now, "cap": request.cap}
    letters = {
        triage.value: _number(transaction, "dead_letters", {"triage": triage.value, "cap": request.cap})
        for triage in Triage
    }
    return Gauges(
        at=from_us(transaction.now),
        queues=[
            _load(transaction, name, is_paused, request.cap)
            for name, is_paused in transaction.all(_SQL["queues"], {"queue": None})
        ],
        delayed=_number(transaction, "delayed", values),
        leases_run_out=_number(transaction, "leases_run_out", values),
        dead_letters={triage: number for triage, number in letters.items() if number},
    )


def read_totals(transaction: Transaction, _request: ReadTotals) -> list[Total]:
    """See store.gauges.ReadTotals."""
    return [Total(*row) for row in transaction.all(_SQL["totals"])]


def read_usage(transaction: Transaction, request: ReadQuotaUse) -> QuotaUse:
    """See store.gauges.ReadQuotaUse."""
    _check(request.cap)
    row = transaction.one(_SQL["usage"], {"cap": request.cap, "now": transaction.now})
    assert row is not None
    queued, queues, tokens, size = row
    return QuotaUse(min(queued, request.cap), queues, tokens, size)


def add_totals(transaction: Transaction, after: int, until: int) -> None:
    """Add the minutes that were just counted to the counters."""
    values = {"after": after, "until": until}
    transaction.run(_SQL["name_kinds"], values)
    transaction.run(_SQL["add_totals"], values)


def _load(transaction: Transaction, queue: str, is_paused: int, cap: int) -> QueueLoad:
    values = {"queue": queue, "now": transaction.now, "cap": cap}
    ready, oldest = transaction.one(_SQL["ready"], values) or (0, None)
    late, late_at = transaction.one(_SQL["late"], values) or (0, None)
    moments = [oldest, late_at]
    if ready >= cap:
        moments += transaction.one(_SQL["oldest_head"], values) or ()
    return QueueLoad(
        queue=queue,
        ready=min(cap, ready + late),
        held=_number(transaction, "held", values),
        oldest_ready_at=moment(min((at for at in moments if at is not None), default=None)),
        is_paused=bool(is_paused),
    )


def _number(transaction: Transaction, name: str, values: Mapping[str, Any]) -> int:
    row = transaction.one(_SQL[name], values)
    assert row is not None
    return int(row[0])


def _check(cap: int) -> None:
    if not 1 <= cap <= CAP_MAX:
        raise InvalidArgument(f"The cap is {cap}; it is between 1 and {CAP_MAX}.")


READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {
    CountBacklog: count_backlog,
    ReadGauges: read_gauges,
    ReadTotals: read_totals,
    ReadQuotaUse: read_usage,
}
