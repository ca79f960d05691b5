"""How jobs flow through a worker: how many, from where, how far ahead, and how little it asks when there are none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

from tenure.errors import ConfigError
from tenure.handler.context import Context
from tenure.model.ids import WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import PauseQueues, RemoveQueues, SetGate
from tenure.store.contract import Claim, Exchange
from tenure.store.queries import CountJobs
from tenure.worker.worker import WorkerConfig
from tests.waiting import until
from tests.worker.bed import AT_ONCE, Bed
from tests.worker.trouble import Troubled, as_store

pytestmark = pytest.mark.anyio


async def test_no_more_handlers_run_at_once_than_asked_for_whatever_their_kind(bed: Bed) -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    async def on_loop() -> None:
        enter()
        await asyncio.sleep(0.002)
        leave()

    def in_thread() -> None:
        enter()
        time.sleep(0.002)
        leave()

    kinds = [bed.handle(on_loop), bed.handle(in_thread)]
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kinds[i % 2]) for i in range(80)])
    stats = await bed.drain(concurrency=3)

    assert stats.completed == 80
    assert most == 3


async def test_a_queue_may_be_limited_within_the_worker(bed: Bed) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def work(ctx: Context) -> None:
        running[ctx.queue] += 1
        most[ctx.queue] = max(most[ctx.queue], running[ctx.queue])
        await asyncio.sleep(0.003)
        running[ctx.queue] -= 1

    kind = bed.handle(work)
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kind, queue=q) for _ in range(25) for q in ("heavy", "default")])
    stats = await bed.drain(queues=["heavy", "default"], queue_concurrency={"heavy": 2}, concurrency=8)

    assert stats.completed == 50
    assert most["heavy"] <= 2
    assert most["default"] > 2


async def test_weights_share_the_worker_between_queues(bed: Bed) -> None:
    order: list[str] = []

    async def work(ctx: Context) -> None:
        order.append(ctx.queue)

    kind = bed.handle(work)
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kind, queue=q) for q in ("often", "rare") for _ in range(40)])
    await bed.drain(queues={"often": 3, "rare": 1}, concurrency=1, prefetch=0, max_in_flight=1)

    assert Counter(order[:40]) == {"often": 30, "rare": 10}
    assert len(order) == 80


async def test_strict_order_serves_the_first_queue_first(bed: Bed) -> None:
    order: list[str] = []

    async def work(ctx: Context) -> None:
        order.append(ctx.queue)

    kind = bed.handle(work)
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kind, queue=q, priority=p) for q, p in [("b", 9), ("a", 0)] * 20])
    await bed.drain(queues=["a", "b"], strict=True, concurrency=1, prefetch=0)

    assert order == ["a"] * 20 + ["b"] * 20


async def test_once_runs_one_job(bed: Bed) -> None:
    async def work() -> None: ...

    kind = bed.handle(work)
    for _ in range(3):
        bed.enqueue(kind)
    stats = await asyncio.wait_for(bed.worker(once=True).run(), 10)

    assert stats.completed == 1
    assert {c.state: c.jobs for c in bed.store.do(CountJobs())} == {"succeeded": 1, "queued": 2}


async def test_once_with_nothing_to_do_ends(bed: Bed) -> None:
    stats = await asyncio.wait_for(bed.worker(once=True).run(), 10)

    assert stats.claimed == 0


async def test_a_drain_leaves_what_is_not_due(bed: Bed) -> None:
    async def work() -> None: ...

    kind = bed.handle(work)
    now, later = bed.enqueue(kind), bed.enqueue(kind, delay_seconds=3600)
    await bed.drain()

    assert (bed.job(now).state, bed.job(later).state) == ("succeeded", "queued")


async def test_slow_jobs_are_not_hoarded(bed: Bed) -> None:
    begun = 0
    go_on = asyncio.Event()

    async def slow() -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()

    kind = bed.handle(slow)
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kind) for _ in range(20)])
    async with bed.working(concurrency=2) as worker:
        await until(lambda: begun == 2)
        await until(lambda: worker.stats().exchanges >= 1)
        assert worker.stats().held == 2
        states = {c.state: c.jobs for c in bed.store.do(CountJobs())}
        assert states == {"running": 2, "queued": 18}
        go_on.set()
        await until(lambda: begun == 20)


async def test_jobs_that_were_fetched_ahead_of_slow_ones_are_given_back(bed: Bed) -> None:
    """A flood of tiny jobs makes the worker fetch ahead; then they turn slow. What waits is for others to take."""
    begun = 0
    go_on = asyncio.Event()

    async def work(payload: dict[str, bool]) -> None:
        nonlocal begun
        begun += 1
        if payload.get("slow"):
            await go_on.wait()

    kind = bed.handle(work)
    tiny = [NewJob(id=new_job_id(), kind=kind, priority=1) for _ in range(600)]
    slow = [NewJob(id=new_job_id(), kind=kind, payload='{"slow": true}') for _ in range(200)]
    bed.enqueue_many([*tiny, *slow])
    # One exchange at a time: of two in flight, the one with the slow jobs might arrive first.
    async with bed.working(concurrency=2, max_in_flight=1) as worker:
        await until(lambda: begun == 602)

        def states() -> dict[str, int]:
            return {c.state: c.jobs for c in bed.store.do(CountJobs())}

        await until(lambda: states() == {"succeeded": 600, "running": 2, "queued": 198})
        go_on.set()
        await until(lambda: worker.stats().completed == 800)

    assert {bed.job(job.id).attempt for job in slow} == {1}


async def test_an_idle_worker_asks_little(bed: Bed) -> None:
    async with bed.working(poll_seconds=1.0, maintain=True) as worker:
        await until(lambda: worker.stats().exchanges >= 1 and worker.stats().heartbeats >= 1)
        await asyncio.sleep(1.5)  # the start is over: policies read, leader elected, unknown kinds counted
        before, began = bed.store.stats(), time.monotonic()
        await asyncio.sleep(3.0)
        after, passed = bed.store.stats(), time.monotonic() - began

    # The poll and the leader's sweep, each about once a second, and a heartbeat now and then.
    assert after.requests - before.requests <= 3.0 * passed
    assert after.transactions - before.transactions <= 3.0 * passed


async def test_heartbeats_more_frequent_than_the_poll_do_not_put_it_off(bed: Bed) -> None:
    """Each heartbeat pokes the fetcher. The poll alone finds the job of a worker that vanished: it must come all the
    same, or the job waits until a leader sweeps."""

    async def work() -> None: ...

    kind = bed.handle(work)
    bed.queue(QueuePolicy(lease_seconds=0.9))
    job_id = bed.enqueue(kind)
    [gone] = bed.store.do(Claim(WorkerId("gone"), ["default"], 1))
    async with bed.working(poll_seconds=0.5, maintain=False):  # a heartbeat every 0.3 s
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert bed.job(job_id).token == gone.token + 1


async def test_a_job_that_arrives_wakes_an_idle_worker_long_before_the_poll(bed: Bed) -> None:
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()

    kind = bed.handle(work)
    async with bed.working(poll_seconds=60.0) as worker:
        await until(lambda: worker.stats().exchanges >= 1)
        await asyncio.sleep(0.1)  # the first claim has come back, empty
        await asyncio.to_thread(bed.enqueue, kind)
        await asyncio.wait_for(begun.wait(), 30)


async def test_a_delayed_job_starts_when_it_is_due_and_does_not_wait_for_the_poll(bed: Bed) -> None:
    async def work() -> None: ...

    kind = bed.handle(work)
    bed.queue(QueuePolicy(), "elsewhere")
    async with bed.working(poll_seconds=3600.0):
        for delay in (0.6, 0.3, 0.9):
            bed.enqueue(kind, delay_seconds=delay)
        bed.enqueue(kind, delay_seconds=0.1, queue="elsewhere")
        await until(lambda: [count.jobs for count in bed.store.do(CountJobs(["default"], ["succeeded"]))] == [3])


async def test_a_retry_starts_when_it_is_due_and_does_not_wait_for_the_poll(bed: Bed) -> None:
    failures = iter([True, True])

    async def work() -> None:
        if next(failures, False):
            raise ValueError("not yet")

    bed.queue(QueuePolicy(backoff=Backoff(shape="constant", base_seconds=0.3, jitter=0.0)))
    job_id = bed.enqueue(bed.handle(work))
    async with bed.working(poll_seconds=3600.0):
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert bed.job(job_id).attempt == 3


async def test_a_retry_is_not_left_to_the_poll_by_a_claim_that_looked_before_the_failure(bed: Bed) -> None:
    """The claim found nothing, and on its way back the answer to the failure overtook it."""
    fail = asyncio.Event()

    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            await fail.wait()
            raise ValueError("not yet")

    store = Troubled(bed.store)
    is_armed = False

    async def fail_behind_the_claims_back(request: object) -> None:
        nonlocal is_armed
        if is_armed and isinstance(request, Exchange) and not request.outcomes:
            is_armed = False
            fail.set()
            await until(lambda: not fetcher._held)

    store.meanwhile = fail_behind_the_claims_back
    bed.store = as_store(store)
    bed.queue(QueuePolicy(backoff=Backoff(shape="constant", base_seconds=0.3, jitter=0.0)))
    job_id = bed.enqueue(bed.handle(work))
    async with bed.working(poll_seconds=3600.0, concurrency=2) as worker:
        assert worker._run is not None
        fetcher = worker._run.fetcher
        await until(lambda: fetcher._groups.is_empty and fetcher._held)
        is_armed = True
        fetcher._look()
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert bed.job(job_id).attempt == 2


async def test_a_job_that_arrives_while_a_claim_is_on_its_way_back_is_not_left_to_the_poll(bed: Bed) -> None:
    """The claim looked and found nothing; the job and its wake-up come before the empty answer does."""
    begun = asyncio.Event()

    async def work() -> None:
        begun.set()

    kind = bed.handle(work)
    store = Troubled(bed.store)
    is_armed = False

    async def enqueue_behind_the_claims_back(request: object) -> None:
        nonlocal is_armed
        if is_armed and isinstance(request, Exchange) and request.claim is not None:
            is_armed = False
            before = fetcher._wakes
            await asyncio.to_thread(bed.enqueue, kind)
            await until(lambda: fetcher._wakes > before)

    store.meanwhile = enqueue_behind_the_claims_back
    bed.store = as_store(store)
    async with bed.working(poll_seconds=60.0, max_in_flight=1) as worker:
        assert worker._run is not None
        fetcher = worker._run.fetcher
        await until(lambda: fetcher._groups.is_empty)
        is_armed = True
        fetcher._look()
        await asyncio.wait_for(begun.wait(), 30)


async def test_a_closed_gate_keeps_a_worker_waiting_and_it_says_so_once(bed: Bed) -> None:
    async def work() -> None: ...

    kind = bed.handle(work)
    bed.store.do(SetGate("worker", is_open=False, actor="ops"))
    job_id = bed.enqueue(kind)
    async with bed.working(poll_seconds=0.05) as worker:
        await until(lambda: worker.stats().exchanges >= 4)
        assert bed.job(job_id).attempt == 0
        assert bed.log.names().count("gate_closed") == 1
        bed.store.do(SetGate("worker", is_open=True, actor="ops"))
        await until(lambda: bed.job(job_id).state == "succeeded")


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(bed: Bed) -> None:
    async def work() -> None: ...

    job_id = bed.enqueue(bed.handle(work))
    bed.store.do(PauseQueues(["default"], paused=True, actor="ops"))
    async with bed.working(poll_seconds=0.05) as worker:
        await until(lambda: worker.stats().exchanges >= 3)
        assert bed.job(job_id).attempt == 0
        bed.store.do(PauseQueues(["default"], paused=False, actor="ops"))
        await until(lambda: bed.job(job_id).state == "succeeded")


async def test_a_queue_that_does_not_exist_yet_is_made_as_declared(bed: Bed) -> None:
    async def work() -> None: ...

    bed.handle(work)
    async with bed.working(queues=["fresh"], declare={"fresh": QueuePolicy(max_attempts=9)}):
        job_id = bed.enqueue("work", queue="fresh")
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert bed.job(job_id).max_attempts == 9


@pytest.mark.parametrize(
    "settings",
    [
        {"queues": []},
        {"queues": "mail"},
        {"queues": ["a", "a"]},
        {"queues": {"a": 0}},
        {"concurrency": 0},
        {"prefetch": -1},
        {"poll_seconds": 0},
        {"max_in_flight": 9},
        {"queues": ["a"], "queue_concurrency": {"b": 1}},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        WorkerConfig(**settings)  # type: ignore[arg-type]


def test_at_once_is_the_policy_of_these_tests() -> None:
    assert AT_ONCE.backoff.delay_seconds(1) == 0


async def test_a_queue_that_is_removed_leaves_the_workers_other_queues_served(bed: Bed) -> None:
    """Every claim named it and was refused, so the worker served none of its queues any more."""

    async def work() -> None: ...

    kind = bed.handle(work)
    bed.queue(AT_ONCE, "short-lived")
    async with bed.working(queues=["short-lived", "default"]) as worker:
        bed.store.do(RemoveQueues(["short-lived"], "ops"))
        job_id = bed.enqueue(kind)
        await until(lambda: bed.job(job_id).state == "succeeded")

        bed.queue(AT_ONCE, "short-lived")
        assert worker._run is not None
        await worker._run._refresh_policies()  # as it does every 40 s
        again = bed.enqueue(kind, queue="short-lived")
        await until(lambda: bed.job(again).state == "succeeded")
