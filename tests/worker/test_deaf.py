"""No handler makes a worker deaf: whatever it does, its slot comes back and a healthy job runs in the same worker."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

import tenure
from tenure.errors import InvalidArgument, StoreUnavailable, TenureError
from tenure.handler.context import EVENTS_KEPT, Context
from tenure.handler.signals import Interrupt, Interrupted, Parked, Parking
from tenure.model.ids import JobId
from tenure.model.log_event import LogEvent
from tenure.model.outcome import Failed, Rejected
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Exchange
from tenure.store.queries import ListEvents
from tenure.worker.executor import TURN_SECONDS
from tenure.worker.worker import Worker, WorkerConfig
from tests.conformance.engines import open_sqlite
from tests.waiting import until
from tests.worker.bed import AT_ONCE, Bed, EventLog

pytestmark = pytest.mark.anyio

CONCURRENCY = 8
Handler = Callable[[Context], Any]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    store = open_sqlite(tmp_path / "jobs.db")
    bed = Bed(store)
    bed.queue(AT_ONCE)
    yield bed
    store.close()


def raised(make: Callable[[], BaseException]) -> Iterator[tuple[str, Handler]]:
    """A handler on the loop and one in a thread that raise it."""
    name = type(make()).__name__

    async def on_loop(ctx: Context) -> None:
        raise make()

    def in_thread(ctx: Context) -> None:
        raise make()

    yield f"async_{name}", on_loop
    yield f"thread_{name}", in_thread


class TextExits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class ReprExits(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class ClassExits(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise SystemExit(4)


class Unencodable:
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(5)


def builtin_exceptions() -> list[type[BaseException]]:
    found = {
        one
        for one in vars(builtins).values()
        if isinstance(one, type) and issubclass(one, BaseException) and not issubclass(one, Warning)
    }
    special = {BaseExceptionGroup, ExceptionGroup, UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError}
    return sorted(found - special, key=lambda one: one.__name__)


class Swallows:
    """A handler that ignores every cancellation until the test is over."""

    def __init__(self) -> None:
        self.is_over = False

    async def __call__(self, ctx: Context) -> None:
        while not self.is_over:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)


async def cancels_itself(ctx: Context) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def bad_event(ctx: Context) -> None:
    ctx.events.append(tenure.model.event.NewEvent("\ud800", "no json", ctx.id))
    raise ValueError("after an event that the store cannot take")


def bad_event_kind(ctx: Context) -> None:
    ctx.event(None)  # type: ignore[arg-type]


async def bad_event_and_success(ctx: Context) -> None:
    ctx.events.append(tenure.model.event.NewEvent("\ud800", "no json", ctx.id))


def log_formats(ctx: Context) -> None:
    ctx.logger.info("%(a)s", {"a": 1})
    ctx.logger.info("%d %s", "x")  # noqa: PLE1206 - that is the point
    ctx.logger.info(object())
    ctx.logger.info("\ud800 %s", "\0")


def surrogates(ctx: Context) -> str:
    ctx.set_result_summary("half \ud800 a pair \0")
    return "fine"


def surrogate_error(ctx: Context) -> None:
    raise ValueError("half \ud800 a pair \0")


def surrogate_result(ctx: Context) -> str:
    return "half \ud800 a pair"


def bad_progress(ctx: Context) -> None:
    ctx.progress("x" * 2_000_000)


def bad_follow_up(ctx: Context) -> None:
    ctx.follow_ups.append("no job")  # type: ignore[arg-type]


async def replaces_context(ctx: Context) -> None:
    ctx.events = None  # type: ignore[assignment]


def misbehaving() -> dict[str, Handler]:
    handlers: dict[str, Handler] = {}
    for kind in builtin_exceptions():
        handlers.update(raised(lambda kind=kind: kind()))  # type: ignore[misc]
    for make in (
        TextExits,
        ReprExits,
        ClassExits,
        asyncio.CancelledError,
        asyncio.InvalidStateError,
        lambda: ExceptionGroup("many", [ValueError(), TextExits()]),
        lambda: BaseExceptionGroup("many", [GeneratorExit()]),
        lambda: Interrupted(Interrupt.TIMEOUT),
        lambda: Interrupted(Interrupt.LOST),
        lambda: StoreUnavailable("away"),
        lambda: InvalidArgument("no"),
        lambda: tenure.Permanent("never"),
        lambda: Parked(Parking("\ud800")),
    ):
        handlers.update((f"{name}_{len(handlers)}", one) for name, one in raised(make))
    others: list[Handler] = [
        cancels_itself,
        bad_event,
        bad_event_kind,
        bad_event_and_success,
        log_formats,
        surrogates,
        surrogate_error,
        surrogate_result,
        bad_progress,
        bad_follow_up,
        replaces_context,
        lambda _: Unencodable(),
        lambda _: {1, 2},
        lambda _: float("nan"),
        lambda ctx: ctx.enqueue(object()),
    ]
    handlers.update({f"other_{n}": one for n, one in enumerate(others)})
    return handlers


MISBEHAVING = misbehaving()


async def test_after_every_misbehaving_handler_a_healthy_job_runs_in_the_same_worker(bed: Bed) -> None:
    assert len(MISBEHAVING) > 109

    async def healthy() -> str:
        return "well"

    bed.handle(healthy)
    for name, function in MISBEHAVING.items():
        mode = "async" if asyncio.iscoroutinefunction(function) else "thread"
        bed.registry.add(_handler(bed, name, function, mode))
    swallows = Swallows()

    async def swallow(ctx: Context) -> None:
        await swallows(ctx)

    swallowing = bed.handle(swallow, timeout_seconds=0.05)
    bad = [bed.enqueue(name, max_attempts=1) for name in MISBEHAVING]
    bad += [bed.enqueue(swallowing, max_attempts=1) for _ in range(CONCURRENCY)]
    async with bed.working(concurrency=CONCURRENCY, grace_seconds=0.1) as worker:
        await until(lambda: worker.stats().claimed >= len(bad) and worker.stats().held == 0, 25)
        for _ in range(CONCURRENCY):
            job_id = await asyncio.to_thread(bed.enqueue, "healthy")
            await until(lambda job_id=job_id: bed.job(job_id).state == "succeeded", 2)  # type: ignore[misc]
        assert bed.log.names().count("left_behind") == CONCURRENCY
        swallows.is_over = True
        assert "runner_died" not in bed.log.names()

    kinds = {bed.job(job_id).kind: bed.job(job_id) for job_id in bad}
    assert {job.state for job in kinds.values()} <= {"succeeded", "failed", "dead", "queued", "waiting", "running"}
    running = {kind for kind, job in kinds.items() if job.state == "running"}
    assert all("Interrupted" in kind for kind in running), "only a lost lease leaves its job to the lease"
    assert kinds["swallow"].failure_class == "timeout"
    assert kinds["async_GeneratorExit"].state == "dead"
    assert "ValueError" in (kinds["other_1"].last_error or "")
    assert kinds["other_4"].state == "succeeded"
    assert kinds["other_5"].result_summary == "half ? a pair "


def _handler(bed: Bed, name: str, function: Handler, mode: Any) -> Any:
    from tenure.handler.payload import payload_codec
    from tenure.handler.registry import Handler as Registered

    encode, decode = payload_codec(Any, name)
    return Registered(
        kind=name,
        queue="default",
        function=function,
        mode=mode,
        decode=decode,
        encode=encode,
        wants_payload=False,
        wants_context=True,
    )


async def test_dropped_log_lines_are_counted_and_reported(bed: Bed) -> None:
    async def talkative(ctx: Context) -> None:
        for _ in range(EVENTS_KEPT + 7):
            ctx.event("custom")  # quicker than a log line, so that no heartbeat writes some of them meanwhile

    job_id = bed.enqueue(bed.handle(talkative))
    await bed.drain()

    lines = [event.data.get("message", "") for event in bed.store.do(ListEvents(job_id=job_id, limit=2000))]
    assert [line for line in lines if "dropped" in line] == [
        "7 log lines were dropped: written faster than the worker stores them"
    ]
    assert len(lines) == EVENTS_KEPT + 1


async def test_a_sync_handler_that_ignores_its_time_limit_gives_its_slot_back(bed: Bed) -> None:
    is_over = threading.Event()

    def ignores() -> None:
        is_over.wait(60)

    def healthy() -> None: ...

    bed.handle(healthy)
    ignoring = [bed.enqueue(bed.handle(ignores, timeout_seconds=0.05), max_attempts=1) for _ in range(2)]
    async with bed.working(concurrency=2, grace_seconds=0.1) as worker:
        await until(lambda: {bed.job(job_id).state for job_id in ignoring} == {"dead"})
        jobs = [bed.enqueue("healthy") for _ in range(4)]
        await until(lambda: {bed.job(job_id).state for job_id in jobs} == {"succeeded"})
        assert worker.stats().left_behind == 2
        is_over.set()

    assert {bed.job(job_id).failure_class for job_id in ignoring} == {"timeout"}
    assert bed.log.names().count("left_behind") == 2


async def test_a_sync_handler_that_ignores_a_lost_lease_gives_its_slot_back(bed: Bed) -> None:
    has_begun, is_over = threading.Event(), threading.Event()

    def ignores() -> str:
        has_begun.set()
        is_over.wait(60)
        return "too late"

    def healthy() -> None: ...

    bed.handle(healthy)
    job_id = bed.enqueue(bed.handle(ignores))
    async with bed.working(concurrency=1, grace_seconds=0.1, lease_seconds=30.0, heartbeat_seconds=0.2) as worker:
        await until(has_begun.is_set)
        bed.store.do(Exchange([Rejected(job_id, bed.job(job_id).token, "settled elsewhere")], None))
        other = bed.enqueue("healthy")
        await until(lambda: bed.job(other).state == "succeeded")
        assert (worker.stats().left_behind, worker.stats().lost) == (1, 1)
        is_over.set()

    assert (bed.job(job_id).state, bed.job(job_id).result) == ("failed", None)


async def test_a_job_that_no_thread_can_be_started_for_is_given_back(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("executor", "run"):
        monkeypatch.setattr(f"tenure.worker.{module}.CANNOT_RUN_SECONDS", 0.3)

    def sync() -> None: ...

    async def on_loop() -> None: ...

    first = bed.enqueue(bed.handle(on_loop))
    kind = bed.handle(sync)
    async with bed.working(poll_seconds=0.1):
        await until(lambda: bed.job(first).state == "succeeded")
        job_id = bed.enqueue(kind)
        size = threading.stack_size(1 << 47)  # more than there are addresses: the system refuses every thread
        try:
            await until(lambda: "cannot_run" in bed.log.names(job_id))
        finally:
            threading.stack_size(size)
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert (bed.job(job_id).attempt, bed.attempts(job_id)) == (1, [])


async def test_a_runner_that_other_code_cancels_is_replaced(bed: Bed) -> None:
    async def healthy() -> None: ...

    kind = bed.handle(healthy)
    async with bed.working(concurrency=2):
        for task in asyncio.all_tasks():
            if task.get_name() == "tenure-runner":
                task.cancel()
        await until(lambda: bed.log.names().count("runner_died") == 2)
        for _ in range(4):
            job_id = bed.enqueue(kind)
            await until(lambda job_id=job_id: bed.job(job_id).state == "succeeded")  # type: ignore[misc]


async def test_a_worker_that_is_to_reject_unknown_kinds_needs_no_handlers(bed: Bed) -> None:
    bed.queue(QueuePolicy(on_unknown_kind="reject"))
    job_id = bed.enqueue("stranger")
    stats = await Worker(bed.store, {}, WorkerConfig(drain=True, handle_signals=False, maintain=False)).run()

    assert stats.claimed == 1
    assert (bed.job(job_id).state, bed.job(job_id).failure_class) == ("failed", "no_handler")


async def test_a_worker_without_handlers_refuses_to_start(bed: Bed) -> None:
    with pytest.raises(tenure.errors.ConfigError, match="no handlers"):
        await Worker(bed.store, {}).run()


async def test_unknown_kinds_are_left_alone_and_named_once(bed: Bed) -> None:
    async def known() -> None: ...

    bed.handle(known)
    stranger: JobId = bed.enqueue("stranger")
    job_id = bed.enqueue("known")
    async with bed.working():
        await until(lambda: bed.job(job_id).state == "succeeded" and "unknown_kind" in bed.log.names())

    assert (bed.job(stranger).state, bed.job(stranger).attempt, bed.attempts(stranger)) == ("queued", 0, [])
    named = [event.message or "" for event in bed.log.events if event.name == "unknown_kind"]
    assert len(named) == 1
    assert "'stranger'" in named[0]


async def test_a_worker_that_has_jobs_to_claim_does_not_count_all_that_wait(bed: Bed) -> None:
    """Each worker that came up beside a long queue read all of it at once, to name kinds that it has no handler for."""
    asked: list[str] = []
    send = bed.store.ado

    async def ado(request: Any) -> Any:
        asked.append(type(request).__name__)
        return await send(request)

    bed.store.ado = ado  # type: ignore[method-assign]
    first, go_on = asyncio.Event(), asyncio.Event()
    while_busy: list[list[str]] = []

    async def known() -> None:
        while_busy.append([*asked])
        first.set()
        await go_on.wait()

    bed.handle(known)
    bed.enqueue("stranger")
    bed.enqueue("known")
    bed.enqueue("known")
    async with bed.working(concurrency=1, prefetch=0):
        await first.wait()
        go_on.set()
        await until(lambda: "unknown_kind" in bed.log.names())

    assert "CountJobs" not in while_busy[0]
    assert "CountJobs" in asked


async def test_observers_are_told_of_ends_that_are_settled_one_by_one(bed: Bed) -> None:
    """An end that the store refuses is settled apart from its batch, and tracing did not hear of any of them."""
    told: list[tuple[JobId, type]] = []
    bed.registry.settle_observers.append(
        lambda ends, began, ended: told.extend((grant.id, type(end)) for grant, end in ends if began <= ended)
    )

    async def follows(ctx: Context) -> None:
        ctx.enqueue("anything", queue="nowhere")

    bed.handle(follows, max_attempts=1)
    job_id = bed.enqueue("follows", max_attempts=1)
    await bed.drain()

    assert (bed.job(job_id).state, "outcome_refused" in bed.log.names()) == ("dead", True)
    assert told == [(job_id, Failed)]


async def test_handlers_that_never_wait_do_not_keep_the_event_loop_from_turning(bed: Bed) -> None:
    turns = 0
    seen: list[int] = []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def busy() -> None:
        until_then = perf_counter() + TURN_SECONDS
        while perf_counter() <= until_then:
            pass
        seen.append(turns)

    bed.handle(busy)
    for _ in range(20):
        bed.enqueue("busy")
    counting = asyncio.create_task(count_turns())
    await bed.drain(concurrency=1, prefetch=50)
    counting.cancel()

    assert len(set(seen)) == len(seen) == 20, "several jobs ran in one turn of the loop"


async def test_limits_of_the_app_hold_for_results_progress_and_follow_ups(tmp_path: Path) -> None:
    limits = tenure.model.policy.Limits(payload_bytes=100)
    app = tenure.App(f"sqlite:///{tmp_path}/limits.db", limits=limits)
    refused: list[str] = []

    @app.job
    def large(ctx: Context) -> str:
        for act in (lambda: ctx.progress("x" * 200), lambda: ctx.enqueue("large", {"x": "x" * 200})):
            try:
                act()
            except TenureError as exc:
                refused.append(type(exc).__name__)
        return "x" * 200

    app.migrate()
    job_id = app.enqueue("large").id
    await asyncio.to_thread(app.run_worker, drain=True, handle_signals=False, maintain=False)
    job = app.get(job_id)
    app.close()

    assert refused == ["InvalidPayload", "InvalidPayload"]
    assert job.state == "failed"
    assert "InvalidResult" in (job.last_error or "")


class Refusing(EventLog):
    """A program's own log that takes no event."""

    def __call__(self, event: LogEvent) -> None:
        super().__call__(event)
        raise BrokenPipeError("nothing reads this any more")


async def test_a_log_that_raises_costs_no_job_and_no_heartbeat(bed: Bed) -> None:
    """The first event that a program's own `emit` refused ended the worker, or the thread of its heartbeats."""
    bed.log = Refusing()

    async def fails() -> None:
        raise ValueError("as it should")

    async def healthy() -> None: ...

    bed.handle(healthy)
    failing = bed.enqueue(bed.handle(fails), max_attempts=1)
    async with bed.working(heartbeat_seconds=0.05) as worker:
        await until(lambda: bed.job(failing).state == "dead")
        worker._run.leases._failed(StoreUnavailable("away"))  # type: ignore[union-attr]
        beats = worker.stats().heartbeats
        await until(lambda: worker.stats().heartbeats >= beats + 2)  # the first of them says that they are back
        job_id = bed.enqueue("healthy")
        await until(lambda: bed.job(job_id).state == "succeeded")

    assert {"dead", "heartbeat_back", "completed"} <= set(bed.log.names())
