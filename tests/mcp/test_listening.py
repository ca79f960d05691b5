"""`subscriptions/listen`: who reads a job is told of its changes, in memory and over HTTP; nothing else is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client import NotificationBinding
from mcp.client.subscriptions import ListenNotSupportedError, ResourceUpdated
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict

import tenure.mcp
from tenure import App
from tenure.mcp.caller import Access
from tenure.mcp.listening import STREAMS_MAX
from tenure.mcp.server import make_server
from tests.mcp.conftest import Served, TasksSpoken, ask, until

pytestmark = pytest.mark.anyio
WAIT = 45.0


class Told(types.NotificationParams):
    """A task as it was told."""

    model_config = ConfigDict(extra="allow")


class TasksHeard(TasksSpoken):
    """A client that speaks MCP Tasks and listens to them."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[dict[str, Any]] = []

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        return [NotificationBinding(method="notifications/tasks", params_type=Told, handler=self.hear)]

    async def hear(self, params: Told) -> None:
        self.told.append(dict(params.model_extra or {}))


async def listen_to_tasks(client: Client, *ids: str) -> Any:
    """Until the stream ends."""
    wanted = types.SubscriptionFilter.model_validate({"taskIds": list(ids)})
    request = types.SubscriptionsListenRequest(params=types.SubscriptionsListenRequestParams(notifications=wanted))
    return await client.session.send_request(request, types.SubscriptionsListenResult)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path / 'listen.db'}", actor="test") as opened:
        yield opened


async def next_of(events: Any) -> Any:
    with anyio.fail_after(WAIT):
        return await anext(aiter(events))


async def test_a_client_is_told_of_the_jobs_that_it_named_and_of_no_others(app: App) -> None:
    app.queues.set("default", max_attempts=1, actor="test")
    mine, other = app.enqueue("k").id, app.enqueue("k").id
    uri = f"tenure://jobs/{mine}"
    letters = "tenure://dead-letters"
    async with Client(make_server(app, Access(("inspect", "triage")))) as client:
        wanted = [uri, f"{uri}/logs", letters, "tenure://jobs/none", f"tenure://jobs/{mine}x", "file:///etc/passwd"]
        async with client.listen(resource_subscriptions=wanted, tools_list_changed=True) as events:
            assert events.honored.resource_subscriptions == [uri, f"{uri}/logs", letters]
            assert not events.honored.tools_list_changed
            (first, second) = await app.aio.claim(limit=2)
            assert (first.id, second.id) == (mine, other)
            assert await next_of(events) == ResourceUpdated(uri=uri)
            await app.aio.fail(second, "broken")
            seen = set()
            while ResourceUpdated(uri=letters) not in seen:
                seen.add(await next_of(events))
            assert all(str(mine) in one.uri or one.uri == letters for one in seen)


async def test_what_a_caller_may_not_read_is_left_out_without_a_word(app: App) -> None:
    hidden = app.enqueue("secret").id
    uris = [f"tenure://jobs/{hidden}", f"tenure://jobs/{'0' * 8}-0000-7000-8000-{'0' * 12}", "tenure://dead-letters"]
    async with (
        Client(make_server(app, Access(("inspect",), kinds=("k",)))) as client,
        client.listen(resource_subscriptions=uris) as events,
    ):
        assert not events.honored.resource_subscriptions


async def test_streams_of_one_caller_are_bounded_and_old_protocols_have_none(app: App) -> None:
    server = make_server(app, Access(("inspect",)))
    uri = f"tenure://jobs/{app.enqueue('k').id}"
    async with Client(server) as client, anyio.create_task_group() as streams:
        opened = 0

        async def hold() -> None:
            nonlocal opened
            async with client.listen(resource_subscriptions=[uri]):
                opened += 1
                await asyncio.Event().wait()

        for _ in range(STREAMS_MAX):
            streams.start_soon(hold)
        with anyio.fail_after(WAIT):
            while opened < STREAMS_MAX:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(MCPError, match="wait already"):
            async with client.listen(resource_subscriptions=[uri]):
                pass
        streams.cancel_scope.cancel()
    async with Client(server, mode="legacy") as client:
        with pytest.raises(ListenNotSupportedError):
            async with client.listen(resource_subscriptions=[uri]):
                pass


