"""`ctx.memo` and `@app.job(memo=…)`: a value that one job works out and others read, with real workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import tenure
from tenure.store.flow import SweepFlow
from tests.conformance.engines import fresh_url
from tests.waiting import wait_until


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tenure.App]:
    with fresh_url(request, tmp_path) as url, tenure.App(url) as made:
        yield made


def finish(app: tenure.App, *jobs: str, concurrency: int = 10) -> list[object]:
    """Work until these jobs have ended, and sweep as a leader does each second; their results."""
    until = time.monotonic() + 60
    while any(app.get(job).finished_at is None for job in jobs):
        assert time.monotonic() < until, [app.get(job).state for job in jobs]
        app.run_worker(drain=True, handle_signals=False, concurrency=concurrency)
        app.store.do(SweepFlow())
    return [app.get(job).result for job in jobs]


def test_twenty_jobs_with_one_payload_do_the_work_once(app: tenure.App) -> None:
    calls: list[str] = []

    @app.job(memo=timedelta(days=7))
    def embed(text: str) -> dict[str, int]:
        calls.append(text)
        return {"chars": len(text)}

    jobs = [embed.enqueue("abc").id for _ in range(20)]
    other = embed.enqueue("abcd").id

    assert finish(app, *jobs, other) == [{"chars": 3}] * 20 + [{"chars": 4}]
    assert sorted(calls) == ["abc", "abcd"]
    assert finish(app, embed.enqueue("abc").id) == [{"chars": 3}]
    assert len(calls) == 2


def test_jobs_that_come_meanwhile_wait_without_a_slot(app: tenure.App) -> None:
    """One slot is enough: those that wait hold none, or the one that works it out could not go on after its failure."""
    calls: list[str] = []
    failures = iter([True])

    @app.job(durable=True, backoff=tenure.Backoff("none"))
    def report(name: str, ctx: tenure.Context) -> dict[str, object]:
        def work() -> str:
            calls.append(name)
            if next(failures, False):
                raise ValueError("not yet")
            return f"by {name}"

        return {"name": name, "got": ctx.memo("extract", key="page-7", ttl=3600, do=work)}

    jobs = [report.enqueue(name).id for name in ("ann", "bob", "cid")]

    found = finish(app, *jobs, concurrency=1)

    assert found == [{"name": name, "got": "by ann"} for name in ("ann", "bob", "cid")]
    assert calls == ["ann", "ann"], "a failure is not kept, and its job tries again"


def test_a_job_that_dies_hands_the_work_to_one_that_waits(app: tenure.App) -> None:
    others: list[str] = []

    @app.job(durable=True, max_attempts=1)
    def report(name: str, ctx: tenure.Context) -> str:
        def work() -> str:
            if name == "ann":
                others.extend(report.enqueue(other).id for other in ("bob", "cid"))
                wait_until(lambda: {str(app.get(job).state) for job in others} == {"waiting"})
                raise ValueError("never")
            return f"by {name}"

        found: str = ctx.memo("extract", key="page-7", ttl=3600, do=work)
        return found

    dead = report.enqueue("ann").id

    finish(app, dead)
    found = finish(app, *others)

    assert app.get(dead).state == "dead"
    assert found[0] == found[1]
    assert found[0] in {"by bob", "by cid"}


def test_async_handlers_and_tenants(app: tenure.App) -> None:
    calls: list[int] = []

    @app.job(memo=3600)
    async def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    jobs = [double.options(tenant=tenant).enqueue(4).id for tenant in ("acme", "acme", "other", None)]

    assert finish(app, *jobs) == [8] * 4
    assert calls == [4, 4, 4], "once for each tenant, and once for none"


def test_two_workers_at_once_do_the_work_once(app: tenure.App) -> None:
    calls: list[int] = []

    @app.job(memo=3600)
    def slow(number: int) -> int:
        calls.append(number)
        return number

    jobs = [slow.enqueue(n % 3).id for n in range(60)]
    workers = [threading.Thread(target=finish, args=(app, *jobs)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [app.get(job).result for job in jobs] == [n % 3 for n in range(60)]
    assert sorted(calls) == [0, 1, 2]


def test_what_cannot_be_is_refused(app: tenure.App) -> None:
    with pytest.raises(tenure.HandlerError, match=r"ctx\.memo"):

        @app.job(memo=60, durable=True)
        def both(payload: str, ctx: tenure.Context) -> None: ...

    with pytest.raises(tenure.InvalidArgument, match="memo"):

        @app.job(memo=0)
        def never(payload: str) -> None: ...
