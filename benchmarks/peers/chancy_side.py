"""chancy on PostgreSQL: AsyncExecutor with concurrency 500, eager polling."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from benchmarks.peers import looped, noop
from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

HANDLER = "benchmarks.peers.noop.async_noop"


class ChancySide(PostgresSide):
    """chancy with its own worker, which keeps finished jobs."""

    name = "chancy"
    distribution = "chancy"
    settings = "AsyncExecutor, concurrency 500, eager polling, notifications on, push_many by 1,000"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")
    keeps_rows = True

    def prepare(self, url: str) -> None:
        """Migrate and declare the queue."""
        asyncio.run(_prepare(url))

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One push each."""
        return looped.send_each(_door, url, jobs)

    def enqueue_bulk(self, url: str, jobs: int, *, spread: bool = False) -> float:
        """push_many, which commits by 1,000."""
        self.only_one_priority(spread=spread)
        return asyncio.run(_push_many(url, jobs))

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One push each."""
        with looped.sender(_door, url) as enqueue:
            yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its worker."""
        noop.tally = tally
        asyncio.run(_work(order.url, tally))


@asynccontextmanager
async def _app(url: str) -> AsyncIterator[Any]:
    from chancy import Chancy

    log = logging.getLogger("bench-chancy")
    log.setLevel(logging.ERROR)
    async with Chancy(url, log=log) as app:
        yield app


def _job(i: int) -> Any:
    from chancy import Job

    return Job(func=HANDLER, kwargs=payload(i), queue="bench")


@asynccontextmanager
async def _door(url: str) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    async with _app(url) as app:
        yield lambda i: app.push(_job(i))


async def _prepare(url: str) -> None:
    from chancy import Chancy, Queue

    async with _app(url) as app:
        await app.migrate()
        await app.declare(Queue("bench", concurrency=500, executor=Chancy.Executor.Async, eager_polling=True))


async def _push_many(url: str, jobs: int) -> float:
    async with _app(url) as app:
        begun = time.monotonic_ns()
        async for _ in app.push_many([_job(i) for i in range(jobs)]):
            pass
        return (time.monotonic_ns() - begun) / 1e9


async def _work(url: str, tally: Tally) -> None:
    from chancy import Worker

    async with _app(url) as app:
        tally.ready_and_wait()
        async with Worker(app, register_signal_handlers=False) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(ChancySide())
