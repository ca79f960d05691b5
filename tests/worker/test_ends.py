"""Every way in which a handler can end, and what becomes of its job."""

from __future__ import annotations

import asyncio
import threading
import time
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tenure
from tenure.errors import StoreBusy
from tenure.handler.context import Context
from tenure.handler.signals import Parked, Parking, RateLimited
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Cancel, Exchange
from tenure.store.queries import ListEvents, ListJobs
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.trouble import Troubled, as_store

pytestmark = pytest.mark.anyio


async def test_what_a_handler_returns_is_the_result(bed: Bed) -> None:
    async def add(payload: dict[str, int]) -> dict[str, int]:
        return {"sum": payload["a"] + payload["b"]}

    job_id = bed.enqueue(bed.handle(add), '{"a": 1, "b": 2}')
    stats = await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.result, job.attempt) == ("succeeded", {"sum": 3}, 1)
    assert stats.completed == 1
    assert bed.attempts(job_id) == []


async def test_a_sync_handler_runs_in_a_thread(bed: Bed) -> None:
    def where() -> str:
        return threading.current_thread().name

    job_id = bed.enqueue(bed.handle(where))
    await bed.drain()

    assert bed.job(job_id).result.startswith("tenure-handler")


async def test_permanent_ends_the_job_at_once(bed: Bed) -> None:
    async def refuse() -> None:
        raise tenure.Permanent("the account is closed")

    job_id = bed.enqueue(bed.handle(refuse), max_attempts=5)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.attempt, job.failure_class) == ("failed", 1, "permanent")
    (letter,) = bed.letters(job_id)
    assert letter.final_error.startswith("Permanent: the account is closed\n")


async def test_retry_after_spends_an_attempt_and_sets_the_delay(bed: Bed) -> None:
    async def limited() -> None:
        raise tenure.RetryAfter(timedelta(minutes=5), "429")

    job_id = bed.enqueue(bed.handle(limited))
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.attempt, job.failure_class) == ("queued", 1, "rate_limited")
    assert timedelta(minutes=4) < job.run_at - datetime.now(UTC) <= timedelta(minutes=5)


async def test_snooze_spends_no_attempt(bed: Bed) -> None:
    async def later() -> None:
        raise tenure.Snooze(600, "not ready")

    job_id = bed.enqueue(bed.handle(later))
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)
    assert job.run_at > datetime.now(UTC) + timedelta(seconds=500)
    (attempt,) = bed.attempts(job_id)
    assert (attempt.outcome, attempt.failure_class, attempt.error) == ("released", "snoozed", "not ready")


async def test_rate_limited_spends_no_attempt_and_is_counted_apart(bed: Bed) -> None:
    async def busy() -> None:
        raise RateLimited(600, "429")

    job_id = bed.enqueue(bed.handle(busy))
    await bed.drain()

    assert (bed.job(job_id).state, bed.job(job_id).attempt) == ("queued", 0)
    assert bed.attempts(job_id)[0].failure_class == "rate_limited"


async def test_a_parked_job_waits_without_a_slot(bed: Bed) -> None:
    async def wait() -> None:
        raise Parked(Parking("approval"))

    job_id = bed.enqueue(bed.handle(wait))
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.waiting_for, job.attempt) == ("waiting", "approval", 0)


