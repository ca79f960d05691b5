"""procrastinate on PostgreSQL: synchronous producer, worker with concurrency 30 over a pool of 8."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

BULK = 1_000


class ProcrastinateSide(PostgresSide):
    """procrastinate with its own worker, which keeps finished jobs."""

    name = "procrastinate"
    distribution = "procrastinate"
    settings = "psycopg, sync producer, concurrency 30, pool 8, batch_defer by 1,000"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")
    keeps_rows = True

    def prepare(self, url: str) -> None:
        """Apply its schema."""
        with _producer(url) as (app, _):
            app.schema_manager.apply_schema()

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One defer each."""
        with _producer(url) as (_, task):
            return timed(lambda: [task.defer(**payload(i)) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """batch_defer by 1,000."""
        with _producer(url) as (_, task):
            begins = range(0, jobs, BULK)
            return timed(
                lambda: [task.batch_defer(*map(payload, range(begin, min(jobs, begin + BULK)))) for begin in begins]
            )

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One defer each."""
        with _producer(url) as (_, task):

            def enqueue(i: int) -> tuple[int, int]:
                called = time.monotonic_ns()
                task.defer(**payload(i))
                return called, time.monotonic_ns()

            yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its worker with notifications on."""
        logging.disable(logging.WARNING)
        asyncio.run(_work(order.url, tally))


@contextmanager
def _producer(url: str) -> Iterator[tuple[Any, Any]]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1))

    @app.task(name="noop", queue="bench")  # type: ignore[untyped-decorator]
    def noop(i: int, pad: str) -> None: ...

    with app.open():
        yield app, noop


async def _work(url: str, tally: Tally) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=8, max_size=8))

    @app.task(name="noop", queue="bench")  # type: ignore[untyped-decorator]
    async def noop(i: int, pad: str) -> None:  # noqa: ARG001 - procrastinate hands over the whole payload
        tally.started(i)

    async with app.open_async():
        tally.ready_and_wait()
        await app.run_worker_async(queues=["bench"], concurrency=30, install_signal_handlers=False)


if __name__ == "__main__":
    main(ProcrastinateSide())
