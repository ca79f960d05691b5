"""U11: plain functions with several parameters are handlers, and are enqueued as they are called."""

from __future__ import annotations

from datetime import date
from typing import Any

import pydantic
import pytest

import tenure


class Size(pydantic.BaseModel):
    width: int
    height: int = 10


def drain(app: tenure.App) -> None:
    app.run_worker(drain=True, handle_signals=False)


def test_a_function_with_several_parameters_is_enqueued_as_it_is_called(app: tenure.App) -> None:
    """U11: one payload argument was all, and `enqueue(user_id=3)` answered "Did you mean 'run_id'?"."""

    @app.job
    def resize(image_id: int, width: int = 80, *, on: date | None = None, size: Size | None = None) -> list[Any]:
        return [image_id, width, str(on), None if size is None else size.height]

    jobs = [
        resize.enqueue(7, width=100),
        resize.enqueue(image_id=8, on=date(2026, 5, 1)),
        resize.options(key="9").enqueue(9, size=Size(width=3)),
        app.enqueue("resize", {"image_id": 10, "width": 1}),
        *resize.enqueue_many([(11, 2), {"image_id": 12}]),
    ]
    stored = [app.get(job.id).payload for job in jobs]
    drain(app)

    assert stored == [
        {"image_id": 7, "width": 100},
        {"image_id": 8, "on": "2026-05-01"},
        {"image_id": 9, "size": {"width": 3, "height": 10}},
        {"image_id": 10, "width": 1},
        {"image_id": 11, "width": 2},
        {"image_id": 12},
    ]
    assert [job.result() for job in jobs] == [
        [7, 100, "None", None],
        [8, 80, "2026-05-01", None],
        [9, 80, "None", 10],
        [10, 1, "None", None],
        [11, 2, "None", None],
        [12, 80, "None", None],
    ]


@pytest.mark.parametrize("place", ["first", "middle", "last", "by_name"])
def test_the_context_may_stand_anywhere(app: tenure.App, place: str) -> None:
    """U11: wherever it stands, it is no argument of the job."""
    seen: list[Any] = []

    def first(ctx: tenure.Context, a: int, b: int = 2) -> None:
        seen.append((ctx.kind, a, b))

    def middle(a: int, ctx: tenure.Context, b: int = 2) -> None:
        seen.append((ctx.kind, a, b))

    def last(a: int, b: int, ctx: tenure.Context) -> None:
        seen.append((ctx.kind, a, b))

    async def by_name(a: int, *, b: int = 2, ctx: tenure.Context) -> None:
        seen.append((ctx.kind, a, b))

    function: Any = {"first": first, "middle": middle, "last": last, "by_name": by_name}[place]
    app.job(kind="k")(function).enqueue(1, b=3)
    drain(app)

    assert seen == [("k", 1, 3)]


def test_context_first_and_one_payload(app: tenure.App) -> None:
    @app.job
    def shout(ctx: tenure.Context, word: str) -> str:
        return f"{ctx.kind} {word}"

    @app.job
    def whisper(word: str, *, ctx: tenure.Context) -> str:
        return f"{ctx.kind} {word}"

    jobs = shout.enqueue("a"), whisper.enqueue(word="b")  # type: ignore[call-arg]  # typed: the context comes first
    drain(app)

    assert [job.result() for job in jobs] == ["shout a", "whisper b"]
    assert [app.get(job.id).payload for job in jobs] == ["a", "b"]


def test_wrong_arguments_are_told_with_what_the_function_takes() -> None:
    """U11: the message names the function's parameters, and where options go."""
    app = tenure.App("sqlite:///never-opened.db")

    @app.job
    def resize(image_id: int, width: int = 80) -> None: ...

    call: Any = resize.enqueue
    with pytest.raises(tenure.InvalidArgument, match=r"resize\(image_id: .*missing a required argument: 'image_id'"):
        call()
    with pytest.raises(tenure.InvalidArgument, match=r"unexpected keyword argument 'user_id'\.$"):
        call(7, user_id=3)
    with pytest.raises(tenure.InvalidArgument, match=r"Options go by `resize.options\(key=…\)"):
        call(7, key="k")
    with pytest.raises(tenure.InvalidPayload, match=r"\$\.image_id: expected int, got str"):
        call("seven")
    with pytest.raises(tenure.InvalidPayload, match=r"\$\.widht: there is no such field"):
        app.new_job("resize", {"image_id": 7, "widht": 80})


def test_a_parameter_may_be_added_while_jobs_wait(app: tenure.App) -> None:
    """A job that was stored with its only argument as the payload is run by the function that takes one more."""

    @app.job(kind="resize")
    def before(image_id: int) -> int:
        return image_id

    waiting = before.enqueue(7)

    later = tenure.App(app.url)

    @later.job(kind="resize")
    def after(image_id: int, width: int = 80) -> list[int]:
        return [image_id, width]

    with later:
        drain(later)
    assert app.get(waiting.id).result == [7, 80]


def test_a_default_of_the_only_parameter_is_the_payload(app: tenure.App) -> None:
    @app.job
    def greet(name: str = "world") -> str:
        return f"hello {name}"

    jobs = greet.enqueue(), app.enqueue("greet"), greet.enqueue("Ada")
    drain(app)

    assert [job.result() for job in jobs] == ["hello world", "hello world", "hello Ada"]
