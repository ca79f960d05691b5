"""MCP Tasks on durable jobs: real servers and workers, clients with and without the extension, kill -9 in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server import MCPServer
from mcp.server.mcpserver import Context as RequestContext
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

import tenure.mcp
from tenure import App, Backoff, Context
from tenure.errors import HandlerError
from tenure.mcp.tasks import wait_for_end
from tenure.model.job import Job
from tests.mcp.conftest import Served, TaskParams, TasksSpoken, UpdateParams, ask, ask_task, get_task, refused, until
from tests.waiting import wait_until

pytestmark = pytest.mark.anyio
REPORTS = '''
import os
import time

from mcp.server import MCPServer

import tenure
import tenure.mcp

app = tenure.App()
app.queue("tools", lease_seconds=60, backoff=tenure.Backoff(shape="none"))
durable = tenure.mcp.durable(app, queue="tools")
server = MCPServer("reports", extensions=[durable])


@server.tool()
@durable(max_attempts=5)
def build(pages: int, ctx: tenure.Context) -> str:
    """Build a report."""
    if "HANG" in os.environ:
        ctx.progress({"message": "the first half"})
        time.sleep(600)
    return f"{pages} pages at attempt {ctx.attempt}"


if __name__ == "__main__":
    server.run("stdio")
'''


class Reports:
    """A server of a user's own in a file, its database, and workers for it."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "reports.py").write_text(REPORTS)
        self.folder = folder
        self.environment = {**os.environ, "TENURE_URL": url, "PYTHONPATH": str(folder)}
        self.server = StdioServerParameters(
            command=sys.executable, args=["reports.py"], env=self.environment, cwd=folder
        )

    @contextmanager
    def worker(self, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "tenure", "worker", "reports:app", "--queue", "tools"]
        process = subprocess.Popen(command, env=self.environment | more, cwd=self.folder, start_new_session=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


async def test_a_task_whose_worker_is_killed_completes_at_attempt_2(url: str, tmp_path: Path) -> None:
    reports, tasks = Reports(tmp_path, url), TasksSpoken()
    with App(url) as app:
        async with Client(reports.server, extensions=[tasks]) as client, asyncio.TaskGroup() as group:
            with reports.worker(HANG="1") as first:
                call = group.create_task(client.call_tool("build", {"pages": 7}))
                (job,) = await until(lambda: [one for one in app.jobs(queue="tools").items if one.progress])
                await until(lambda: any("the first half" in one.get("statusMessage", "") for one in tasks.seen))
                os.kill(first.pid, signal.SIGKILL)
                first.wait(timeout=30)
            assert app.workers.remove([job.lease_owner or ""])
            with reports.worker():
                answer = await call

        assert not answer.is_error
        assert answer.structured_content == {"result": "7 pages at attempt 2"}
        assert tasks.ids == [job.id]
        assert {one["status"] for one in tasks.seen} == {"working", "completed"}
        assert all(one["ttlMs"] == 7 * 86_400_000 and 500 <= one["pollIntervalMs"] <= 10_000 for one in tasks.seen)


async def test_a_client_without_the_extension_gets_the_answer_inline(tmp_path: Path) -> None:
    reports = Reports(tmp_path, f"sqlite:///{tmp_path / 'inline.db'}")
    with reports.worker():
        for mode in ("auto", "legacy"):
            async with Client(reports.server, mode=mode) as client:
                (tool,) = (await client.list_tools()).tools
                assert set(tool.input_schema["properties"]) == {"pages"}
                assert await ask(client, "build", pages=3) == {"result": "3 pages at attempt 1"}


@contextmanager
def running(app: App, queue: str) -> Iterator[None]:
    """A worker of this process."""
    worker = app.worker([queue], concurrency=2, handle_signals=False, grace_seconds=1.0)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(30)


@contextmanager
def listening(site: Any) -> Iterator[str]:
    """A server of this process, on a loop of its own."""
    server = uvicorn.Server(uvicorn.Config(site, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path / 'own.db'}") as found:
        yield found


async def test_durable_tools_are_checked_and_end_as_mcp_has_it(app: App) -> None:
    durable = tenure.mcp.durable(app)
    server = MCPServer("own", extensions=[durable])
    calls: list[int] = []

    @server.tool()
    @durable(max_attempts=1)
    async def half(number: int) -> float:
        """Half of it."""
        if number == 13:
            raise ToolError("13 brings bad luck")
        calls.append(number)
        return number / (0 if number == 0 else 2)

    with running(app, "tools"):
        for extensions in ([], [TasksSpoken()]):
            async with Client(server, extensions=extensions) as client:
                assert await ask(client, "half", number=5) == {"result": 2.5}
                wrong = await client.call_tool("half", {"number": "five"})
                assert wrong.is_error
                unlucky = await client.call_tool("half", {"number": 13})
                assert unlucky.is_error
                assert "bad luck" in str(unlucky.content)
                broken = await client.call_tool("half", {"number": 0})
                assert broken.is_error
                assert "ended as dead" in str(broken.content)
                assert "ZeroDivision" not in str(broken.content)

    assert calls == [5, 0, 5, 0]
    assert sorted(str(one.state) for one in app.jobs(queue="tools").items) == ["dead"] * 2 + ["succeeded"] * 4


async def test_a_durable_tool_cannot_take_the_context_of_a_request(app: App) -> None:
    durable = tenure.mcp.durable(app)

    def wrong(ctx: RequestContext) -> str:
        return ""

    with pytest.raises(HandlerError, match=r"tenure\.Context"):
        durable()(wrong)


async def test_a_client_that_waits_is_told_of_progress_if_it_asked(app: App) -> None:
    durable = tenure.mcp.durable(app)
    server = MCPServer("own", extensions=[durable])
    app.queues.set("tools", backoff=Backoff(shape="none"), actor="test")
    go_on = {word: threading.Event() for word in ("half", "more", "again")}
    told: list[tuple[float, float | None, str | None]] = []

    @server.tool()
    @durable(max_attempts=2)
    def build(ctx: Context) -> str:
        """Build it."""
        if ctx.attempt == 1:
            ctx.progress(0.5, "half of it")
            assert go_on["half"].wait(60)
            ctx.progress(0.9)
            assert go_on["more"].wait(60)
            raise ValueError
        ctx.progress(0.1)
        ctx.progress(0.95, "nearly")
        assert go_on["again"].wait(60)
        return "done"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))
        for word, part in (("half", "half of it"), ("more", "90%"), ("again", "nearly")):
            if part in (message or ""):
                go_on[word].set()

    with running(app, "tools"):
        async with Client(server) as client:
            answer = await client.call_tool("build", {}, progress_callback=hear)
            quiet = await client.call_tool("build", {})

    assert answer.structured_content == {"result": "done"}
    assert quiet.structured_content == {"result": "done"}
    numbers = [number for number, _, _ in told]
    assert numbers == sorted(set(numbers)), "they rise, also over attempts"
    assert {(0.5, 1.0), (0.9, 1.0), (0.95, 1.0)} <= {(number, total) for number, total, _ in told}
    assert told[-1][2] == "running, attempt 2 of 2, 95%: nearly"


