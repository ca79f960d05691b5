"""The sweep: flow events that were too much for the transaction that found them. `store.flow` is the specification."""

from __future__ import annotations

import json
from typing import Final

from tenure.store.contract import Cancel
from tenure.store.flow import SweepFlow, Swept
from tenure.store.sqlite import admin, approvals, budgets, flow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit

CANCEL_PAGE: Final = 250
"""Places of a group whose children one transaction cancels."""

_SQL: Final = load("flow")
_GROUPS: Final = load("groups")


def sweep_flow(transaction: Transaction, request: SweepFlow) -> Swept:
    """See store.flow.SweepFlow. One event: each may concern as many jobs as one transaction should."""
    check_limit(request.limit)
    row = None if request.by_time else transaction.one(_SQL["event_take"])
    if row is None:
        return _sweep_by_time(transaction, request.limit)
    what, awaits, group_id, detail = row
    if what == "cancel":
        jobs = _cancel_children(transaction, group_id, detail)
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


def _cancel_children(transaction: Transaction, group_id: str, detail: str) -> int:
    """Cancel those of a group that have not ended, page by page; none is let go any more."""
    told = json.loads(detail)
    transaction.run(_GROUPS["let_none_go"], (group_id,))
    values = {"group_id": group_id, "after": told.get("after", -1), "limit": CANCEL_PAGE}
    rows = transaction.all(_GROUPS["members_page"], values)
    ids = [job_id for _, job_id in rows if job_id is not None]
    admin.cancel(transaction, Cancel(ids, told["actor"], told["reason"]))
    if len(rows) == CANCEL_PAGE:
        flow.put_event(transaction, "cancel", group_id=group_id, detail={**told, "after": rows[-1][0]})
    return len(ids)
