"""Do the measurements: every contender in a process and a database of its own, in turns, round after round.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks import environment, machine, servers
from benchmarks.catalogue import ROOT, Contender
from benchmarks.errors import BenchError
from benchmarks.protocol import Answer, Request
from benchmarks.workloads import Size, Workload

TIMES_UP = "not begun: the time was up"
LAST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Task:
    """One cell of the report: a workload, an engine and who does it."""

    workload: Workload
    engine: str
    contender: Contender
    size: Size

    @property
    def label(self) -> str:
        """How the progress bar names it."""
        return f"{self.workload.name} {self.engine} {self.contender.name}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement, with how calm the machine was around it."""

    workload: str
    engine: str
    contender: str
    round: int
    jobs: int
    metrics: Mapping[str, float]
    before_ms: float
    after_ms: float
    sync_us: float = 0.0
    problem: str = ""
    unsupported: bool = False
    version: str = ""
    settings: str = ""


@dataclass(slots=True)
class Engines:
    """The servers of a run, started when first needed; one that cannot be had is remembered with its reason."""

    scratch: Path
    given_postgres: str | None = None
    running: dict[str, servers.Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, engine: str) -> None:
        """Have an engine at hand, or know why not."""
        if engine in self.running or engine in self.missing or engine == "sqlite":
            return
        try:
            starting = (
                servers.postgres(self.scratch, self.given_postgres)
                if engine == "postgres"
                else servers.redis(self.scratch)
            )
            self.running[engine] = self._stack.enter_context(starting)
        except BenchError as exc:
            if engine == "postgres" and self.given_postgres:
                raise
            self.missing[engine] = str(exc)

    @contextmanager
    def fresh(self, engine: str, folder: Path) -> Iterator[str]:
        """Give the URL of an empty store for one measurement."""
        if engine == "sqlite":
            yield f"sqlite:///{folder / 'jobs.db'}"
        elif engine == "redis":
            yield self.running["redis"].url
        else:
            server = self.running["postgres"]
            with servers.fresh_database(server, f"tenure_bench_{os.getpid()}") as url:
                servers.settle(server)
                yield url


def rounds_of(tasks: Sequence[Task], rounds: int) -> Iterator[tuple[int, Task]]:
    """Give the measurements in their order."""
    for number in range(rounds):
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            if number < task.workload.most_rounds:
                groups.setdefault(f"{task.workload.name} {task.engine}", []).append(task)
        for group in groups.values():
            turn = number % len(group)
            for task in (*group[turn:], *group[:turn]):
                yield number, task


def measure_all(
    tasks: Sequence[Task],
    rounds: int,
    engines: Engines,
    *,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Sample]:
    """Do all measurements; one that fails is a sample with a problem, never an end of the run."""
    deadline = None if seconds is None else time.monotonic() + seconds
    samples: list[Sample] = []
    broken: dict[str, Sample] = {}
    for number, task in rounds_of(tasks, rounds):
        progress(task.label)
        if deadline is not None and time.monotonic() > deadline:
            samples.append(_without(task, number, TIMES_UP))
        elif task.label in broken:
            # What failed or is not offered would do so again; the minutes are better spent on the others.
            samples.append(_without(task, number, broken[task.label].problem, broken[task.label].unsupported))
        else:
            left = None if deadline is None else deadline - time.monotonic()
            sample = measure(task, number, engines, left)
            samples.append(sample)
            if sample.problem:
                broken[task.label] = sample
    return samples


def measure(task: Task, number: int, engines: Engines, left: float | None = None) -> Sample:
    """Do one measurement in a fresh process with a fresh store; gives up soon after the time `left` is over."""
    seconds = task.workload.seconds if left is None else min(task.workload.seconds, left + LAST_SECONDS)
    engines.start(task.engine)
    if task.engine in engines.missing:
        return _without(task, number, engines.missing[task.engine])
    folder = engines.scratch / "measurement"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with engines.fresh(task.engine, folder) as url:
            request = Request(
                task.workload.name, task.engine, url, str(folder), task.size.jobs, task.size.backlog, task.size.clients
            )
            sync = machine.sync_us(engines.scratch)
            before = machine.calibrate()
            hello, answer = ask(task.contender, request, seconds, engines.scratch / "side.log")
            after = machine.calibrate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    metrics = _metrics(task.workload, answer)
    problem = answer.error
    if answer.ok and not answer.checked:
        problem = "the side did not check what it left in the store, so its figure is thrown away"
    elif answer.ok and not metrics:
        problem = "the side gave no figure"
    return Sample(
        task.workload.name,
        task.engine,
        task.contender.name,
        number,
        answer.jobs or task.size.jobs,
        {} if problem else metrics,
        before,
        after,
        sync,
        problem,
        answer.unsupported,
        hello.version,
        hello.settings,
    )


def ask(contender: Contender, request: Request, seconds: float, log: Path) -> tuple[Answer, Answer]:
    """Start a side, put a request to it and end it with all that it started."""
    python = sys.executable if contender.role == "tenure" else str(environment.PYTHON)
    command = [python, "-m", contender.module, *contender.args]
    lines = Request("hello").to_line() + request.to_line()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    nobody = Answer(ok=False)
    try:
        output, _ = process.communicate(lines, timeout=seconds)
    except subprocess.TimeoutExpired:
        return nobody, Answer(ok=False, error=f"no answer within {seconds:.0f} s")
    finally:
        _end_group(process)
    answers = output.splitlines()
    try:
        return Answer.from_line(answers[0]), Answer.from_line(answers[1])
    except (IndexError, ValueError):
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return nobody, Answer(ok=False, error=f"the side ended without an answer: {' '.join(said[-2:])[-300:]}")


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill whatever is left of the side's own process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _metrics(workload: Workload, answer: Answer) -> dict[str, float]:
    if not answer.ok:
        return {}
    found = {metric.key: metric.derive(answer) for metric in workload.metrics}
    return {key: value for key, value in found.items() if value is not None}


def _without(task: Task, number: int, problem: str, unsupported: bool = False) -> Sample:
    return Sample(
        task.workload.name, task.engine, task.contender.name, number, task.size.jobs, {}, 0, 0, 0, problem, unsupported
    )
