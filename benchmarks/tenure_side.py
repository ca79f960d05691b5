"""Tenure on SQLite and PostgreSQL, through its public API."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

from benchmarks import tenure_own
from benchmarks.peers import drain
from benchmarks.peers.harness import Enqueue, Order, Side, main, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import Answer, Request, payload
from benchmarks.tenure_tables import Tables

QUEUE = "default"
PREFETCH = 500
"""As graphile-worker's localQueue: the setting for queues of tiny jobs."""


class TenureSide(Side):
    """Tenure as a user runs it."""

    name = "tenure"
    distribution = "tenure"
    engines = ("postgres", "sqlite")
    settings = (
        "prefetch 500, else defaults; every commit synced, rows kept, every write fenced; bulk enqueue in one call"
    )
    workloads: ClassVar[tuple[str, ...]] = ("W1", "W2", "W3a", "W3b", "W4")
    keeps_rows = True
    _tables: Tables | None = None

    @property
    def own_workloads(self) -> Mapping[str, Callable[[Request], Answer]]:
        """The workloads that only Tenure is asked for."""
        return tenure_own.workloads(self)

    def prepare(self, url: str) -> None:
        """Migrate."""
        with _open(url) as app:
            app.migrate()

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One call, one commit."""
        with _open(url) as app:
            noop = _noop(app)
            app.cancel(noop.options(delay=86_400).enqueue(payload(0)).id)  # opens the connection before the clock runs
            return timed(lambda: [noop.enqueue(payload(i)) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """One call."""
        with _open(url) as app:
            noop = _noop(app)
            app.now()
            return timed(lambda: noop.enqueue_many(payload(i) for i in range(jobs)))

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

        async def noop(job: dict[str, Any]) -> None:
            is_first = tally.started(job["i"])
            if is_first and order.do == "W7" and tenure_own.fails_once(job["i"], order.jobs):
                raise tenure.RetryAfter(0)

        app.job(kind="noop", queue=QUEUE)(noop)
        app.now()
        tally.ready_and_wait()
        app.run_worker([QUEUE], prefetch=PREFETCH)

    def unfinished(self, url: str) -> int:
        """Ask the store."""
        return self.tables(url).count("unfinished")

    def finished(self, url: str) -> int:
        """Ask the store."""
        return self.tables(url).count("finished")

    def tables(self, url: str) -> Tables:
        """A connection past the API, kept between calls."""
        if self._tables is None:
            self._tables = Tables(url)
        return self._tables

    def close(self) -> None:
        """Close that connection."""
        if self._tables is not None:
            self._tables.close()


class EmptyStore(TenureSide):
    """The drain of W3a, measured beside the workloads that are held against it."""

    name = "tenure-empty"
    settings = "as tenure, on an empty store: W3a beside the workload that is compared with it"
    workloads = ()

    @property
    def own_workloads(self) -> Mapping[str, Callable[[Request], Answer]]:
        """W5 and W6 are timed by handler starts, and so is the drain beside them; W5d is timed as W3a is."""
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
