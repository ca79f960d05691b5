"""The kit for users' own tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure.model import failpoints
from tenure.store.contract import Enqueue
from tenure.store.queries import CountJobs
from tenure.testing import Crash, ManualClock, adrain, crash_at, drain, temporary_app, temporary_store

ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest) -> str | None:
    """What to hand to `temporary_app`: nothing for SQLite, an empty database for PostgreSQL."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


def test_a_temporary_app_is_empty_and_gone_afterwards(url: str | None) -> None:
    for _ in range(2):
        with temporary_app(url=url) as app:
            app.enqueue("kind")
            assert sum(count.jobs for count in app.queues.counts()) == 1
            where = app.url

    if url is None:
        assert not Path(where.removeprefix("sqlite:///")).parent.exists()


def test_an_app_of_ones_own_is_pointed_elsewhere_for_a_while(url: str | None, tmp_path: Path) -> None:
    own = f"sqlite:///{tmp_path}/own.db"
    with tenure.App(own) as app:

        @app.job(queue="mail")
        def welcome(payload: dict[str, Any]) -> None: ...

        welcome.enqueue({"real": True})
        with temporary_app(app, url=url) as same:
            assert same is app
            assert app.queues.counts() == []
            welcome.enqueue({"real": False})

        assert app.url == own
        assert [job.payload for job in app.jobs()] == [{"real": True}]


def test_the_clock_of_either_engine_obeys(url: str | None) -> None:
    clock = ManualClock(datetime(2030, 5, 17, tzinfo=UTC))
    with temporary_app(url=url, clock=clock) as app:
        app.enqueue("kind", delay=60)

        assert app.now() == clock.now()
        assert app.claim() == []
        clock.advance(timedelta(minutes=1))
        (grant,) = app.claim(lease_seconds=30)
        clock.advance(31)
        with pytest.raises(tenure.LeaseLost):
            app.complete(grant)
        clock.advance(-31)
        assert app.now() == datetime(2030, 5, 17, 0, 1, tzinfo=UTC)


def test_a_temporary_store_answers_requests(url: str | None) -> None:
    with temporary_store(url, clock=ManualClock()) as store:
        store.do(Enqueue([tenure.NewJob(id=tenure.App().new_job("k").id, kind="k")]))

        assert [count.jobs for count in store.do(CountJobs())] == [1]


@pytest.mark.postgres
def test_a_database_in_use_is_never_taken_for_a_temporary_one(postgres_url: str) -> None:
    with tenure.App(postgres_url) as app:
        app.enqueue("precious")

        with (
            pytest.raises(tenure.ConfigError, match="already, and a test would destroy it"),
            temporary_app(url=postgres_url),
        ):
            pytest.fail("it was opened")

        assert len(app.jobs()) == 1


@pytest.mark.postgres
def test_the_schema_is_dropped_also_if_the_test_fails(postgres_url: str) -> None:
    with pytest.raises(ZeroDivisionError), temporary_app(url=postgres_url, clock=ManualClock()):
        raise ZeroDivisionError

    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('tenure')").fetchone() == (None,)


def test_a_temporary_sqlite_file_takes_no_url() -> None:
    with pytest.raises(tenure.ConfigError, match="needs no URL"), temporary_app(url="sqlite:///mine.db"):
        pytest.fail("it was opened")


def test_drain_runs_what_is_due_and_leaves_the_rest(url: str | None) -> None:
    clock, ran = ManualClock(), []
    with temporary_app(url=url, clock=clock) as app:

        @app.job(queue="mail", max_attempts=2)
        def handler(payload: dict[str, Any], ctx: tenure.Context) -> str:
            ran.append((payload["n"], ctx.attempt))
            if payload["n"] == 2 and ctx.attempt == 1:
                raise ValueError("not yet")
            if payload["n"] == 1:
                ctx.enqueue(handler, {"n": 9})
            return "done"

        handler.enqueue_many([{"n": 1}, {"n": 2}])
        handler.options(delay=3600).enqueue({"n": 3})

        drain(app, raise_errors=False)
        assert sorted(ran) == [(1, 1), (2, 1), (9, 1)]
        clock.advance(3600)
        drain(app)

        assert sorted(ran) == [(1, 1), (2, 1), (2, 2), (3, 1), (9, 1)]
        assert {job.state for job in app.jobs()} == {tenure.State.SUCCEEDED}
        assert {job.result for job in app.jobs()} == {"done"}


@pytest.mark.anyio
async def test_drain_has_an_async_form() -> None:
    ran = []
    with temporary_app() as app:

        @app.job
        async def handler(payload: int) -> None:
            ran.append(payload)

        await handler.aenqueue(7)
        await adrain(app)
        await app.aio.close()

    assert ran == [7]


def test_a_reply_that_is_lost_after_the_commit_leaves_the_job_there(url: str | None) -> None:
    with temporary_app(url=url) as app:
        job = app.new_job("kind", key="k")
        app.claim()

        with crash_at("after_commit_before_reply", error=tenure.StoreUnavailable("cut")) as point:
            with pytest.raises(tenure.StoreUnavailable, match="cut"):
                app.enqueue(job)
            again = app.enqueue(job)

        assert (point.crashes, point.hits) == (1, 2)
        assert (again.id, again.duplicate) == (job.id, False)
        assert len(app.jobs()) == 1


def test_a_point_breaks_once_after_being_skipped_as_often_as_asked() -> None:
    with crash_at("somewhere", skip=2) as point:
        failpoints.point("somewhere")
        failpoints.point("elsewhere")
        failpoints.point("somewhere")
        with pytest.raises(Crash, match="crashed at somewhere"):
            failpoints.point("somewhere")
        failpoints.point("somewhere")

    failpoints.point("somewhere")
    assert (point.hits, point.crashes) == (4, 1)


def test_an_armed_point_can_kill_the_process() -> None:
    code = (
        "from tenure.testing import crash_at; from tenure.model import failpoints\n"
        "with crash_at('here', kill=True): failpoints.point('here')"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ})

    assert done.returncode == -signal.SIGKILL
