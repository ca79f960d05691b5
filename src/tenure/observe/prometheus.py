"""Figures for Prometheus, in its text format: what `GET /metrics` answers.

Gauges are bounded counts (store.gauges), counters are added up when a minute is counted: a scrape costs the same
whatever the database holds. Labels are queues, gates and the first KINDS_MAX kinds; no label holds an id or a message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from tenure.model.buckets import GROWTH
from tenure.model.frozen import frozen
from tenure.observe.liveness import alive
from tenure.store.contract import Store
from tenure.store.gauges import Gauges, QueueLoad, ReadGauges, ReadTotals, Total
from tenure.store.queries import ListGates, ListQueues, ListWorkers, WorkerSeen

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "_other"
"""The label of all kinds that have no counter of their own."""
EDGES: Final = tuple(range(72, 201, 8))
"""The buckets at which a histogram is cut: from a millisecond to half an hour and beyond, each 2.1 times the last."""

Sort = Literal["gauge", "counter", "histogram"]
Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@frozen
class Family:
    """One metric: its name, sort and meaning."""

    name: str
    sort: Sort
    meaning: str
    labels: tuple[str, ...] = ()


FAMILIES: Final = (
    Family(
        "tenure_queue_oldest_ready_seconds", "gauge", "For how long the oldest ready job has been due; 0 if none is.",
        ("queue",),
    ),
    Family("tenure_jobs_ready", "gauge", "Jobs that a worker could take now, counted up to 100,000.", ("queue",)),
    Family("tenure_jobs_held", "gauge", "Jobs that workers hold, counted up to 100,000.", ("queue",)),
    Family("tenure_queue_backlog", "gauge", "Ready and held jobs, of a paused queue only the held ones.", ("queue",)),
    Family("tenure_queue_paused", "gauge", "1 while the queue is paused.", ("queue",)),
    Family("tenure_jobs_delayed", "gauge", "Jobs queued for later, counted up to 100,000."),
    Family("tenure_leases_run_out", "gauge", "Held jobs whose lease is over and that were not taken back yet."),
    Family("tenure_dead_letters", "gauge", "Dead letters by triage, counted up to 100,000.", ("triage",)),
    Family("tenure_workers", "gauge", "Worker processes that were heard of lately."),
    Family("tenure_worker_slots", "gauge", "How many jobs live workers can run at once, by state.", ("state",)),
    Family("tenure_gate_open", "gauge", "1 while the gate is open.", ("gate",)),
    Family("tenure_jobs_created_total", "counter", "Jobs enqueued.", ("queue",)),
    Family("tenure_jobs_finished_total", "counter", "Jobs that ended.", ("queue", "kind", "outcome")),
    Family("tenure_jobs_retried_total", "counter", "Failed attempts that were followed by another one.", ("queue",)),
    Family("tenure_lease_expired_total", "counter", "Attempts that ended because their lease ran out.", ("queue",)),
    Family("tenure_job_run_seconds", "histogram", "From granted to succeeded.", ("queue",)),
    Family("tenure_job_wait_seconds", "histogram", "From due to granted, of jobs that succeeded.", ("queue",)),
)  # fmt: skip
"""Every metric that there is, in the order of the answer."""

_COUNTERS: Final = {
    "tenure_jobs_created_total": "created",
    "tenure_jobs_retried_total": "retried",
    "tenure_lease_expired_total": "expired",
}
_HISTOGRAMS: Final = {"tenure_job_run_seconds": "run", "tenure_job_wait_seconds": "wait"}
_OUTCOMES: Final = ("succeeded", "failed", "dead", "cancelled")
_TRIAGES: Final = ("pending", "acknowledged", "manual_replay", "escalated", "closed")


def exposition(store: Store) -> str:
    """All figures as text."""
    gauges = store.do(ReadGauges())
    totals = store.do(ReadTotals())
    policies = {row.name: row.policy for row in store.do(ListQueues())}
    workers = alive(store.do(ListWorkers()), policies, gauges.at)
    samples: dict[str, list[Sample]] = {
        **_of_queues(gauges),
        **_of_all(gauges, workers),
        "tenure_gate_open": [({"gate": gate.name}, int(gate.is_open)) for gate in store.do(ListGates())],
        **_counted(totals, [load.queue for load in gauges.queues]),
    }
    lines: list[str] = []
    for family in FAMILIES:
        lines += [f"# HELP {family.name} {family.meaning}", f"# TYPE {family.name} {family.sort}"]
        if family.sort == "histogram":
            lines += _histogram(family.name, totals)
        else:
            lines += [_line(family.name, labels, value) for labels, value in samples[family.name]]
    return "\n".join(lines) + "\n"


def _of_queues(gauges: Gauges) -> dict[str, list[Sample]]:
    def each(figure: Mapping[str, float]) -> list[Sample]:
        return [({"queue": queue}, value) for queue, value in figure.items()]

    def age(load: QueueLoad) -> float:
        since = load.oldest_ready_at
        return 0.0 if since is None else max(0.0, (gauges.at - since).total_seconds())

    return {
        "tenure_queue_oldest_ready_seconds": each({load.queue: age(load) for load in gauges.queues}),
        "tenure_jobs_ready": each({load.queue: load.ready for load in gauges.queues}),
        "tenure_jobs_held": each({load.queue: load.held for load in gauges.queues}),
        "tenure_queue_backlog": each({load.queue: load.backlog for load in gauges.queues}),
        "tenure_queue_paused": each({load.queue: int(load.is_paused) for load in gauges.queues}),
    }


def _of_all(gauges: Gauges, workers: Sequence[WorkerSeen]) -> dict[str, list[Sample]]:
    slots = sum(worker.row.concurrency for worker in workers)
    busy = min(slots, sum(load.held for load in gauges.queues))
    return {
        "tenure_jobs_delayed": [({}, gauges.delayed)],
        "tenure_leases_run_out": [({}, gauges.leases_run_out)],
        "tenure_dead_letters": [({"triage": one}, gauges.dead_letters.get(one, 0)) for one in _TRIAGES],
        "tenure_workers": [({}, len(workers))],
        "tenure_worker_slots": [({"state": "busy"}, busy), ({"state": "free"}, slots - busy)],
    }


def _counted(totals: Sequence[Total], queues: Sequence[str]) -> dict[str, list[Sample]]:
    """Counters. What has not happened yet in a queue, or to a kind that is known there, has a 0: its first rise is
    seen."""
    plain = {(one.queue, one.what): one.n for one in totals if one.part == ""}
    found: dict[str, list[Sample]] = {
        name: [({"queue": queue}, plain.get((queue, what), 0)) for queue in queues] for name, what in _COUNTERS.items()
    }
    ends = {(one.queue, one.part, one.what): one.n for one in totals if one.what in _OUTCOMES}
    found["tenure_jobs_finished_total"] = [
        ({"queue": queue, "kind": kind or OTHER, "outcome": outcome}, ends.get((queue, kind, outcome), 0))
        for queue, kind in sorted({(queue, kind) for queue, kind, _ in ends})
        for outcome in _OUTCOMES
    ]
    return found


def _histogram(name: str, totals: Sequence[Total]) -> list[str]:
    """A histogram for each queue. A bucket of ours ends at GROWTH ** bucket microseconds, and so do those of EDGES."""
    what = _HISTOGRAMS[name]
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for one in totals:
        if one.what == what:
            counts[one.queue][int(one.part)] += one.n
    sums = {one.queue: one.n / 1e6 for one in totals if one.what == f"{what}_us"}
    lines = []
    for queue, buckets in counts.items():
        for edge in EDGES:
            below = sum(n for bucket, n in buckets.items() if bucket <= edge)
            lines.append(_line(f"{name}_bucket", {"queue": queue, "le": f"{GROWTH**edge / 1e6:.4g}"}, below))
        lines.append(_line(f"{name}_bucket", {"queue": queue, "le": "+Inf"}, buckets.total()))
        lines.append(_line(f"{name}_sum", {"queue": queue}, sums.get(queue, 0.0)))
        lines.append(_line(f"{name}_count", {"queue": queue}, buckets.total()))
    return lines


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f"{label}={_quoted(text)}" for label, text in labels.items())
    figure = str(value) if isinstance(value, int) else f"{value:.6f}"
    return f"{name}{{{told}}} {figure}" if told else f"{name} {figure}"


def _quoted(label: str) -> str:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
