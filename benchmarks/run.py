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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Self

from benchmarks import environment, machine, servers
from benchmarks.catalogue import ROOT, Contender
from benchmarks.errors import BenchError
from benchmarks.protocol import Answer, Request
from benchmarks.workloads import Size, Workload

TIMES_UP = "not begun: the time was up"
STOPPED = "stopped by a signal"
LATE = "no answer"
LAST_SECONDS = 10.0
LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Task:
    """One cell of the report: a workload, an engine and who does it."""

    workload: Workload
    engine: str
    contender: Contender
    size: Size

    @property
    def group(self) -> str:
        """Whose figures are compared with each other: they get the same rounds, in turns."""
        return f"{self.workload.name} {self.engine}"

    @property
    def is_shared(self) -> bool:
        """Whether its store is filled once and kept for the next rounds."""
        return self.workload.is_shared and self.contender.role != "own"

    @property
    def label(self) -> str:
        """How the progress bar names it."""
        return f"{self.group} {self.contender.name}"


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
    seconds: float = 0.0
    """What the whole measurement took, with its preparations: the next run's estimate."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Which measurement this is."""
        return self.workload, self.engine, self.contender, self.round


@dataclass(slots=True)
class Engines:
    """The servers of a run, started when first needed; one that cannot be had is remembered with its reason."""

    scratch: Path
    given_postgres: str | None = None
    running: dict[str, servers.Server] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    found: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Stores that were filled for an earlier round and are kept for the next: what was found then, by task."""
    _kept: dict[str, str] = field(default_factory=dict)
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
    def store_for(self, task: Task, folder: Path) -> Iterator[str]:
        """Give the URL of an empty store for one measurement, or of the one that an earlier round has filled."""
        if task.is_shared:
            if task.label not in self._kept:
                self._kept[task.label] = self._keep(task)
            if task.engine == "postgres":
                servers.settle(self.running["postgres"])
            yield self._kept[task.label]
        elif task.engine == "sqlite":
            yield f"sqlite:///{folder / 'jobs.db'}"
        elif task.engine == "redis":
            yield self.running["redis"].url
        else:
            server = self.running["postgres"]
            with servers.fresh_database(server, f"tenure_bench_{os.getpid()}") as url:
                servers.settle(server)
                yield url

    def forget(self, task: Task) -> None:
        """Never use a store again in which something went wrong."""
        self._kept.pop(task.label, None)
        self.found.pop(task.label, None)

    def _keep(self, task: Task) -> str:
        number = len(list(self.scratch.glob("kept-*")))
        folder = self.scratch / f"kept-{number}"
        folder.mkdir()
        if task.engine == "sqlite":
            return f"sqlite:///{folder / 'jobs.db'}"
        server, name = self.running["postgres"], f"tenure_bench_{os.getpid()}_{number}"
        return self._stack.enter_context(servers.fresh_database(server, name))


def rounds_of(tasks: Sequence[Task], rounds: int | Mapping[str, int]) -> Iterator[tuple[int, Task]]:
    """Give the measurements in their order; a mapping gives each group its own number of rounds."""
    most = rounds if isinstance(rounds, int) else max(rounds.values(), default=0)
    for number in range(most):
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            wanted = rounds if isinstance(rounds, int) else rounds.get(task.group, 0)
            if number < min(wanted, task.workload.most_rounds):
                groups.setdefault(task.group, []).append(task)
        for group in groups.values():
            turns = _turns(group, number)
            first = number % len(turns)
            for task in chain(*turns[first:], *turns[:first]):
                yield number, task


def _turns(group: Sequence[Task], number: int) -> list[list[Task]]:
    """Give who takes turns in a group: everybody for himself, but Tenure side by side with what it is held against."""
    own = [task for task in group if task.contender.role in {"tenure", "own"}]
    pair = own[::-1] if number % 2 else own
    return [turn for turn in (pair, *([task] for task in group if task not in own)) if turn]


def measure_all(
    todo: Sequence[tuple[int, Task]],
    engines: Engines,
    *,
    seconds: float | None = None,
    broken: Collection[Sample] = (),
    progress: Callable[[str], None] = lambda _: None,
    keep: Callable[[Sample], None] = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Do all measurements and `keep` each; one that fails is a sample with a problem, never an end of the run.

    What failed or is not offered would do so again (`broken` holds what did in an earlier run): the minutes are better
    spent on the others.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    failed = {(sample.workload, sample.engine, sample.contender): sample for sample in broken}
    for number, task in todo:
        if is_stopped():
            return
        progress(task.label)
        earlier = failed.get((task.workload.name, task.engine, task.contender.name))
        if deadline is not None and time.monotonic() > deadline:
            keep(without(task, number, TIMES_UP))
        elif earlier is not None:
            keep(without(task, number, earlier.problem, earlier.unsupported))
        else:
            left = None if deadline is None else deadline - time.monotonic()
            sample = measure(task, number, engines, left, is_stopped)
            if is_stopped() and sample.problem:
                return
            if sample.problem:
                failed[sample.key[:3]] = sample
            keep(sample)


def measure(
    task: Task,
    number: int,
    engines: Engines,
    left: float | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Sample:
    """Do one measurement in a process of its own; gives up soon after the time `left` is over."""
    begun = time.monotonic()
    seconds = task.workload.seconds if left is None else min(task.workload.seconds, left + LAST_SECONDS)
    engines.start(task.engine)
    if task.engine in engines.missing:
        return without(task, number, engines.missing[task.engine])
    folder = engines.scratch / "measurement"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size = task.size
    try:
        with engines.store_for(task, folder) as url:
            request = Request(
                task.workload.name,
                task.engine,
                url,
                str(folder),
                size.jobs,
                size.backlog,
                size.clients,
                engines.found.get(task.label),
            )
            os.sync()  # what the last measurement left to the system is not this one's to pay for
            sync = machine.sync_us(engines.scratch)
            before = machine.calibrate()
            hello, answer = ask(task.contender, request, seconds, engines.scratch / "side.log", is_stopped)
            after = machine.calibrate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    metrics, problem = _judged(task.workload, answer)
    if problem.startswith(LATE) and seconds < task.workload.seconds:
        problem = TIMES_UP  # the run's time, not the contender's
    if problem:
        engines.forget(task)
    elif task.is_shared:
        engines.found.setdefault(task.label, answer.values)
    return Sample(
        task.workload.name,
        task.engine,
        task.contender.name,
        number,
        answer.jobs or size.jobs,
        metrics,
        before,
        after,
        sync,
        problem,
        answer.unsupported,
        hello.version,
        hello.settings,
        time.monotonic() - begun,
    )


def ask(
    contender: Contender,
    request: Request,
    seconds: float,
    log: Path,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Answer, Answer]:
    """Start a side, put a request to it and end it with all that it started."""
    python = sys.executable if contender.role in {"tenure", "own"} else str(environment.PYTHON)
    command = [python, "-m", contender.module, *contender.args]
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
        output = _talk(process, Request("hello").to_line() + request.to_line(), seconds, is_stopped)
    finally:
        _end_group(process)
    if output is None:
        return nobody, Answer(ok=False, error=STOPPED if is_stopped() else f"{LATE} within {seconds:.0f} s")
    answers = output.splitlines()
    try:
        return Answer.from_line(answers[0]), Answer.from_line(answers[1])
    except (IndexError, ValueError):
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return nobody, Answer(ok=False, error=f"the side ended without an answer: {' '.join(said[-2:])[-300:]}")


def _talk(process: subprocess.Popen[str], lines: str, seconds: float, is_stopped: Callable[[], bool]) -> str | None:
    """Give what the side says, or nothing if it is late or the run was stopped."""
    deadline = time.monotonic() + seconds
    said: str | None = lines
    while time.monotonic() < deadline and not is_stopped():
        try:
            return process.communicate(said, timeout=LOOK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            said = None  # it has been given; a second try only listens on
    return None


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill whatever is left of the side's own process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _judged(workload: Workload, answer: Answer) -> tuple[dict[str, float], str]:
    """Give the figures of an answer, or why there are none."""
    if not answer.ok:
        return {}, answer.error or "the side gave no reason"
    if not answer.checked:
        return {}, "the side did not check what it left in the store, so its figure is thrown away"
    found = {metric.key: metric.derive(answer) for metric in workload.metrics}
    metrics = {key: value for key, value in found.items() if value is not None}
    return metrics, "" if metrics else "the side gave no figure"


def without(task: Task, number: int, problem: str, unsupported: bool = False) -> Sample:
    """Give a sample that has no figure, and why."""
    return Sample(
        task.workload.name, task.engine, task.contender.name, number, task.size.jobs, {}, 0, 0, 0, problem, unsupported
    )
