"""The word of a job that was handed over: it makes the worker read the job, or look for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.outcome import Completed
from tenure.store.contract import Armed, Claim, Enqueue, Exchange
from tenure.store.postgres.store import PostgresStore
from tenure.worker.fetch import Exchanger
from tenure.worker.worker import Worker
from tests.conformance.acts import new_job
from tests.postgres.test_armed import Line, listening
from tests.postgres.test_hand_over import ENQUEUE, heard, row, set_clock, waiters
from tests.postgres.test_races import holding, wait_until_blocked
from tests.waiting import until
from tests.worker.bed import Bed

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

OFFER = Exchange((), Claim(WorkerId("w1"), ["default"], limit=10, offers=True))
LOOK = Exchange((), Claim(WorkerId("w1"), ["default"], limit=10, offers=True, offered=True))


@pytest.fixture(autouse=True)
def _clock(admin: psycopg.Connection) -> None:
    set_clock(admin, "2030-01-01 00:00:00Z")


@asynccontextmanager
async def offering(url: str) -> AsyncIterator[tuple[Line, Armed]]:
    """A worker that sleeps, and has offered to take a job."""
    async with listening(url) as line:
        held = await line.store.ado(Claim(WorkerId("w1"), ["default"], limit=10, held=[]))
        await line.store.ado(Exchange([Completed(grant.id, grant.token) for grant in held], None))
        assert (await line.store.ado(OFFER, may_block=True)).is_offered
        assert line.subscription is not None
        armed = line.subscription.arm(LOOK, lambda: line.told.append("leave"))
        assert armed is not None
        yield line, armed


async def enqueue(line: Line) -> JobId:
    job = new_job()
    await asyncio.to_thread(line.store.do, Enqueue([job]))
    return job.id


async def test_the_word_reads_the_job_and_wakes(url: str, admin: psycopg.Connection) -> None:
    async with offering(url) as (line, armed):
        before = line.store.stats().statements
        job = await enqueue(line)
        await until(lambda: "wake" in line.told)
        assert line.told == ["leave", "wake"]
        assert not armed.disarm()

        exchanged = await armed.answer()

        [grant] = exchanged.grants
        assert (grant.id, grant.token, grant.worker) == (job, 1, "w1")
        assert exchanged.is_handed_over
        assert not exchanged.is_offered
        assert line.store.stats().statements == before + 2, "the enqueue, and the reading"
        assert row(admin, job)[1] == 1


async def test_a_word_for_somebody_else_is_nobodys_business(url: str, admin: psycopg.Connection) -> None:
    async with offering(url) as (line, _):
        admin.execute(
            "SELECT pg_notify('tenure', 'granted:w2:' || gen_random_uuid()), pg_notify('tenure', 'cancel:w2')"
        )
        await until(lambda: line.told)

        assert line.told == ["wake"], "by what came after it"


async def test_what_is_no_word_is_none(url: str, admin: psycopg.Connection) -> None:
    async with offering(url) as (line, _):
        admin.execute("SELECT pg_notify('tenure', 'granted:w1:x'), pg_notify('tenure', 'cancel:w2')")
        await until(lambda: line.told)

        assert line.told == ["wake"]


async def test_a_word_of_a_job_that_is_not_there_leaves_the_offer(url: str, admin: psycopg.Connection) -> None:
    async with offering(url) as (line, armed):
        admin.execute("SELECT pg_notify('tenure', 'granted:w1:' || gen_random_uuid())")
        await until(lambda: "wake" in line.told)

        exchanged = await armed.answer()

        assert (exchanged.grants, exchanged.is_handed_over, exchanged.is_offered) == ([], False, True)


async def test_a_word_that_finds_nothing_lying_ready_wakes_and_the_next_claim_gives_the_job_out(url: str) -> None:
    async with offering(url) as (line, armed):
        assert armed.disarm()
        job = await enqueue(line)
        await until(lambda: line.told == ["wake"])

        [grant] = (await line.store.ado(LOOK)).grants

        assert grant.id == job


async def test_a_word_that_comes_with_the_name_of_the_queue_means_another_look(
    url: str, admin: psycopg.Connection
) -> None:
    async with offering(url) as (line, armed):
        job = new_job_id()
        with admin.transaction():
            admin.execute(ENQUEUE, [job])
            admin.execute("SELECT pg_notify('tenure', 'default')")
        await until(lambda: "wake" in line.told)

        [grant] = (await armed.answer()).grants

        assert grant.id == job
        assert line.told == ["leave", "wake", "wake"]


# --- a whole worker ---------------------------------------------------------------------------------------------------


class Crew:
    """A worker that has the loop for itself."""

    def __init__(self, bed: Bed, worker: Worker, ran: list[tuple[str, int]]) -> None:
        self.bed, self.worker, self.ran = bed, worker, ran

    @property
    def exchanger(self) -> Exchanger:
        assert self.worker._shift is not None
        return self.worker._shift.exchanger

    async def until_it_offers(self) -> None:
        made = self.exchanger
        await until(lambda: made._offer.stands and not made._in_flight and made._asleep is not None)

    async def enqueue(self) -> JobId:
        job = new_job()
        await asyncio.to_thread(self.bed.store.do, Enqueue([job]))
        return job.id


@asynccontextmanager
async def crew(url: str, **settings: Any) -> AsyncIterator[Crew]:
    bed, ran = Bed(PostgresStore(url)), list[tuple[str, int]]()

    async def work(ctx: Any) -> None:
        ran.append((ctx.id, ctx.token))

    bed.handle(work)
    worker = bed.worker(poll_seconds=2.0, **settings)  # so seldom that no poll comes between
    worker._owns_loop = True
    running = asyncio.create_task(worker.run())
    await worker.ready.wait()
    made = Crew(bed, worker, ran)
    await made.until_it_offers()
    try:
        yield made
    finally:
        worker.stop()
        await running
        await bed.store.aclose()


@pytest.mark.parametrize("concurrency", [1, 10])
async def test_a_worker_starts_what_was_handed_over_and_offers_again(
    url: str, admin: psycopg.Connection, concurrency: int
) -> None:
    async with crew(url, concurrency=concurrency) as made:
        admin.execute("LISTEN tenure")
        jobs = []
        for turn in range(1, 4):
            jobs.append(await made.enqueue())
            await until(lambda: len(made.ran) == turn)  # noqa: B023 - asked within this turn only
            await made.until_it_offers()

        assert heard(admin) == [f"granted:{made.worker.id}:{job}" for job in jobs]
        assert made.ran == [(job, 1) for job in jobs]
        assert [made.bed.job(job).state for job in jobs] == ["succeeded"] * 3
        assert made.bed.attempts(jobs[0]) == []


async def test_a_job_whose_word_is_lost_starts_with_the_next_poll(url: str) -> None:
    async with crew(url) as made:
        (subscription,) = made.bed.store._listener._ears[asyncio.get_running_loop()].subscriptions  # type: ignore[attr-defined]
        subscription.worker = "somebody else"
        job = await made.enqueue()
        assert made.ran == []

        made.exchanger._look()

        await until(lambda: made.ran)
        assert made.ran == [(job, 1)]


async def test_a_job_that_is_handed_over_while_the_worker_stops_goes_back_with_its_attempt(
    url: str, admin: psycopg.Connection
) -> None:
    job = new_job_id()
    async with crew(url) as made:
        with holding(url, ENQUEUE, job):
            made.worker.stop()
            await asyncio.to_thread(wait_until_blocked, url)  # for whether its offer was taken

    assert made.ran == []
    assert row(admin, job) == ("queued", 1, 0, None)


async def test_a_worker_that_has_stopped_is_handed_nothing(url: str, admin: psycopg.Connection) -> None:
    async with crew(url):
        pass

    assert waiters(admin) == []


async def test_a_worker_goes_on_after_the_server_has_forgotten_who_waits(url: str, admin: psycopg.Connection) -> None:
    async with crew(url) as made:
        admin.execute("DELETE FROM tenure.waiter")  # as after a crash, for the table is not logged
        made.exchanger._lanes.forget_registration()
        made.exchanger._look()
        await until(lambda: waiters(admin))
        await made.until_it_offers()

        job = await made.enqueue()

        await until(lambda: made.ran == [(job, 1)])
