"""What a run has found so far, as one compact JSON file that is written anew after every measurement.

A run replaces the cells that it measures and keeps the others, so that one page can come from several runs. Each cell
says when it was measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[str, str, str]
"""Workload, engine, contender."""


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one measurement, and how calm the machine was around it."""

    metrics: Mapping[str, float]
    machine_ms: float
    sync_us: float


@dataclass(slots=True)
class Cell:
    """All rounds of one contender in one workload on one engine."""

    at: str
    jobs: int
    version: str = ""
    settings: str = ""
    problem: str = ""
    """Why the last measurement gave no figure."""
    rounds: dict[int, Round] = field(default_factory=dict)


@dataclass(slots=True)
class Results:
    """A run."""

    scale: float = 1.0
    machine: dict[str, str] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Contenders that could not take part, with the reason."""
    cells: dict[Key, Cell] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replace the file in one step."""
        head = {"scale": self.scale, "machine": self.machine, "servers": self.servers, "absent": self.absent}
        lines = [f" {json.dumps(' '.join(key))}: {_dump(asdict(cell))}" for key, cell in self.cells.items()]
        text = f'{{"run": {_dump(head)},\n"cells": {{\n' + ",\n".join(lines) + "\n}}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)


def load(path: Path, scale: float) -> Results:
    """Read an earlier run; nothing if there is none, or if it used other numbers of jobs."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Results(scale)
    if content["run"]["scale"] != scale:
        return Results(scale)
    cells: dict[Key, Cell] = {}
    for name, raw in content["cells"].items():
        workload, engine, contender = name.split(" ")
        rounds = {int(number): Round(**one) for number, one in raw.pop("rounds").items()}
        cells[workload, engine, contender] = Cell(**raw, rounds=rounds)
    return Results(**content["run"], cells=cells)


def _dump(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(", ", ": "))


def _rounded(value: Any) -> Any:
    """Four digits are more than the machine repeats."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return value
