"""A claim that gives many tells whether other workers are busy with the same queues; a worker alone keeps two exchanges
in flight, one in company a single one."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tenure.model.ids import WorkerId
from tenure.store.admin import RemoveWorkers
from tenure.store.contract import Claim, Enqueue, Exchange, Heartbeat, WorkerRow
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job
from tests.waiting import until
from tests.worker.bed import Bed

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

ME, OTHER = WorkerId("me"), WorkerId("other")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def is_shared(store: PostgresStore, limit: int = 60) -> bool | None:
    store.do(Enqueue([new_job() for _ in range(limit)]))
    exchanged = store.do(Exchange([], Claim(ME, ["default"], limit)))
    assert len(exchanged.grants) == limit
    return exchanged.is_shared


def beat(store: PostgresStore, worker: WorkerId, queue: str) -> None:
    store.do(Heartbeat([], worker=WorkerRow(worker, "host", 1, [queue])))


def test_another_busy_worker_of_the_queue_is_company(store: PostgresStore, admin: psycopg.Connection) -> None:
    beat(store, ME, "default")
    assert is_shared(store) is False

    beat(store, OTHER, "elsewhere")
    assert is_shared(store) is False

    beat(store, OTHER, "default")
    assert is_shared(store) is True
    assert is_shared(store, limit=10) is None

    admin.execute("UPDATE tenure.worker SET last_seen_at = last_seen_at - interval '61 seconds' WHERE id = 'other'")
    assert is_shared(store) is False


def test_a_worker_that_waits_to_be_woken_is_no_company(store: PostgresStore) -> None:
    beat(store, OTHER, "default")
    store.do(Exchange([], Claim(OTHER, ["default"], 1, wants_wake=True)))

    assert is_shared(store) is False


async def test_a_worker_in_company_keeps_one_exchange_in_flight(store: PostgresStore) -> None:
    bed = Bed(store)
    most = 0

    async def work() -> None:
        nonlocal most
        most = max(most, exchanger._in_flight)

    kind = bed.handle(work)
    beat(store, OTHER, "default")
    async with bed.working(concurrency=100) as worker:
        assert worker._shift is not None
        exchanger = worker._shift.exchanger
        assert exchanger._most_in_flight == 2
        bed.enqueue_many([new_job(kind=kind) for _ in range(1000)])
        await until(lambda: worker.stats().completed == 1000)
        assert exchanger._most_in_flight == 1

        store.do(RemoveWorkers(ids=[OTHER]))
        bed.enqueue_many([new_job(kind=kind) for _ in range(1000)])
        await until(lambda: worker.stats().completed == 2000)
        assert exchanger._most_in_flight == 2
    assert 1 <= most <= 2
