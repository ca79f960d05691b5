"""Stopping: what runs may finish, what will not is given back, and no attempt is lost by it."""

from __future__ import annotations

import asyncio
import threading

import pytest

import tenure
from tenure.handler.context import Context
from tenure.model.ids import WorkerId
from tenure.store.contract import Claim
from tests.waiting import until
from tests.worker.bed import Bed

pytestmark = pytest.mark.anyio


async def test_a_running_handler_may_finish_and_waiting_jobs_are_given_back(bed: Bed) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()

    kind = bed.handle(work)
    first = bed.enqueue(kind)
    async with bed.working(concurrency=1) as worker:
        await begun.wait()
        second = bed.enqueue(kind)
        worker.stop()
        await until(lambda: worker.stats().is_stopping)
        go_on.set()

    assert (bed.job(first).state, bed.job(second).state) == ("succeeded", "queued")
    assert bed.job(second).attempt == 0


async def test_a_worker_that_is_stopping_keeps_the_leases_of_what_still_runs(bed: Bed) -> None:
    """Its row once bore a status that no store knows, so every heartbeat of a stopping worker was refused."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go_on.wait()

    job_id = bed.enqueue(bed.handle(work))
    async with bed.working(lease_seconds=30.0, heartbeat_seconds=0.1) as worker:
        await begun.wait()
        worker.stop()
        await until(lambda: worker.stats().is_stopping)
        before, beats = bed.job(job_id).lease_until, worker.stats().heartbeats
        await until(lambda: worker.stats().heartbeats >= beats + 2)
        after = bed.job(job_id).lease_until
        go_on.set()

    assert before is not None
    assert after is not None
    assert after > before
    assert "heartbeat_refused" not in bed.log.names()
    assert bed.job(job_id).state == "succeeded"


@pytest.mark.parametrize("way", ["check", "snooze"])
async def test_a_long_handler_sees_the_stop_and_gives_its_job_back(bed: Bed, way: str) -> None:
    begun = threading.Event()

    def long(ctx: Context) -> None:
        begun.set()
        assert ctx.stopping.wait(10)
        if way == "snooze":
            raise tenure.Snooze(0, "going on elsewhere")
        ctx.check()

    job_id = bed.enqueue(bed.handle(long))
    async with bed.working() as worker:
        await until(begun.is_set)
        worker.stop()

    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)
    assert bed.attempts(job_id)[0].failure_class == ("snoozed" if way == "snooze" else "shutdown")


async def test_an_async_handler_can_wait_for_the_stop(bed: Bed) -> None:
    begun = asyncio.Event()

    async def long(ctx: Context) -> str:
        begun.set()
        await ctx.stopping.wait_async()
        return "saved"

    job_id = bed.enqueue(bed.handle(long))
    async with bed.working() as worker:
        await begun.wait()
        worker.stop()

    assert bed.job(job_id).result == "saved"


@pytest.mark.parametrize("how", ["grace is over", "asked twice"])
async def test_a_handler_that_goes_on_is_stopped_and_its_job_released(bed: Bed, how: str) -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    job_id = bed.enqueue(bed.handle(endless))
    async with bed.working(grace_seconds=0.1 if how == "grace is over" else 60.0) as worker:
        await begun.wait()
        worker.stop()
        if how == "asked twice":
            worker.stop()
        await cleaned.wait()

    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)
    assert bed.attempts(job_id)[0].failure_class == "shutdown"


async def test_a_thread_that_will_not_stop_is_left_behind_and_its_job_released(bed: Bed) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def deaf() -> str:
        begun.set()
        go_on.wait(60)
        ended.set()
        return "too late"

    job_id = bed.enqueue(bed.handle(deaf))
    async with bed.working(grace_seconds=0.1) as worker:
        await until(begun.is_set)
        worker.stop()

    assert not ended.is_set()
    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)
    go_on.set()
    await until(ended.is_set)
    assert bed.job(job_id).state == "queued"


async def test_an_async_handler_that_swallows_its_cancellation_is_left_behind(bed: Bed) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue

    job_id = bed.enqueue(bed.handle(stubborn))
    async with bed.working(grace_seconds=0.1) as worker:
        await begun.wait()
        worker.stop()

    assert (bed.job(job_id).state, bed.job(job_id).attempt) == ("queued", 0)
    assert "left_behind" in bed.log.names()
    go_on.set()
    await asyncio.sleep(0)


async def test_a_worker_that_was_stopped_before_it_ran_takes_nothing(bed: Bed) -> None:
    async def work() -> None: ...

    job_id = bed.enqueue(bed.handle(work))
    worker = bed.worker()
    worker.stop()
    await asyncio.wait_for(worker.run(), 30)

    assert bed.job(job_id).attempt == 0


async def test_a_worker_whose_store_was_closed_ends_and_says_why(bed: Bed) -> None:
    worker = bed.worker()
    task = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(20):
        await worker.ready.wait()

        await bed.store.aclose()

        await task
    assert "store_closed" in bed.log.names()


async def test_stopping_a_worker_that_has_ended_is_harmless(bed: Bed) -> None:
    """Its loop was closed, and so the call raised RuntimeError."""

    async def work() -> None:
        pass

    job_id = bed.enqueue(bed.handle(work))
    worker = bed.worker(drain=True)
    await asyncio.to_thread(worker.run_sync)

    worker.stop()

    assert bed.job(job_id).state == "succeeded"


async def test_a_worker_whose_task_is_cancelled_gives_its_jobs_back(bed: Bed) -> None:
    """Ctrl-C of `asyncio.run` cancels the task. The jobs were taken back like those of a worker that had crashed: each
    lost an attempt, and ran alone in a process of its own from then on."""
    begun: list[str] = []

    async def endless(payload: str) -> None:
        begun.append(payload)
        await asyncio.Event().wait()

    def stubborn(payload: str) -> None:
        begun.append(payload)
        is_over.wait(30)

    is_over = threading.Event()
    ids = [bed.enqueue(bed.handle(endless), '"loop"'), bed.enqueue(bed.handle(stubborn), '"thread"')]
    worker = bed.worker(grace_seconds=60.0)
    task = asyncio.ensure_future(worker.run())
    await until(lambda: len(begun) == 2)

    task.cancel()
    await asyncio.wait({task})
    is_over.set()

    assert task.cancelled()
    for job_id in ids:
        job = bed.job(job_id)
        assert (job.state, job.attempt, job.crashes, job.failure_class) == ("queued", 0, 0, None)
        assert [attempt.failure_class for attempt in bed.attempts(job_id)] == ["shutdown"]
    assert [grant.suspicion for grant in bed.store.do(Claim(WorkerId("next"), ["default"], 10))] == [0, 0]
