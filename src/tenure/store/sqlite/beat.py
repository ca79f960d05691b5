"""Heartbeat and start: what a worker says while it holds jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from tenure.errors import GateClosed, InvalidArgument
from tenure.model.ids import JobId
from tenure.model.outcome import Beat, Settled
from tenure.store.contract import Heartbeat, Hold, Start, WorkerRow
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction

ARRAY_FROM: Final = 4
"""From so many held jobs on, an array is faster than a statement each."""


def heartbeat(transaction: Transaction, request: Heartbeat) -> Beat:
    """See store.base.Heartbeat."""
    if request.lease_seconds is not None and request.lease_seconds <= 0:
        raise InvalidArgument(
            f"lease_seconds: expected more than 0, got {request.lease_seconds:g}. No lease was extended."
        )
    if request.worker is not None:
        _beat_worker(transaction, request.worker, is_all=not request.holds)
    lost: set[JobId] = set()
    stop: set[JobId] = set()
    leased = _leased(transaction, request.holds)
    alike: dict[tuple[int, bool], list[JobId]] = {}
    for hold in request.holds:
        if hold.progress is None and len(request.holds) >= ARRAY_FROM:
            alike.setdefault((hold.token, hold.started), []).append(hold.job_id)
            continue
        row = _write(transaction, "heartbeat", hold, request.lease_seconds)
        if row is None:
            lost.add(hold.job_id)
        elif row[0] is not None:
            stop.add(hold.job_id)
    for (token, started), ids in alike.items():
        held, asked = _beat_alike(transaction, ids, token, started, request.lease_seconds)
        lost.update(job_id for job_id in ids if job_id not in held)
        stop |= asked
    transaction.record("started", (h.job_id for h in request.holds if h.started and h.job_id in leased - lost))
    transaction.record("progress", (hold.job_id for hold in request.holds if hold.progress and hold.job_id not in lost))
    return Beat(frozenset(lost), frozenset(stop))


def _beat_alike(
    transaction: Transaction, ids: list[JobId], token: int, started: bool, lease_seconds: float | None
) -> tuple[set[JobId], set[JobId]]:
    """Extend the leases of jobs under one token: which are held, and which of them are asked to stop. One value each,
    because a row costs a change of Python's lock, and this thread is not the event loop's."""
    values = {"ids": json.dumps(ids), "token": token, "now": transaction.now}
    transaction.run(load("heartbeat_batch"), {**values, "started": started, "lease_seconds": lease_seconds})
    row = transaction.one(load("heartbeat_held"), values)
    assert row is not None
    return set(json.loads(row[0])), set(json.loads(row[1]))


def start(transaction: Transaction, request: Start) -> list[Settled]:
    """See store.base.Start."""
    answers = []
    started = []
    leased = _leased(transaction, request.holds)
    for hold in request.holds:
        row = _write(transaction, "start", hold)
        answers.append(Settled(hold.job_id, hold.token, None if row is None else "running"))
        if row is not None and hold.job_id in leased:
            started.append(hold.job_id)
    transaction.record("started", started)
    return answers


def _leased(transaction: Transaction, holds: Sequence[Hold]) -> set[JobId]:
    """Jobs that this request may start. Asked only where somebody keeps events; nobody else needs to know."""
    if not transaction.wants_events:
        return set()
    return {row[0] for row in transaction.all(load("leased"), {"ids": json.dumps([hold.job_id for hold in holds])})}


def _write(transaction: Transaction, statement: str, hold: Hold, lease_seconds: float | None = None) -> Row | None:
    return transaction.one(
        load(statement),
        {
            "now": transaction.now,
            "job_id": hold.job_id,
            "token": hold.token,
            "progress": hold.progress,
            "started": hold.started,
            "lease_seconds": lease_seconds,
        },
    )


def _beat_worker(transaction: Transaction, worker: WorkerRow, *, is_all: bool) -> None:
    """Write the worker's row, unless a gate is closed. Leases are extended either way: no gate may cost a worker
    its jobs."""
    gate = transaction.one(load("heartbeat_gate"), {"queues": json.dumps(list(worker.queues))})
    if gate is not None and gate[0] is not None:
        if is_all:
            raise GateClosed(gate[0], f"the heartbeat of worker {worker.id}")
        return
    transaction.run(
        load("worker_beat"),
        {
            "id": worker.id,
            "hostname": worker.hostname,
            "pid": worker.pid,
            "queues": json.dumps(list(worker.queues)),
            "kinds": json.dumps(list(worker.kinds)),
            "concurrency": worker.concurrency,
            "version": worker.version,
            "executor_kind": worker.profile_kind,
            "status": worker.status,
            "current_job_id": worker.current_job_id,
            "info": worker.info,
            "now": transaction.now,
        },
    )
