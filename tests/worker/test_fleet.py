"""Many idle workers: they take turns to look, few of them answer a wake-up at once, and no job waits for that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tenure.model.clock import steady_now
from tenure.model.ids import WorkerId
from tenure.model.job import Grant
from tenure.store.admin import AcquireLease, NamedLease
from tenure.store.contract import Request, Store
from tenure.store.queries import ListQueues
from tenure.worker import policies
from tenure.worker.config import WorkerConfig
from tenure.worker.fetch import FIRST, LOOKERS, SELDOM
from tenure.worker.maintain import Maintainer
from tenure.worker.report import Reporter, Silence
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.exchangers import Fleet, exchanger, settle_down

pytestmark = pytest.mark.anyio


@pytest.fixture
def chance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Fix what the dice say."""

    def fix(value: float) -> None:
        monkeypatch.setattr(random, "random", lambda: value)

    return fix


@pytest.mark.parametrize(
    ("waiting", "times"), [(0, 1.0), (1, 1.0), (LOOKERS, 1.0), (2 * LOOKERS, 2.0), (10_000, SELDOM)]
)
async def test_the_more_wait_the_less_often_each_of_them_looks(waiting: int, times: float) -> None:
    made = exchanger(fleet := Fleet(waiting), poll_seconds=2.0)
    running = asyncio.ensure_future(made.run())
    await settle_down(fleet)

    assert made._poll_seconds() == pytest.approx(2.0 * times)
    made.hears = lambda: False
    assert made._poll_seconds() == 2.0, "a worker that hears nothing must look for itself"
    made.finish()
    await running


async def test_of_many_who_are_woken_most_look_later_and_once(chance: Callable[[float], None]) -> None:
    made = exchanger(fleet := Fleet(200), poll_seconds=0.1)
    made.hears = lambda: True
    running = asyncio.ensure_future(made.run())
    await settle_down(fleet)
    before = fleet.claims

    chance(FIRST / 200 + 0.001)
    for _ in range(50):
        made.wake()
    await settle_down(fleet)
    assert fleet.claims == before, "it was not among the first"
    await until(lambda: fleet.claims > before)
    await settle_down(fleet)
    assert fleet.claims == before + 1, "fifty wake-ups share one look"

    chance(FIRST / 200 - 0.001)
    made.wake()
    await settle_down(fleet)
    assert fleet.claims == before + 2, "it is among the first"
    made.finish()
    await running


async def test_who_finds_late_what_others_left_believes_in_fewer_others(chance: Callable[[float], None]) -> None:
    """The store knows two hundred, but 199 of them were killed a minute ago."""
    taken: list[Grant] = []
    made = exchanger(fleet := Fleet(200), take=lambda grants, _: taken.extend(grants))
    running = asyncio.ensure_future(made.run())
    await settle_down(fleet)

    chance(0.5)
    late = 0
    for turn in range(10):
        fleet.jobs = 1
        made.wake()
        await settle_down(fleet)
        if len(taken) == turn:
            late += 1
            made._look()
            await settle_down(fleet)
        assert len(taken) == turn + 1
        made.count_end("default")

    assert late == 2, "after two late finds a wake-up is answered at once"
    for _ in range(20):
        made._look()
        await settle_down(fleet)
    assert made.turns() == 200 / LOOKERS, "looks in vain bring the belief back"
    made.finish()
    await running


async def test_one_of_few_looks_at_once(chance: Callable[[float], None]) -> None:
    made = exchanger(fleet := Fleet(FIRST))
    running = asyncio.ensure_future(made.run())
    await settle_down(fleet)
    before = fleet.claims

    chance(0.999999)
    made.wake()
    await settle_down(fleet)

    assert fleet.claims == before + 1
    made.finish()
    await running


async def test_who_holds_a_job_listens_at_once_because_it_may_be_a_request_to_stop(
    chance: Callable[[float], None],
) -> None:
    made = exchanger(fleet := Fleet(200))
    running = asyncio.ensure_future(made.run())
    await settle_down(fleet)
    before = fleet.claims
    made.unfinished = 1

    chance(0.999999)
    made.wake()
    await settle_down(fleet)

    assert fleet.claims == before + 1
    made.unfinished = 0
    made.finish()
    await running


@pytest.mark.postgres
async def test_a_fleet_leaves_no_job_behind(bed: Bed) -> None:
    """Forty idle workers, of which only some answer each wake-up: every single job and every burst is run."""
    done: set[str] = set()

    async def work(ctx: Any) -> None:
        done.add(ctx.id)

    kind = bed.handle(work)
    workers = [bed.worker(poll_seconds=1.0, concurrency=1) for _ in range(40)]
    running = [asyncio.ensure_future(worker.run()) for worker in workers]
    await until(lambda: all(worker.ready.is_set() for worker in workers))

    made = 0
    for size in (1, 1, 1, 30, 1, 100):
        for _ in range(size):
            await asyncio.to_thread(bed.enqueue, kind)
        made += size
        await until(lambda: len(done) == made)  # noqa: B023 - asked within this turn only

    for worker in workers:
        worker.stop()
    await asyncio.gather(*running)
    assert sum(worker.stats().completed for worker in workers) == 134


class Elections:
    """A store that only counts how often somebody stands."""

    def __init__(self) -> None:
        self.stood = 0

    async def ado(self, request: Request[Any]) -> NamedLease:
        assert isinstance(request, AcquireLease)
        self.stood += 1
        return NamedLease(request.name, "another", 1, datetime(2030, 1, 1, tzinfo=UTC), acquired=False)


@pytest.mark.parametrize(
    ("turns", "led_seconds", "stands"),
    [(50.0, 20.0, 0), (50.0, -0.001, 1), (1.0, 20.0, 1)],
    ids=["a large fleet that is led", "a lease that has run out", "a few, who wait for a lease to be given back"],
)
async def test_a_large_fleet_does_not_stand_against_a_lease_that_holds(
    turns: float, led_seconds: float, stands: int
) -> None:
    async def nothing() -> None: ...

    store, report = Elections(), Reporter(WorkerId("w"), Silence())
    made = Maintainer(
        cast(Store, store),
        WorkerId("w"),
        WorkerConfig(),
        [],
        report,
        nothing,
        lambda: turns,
        lambda: steady_now() + led_seconds,
    )

    await made._stand_unless_led()

    assert store.stood == stands


class Queues:
    """A store with one queue, that counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    async def ado(self, request: Request[Any]) -> list[Any]:
        assert isinstance(request, ListQueues)
        self.reads += 1
        return []


async def test_policies_that_a_heartbeat_says_are_the_same_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = Queues(), 1000.0
    monkeypatch.setattr(policies, "steady_now", lambda: now)
    made = policies.Policies(cast(Store, store), WorkerConfig(), {})

    async def reads() -> int:
        before = store.reads
        await made.refresh_unless_same()
        return store.reads - before

    assert await reads() == 1, "no heartbeat has told anything"
    made.heard("a")
    assert await reads() == 1, "they may have changed between the last reading and the heartbeat"
    assert await reads() == 0
    made.heard("a")
    assert await reads() == 0
    made.heard("b")
    assert await reads() == 1
    now += policies.BELIEVED_SECONDS + 1
    assert await reads() == 1, "what was told long ago is not believed"
    made.heard(None)
    assert await reads() == 1, "this store does not tell"
