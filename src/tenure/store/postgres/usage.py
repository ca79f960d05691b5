"""Sums of what agents used, as a call of a PostgreSQL function. See store.usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.model.usage import Usage, UsageRow, first_id
from tenure.store.contract import Request
from tenure.store.postgres.codec import Call, text
from tenure.store.usage import SumUsage


def _sum(request: SumUsage) -> str:
    return text(
        {
            "by": request.by,
            "low": None if request.since is None else first_id(request.since),
            "high": None if request.until is None else first_id(request.until),
            "queues": list(request.queues) or None,
            "kinds": list(request.kinds) or None,
            "limit": request.limit,
            "steps": request.steps,
        }
    )


def _usage(answer: Any, _: SumUsage) -> Usage:
    return Usage(tuple(UsageRow(*row) for row in answer["rows"]), bool(answer["is_cut"]))


CALLS: Final[Mapping[type[Request[Any]], Call]] = {SumUsage: Call("sum_usage", _sum, _usage)}
