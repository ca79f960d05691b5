"""U5 and U17: a worker in Python says what happens, and what cannot work is said in a sentence."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import tenure
from tenure.testing import temporary_app


def test_a_worker_in_python_logs_failures_with_their_traceback(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    """U5: `app.run_worker()` was silent about failures."""

    @app.job(max_attempts=1)
    def fall() -> None:
        raise ValueError("over the edge")

    fall.enqueue()
    with caplog.at_level(logging.WARNING, "tenure.worker"):
        app.run_worker(drain=True, handle_signals=False)

    (record,) = [one for one in caplog.records if "event=dead" in one.getMessage()]
    shown = logging.Formatter("%(message)s").format(record)
    assert "ValueError: over the edge" in shown
    assert 'raise ValueError("over the edge")' in shown
    assert "test_clear_sentences.py" in shown
    assert "executor.py" not in shown


def test_a_plain_function_takes_log_events(app: tenure.App) -> None:
    """U5: `emit` was undocumented, and a plain function crashed. M10: claimed and started are told at info."""
    seen: list[tenure.LogEvent] = []

    @app.job
    def work() -> None: ...

    job = work.enqueue()
    app.run_worker(drain=True, handle_signals=False, emit=seen.append)

    assert [one.name for one in seen if one.job == job.id] == ["claimed", "started", "completed"]
    with pytest.raises(tenure.ConfigError, match=r"`emit` must be a function that takes a tenure\.LogEvent, got str"):
        app.worker(emit="stderr")  # type: ignore[arg-type]


def test_a_producer_logs_what_it_queued(app: tenure.App, caplog: pytest.LogCaptureFixture) -> None:
    """M10: there was no `queued` line. It comes once, from the process that enqueued; a duplicate queues nothing."""
    with caplog.at_level(logging.INFO, "tenure.client"):
        job = app.enqueue("work", {"secret": "4711"}, key="k")
        app.enqueue("work", {"secret": "4711"}, key="k")

    (record,) = [one for one in caplog.records if one.name == "tenure.client"]
    assert record.getMessage() == f"event=queued job={job.id} kind=work queue=default"


@pytest.mark.anyio
async def test_a_sync_worker_on_an_event_loop_is_refused() -> None:
    """U17: it was a traceback about nested loops."""
    with temporary_app() as app:
        with pytest.raises(tenure.UsageError, match=r"Use `await app\.aio\.run_worker\(\)` there"):
            app.worker().run_sync()
        await app.aio.close()


@pytest.mark.anyio
async def test_a_sync_call_in_a_coroutine_is_warned_of() -> None:
    """U17: it blocked the loop in silence."""
    with temporary_app() as app:

        @app.job
        def work() -> None: ...

        with pytest.warns(RuntimeWarning, match=r"blocks the event loop.*await welcome\.aenqueue") as warned:
            work.enqueue()
        await app.aio.close()
    assert warned[0].filename == __file__


def test_a_handler_that_blocks_the_event_loop_is_named() -> None:
    """U17: `time.sleep` in an async handler held up all others, and nothing told."""
    seen: list[tenure.LogEvent] = []
    with temporary_app() as app:

        @app.job
        async def sleepy() -> None:
            await asyncio.sleep(0.1)
            time.sleep(2.3)  # noqa: ASYNC251 - that is the mistake
            await asyncio.sleep(1)

        sleepy.enqueue()
        app.run_worker(drain=True, handle_signals=False, emit=seen.append)

    (event,) = [one for one in seen if one.name == "loop_blocked"]
    assert event.fields["kinds"] == ["sleepy"]
    assert "stood still for" in str(event.message)


def test_a_plain_function_is_no_schedule() -> None:
    """U17: it was an AttributeError."""
    app = tenure.App("sqlite:///never-opened.db")
    plain: Callable[[], Any] = lambda: None  # noqa: E731

    with pytest.raises(tenure.InvalidArgument, match=r"Put `@app\.job` above the function"):
        app.schedule("s", "@daily", plain)  # type: ignore[arg-type]


@pytest.mark.postgres
def test_urls_of_sqlalchemy_are_accepted(postgres_url: str) -> None:
    """U17: `postgresql+psycopg://` named no engine."""
    with tenure.App(postgres_url.replace("postgresql://", "postgresql+psycopg://")) as app:
        assert app.enqueue("kind").id
        assert app.url == postgres_url
    assert tenure.App("sqlite+aiosqlite:///jobs.db").url == "sqlite:///jobs.db"


def test_a_result_that_is_not_awaited_is_refused_without_a_warning_besides(app: tenure.App) -> None:
    """It was refused after a warning that the very same call blocks the loop."""

    async def look(job: tenure.JobHandle[Any]) -> None:
        warnings.simplefilter("error")
        with pytest.raises(tenure.UsageError, match="aresult"):
            job.result(timeout=1)
        with pytest.raises(tenure.UsageError, match=r"aio\.result"):
            app.result(job.id)

    asyncio.run(look(app.enqueue("k")))


def test_a_kind_that_is_spelled_almost_like_a_handlers_is_named_once(
    app: tenure.App, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job waited for ever, and nothing said why: only the command line asked."""

    @app.job
    def welcome(user_id: int) -> None: ...

    for kind in ("welcom", "welcom", "resize", "welcome"):
        app.enqueue(kind, 7)

    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert said == [
        "Kind 'welcom' has no handler in this app, so its jobs wait for another worker. Did you mean 'welcome'?"
    ]


JOB_ID = "01a1f553-b6ae-70a5-b042-67779151a5a6"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda app: app.heartbeat(5), "`grants` must be one or several, got int"),
        (lambda app: app.settle(5), "`outcomes` must be one or several, got int"),
        (lambda app: app.settle([5]), r"`outcomes` must be outcomes, such as tenure\.Completed, got int"),
        (lambda app: app.enqueue_many(5), "`jobs` must be several jobs, got int"),
        (lambda app: app.enqueue_many([5]), "`jobs` takes jobs made by `new_job`, or pairs of kind and payload, got"),
        (lambda app: app.jobs(after="zzz"), "`after` must be a UUID, got str 'zzz'"),
        (lambda app: app.cancel_many(5), "`job_ids` must be one or several, got int"),
        (lambda app: app.fail((JOB_ID, 1), 5), r"`error` must be text \(str\) or an exception, got int"),
    ],
)
def test_an_argument_of_another_type_is_said_in_a_sentence(call: Callable[[tenure.App], Any], said: str) -> None:
    """They were a TypeError or an AttributeError from the inside, one of them from the writer's thread. A place in the
    list of jobs that is none gave an empty page on PostgreSQL, and the first page again on SQLite."""
    with temporary_app() as app, pytest.raises(tenure.InvalidArgument, match=said):
        call(app)


@pytest.mark.anyio
async def test_what_makes_connections_is_not_taken_for_one() -> None:
    """The sentence said of an async engine that it is not async."""
    sqlalchemy = pytest.importorskip("sqlalchemy.ext.asyncio")
    pytest.importorskip("aiosqlite")
    engine = sqlalchemy.create_async_engine("sqlite+aiosqlite://")
    with temporary_app() as app:
        with pytest.raises(tenure.ConfigError, match="Hand in the connection or session itself, not what makes one"):
            await app.aio.enqueue("k", connection=engine)
        await app.aio.close()
    await engine.dispose()
