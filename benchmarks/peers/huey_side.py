"""huey on SQLite with synchronous=FULL: one consumer thread, 5 to 10 ms polling, results off.

huey deletes the task before the handler runs: a crash in the handler loses it (at most once). Four threads were slower.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, SqliteSide, main, sqlite_path, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload


class HueySide(SqliteSide):
    """huey with its own consumer."""

    name = "huey"
    distribution = "huey"
    settings = (
        "SqliteHuey, WAL, fsync=True (synchronous=FULL), 1 consumer thread, 5–10 ms poll, results off, one task a call"
    )
    workloads = ("W1", "W2", "W3a", "W3b", "W4")

    def prepare(self, url: str) -> None:
        """Make the tables; opening does it."""
        _app(url)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """Call the task once per job."""
        task = _task(_app(url))
        return timed(lambda: [task(payload(i)) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """Call the task once per job: there is no call for many, and each task is a commit of its own."""
        return self.enqueue_each(url, jobs)

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """Call the task."""
        task = _task(_app(url))

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            task(payload(i))
            return called, time.monotonic_ns()

        yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Run the consumer, which installs its own signal handlers."""
        app = _app(order.url)
        _task(app, tally)
        consumer = app.create_consumer(
            workers=1, worker_type="thread", periodic=False, initial_delay=0.005, max_delay=0.01
        )
        tally.ready_and_wait()
        consumer.run()


def _app(url: str) -> Any:
    from huey import SqliteHuey

    return SqliteHuey("bench", filename=sqlite_path(url), fsync=True, results=False, timeout=30)


def _task(app: Any, tally: Tally | None = None) -> Any:
    @app.task(name="noop")  # type: ignore[untyped-decorator]
    def noop(data: dict[str, Any]) -> None:
        if tally is not None:
            tally.started(data["i"])

    return noop


if __name__ == "__main__":
    main(HueySide())
