"""The lease: kept while the handler works, and heeded when it is gone."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any, cast

import pytest

from tenure.errors import ConfigError
from tenure.handler.context import Context
from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy
from tenure.store.admin import AppendEvents, PauseQueues, RemoveWorkers
from tenure.store.contract import Claim, Exchange, Heartbeat, Store
from tenure.store.queries import ListEvents, ListWorkers
from tenure.worker.worker import WorkerConfig
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.trouble import Troubled, as_store

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


class SlowEvents:
    """A real store that takes no log line before it is told to, as when its table is locked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.go_on = threading.Event()
        self.asked = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def do(self, request: Any) -> Any:
        if isinstance(request, AppendEvents):
            self.asked.set()
            self.go_on.wait(60)
        return self._store.do(request)

    async def ado(self, request: Any) -> Any:
        if isinstance(request, AppendEvents):
            self.asked.set()
            await asyncio.to_thread(self.go_on.wait, 60)
        return await self._store.ado(request)


async def test_a_log_line_that_cannot_be_written_now_costs_no_lease_and_no_claim(bed: Bed) -> None:
    """Log lines went out from the thread of the heartbeats: none was sent while a line waited for the store, and
    nothing was claimed."""
    over = asyncio.Event()

    async def talk(ctx: Context) -> str:
        ctx.log("hello")
        await over.wait()
        return "done"

    async def other() -> None: ...

    bed.handle(other)
    job_id = bed.enqueue(bed.handle(talk))
    store = SlowEvents(bed.store)
    bed.store = cast(Store, store)
    async with bed.working(lease_seconds=3.0) as worker:
        await until(store.asked.is_set)
        leased_until = bed.job(job_id).lease_until
        assert leased_until is not None
        await until(lambda: (bed.job(job_id).lease_until or leased_until) > leased_until + timedelta(seconds=3))
        quick = bed.enqueue("other")
        await until(lambda: bed.job(quick).state == "succeeded")
        store.go_on.set()
        over.set()
        await until(lambda: worker.stats().completed == 2)

    assert (bed.job(job_id).result, bed.job(job_id).attempt) == ("done", 1)
    assert [event.data["message"] for event in bed.store.do(ListEvents(job_id=job_id, kinds=("log",)))] == ["hello"]


async def test_a_handler_is_stopped_by_the_lease_that_its_queue_allows_it(bed: Bed) -> None:
    """A kind asks for a longer lease than its queue gives. The worker believed what it had asked for, and its handler
    ran on long after another worker had begun."""
    lease = 6.0
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    bed.queue(QueuePolicy(lease_seconds=lease, lease_max_seconds=lease))
    bed.enqueue(bed.handle(work, lease_seconds=600.0))
    bed.store = as_store(troubled := Troubled(bed.store))
    async with bed.working() as worker:
        await until(begun.is_set)
        before = worker.stats().heartbeats
        await until(lambda: worker.stats().heartbeats > before + 1)  # one of them was sent while the job was held
        assert not stopped.is_set()
        troubled.requests = lambda request: isinstance(request, Heartbeat | Exchange)
        await until(stopped.is_set)
        troubled.requests = lambda _: False

    assert "fenced" in bed.log.names()


async def test_a_long_lease_of_a_kind_does_not_fence_it_before_its_first_heartbeat(bed: Bed) -> None:
    """The margin was that of the lease to come, five seconds: more than the whole lease that the queue had granted."""
    heard = asyncio.Event()

    async def work() -> None:
        await heard.wait()

    bed.queue(QueuePolicy(lease_seconds=3.0))
    job_id = bed.enqueue(bed.handle(work, lease_seconds=600.0))
    async with bed.working() as worker:
        await until(lambda: worker.stats().held)
        before = worker.stats().heartbeats
        await until(lambda: worker.stats().heartbeats > before + 1)
        heard.set()
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert bed.job(job_id).token == 1
    assert "fenced" not in bed.log.names()


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
        before = worker.stats().exchanges
        await until(lambda: worker.stats().exchanges > before + 1)  # one that came before the pause has ended
        bed.store.do(RemoveWorkers(ids=[worker.id]))
        await until(stopped.is_set)
        await until(lambda: worker.stats().lost == 1)

    assert "lease_lost" in bed.log.names(job_id)
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
