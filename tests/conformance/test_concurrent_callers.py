"""Both doors at once, many callers, and the wake-up."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenure.model.ids import WorkerId
from tenure.model.outcome import Completed
from tenure.model.state import State
from tenure.store.contract import Claim, Enqueue, Settle
from tenure.store.queries import CountJobs, GetJobs
from tests.conformance.acts import Subject, cancel, claim, claim_one, complete, enqueue, enqueue_many, get, new_job

DEADLINE = 30.0


def test_many_threads_share_one_store(store: Subject) -> None:
    jobs = [[new_job(payload={"n": n})] for n in range(200)]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda batch: store.do(Enqueue(batch)), jobs))
        grants = list(pool.map(lambda n: store.do(Claim(WorkerId(f"w{n}"), ["default"], limit=5)), range(60)))

    assert len({answer.id for [answer] in answers}) == 200
    granted = [grant.id for batch in grants for grant in batch]
    assert len(granted) == len(set(granted)) == 200


def test_many_tasks_share_one_store(store: Subject) -> None:
    async def main() -> None:
        raw = store.store
        answers = await asyncio.gather(*(raw.ado(Enqueue([new_job()])) for _ in range(200)))
        grants = await asyncio.gather(*(raw.ado(Claim(WorkerId(f"w{n}"), ["default"], limit=5)) for n in range(60)))
        held = [grant for batch in grants for grant in batch]
        assert len(held) == len({grant.id for grant in held}) == len(answers) == 200
        settled = await asyncio.gather(*(raw.ado(Settle([Completed(g.id, g.token)])) for g in held))
        assert {answer.state for [answer] in settled} == {"succeeded"}
        await raw.aclose()

    asyncio.run(main())


def test_both_doors_see_the_same_jobs(store: Subject) -> None:
    job_id = enqueue(store)

    async def main() -> None:
        [job] = await store.store.ado(GetJobs([job_id]))
        assert job is not None
        assert job.state is State.QUEUED
        [grant] = await store.store.ado(Claim(WorkerId("w1"), ["default"]))
        assert grant.id == job_id

    asyncio.run(main())

    assert get(store, job_id).state is State.RUNNING


def test_the_async_door_does_not_block_the_loop_while_it_waits(store: Subject) -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        await store.store.ado(Enqueue([new_job() for _ in range(500)]))
        ticking.cancel()
        assert ticks > 1

    asyncio.run(main())


def test_a_cancelled_await_leaves_the_store_usable(store: Subject) -> None:
    async def main() -> None:
        batch = [new_job() for _ in range(200)]
        task = asyncio.create_task(store.store.ado(Enqueue(batch)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        # The outcome is unknown; repeating settles it.
        assert len(await store.store.ado(Enqueue(batch))) == 200
        [count] = await store.store.ado(CountJobs())
        assert count.jobs == 200

    asyncio.run(main())


def test_one_event_loop_after_another_may_use_the_store(store: Subject) -> None:
    for _ in range(3):
        asyncio.run(store.store.ado(Enqueue([new_job()])))

    assert len(claim(store, 10)) == 3


def test_an_enqueue_wakes_who_wants_to_be_woken(store: Subject) -> None:
    if store.is_pooled:
        pytest.skip("behind a pooler in transaction mode nothing can listen: workers poll")
    woken = threading.Event()
    subscription = store.store.subscribe(["default"], woken.set)
    try:
        assert store.do(Claim(WorkerId("w1"), ["default"])) == []
        woken.clear()

        enqueue(store)

        assert woken.wait(DEADLINE)
        assert subscription.is_alive()
    finally:
        subscription.close()
        subscription.close()


def test_a_request_to_stop_wakes_who_holds_the_job(store: Subject) -> None:
    if store.is_pooled:
        pytest.skip("behind a pooler in transaction mode nothing can listen: workers poll")
    woken = threading.Event()
    job_id = enqueue(store)
    claim_one(store)
    subscription = store.store.subscribe(["default"], woken.set)
    try:
        woken.clear()

        cancel(store, job_id)

        assert woken.wait(DEADLINE)
    finally:
        subscription.close()


def test_the_store_counts_what_it_does(store: Subject) -> None:
    before = store.store.stats()

    enqueue_many(store, 100)
    for grant in claim(store, 100):
        complete(store, grant)

    after = store.store.stats()
    assert after.requests - before.requests == 102
    assert after.transactions > before.transactions


def test_a_reopened_store_finds_everything_as_it_was(store: Subject) -> None:
    job_id = enqueue(store, payload={"n": 1}, key="k")
    claim_one(store)
    before = get(store, job_id)

    again = type(store.store)(store.store.url)  # type: ignore[call-arg]
    try:
        assert again.do(GetJobs([job_id])) == [before]
    finally:
        again.close()