async def test_the_owner_of_a_task_is_told_until_it_ends_and_others_are_not(served: Served) -> None:
    token = served.token("mcp", "enqueue:*")
    served.app.queues.set("heard", actor="test")
    heard, stranger = TasksHeard(), TasksHeard()
    async with (
        served.client(token=token, extensions=[heard]) as client,
        served.client("enqueue:*", "read:meta", extensions=[stranger]) as other,
        anyio.create_task_group() as group,
    ):
        group.start_soon(client.call_tool, "run", {"kind": "heard", "queue": "heard"})
        (task_id,) = await until(lambda: heard.ids)
        done = anyio.Event()

        async def listening() -> None:
            await listen_to_tasks(client, task_id)
            done.set()

        group.start_soon(listening)
        with anyio.move_on_after(3):
            await listen_to_tasks(other, task_id)
        await until(lambda: heard.told)
        (grant,) = await served.app.aio.claim(queues=["heard"], limit=1)
        await until(lambda: len(heard.told) >= 2)
        await served.app.aio.complete(grant, {"ok": 1})
        with anyio.fail_after(WAIT):
            await done.wait()

    assert heard.told[0]["status"] == "working"
    assert heard.told[-1]["status"] == "completed"
    assert heard.told[-1]["taskId"] == task_id
    assert heard.told[-1]["result"]["structuredContent"]["state"] == "succeeded"
    assert stranger.told == []


async def test_a_durable_tool_of_a_users_own_server_tells_of_its_tasks(app: App) -> None:
    durable = tenure.mcp.durable(app)
    server = MCPServer("own", extensions=[durable], middleware=[durable.notices])

    @server.tool()
    @durable()
    def build() -> str:
        """Claimed by hand here."""
        return ""

    foreign = app.enqueue("other").id
    heard = TasksHeard()
    async with Client(server, extensions=[heard]) as client, anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "build", {})
        (task_id,) = await until(lambda: heard.ids)
        done = anyio.Event()

        async def listening() -> None:
            await listen_to_tasks(client, task_id, foreign, "x")
            done.set()

        group.start_soon(listening)
        await until(lambda: heard.told)
        (grant,) = await app.aio.claim(queues=["tools"], limit=1)
        await app.aio.heartbeat([grant], progress={grant.id: {"message": "half of it"}})
        await until(lambda: any("half of it" in one["statusMessage"] for one in heard.told))
        await app.aio.complete(grant, {"content": [], "structuredContent": {"result": "done"}})
        with anyio.fail_after(WAIT):
            await done.wait()
        # What names no task is the server's own, and goes on as without us.
        async with client.listen(tools_list_changed=True) as events:
            assert events.honored.tools_list_changed

    assert {one["taskId"] for one in heard.told} == {task_id}
    assert heard.told[0]["status"] == "working"
    assert heard.told[-1]["status"] == "completed"
    assert heard.told[-1]["result"]["structuredContent"] == {"result": "done"}


async def test_a_revoked_token_ends_its_streams(served: Served) -> None:
    made = served.app.access.new_token("listener", ("mcp", "read:meta"))
    served.app.queues.set("revoked", actor="test")
    uri = f"tenure://jobs/{served.app.enqueue('k', queue='revoked').id}"
    async with (
        served.client(token=made.text) as client,
        client.listen(resource_subscriptions=[uri]) as events,
    ):
        served.app.access.revoke(made.token.id)
        with anyio.fail_after(WAIT):
            assert [one async for one in events] == []
    assert (await ask_counts(served)) is not None


async def ask_counts(served: Served) -> Any:
    """The server goes on."""
    async with served.client("read:meta") as client:
        return await ask(client, "overview")
