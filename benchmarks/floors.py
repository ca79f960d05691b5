"""The floors: what Tenure's figures must hold against peers, and against its own on an empty store."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.contenders import EMPTY, OWN
from benchmarks.figures import Figure, Figures
from benchmarks.workloads import WORKLOADS, Metric

BEST = "best peer"


@dataclass(frozen=True, slots=True)
class Floor:
    """A metric that is at least (or at most) `factor` times another contender's, or a plain number."""

    workload: str
    engine: str
    factor: float
    against: str = ""
    """BEST, a contender's name, or nothing: then `factor` is the number itself."""

    @property
    def metric(self) -> Metric:
        """The workload's main figure."""
        return WORKLOADS[self.workload].main

    @property
    def text(self) -> str:
        """The floor in words."""
        sign = "≥" if self.metric.higher_is_better else "≤"
        other = "own W3a beside it" if self.against == EMPTY else self.against
        return f"{self.metric.label} {sign} {self.factor:g}" + (f" × {other}" if other else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a floor."""

    floor: Floor
    status: str
    """`held`, `missed` or `not measured`."""
    figure: Figure | None = None
    against: str = ""


def _flat(workload: str) -> tuple[Floor, ...]:
    return tuple(Floor(workload, engine, 0.9, EMPTY) for engine in ("postgres", "sqlite"))


FLOORS: tuple[Floor, ...] = (
    Floor("W1", "postgres", 1.0, BEST),
    Floor("W2", "postgres", 1.2, BEST),
    Floor("W3a", "postgres", 1.1, "graphile-worker"),
    Floor("W3a", "postgres", 2.0, "pgqueuer"),
    Floor("W3b", "postgres", 1.0, "graphile-worker"),
    Floor("W4", "postgres", 1.4, "graphile-worker"),
    Floor("W1", "sqlite", 0.75, "huey"),
    Floor("W2", "sqlite", 1.5, BEST),
    Floor("W3a", "sqlite", 12.0, "huey"),
    Floor("W3a", "sqlite", 0.75, "honker"),
    Floor("W4", "sqlite", 1.5, "honker"),
    *_flat("W5"),
    *_flat("W5d"),
    *_flat("W6"),
    Floor("W7", "postgres", 0.9),
    Floor("W8", "postgres", 0.1),
    Floor("W10", "postgres", 0.83),
)


def judge(floor: Floor, figures: Figures) -> Verdict:
    """Compare a floor with what was measured, within each round where it is a ratio."""
    key = floor.metric.key
    own = (floor.workload, floor.engine, OWN)
    other = floor.against
    if other == BEST:
        other = figures.best(floor.workload, floor.engine, floor.metric) or ""
        if not other:
            return Verdict(floor, "not measured")
    found = figures.ratio(own, (*own[:2], other), key) if other else figures.figure(own, key)
    if found is None:
        return Verdict(floor, "not measured", against=other)
    is_held = found.value >= floor.factor if floor.metric.higher_is_better else found.value <= floor.factor
    return Verdict(floor, "held" if is_held else "missed", found, other)
