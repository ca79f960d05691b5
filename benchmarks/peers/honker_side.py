"""honker on SQLite with synchronous=NORMAL: a claim/ack loop in batches of 1,000, as its documentation allows.

There is no worker around the handler here: no timeout, no retry, no heartbeat. Its documented `async for` is some
hundred times slower; it serves W4, where it is woken by the update watcher.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, SqliteSide, main, sqlite_path, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

BATCH = 1_000


class HonkerSide(SqliteSide):
    """honker as a library, without a worker."""

    name = "honker"
    distribution = "honker"
    settings = "synchronous=NORMAL (its own), claim_batch and ack_batch of 1,000, no worker around the handler"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")

    def prepare(self, url: str) -> None:
        """Make the tables; opening the queue does it."""
        _queue(url)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One transaction each."""
        queue = _queue(url)
        return timed(lambda: [queue.enqueue(payload(i)) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """One transaction for 1,000."""
        queue = _queue(url)

        def bulk() -> None:
            for begin in range(0, jobs, BATCH):
                with queue.db.transaction() as tx:
                    for i in range(begin, min(jobs, begin + BATCH)):
                        queue.enqueue(payload(i), tx=tx)

        return timed(bulk)

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One transaction each."""
        queue = _queue(url)

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            queue.enqueue(payload(i))
            return called, time.monotonic_ns()

        yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Claim and acknowledge by batches; in W4 wait for each job by the watcher."""
        queue = _queue(order.url)
        worker = f"bench-{order.slot}"
        if order.do == "W4":
            asyncio.run(_idle(queue, worker, tally))
        tally.ready_and_wait()
        while True:
            jobs = queue.claim_batch(worker, BATCH)
            if not jobs:
                time.sleep(0.001)
                continue
            for job in jobs:
                tally.started(job.payload["i"])
            queue.ack_batch([job.id for job in jobs], worker)


async def _idle(queue: Any, worker: str, tally: Tally) -> None:
    tally.ready_and_wait()
    async for job in queue.claim(worker):
        tally.started(job.payload["i"])
        job.ack()


def _queue(url: str) -> Any:
    import honker

    return honker.open(sqlite_path(url)).queue("bench")


if __name__ == "__main__":
    main(HonkerSide())
