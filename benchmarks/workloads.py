"""The workloads as data: what is measured, how much of it, and by which figures it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.protocol import Answer

ENGINES = ("postgres", "sqlite", "redis")


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a workload."""

    key: str
    label: str
    unit: str
    higher_is_better: bool
    derive: Callable[[Answer], float | None]


@dataclass(frozen=True, slots=True)
class Size:
    """How much of a workload is done."""

    jobs: int = 0
    backlog: int = 0
    clients: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of measurement."""

    name: str
    title: str
    full: Size
    quick: Size | None
    metrics: tuple[Metric, ...]
    engines: tuple[str, ...] = ENGINES
    seconds: float = 240.0
    most_rounds: int = 99
    """Long ones are not worth many rounds."""
    is_shared: bool = False
    """The store is filled once and kept for the next rounds."""
    usual_seconds: float = 4.0
    """What one measurement takes on a small machine, where no earlier run has told."""

    @property
    def main(self) -> Metric:
        """The figure that ranks contenders."""
        return self.metrics[0]


def _value(key: str, label: str, unit: str, *, up: bool) -> Metric:
    return Metric(key, label, unit, up, lambda answer: answer.values.get(key))


def _quotient(key: str, label: str, above: str, below: str, *, up: bool) -> Metric:
    def derive(answer: Answer) -> float | None:
        over, under = answer.values.get(above), answer.values.get(below)
        return over / under if over is not None and under else None

    return Metric(key, label, "", up, derive)


def _started_rate(answer: Answer) -> float | None:
    seconds = answer.values.get("started_seconds")
    return answer.jobs / seconds if seconds else None


RATE = Metric("rate", "jobs/s", "/s", True, lambda answer: answer.rate or None)
STARTED = Metric("started_rate", "handler starts/s", "/s", True, _started_rate)
P50 = _value("p50_ms", "p50", "ms", up=False)
P99 = _value("p99_ms", "p99", "ms", up=False)
BOTH = ("postgres", "sqlite")

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("W1", "enqueue one at a time, one commit each", Size(3_000), Size(500), (RATE,)),
        Workload(
            "W1c",
            "50 concurrent enqueuers in one process",
            Size(10_000, clients=50),
            Size(2_000, clients=50),
            (RATE,),
            BOTH,
        ),
        Workload("W2", "bulk enqueue", Size(50_000), Size(20_000), (RATE,)),
        Workload("W3a", "drain no-op jobs, one worker process", Size(20_000), Size(10_000), (RATE, STARTED)),
        Workload("W3b", "drain no-op jobs, two worker processes", Size(20_000), Size(10_000), (RATE, STARTED)),
        Workload(
            "W3t",
            "drain synchronous handlers in threads",
            Size(20_000),
            Size(5_000),
            (RATE,),
            ("postgres", "redis"),
        ),
        Workload(
            "W4",
            "latency of an idle worker, enqueue return → handler start",
            Size(300),
            Size(60),
            (P50, P99, _value("call_p50_ms", "p50 from call", "ms", up=False)),
        ),
        Workload(
            "W5",
            "the first jobs of a backlog of 1,000,000",
            Size(20_000, 1_000_000),
            None,
            (RATE,),
            BOTH,
            600,
            6,
            is_shared=True,
            usual_seconds=25.0,
        ),
        Workload(
            "W5d",
            "drain beside 1,000,000 jobs due tomorrow",
            Size(20_000, 1_000_000),
            None,
            (RATE, _quotient("idle_ratio", "idle pages", "idle_pages", "idle_pages_empty", up=False)),
            BOTH,
            600,
            6,
            is_shared=True,
            usual_seconds=25.0,
        ),
        Workload(
            "W6",
            "drain beside 1,000,000 finished jobs",
            Size(20_000, 1_000_000),
            None,
            (RATE,),
            BOTH,
            600,
            6,
            is_shared=True,
            usual_seconds=25.0,
        ),
        Workload(
            "W7",
            "a flow of jobs while another session holds a snapshot",
            Size(200_000),
            None,
            (
                _value("last_rate", "last tenth", "/s", up=True),
                _value("first_rate", "first tenth", "/s", up=True),
                _quotient("kept", "last / first", "last_rate", "first_rate", up=True),
                _value("overdue_s", "worst delay past turn", "s", up=False),
            ),
            ("postgres",),
            600,
            3,
            usual_seconds=25.0,
        ),
        Workload(
            "W8",
            "200 idle workers",
            Size(clients=200, jobs=200),
            None,
            (_value("cpu_share", "of one core", "", up=False), P99),
            ("postgres",),
            300,
            1,
            usual_seconds=170.0,
        ),
        Workload(
            "W9",
            "32 client processes mixing all calls",
            Size(jobs=20_000, clients=32),
            None,
            (
                _value("claim_p99_ms", "claim p99", "ms", up=False),
                _quotient("claim_tail", "p99 / p50", "claim_p99_ms", "claim_p50_ms", up=False),
                _value("errors", "errors", "", up=False),
                _value("deadlocks", "deadlocks", "", up=False),
            ),
            ("postgres",),
            300,
            3,
            usual_seconds=50.0,
        ),
        Workload(
            "W10",
            "a session that began on empty tables, then 1,000,000 rows",
            Size(20_000, 1_000_000),
            None,
            (_quotient("staleness", "long-lived / fresh", "long_lived_rate", "fresh_rate", up=True),),
            ("postgres",),
            600,
            3,
            usual_seconds=25.0,
        ),
        Workload(
            "footprint",
            "memory and start-up",
            Size(20_000, 1_000_000),
            None,
            (
                _value("idle_mb", "idle worker", "MB", up=False),
                _value("backlog_mb", "worker in W5", "MB", up=False),
                _value("import_ms", "import tenure", "ms", up=False),
                _value("help_ms", "tenure --help", "ms", up=False),
            ),
            BOTH,
            600,
            1,
            usual_seconds=40.0,
        ),
    )
}
ALIASES: Mapping[str, tuple[tuple[str, str], ...]] = {"W3s": (("W3a", "sqlite"), ("W3b", "sqlite"))}
"""The issue's name for the drains on SQLite."""
