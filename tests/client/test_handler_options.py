"""U20: what a handler decides from its arguments and from what it raises; U5: middleware around handlers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tenure
from tenure.errors import HandlerError


def drain(app: tenure.App) -> None:
    app.run_worker(drain=True, handle_signals=False)


class Gone(Exception):
    pass


def test_exceptions_decide_whether_a_job_is_retried(app: tenure.App) -> None:
    """U20: there was no retry by exception class."""

    @app.job(max_attempts=5, retry_on=(OSError,))
    def fetch(name: str) -> None:
        raise {"slow": TimeoutError, "odd": ValueError}[name](name)

    @app.job(max_attempts=5, give_up_on=Gone)
    async def read(name: str) -> None:
        raise Gone(name) if name == "gone" else ValueError(name)

    jobs = [fetch.enqueue("slow"), fetch.enqueue("odd"), read.enqueue("gone"), read.enqueue("odd")]
    drain(app)

    states = [app.get(job.id).shown_state for job in jobs]
    assert states == ["retry_waiting", "failed", "failed", "retry_waiting"]
    assert "ValueError: odd" in str(app.get(jobs[1].id).last_error)


def test_an_exception_class_is_asked_for() -> None:
    app = tenure.App("sqlite:///never-opened.db")

    with pytest.raises(HandlerError, match="`retry_on` takes classes of exceptions"):
        app.job(kind="k", retry_on="OSError")(lambda: None)  # type: ignore[call-overload]


def test_keys_are_made_from_the_arguments(app: tenure.App) -> None:
    """U20: `@app.job(key=…, concurrency_key=…)` from the payload; an enqueue may still give its own."""

    @app.job(
        key=lambda user_id: f"welcome-{user_id}",
        concurrency_key=lambda tenant_name, **_: tenant_name,
    )
    def welcome(user_id: int, tenant_name: str = "none") -> None: ...

    @app.job(key=str)
    def count(number: int) -> None: ...

    first, again = welcome.enqueue(7, "acme"), welcome.enqueue(7, tenant_name="acme")
    own = welcome.options(key="own", concurrency_key="mine").enqueue(8, "acme")

    assert (again.id, again.duplicate) == (first.id, True)
    found = [app.get(job.id) for job in (first, own, count.enqueue(3))]
    assert [job.key for job in found] == ["welcome-7", "own", "3"]
    assert [job.concurrency_key for job in found] == ["acme", "mine", None]
    with pytest.raises(HandlerError, match=r"`key` of a handler is a function of its arguments"):
        app.job(kind="x", key="fixed")(lambda: None)  # type: ignore[call-overload]


def test_an_old_payload_is_upgraded_before_it_is_checked(app: tenure.App) -> None:
    """U20: a hook for payloads that an earlier version of the code enqueued."""

    def upgrade(stored: Any) -> Any:
        return {"user_id": stored["id"]} if "id" in stored else stored

    old = app.enqueue("welcome", {"id": 7})

    @app.job(kind="welcome", upgrade=upgrade)
    def welcome(user_id: int, greeting: str = "hello") -> str:
        return f"{greeting} {user_id}"

    new = welcome.enqueue(8, "hi")
    drain(app)

    assert (old.result(), new.result()) == ("hello 7", "hi 8")


def test_middleware_goes_around_every_handler(app: tenure.App) -> None:
    """U5: three shapes, in the order in which they were added, also around handlers that were there before."""
    seen: list[str] = []

    @app.job
    def plain(n: int) -> int:
        seen.append("plain")
        return n

    @app.middleware
    def around_all(ctx: tenure.Context) -> Iterator[None]:
        seen.append(f"> {ctx.kind}")
        try:
            yield
        except ValueError as exc:
            seen.append(f"! {exc}")
            raise
        seen.append(f"< {ctx.kind}")

    @app.middleware
    def around_sync(ctx: tenure.Context, call: tenure.CallNext) -> Any:
        seen.append(f"sync {ctx.attempt}")
        return call() + 1

    @app.middleware
    async def around_async(ctx: tenure.Context, call: tenure.AsyncCallNext) -> Any:
        seen.append("async")
        return await call() * 10

    @app.job
    async def later(ctx: tenure.Context, n: int, m: int) -> int:
        if n < 0:
            raise ValueError("negative")
        seen.append(ctx.kind)
        return n + m

    def ran(job: tenure.JobHandle[int]) -> list[str]:
        seen.clear()
        app.run_worker(drain=True, handle_signals=False)
        return list(seen)

    one = plain.enqueue(1)
    assert ran(one) == ["> plain", "sync 1", "plain", "< plain"]
    two = later.enqueue(1, 2)
    assert ran(two) == ["> later", "async", "later", "< later"]
    bad = later.enqueue(-1, 2)
    assert ran(bad) == ["> later", "async", "! negative"]

    assert (one.result(), two.result(), app.get(bad.id).shown_state) == (2, 30, "retry_waiting")


def test_a_function_of_another_shape_is_no_middleware() -> None:
    app = tenure.App("sqlite:///never-opened.db")

    async def generator(ctx: Any) -> Any:
        yield

    def too_few(ctx: Any) -> None: ...

    for function in (generator, too_few):
        with pytest.raises(HandlerError, match="is no middleware"):
            app.middleware(function)  # type: ignore[type-var]
