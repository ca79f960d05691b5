"""Heartbeat and start: what a worker says while it holds jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tenure.errors import GateClosed, InvalidArgument
from tenure.model.ids import WORKER_ID, WORKER_ID_RULE, JobId
from tenure.model.outcome import Beat, Settled
from tenure.store.contract import Heartbeat, Hold, Start, WorkerRow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, dump

_SQL: Final = load("heartbeat")

_Grant = tuple[JobId, int]
"""A job and its token."""


def heartbeat(transaction: Transaction, request: Heartbeat) -> Beat:
    """See store.contract.Heartbeat."""
    if request.lease_seconds is not None and not 0 < request.lease_seconds < math.inf:
        raise InvalidArgument(
            f"lease_seconds: expected more than 0, got {request.lease_seconds:g}. No lease was extended."
        )
    if request.worker is not None:
        _write_worker(transaction, request.worker, is_all=not request.holds)
    if not request.holds:
        return Beat()
    held = _write(transaction, request.holds, request.lease_seconds)
    kept = [hold for hold in request.holds if (hold.job_id, hold.token) in held]
    transaction.record("progress", (hold.job_id for hold in kept if hold.progress))
    return Beat(
        lost=frozenset(hold.job_id for hold in request.holds if (hold.job_id, hold.token) not in held),
        cancel_requested=frozenset(hold.job_id for hold in kept if held[hold.job_id, hold.token].is_to_stop),
        overdue=frozenset(hold.job_id for hold in kept if held[hold.job_id, hold.token].is_overdue),
    )


def start(transaction: Transaction, request: Start) -> list[Settled]:
    """See store.contract.Start."""
    holds = [Hold(hold.job_id, hold.token, hold.progress, started=True) for hold in request.holds]
    held = _write(transaction, holds, 0.0)
    return [
        Settled(hold.job_id, hold.token, "running" if (hold.job_id, hold.token) in held else None) for hold in holds
    ]


class _Found(NamedTuple):
    """How a held job stands."""

    is_to_stop: bool
    is_overdue: bool


def _write(transaction: Transaction, holds: Sequence[Hold], lease_seconds: float | None) -> dict[_Grant, _Found]:
    """Extend leases: which grants are held, and how each stands."""
    values: dict[str, Any] = {
        "holds": dump([(hold.job_id, hold.token, hold.progress, hold.started) for hold in holds]),
        "now": transaction.now,
    }
    # Only where a queue keeps events does it matter which jobs had not been started before.
    leased = _leased(transaction, values) if transaction.keeps.events else set()
    transaction.run(_SQL["heartbeat"], {**values, "lease_seconds": lease_seconds})
    held = {
        (job_id, token): _Found(bool(stops), bool(is_overdue))
        for job_id, token, stops, _, is_overdue in transaction.array(_SQL["held"], values)
    }
    transaction.record("started", (hold.job_id for hold in holds if hold.started and hold.job_id in leased))
    return held


def _leased(transaction: Transaction, values: dict[str, Any]) -> set[JobId]:
    return {job_id for job_id, _, _, state, _ in transaction.array(_SQL["held"], values) if state == "leased"}


def _write_worker(transaction: Transaction, worker: WorkerRow, *, is_all: bool) -> None:
    """Write the worker's row, unless a gate is closed. Leases are extended either way: no gate may cost a worker
    its jobs."""
    if not WORKER_ID.fullmatch(worker.id):
        raise InvalidArgument(WORKER_ID_RULE)
    gate = transaction.one(_SQL["gate"], {"queues": dump(list(worker.queues))})
    if gate is not None and gate[0] is not None:
        if is_all:
            raise GateClosed(gate[0], f"the heartbeat of worker {worker.id}")
        return
    transaction.run(
        _SQL["worker"],
        {
            "id": worker.id,
            "hostname": worker.hostname,
            "pid": worker.pid,
            "queues": dump(list(worker.queues)),
            "kinds": dump(list(worker.kinds)),
            "concurrency": worker.concurrency,
            "version": worker.version,
            "executor_kind": worker.profile_kind,
            "status": worker.status,
            "current_job_id": worker.current_job_id,
            "info": worker.info,
            "now": transaction.now,
        },
    )
