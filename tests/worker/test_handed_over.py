"""Workers to whom an enqueue of another process hands its job over, in one transaction: on SQLite."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.model.clock import steady_now
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue
from tenure.store.queries import ListJobs
from tenure.store.sqlite import offers
from tenure.store.sqlite.store import SqliteStore
from tenure.worker.worker import Worker
from tests.conformance.engines import open_sqlite, sqlite_url
from tests.sqlite.forked import BEFORE_WORD, Enqueuer, put_as_before
from tests.waiting import until, wait_until
from tests.worker.bed import Bed
from tests.worker.crews import Crew, crew, words

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A fresh, migrated file."""
    open_sqlite(tmp_path / "jobs.db").close()
    return sqlite_url(tmp_path / "jobs.db")


class Side:
    """The process that enqueues, as one that did so before, beside a worker in a process of its own."""

    def __init__(self, bed: Bed, crew: Crew, folder: Path) -> None:
        assert isinstance(bed.store, SqliteStore)
        self.bed, self.crew, self.store = bed, crew, bed.store
        self.notes = folder / "notes"
        self.put()
        self.wait_until_done(1)

    def put(self) -> JobId:
        payload = json.dumps({"file": str(self.notes), "seconds": 0, "always_fails": False})
        return self.store.do(Enqueue([NewJob(new_job_id(), "write_under_token", payload)]))[0].id

    def wait_until_offered(self) -> None:
        hub = self.store._database.hub
        wait_until(lambda: hub.only_others_wait("default") and hub.offers.standing("default"))

    def wait_until_done(self, jobs: int) -> None:
        wait_until(lambda: len(words(self.notes, "run")) >= jobs)

    def ran(self, job_id: JobId) -> list[int]:
        """The tokens under which a job was begun."""
        return [int(token) for _, ran, token, _ in words(self.notes, "run") if ran == job_id]

    def is_held(self, job_id: JobId) -> bool:
        """Whether it was granted in the transaction that made it, and is still held."""
        job = self.bed.job(job_id)
        return job.state == "running" and job.claimed_at == job.created_at


@contextmanager
def side(bed: Bed, url: str, folder: Path, **settings: Any) -> Iterator[Side]:
    with crew(url, folder, **{"poll_seconds": 5.0, **settings}) as one:
        yield Side(bed, one, folder)


def test_a_worker_in_a_process_of_its_own_starts_what_it_was_handed(bed: Bed, url: str, tmp_path: Path) -> None:
    with side(bed, url, tmp_path) as one:
        ids = []
        for number in range(5):
            one.wait_until_offered()
            ids.append(one.put())
            one.wait_until_done(number + 2)

        assert [one.ran(job_id) for job_id in ids] == [[1]] * 5
        jobs = [wait_until(lambda each=each: _ended(bed, each)) for each in ids]  # type: ignore[misc]
        assert {job.state for job in jobs} == {"succeeded"}
        assert all(job.claimed_at == job.created_at for job in jobs)


def _ended(bed: Bed, job_id: JobId) -> Any:
    job = bed.job(job_id)
    return job if job.finished_at is not None else None


def test_a_worker_that_was_killed_is_handed_nothing(bed: Bed, url: str, tmp_path: Path) -> None:
    with side(bed, url, tmp_path) as one:
        one.wait_until_offered()
        one.crew.send(signal.SIGKILL)
        one.crew.process.wait()

        job = bed.job(one.put())

        assert (job.state, job.token, job.attempt) == ("queued", 0, 0)
        assert list(Path(f"{tmp_path}/jobs.db-tenure").glob("*.offer")) == []