async def test_a_server_without_the_extension_is_told_so(app: App) -> None:
    durable = tenure.mcp.durable(app)
    server = MCPServer("own")

    @server.tool()
    @durable()
    def build() -> str:
        """Build it."""
        return ""

    async with Client(server) as client:
        answer = await client.call_tool("build", {})

    assert "extensions=[durable]" in str(answer.content)
    assert app.jobs(queue="tools").items == []


async def test_a_client_is_kept_waiting_no_longer_than_the_server_says(app: App) -> None:
    durable = tenure.mcp.durable(app, wait_seconds=0.1)
    server = MCPServer("own", extensions=[durable])

    @server.tool()
    @durable()
    def slow(ctx: Context) -> str:
        """Never run here."""
        return ""

    async with Client(server) as client:
        answer = await client.call_tool("slow", {})

    assert '"result_timeout"' in str(answer.content)
    assert len(app.jobs(queue="tools").items) == 1


async def test_a_task_is_cancelled_and_unknown_ones_are_not_found(app: App) -> None:
    durable = tenure.mcp.durable(app)
    server = MCPServer("own", extensions=[durable])

    @server.tool()
    @durable()
    def slow() -> str:
        """Never run here."""
        return ""

    other = app.enqueue("not-a-tool")
    tasks = TasksSpoken()
    async with Client(server, extensions=[tasks]) as client, asyncio.TaskGroup() as group:
        call = group.create_task(client.call_tool("slow", {}))
        await until(lambda: tasks.ids)
        (task_id,) = tasks.ids
        assert await ask_task(client.session, "tasks/cancel", TaskParams(task_id=task_id)) is not None
        assert (await call).is_error
        assert (await get_task(client.session, task_id))["status"] == "cancelled"
        assert await ask_task(client.session, "tasks/cancel", TaskParams(task_id=task_id)) is not None
        for unknown in (other.id, str(uuid.uuid4()), "x", ""):
            for method in ("tasks/get", "tasks/cancel"):
                with pytest.raises(MCPError, match="no such task"):
                    await ask_task(client.session, method, TaskParams(task_id=unknown))

    assert app.get(other.id).state == "queued"
    async with Client(server) as plain:
        with pytest.raises(MCPError, match="extension"):
            await get_task(plain.session, task_id)