async def test_what_became_of_an_attempt_is_told_even_if_the_job_has_come_back_before(bed: Bed) -> None:
    async def fall() -> None:
        fetcher._groups.sleep()  # so that the exchange that settles this claims nothing by itself
        raise ValueError("no luck")

    kind = bed.handle(fall)
    store = Troubled(bed.store)
    is_armed = True

    async def let_the_next_grant_come_first(request: object) -> None:
        nonlocal is_armed
        # One that claims as well has taken all the room there is, and no other claim could come first.
        if is_armed and isinstance(request, Exchange) and request.outcomes and request.claim is None:
            is_armed = False
            before = fetcher.claimed
            fetcher.wake()
            await until(lambda: fetcher.claimed > before)

    store.meanwhile = let_the_next_grant_come_first
    bed.store = as_store(store)
    async with bed.working(concurrency=100) as worker:
        assert worker._run is not None
        fetcher = worker._run.fetcher
        job_id = await asyncio.to_thread(bed.enqueue, kind, max_attempts=4)
        await until(lambda: bed.job(job_id).state == "dead")

    assert not is_armed, "the race was staged"
    # The answer that was held back may be heard after the end of the next attempt.
    assert sorted(name for name in bed.log.names(job_id) if name in {"retried", "dead"}) == ["dead", *["retried"] * 3]
    assert worker.stats().completed == 0


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_an_exception_is_retried_until_attempts_are_spent(bed: Bed, mode: str) -> None:
    async def fall() -> None:
        raise ValueError("no luck with password=hunter2 at postgresql://me:hunter2@db/x")

    def fall_in_thread() -> None:
        raise ValueError("no luck with password=hunter2 at postgresql://me:hunter2@db/x")

    job_id = bed.enqueue(bed.handle(fall if mode == "async" else fall_in_thread, kind="fall"), max_attempts=3)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.attempt, job.failure_class) == ("dead", 3, "error")
    (letter,) = bed.letters(job_id)
    assert letter.final_error.startswith(
        "ValueError: no luck with password=[redacted] at postgresql://me:[redacted]@db/x"
    )
    assert "hunter2" not in "".join(attempt.error or "" for attempt in bed.attempts(job_id))
    assert "fall" in letter.final_error
    assert "run.py" not in letter.final_error
    assert [attempt.outcome for attempt in bed.attempts(job_id)] == ["retried", "retried", "dead"]
    assert bed.log.names(job_id).count("retried") == 2
    assert bed.log.names(job_id)[-1] == "dead"


async def test_system_exit_in_a_handler_does_not_end_the_worker(bed: Bed) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def fine() -> None: ...

    left = bed.enqueue(bed.handle(leave), max_attempts=1)
    other = bed.enqueue(bed.handle(fine))
    await bed.drain(concurrency=1)

    assert bed.job(left).state == "dead"
    assert bed.job(other).state == "succeeded"


async def test_an_async_handler_past_its_time_limit_is_cancelled(bed: Bed) -> None:
    was_cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    job_id = bed.enqueue(bed.handle(forever, timeout_seconds=0.05), max_attempts=1)
    await bed.drain()

    job = bed.job(job_id)
    assert was_cancelled.is_set()
    assert (job.state, job.failure_class) == ("dead", "timeout")
    assert "0.05 s" in (job.last_error or "")


async def test_a_thread_past_its_time_limit_keeps_its_lease_until_it_ends_and_has_failed(bed: Bed) -> None:
    def slow(ctx: Context) -> None:
        assert ctx.cancelled.wait(30)

    job_id = bed.enqueue(bed.handle(slow, timeout_seconds=0.05), max_attempts=1)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.failure_class) == ("dead", "timeout")


async def test_a_time_limit_that_is_not_reached_leaves_no_trace(bed: Bed) -> None:
    async def quick() -> None: ...

    kind = bed.handle(quick, timeout_seconds=3600)
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kind) for _ in range(300)])
    worker = bed.worker(drain=True)
    stats = await worker.run()

    assert stats.completed == 300


async def test_a_payload_that_does_not_fit_is_refused_with_the_path_of_the_field(bed: Bed) -> None:
    @dataclass
    class Order:
        amount: int

    async def order(payload: Order) -> None: ...

    job_id = bed.enqueue(bed.handle(order, payload=Order), '{"amount": "many"}', max_attempts=5)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.failure_class, job.attempt) == ("failed", "invalid_payload", 1)
    assert "$.amount" in (job.last_error or "")


async def test_a_kind_without_a_handler_is_rejected_where_the_queue_says_so(bed: Bed) -> None:
    bed.queue(QueuePolicy(on_unknown_kind="reject"), "strict")
    job_id = bed.enqueue("stranger", queue="strict")
    await bed.drain(queues=["strict"])

    job = bed.job(job_id)
    assert (job.state, job.failure_class) == ("failed", "no_handler")
    assert "'stranger'" in (job.last_error or "")


async def test_a_kind_without_a_handler_is_released_where_the_queue_says_so(bed: Bed) -> None:
    bed.queue(QueuePolicy(on_unknown_kind="release"), "patient")
    job_id = bed.enqueue("stranger", queue="patient")
    await bed.drain(queues=["patient"])

    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)
    assert job.run_at > datetime.now(UTC) + timedelta(seconds=10)


