"""A claim that the notification itself sends, on the connection that hears it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from tenure.errors import StoreUnavailable
from tenure.model.ids import WorkerId
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Armed, Claim, Enqueue, Exchange, Subscription
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import GetJobs
from tests.conformance.acts import new_job
from tests.postgres.test_listen import Wire
from tests.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

WAIT = Exchange((), Claim(WorkerId("w1"), ["default"], limit=10, wants_wake=True))
LOOK = Exchange((), Claim(WorkerId("w1"), ["default"], limit=10))


@dataclass
class Line:
    """A store that listens, and what happened on it."""

    store: PostgresStore
    told: list[str] = field(default_factory=list)
    subscription: Subscription | None = None

    def arm(self) -> Armed:
        assert self.subscription is not None
        armed = self.subscription.arm(LOOK, lambda: self.told.append("leave"))
        assert armed is not None
        return armed

    async def enqueue(self) -> str:
        job = new_job()
        await asyncio.to_thread(self.store.do, Enqueue([job], {"default": QueuePolicy()}))
        return job.id

    def state(self, job_id: str) -> str:
        (job,) = self.store.do(GetJobs([job_id]))  # type: ignore[list-item]
        assert job is not None
        return job.state


@asynccontextmanager
async def listening(url: str, *, reply_seconds: float = 60.0) -> AsyncIterator[Line]:
    line = Line(PostgresStore(url, reply_seconds=reply_seconds))
    await line.enqueue()  # which makes the queue
    line.subscription = line.store.subscribe(["default"], lambda: line.told.append("wake"), asyncio.get_running_loop())
    await until(lambda: line.told == ["wake"])
    await line.store.ado(WAIT, may_block=True)
    line.told.clear()
    try:
        yield line
    finally:
        line.subscription.close()
        await line.store.aclose()


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    yield made
    made.close()


async def test_a_notification_sends_what_lies_ready_before_it_wakes(url: str) -> None:
    async with listening(url) as line:
        armed = line.arm()
        job = await line.enqueue()
        await until(lambda: "wake" in line.told)
        assert line.told == ["leave", "wake"]

        exchanged = await armed.answer()

        assert [grant.id for grant in exchanged.grants] == [job]
        assert line.store.stats().statements == 4, "two enqueues, the poll, and the claim that was sent ahead"


async def test_it_is_sent_once(url: str) -> None:
    async with listening(url) as line:
        armed = line.arm()
        await line.enqueue()
        await until(lambda: "wake" in line.told)
        await armed.answer()
        second = await line.enqueue()
        await until(lambda: line.told.count("wake") == 2)

        assert line.told.count("leave") == 1
        assert line.state(second) == "queued"


async def test_what_was_taken_back_is_not_sent(url: str) -> None:
    async with listening(url) as line:
        line.arm().disarm()
        job = await line.enqueue()
        await until(lambda: line.told)

        assert line.told == ["wake"]
        assert line.state(job) == "queued"


async def test_it_is_not_sent_for_another_queue_nor_for_a_cancel(url: str, admin: psycopg.Connection) -> None:
    async with listening(url) as line:
        line.arm()
        admin.execute("SELECT pg_notify('tenure', 'other'), pg_notify('tenure', 'cancel:w1')")
        await until(lambda: line.told)

        assert line.told == ["wake"]


async def test_nothing_can_lie_ready_before_the_connection_knows_the_statement(url: str) -> None:
    store, told = PostgresStore(url), list[str]()
    subscription = store.subscribe(["default"], lambda: told.append("wake"), asyncio.get_running_loop())
    await until(lambda: told)

    assert subscription.arm(LOOK, lambda: None) is None
    subscription.close()
    await store.aclose()


async def test_an_answer_that_does_not_come_is_given_up_and_the_line_comes_back(wire: Wire) -> None:
    async with listening(wire.url, reply_seconds=0.3) as line:
        line_is_cut = asyncio.Event()

        def cut() -> None:
            wire.silent.set()
            line_is_cut.set()

        assert line.subscription is not None
        armed = line.subscription.arm(LOOK, cut)
        assert armed is not None
        await line.enqueue()
        await line_is_cut.wait()

        with pytest.raises(StoreUnavailable):
            await armed.answer()

        wire.silent.clear()
        await until(lambda: line.told.count("wake") == 2)  # for the job, and because the line is new
        await line.store.ado(LOOK, may_block=True)


async def test_a_session_that_is_cut_after_it_was_sent_fails_it_and_spares_the_next(
    url: str, admin: psycopg.Connection
) -> None:
    async with listening(url) as line:
        armed = line.arm()
        with psycopg.connect(url) as locker:
            locker.execute("LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE")
            admin.execute("SELECT pg_notify('tenure', 'default')")
            await until(lambda: "leave" in line.told)
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure listen'"
            )
        await until(lambda: line.told.count("wake") == 2)

        with pytest.raises(StoreUnavailable):  # fetched after the line was made anew
            await armed.answer()

        await line.store.ado(WAIT, may_block=True)
        line.arm()
        await line.enqueue()
        await until(lambda: line.told.count("leave") == 2)


async def test_what_lies_ready_does_not_outlive_its_connection(url: str, admin: psycopg.Connection) -> None:
    async with listening(url) as line:
        line.arm()
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure listen'")
        await until(lambda: "wake" in line.told)
        await line.enqueue()
        await until(lambda: line.told.count("wake") == 2)

        assert "leave" not in line.told
