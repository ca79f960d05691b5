"""The sweep: flow events that were too much for the transaction that found them. `store.flow` is the specification."""

from __future__ import annotations

import json
from typing import Final

from tenure.store.contract import Cancel
from tenure.store.flow import SweepFlow, Swept
from tenure.store.sqlite import admin, approvals, budgets, flow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit

CANCEL_PAGE: Final = 1000
"""Children that one transaction cancels."""

_SQL: Final = load("flow")
_GROUPS: Final = load("groups")


def sweep_flow(transaction: Transaction, request: SweepFlow) -> Swept:
    """See store.flow.SweepFlow. One event: each may concern as many jobs as one transaction should."""
    check_limit(request.limit)
    row = transaction.one(_SQL["event_take"])
    if row is None:
        left = budgets.end_left(transaction, request.limit)
        if left:
            return Swept(0, 0, more=left == request.limit or transaction.has_flow_events)
        if budgets.turn_over(transaction, request.limit):
            return Swept(0, 0, more=True)
        ended = transaction.all(_SQL["awaited_ended"], {"limit": request.limit})
        jobs = sum(flow.wake_on(transaction, awaits, request.limit) for (awaits,) in ended)
        return Swept(0, jobs + approvals.expire(transaction, request.limit), more=False)
    what, awaits, group_id, job_id, detail = row
    if what == "cancel":
        jobs = _cancel_page(transaction, group_id, job_id, detail)
    elif what == "group":
        jobs = flow.count_ends(transaction, {group_id: (0, 0, 0)}, request.limit)
    elif what == "budget":
        jobs = budgets.wake(transaction, awaits, request.limit)
    else:
        jobs = flow.wake_on(transaction, awaits, request.limit)
    return Swept(1, jobs, more=transaction.one(_SQL["event_any"]) is not None)


def _cancel_page(transaction: Transaction, group_id: str | None, job_id: str | None, detail: str) -> int:
    told = json.loads(detail)
    values = {"group_id": group_id, "job_id": job_id, "limit": CANCEL_PAGE}
    ids = [row[0] for row in transaction.all(_GROUPS["live_children"], values)]
    admin.cancel(transaction, Cancel(ids, told["actor"], told["reason"]))
    if len(ids) == CANCEL_PAGE:
        flow.put_event(transaction, "cancel", group_id=group_id, job_id=job_id, detail=told)
    return len(ids)
