"""A worker inside another program's event loop: how it ends, and how it comes back."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import tenure
from tenure.integrations import embedded
from tenure.model.job import Grant
from tenure.worker.run import WorkerRun

pytestmark = pytest.mark.anyio


async def test_a_worker_that_ended_by_an_error_comes_back_although_the_next_one_cannot_start(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one's failure ended the task that keeps a worker running: the server went on and ran no jobs."""
    monkeypatch.setattr(embedded, "FIRST_PAUSE_SECONDS", 0.01)
    seen: Counter[str] = Counter()
    take, serve = WorkerRun._take, WorkerRun.serve

    def takes(run: WorkerRun, grants: list[Grant], sent: float) -> None:
        seen["take"] += 1
        take(run, grants, sent)
        if seen["take"] == 1:
            raise OSError("the first worker ends")

    async def serves(run: WorkerRun, ready: asyncio.Event) -> None:
        seen["serve"] += 1
        if seen["serve"] == 2:
            raise OSError("the second one cannot start")
        await serve(run, ready)

    monkeypatch.setattr(WorkerRun, "_take", takes)
    monkeypatch.setattr(WorkerRun, "serve", serves)
    app = tenure.App(url)

    @app.job
    async def double(number: int) -> int:
        return number * 2

    async with embedded.embedded_worker(app):
        job = await double.aenqueue(21)
        assert await job.aresult(timeout=60) == 42

    assert seen["serve"] == 3
    await app.aio.close()


async def test_a_start_that_is_cancelled_leaves_no_worker_behind(url: str) -> None:
    app = tenure.App(url)

    @app.job
    async def nothing() -> None: ...

    def emit(event: tenure.LogEvent) -> None:
        if event.name == "worker_started":
            starting.cancel()

    async def start() -> None:
        async with embedded.embedded_worker(app, emit=emit):
            pytest.fail("it was cancelled before")

    starting = asyncio.create_task(start())
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert [task for task in asyncio.all_tasks() if task.get_name() == "tenure-embedded-worker"] == []
    assert await app.aio.workers.all() == []
    await app.aio.close()
