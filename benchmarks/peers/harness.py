"""What all sides share: the workloads over a handful of hooks, the protocol's loop, and the worker's entry.

A side subclasses `Side`, sets the class attributes, implements the hooks and ends its module with `main(ItsSide())`.
The same module is then run twice: without arguments it is the side that the driver talks to; as
`python -m module worker '{…}'` it is one worker process, which the side started for a drain.
"""

from __future__ import annotations

import importlib.metadata
import json
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.tally import Tally
from benchmarks.protocol import Answer, CheckFailed, Request, Unsupported, serve

Enqueue = Callable[[int], tuple[int, int]]
"""Enqueue job `i`; gives the moments (CLOCK_MONOTONIC, ns) at which the call began and returned."""

COUNTS = Path(__file__).parent / "counts.sql"


@dataclass(frozen=True, slots=True)
class Order:
    """What one worker process is told."""

    do: str
    url: str
    tally: str
    jobs: int
    slot: int


class Side(ABC):
    """One contender: a library, an engine and its best settings."""

    name: ClassVar[str]
    distribution: ClassVar[str] = ""
    engines: ClassVar[tuple[str, ...]]
    settings: ClassVar[str] = ""
    workloads: ClassVar[tuple[str, ...]] = ("W1", "W3a", "W3b", "W4")
    keeps_rows: ClassVar[bool] = False
    """Finished jobs stay in the store, so that `finished` can count them."""
    pause: ClassVar[tuple[float, float]] = (0.005, 0.015)
    """W4's pause before each job: spans a whole polling interval, or else a poller would be met in step."""

    @property
    def version(self) -> str:
        """The installed version of the library."""
        return importlib.metadata.version(self.distribution)

    @property
    def own_workloads(self) -> Mapping[str, Callable[[Request], Answer]]:
        """Workloads that the harness does not bring, each with its method."""
        return {}

    @abstractmethod
    def prepare(self, url: str) -> None:
        """Make the tables, if the library wants any."""

    @abstractmethod
    def enqueue_each(self, url: str, jobs: int) -> float:
        """Enqueue one call and one commit each; gives the seconds of the calls, without the connecting."""

    def enqueue_bulk(self, url: str, jobs: int) -> float:  # noqa: ARG002 - a hook
        """Enqueue by the library's bulk call."""
        raise Unsupported(f"{self.name} has no bulk enqueue")

    @abstractmethod
    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """Hold a connection and enqueue single jobs through it."""

    @abstractmethod
    def worker(self, order: Order, tally: Tally) -> None:
        """Work until killed: `tally.ready_and_wait()` once before claiming, `tally.started(i)` in each handler."""

    @abstractmethod
    def unfinished(self, url: str) -> int:
        """Count the jobs that the store still holds as waiting or running."""

    def finished(self, url: str) -> int:
        """Count the jobs that the store holds as done well; asked only where `keeps_rows`."""
        raise NotImplementedError

    def fill(self, url: str, jobs: int) -> None:
        """Put jobs there before a drain, as fast as the library can."""
        try:
            self.enqueue_bulk(url, jobs)
        except Unsupported:
            self.enqueue_each(url, jobs)

    def worker_command(self, order: Order) -> list[str]:
        """The command line that runs one worker process."""
        return [sys.executable, "-m", _module_of(self), "worker", json.dumps(asdict(order))]

    def hello(self) -> Answer:
        """The name, version and settings of this side."""
        return Answer(ok=True, peer=self.name, version=self.version, settings=self.settings)

    def close(self) -> None:  # noqa: B027 - a hook that most sides leave empty
        """Let go of what the hooks keep open between calls."""


def main(side: Side) -> None:
    """Be the side that the driver talks to, or one of its workers."""
    if sys.argv[1:2] == ["worker"]:
        order = Order(**json.loads(sys.argv[2]))
        side.worker(order, Tally(Path(order.tally), order.jobs, slot=order.slot))
        return
    serve(lambda request: _answer(side, request))
    side.close()


def timed(call: Callable[[], object]) -> float:
    """Give the seconds that a call takes."""
    begun = time.monotonic_ns()
    call()
    return (time.monotonic_ns() - begun) / 1e9


def statement(name: str) -> str:
    """One of the named queries in `counts.sql`."""
    parts = COUNTS.read_text(encoding="utf-8").split("-- name: ")
    return next(body for part in parts if (body := part.removeprefix(f"{name}\n")) != part)


def sqlite_path(url: str) -> str:
    """Give the file behind a sqlite:/// URL."""
    return url.removeprefix("sqlite:///")


class PostgresSide(Side):
    """A side whose counts come from PostgreSQL by `<name>_unfinished` and `<name>_finished` in counts.sql."""

    engines = ("postgres",)
    _asking: object = None

    def unfinished(self, url: str) -> int:
        """Ask the peer's own tables."""
        return self._ask(url, f"{self.name}_unfinished")

    def finished(self, url: str) -> int:
        """Ask the peer's own tables."""
        return self._ask(url, f"{self.name}_finished")

    def _ask(self, url: str, name: str) -> int:
        import psycopg

        if not isinstance(self._asking, psycopg.Connection):
            self._asking = psycopg.connect(url, autocommit=True)
        row = self._asking.execute(statement(name)).fetchone()
        assert row is not None
        return int(row[0])


class SqliteSide(Side):
    """A side whose counts come from its SQLite file, read beside the workers by `<name>_unfinished` in counts.sql."""

    engines = ("sqlite",)
    _asking: sqlite3.Connection | None = None

    def unfinished(self, url: str) -> int:
        """Ask the peer's own tables."""
        return self._ask(url, f"{self.name}_unfinished")

    def _ask(self, url: str, name: str) -> int:
        if self._asking is None:
            self._asking = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=10)
        return int(self._asking.execute(statement(name)).fetchone()[0])


def _answer(side: Side, request: Request) -> Answer:
    """Do one workload and check what it left."""
    from benchmarks.peers import drain

    if request.do == "hello":
        return side.hello()
    if request.do in side.own_workloads:
        return side.own_workloads[request.do](request)
    if request.do not in side.workloads:
        raise Unsupported(f"{side.name} has no {request.do}")
    side.prepare(request.url)
    if request.do == "W1":
        return _enqueued(side, request, side.enqueue_each(request.url, request.jobs))
    if request.do == "W2":
        return _enqueued(side, request, side.enqueue_bulk(request.url, request.jobs))
    return drain.WORKLOADS[request.do](side, request)


def _enqueued(side: Side, request: Request, seconds: float) -> Answer:
    waiting = side.unfinished(request.url)
    if waiting != request.jobs:
        raise CheckFailed(f"{waiting:,} of {request.jobs:,} jobs are in the store")
    return Answer(ok=True, jobs=request.jobs, seconds=seconds, checked=True)


def _module_of(side: Side) -> str:
    module = type(side).__module__
    if module != "__main__":
        return module
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "run a side as `python -m benchmarks.…`"
    return spec.name