async def test_an_approval_makes_a_task_ask_for_input(app: App) -> None:
    durable = tenure.mcp.durable(app, person=lambda _: "ada")
    server = MCPServer("own", extensions=[durable])

    @server.tool()
    @durable(durable=True)
    def remove(rows: int, ctx: Context) -> str:
        """Remove them."""
        answer = ctx.approve("remove", args={"rows": rows}, text="May they go?")
        return f"removed {answer.args['rows']}" if answer else "kept"

    tasks = TasksSpoken()
    with running(app, "tools"):
        async with Client(server, extensions=[tasks]) as client, asyncio.TaskGroup() as group:
            for choice, outcome in ((True, "removed 7"), (False, "kept")):
                call = group.create_task(client.call_tool("remove", {"rows": 7}))
                task = await until(lambda: next((one for one in tasks.seen if one["status"] == "input_required"), None))
                ((asked, form),) = task["inputRequests"].items()
                assert '{"rows":7}' in form["params"]["message"]
                task_id = task["taskId"]
                for answers in ({"unknown": {"action": "accept"}}, {asked: {"action": "cancel"}}, {asked: "yes"}):
                    await ask_task(
                        client.session, "tasks/update", UpdateParams(task_id=task_id, input_responses=answers)
                    )
                assert app.approvals.get(asked).state == "pending"
                said = {asked: {"action": "accept", "content": {"approve": choice, "note": "so be it"}}}
                await ask_task(client.session, "tasks/update", UpdateParams(task_id=task_id, input_responses=said))
                (vote,) = app.approvals.get(asked).votes
                assert (vote.voter, vote.note, vote.door) == ("ada", "so be it", "mcp")
                assert (await call).structured_content == {"result": outcome}
                tasks.seen.clear()


async def test_without_a_person_at_the_client_a_task_that_waits_for_an_approval_is_working(app: App) -> None:
    durable = tenure.mcp.durable(app)
    server = MCPServer("own", extensions=[durable])

    @server.tool()
    @durable(durable=True)
    def remove(ctx: Context) -> bool:
        """Remove it."""
        return bool(ctx.approve("remove", args={}))

    tasks = TasksSpoken()
    with running(app, "tools"):
        async with Client(server, extensions=[tasks]) as client, asyncio.TaskGroup() as group:
            call = group.create_task(client.call_tool("remove", {}))
            (asked,) = await until(lambda: app.approvals.all().items)
            task = await get_task(client.session, asked.job_id)
            assert (task["status"], "inputRequests" in task) == ("working", False)
            app.approvals.approve(asked.id, by="ada", args_hash=asked.args_hash)
            assert (await call).structured_content == {"result": True}


# --- `run` of Tenure's own server


