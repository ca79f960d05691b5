"""What users write, with the types they should get. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_type

import pydantic

import tenure
from tenure.testing import ManualClock, crash_at, drain, temporary_app

app = tenure.App("sqlite:///jobs.db", limits=tenure.Limits(payload_bytes=1000))


class Welcome(pydantic.BaseModel):
    user_id: int


@dataclass
class Report:
    month: str


class Note(TypedDict):
    text: str


@app.job
def bare(payload: Report) -> int:
    return len(payload.month)


@app.job(queue="mail", max_attempts=5, timeout=timedelta(minutes=1), lease=30, backoff=tenure.Backoff("none"))
async def welcome(payload: Welcome, ctx: tenure.Context) -> str:
    ctx.progress(0.5)
    return ctx.kind


@app.job(kind="tick", isolate=True)
def tick() -> None: ...


@app.job
def note(payload: Note, ctx: tenure.Context) -> None: ...


@app.job()
def context_only(ctx: tenure.Context) -> None: ...


@app.job(retry_on=OSError, give_up_on=(ValueError, KeyError), key=lambda image_id: f"{image_id}")
def resize(image_id: int, width: int = 80, *, at: datetime | None = None) -> Report:
    return Report(f"{image_id} {width} {at}")


@app.job(queue="mail")
async def count(ctx: tenure.Context, word: str, times: int = 1) -> int:
    return len(ctx.kind + word) * times


@app.middleware
def around_all(ctx: tenure.Context) -> Iterator[None]:
    yield


@app.middleware
def around_sync(ctx: tenure.Context, call: tenure.CallNext) -> Any:
    return call()


@app.middleware
async def around_async(ctx: tenure.Context, call: tenure.AsyncCallNext) -> Any:
    return await call()


def several_arguments(ctx: tenure.Context) -> None:
    assert_type(resize.enqueue(7, width=80), tenure.JobHandle[Report])
    assert_type(resize.enqueue(image_id=7, at=datetime.now(UTC)).result(timeout=5), Report)
    assert_type(resize.options(key="7", delay=timedelta(seconds=5)).enqueue(7, 80).result(), Report)
    assert_type(resize.new(7, width=80), tenure.NewJob)
    assert_type(resize(7, 80), Report)
    assert_type(count.enqueue("a", times=3), tenure.JobHandle[int])
    assert_type(count.options(connection=object()).enqueue("a").result(), int)
    running: Coroutine[Any, Any, int] = count(ctx, "a")
    running.close()


def handlers() -> None:
    assert_type(bare(Report("may")), int)
    assert_type(bare.kind, str)
    assert_type(welcome.queue, str)
    assert_type(bare.enqueue(Report("may")), tenure.JobHandle[int])
    assert_type(bare.options(run_at=datetime.now(UTC), priority=3).enqueue(Report("may")), tenure.JobHandle[int])
    assert_type(tick.enqueue(), tenure.JobHandle[None])
    assert_type(context_only.enqueue(), tenure.JobHandle[None])
    assert_type(note.enqueue({"text": "x"}), tenure.JobHandle[None])
    assert_type(bare.enqueue_many([Report("may"), {"month": "june"}]), list[tenure.JobHandle[int]])
    enqueued: tenure.Enqueued = bare.enqueue(Report("may"))
    assert_type(enqueued.duplicate, bool)
    assert_type(bare.new(Report("may")), tenure.NewJob)


async def async_operations(ctx: tenure.Context) -> None:
    job = await welcome.options(connection=object()).aenqueue(Welcome(user_id=7))
    assert_type(job, tenure.JobHandle[str])
    assert_type(await job.aresult(timeout=5), str)
    running: Coroutine[Any, Any, str] = welcome(Welcome(user_id=7), ctx)
    assert_type(await running, str)
    assert_type(await app.aio.enqueue("welcome", {"user_id": 7}, tenant="t"), tenure.JobHandle[Any])
    (grant,) = await app.aio.claim(queues=["mail"], kinds="welcome", limit=10, lease_seconds=60)
    assert_type(grant, tenure.Grant)
    assert_type(await app.aio.complete(grant, result={"ok": True}), tenure.Settled)
    assert_type(await app.aio.heartbeat([grant]), tenure.Beat)
    assert_type(await app.aio.cancel("id"), tenure.Cancelled)
    assert_type(await app.aio.cancel_many(["id"]), list[tenure.Cancelled])
    assert_type(await app.aio.get("id"), tenure.Job)


def acts() -> None:
    assert_type(app.claim(worker="w1"), list[tenure.Grant])
    assert_type(app.heartbeat(("id", 3)), tenure.Beat)
    assert_type(app.fail(("id", 3), ValueError("x"), retry_after=30), tenure.Settled)
    assert_type(app.release(("id", 3), delay=timedelta(seconds=1)), tenure.Settled)
    assert_type(app.settle([tenure.Completed(tenure.JobId("id"), tenure.Token(1))]), list[tenure.Settled])
    assert_type(app.cancel("id"), tenure.Cancelled)
    assert_type(app.cancel_many([tenure.JobId("id")], actor="me"), list[tenure.Cancelled])
    assert_type(app.revive("id", actor="ops", reason="fixed"), tenure.Settled)
    assert_type(app.revive_many(("a", "b"), reason="fixed"), list[tenure.Settled])
    assert_type(app.jobs(state="dead", queue=["mail"]), tenure.Page[tenure.Job])
    assert_type([job for job in app.jobs()], list[tenure.Job])  # noqa: C416 - iteration is what is shown
    assert_type(app.get("id"), tenure.Job)
    assert_type(app.get_many(["id"]), list[tenure.Job | None])
    assert_type(app.queues.counts(), list[tenure.Count])
    assert_type(app.dead_letters.all().items, list[tenure.DeadLetter])
    assert_type(app.queues.all(), list[tenure.QueueRow])
    assert_type(app.queues.set("mail", max_attempts=3, key_scope="forever"), tenure.QueueRow)
    assert_type(app.queue("mail", tenure.QueuePolicy(), priority_order="low"), tenure.QueuePolicy)
    assert_type(app.gates.close("master"), tenure.Gate)
    assert_type(app.prune(older_than=timedelta(days=1)), tenure.Pruned)
    assert_type(app.leases.acquire("leader", "me"), tenure.NamedLease)
    assert_type(app.enqueue_many([bare.new(Report("may")), ("kind", {"a": 1})]), list[tenure.JobHandle[Any]])
    assert_type(app.now(), datetime)


def own_tests() -> None:
    clock = ManualClock()
    with temporary_app(app, clock=clock) as same, crash_at("after_commit_before_reply") as point:
        assert_type(same, tenure.App)
        assert_type(point.hits, int)
        clock.advance(timedelta(hours=1))
        drain(same)


def ends() -> None:
    raise tenure.RetryAfter(30, "busy") from tenure.Snooze(timedelta(minutes=1))
