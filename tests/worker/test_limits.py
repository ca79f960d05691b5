"""What a worker does when a service refuses: limiters from the handler's side. See store.limits."""

from __future__ import annotations

import asyncio

import pytest

import tenure
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.limiter import BLOCK_SECONDS_MAX
from tenure.store.limits import ClearLimiter, ListLimiters
from tests.waiting import until
from tests.worker.bed import Bed

pytestmark = pytest.mark.anyio


async def test_one_refusal_keeps_all_jobs_of_the_key_from_starting(bed: Bed) -> None:
    """Those that the worker had fetched ahead are given back, and no attempt is spent on any."""
    started: list[str] = []

    async def ask(ctx: tenure.Context) -> None:
        started.append(ctx.id)
        raise tenure.RateLimited(3600, "429 from the model", key="llm")

    async def other() -> None: ...

    asks, others = bed.handle(ask), bed.handle(other)
    ids = [
        one.id
        for one in bed.enqueue_many([NewJob(new_job_id(), asks, limiter="llm", max_attempts=1) for _ in range(30)])
    ]
    plain = [one.id for one in bed.enqueue_many([NewJob(new_job_id(), others) for _ in range(10)])]

    stats = await bed.drain(concurrency=1)

    assert started == [ids[0]]
    assert stats.completed == 10
    assert {bed.job(job_id).state for job_id in plain} == {"succeeded"}
    assert {(bed.job(job_id).state, bed.job(job_id).attempt) for job_id in ids} == {("queued", 0)}
    assert [one.failure_class for one in bed.attempts(ids[0])] == ["rate_limited"]
    assert all(bed.attempts(job_id) == [] for job_id in ids[1:])


async def test_without_a_key_the_jobs_only_limiter_is_meant(bed: Bed) -> None:
    async def ask() -> None:
        raise tenure.RateLimited(60)

    kind = bed.handle(ask)
    bed.enqueue(kind, limiter="llm")
    bed.enqueue(kind, limiter="a,b")
    bed.enqueue(kind)
    await bed.drain()

    assert [one.key for one in bed.store.do(ListLimiters())] == ["llm"]


async def test_a_sync_handler_and_an_isolated_one_may_be_refused_too(bed: Bed) -> None:
    def ask() -> None:
        raise tenure.RateLimited(60, key="llm")

    job_id = bed.enqueue(bed.handle(ask), limiter="llm")
    await bed.drain()

    assert bed.job(job_id).state == "queued"
    assert [one.strikes for one in bed.store.do(ListLimiters())] == [1]


async def test_a_service_that_stays_away_for_weeks_blocks_the_key_for_a_day(bed: Bed) -> None:
    async def ask() -> None:
        raise tenure.RateLimited(30 * 86_400, "come back next month")

    bed.enqueue(bed.handle(ask), limiter="llm")
    await bed.drain()

    [found] = bed.store.do(ListLimiters())
    assert found.blocked_until is not None
    assert (found.blocked_until - bed.store.now()).total_seconds() <= BLOCK_SECONDS_MAX


def test_a_block_that_never_ends_is_refused_where_it_is_raised() -> None:
    with pytest.raises(tenure.InvalidArgument, match="ends within 86,400 s"):
        tenure.RateLimited(30 * 86_400, key="llm")
    with pytest.raises(ValueError, match="finite"):
        tenure.RateLimited(float("inf"), key="llm")


async def test_a_cleared_key_wakes_workers(bed: Bed) -> None:
    """The worker polls once in an hour: what starts the job is the wake-up of the clear."""
    refusals = iter([True])

    async def ask() -> None:
        if next(refusals, False):
            raise tenure.RateLimited(3600, key="llm")

    job_id = bed.enqueue(bed.handle(ask), limiter="llm")
    async with bed.working(poll_seconds=3600.0):
        await until(lambda: bool(bed.store.do(ListLimiters())))
        bed.store.do(ClearLimiter("llm", "ops"))
        await until(lambda: bed.job(job_id).state == "succeeded")


async def test_a_key_that_reopens_is_worked_off_without_a_poll(bed: Bed) -> None:
    """1, 2, 4 … a second until one succeeds: each claim is told when the next job may start."""
    refusals = iter([True])

    async def ask() -> None:
        if next(refusals, False):
            raise tenure.RateLimited(0.2, key="llm")
        await asyncio.sleep(0)

    kind = bed.handle(ask)
    ids = [one.id for one in bed.enqueue_many([NewJob(new_job_id(), kind, limiter="llm") for _ in range(20)])]
    async with bed.working(poll_seconds=3600.0):
        await until(lambda: all(bed.job(job_id).state == "succeeded" for job_id in ids))
