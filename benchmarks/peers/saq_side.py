"""saq on PostgreSQL: concurrency 50, notifications on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from benchmarks.peers import looped
from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload


class SaqSide(PostgresSide):
    """saq with its own worker; finished jobs stay for ten minutes."""

    name = "saq"
    distribution = "saq"
    settings = "PostgresQueue, concurrency 50"
    keeps_rows = True

    def prepare(self, url: str) -> None:
        """Connecting makes the tables."""
        looped.send_each(_door, url, 0)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One enqueue each."""
        return looped.send_each(_door, url, jobs)

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One enqueue each."""
        with looped.sender(_door, url) as enqueue:
            yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Run its worker."""
        logging.disable(logging.WARNING)
        asyncio.run(_work(order.url, tally))


@asynccontextmanager
async def _door(url: str) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    from saq.queue.postgres import PostgresQueue

    queue = PostgresQueue(url=url, name="bench", min_size=1, max_size=4)
    await queue.connect()
    yield lambda i: queue.enqueue("noop", timeout=0, **payload(i))
    await queue.disconnect()


async def _work(url: str, tally: Tally) -> None:
    from saq import Worker
    from saq.queue.postgres import PostgresQueue

    async def noop(_ctx: Any, *, i: int, pad: str) -> None:  # noqa: ARG001 - saq hands over the whole payload
        tally.started(i)

    queue = PostgresQueue(url=url, name="bench")
    await queue.connect()
    worker: Any = Worker(queue, functions=[("noop", noop)], concurrency=50)
    tally.ready_and_wait()
    await worker.start()


if __name__ == "__main__":
    main(SaqSide())