async def test_kinds_leave_others_alone(bed: Bed) -> None:
    async def mine() -> None: ...

    bed.handle(mine)
    other, own = bed.enqueue("theirs"), bed.enqueue("mine")
    await bed.drain(kinds=["mine"])

    assert bed.job(other).state == "queued"
    assert bed.job(own).state == "succeeded"


async def test_a_result_that_cannot_be_stored_is_a_dead_letter_and_not_a_retry(bed: Bed) -> None:
    async def odd() -> object:
        return object()

    job_id = bed.enqueue(bed.handle(odd), max_attempts=5)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("failed", 1)
    assert "The result" in (job.last_error or "")


class _Unwritable:
    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("no words")


class _SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_result_or_an_error_that_breaks_when_it_is_put_into_words_ends_its_job_and_no_runner(
    bed: Bed, mode: str
) -> None:
    """The only runner used to die of either, and the job was held for ever."""

    def end(payload: dict[str, bool]) -> object:
        if payload["fails"]:
            raise _SpeechlessError
        return _Unwritable()

    async def aend(payload: dict[str, bool]) -> object:
        return end(payload)

    kind = bed.handle(aend if mode == "async" else end)
    unwritable = bed.enqueue(kind, '{"fails": false}', max_attempts=3)
    speechless = bed.enqueue(kind, '{"fails": true}', max_attempts=1)
    await asyncio.wait_for(bed.drain(concurrency=1), 30)

    assert (bed.job(unwritable).state, bed.job(unwritable).attempt) == ("failed", 1)
    assert str(bed.job(unwritable).last_error).startswith(
        "InvalidResult: The result cannot be written as JSON: RuntimeError: no words. The work itself was done."
    )
    assert bed.job(speechless).state == "dead"
    assert str(bed.job(speechless).last_error).startswith("_SpeechlessError\n")


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_payload_that_the_handler_itself_gets_wrong_is_an_error_and_no_rejection(bed: Bed, mode: str) -> None:
    def enqueue_nonsense(ctx: Context) -> None:
        ctx.enqueue("child", {"ratio": float("nan")})

    async def aenqueue_nonsense(ctx: Context) -> None:
        enqueue_nonsense(ctx)

    kind = bed.handle(aenqueue_nonsense if mode == "async" else enqueue_nonsense)
    job_id = bed.enqueue(kind, max_attempts=1)
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.failure_class) == ("dead", "error")


async def test_a_database_that_was_away_for_the_handler_burns_no_attempt(bed: Bed) -> None:
    async def unlucky() -> None:
        raise StoreBusy("the database is locked")

    job_id = bed.enqueue(bed.handle(unlucky))
    await bed.drain()

    job = bed.job(job_id)
    assert (job.state, job.attempt) == ("queued", 0)


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_cancel_request_stops_the_handler(bed: Bed, mode: str) -> None:
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    def endless_in_thread(ctx: Context) -> None:
        begun.set()
        while True:
            ctx.cancelled.wait(30)
            ctx.check()

    job_id = bed.enqueue(bed.handle(endless if mode == "async" else endless_in_thread, kind="endless"))
    async with bed.working():
        await until(begun.is_set)
        bed.store.do(Cancel([job_id], "ops", "not wanted"))
        await until(lambda: bed.job(job_id).state == "cancelled")

    assert bed.log.names(job_id)[-1] == "cancelled"


async def test_a_handler_that_survives_its_cancellation_still_ends_cancelled(bed: Bed) -> None:
    begun = asyncio.Event()

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "I finished anyway"
        return ""

    async def after() -> None: ...

    bed.handle(after)
    job_id = bed.enqueue(bed.handle(stubborn))
    async with bed.working(concurrency=1):
        await begun.wait()
        bed.store.do(Cancel([job_id], "ops", "not wanted"))
        await until(lambda: bed.job(job_id).state == "cancelled")
        following = bed.enqueue("after")
        await until(lambda: bed.job(following).state == "succeeded")


