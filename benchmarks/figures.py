"""From samples to figures: medians with their spread, ratios within a round, and whether any of it can be trusted.

A sample is *busy* when the calibration before or after it was over 1.3 of the run's best, or a synced write over
twice the run's best. Busy samples are left out as long as two calm ones remain. A figure is not trusted, and is shown
with «~», when its samples differ by more than 30 % of their median, when too few calm ones remain, or when there was
only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.catalogue import CONTENDERS
from benchmarks.machine import BUSY, BUSY_DISK, SPREAD
from benchmarks.run import Sample
from benchmarks.workloads import ENGINES, Metric


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over rounds."""

    value: float
    spread: float
    rounds: int
    is_trusted: bool
    reason: str = ""


class Figures:
    """All samples of a run, asked for figures."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        moments = [ms for sample in samples for ms in (sample.before_ms, sample.after_ms) if ms]
        self.calm_ms = min(moments, default=0.0)
        self.calm_sync_us = min((sample.sync_us for sample in samples if sample.sync_us), default=0.0)
        self._by_cell: dict[tuple[str, str, str], list[Sample]] = {}
        for sample in samples:
            self._by_cell.setdefault((sample.workload, sample.engine, sample.contender), []).append(sample)

    def is_busy(self, sample: Sample) -> bool:
        """Say whether somebody else was using the cores or the disk around a sample."""
        if max(sample.before_ms, sample.after_ms) > BUSY * self.calm_ms:
            return True
        return sample.sync_us > BUSY_DISK * self.calm_sync_us

    def contenders(self, workload: str, engine: str) -> list[str]:
        """Give those that were asked for a workload, in the catalogue's order."""
        asked = {contender for w, e, contender in self._by_cell if (w, e) == (workload, engine)}
        return [name for name in CONTENDERS if name in asked]

    def engines(self, workload: str) -> list[str]:
        """Give the engines on which a workload was asked for."""
        asked = {engine for name, engine, _ in self._by_cell if name == workload}
        return [engine for engine in ENGINES if engine in asked]

    def cell(self, workload: str, engine: str, contender: str) -> list[Sample]:
        """Give the samples of one cell."""
        return self._by_cell.get((workload, engine, contender), [])

    def figure(self, workload: str, engine: str, contender: str, metric: str) -> Figure | None:
        """Give the median of a metric, or nothing if it was never measured."""
        found = [sample for sample in self.cell(workload, engine, contender) if metric in sample.metrics]
        return self._summary([(sample.metrics[metric], self.is_busy(sample)) for sample in found])

    def ratio(self, own: tuple[str, str, str, str], other: tuple[str, str, str, str]) -> Figure | None:
        """Give the median of ratios taken within each round; each side is (workload, engine, contender, metric)."""
        mine, theirs = self._by_round(own), self._by_round(other)
        pairs = [
            (mine[number][0] / theirs[number][0], mine[number][1] or theirs[number][1])
            for number in sorted(mine.keys() & theirs.keys())
            if theirs[number][0]
        ]
        return self._summary(pairs)

    def best(self, workload: str, engine: str, metric: Metric, role: str) -> str | None:
        """Name the best peer, or the highest ceiling, by its median."""
        found = {
            name: figure.value
            for name in self.contenders(workload, engine)
            if CONTENDERS[name].role == role and (figure := self.figure(workload, engine, name, metric.key)) is not None
        }
        if not found:
            return None
        pick = max if metric.higher_is_better else min
        return pick(found, key=lambda name: found[name])

    def problems(self) -> Mapping[tuple[str, str, str], str]:
        """Give why cells are empty; what a peer does not offer is left out."""
        return {
            cell: samples[0].problem
            for cell, samples in self._by_cell.items()
            if samples[0].problem and not samples[0].unsupported and not any(s.metrics for s in samples)
        }

    def _by_round(self, key: tuple[str, str, str, str]) -> dict[int, tuple[float, bool]]:
        workload, engine, contender, metric = key
        return {
            sample.round: (sample.metrics[metric], self.is_busy(sample))
            for sample in self.cell(workload, engine, contender)
            if metric in sample.metrics
        }

    @staticmethod
    def _summary(found: Sequence[tuple[float, bool]]) -> Figure | None:
        if not found:
            return None
        calm = [value for value, busy in found if not busy]
        values = calm if len(calm) >= 2 else [value for value, _ in found]
        middle = median(values)
        spread = (max(values) - min(values)) / middle if middle else 0.0
        reason = ""
        if len(values) < 2:
            reason = "one round only"
        elif len(calm) < 2:
            reason = "the machine was busy"
        elif spread > SPREAD:
            reason = f"spread {spread:.0%}"
        return Figure(middle, spread, len(values), not reason, reason)
