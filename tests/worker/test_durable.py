"""Durable handlers on real stores: steps, waits and children, in tasks, threads and processes of their own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import tenure
from tenure.handler.context import Context
from tenure.model.ids import JobId, WorkerId
from tenure.model.outcome import Released
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.step import NewStep, Step
from tenure.store.contract import Cancel, Claim, Request, Settle
from tenure.store.flow import ListSteps, RecordSteps, Signal
from tenure.store.queries import ListJobs
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.children import crew as handlers
from tests.worker.crews import words
from tests.worker.trouble import Troubled, as_store

pytestmark = pytest.mark.anyio


def steps_of(bed: Bed, job_id: JobId) -> dict[str, Step]:
    return {step.key: step for step in bed.store.do(ListSteps(job_id))}


def send(bed: Bed, key: str, value: Any = None, **terms: Any) -> bool:
    return bed.store.do(Signal(key, json.dumps(value), "test", **terms)).is_taken


def state_of(bed: Bed, job_id: JobId, state: str) -> Callable[[], bool]:
    return lambda: bed.job(job_id).state == state


async def test_an_attempt_goes_on_where_the_one_before_failed(bed: Bed) -> None:
    calls: Counter[str] = Counter()

    def call(name: str) -> str:
        calls[name] += 1
        return name.upper()

    async def order(ctx: Context) -> list[str]:
        found = [await ctx.step(name, call, name) for name in ("quote", "price")]
        if ctx.attempt == 1 and calls["broke"] == 0:
            calls["broke"] += 1
            raise ValueError("the network is down")
        found.append(await ctx.step("order", call, "order"))
        return found

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    await bed.drain()

    assert bed.job(job_id).result == ["QUOTE", "PRICE", "ORDER"]
    assert calls == {"quote": 1, "price": 1, "order": 1, "broke": 1}
    assert [step.key for step in steps_of(bed, job_id).values()] == ["quote", "price", "order"]


async def test_a_sync_handler_has_steps_and_waits_too(bed: Bed) -> None:
    calls: Counter[str] = Counter()

    def quote() -> str:
        calls["quote"] += 1
        return "disc"

    def order(ctx: Context) -> Any:
        calls["runs"] += 1
        part = ctx.step("quote", quote)
        paid = ctx.wait_for("paid")
        return [part, paid, ctx.step("ship", lambda: "shipped")]

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "waiting"))
        await asyncio.to_thread(send, bed, "paid", {"eur": 3})
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == ["disc", {"eur": 3}, "shipped"]
    assert calls == {"runs": 2, "quote": 1}
    assert bed.job(job_id).attempt <= 1
    assert bed.attempts(job_id) == [], "a suspend is no attempt that went badly"


async def test_a_signal_may_come_before_the_wait(bed: Bed) -> None:
    async def order(ctx: Context) -> Any:
        return await ctx.wait_for("paid:7", returns=int)

    kind = bed.handle(order, is_durable=True)
    assert send(bed, "paid:7", 12)
    assert not send(bed, "paid:7", 13)
    job_id = bed.enqueue(kind)
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == 12


async def test_the_first_of_two_signals_ends_the_wait(bed: Bed) -> None:
    async def order(ctx: Context) -> Any:
        found = await ctx.wait_for("paid", "refused")
        return [found.key, found.value]

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "waiting"))
        await asyncio.to_thread(send, bed, "refused", "no money")
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == ["refused", "no money"]


async def test_each_wait_takes_the_oldest_of_queued_signals(bed: Bed) -> None:
    async def order(ctx: Context) -> Any:
        return [await ctx.wait_for("item", key=n) for n in range(3)]

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    for n in (1, 2, 3):
        send(bed, "item", n, scope="queue")
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == [1, 2, 3]


async def test_a_wait_that_takes_too_long_answers_its_default_and_a_sleep_ends_at_its_time(bed: Bed) -> None:
    async def order(ctx: Context) -> Any:
        first = await ctx.wait_for("never", timeout=0.3, default="nothing came")
        before = ctx.now()
        await ctx.sleep("cool-off", seconds=2)
        return [first, (ctx.now("after") - before).total_seconds() >= 2]

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "waiting"))
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == ["nothing came", True]


async def test_a_handler_that_catches_everything_waits_all_the_same(bed: Bed, caplog: pytest.LogCaptureFixture) -> None:
    async def careless(ctx: Context) -> str:
        try:
            await ctx.wait_for("paid")
        except BaseException:  # noqa: BLE001 - what this test is about
            return "done"
        return "paid"

    def also_careless(ctx: Context) -> str:
        try:
            ctx.wait_for("paid")
        except BaseException:  # noqa: BLE001 - what this test is about
            raise ValueError("something else") from None
        return "paid"

    kinds = [bed.handle(function, is_durable=True) for function in (careless, also_careless)]
    jobs = [bed.enqueue(kind, max_attempts=1) for kind in kinds]
    with caplog.at_level(logging.WARNING, "tenure.job"):
        await bed.drain()

    assert [bed.job(one).state for one in jobs] == ["waiting", "waiting"]
    told = [record.getMessage() for record in caplog.records if "waits all the same" in record.getMessage()]
    assert len(told) == 2
    send(bed, "paid")
    async with bed.working():
        for one in jobs:
            await until(state_of(bed, one, "succeeded"))


async def test_two_waits_at_once_are_an_error_of_the_handler(bed: Bed) -> None:
    async def both(ctx: Context) -> None:
        await asyncio.gather(ctx.wait_for("a"), ctx.wait_for("b"))

    job_id = bed.enqueue(bed.handle(both, is_durable=True), max_attempts=1)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, steps_of(bed, job_id)) == ("dead", {})
    assert "not its own" in (job.last_error or "")


@pytest.mark.parametrize("value", ["set", "large"])
async def test_a_result_that_cannot_be_recorded_ends_the_job_and_nothing_is_written(bed: Bed, value: str) -> None:
    async def order(ctx: Context) -> None:
        await ctx.step("quote", lambda: {1} if value == "set" else "x" * 2_000_000)

    job_id = bed.enqueue(bed.handle(order, is_durable=True), max_attempts=3)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.failure_class, job.attempt) == ("failed", "permanent", 1)
    assert "Step 'quote'" in (job.last_error or "")
    assert steps_of(bed, job_id) == {}


class Quote(BaseModel):
    eur: int


async def test_a_step_that_does_not_fit_its_type_any_more_is_stale(bed: Bed) -> None:
    shape: list[Any] = [dict]

    async def order(ctx: Context) -> Any:
        quote = await ctx.step("quote", lambda: {"usd": 4} if shape[0] is dict else {"eur": 3}, returns=shape[0])
        if shape[0] is dict:
            shape[0] = Quote
            raise ValueError("a deploy comes in between")
        return quote.eur

    job_id = bed.enqueue(bed.handle(order, is_durable=True), max_attempts=2)
    await bed.drain()
    job = bed.job(job_id)
    assert (job.state, job.failure_class) == ("dead", "stale_step")
    assert "'quote'" in (job.last_error or "")


async def test_progress_gives_attempts_back_and_a_loop_without_progress_dies(bed: Bed) -> None:
    fallen: Counter[int] = Counter()

    async def steady(ctx: Context) -> int:
        for n in range(6):
            await ctx.step("part", lambda: 1, key=n)
            if not fallen[n]:
                fallen[n] += 1
                raise ValueError("a deploy")
        return 6

    async def stuck(ctx: Context) -> None:
        await ctx.step("only", lambda: 1)
        raise ValueError("again")

    well = bed.enqueue(bed.handle(steady, is_durable=True), max_attempts=2)
    ill = bed.enqueue(bed.handle(stuck, is_durable=True), max_attempts=2)
    await bed.drain()

    assert bed.job(well).result == 6
    assert bed.job(ill).state == "dead"


async def test_more_steps_than_come_with_a_grant_are_read_before_the_handler_runs(bed: Bed) -> None:
    calls: Counter[int] = Counter()

    def page(n: int) -> str:
        calls[n] += 1
        return "x" * 100_000

    async def read(ctx: Context) -> int:
        total = 0
        for n in range(8):
            total += len(await ctx.step("page", page, n, key=n))
        await ctx.wait_for("go")
        return total

    send(bed, "go")
    job_id = bed.enqueue(bed.handle(read, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == 800_000
    assert set(calls.values()) == {1}


# --- children ---


async def double(payload: int) -> int:
    return 2 * payload


async def fall(payload: int) -> int:
    raise tenure.Permanent(f"child {payload} cannot")


async def test_children_are_created_and_gathered(bed: Bed) -> None:
    async def parent(ctx: Context) -> Any:
        one, two = ctx.spawn("one", "double", 1), ctx.spawn("two", "double", 2)
        return await ctx.gather(one, two)

    bed.handle(double)
    job_id = bed.enqueue(bed.handle(parent, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == [2, 4]
    children = bed.store.do(ListJobs(parent_id=job_id)).items
    assert sorted(child.result for child in children) == [2, 4]


async def test_a_failed_child_ends_its_parent_unless_it_is_tolerated(bed: Bed) -> None:
    async def strict(ctx: Context) -> None:
        await ctx.gather(ctx.spawn("good", "double", 1), ctx.spawn("bad", "fall", 7))

    def lenient(ctx: Context) -> Any:
        good, bad = ctx.gather(ctx.spawn("good", "double", 1), ctx.spawn("bad", "fall", 7), tolerate=1)
        return [good, bad.child.state, bad.dead_letter_id is not None]

    for child in (double, fall):
        bed.handle(child)
    ended = bed.enqueue(bed.handle(strict, is_durable=True))
    tolerant = bed.enqueue(bed.handle(lenient, is_durable=True))
    async with bed.working():
        await until(state_of(bed, ended, "failed"))
        await until(state_of(bed, tolerant, "succeeded"))

    assert "child 7 cannot" in (bed.job(ended).last_error or "")
    assert bed.job(tolerant).result == [2, "failed", True]


async def test_the_first_child_that_succeeds_ends_the_wait_and_the_others_are_cancelled(bed: Bed) -> None:
    async def slow(ctx: Context) -> None:
        await ctx.wait_for("never")

    async def parent(ctx: Context) -> Any:
        children = [ctx.spawn("slow", "slow"), ctx.spawn("bad", "fall", 1), ctx.spawn("quick", "double", 4)]
        found = await ctx.first(*children)
        return [found.position, found.result]

    for child in (double, fall):
        bed.handle(child)
    bed.handle(slow, is_durable=True)
    job_id = bed.enqueue(bed.handle(parent, is_durable=True))
    async with bed.working(maintain=True):
        await until(state_of(bed, job_id, "succeeded"))
        (loser,) = bed.store.do(ListJobs(parent_id=job_id, kinds=["slow"])).items
        await until(state_of(bed, loser.id, "cancelled"))

    assert bed.job(job_id).result == [2, 8]


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_map_counts_its_children_and_reads_their_results_in_pages(bed: Bed, mode: str) -> None:
    async def apart(ctx: Context) -> Any:
        done = await ctx.map("all", "double", range(7), window=3)
        return [done.counts, [one.result async for one in done.results()]]

    def blocking(ctx: Context) -> Any:
        done = ctx.map("all", "double", range(7), window=3)
        return [done.counts, [one.result for one in done.results()]]

    bed.handle(double)
    job_id = bed.enqueue(bed.handle(apart if mode == "async" else blocking, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    counts = {"total": 7, "succeeded": 7, "failed": 0, "cancelled": 0}
    assert bed.job(job_id).result == [counts, [0, 2, 4, 6, 8, 10, 12]]


async def test_a_map_tolerates_a_share_of_failures_and_names_them(bed: Bed) -> None:
    async def some(payload: int) -> int:
        if payload % 5 == 0:
            raise tenure.Permanent(f"{payload} cannot")
        return payload

    async def parent(ctx: Context) -> Any:
        done = await ctx.map("all", "some", list(range(10)), tolerate="20%")
        return [done.failed, [one.position async for one in done.failures()]]

    bed.handle(some)
    job_id = bed.enqueue(bed.handle(parent, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    assert bed.job(job_id).result == [2, [0, 5]]


async def test_cancelling_a_parent_reaches_its_children_but_not_detached_ones(bed: Bed) -> None:
    async def child(ctx: Context) -> None:
        await ctx.wait_for("never")

    async def parent(ctx: Context) -> None:
        ctx.spawn("apart", "child", detached=True)
        await ctx.gather(*(ctx.spawn("part", "child", key=n) for n in range(3)))

    bed.handle(child, is_durable=True)
    job_id = bed.enqueue(bed.handle(parent, is_durable=True))

    def children(state: str) -> int:
        return len(bed.store.do(ListJobs(parent_id=job_id, states=[state])).items)

    async with bed.working(maintain=True):
        await until(lambda: bed.job(job_id).state == "waiting" and children("waiting") == 4)
        await asyncio.to_thread(bed.store.do, Cancel([job_id], "test", "not wanted"))
        await until(lambda: children("cancelled") == 3)

    assert bed.job(job_id).state == "cancelled"
    assert children("waiting") == 1


# --- undo ---


async def test_what_is_armed_is_undone_in_reverse_order_before_the_job_ends_badly(bed: Bed) -> None:
    undone: list[str] = []

    async def trip(ctx: Context) -> None:
        for part in ("train", "hotel", "car"):
            ctx.on_failure(f"cancel-{part}", undone.append, part)
            await ctx.step(part, lambda: 1)
        raise tenure.Permanent("no visa")

    def short_trip(ctx: Context) -> None:
        ctx.on_failure("cancel", undone.append, "last attempt")
        ctx.step("book", lambda: 1)
        raise ValueError("the network is down")

    async def good_trip(ctx: Context) -> str:
        ctx.on_failure("cancel", undone.append, "never")
        return "there"

    refused = bed.enqueue(bed.handle(trip, is_durable=True), max_attempts=3)
    await bed.drain()
    assert undone == ["car", "hotel", "train"]
    assert (bed.job(refused).state, bed.job(refused).failure_class) == ("failed", "permanent")
    assert "no visa" in (bed.job(refused).last_error or "")
    states = [step.state for step in steps_of(bed, refused).values() if step.kind == "undo"]
    assert states == ["undone"] * 3

    undone.clear()
    spent = bed.enqueue(bed.handle(short_trip, is_durable=True), max_attempts=2)
    well = bed.enqueue(bed.handle(good_trip, is_durable=True))
    await bed.drain()
    assert undone == ["last attempt"]
    assert (bed.job(spent).state, bed.job(spent).failure_class) == ("failed", "error")
    assert bed.job(well).state == "succeeded"


async def test_an_undo_that_fails_is_tried_again_and_is_a_persons_case_in_the_end(bed: Bed) -> None:
    calls: Counter[str] = Counter()

    def stubborn() -> None:
        calls["stubborn"] += 1
        raise OSError("the hotel does not answer")

    def shaky() -> None:
        calls["shaky"] += 1
        if calls["shaky"] == 1:
            raise OSError("once")

    async def trip(ctx: Context) -> None:
        ctx.on_failure("hotel", stubborn)
        ctx.on_failure("train", shaky)
        await ctx.step("book", lambda: calls.update(["book"]))
        raise tenure.Permanent("no visa")

    job_id = bed.enqueue(bed.handle(trip, is_durable=True), max_attempts=3)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.failure_class) == ("dead", "compensation")
    assert "'hotel'" in (job.last_error or "")
    assert "no visa" in (job.last_error or "")
    assert (calls["book"], calls["shaky"]) == (1, 2)
    assert calls["stubborn"] >= 2
    states = {step.key: step.state for step in steps_of(bed, job_id).values() if step.kind == "undo"}
    assert states == {"undo/hotel": "armed", "undo/train": "undone"}


async def test_cancelling_a_job_that_runs_undoes_what_it_armed(bed: Bed) -> None:
    undone: list[str] = []
    begun = asyncio.Event()

    async def trip(ctx: Context) -> None:
        ctx.on_failure("hotel", undone.append, "hotel")
        await ctx.step("book", lambda: 1)
        begun.set()
        await asyncio.sleep(60)

    job_id = bed.enqueue(bed.handle(trip, is_durable=True))
    async with bed.working():
        await begun.wait()
        await asyncio.to_thread(bed.store.do, Cancel([job_id], "test", "not wanted"))
        await until(state_of(bed, job_id, "cancelled"))

    assert undone == ["hotel"]


async def test_a_job_that_is_not_done_by_its_deadline_is_undone_and_fails(bed: Bed) -> None:
    undone: list[str] = []

    async def trip(ctx: Context) -> None:
        ctx.on_failure("hotel", undone.append, "hotel")
        await ctx.step("book", lambda: 1)
        await ctx.wait_for("visa", timeout=600)

    job_id = bed.enqueue(bed.handle(trip, is_durable=True, deadline_seconds=0.5))
    async with bed.working():
        await until(state_of(bed, job_id, "failed"))

    assert bed.job(job_id).failure_class == "deadline"
    assert undone == ["hotel"]


async def test_a_job_that_waits_for_its_next_attempt_fails_when_its_deadline_has_passed(bed: Bed) -> None:
    calls: list[str] = []

    async def trip(ctx: Context) -> None:
        calls.append("run")
        await ctx.step("book", calls.append, "book")
        if calls.count("run") == 1:
            raise tenure.RetryAfter(2.0, "the line is busy")
        await ctx.step("pay", calls.append, "pay")

    job_id = bed.enqueue(bed.handle(trip, is_durable=True, deadline_seconds=1.0))
    async with bed.working():
        await until(state_of(bed, job_id, "failed"))

    assert bed.job(job_id).failure_class == "deadline"
    assert calls == ["run", "book", "run"]


async def test_a_short_sleep_before_an_error_gives_no_attempts_anew(bed: Bed) -> None:
    """The last attempt recorded its short sleep at its end, which counted as progress: attempts were counted anew."""
    calls: list[int] = []

    async def nap(ctx: Context) -> None:
        calls.append(ctx.attempt)
        await ctx.sleep("nap", 0.01)
        raise ValueError("no")

    bed.queue(QueuePolicy(backoff=Backoff(shape="none")))
    job_id = bed.enqueue(bed.handle(nap, is_durable=True))
    async with bed.working():
        await until(state_of(bed, job_id, "dead"))

    assert calls == [1, 2, 3]


async def test_nothing_new_begins_in_a_stretch_that_outlasts_the_deadline(bed: Bed) -> None:
    async def trip(ctx: Context) -> None:
        await ctx.step("book", lambda: 1)
        await asyncio.sleep(0.3)
        await ctx.step("pay", lambda: 1)

    job_id = bed.enqueue(bed.handle(trip, is_durable=True, deadline_seconds=0.2))
    async with bed.working():
        await until(state_of(bed, job_id, "failed"))

    assert set(steps_of(bed, job_id)) == {"$deadline", "book"}


async def test_a_first_stretch_that_outlasts_the_deadline_is_stopped(bed: Bed) -> None:
    ended: list[str] = []

    async def trip(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("stopped")

    job_id = bed.enqueue(bed.handle(trip, is_durable=True, deadline_seconds=0.2))
    async with bed.working():
        await until(state_of(bed, job_id, "failed"))

    assert (bed.job(job_id).failure_class, ended) == ("deadline", ["stopped"])


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_handler_that_is_at_work_when_the_deadline_passes_is_stopped_and_undone(bed: Bed, mode: str) -> None:
    """A deadline inside a later stretch was noticed by the next one only, however long that one ran."""
    undone: list[str] = []

    async def trip(ctx: Context) -> None:
        ctx.on_failure("hotel", undone.append, "hotel")
        await ctx.step("book", lambda: 1)
        await asyncio.sleep(3600)

    def drive(ctx: Context) -> None:
        ctx.on_failure("hotel", undone.append, "hotel")
        ctx.step("book", lambda: 1)
        ctx.cancelled.wait(3600)
        ctx.check()

    handler = trip if mode == "async" else drive
    job_id = bed.enqueue(bed.handle(handler, is_durable=True, deadline_seconds=0.1))
    bed.queue(QueuePolicy(lease_seconds=1.5, backoff=Backoff(shape="none")))
    [grant] = bed.store.do(Claim(WorkerId("before"), ["default"], 1))
    deadline = NewStep("$deadline", "sleep", "open", due_seconds=0.1)
    before = (deadline, NewStep("undo/hotel", "undo", "armed"), NewStep("book", value="1"))
    bed.store.do(RecordSteps(job_id, grant.token, before))
    bed.store.do(Settle([Released(job_id, grant.token)]))
    async with bed.working():
        await until(state_of(bed, job_id, "failed"))

    assert bed.job(job_id).failure_class == "deadline"
    assert undone == ["hotel"]
    assert "overdue" in bed.log.names(job_id)


# --- processes of their own ---


@pytest.fixture
def isolated(bed: Bed) -> Bed:
    bed.registry = handlers.registry
    return bed


@pytest.mark.parametrize("kind", ["durable_sync", "durable_async"])
async def test_an_isolated_handler_has_steps_waits_and_children(isolated: Bed, kind: str, tmp_path: Path) -> None:
    bed, file = isolated, tmp_path / "notes"
    send(bed, "go", "now")
    job_id = bed.enqueue(kind, json.dumps({"file": str(file)}))
    async with bed.working():
        await until(state_of(bed, job_id, "succeeded"))

    result = bed.job(job_id).result
    assert result == {"step": "done", "signal": "now", "children": ["child", "child"], "same": True}
    assert len(words(file, "step")) == 1
    assert len(words(file, "run")) == 3


async def test_a_handler_that_is_not_wanted_any_more_once_its_steps_are_read_does_not_begin(bed: Bed) -> None:
    """Only the first look asked whether the job was to stop, so one that was cancelled during the reading of its many
    steps ran to its end."""
    begun: list[int] = []

    async def large(ctx: Context) -> None:
        begun.append(ctx.attempt)
        for number in range(4):
            await ctx.step(str(number), lambda: "x" * 100_000)
        if len(begun) == 1:
            raise ValueError("once more")

    store = bed.store
    bed.store = troubled = as_store(Troubled(store))
    job_id = bed.enqueue(bed.handle(large, is_durable=True))

    async def cancel(request: Request[Any]) -> None:
        if isinstance(request, ListSteps):
            store.do(Cancel([job_id], "ann", "not wanted"))
            await until(lambda: worker._run.held[job_id].interrupt)  # type: ignore[union-attr]

    troubled.meanwhile = cancel  # type: ignore[attr-defined]
    async with bed.working(heartbeat_seconds=0.05) as worker:
        await until(lambda: bed.job(job_id).state == "cancelled")

    assert begun == [1]
