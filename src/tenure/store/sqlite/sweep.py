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
    row = None if request.by_time else transaction.one(_SQL["event_take"])
    if row is None:
        return _sweep_by_time(transaction, request.limit)
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


def _sweep_by_time(transaction: Transaction, limit: int) -> Swept:
    """What no event tells of."""
    if budgets.end_left(transaction, limit) or budgets.turn_over(transaction, limit):
        return Swept(0, 0, more=True)
    jobs = approvals.expire(transaction, limit)
    return Swept(0, jobs, more=transaction.one(_SQL["event_any"]) is not None)


def _cancel_page(transaction: Transaction, group_id: str | None, job_id: str | None, detail: str) -> int:
    told = json.loads(detail)
    values = {"group_id": group_id, "job_id": job_id, "after": told.get("after", ""), "limit": CANCEL_PAGE}
    ids = [row[0] for row in transaction.all(_GROUPS["live_children"], values)]
    admin.cancel(transaction, Cancel(ids, told["actor"], told["reason"]))
    if len(ids) == CANCEL_PAGE:
        flow.put_event(transaction, "cancel", group_id=group_id, job_id=job_id, detail={**told, "after": ids[-1]})
    return len(ids)
