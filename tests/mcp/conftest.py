"""Clients and servers: the official client, and a real `tenure serve`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from pydantic import ConfigDict, SerializeAsAny

from tenure import App

WAIT = 60.0
TASKS = "io.modelcontextprotocol/tasks"


class TaskMade(types.Result):
    """The answer of a call that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str


class TaskParams(types.RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


class TaskRequest(types.Request[Any, Any]):
    method: str
    params: SerializeAsAny[TaskParams]
    name_param = "taskId"


class Whole(types.Result):
    """Any answer, with all its fields."""

    model_config = ConfigDict(extra="allow")


class TasksSpoken(ClientExtension):
    """What a client that speaks MCP Tasks does: polls until the task has ended."""

    identifier = TASKS

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.seen: list[dict[str, Any]] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=TaskMade, resolve=self.finish)]

    async def finish(self, made: TaskMade, ctx: ClaimContext) -> types.CallToolResult:
        self.ids.append(made.task_id)
        while True:
            task = await get_task(ctx.session, made.task_id)
            self.seen.append(task)
            if task["status"] not in {"working", "input_required"}:
                return types.CallToolResult.model_validate(
                    task.get("result")
                    or {"content": [], "isError": True, "structuredContent": {"status": task["status"]}}
                )
            await asyncio.sleep(0.1)


async def get_task(session: Any, task_id: str) -> dict[str, Any]:
    """One task as the server tells it."""
    return await ask_task(session, "tasks/get", TaskParams(task_id=task_id))


async def ask_task(session: Any, method: str, params: TaskParams) -> dict[str, Any]:
    """One of the methods of tasks."""
    answer = await session.send_request(TaskRequest(method=method, params=params), Whole)
    found: dict[str, Any] = answer.model_dump(by_alias=True)
    return found


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool, which must not be an error."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    found = answer.structured_content
    assert isinstance(found, dict)
    return found


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """The text of a tool's error."""
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.content
    return "".join(getattr(one, "text", "") for one in answer.content)


async def names(client: Client) -> list[str]:
    """The tools that a client sees."""
    return [tool.name for tool in (await client.list_tools()).tools]


async def until(found: Callable[[], Any]) -> Any:
    """Wait until another process, or another thread, has done something."""
    with anyio.fail_after(WAIT):
        while not (value := await asyncio.to_thread(found)):  # noqa: ASYNC110  it has no event to wait for
            await asyncio.sleep(0.05)
    return value


class Served:
    """A `tenure serve --mcp` that runs, and ways to reach it."""

    def __init__(self, app: App, url: str, process: subprocess.Popen[str]) -> None:
        self.app = app
        self.url = url
        self.process = process

    def token(self, *scopes: str, name: str = "agent") -> str:
        return self.app.access.new_token(name, scopes).text

    @asynccontextmanager
    async def client(self, *scopes: str, token: str | None = None, **settings: Any) -> AsyncIterator[Client]:
        """A client with a token of these scopes, and of `mcp`."""
        text = token or self.token("mcp", *scopes)
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {text}"}, timeout=60) as http,
            Client(streamable_http_client(f"{self.url}/mcp", http_client=http), **settings) as client,
        ):
            yield client


@contextmanager
def serving(database: str, *options: str) -> Iterator[Served]:
    """A real server over a database."""
    command = [sys.executable, "-m", "tenure", "serve", "--mcp", "--port", "0", "--json", "--url", database, *options]
    with App(database) as app:
        app.now()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            yield Served(app, json.loads(line)["url"], process)
        finally:
            process.terminate()
            process.wait(timeout=30)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server over a SQLite file, for all tests of a module: each takes kinds and queues of its own."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('served') / 'served.db'}") as found:
        yield found
