"""Workers move workflows: the one that settles a task folds its end, and the leader keeps what happens by time."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import tenure
from tenure.errors import Forbidden, UnknownQueue
from tenure.testing import drain
from tests.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "automechanica" / "main.py"


@asynccontextmanager
async def working(app: tenure.App, *more: str) -> AsyncIterator[None]:
    worker = app.worker(["A", "B", *more], handle_signals=False)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


def shop(url: str) -> tenure.App:
    app = tenure.App(url)

    @app.job(queue="A")
    def good(payload: dict[str, int]) -> dict[str, list[int]]:
        return {"items": [1, 2, 3]}

    @app.job(queue="B", max_attempts=1)
    def bad(payload: dict[str, int]) -> None:
        raise tenure.Permanent("never")

    return app


@pytest.mark.anyio
async def test_a_worker_takes_a_workflow_to_its_end_layer_by_layer(url: str) -> None:
    with shop(url) as app:
        flow = tenure.Workflow("layers")
        task = flow.task("t0", agent="A", task_type="good")
        for number in range(1, 6):
            task = flow.task(f"t{number}", agent="A", task_type="good", after=[task])
        flow.each("each", agent="A", task_type="good", over=task.result["items"])
        async with working(app):
            run = await app.aio.workflows.start(flow)
            await until(lambda: app.workflows.get(run.id).state == "completed")

        assert app.workflows.get(run.id).succeeded == 10


@pytest.mark.anyio
async def test_functions_of_the_app_are_tasks_by_themselves(url: str) -> None:
    app = tenure.App(url)

    @app.job(queue="A")
    def sizes(first: int, *, count: int) -> list[int]:
        return list(range(first, first + count))

    @app.job(queue="B")
    def resize(item: int, index: int) -> str:
        return f"{index}: {item}"

    with app:
        flow = tenure.Workflow("resize")
        made = flow.task("sizes", sizes, {"first": 5, "count": 2})
        flow.each("resized", resize, over=made.result)
        async with working(app):
            run = await app.aio.workflows.start(flow)
            await until(lambda: app.workflows.get(run.id).state == "completed")

        rows = app.workflows.tasks(run.id).items
        told = [await app.aio.result(row.job_id) for row in rows if row.name.startswith("resized/")]
        assert ([(row.name, row.agent) for row in rows], told) == (
            [("sizes", "A"), ("resized", "B"), ("resized/0", "B"), ("resized/1", "B")],
            ["0: 5", "1: 6"],
        )


@pytest.mark.anyio
async def test_the_leader_keeps_deadlines_and_ladders(url: str) -> None:
    with shop(url) as app:
        flow = tenure.Workflow(
            "late",
            on_breach="escalate",
            escalate_to=[
                tenure.Escalation(person="ann", after=timedelta(milliseconds=200)),
                tenure.Escalation(person="ben"),
            ],
        )
        flow.task("bad", agent="B", task_type="bad")
        async with working(app):
            run = await app.aio.workflows.start(flow)
            await until(lambda: bool(app.workflows.escalations(person="ben")))
            [asked] = app.workflows.escalations(run.id)
            app.workflows.answer(asked.id, "go_on", actor="ben")
            await until(lambda: app.workflows.get(run.id).state == "completed")

        assert [one.state for one in app.workflows.escalations(run.id, state=None)] == ["passed", "answered"]


def test_an_unknown_agent_is_told_before_anything_is_written(url: str) -> None:
    with shop(url) as app:
        flow = tenure.Workflow("typo")
        flow.task("t", agent="Fitmnt", task_type="good")
        app.agent("Fitment")

        with pytest.raises(UnknownQueue, match=r"no such agent or queue.*Fitment"):
            app.workflows.start(flow)

        assert app.workflows.all().items == []


def test_a_handler_of_an_agent_creates_work_for_no_other(url: str) -> None:
    """M9: a FitmentAgent handler created a PricingAgent task on all engines."""
    with tenure.App(url) as app:
        app.profiles.install("automechanica")
        fitment, pricing = app.agent("FitmentAgent"), app.agent("PricingAgent")

        @pricing.job(kind="refresh")
        def refresh(payload: dict[str, int]) -> None: ...

        @fitment.job(kind="own")
        def own(payload: dict[str, int], ctx: tenure.Context) -> None:
            ctx.enqueue("done", queue="FitmentAgent")

        @fitment.job(kind="done")
        def done(payload: dict[str, int]) -> None: ...

        @fitment.job(kind="reach", max_attempts=1)
        def reach(payload: dict[str, int], ctx: tenure.Context) -> None:
            ctx.enqueue("refresh", {"sku": 7})

        kept, refused = fitment.enqueue("own").id, fitment.enqueue("reach").id
        app.run_worker(["FitmentAgent", "PricingAgent"], drain=True, handle_signals=False)

        assert app.get(kept).state == "succeeded"
        assert app.get(refused).state == "dead"
        assert "may not create work for 'PricingAgent'" in (app.get(refused).last_error or "")
        assert app.jobs(queue="PricingAgent").items == []
        with pytest.raises(Forbidden, match="may not create work for 'PricingAgent'"):
            fitment.create_task("refresh", agent_name="PricingAgent")
        with pytest.raises(Forbidden):
            fitment.enqueue("refresh", {}, queue="PricingAgent")


def test_the_example_of_specification_001_runs(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, url], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("escalated: 1 of 8 tasks failed; fitment/3: ")
    assert lines[2] == "completed: 9 of 9 tasks succeeded"
    assert lines[3] == "refused: 'FitmentAgent' may not create work for 'PricingAgent'"
    assert lines[4].endswith("fits the Golf IV, rear axle")


# --- compensation ---


def booking(url: str) -> tuple[tenure.App, list[tuple[str, object]]]:
    """Tasks that note their undoing; `pay` fails for good."""
    app = tenure.App(url).use(tenure.compensation())
    undone: list[tuple[str, object]] = []

    @app.job(queue="A")
    def book(payload: dict[str, object]) -> dict[str, object]:
        return {"items": [1, 2]} | payload

    @app.job(queue="A")
    def unbook(payload: dict[str, object]) -> None:
        undone.append((str(payload["task"]), payload["result"]))

    @app.job(queue="B", max_attempts=1)
    def pay(payload: dict[str, object]) -> None:
        raise tenure.Permanent("no money")

    return app, undone


def trip(on_breach: str = "fail") -> tenure.Workflow:
    flow = tenure.Workflow("trip", on_breach=on_breach)  # type: ignore[arg-type]
    car = flow.task("car", agent="A", task_type="book", undo="unbook")
    hotel = flow.task("hotel", agent="A", task_type="book", after=[car], undo="unbook")
    map_ = flow.task("map", agent="A", task_type="book", after=[hotel])
    each = flow.each("room", agent="A", task_type="book", over=map_.result["items"], undo="unbook")
    flow.task("pay", agent="B", task_type="pay", after=[each])
    return flow


def test_what_completed_is_not_undone_by_a_job_that_anyone_may_enqueue(url: str) -> None:
    app, undone = booking(url)
    flow = tenure.Workflow("trip")
    flow.task("car", agent="A", task_type="book", undo="unbook")
    with app:
        run = app.workflows.start(flow)
        drain(app, queues=["A"])
        forged = app.enqueue("tenure.undo_workflow", {"workflow_id": run.id})
        drain(app, queues=["A", "compensation"], raise_errors=False)
        found = app.get(forged.id)

    assert (found.state, undone) == ("failed", [])
    assert "only what failed or was cancelled is undone" in (found.last_error or "")


@pytest.mark.anyio
@pytest.mark.parametrize("on_breach", ["fail", "drain"])
async def test_what_succeeded_is_undone_deepest_first_when_a_workflow_fails(url: str, on_breach: str) -> None:
    app, undone = booking(url)
    with app:
        async with working(app, "compensation"):
            run = await app.aio.workflows.start(trip(on_breach))
            await until(lambda: app.jobs(kind="tenure.undo_workflow", state="succeeded").items, 60)

        assert app.workflows.get(run.id).state == "failed"
        names = [name for name, _ in undone]
        assert sorted(names[:2]) == ["room/0", "room/1"]
        assert names[2:] == ["hotel", "car"]
        assert dict(undone)["hotel"] == {"items": [1, 2]}
        (job,) = app.jobs(kind="tenure.undo_workflow").items
        assert job.result == {"undone": 4}
        with pytest.raises(tenure.IllegalMove, match="is undone"):
            app.workflows.retry(run.id, reason="again")


@pytest.mark.anyio
async def test_a_cancelled_workflow_is_undone_after_its_last_task_has_ended(url: str) -> None:
    app, undone = booking(url)
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.job(queue="B")
    async def slow(payload: dict[str, object], ctx: tenure.Context) -> None:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await go_on.wait()
        await asyncio.shield(asyncio.create_task(go_on.wait()))

    flow = tenure.Workflow("trip")
    car = flow.task("car", agent="A", task_type="book", undo="unbook")
    flow.task("slow", agent="B", task_type="slow", after=[car])
    with app:
        async with working(app, "compensation"):
            run = await app.aio.workflows.start(flow)
            await began.wait()
            await app.aio.workflows.cancel(run.id, reason="not wanted")
            assert len(app.jobs(kind="tenure.undo_workflow").items) == 1
            assert undone == []
            go_on.set()
            await until(lambda: app.jobs(kind="tenure.undo_workflow", state="succeeded").items, 60)

    assert [name for name, _ in undone] == ["car"]


def test_a_workflow_with_undos_needs_someone_who_compensates(url: str) -> None:
    with shop(url) as app:
        app.queues.set("A")
        flow = tenure.Workflow("trip")
        flow.task("car", agent="A", task_type="good", undo="unbook")
        with pytest.raises(UnknownQueue, match="compensation"):
            app.workflows.start(flow)
