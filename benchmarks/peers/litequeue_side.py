"""litequeue on SQLite with synchronous=NORMAL: a pop/done loop, polled each millisecond when idle.

There is no worker around the handler. Every pop sorts what is queued, so that a long queue makes it slow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, SqliteSide, main, sqlite_path, timed
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

BULK = 1_000


class LitequeueSide(SqliteSide):
    """litequeue as a library, without a worker."""

    name = "litequeue"
    distribution = "litequeue"
    settings = "synchronous=NORMAL (its own), bulk in transactions of 1,000, pop and done per job, 1 ms poll, no worker"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")
    keeps_rows = True

    def prepare(self, url: str) -> None:
        """Make the table; opening does it."""
        _queue(url)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One put each, which is one transaction."""
        queue = _queue(url)
        return timed(lambda: [queue.put(json.dumps(payload(i))) for i in range(jobs)])

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """One transaction for 1,000."""
        queue = _queue(url)

        def bulk() -> None:
            for begin in range(0, jobs, BULK):
                with queue.transaction():
                    for i in range(begin, min(jobs, begin + BULK)):
                        queue.put(json.dumps(payload(i)))

        return timed(bulk)

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One put each."""
        queue = _queue(url)

        def enqueue(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            queue.put(json.dumps(payload(i)))
            return called, time.monotonic_ns()

        yield enqueue

    def worker(self, order: Order, tally: Tally) -> None:
        """Pop, run, mark as done."""
        queue = _queue(order.url)
        tally.ready_and_wait()
        while True:
            message = queue.pop()
            if message is None:
                time.sleep(0.001)
                continue
            tally.started(json.loads(message.data)["i"])
            queue.done(message.message_id)

    def finished(self, url: str) -> int:
        """Ask its table."""
        return self._ask(url, "litequeue_finished")


def _queue(url: str) -> Any:
    from litequeue import LiteQueue

    return LiteQueue(sqlite_path(url), timeout=30)


if __name__ == "__main__":
    main(LitequeueSide())
