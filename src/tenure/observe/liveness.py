"""Which workers are there: those that spoke within a time that their queues' leases make plausible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from tenure.model.policy import QueuePolicy
from tenure.store.admin import WORKER_GATE
from tenure.store.queries import Gate, WorkerSeen

LEAST_SECONDS = 60.0


def silence_limit(worker: WorkerSeen, policies: Mapping[str, QueuePolicy]) -> float:
    """A worker speaks three times in the shortest lease that it serves; after a whole one it counts as gone."""
    leases = [policies[name].lease_seconds for name in worker.row.queues if name in policies]
    return max(LEAST_SECONDS, min(leases, default=LEAST_SECONDS))


def is_alive(worker: WorkerSeen, policies: Mapping[str, QueuePolicy], now: datetime) -> bool:
    """Whether the worker was heard of lately."""
    return (now - worker.last_seen_at).total_seconds() <= silence_limit(worker, policies)


def alive(workers: Iterable[WorkerSeen], policies: Mapping[str, QueuePolicy], now: datetime) -> list[WorkerSeen]:
    """Those that are there."""
    return [one for one in workers if is_alive(one, policies, now)]


def drained(gates: Iterable[Gate]) -> frozenset[str]:
    """The ids of workers that are given no jobs any more, because their own gate is closed."""
    return frozenset(one.name.removeprefix(WORKER_GATE) for one in gates if _is_shut_worker(one))


def _is_shut_worker(gate: Gate) -> bool:
    return gate.name.startswith(WORKER_GATE) and not gate.is_open