async def test_run_is_a_task_for_those_who_speak_it_and_its_owner_alone_sees_it(served: Served) -> None:
    served.app.queues.set("run", actor="test")
    one, two = served.token("mcp", "enqueue:*", "read:payload"), served.token("mcp", "enqueue:*", "read:meta", "admin")
    tasks, others = TasksSpoken(), TasksSpoken()
    async with (
        served.client(token=one, extensions=[tasks]) as client,
        served.client(token=two, extensions=[others]) as other,
        served.client("worker:queue=run") as worker,
        asyncio.TaskGroup() as group,
    ):
        call = group.create_task(client.call_tool("run", {"kind": "k", "payload": 1, "queue": "run"}))
        held = (await ask(worker, "claim", seconds=25))["job"]
        await until(lambda: tasks.ids)
        assert tasks.ids == [held["job_id"]]
        for method in ("tasks/get", "tasks/cancel", "tasks/update"):
            params = UpdateParams(task_id=held["job_id"], input_responses={})
            with pytest.raises(MCPError, match="no such task"):
                await ask_task(other.session, method, params)
        await ask(worker, "complete", job_id=held["job_id"], token=held["token"], result={"sum": 3})
        answer = await call
        assert answer.structured_content is not None
        assert answer.structured_content["untrusted"]["result"] == {"sum": 3}
        dead = group.create_task(client.call_tool("run", {"kind": "k", "queue": "run"}))
        served.app.queues.set("run", max_attempts=1, actor="test")
        held = (await ask(worker, "claim", seconds=25))["job"]
        served.app.cancel(held["job_id"])
        await ask(worker, "fail", job_id=held["job_id"], token=held["token"], error="broken")
        assert (await dead).is_error


async def test_run_without_the_extension_answers_inline(served: Served) -> None:
    served.app.queues.set("inline", actor="test")
    async with (
        served.client("enqueue:*") as client,
        served.client("worker:queue=inline") as worker,
        asyncio.TaskGroup() as group,
    ):
        call = group.create_task(ask(client, "run", kind="k", queue="inline"))
        held = (await ask(worker, "claim", seconds=25))["job"]
        await ask(worker, "complete", job_id=held["job_id"], token=held["token"], result=1)
        answer = await call
        assert answer["ended"]
        assert answer["job_id"] == held["job_id"]
        assert "result" not in answer["untrusted"]
        short = await ask(client, "run", kind="k", queue="inline", seconds=0)
        assert short["ended"] is False
        assert served.app.get(short["job_id"]).state == "queued"


async def test_a_key_that_a_foreign_job_holds_tells_nothing_of_that_job(served: Served) -> None:
    """`run` answered with the foreign job as a task, and `enqueue` with its id."""
    served.app.queues.set("keys", actor="test")
    foreign = served.app.enqueue("k", {"n": 1}, queue="keys", key="taken", actor="bob")
    tasks = TasksSpoken()
    async with (
        served.client("enqueue:*", "read:payload", extensions=[tasks]) as speaks,
        served.client("enqueue:*", "read:payload") as plain,
        served.client("enqueue:*", "read:meta") as sees,
    ):
        for client in (speaks, plain):
            for tool in ("run", "enqueue"):
                told = await refused(client, tool, kind="k", payload={"n": 1}, queue="keys", key="taken")
                assert '"forbidden"' in told
                assert foreign.id not in told
        assert tasks.ids == []
        same = await ask(sees, "enqueue", kind="k", payload={"n": 1}, queue="keys", key="taken")
        assert same == {"job_id": foreign.id}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_nothing_waits_for_a_durable_tool_whose_client_has_gone_away(
    app: App, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without workers the job never ends, and the database would be asked for ever for each client that has left."""
    left = threading.Event()

    async def watched(look: Any, seconds: float | None) -> Job:
        try:
            return await wait_for_end(look, seconds)
        finally:
            left.set()

    monkeypatch.setattr("tenure.mcp.durable_tools.wait_for_end", watched)
    durable = tenure.mcp.durable(app)
    server = MCPServer("own", extensions=[durable])

    @server.tool()
    @durable()
    def build(pages: int) -> int:
        """Build it."""
        return pages

    with listening(server.streamable_http_app(stateless_http=True)) as url:
        async with Client(f"{url}/mcp", mode=mode) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "build", {"pages": 3})
            await until(lambda: app.jobs(queue="tools").items)
            assert not left.is_set()
            group.cancel_scope.cancel()
        await until(left.is_set)
    assert [one.state for one in app.jobs(queue="tools")] == ["queued"]
