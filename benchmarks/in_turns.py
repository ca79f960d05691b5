"""Workloads in turns within seconds of each other, and what the server does in them: `python -m benchmarks.in_turns`.

The bench measures a workload minutes after the one it is compared with. Here they alternate, so that a ratio compares
the same state of the machine; on PostgreSQL `pg_stat_statements` tells the costliest statements of each, per job, with
whatever filled the store. The first cell is what the others are divided by.

Examples:
    python -m benchmarks.in_turns --rounds 5 W3a W5 W5d W6 W3a:pg-boss
    python -m benchmarks.in_turns --engine sqlite --rounds 9 W3a W5d
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import keeping, servers
from benchmarks.catalogue import CONTENDERS, ROOT
from benchmarks.run import Engines, Task, measure
from benchmarks.workloads import WORKLOADS

STATEMENTS = (Path(__file__).parent / "sql" / "in_turns_statements.sql").read_text(encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_turns", description="Measure workloads in turns.")
    parser.add_argument("cells", nargs="+", metavar="W3a or W3a:pg-boss", help="a workload, of Tenure or of a peer")
    parser.add_argument("--engine", default="postgres", choices=("postgres", "sqlite"))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    tasks = [_task(parser, cell, options.engine) for cell in options.cells]
    (ROOT / ".bench").mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="in-turns-", dir=ROOT / ".bench"))
    scratch.chmod(0o755)
    servers.POSTGRES_SETTINGS["shared_preload_libraries"] = "pg_stat_statements"
    try:
        with keeping.only_run(), Engines(scratch) as engines:
            measure_in_turns(tasks, options.rounds, engines)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _task(parser: argparse.ArgumentParser, cell: str, engine: str) -> Task:
    name, _, contender = cell.partition(":")
    if name not in WORKLOADS or (contender or "tenure") not in CONTENDERS:
        parser.error(f"there is no {cell!r}; `python -m benchmarks --list` names workloads and contenders")
    return Task(WORKLOADS[name], engine, CONTENDERS[contender or "tenure"], WORKLOADS[name].full)


def measure_in_turns(tasks: Sequence[Task], rounds: int, engines: Engines) -> None:
    """Measure each cell once a round, forth and back, and print ratios to the first."""
    found: dict[str, list[float]] = {task.label: [] for task in tasks}
    for number in range(rounds):
        for task in tasks if number % 2 == 0 else tasks[::-1]:
            engines.start(task.engine)
            server = engines.running.get("postgres")
            if server:
                _ask(server.url, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                _ask(server.url, "SELECT pg_stat_statements_reset()")
            sample = measure(task, number, engines)
            metric = task.workload.metrics[0]
            value = sample.metrics.get("started_rate", sample.metrics.get(metric.key, float("nan")))
            found[task.label].append(value)
            print(f"{number + 1} {task.label}: {value:,.5g} {metric.unit or metric.label} {sample.problem}", flush=True)
            for text, calls, us, pages, wal in _ask(server.url, STATEMENTS) if server else ():
                each = f"{us / sample.jobs:6.1f} µs, {pages / sample.jobs:5.1f} pages, {wal / sample.jobs:6,.0f} B WAL"
                print(f"    {each} a job, {calls:6,} calls: {text}", flush=True)
    first = found[tasks[0].label]
    for label, values in found.items():
        ratios = [one / other for one, other in zip(values, first, strict=True)]
        print(f"{label}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def _ask(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(text.encode())
        return found.fetchall() if found.description else []


if __name__ == "__main__":
    main()