async def test_follow_ups_are_committed_with_the_completion(bed: Bed) -> None:
    async def parent(ctx: Context) -> None:
        ctx.enqueue("child", {"n": 1}, queue="later", priority=7)
        if ctx.attempt == 1:
            raise ValueError("once")

    bed.queue(QueuePolicy(), "later")
    job_id = bed.enqueue(bed.handle(parent), max_attempts=2)
    await bed.drain()

    (child,) = bed.store.do(ListJobs(parent_id=job_id)).items
    assert (child.kind, child.queue, child.priority, child.payload) == ("child", "later", 7, {"n": 1})
    assert bed.job(job_id).state == "succeeded"


async def test_a_drain_runs_follow_ups_too(bed: Bed) -> None:
    async def chain(payload: dict[str, int], ctx: Context) -> None:
        if payload["left"]:
            ctx.enqueue("chain", {"left": payload["left"] - 1})

    bed.enqueue(bed.handle(chain), '{"left": 5}')
    stats = await bed.drain()

    assert stats.completed == 6


async def test_a_follow_up_that_is_refused_fails_its_job_and_no_other(bed: Bed) -> None:
    async def bad(ctx: Context) -> None:
        ctx.enqueue("child", queue="nowhere")

    async def good() -> None: ...

    bed.handle(good)
    job_id = bed.enqueue(bed.handle(bad), max_attempts=1)
    others = [bed.enqueue("good") for _ in range(5)]
    await bed.drain()

    job = bed.job(job_id)
    assert job.state == "dead"
    assert "nowhere" in (job.last_error or "")
    assert {bed.job(other).state for other in others} == {"succeeded"}


async def test_a_context_shows_the_job_and_keeps_what_is_said(bed: Bed, tmp_path: Any) -> None:
    seen: dict[str, Any] = {}

    async def talk(payload: Any, ctx: Context) -> str:
        seen.update(id=ctx.id, attempt=ctx.attempt, most=ctx.max_attempts, token=ctx.token, kind=ctx.kind)
        ctx.progress(0.5, "half")
        ctx.logger.info("step %d", 1)
        ctx.log("step 2", "warning", rows=3)
        ctx.set_result_summary("two steps")
        (ctx.artifacts / "out.txt").write_text("x")
        ctx.progress(1.0)
        return "done"

    job_id = bed.enqueue(bed.handle(talk), max_attempts=4)
    await bed.drain(artifacts_dir=tmp_path / "artifacts")

    job = bed.job(job_id)
    assert seen == {"id": job_id, "attempt": 1, "most": 4, "token": job.token, "kind": "talk"}
    assert (job.result, job.result_summary, job.progress) == ("done", "two steps", 1.0)
    assert job.artifacts_path == str(tmp_path / "artifacts" / job_id)
    said = [event.data["message"] for event in bed.store.do(ListEvents(job_id=job_id, kinds=["log"]))]
    assert said == ["step 1", "step 2"]


async def test_secrets_are_taken_out_of_a_jobs_own_log(bed: Bed) -> None:
    async def talk(ctx: Context) -> None:
        ctx.log(
            "as me with password=hunter2", url="postgresql://me:hunter2@db/x", api_key="hunter2", note="a=b", rows=3
        )

    job_id = bed.enqueue(bed.handle(talk))
    await bed.drain()

    (event,) = bed.store.do(ListEvents(job_id=job_id, kinds=["log"]))
    assert event.data["message"] == "as me with password=[redacted]"
    shown = {"url": "postgresql://me:[redacted]@db/x", "api_key": "[redacted]", "note": "a=b", "rows": 3}
    assert event.data["fields"] == shown


async def test_what_a_failing_handler_said_is_kept_too(bed: Bed) -> None:
    async def moan(ctx: Context) -> None:
        ctx.log("it hurts")
        raise ValueError("ow")

    job_id = bed.enqueue(bed.handle(moan), max_attempts=1)
    await bed.drain()

    assert [event.data["message"] for event in bed.store.do(ListEvents(job_id=job_id, kinds=["log"]))] == ["it hurts"]


async def test_progress_shows_while_the_handler_runs(bed: Bed) -> None:
    go_on = asyncio.Event()

    async def slow(ctx: Context) -> None:
        ctx.progress({"done": 3, "of": 10})
        ctx.log("still at it")
        await go_on.wait()

    job_id = bed.enqueue(bed.handle(slow))
    async with bed.working():
        await until(lambda: bed.job(job_id).progress == {"done": 3, "of": 10})
        await until(lambda: bed.store.do(ListEvents(job_id=job_id, kinds=["log"])))
        go_on.set()


