"""The claim that follows a wake-up lies ready while the worker sleeps, and the wake-up sends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tenure.model import failpoints
from tenure.model.clock import steady_now
from tenure.model.job import Grant
from tenure.store.contract import Claim, Exchange, Exchanged, Request
from tenure.worker.fetch import FIRST, Exchanger
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.exchangers import Fleet, exchanger, grant, settle_down

pytestmark = pytest.mark.anyio


class Bell:
    """Wakes a worker as a store would, and sends what lies ready."""

    def __init__(self, made: Exchanger) -> None:
        made.owns_loop = True
        made.arm = self.arm
        self._made = made
        self._leave: Callable[[], None] | None = None
        self.armed: Claim | None = None
        self.is_handed_over = False
        self.answers: asyncio.Queue[list[Grant] | StoreUnavailable] = asyncio.Queue()

    def arm(self, request: Exchange, leave: Callable[[], None]) -> Bell:
        assert not request.outcomes
        self.armed, self._leave = request.claim, leave
        return self

    def disarm(self) -> bool:
        is_sent, self.armed = self.armed is None, None
        return not is_sent

    async def answer(self) -> Exchanged:
        answer = await self.answers.get()
        if isinstance(answer, StoreUnavailable):
            raise answer
        return Exchanged({}, answer, is_handed_over=self.is_handed_over)

    def ring(self) -> None:
        if self.armed is not None and self._leave is not None:
            self.disarm()
            self._leave()
        self._made.wake()


class Noting(Fleet):
    """Keeps what was asked."""

    def __init__(self, waiting: int = 1) -> None:
        super().__init__(waiting)
        self.asked: list[Claim] = []

    async def ado(self, request: Request[Any], *, may_block: bool = False) -> Exchanged:
        assert isinstance(request, Exchange)
        assert request.claim is not None
        self.asked.append(request.claim)
        return await super().ado(request, may_block=may_block)


@asynccontextmanager
async def asleep(fleet: Fleet, **settings: Any) -> AsyncIterator[tuple[Exchanger, Bell, list[Grant]]]:
    """A worker that waits to be woken."""
    taken: list[Grant] = []
    made = exchanger(fleet, take=lambda grants, _sent: taken.extend(grants), concurrency=10, **settings)
    bell = Bell(made)
    running = asyncio.create_task(made.run())
    await settle_down(fleet)
    try:
        yield made, bell, taken
    finally:
        made.finish()
        async with asyncio.timeout(10):
            await running


async def test_a_worker_that_sleeps_has_laid_ready_what_it_will_ask_for() -> None:
    async with asleep(Fleet(1)) as (_, bell, _):
        assert bell.armed is not None
        assert (list(bell.armed.queues), bell.armed.limit) == (["default"], 10)
        assert (bell.armed.wants_wake, bell.armed.beats, bell.armed.held) == (None, False, None)


async def test_a_wake_up_that_has_sent_the_claim_needs_no_other() -> None:
    fleet = Fleet(1)
    async with asleep(fleet) as (made, bell, taken):
        before, job = fleet.claims, grant()
        bell.ring()
        bell.answers.put_nowait([job])
        await until(lambda: taken == [job])
        made.count_end("default")
        made.poke()
        await settle_down(fleet)

        assert fleet.claims == before
        assert bell.armed is not None, "and it lies ready again"


async def test_a_wake_up_after_the_claim_was_sent_means_another_look() -> None:
    fleet = Fleet(1)
    async with asleep(fleet) as (_, bell, _):
        before = fleet.claims
        bell.ring()
        bell.ring()  # of a job that the claim may have missed
        bell.answers.put_nowait([])
        await until(lambda: fleet.claims > before)


async def test_two_wake_ups_in_one_breath_send_one_claim() -> None:
    async with asleep(Fleet(1)) as (made, bell, _):
        before = made.exchanges
        bell.ring()
        bell.ring()

        assert made.exchanges == before + 1
        bell.answers.put_nowait([])


async def test_jobs_granted_to_a_claim_on_its_way_are_taken_although_the_worker_is_to_stop() -> None:
    async with asleep(Fleet(1)) as (made, bell, taken):
        job = grant()
        bell.ring()
        made.finish()
        await asyncio.sleep(0)
        bell.answers.put_nowait([job])
        await until(lambda: taken == [job])


async def test_what_an_enqueue_has_answered_is_fetched_although_the_word_has_not_come() -> None:
    fleet = Fleet(1)
    async with asleep(fleet) as (made, bell, taken):
        before, job = fleet.claims, grant()
        bell.armed = None  # taken up, and nobody was told
        made._look()
        await settle_down(fleet)
        assert fleet.claims == before, "no other claim goes ahead of it"
        bell.answers.put_nowait([job])
        await until(lambda: taken == [job])


async def test_what_an_enqueue_has_answered_is_taken_although_the_worker_is_to_stop() -> None:
    async with asleep(Fleet(1)) as (made, bell, taken):
        job = grant()
        bell.armed = None
        made.finish()
        await asyncio.sleep(0)
        bell.answers.put_nowait([job])
        await until(lambda: taken == [job])


async def test_a_lease_that_an_enqueue_gave_is_reckoned_from_when_the_claim_was_armed() -> None:
    since: list[float] = []
    fleet = Fleet(1)
    made = exchanger(fleet, take=lambda _grants, sent: since.append(sent), concurrency=10)
    bell = Bell(made)
    running = asyncio.create_task(made.run())
    await settle_down(fleet)
    armed_by = steady_now()
    bell.is_handed_over = True
    bell.ring()
    bell.answers.put_nowait([grant()])
    await until(lambda: since)
    made.finish()
    async with asyncio.timeout(10):
        await running

    assert since[0] <= armed_by


async def test_a_claim_whose_answer_is_lost_is_followed_by_one_that_names_what_is_held() -> None:
    fleet = Noting()
    async with asleep(fleet) as (_, bell, _):
        bell.ring()
        bell.answers.put_nowait(StoreUnavailable("cut"))
        await until(lambda: any(claim.held is not None for claim in fleet.asked))

        (again,) = (claim for claim in fleet.asked if claim.held is not None)
        assert again.held == []
        assert again.limit >= 10


async def test_a_worker_that_was_woken_by_its_clock_takes_back_what_lay_ready() -> None:
    fleet = Fleet(1)
    async with asleep(fleet) as (made, bell, _):
        before = fleet.claims
        made._look()
        await asyncio.sleep(0)
        assert bell.armed is None
        await settle_down(fleet)
        assert fleet.claims > before


@pytest.mark.parametrize(
    ("waiting", "settings"),
    [(FIRST + 1, {}), (1, {"queues": {"default": 1, "other": 2}}), (1, {"queue_concurrency": {"default": 2}})],
    ids=["many wait, and few of them go to look", "several lanes", "a limit"],
)
async def test_nothing_lies_ready_where_it_is_not_known_what_will_be_asked(
    waiting: int, settings: dict[str, Any]
) -> None:
    async with asleep(Fleet(waiting), **settings) as (_, bell, _):
        assert bell.armed is None


async def test_nothing_lies_ready_while_jobs_are_held() -> None:
    fleet = Fleet(1)
    async with asleep(fleet) as (made, bell, taken):
        bell.ring()
        bell.answers.put_nowait([grant()])
        await until(lambda: len(taken) == 1)
        await settle_down(fleet)

        assert bell.armed is None
        made.count_end("default")


async def test_no_job_is_lost_with_the_answer_to_a_claim_that_a_wake_up_sent(bed: Bed) -> None:
    ran: list[int] = []
    lost: list[str] = []

    async def work(ctx: Any) -> None:
        ran.append(ctx.token)

    def lose_an_answer_on_the_loop() -> None:
        if not lost and threading.current_thread() is threading.main_thread():
            lost.append("the reply")
            raise StoreUnavailable("the reply was lost")

    kind = bed.handle(work)
    worker = bed.worker(poll_seconds=3600.0)
    worker._owns_loop = True
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    assert worker._shift is not None
    made = worker._shift.exchanger
    await until(lambda: made._lanes.is_dry and made._asleep is not None and made.hears())
    failpoints.arm("after_commit_before_reply", lose_an_answer_on_the_loop)
    try:
        job = await asyncio.to_thread(bed.enqueue, kind)
        await until(lambda: ran)
    finally:
        failpoints.disarm("after_commit_before_reply")
    worker.stop()
    await running

    assert lost
    assert ran == [1], "the same grant, handed out again"
    assert bed.job(job).state == "succeeded"
