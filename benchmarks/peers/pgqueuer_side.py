"""PgQueuer on PostgreSQL: asyncpg, uvloop, batches of 100 (10, 300 and 1,000 were slower)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main
from benchmarks.peers.tally import Tally
from benchmarks.protocol import payload

BATCH = 100
BULK = 1_000


class PgqueuerSide(PostgresSide):
    """PgQueuer with its own QueueManager."""

    name = "pgqueuer"
    distribution = "pgqueuer"
    settings = "asyncpg, uvloop, batch_size 100, bulk enqueue by 1,000"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")

    def prepare(self, url: str) -> None:
        """Install its tables with the autovacuum settings it recommends."""
        _run(_install(url))

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One call each on one connection."""
        return float(_run(_enqueue_each(url, jobs)))

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """Lists of 1,000."""
        return float(_run(_enqueue_bulk(url, jobs)))

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One call each on one connection, on a loop that is kept."""
        import asyncpg
        from pgqueuer.queries import Queries

        with asyncio.Runner() as runner:
            queries = Queries.from_asyncpg_connection(runner.run(asyncpg.connect(url)))

            async def once(i: int) -> tuple[int, int]:
                called = time.monotonic_ns()
                await queries.enqueue("noop", _bytes(i))
                return called, time.monotonic_ns()

            yield lambda i: runner.run(once(i))

    def worker(self, order: Order, tally: Tally) -> None:
        """Run the QueueManager."""
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)
        _run(_work(order, tally))


async def _install(url: str) -> None:
    import asyncpg
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    await queries.optimize_autovacuum()
    await connection.close()


async def _enqueue_each(url: str, jobs: int) -> float:
    import asyncpg
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    queries = Queries.from_asyncpg_connection(connection)
    begun = time.monotonic_ns()
    for i in range(jobs):
        await queries.enqueue("noop", _bytes(i))
    seconds = (time.monotonic_ns() - begun) / 1e9
    await connection.close()
    return seconds


async def _enqueue_bulk(url: str, jobs: int) -> float:
    import asyncpg
    from pgqueuer.queries import Queries

    connection = await asyncpg.connect(url)
    queries = Queries.from_asyncpg_connection(connection)
    begun = time.monotonic_ns()
    for begin in range(0, jobs, BULK):
        numbers = range(begin, min(jobs, begin + BULK))
        await queries.enqueue(["noop"] * len(numbers), [_bytes(i) for i in numbers], [0] * len(numbers))
    seconds = (time.monotonic_ns() - begun) / 1e9
    await connection.close()
    return seconds


async def _work(order: Order, tally: Tally) -> None:
    import asyncpg
    from pgqueuer import PgQueuer

    manager = PgQueuer.from_asyncpg_connection(await asyncpg.connect(order.url))

    @manager.entrypoint("noop")  # type: ignore[untyped-decorator]
    async def noop(job: Any) -> None:
        tally.started(json.loads(job.payload)["i"])

    tally.ready_and_wait()
    await manager.run(batch_size=BATCH)


def _bytes(i: int) -> bytes:
    return json.dumps(payload(i)).encode()


def _run(coroutine: Any) -> Any:
    import uvloop

    return uvloop.run(coroutine)


if __name__ == "__main__":
    main(PgqueuerSide())
