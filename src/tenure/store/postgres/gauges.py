"""Gauges and counters, as calls of PostgreSQL functions. See store.gauges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.store.contract import Request
from tenure.store.gauges import CountBacklog, Gauges, QueueLoad, QuotaUse, ReadGauges, ReadQuotaUse, ReadTotals, Total
from tenure.store.postgres.codec import Call, encode, maybe_moment


def _load(row: list[Any]) -> QueueLoad:
    queue, ready, held, oldest, is_paused = row
    return QueueLoad(queue, ready, held, maybe_moment(oldest), is_paused)


def _gauges(answer: dict[str, Any], _: ReadGauges) -> Gauges:
    return Gauges(
        at=from_us(answer["at"]),
        queues=[_load(row) for row in answer["queues"]],
        delayed=answer["delayed"],
        leases_run_out=answer["leases_run_out"],
        dead_letters=answer["dead_letters"],
    )


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    CountBacklog: Call("count_backlog", encode, lambda answer, _: _load(answer)),
    ReadGauges: Call("read_gauges", encode, _gauges),
    ReadQuotaUse: Call("read_usage", encode, lambda answer, _: QuotaUse(*answer)),
    ReadTotals: Call("read_totals", encode, lambda answer, _: [Total(*row) for row in answer]),
}
