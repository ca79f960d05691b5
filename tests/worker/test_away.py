"""The database goes away and comes back: nothing is forgotten, nothing is doubled, no attempt is burnt."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tenure.handler.context import Context
from tenure.model.ids import WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.log_event import WARNING, LogEvent
from tenure.store.contract import Exchange, Exchanged, Heartbeat, Request
from tenure.store.flow import SweepFlow
from tenure.worker.log import WorkerLog
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.fetchers import Claims, fetcher
from tests.worker.trouble import Troubled, as_store, once

pytestmark = pytest.mark.anyio


@pytest.fixture
def troubled(bed: Bed) -> Troubled:
    store = Troubled(bed.store)
    bed.store = as_store(store)
    return store


async def test_an_outcome_that_could_not_be_written_is_written_on_return(bed: Bed, troubled: Troubled) -> None:
    go_on = asyncio.Event()
    runs = 0

    async def work() -> str:
        nonlocal runs
        runs += 1
        await go_on.wait()
        return "kept"

    job_id = bed.enqueue(bed.handle(work))
    async with bed.working() as worker:
        await until(lambda: runs)
        troubled.requests = lambda request: isinstance(request, Exchange)
        go_on.set()
        await until(lambda: worker.stats().is_away and troubled.cut >= 3)
        assert bed.job(job_id).state == "running"
        troubled.requests = lambda _: False
        await until(lambda: bed.job(job_id).state == "succeeded")

    job = bed.job(job_id)
    assert (job.result, job.attempt, runs) == ("kept", 1, 1)
    assert "store_away" in bed.log.names()
    assert "store_back" in bed.log.names()


async def test_a_grant_whose_reply_was_lost_is_found_again(bed: Bed, troubled: Troubled) -> None:
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1

    troubled.answers = once(lambda request: isinstance(request, Exchange) and request.claim is not None)
    job_id = bed.enqueue(bed.handle(work))
    async with bed.working():
        await until(lambda: bed.job(job_id).state == "succeeded")

    job = bed.job(job_id)
    assert (job.attempt, job.token, runs, troubled.cut) == (1, 1, 1, 1)


async def test_grants_of_lost_replies_are_all_found_even_if_the_worker_has_slowed_down_since(
    bed: Bed, troubled: Troubled
) -> None:
    """Two claims lose their replies while the worker fetched far ahead; by the repeat it would ask for less."""
    runs: list[str] = []

    async def work(ctx: object) -> None:
        runs.append(ctx.id)  # type: ignore[attr-defined]

    kind = bed.handle(work)
    jobs = [NewJob(id=new_job_id(), kind=kind) for _ in range(1500)]
    bed.enqueue_many(jobs)
    is_cut = False

    def cut_for_a_while(request: object) -> bool:
        nonlocal is_cut
        is_cut = is_cut or (isinstance(request, Exchange) and request.claim is not None and request.claim.limit > 20)
        return is_cut and isinstance(request, Exchange) and troubled.cut < 4

    troubled.answers = cut_for_a_while
    async with bed.working(concurrency=2, prefetch=200, max_in_flight=2) as worker:
        await until(lambda: len(runs) == 1500 and worker.stats().held == 0)
        fetcher = worker._run.fetcher if worker._run else None
        assert fetcher is not None
        assert fetcher._unheard == 0

    assert troubled.cut == 4
    assert sorted(runs) == sorted(job.id for job in jobs)
    assert {bed.job(job.id).attempt for job in jobs} == {1}


async def test_the_reply_to_a_claim_that_left_before_is_no_repeat_of_a_lost_one() -> None:
    """Of two claims in flight one lost its reply. The other's, which named nothing that is held, was taken for the
    repeat: what the lost one had granted stayed leased to this worker, unknown to it, until its leases ran out."""
    is_lost, is_answered = asyncio.Event(), asyncio.Event()

    class Two(Claims):
        async def ado(self, request: Request[Any]) -> Exchanged:
            if not self.claims:
                self.claims.append(request.claim)  # type: ignore[attr-defined]
                await is_lost.wait()
                raise StoreUnavailable("the reply was lost")
            await is_answered.wait()
            return await super().ado(request)

    made = fetcher(Two())
    lost = asyncio.create_task(made._exchange([], made._groups.ask(5, {})))
    await asyncio.sleep(0)
    answered = asyncio.create_task(made._exchange([], made._groups.ask(5, {})))
    await asyncio.sleep(0)
    is_lost.set()
    await lost
    is_answered.set()
    await answered
    made._away_until = 0.0

    _, repeat = made._next() or ([], None)

    assert repeat is not None
    assert repeat.claim.held == []
    assert repeat.claim.limit >= 5


async def test_what_was_granted_in_a_lost_reply_is_given_back_by_a_worker_that_stops(
    bed: Bed, troubled: Troubled
) -> None:
    """It left without knowing of the job, which was then taken back from a worker that was gone: a crash of its own,
    and with one attempt it was dead without ever having run."""

    async def work() -> None:
        raise AssertionError("it is to be given back")

    def is_claim(request: object) -> bool:
        return isinstance(request, Exchange) and request.claim is not None

    job_id = bed.enqueue(bed.handle(work), max_attempts=1)
    troubled.answers = once(is_claim)
    async with bed.working() as worker:
        await until(lambda: troubled.cut)
        troubled.requests = is_claim
        worker.stop()
        await until(lambda: troubled.cut > 1)
        troubled.requests = lambda _: False

    job = bed.job(job_id)
    assert (job.state, job.attempt, job.crashes, job.suspicion) == ("queued", 0, 0, 0)
    assert bed.attempts(job_id) == []


async def test_a_settlement_whose_reply_was_lost_is_repeated_without_harm(bed: Bed, troubled: Troubled) -> None:
    async def parent(ctx: object) -> None:
        ctx.enqueue("child")  # type: ignore[attr-defined]

    children = 0

    async def child() -> None:
        nonlocal children
        children += 1

    bed.handle(child)
    troubled.answers = once(lambda request: isinstance(request, Exchange) and bool(request.outcomes))
    job_id = bed.enqueue(bed.handle(parent))
    async with bed.working() as worker:
        await until(lambda: bed.job(job_id).state == "succeeded" and children == 1 and worker.stats().held == 0)

    assert worker.stats().lost == 0
    assert bed.log.names(job_id).count("completed") == 1


async def test_many_jobs_through_a_connection_that_keeps_breaking(bed: Bed, troubled: Troubled) -> None:
    """Every fifth exchange loses its request or its reply. Every job is done, each exactly once."""
    done: list[str] = []

    async def work(ctx: object) -> None:
        done.append(ctx.id)  # type: ignore[attr-defined]

    count = 0

    def every_fifth(request: object) -> bool:
        nonlocal count
        count += isinstance(request, Exchange)
        return isinstance(request, Exchange) and count % 5 == 0

    kind = bed.handle(work)
    jobs = [NewJob(id=new_job_id(), kind=kind) for _ in range(300)]
    bed.enqueue_many(jobs)
    troubled.answers = every_fifth
    async with bed.working(prefetch=5, concurrency=5) as worker:
        await until(lambda: worker.stats().held == 0 and len(done) >= 300)
        troubled.answers = lambda _: False

    assert sorted(done) == sorted(job.id for job in jobs)
    assert {bed.job(job.id).attempt for job in jobs} == {1}
    assert troubled.cut > 3


async def test_a_worker_that_cannot_extend_a_lease_stops_the_handler_before_it_ends(
    bed: Bed, troubled: Troubled
) -> None:
    lease = 1.0
    begun: list[float] = []
    stopped: list[float] = []

    async def work() -> None:
        begun.append(time.monotonic())
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(time.monotonic())

    bed.enqueue(bed.handle(work))
    async with bed.working(lease_seconds=lease):
        await until(lambda: begun)
        cut_at = time.monotonic()
        troubled.requests = lambda request: isinstance(request, Heartbeat | Exchange)
        await until(lambda: stopped)
        # The last heartbeat that came through was sent before the cut, so the lease ends at the latest one lease after.
        assert stopped[0] < cut_at + lease
        troubled.requests = lambda _: False

    assert "fenced" in bed.log.names()


async def test_each_further_try_waits_twice_as_long_up_to_half_a_minute() -> None:
    told: list[LogEvent] = []

    class Emit:
        level = WARNING

        def __call__(self, event: LogEvent) -> None:
            told.append(event)

    alone = fetcher(Claims())
    alone._log = WorkerLog(WorkerId("w"), Emit())

    for _ in range(20):
        alone._back_off(StoreUnavailable("gone"))

    waits = [event.fields["retry_seconds"] for event in told]
    for nth, wait in enumerate(waits):
        whole = min(30.0, 0.1 * 2**nth)
        assert 0.499 * whole <= wait <= 1.001 * whole, (nth, wait)
    assert len(set(waits[10:])) > 1, "a fleet must not ask in step"


async def test_a_worker_that_drains_sweeps_again_after_sweeps_that_met_trouble(bed: Bed, troubled: Troubled) -> None:
    """It ended with a parent that waited for a child which had ended."""

    ran: list[int] = []

    async def child(payload: int) -> int:
        ran.append(payload)
        return 2 * payload

    async def parent(ctx: Context) -> list[int]:
        return list(await ctx.gather(ctx.spawn("one", "child", 1)))

    bed.handle(child, kind="child")
    job_id = bed.enqueue(bed.handle(parent, is_durable=True))
    troubled.requests = lambda request: isinstance(request, SweepFlow) and bool(ran) and troubled.cut < 3
    await bed.drain(maintain=False)

    assert bed.job(job_id).result == [2]
    assert troubled.cut == (0 if bed.store.url.startswith("sqlite") else 3), "SQLite wakes a parent as its child ends"
