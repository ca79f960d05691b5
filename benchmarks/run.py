"""Do the measurements: every contender in a process and a database of its own, round after round.

A round goes once through all workloads and, within a workload, through all contenders, each time beginning with
another one. So the figures that are compared come from the same minute, and a slow spell of the machine meets all.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks import environment, machine, servers
from benchmarks.contenders import ROOT, Contender
from benchmarks.errors import BenchError
from benchmarks.protocol import Answer, Request
from benchmarks.results import Key, Round
from benchmarks.workloads import Size, Workload


@dataclass(frozen=True, slots=True)
class Task:
    """One cell of the report: a workload, an engine and who does it."""

    workload: Workload
    engine: str
    contender: Contender
    size: Size

    @property
    def key(self) -> Key:
        """The cell in the results."""
        return self.workload.name, self.engine, self.contender.name

    @property
    def is_shared(self) -> bool:
        """Whether its store is filled once and kept for the next rounds."""
        return self.workload.is_shared and self.contender.name == "tenure"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measurement gave: a round, or the problem that prevented it."""

    round: Round | None = None
    problem: str = ""
    jobs: int = 0
    version: str = ""
    settings: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Engines:
    """The servers of a run, started when first needed, and the stores that are kept between rounds."""

    scratch: Path
    given_postgres: str | None = None
    running: dict[str, servers.Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    filled: set[Key] = field(default_factory=set)
    """Cells whose store an earlier round has filled."""
    _kept: dict[Key, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, engine: str) -> None:
        """Start an engine, or record why that is not possible."""
        if engine in self.running or engine in self.missing or engine == "sqlite":
            return
        try:
            self.running[engine] = self._stack.enter_context(servers.postgres(self.scratch, self.given_postgres))
        except BenchError as exc:
            if self.given_postgres:
                raise
            self.missing[engine] = str(exc)

    @contextmanager
    def store_for(self, task: Task, folder: Path) -> Iterator[str]:
        """Give the URL of an empty store for one measurement, or of the one that an earlier round has filled."""
        if task.is_shared:
            if task.key not in self._kept:
                self._kept[task.key] = self._keep(task)
            yield self._kept[task.key]
        elif task.engine == "sqlite":
            yield f"sqlite:///{folder / 'jobs.db'}"
        else:
            with servers.fresh_database(self.running["postgres"], f"tenure_bench_{os.getpid()}") as url:
                yield url

    def forget(self, task: Task) -> None:
        """Do not use a store again in which a measurement failed."""
        self._kept.pop(task.key, None)
        self.filled.discard(task.key)

    def _keep(self, task: Task) -> str:
        number = len(list(self.scratch.glob("kept-*")))
        folder = self.scratch / f"kept-{number}"
        folder.mkdir()
        if task.engine == "sqlite":
            return f"sqlite:///{folder / 'jobs.db'}"
        server, name = self.running["postgres"], f"tenure_bench_{os.getpid()}_{number}"
        return self._stack.enter_context(servers.fresh_database(server, name))


def order(tasks: Sequence[Task], rounds: int) -> Iterator[tuple[int, Task]]:
    """Give the measurements in their order; within a workload each round begins with another contender."""
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.key[:2], []).append(task)
    for number in range(rounds):
        for group in groups.values():
            if number < group[0].workload.most_rounds:
                first = number % len(group)
                yield from ((number, task) for task in [*group[first:], *group[:first]])


def measure(task: Task, engines: Engines) -> Measured:
    """Do one measurement in a process of its own. One that fails gives a problem and never ends the run."""
    begun = time.monotonic()
    engines.start(task.engine)
    if task.engine in engines.missing:
        return Measured(problem=engines.missing[task.engine])
    folder = engines.scratch / "measurement"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size = task.size
    try:
        with engines.store_for(task, folder) as url:
            is_filled = task.key in engines.filled
            request = Request(
                task.workload.name, task.engine, url, str(folder), size.jobs, size.backlog, size.clients, is_filled
            )
            if task.engine == "postgres":
                servers.checkpoint(engines.running["postgres"])
            os.sync()  # this measurement must not pay for writes that the last one left to the system
            sync = machine.sync_us(engines.scratch)
            before = machine.calibrate()
            hello, answer = ask(task.contender, request, task.workload.seconds, engines.scratch / "side.log")
            after = machine.calibrate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    metrics, problem = _judged(task.workload, answer)
    seconds = time.monotonic() - begun
    if problem:
        engines.forget(task)
        return Measured(None, problem, size.jobs, hello.version, hello.settings, seconds)
    if task.is_shared:
        engines.filled.add(task.key)
    found = Round(metrics, max(before, after), sync)
    return Measured(found, "", answer.jobs or size.jobs, hello.version, hello.settings, seconds)


def ask(contender: Contender, request: Request, seconds: float, log: Path) -> tuple[Answer, Answer]:
    """Start a side, put a request to it and end it with all that it started."""
    python = sys.executable if contender.is_own else str(environment.PYTHON)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [python, "-m", contender.module, *contender.args],
            cwd=ROOT,
            env=environment.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        output = process.communicate(Request("hello").to_line() + request.to_line(), timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        return Answer(ok=False), Answer(ok=False, error=f"no answer within {seconds:.0f} s")
    finally:
        _end_group(process)
    answers = output.splitlines()
    try:
        return Answer.from_line(answers[0]), Answer.from_line(answers[1])
    except (IndexError, ValueError):
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return Answer(ok=False), Answer(ok=False, error=f"ended without an answer: {' '.join(said[-2:])[-300:]}")


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill what is left of the side's own process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _judged(workload: Workload, answer: Answer) -> tuple[Mapping[str, float], str]:
    """Give the figures of an answer, or why there are none."""
    if not answer.ok:
        return {}, answer.error or "the side gave no reason"
    if not answer.checked:
        return {}, "the side did not check what it left in the store, so its figure is thrown away"
    found = {metric.key: metric.derive(answer) for metric in workload.metrics}
    metrics = {key: value for key, value in found.items() if value is not None}
    return metrics, "" if metrics else "the side gave no figure"