_tenant: ContextVar[str | None] = ContextVar("tenant", default=None)


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_context_variables_do_not_leak_into_the_next_job(bed: Bed, mode: str) -> None:
    seen: list[str | None] = []

    async def setter() -> None:
        seen.append(_tenant.get())
        _tenant.set("acme")

    def setter_in_thread() -> None:
        seen.append(_tenant.get())
        _tenant.set("acme")

    kind = bed.handle(setter if mode == "async" else setter_in_thread, kind="setter")
    bed.enqueue_many([NewJob(id=new_job_id(), kind=kind) for _ in range(50)])
    await bed.drain(concurrency=1)

    assert seen == [None] * 50


async def test_a_context_variable_that_was_put_back_or_set_after_a_wait_does_not_leak_either(bed: Bed) -> None:
    seen: list[str | None] = []

    async def setter(payload: dict[str, bool]) -> None:
        seen.append(_tenant.get())
        token = _tenant.set("acme")
        if payload["waits"]:
            await asyncio.sleep(0)
            _tenant.set("globex")
        else:
            _tenant.reset(token)

    kind = bed.handle(setter)
    bed.enqueue_many(
        [NewJob(id=new_job_id(), kind=kind, payload=waits) for waits in ('{"waits": true}', '{"waits": false}') * 10]
    )
    await bed.drain(concurrency=2)

    assert seen == [None] * 20


async def test_a_handler_that_blocks_in_a_thread_does_not_hold_up_its_quick_neighbours(bed: Bed) -> None:
    """Quick kinds are handed to threads in chunks; one job of a chunk that turns out slow must not keep the others."""
    stuck, go_on = threading.Event(), threading.Event()

    def usually_quick(payload: dict[str, bool]) -> None:
        if payload.get("slow"):
            stuck.set()
            assert go_on.wait(10)

    kind = bed.handle(usually_quick)
    quick = [NewJob(id=new_job_id(), kind=kind) for _ in range(400)]
    slow = NewJob(id=new_job_id(), kind=kind, payload='{"slow": true}')
    bed.enqueue_many([*quick[:200], slow, *quick[200:]])
    async with bed.working(concurrency=4):
        await until(stuck.is_set)
        await until(lambda: bed.log.names().count("completed") == 400)
        assert bed.job(slow.id).state == "running"
        go_on.set()
        await until(lambda: bed.job(slow.id).state == "succeeded")


async def test_a_lease_that_was_lost_leaves_nothing_of_the_handler(bed: Bed) -> None:
    async def loser(ctx: Context) -> None:
        ctx.enqueue("child")
        raise tenure.errors.LeaseLost("passed on")

    job_id = bed.enqueue(bed.handle(loser))
    async with bed.working(lease_seconds=30) as worker:
        await until(lambda: worker.stats().lost == 1)

        assert bed.job(job_id).state == "running"
    assert bed.store.do(ListJobs(parent_id=job_id)).items == []


async def test_jobs_settled_in_large_numbers_are_counted_right(bed: Bed) -> None:
    done: set[JobId] = set()

    async def note(ctx: Context) -> None:
        done.add(ctx.id)

    kind = bed.handle(note)
    jobs = [NewJob(id=new_job_id(), kind=kind) for _ in range(1500)]
    bed.enqueue_many(jobs)
    started = time.perf_counter()
    stats = await bed.drain()

    assert stats.completed == len(done) == 1500
    assert stats.exchanges < 400, f"batches did not grow: {stats} in {time.perf_counter() - started:.1f} s"


async def test_a_handler_that_cancels_itself_and_ends_costs_no_runner_and_no_other_job(bed: Bed) -> None:
    ran: list[str] = []

    async def resigns() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        ran.append("resigns")

    async def waits() -> None:
        await asyncio.sleep(0)
        ran.append("waits")

    first, second = bed.handle(resigns), bed.handle(waits)
    for kind in (first, second, first, second):
        bed.enqueue(kind)

    stats = await bed.drain(concurrency=1, max_in_flight=1)

    assert ran == ["resigns", "waits"] * 2
    assert stats.completed == 4
