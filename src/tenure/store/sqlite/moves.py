"""Moves that people and other programs ask for: wake, cancel, revive, clone."""

from __future__ import annotations

import json
from typing import Any

from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.model.ids import JobId, Token
from tenure.model.job import Enqueued
from tenure.model.outcome import Settled
from tenure.model.state import TERMINAL, State
from tenure.store.contract import Cancel, Cancelled, Clone, Revive, Wake
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction


def wake(transaction: Transaction, request: Wake) -> list[JobId]:
    """See store.base.Wake."""
    values = {"now": transaction.now, "ids": json.dumps(list(request.job_ids)), "waiting_for": request.waiting_for}
    rows = transaction.all(load("wake"), values)
    transaction.woken.update(row[1] for row in rows)
    woken = sorted(JobId(row[0]) for row in rows)
    transaction.record("woken", woken)
    return woken


def cancel(transaction: Transaction, request: Cancel) -> list[Cancelled]:
    """See store.base.Cancel."""
    return [_cancel(transaction, request, job_id) for job_id in request.job_ids]


def _cancel(transaction: Transaction, request: Cancel, job_id: JobId) -> Cancelled:
    row = transaction.one(load("cancel"), {"now": transaction.now, "job_id": job_id})
    if row is None:
        found = transaction.one(load("job_state"), (job_id,))
        return Cancelled(job_id, "refused", None if found is None else found[0])
    is_ended = row[0] == "cancelled"
    if not is_ended:
        transaction.stops = True
    transaction.record("cancelled" if is_ended else "cancel_requested", [job_id])
    answer = "cancelled" if is_ended else "requested"
    audit(transaction, request.actor, "cancel", job_id, request.reason, {"answer": answer})
    return Cancelled(job_id, answer, row[0])


def revive(transaction: Transaction, request: Revive) -> list[Settled]:
    """See store.base.Revive."""
    return [_revive(transaction, request, job_id) for job_id in request.job_ids]


def _revive(transaction: Transaction, request: Revive, job_id: JobId) -> Settled:
    row = transaction.one(load("revive_look"), {"job_id": job_id})
    token, why, slot = row or (0, "there is no such job", None)
    values = {"now": transaction.now, "job_id": job_id, "slot": slot, "actor": request.actor, "reason": request.reason}
    if why is not None:
        audit(transaction, request.actor, "revive", job_id, request.reason, {"answer": "refused", "why": why})
        return Settled(job_id, Token(token), None)
    revived = transaction.one(load("revive"), values)
    assert revived is not None
    transaction.run(load("revive_letters"), values)
    transaction.woken.add(revived[0])
    transaction.record("revived", [job_id])
    audit(transaction, request.actor, "revive", job_id, request.reason, {"answer": "queued"})
    return Settled(job_id, Token(token), "queued", transaction.now)


def clone(transaction: Transaction, request: Clone) -> list[Enqueued]:
    """See store.base.Clone."""
    return [_clone(transaction, request, job_id, new_id) for job_id, new_id in request.job_ids.items()]


def _clone(transaction: Transaction, request: Clone, job_id: JobId, new_id: JobId) -> Enqueued:
    row = transaction.one(load("clone_look"), (job_id,))
    if row is None:
        raise NotFound(f"There is no job {job_id}, so nothing was cloned. Look for it with `tenure jobs ls`.")
    state, is_pruned, queue = row
    if State(state) not in TERMINAL:
        raise IllegalMove(f"Job {job_id} is {state}. Only a job that has ended can be cloned. Nothing was cloned.")
    if is_pruned:
        raise IllegalMove(f"The payload of job {job_id} was pruned, so it cannot be cloned. Enqueue a new job.")
    values = {"now": transaction.now, "job_id": job_id, "new_id": new_id}
    if transaction.run(load("clone"), values).rowcount < 1:
        holder = transaction.one(load("clone_holder"), values)
        assert holder is not None
        return Enqueued(JobId(holder[0]), duplicate=holder[0] != new_id)
    transaction.woken.add(queue)
    transaction.record("queued", [new_id])
    audit(transaction, request.actor, "clone", job_id, request.reason, {"clone": new_id})
    return Enqueued(new_id)


def audit(
    transaction: Transaction, actor: str, act: str, subject: str, reason: str | None, detail: dict[str, Any]
) -> None:
    """Leave an audit row. A nameless act is refused."""
    if not actor.strip():
        raise InvalidArgument(f"actor: it must say who does this; it is empty, so {act} was refused.")
    transaction.run(load("audit_write"), (transaction.now, actor, act, subject, reason, json.dumps(detail)))
