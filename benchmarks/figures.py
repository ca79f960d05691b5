"""Medians over rounds, ratios within a round, and which of them are trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.contenders import CONTENDERS
from benchmarks.machine import BUSY, BUSY_DISK, SPREAD
from benchmarks.results import Cell, Key, Round
from benchmarks.workloads import Metric


@dataclass(frozen=True, slots=True)
class Figure:
    """A median over rounds."""

    value: float
    spread: float
    """(largest - smallest) / median."""
    rounds: int
    is_trusted: bool


class Figures:
    """What the cells of a run say."""

    def __init__(self, cells: Mapping[Key, Cell]) -> None:
        self._cells = cells
        rounds = [one for cell in cells.values() for one in cell.rounds.values()]
        self.calm_ms = min((one.machine_ms for one in rounds), default=0.0)
        self.calm_sync_us = min((one.sync_us for one in rounds), default=0.0)

    def is_busy(self, one: Round) -> bool:
        """Whether other work shared the cores or the disk."""
        return one.machine_ms > BUSY * self.calm_ms or one.sync_us > BUSY_DISK * self.calm_sync_us

    def figure(self, key: Key, metric: str) -> Figure | None:
        """The median of a metric, or None if it was never measured."""
        return _summary([(values[metric], busy) for values, busy in self._rounds(key).values() if metric in values])

    def ratio(self, own: Key, other: Key, metric: str) -> Figure | None:
        """The median of the ratios that are taken within each round."""
        mine, theirs = self._rounds(own), self._rounds(other)
        pairs = [
            (mine[n][0][metric] / theirs[n][0][metric], mine[n][1] or theirs[n][1])
            for n in sorted(mine.keys() & theirs.keys())
            if mine[n][0].get(metric) is not None and theirs[n][0].get(metric)
        ]
        return _summary(pairs)

    def best(self, workload: str, engine: str, metric: Metric) -> str | None:
        """The peer with the best median, of those that have a worker and sync every commit."""
        found = {
            name: figure.value
            for name, contender in CONTENDERS.items()
            if not contender.is_own
            and contender.is_durable
            and (figure := self.figure((workload, engine, name), metric.key)) is not None
        }
        pick = max if metric.higher_is_better else min
        return pick(found, key=lambda name: found[name]) if found else None

    def _rounds(self, key: Key) -> dict[int, tuple[Mapping[str, float], bool]]:
        cell = self._cells.get(key)
        return {n: (one.metrics, self.is_busy(one)) for n, one in cell.rounds.items()} if cell else {}


def _summary(found: Sequence[tuple[float, bool]]) -> Figure | None:
    if not found:
        return None
    calm = [value for value, busy in found if not busy]
    values = calm if len(calm) >= 2 else [value for value, _ in found]
    middle = median(values)
    spread = (max(values) - min(values)) / middle if middle else 0.0
    return Figure(middle, spread, len(values), len(calm) >= 2 and spread <= SPREAD)
