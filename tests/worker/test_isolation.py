"""Handlers in processes of their own: what they return, how they die, and that nothing of them survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from tenure.errors import HandlerError
from tenure.handler.context import EVENTS_KEPT
from tenure.store.contract import Cancel
from tenure.store.queries import ListEvents, ListJobs
from tests.waiting import until, wait_until
from tests.worker.bed import Bed
from tests.worker.children import crew as handlers
from tests.worker.crews import crew, is_alive, words

pytestmark = pytest.mark.anyio


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture(autouse=True)
def isolated(bed: Bed) -> None:
    bed.registry = handlers.registry


def payload(notes: Path, **more: object) -> str:
    return json.dumps({"file": str(notes), **more})


async def test_an_isolated_handler_answers_from_a_process_of_its_own(bed: Bed, notes: Path) -> None:
    first = bed.enqueue("echo", payload(notes, say="grüß"))
    second = bed.enqueue("async_echo", payload(notes, say="async"))
    await bed.drain(concurrency=2)

    result = bed.job(first).result
    assert result["said"] == "grüß"
    assert result["pid"] != os.getpid()
    assert result["session"] != os.getsid(0)
    assert not is_alive(result["pid"])
    assert bed.job(second).result == "async"


async def test_events_of_a_process_that_speaks_too_quickly_are_counted_where_they_are_dropped(bed: Bed) -> None:
    """The worker keeps the last thousand that it has not written yet. Those before them vanished without a word."""
    told = 5 * EVENTS_KEPT
    job_id = bed.enqueue("chatter", json.dumps({"events": told}))
    await bed.drain()

    events = bed.store.do(ListEvents(job_id=job_id, limit=2 * told))
    kept = [event.data for event in events if event.kind == "custom"]
    dropped = [int(event.data["message"].split()[0]) for event in events if event.kind == "log"]
    assert kept == sorted(kept)
    assert kept[-1] == told - 1
    assert len(kept) + sum(dropped) == told
    assert dropped, "nothing was dropped, so nothing was tried"


async def test_a_process_may_serve_several_jobs(bed: Bed, notes: Path) -> None:
    jobs = [bed.enqueue("echo", payload(notes, say=n)) for n in range(4)]
    await bed.drain(concurrency=1, jobs_per_process=2)

    pids = [bed.job(job_id).result["pid"] for job_id in jobs]
    assert len(set(pids)) == 2


async def test_what_an_isolated_handler_says_reaches_the_job(bed: Bed, notes: Path, tmp_path: Path) -> None:
    job_id = bed.enqueue("talk", payload(notes))
    await bed.drain(artifacts_dir=tmp_path / "artifacts")

    job = bed.job(job_id)
    assert (job.state, job.result, job.progress, job.result_summary) == ("succeeded", "done", 0.25, "talked")
    assert (Path(job.artifacts_path or "") / "said.txt").read_text() == "x"
    assert [event.data["message"] for event in bed.store.do(ListEvents(job_id=job_id, kinds=["log"]))] == ["from afar"]
    (child,) = bed.store.do(ListJobs(parent_id=job_id)).items
    assert (child.kind, child.state) == ("quick", "queued")


async def test_a_segfault_is_dead_lettered_after_exactly_its_attempts_and_its_neighbours_finish(
    bed: Bed, notes: Path
) -> None:
    poison = bed.enqueue("segfault", payload(notes), max_attempts=3)
    neighbours = [bed.enqueue("quick", payload(notes)) for _ in range(5)]
    also_isolated = bed.enqueue("echo", payload(notes, say="fine"))
    await bed.drain(concurrency=3)

    job = bed.job(poison)
    assert (job.state, job.attempt, job.failure_class) == ("dead", 3, "crash")
    assert len(words(notes, "segfault")) == 3
    assert "SIGSEGV" in (job.last_error or "")
    assert [attempt.outcome for attempt in bed.attempts(poison)] == ["retried", "retried", "dead"]
    assert {bed.job(job_id).state for job_id in [*neighbours, also_isolated]} == {"succeeded"}


async def test_exceptions_and_exits_of_a_child_are_told_apart(bed: Bed, notes: Path) -> None:
    fallen = bed.enqueue("fall", payload(notes, say="a stone"), max_attempts=1)
    left = bed.enqueue("leave", payload(notes), max_attempts=1)
    await bed.drain()

    assert (bed.job(fallen).failure_class, bed.job(left).failure_class) == ("error", "crash")
    assert (bed.job(fallen).last_error or "").startswith("ValueError: fell over a stone\n")
    assert "exit code 7" in (bed.job(left).last_error or "")


async def test_a_time_limit_kills_the_whole_tree(bed: Bed, notes: Path) -> None:
    job_id = bed.enqueue("breed", payload(notes), max_attempts=1)
    await bed.drain()

    assert (bed.job(job_id).state, bed.job(job_id).failure_class) == ("dead", "timeout")
    ((_, daemon),) = words(notes, "daemon")
    assert not is_alive(int(daemon))


async def test_nothing_that_a_handler_started_outlives_it(bed: Bed, notes: Path) -> None:
    job_id = bed.enqueue("breed_and_return", payload(notes))
    await bed.drain(jobs_per_process=5)

    assert bed.job(job_id).result == "left it running"
    ((_, daemon),) = words(notes, "daemon")
    assert not is_alive(int(daemon))


async def test_a_cancel_request_kills_the_child(bed: Bed, notes: Path) -> None:
    job_id = bed.enqueue("linger", payload(notes))
    async with bed.working():
        await until(lambda: words(notes, "begun"))
        child = int(words(notes, "begun")[0][2])
        bed.store.do(Cancel([job_id], "ops", "enough"))
        await until(lambda: bed.job(job_id).state == "cancelled")
        assert not is_alive(child)


async def test_a_stop_reaches_the_child(bed: Bed, notes: Path) -> None:
    job_id = bed.enqueue("linger", payload(notes))
    async with bed.working(grace_seconds=10) as worker:
        await until(lambda: words(notes, "begun"))
        worker.stop()

    assert (bed.job(job_id).state, bed.job(job_id).attempt) == ("queued", 0)
    assert bed.attempts(job_id)[0].failure_class == "shutdown"


def test_children_die_with_a_worker_that_is_killed(bed: Bed, url: str, tmp_path: Path, notes: Path) -> None:
    bed.enqueue("breed", payload(notes))
    with crew(url, tmp_path) as worker:
        wait_until(lambda: words(notes, "daemon"))
        worker.send(signal.SIGKILL)
        worker.process.wait()
        daemon = int(words(notes, "daemon")[0][1])
        wait_until(lambda: not is_alive(daemon))


async def test_a_handler_that_no_process_could_find_is_refused_at_the_start(bed: Bed) -> None:
    def inside() -> None: ...

    fresh = Bed(bed.store)
    fresh.handle(inside, mode="process")
    with pytest.raises(HandlerError, match="top level"):
        fresh.worker()
    await asyncio.sleep(0)
