"""Streams that handlers write: async, sync and isolated; batched, bounded, complete when the job has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.handler.context import Context
from tenure.model.ids import JobId
from tenure.model.state import State
from tenure.model.stream import Chunk
from tenure.store.contract import Cancel, Request
from tenure.store.streams import AppendStreams, ReadStream
from tests.waiting import until
from tests.worker.bed import AT_ONCE, Bed
from tests.worker.children import crew as handlers

pytestmark = pytest.mark.anyio


def chunks(bed: Bed, job_id: JobId, name: str = "output") -> list[Chunk]:
    found: list[Chunk] = []
    while True:
        page = bed.store.do(ReadStream(job_id, name, found[-1].offset if found else 0))
        assert page is not None
        found += page.chunks
        if not page.chunks or page.is_ended:
            return found


def said(bed: Bed, job_id: JobId, name: str = "output") -> str:
    return "".join(chunk.text for chunk in chunks(bed, job_id, name))


async def test_what_an_async_handler_writes_is_all_there_when_the_job_has_ended(bed: Bed) -> None:
    async def talk(ctx: Context) -> None:
        for nth in range(500):
            await ctx.stream().write(f"{nth} ")
        await ctx.stream("thoughts").write("hm")

    job_id = bed.enqueue(bed.handle(talk))
    await bed.drain()

    assert said(bed, job_id) == "".join(f"{nth} " for nth in range(500))
    assert said(bed, job_id, "thoughts") == "hm"
    assert len(chunks(bed, job_id)) < 50, "small writes are gathered"


async def test_what_a_sync_handler_writes_is_all_there_too(bed: Bed) -> None:
    def talk(ctx: Context) -> None:
        for nth in range(300):
            ctx.stream().write(f"{nth} ")

    job_id = bed.enqueue(bed.handle(talk))
    await bed.drain()

    assert said(bed, job_id) == "".join(f"{nth} " for nth in range(300))


@pytest.mark.parametrize("kind", ["stream_out", "astream_out"])
async def test_what_an_isolated_handler_writes_is_all_there_too(bed: Bed, kind: str) -> None:
    bed.registry = handlers.registry
    job_id = bed.enqueue(kind)
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED
    assert said(bed, job_id) == "".join(f"{nth} " for nth in range(50)) + "x" * 100_000


async def test_a_chunk_is_read_while_the_job_runs(bed: Bed) -> None:
    go_on = asyncio.Event()

    async def talk(ctx: Context) -> None:
        await ctx.stream().write("begun")
        await go_on.wait()

    job_id = bed.enqueue(bed.handle(talk))
    async with bed.working():
        await until(lambda: said(bed, job_id) == "begun")
        go_on.set()
        await until(lambda: bed.job(job_id).state is State.SUCCEEDED)


@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_what_was_written_before_a_bad_end_is_there(bed: Bed, end: str) -> None:
    async def talk(ctx: Context) -> None:
        await ctx.stream().write("last words")
        if end == "fail":
            raise ValueError("broken")
        await asyncio.Event().wait()

    job_id = bed.enqueue(bed.handle(talk), max_attempts=1)
    async with bed.working():
        await until(lambda: bed.job(job_id).state not in (State.QUEUED, State.LEASED))
        if end == "cancel":
            bed.store.do(Cancel([job_id], "test", "enough"))
        await until(lambda: bed.job(job_id).finished_at is not None)

    assert said(bed, job_id) == "last words"
    page = bed.store.do(ReadStream(job_id, "output"))
    assert page is not None
    assert page.is_ended


async def test_a_second_attempt_begins_anew_and_readers_are_told(bed: Bed) -> None:
    bed.queue(AT_ONCE)

    async def talk(ctx: Context) -> None:
        await ctx.stream().write(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("broken")

    job_id = bed.enqueue(bed.handle(talk))
    await bed.drain()

    assert [(one.kind, one.text) for one in chunks(bed, job_id)] == [
        ("text", "attempt 1"),
        ("reset", ""),
        ("text", "attempt 2"),
    ]


async def test_a_long_text_is_written_whole_and_in_order(bed: Bed) -> None:
    lines = "".join(f"line {nth}\n" for nth in range(200_000))  # more than one request takes

    async def talk(ctx: Context) -> None:
        await ctx.stream().write("x" * 1_500_000)
        await ctx.stream("lines").write(lines)

    job_id = bed.enqueue(bed.handle(talk))
    await bed.drain()

    assert said(bed, job_id) == "x" * 1_500_000
    assert said(bed, job_id, "lines") == lines


async def test_a_stream_of_far_too_much_is_cut_and_the_job_goes_on(bed: Bed) -> None:
    """About 40 MB through a worker that holds little of it at a time."""

    async def flood(ctx: Context) -> int:
        for _ in range(400):
            await ctx.stream().write("x" * 100_000)
            assert ctx.outgoing.chars <= 200_000
        return 1

    job_id = bed.enqueue(bed.handle(flood))
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED
    found = chunks(bed, job_id)
    assert found[-1].kind == "truncated"
    assert sum(len(one.text) for one in found) <= 8 * 1024 * 1024
    assert "stream_full" in bed.log.names()


async def test_secrets_are_taken_out(bed: Bed) -> None:
    async def talk(ctx: Context) -> None:
        await ctx.stream().write("password=hunter22222 and done")

    job_id = bed.enqueue(bed.handle(talk))
    await bed.drain()

    assert "hunter" not in said(bed, job_id)
    assert "and done" in said(bed, job_id)


async def test_jobs_of_one_worker_share_requests(bed: Bed) -> None:
    requests = []
    ado = bed.store.ado

    async def counted(request: Request[Any]) -> Any:
        if isinstance(request, AppendStreams):
            requests.append(len({chunk.job_id for chunk in request.chunks}))
        return await ado(request)

    gate = asyncio.Barrier(8)

    async def talk(ctx: Context) -> None:
        await gate.wait()
        await ctx.stream().write("x")
        await gate.wait()

    bed.store.ado = counted  # type: ignore[method-assign]
    kind = bed.handle(talk)
    jobs = [bed.enqueue(kind) for _ in range(8)]
    await bed.drain(concurrency=8)

    assert [said(bed, job_id) for job_id in jobs] == ["x"] * 8
    assert sum(requests) == 8
    assert len(requests) <= 4


async def test_a_job_without_streams_pays_no_request(bed: Bed) -> None:
    seen = []
    ado = bed.store.ado

    async def counted(request: Request[Any]) -> Any:
        seen.append(type(request).__name__)
        return await ado(request)

    async def quiet(ctx: Context) -> None:
        assert ctx.attempt == 1

    bed.store.ado = counted  # type: ignore[method-assign]
    bed.enqueue(bed.handle(quiet))
    await bed.drain()

    assert "AppendStreams" not in seen
