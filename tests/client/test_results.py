"""U8: an enqueue answers a handle, and the handle waits for the result, typed by what the handler returns."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import date

import pydantic
import pytest

import tenure


class Invoice(pydantic.BaseModel):
    total: int
    due: date


@dataclass
class Receipt:
    lines: list[str]


def drain(app: tenure.App) -> None:
    app.run_worker(drain=True, handle_signals=False)


def test_a_handle_waits_for_the_result_while_a_worker_runs_elsewhere(app: tenure.App) -> None:
    """U8: there was no way to wait for a result from Python."""
    may_end = threading.Event()

    @app.job
    def add(a: int, b: int) -> int:
        assert may_end.wait(30)
        return a + b

    job = add.enqueue(2, 3)
    working = threading.Thread(target=drain, args=(app,))
    working.start()
    threading.Timer(0.05, may_end.set).start()

    assert job.result(timeout=30) == 5
    working.join()
    assert job.result() == 5
    assert not job.duplicate


def test_a_result_has_the_type_that_the_handler_returns(app: tenure.App) -> None:
    """U8: typed by the handler's return, and not only for the type checker."""

    @app.job
    def model(total: int) -> Invoice:
        return Invoice(total=total, due=date(2026, 1, 2))

    @app.job
    async def record() -> Receipt:
        return Receipt(["one"])

    @app.job
    def nothing() -> None: ...

    @app.job
    def untyped():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return {"a": 1}

    jobs = model.enqueue(7), record.enqueue(), nothing.enqueue(), untyped.enqueue()
    drain(app)

    assert [job.result(timeout=30) for job in jobs] == [
        Invoice(total=7, due=date(2026, 1, 2)),
        Receipt(["one"]),
        None,
        {"a": 1},
    ]


@pytest.mark.anyio
async def test_async_callers_await_it(app: tenure.App) -> None:
    """U8: `await job.aresult()`, by handle or by id."""

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    job = await double.aenqueue(4)
    await app.aio.run_worker(drain=True, handle_signals=False)

    assert await job.aresult(timeout=30) == 8
    assert await app.aio.result(job.id) == 8
    with pytest.raises(tenure.UsageError, match=r"would block the event loop.*aresult"):
        job.result()
    await app.aio.close()


def test_a_job_without_a_result_raises_why(app: tenure.App) -> None:
    """U8: failed, dead and cancelled jobs raise; one that has not ended times out and goes on."""

    @app.job(max_attempts=1)
    def fall() -> int:
        raise ValueError("no such user")

    dead, cancelled = fall.enqueue(), fall.options(delay=60).enqueue()
    with pytest.raises(tenure.ResultTimeout, match=r"still queued after 0\.01 s") as late:
        dead.result(timeout=0.01)
    app.cancel(cancelled.id)
    drain(app)

    assert isinstance(late.value, TimeoutError)
    with pytest.raises(tenure.JobFailed, match=r"ended as dead.*ValueError: no such user") as died:
        dead.result(timeout=30)
    assert died.value.error is not None
    assert "Traceback" in died.value.error
    with pytest.raises(tenure.JobFailed, match="ended as cancelled"):
        cancelled.result()
    with pytest.raises(tenure.NotFound, match="Retention may have deleted it"):
        app.result("01890000-0000-7000-8000-000000000000")


def test_a_result_that_no_longer_fits_its_type_says_where(app: tenure.App) -> None:
    @app.job(kind="price")
    def before() -> dict[str, str]:
        return {"total": "many", "due": "2026-01-02"}

    job = before.enqueue()
    drain(app)

    @app.job(kind="other")
    def after() -> Invoice: ...  # type: ignore[empty-body]

    handler = app.registry["other"]
    assert handler.decode_result is not None
    with pytest.raises(tenure.InvalidPayload, match=r"Kind 'other': the result does not fit. \$\.total: expected int"):
        handler.decode_result(app.result(job.id))


def test_handles_are_equal_to_plain_answers(app: tenure.App) -> None:
    @app.job
    def tick() -> None: ...

    job = tick.options(key="once").enqueue()
    again = tick.options(key="once").enqueue()

    assert again == tenure.Enqueued(job.id, duplicate=True)
    assert again != job
    assert len({job, tenure.Enqueued(job.id)}) == 1
    assert [one.result for one in tick.enqueue_many([{}, {}])]