def test_a_worker_that_is_stopped_for_long_is_handed_nothing_and_one_just_stopped_a_single_job(
    bed: Bed, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with side(bed, url, tmp_path) as one:
        one.wait_until_offered()
        one.crew.send(signal.SIGSTOP)
        _, status = os.waitpid(one.crew.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

        first, second = one.put(), one.put()
        assert one.is_held(first)
        assert bed.job(second).state == "queued"
        one.crew.send(signal.SIGCONT)
        one.wait_until_done(3)
        one.wait_until_offered()
        one.crew.send(signal.SIGSTOP)
        os.waitpid(one.crew.process.pid, os.WUNTRACED)
        with monkeypatch.context() as patch:
            later = steady_now() + offers.FRESH_SECONDS
            patch.setattr(offers, "steady_now", lambda: later)
            third = one.put()
        assert bed.job(third).state == "queued"
        one.crew.send(signal.SIGCONT)
        one.wait_until_done(4)

        assert [one.ran(job_id) for job_id in (first, second, third)] == [[1], [1], [1]]


def test_two_that_enqueue_all_the_time_have_each_job_run_once(bed: Bed, url: str, tmp_path: Path) -> None:
    with side(bed, url, tmp_path) as one:

        def enqueue() -> None:
            for _ in range(40):
                one.put()

        both = [Enqueuer(enqueue) for _ in range(2)]
        for each in both:
            each.wait_there()
        for each in both:
            each.go_on()
        for each in both:
            each.wait()
        one.wait_until_done(81)

        ran = [(job_id, token) for _, job_id, token, _ in words(one.notes, "run")]
        assert len({job_id for job_id, _ in ran}) == len(ran) == 81
        assert {token for _, token in ran} == {"1"}


@pytest.mark.slow
def test_processes_that_are_killed_while_they_enqueue_cost_no_job_an_attempt(
    bed: Bed, url: str, tmp_path: Path
) -> None:
    """The worker lives, so whatever was granted to it unheard is found, and nothing is begun twice."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with side(bed, url, tmp_path, poll_seconds=0.5) as one:

        def enqueue() -> None:
            while True:
                one.wait_until_offered()
                one.put()

        for _ in range(40):
            enqueuer = Enqueuer(enqueue)
            enqueuer.wait_there()
            enqueuer.go_on()
            time.sleep(chance.uniform(0.03, 0.15))  # the moment of the kill is what is random here
            enqueuer.kill()
        jobs = wait_until(lambda: _all_succeeded(bed))

        ran = [(job_id, token) for _, job_id, token, _ in words(one.notes, "run")]
        assert sorted(ran) == sorted((job.id, "1") for job in jobs)
        assert sum(job.claimed_at == job.created_at for job in jobs) > 0, "or else this shows nothing"


def _all_succeeded(bed: Bed) -> Any:
    jobs = bed.store.do(ListJobs(limit=10_000)).items
    return jobs if all(job.state == "succeeded" for job in jobs) else None


async def idle(bed: Bed, worker: Worker) -> SqliteStore:
    """The store of a worker that runs on this loop, once its offer stands."""
    store = bed.store
    assert isinstance(store, SqliteStore)
    await worker.ready.wait()
    hub = store._database.hub
    await until(lambda: any(each.offered is not None and each.armed is each.offered for each in hub._subscribers))
    return store


async def test_a_job_whose_enqueuer_was_killed_before_the_word_is_started_by_the_next_poll(bed: Bed) -> None:
    ran: list[int] = []

    async def work(ctx: Any) -> None:
        ran.append(ctx.token)

    bed.store.do(SetQueues({"elsewhere": QueuePolicy()}, "test"))
    bed.handle(work)
    worker = bed.worker(poll_seconds=0.2)
    worker._owns_loop = True
    running = asyncio.create_task(worker.run())
    store = await idle(bed, worker)
    enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
    enqueuer.wait_there()
    enqueuer.kill()
    await until(lambda: ran)
    worker.stop()
    await running

    assert ran == [1]


async def test_a_worker_that_is_to_stop_gives_back_what_it_was_just_handed(bed: Bed) -> None:
    async def work(ctx: Any) -> None:
        await ctx.stopping.wait_async()
        ctx.check()

    bed.store.do(SetQueues({"elsewhere": QueuePolicy()}, "test"))
    bed.handle(work)
    worker = bed.worker(poll_seconds=600.0)
    worker._owns_loop = True
    running = asyncio.create_task(worker.run())
    store = await idle(bed, worker)
    enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
    enqueuer.wait_there()
    (job_id,) = (job.id for job in store.do(ListJobs(states=["running"])).items)
    assert bed.job(job_id).attempt == 1
    worker.stop()
    await running
    enqueuer.finish()

    job = bed.job(job_id)
    assert (job.state, job.token, job.attempt, job.lease_owner) == ("queued", 1, 0, None)
