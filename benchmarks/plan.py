"""How long a run will take, and how a budget of minutes is spread over what is to be measured.

What each measurement took is written to `.bench/seconds.json` and is the next run's estimate; where there is none yet,
the workload's usual time stands in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.catalogue import ROOT
from benchmarks.run import Sample, Task

SECONDS = ROOT / ".bench" / "seconds.json"
MOST_ROUNDS = 9
ALWAYS_SECONDS = 1.5
"""What a measurement takes however small it is: a process, a database, the calibration."""


class Estimates:
    """What measurements took before."""

    def __init__(self, path: Path = SECONDS) -> None:
        self._path = path
        self._known: dict[str, float] = {}
        with suppress(OSError, ValueError):
            self._known = json.loads(path.read_text(encoding="utf-8"))

    def first(self, task: Task) -> float:
        """Give the seconds of a first round, in which the store is filled."""
        size = task.size.jobs + task.size.backlog
        whole = task.workload.full.jobs + task.workload.full.backlog
        usual = ALWAYS_SECONDS + (task.workload.usual_seconds - ALWAYS_SECONDS) * size / max(1, whole)
        return self._known.get(_name(task, "first"), usual)

    def later(self, task: Task) -> float:
        """Give the seconds of another round."""
        first = self.first(task)
        return self._known.get(_name(task, "later"), min(first, 6.0) if task.is_shared else first)

    def learn(self, task: Task, sample: Sample) -> None:
        """Remember what a measurement took; one without a figure teaches nothing."""
        if sample.metrics:
            which = "later" if sample.round and task.is_shared else "first"
            self._known[_name(task, which)] = round(sample.seconds, 1)

    def save(self) -> None:
        """Write it down for the next run."""
        with suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(self._known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def total(todo: Sequence[tuple[int, Task]], estimates: Estimates) -> float:
    """Give the seconds that these measurements will take."""
    return sum(estimates.later(task) if number else estimates.first(task) for number, task in todo)


def spread(
    tasks: Sequence[Task], minutes: float, estimates: Estimates, most: int = MOST_ROUNDS, least: int = 0
) -> Mapping[str, int]:
    """Give each group as many rounds as the budget allows: one for all before two for any, cheap ones first.

    Contenders of one group are compared, so they get the same number. What does not fit in once is left out, unless
    `least` says otherwise: then the clock decides, not an estimate that may stem from a busy day.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.group, []).append(task)
    left = minutes * 60
    rounds = dict.fromkeys(groups, 0)
    for number in range(most):
        costs = {
            name: sum(estimates.later(task) if number else estimates.first(task) for task in group)
            for name, group in groups.items()
            if rounds[name] == number < min(task.workload.most_rounds for task in group)
        }
        for name in sorted(costs, key=lambda name: costs[name]):
            if costs[name] <= left or number < least:
                left -= costs[name]
                rounds[name] += 1
    return rounds


def _name(task: Task, which: str) -> str:
    return f"{task.label} {task.size.jobs}/{task.size.backlog} {which}"
