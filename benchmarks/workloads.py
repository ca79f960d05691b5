"""The workloads as data: what is measured, how much of it, and by which figures it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.contenders import BOTH
from benchmarks.protocol import Answer

POSTGRES = ("postgres",)
MILLION = 1_000_000


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

    jobs: int
    backlog: int = 0
    clients: int = 0

    def scaled(self, scale: float) -> Size:
        """Multiply; a drain stays larger than one claim, and a backlog larger than the drain."""
        if scale == 1:
            return self
        jobs = max(min(self.jobs, 60), int(self.jobs * scale))
        backlog = max(20 * jobs, int(self.backlog * scale)) if self.backlog else 0
        return Size(jobs, backlog, max(2, int(self.clients * scale)) if self.clients else 0)

    def with_jobs(self, jobs: int) -> Size:
        """The same with another number of jobs."""
        return Size(jobs, self.backlog, self.clients)


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of measurement."""

    name: str
    title: str
    full: Size
    metrics: tuple[Metric, ...]
    engines: tuple[str, ...] = BOTH
    is_quick: bool = True
    """Part of `--quick`, at a tenth of its size."""
    seconds: float = 240.0
    """No answer within this time is a failed measurement."""
    most_rounds: int = 99
    is_shared: bool = False
    """The store is filled in the first round and kept for the next ones."""

    @property
    def main(self) -> Metric:
        """The figure that ranks contenders."""
        return self.metrics[0]


def _value(key: str, label: str, unit: str, *, up: bool) -> Metric:
    return Metric(key, label, unit, up, lambda answer: answer.values.get(key))


def _quotient(key: str, label: str, above: str, below: str) -> Metric:
    def derive(answer: Answer) -> float | None:
        over, under = answer.values.get(above), answer.values.get(below)
        return over / under if over is not None and under else None

    return Metric(key, label, "", True, derive)


RATE = Metric("rate", "jobs/s", "/s", True, lambda answer: answer.rate or None)
P50 = _value("p50_ms", "p50 ms", "ms", up=False)
P99 = _value("p99_ms", "p99 ms", "ms", up=False)

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("W1", "enqueue one at a time, one commit each", Size(3_000), (RATE,)),
        Workload("W2", "bulk enqueue", Size(50_000), (RATE,)),
        Workload("W3a", "drain no-op jobs, one worker process", Size(20_000), (RATE,)),
        Workload("W3b", "drain no-op jobs, two worker processes", Size(20_000), (RATE,)),
        Workload("W4", "latency of an idle worker: return of enqueue → handler start", Size(300), (P50, P99)),
        Workload(
            "W5",
            "the first jobs of a backlog of 1,000,000",
            Size(20_000, MILLION),
            (RATE,),
            is_quick=False,
            seconds=600,
            is_shared=True,
        ),
        Workload(
            "W5d",
            "drain beside 1,000,000 jobs due tomorrow",
            Size(20_000, MILLION),
            (RATE,),
            is_quick=False,
            seconds=600,
            is_shared=True,
        ),
        Workload(
            "W6",
            "drain beside 1,000,000 finished jobs",
            Size(20_000, MILLION),
            (RATE,),
            is_quick=False,
            seconds=600,
            is_shared=True,
        ),
        Workload(
            "W7",
            "drain while another session holds a snapshot",
            Size(200_000),
            (
                _quotient("kept", "last ÷ first tenth", "last_rate", "first_rate"),
                _value("first_rate", "first tenth, jobs/s", "/s", up=True),
                _value("last_rate", "last tenth, jobs/s", "/s", up=True),
            ),
            POSTGRES,
            is_quick=False,
            seconds=600,
        ),
        Workload(
            "W8",
            "200 idle workers",
            Size(100, clients=200),
            (_value("cpu_share", "of one core", "", up=False), P99),
            POSTGRES,
            is_quick=False,
            seconds=400,
            most_rounds=1,
        ),
        Workload(
            "W10",
            "a session that began on empty tables, then 1,000,000 rows",
            Size(5_000, MILLION),
            (_quotient("staleness", "long-lived ÷ fresh session", "long_lived_rate", "fresh_rate"),),
            POSTGRES,
            is_quick=False,
            seconds=600,
        ),
    )
}
