"""Tenure on SQLite and PostgreSQL, through its front door, at the settings it comes with."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks import tenure_own
from benchmarks.peers import drain
from benchmarks.peers.harness import Enqueue, Order, Side, main, timed
from benchmarks.peers.tally import PRIORITIES, Tally
from benchmarks.protocol import Answer, Request, payload

QUEUE = "default"
MANY = 100_000


class TenureSide(Side):
    """Tenure as a user runs it."""

    name = "tenure"
    distribution = "tenure"
    engines = ("postgres", "sqlite")
    settings = "defaults; every commit synced, rows kept, every write fenced; bulk enqueue in one call"
    workloads = ("W1", "W2", "W3a", "W3b", "W3t", "W4", "W5", "W6", "W7")
    keeps_rows = True
    _asking: tenure_own.Counter | None = None

    @property
    def own_workloads(self) -> Mapping[str, Callable[[Request], Answer]]:
        """W1c, W5d, W8, W9, W10 and the footprint."""
        return tenure_own.workloads(self)

    def prepare(self, url: str) -> None:
        """Migrate."""
        with _open(url) as app:
            app.migrate()

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One call, one commit."""
        with _open(url) as app:
            noop = _noop(app)
            app.cancel(
                noop.enqueue(payload(0), delay=86_400).id
            )  # opens the connection and compiles the payload's type
            return timed(lambda: [noop.enqueue(payload(i)) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int, *, spread: bool = False) -> float:
        """One call, which goes in batches of 2,000."""
        with _open(url) as app:
            noop = _noop(app)
            app.now()

            def bulk() -> None:
                if spread:
                    app.enqueue_many(noop.new(payload(i), priority=-(i % PRIORITIES)) for i in range(jobs))
                else:
                    noop.enqueue_many(payload(i) for i in range(jobs))

            return timed(bulk)

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """Single jobs through one app."""
        with _open(url) as app:
            noop = _noop(app)

            def enqueue(i: int) -> tuple[int, int]:
                called = time.monotonic_ns()
                noop.enqueue(payload(i))
                return called, time.monotonic_ns()

            yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """The worker that comes with Tenure."""
        import tenure

        app = tenure.App(order.url)

        def run(job: dict[str, Any]) -> None:
            if tally.started(job["i"]):
                raise tenure.RetryAfter(0)

        async def arun(job: dict[str, Any]) -> None:
            if tally.started(job["i"]):
                raise tenure.RetryAfter(0)

        app.job(kind="noop", queue=QUEUE)(run if order.threads else arun)
        app.now()
        tally.ready_and_wait()
        app.run_worker([QUEUE])

    def unfinished(self, url: str) -> int:
        """Ask the store; the connection is kept between calls."""
        return self._counter(url).count("unfinished")

    def finished(self, url: str) -> int:
        """Ask the store."""
        return self._counter(url).count("finished")

    def fill(self, url: str, jobs: int, *, spread: bool = False) -> None:
        """Write long queues straight into the table; short ones go through the front door."""
        if spread or jobs < MANY:
            super().fill(url, jobs, spread=spread)
        else:
            tenure_own.fill_backlog(url, jobs)

    def fill_history(self, url: str, jobs: int) -> None:
        """Write finished rows as Tenure leaves them."""
        tenure_own.fill_history(url, jobs)

    def close(self) -> None:
        """Let go of the connection for counting."""
        if self._asking is not None:
            self._asking.close()

    def _counter(self, url: str) -> tenure_own.Counter:
        if self._asking is None:
            self._asking = tenure_own.Counter(url)
        return self._asking


class EmptyStore(TenureSide):
    """The drain W3a, measured again in turns with the workloads that are held against it."""

    name = "tenure-empty"
    settings = "as tenure, on an empty store: W3a in turns with the workload that is compared with it"

    @property
    def own_workloads(self) -> Mapping[str, Callable[[Request], Answer]]:
        """W5 and W6 are timed by handler starts, and so is this one beside them; W5d is timed as W3a is."""
        return {"W5": self._starts, "W5d": self._drain, "W6": self._starts}

    def _drain(self, request: Request) -> Answer:
        self.prepare(request.url)
        return drain.drain(self, request)

    def _starts(self, request: Request) -> Answer:
        answer = self._drain(request)
        return replace(answer, seconds=answer.values["started_seconds"])


@contextmanager
def _open(url: str) -> Iterator[Any]:
    import tenure

    with tenure.App(url) as app:
        yield app


def _noop(app: Any) -> Any:
    async def noop(job: dict[str, Any]) -> None: ...

    return app.job(kind="noop", queue=QUEUE)(noop)


if __name__ == "__main__":
    main(EmptyStore() if sys.argv[1:2] == ["empty"] else TenureSide())
