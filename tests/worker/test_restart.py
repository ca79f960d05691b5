"""PostgreSQL is torn down under load, again and again: the worker needs no restart, and no attempt is burnt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from tenure.handler.context import Context
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.store.queries import GetJobs
from tests.conformance.engines import migrated_database, open_store
from tests.servers import PostgresServer, wheel_bin_path
from tests.waiting import until
from tests.worker.bed import AT_ONCE, Bed

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.slow]

RESTARTS = 5
EACH = 300
"""Jobs that end between two restarts, at least."""
JOBS = 2000
"""More than end before the last restart."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of this test's own: others would not like it to be restarted."""
    server = PostgresServer(wheel_bin_path(18))
    server.start()
    yield server
    server.close()


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    with migrated_database(server, has_grace=False) as made:
        yield made


async def test_a_server_that_is_restarted_under_load_loses_and_doubles_nothing(
    server: PostgresServer, url: str
) -> None:
    store = open_store(url)
    bed = Bed(store)
    bed.queue(AT_ONCE)
    runs: Counter[str] = Counter()

    async def work(ctx: Context) -> None:
        runs[ctx.id] += 1
        await asyncio.sleep(0.002)

    kind = bed.handle(work)
    jobs = [NewJob(id=new_job_id(), kind=kind) for _ in range(JOBS)]
    bed.enqueue_many(jobs)
    async with bed.working(concurrency=4, prefetch=20) as worker:
        for round_number in range(1, RESTARTS + 1):
            await until(lambda n=round_number: worker.stats().completed >= n * EACH)  # type: ignore[misc]
            await asyncio.to_thread(server.restart, "immediate")
        await until(lambda: worker.stats().completed == JOBS)

    assert all(runs[job.id] == 1 for job in jobs)
    assert {found and found.attempt for found in store.do(GetJobs([job.id for job in jobs]))} == {1}
    assert bed.log.names().count("store_back") >= 1
    store.close()
