"""Jobs that were held when a worker vanished: run in a process of their own, then also alone."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tenure.handler.context import Context
from tenure.model.clock import steady_now
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Released
from tenure.store.contract import Claim, Exchange, Request, Settle, Store
from tenure.store.queries import GetJobs
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.children import crew as handlers

pytestmark = pytest.mark.anyio


class Suspecting:
    """A real store that grants chosen jobs with a suspicion."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.suspicion: dict[JobId, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def ado(self, request: Request[Any]) -> Any:
        answer = await self._store.ado(request)
        if isinstance(request, Exchange):
            for grant in answer.grants:
                grant.suspicion = self.suspicion.get(grant.id, 0)
        return answer


@pytest.fixture
def suspecting(bed: Bed) -> Suspecting:
    store = Suspecting(bed.store)
    bed.store = store
    return store


async def test_a_suspect_runs_in_a_process_of_its_own(bed: Bed, suspecting: Suspecting, tmp_path: Path) -> None:
    bed.registry = handlers.registry
    payload = json.dumps({"file": str(tmp_path / "notes"), "until": str(tmp_path)})
    job_id = bed.enqueue("hold", payload)
    suspecting.suspicion[job_id] = 1
    await bed.drain()

    assert bed.job(job_id).state == "succeeded"
    pids = {line.split()[2] for line in (tmp_path / "notes").read_text().splitlines()}
    assert str(os.getpid()) not in pids


async def test_the_crash_of_a_suspects_process_is_its_own(bed: Bed, suspecting: Suspecting, tmp_path: Path) -> None:
    bed.registry = handlers.registry
    job_id = bed.enqueue("die", json.dumps({"file": str(tmp_path / "notes")}), max_attempts=1)
    other = bed.enqueue("quick", json.dumps({"file": str(tmp_path / "notes")}))
    suspecting.suspicion[job_id] = 2
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.failure_class) == ("dead", "crash")
    assert bed.job(other).state == "succeeded"


def asks_the_store(ctx: Context) -> int:
    assert ctx.services.call is not None
    assert ctx.services.call(GetJobs([ctx.id]))[0].id == ctx.id
    return os.getpid()


async def test_a_suspect_that_needs_the_store_runs_in_the_workers_process(bed: Bed, suspecting: Suspecting) -> None:
    kind = bed.handle(asks_the_store, needs_store=True)
    jobs = [bed.enqueue(kind) for _ in range(3)]
    suspecting.suspicion.update(dict.fromkeys(jobs, 1))
    await bed.drain()

    assert {(bed.job(job_id).state, bed.job(job_id).result) for job_id in jobs} == {("succeeded", os.getpid())}
    assert bed.log.names().count("suspect_not_importable") == 1, "once per kind"


async def test_a_suspect_of_the_second_degree_runs_alone(bed: Bed, suspecting: Suspecting) -> None:
    """Its handler cannot be imported either, so it runs in this process."""
    go_on = asyncio.Event()
    running: list[str] = []
    beside: list[list[str]] = []

    async def slow() -> None:
        running.append("slow")
        await go_on.wait()
        running.remove("slow")

    async def suspect() -> None:
        beside.append(list(running))
        await asyncio.sleep(0.05)
        beside.append(list(running))

    bed.handle(slow)
    bed.handle(suspect)
    first = bed.enqueue("slow")
    async with bed.working(concurrency=4, prefetch=4) as worker:
        await until(lambda: running == ["slow"])
        suspect_id, later = bed.enqueue("suspect", priority=1), bed.enqueue("slow")
        suspecting.suspicion[suspect_id] = 2
        await until(lambda: bed.job(suspect_id).state == "running")
        await asyncio.sleep(1.5)  # longer than a job may wait for a runner before it is given back
        assert bed.job(suspect_id).state == "running"
        assert beside == [], "another job is still running"
        go_on.set()
        await until(lambda: bed.job(suspect_id).state == "succeeded")
        await until(lambda: bed.job(later).state == "succeeded" and worker.stats().held == 0)

    assert beside == [[], []]
    assert bed.job(first).state == "succeeded"
    assert bed.log.names(suspect_id).count("suspect_not_importable") == 1
    assert bed.job(later).attempt == 1


async def test_jobs_that_have_not_started_are_released_for_a_suspect(bed: Bed, suspecting: Suspecting) -> None:
    ran: list[str] = []

    async def work(payload: dict[str, str]) -> None:
        ran.append(payload["name"])
        await asyncio.sleep(0.01)

    bed.handle(work)
    jobs = [bed.enqueue("work", json.dumps({"name": str(n)})) for n in range(6)]
    suspecting.suspicion[jobs[3]] = 2
    await bed.drain(concurrency=1, prefetch=5)

    assert sorted(ran) == [str(n) for n in range(6)]
    assert {bed.job(job_id).state for job_id in jobs} == {"succeeded"}
    assert {bed.job(job_id).attempt for job_id in jobs} == {1}


async def test_a_suspect_that_is_granted_anew_while_it_waits_for_its_turn_runs(
    bed: Bed, suspecting: Suspecting
) -> None:
    """The older grant counted as one more job to wait for, so where the others ended at once, the worker never claimed
    anything again."""
    begun: list[None] = []
    go_on = asyncio.Event()

    async def slow() -> None:
        begun.append(None)
        await go_on.wait()

    async def suspect() -> None: ...

    bed.handle(slow)
    bed.enqueue("slow")
    bed.enqueue("slow")
    job = NewJob(id=new_job_id(), kind=bed.handle(suspect), payload="{}")
    async with bed.working(concurrency=3) as worker:
        await until(lambda: len(begun) == 2)
        suspecting.suspicion[job.id] = 2
        job_id = bed.enqueue_many([job])[0].id
        await until(lambda: job_id in worker._run.held)  # type: ignore[union-attr]
        older = worker._run.held[job_id].grant  # type: ignore[union-attr]
        bed.store.do(Settle([Released(job_id, older.token)]))
        [newer] = bed.store.do(Claim(worker.id, ["default"]))
        newer.suspicion = 2
        worker._run.fetcher.unfinished += 1  # type: ignore[union-attr]
        worker._run._take([newer], steady_now())  # type: ignore[union-attr]
        go_on.set()
        await until(lambda: bed.job(job_id).state == "succeeded")
        other = bed.enqueue("suspect")
        await until(lambda: bed.job(other).state == "succeeded")
