"""The lease: kept while the handler works, and heeded when it is gone."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tenure.errors import ConfigError
from tenure.handler.context import Context
from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy
from tenure.store.admin import PauseQueues, RemoveWorkers
from tenure.store.contract import Claim
from tenure.store.queries import ListWorkers
from tenure.worker.worker import WorkerConfig
from tests.waiting import until
from tests.worker.bed import Bed

pytestmark = pytest.mark.anyio


async def test_a_handler_that_blocks_the_event_loop_longer_than_the_lease_keeps_it(bed: Bed) -> None:
    begun, over = threading.Event(), threading.Event()
    stolen: list[object] = []

    async def block() -> str:
        begun.set()
        time.sleep(5.0)  # noqa: ASYNC251 - just what nobody should do
        return "still mine"

    def rival() -> None:
        begun.wait(30)
        while not over.wait(0.05):
            stolen.extend(bed.store.do(Claim(WorkerId("rival"), ["default"], 1)))

    thread = threading.Thread(target=rival)
    thread.start()
    job_id = bed.enqueue(bed.handle(block))
    try:
        await bed.drain(lease_seconds=4.0)
    finally:
        over.set()
        thread.join()

    job = bed.job(job_id)
    assert stolen == []
    assert (job.state, job.result, job.attempt) == ("succeeded", "still mine", 1)


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_lost_lease_stops_the_handler_and_its_result_is_not_written(bed: Bed, mode: str) -> None:
    begun, stopped = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def work_in_thread(ctx: Context) -> str:
        begun.set()
        assert ctx.cancelled.wait(10)
        stopped.set()
        return "too late"

    job_id = bed.enqueue(bed.handle(work if mode == "async" else work_in_thread, kind="work"))
    bed.queue(QueuePolicy(), "elsewhere")
    # Long enough that a busy machine does not lose it before the test takes it away.
    async with bed.working(lease_seconds=30.0, heartbeat_seconds=0.2) as worker:
        await until(begun.is_set)
        bed.store.do(PauseQueues(["default"], paused=True, actor="test"))  # it is not to be granted again
        bed.store.do(RemoveWorkers(ids=[worker.id]))
        await until(stopped.is_set)
        await until(lambda: worker.stats().lost == 1)

    assert "lease_lost" in bed.ear.names(job_id)
    assert (bed.job(job_id).attempt, bed.job(job_id).result) == (1, None)


def test_heartbeats_slower_than_a_third_of_the_lease_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most a third"):
        WorkerConfig(lease_seconds=30, heartbeat_seconds=11)

    WorkerConfig(lease_seconds=30, heartbeat_seconds=10)


async def test_heartbeats_too_slow_for_a_queue_are_refused_at_the_start(bed: Bed) -> None:
    bed.queue(QueuePolicy(lease_seconds=6))

    with pytest.raises(ConfigError, match="lease of 6 s"):
        await bed.worker(heartbeat_seconds=5).run()


async def test_a_kind_may_have_a_longer_lease_than_its_queue(bed: Bed) -> None:
    go_on = asyncio.Event()

    async def long() -> None:
        await go_on.wait()

    bed.queue(QueuePolicy(lease_seconds=1.5))
    job_id = bed.enqueue(bed.handle(long, lease_seconds=600))
    async with bed.working():

        def seconds_left() -> float:
            until_at = bed.job(job_id).lease_until
            return 0.0 if until_at is None else (until_at - bed.store.now()).total_seconds()

        await until(lambda: seconds_left() > 500)
        go_on.set()


async def test_a_job_that_waits_in_the_worker_stays_leased_until_its_handler_begins(bed: Bed) -> None:
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    bed.queue(QueuePolicy(start_on_claim=False, lease_seconds=1))
    job_id = bed.enqueue(bed.handle(work))
    async with bed.working():
        await until(lambda: bed.job(job_id).state == "running")
        go_on.set()
        await until(lambda: bed.job(job_id).state == "succeeded")


async def test_a_worker_shows_itself_and_says_goodbye(bed: Bed) -> None:
    async def nothing() -> None: ...

    bed.handle(nothing)
    async with bed.working(concurrency=3) as worker:
        await until(lambda: bed.store.do(ListWorkers()))
        (seen,) = bed.store.do(ListWorkers())
        assert (seen.row.id, seen.row.concurrency, list(seen.row.kinds)) == (worker.id, 3, ["nothing"])

    assert bed.store.do(ListWorkers()) == []
