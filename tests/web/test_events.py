"""Live events: nothing lost and nothing twice over two servers, late commits, slow readers, revoked tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

import tenure
from tenure.observe.follow import Follower
from tenure.store.access import FindToken
from tenure.web import events
from tenure.web.auth import Principal
from tenure.web.hub import Hub
from tests.web.conftest import Server
from tests.web.test_bounds import asked
from tests.web.test_pages import signed_in
from tests.web.test_work import Gone, scope

pytestmark = pytest.mark.anyio


class Stream(Gone):
    """A browser that reads an event stream, through ASGI."""

    def __init__(self) -> None:
        super().__init__({})
        self.body = b""
        self.arrived: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.status = 0
        self.last_id = ""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        text = message.get("body", b"").decode()
        for block in text.split("\n\n"):
            lines = dict(line.partition(": ")[::2] for line in block.splitlines() if not line.startswith(":"))
            if "event" in lines:
                self.last_id = lines.get("id", self.last_id)
                await self.arrived.put({"name": lines["event"], "id": lines.get("id"), **json.loads(lines["data"])})

    async def next(self, name: str = "job") -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                found = await self.arrived.get()
                if found["name"] == name:
                    return found


@asynccontextmanager
async def watching(server: Server, token: str, *, last_id: str = "", topics: str = "jobs") -> AsyncIterator[Stream]:
    stream = Stream()
    sent = scope(token, "/api/v1/events")
    sent["method"] = "GET"
    sent["query_string"] = f"topics={topics}".encode()
    if last_id:
        sent["headers"].append((b"last-event-id", last_id.encode()))
    task = asyncio.create_task(server.asgi(sent, stream.receive, stream.send))
    try:
        if not last_id:
            await stream.next("ready")
        yield stream
    finally:
        stream.is_gone.set()
        await asyncio.wait_for(task, 20)


@asynccontextmanager
async def opened(server: Server, token: str, path: str, many: int) -> AsyncIterator[list[Stream]]:
    """Streams that are asked for at once, each with the status that it was answered."""
    streams = [Stream() for _ in range(many)]
    tasks = []
    for stream in streams:
        sent = scope(token, path)
        headers = [*sent["headers"], (b"accept", b"text/event-stream")]
        sent |= {"method": "GET", "query_string": b"", "headers": headers}
        tasks.append(asyncio.create_task(server.asgi(sent, stream.receive, stream.send)))
    try:
        async with asyncio.timeout(60):
            while not all(stream.status for stream in streams):  # noqa: ASYNC110  a dozen of them
                await asyncio.sleep(0.01)
        yield streams
    finally:
        for stream in streams:
            stream.is_gone.set()
        await asyncio.wait(tasks, timeout=60)


@pytest.fixture
def loud(server: Server) -> Server:
    server.app.queues.set("default", events=True)
    return server


async def test_events_arrive_as_they_happen_and_are_masked(loud: Server) -> None:
    token = loud.token("read:meta")

    async with watching(loud, token) as stream:
        job_id = (await loud.app.aio.enqueue("k", {"secret": "canary"})).id
        found = await stream.next()

    assert (found["kind"], found["job_id"], found["queue"]) == ("queued", job_id, "default")
    assert (found["data"], found["masked"]) == (None, True)


async def test_topics_choose(loud: Server) -> None:
    loud.app.queues.set("mail", events=True)
    token = loud.token("read:meta")

    async with watching(loud, token, topics="queue:mail") as stream:
        await loud.app.aio.enqueue("k")
        wanted = (await loud.app.aio.enqueue("k", queue="mail")).id
        found = await stream.next()

    assert found["job_id"] == wanted


async def test_a_stream_is_resumed_on_another_server_without_loss_and_without_repetition(loud: Server) -> None:
    token = loud.token("read:meta")
    other = Server(loud.app)
    seen = []

    async with watching(loud, token) as stream:
        for _ in range(3):
            await loud.app.aio.enqueue("k")
        seen += [(await stream.next())["seq"] for _ in range(3)]
        last_id = stream.last_id
    missed = [(await loud.app.aio.enqueue("k")).id for _ in range(2)]
    async with watching(other, token, last_id=last_id) as stream:
        again = [await stream.next() for _ in range(2)]
        live = (await loud.app.aio.enqueue("k")).id
        again.append(await stream.next())
        assert stream.arrived.empty()

    assert [event["job_id"] for event in again] == [*missed, live]
    assert not set(seen) & {event["seq"] for event in again}


@pytest.mark.postgres
async def test_an_event_that_commits_late_reaches_a_viewer_that_resumes_elsewhere(postgres_url: str) -> None:
    """A low number may commit after a higher one. A viewer that saw the higher one, lost its connection and came back
    to another server would miss the lower one if it resumed from the highest number that it had seen."""
    with tenure.App(postgres_url) as app:
        app.queues.set("default", events=True)
        first, second = Server(app), Server(app)
        token = first.token("read:meta")
        with psycopg.connect(postgres_url) as late:
            async with watching(first, token) as stream:
                slow = app.enqueue("slow", connection=late).id  # takes the lower number, and does not commit yet
                quick = (await app.aio.enqueue("quick")).id
                assert (await stream.next())["job_id"] == quick
                last_id = stream.last_id
            late.commit()
        async with watching(second, token, last_id=last_id) as stream:
            found = await stream.next()
            marker = (await app.aio.enqueue("marker")).id
            following = await stream.next()

    assert found["job_id"] == slow
    assert following["job_id"] == marker, "what was seen before is not sent again"


async def test_a_late_event_reaches_a_viewer_that_stays(loud: Server) -> None:
    if not loud.app.url.startswith("postgresql"):
        pytest.skip("SQLite has one writer: numbers commit in order")
    token = loud.token("read:meta")

    with psycopg.connect(loud.app.url) as late:
        async with watching(loud, token) as stream:
            slow = loud.app.enqueue("slow", connection=late).id
            quick = (await loud.app.aio.enqueue("quick")).id
            first = (await stream.next())["job_id"]
            late.commit()
            second = (await stream.next())["job_id"]

    assert (first, second) == (quick, slow)


async def test_a_revoked_token_ends_its_streams(small: Server) -> None:
    token = small.token("read:meta")

    async with watching(small, token) as stream:
        await small.app.aio.access.revoke(token.split("_")[1])
        await stream.next("end")


@pytest.mark.parametrize("wrong", ["17", "made-up", "AAAA"])
async def test_an_id_that_no_server_made_is_refused(small: Server, wrong: str) -> None:
    async with small.client(small.token("read:meta"), headers={"Last-Event-ID": wrong}) as client:
        assert (await client.get("/api/v1/events")).status_code == 400


async def test_an_id_of_another_tenant_is_refused(small: Server, tmp_path: Any) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as app:
        other = Server(app)
        async with watching(small, small.token("read:meta")) as stream:
            last_id = stream.last_id
        async with other.client(other.token("read:meta"), headers={"Last-Event-ID": last_id}) as client:
            assert (await client.get("/api/v1/events")).status_code == 400


async def test_streams_of_one_token_are_bounded(small: Server) -> None:
    few = Server(small.app, streams=1)
    token = few.token("read:meta")

    async with watching(few, token), few.client(token) as client:
        assert (await client.get("/api/v1/events")).status_code == 429


async def test_streams_that_are_asked_for_at_once_are_bounded_too(small: Server) -> None:
    """All are let in or refused before the first of them sends a byte."""
    few = Server(small.app, streams=3)
    token = few.token("read:meta")

    async with opened(few, token, "/api/v1/events", 12) as streams:
        statuses = sorted(stream.status for stream in streams)

    assert statuses == [200] * 3 + [429] * 9
    async with watching(few, token):
        pass  # those that ended have left their places


async def test_streams_of_one_tenant_are_bounded_and_its_neighbours_are_not(small: Server, tmp_path: Any) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'other.db'}") as other:
        both = Server({"a": small.app, "b": other}, tenant_streams=1)
        first, second = (small.app.access.new_token(name, "read:meta").text for name in ("one", "two"))
        neighbour = other.access.new_token("three", "read:meta").text

        async with watching(both, first), both.client(second) as client:
            refused = await client.get("/api/v1/events")
            assert (refused.status_code, refused.json()["code"]) == (429, "quota")
            async with watching(both, neighbour):
                pass
        async with watching(both, second):
            pass


async def test_streams_of_every_kind_share_the_bounds(small: Server) -> None:
    """Streams of a job were counted when their first byte was sent, and not among those of the tenant."""
    small.app.enqueue("talk")
    (grant,) = small.app.claim(worker="w")
    few, one = Server(small.app, streams=3), Server(small.app, tenant_streams=1)
    token, other = few.token("read:meta", "read:payload"), few.token("read:meta", "read:payload", name="other")
    path = f"/api/v1/jobs/{grant.id}/streams/output"

    async with opened(few, token, path, 12) as streams:
        statuses = sorted(stream.status for stream in streams)
        async with few.client(token) as client:
            events = await client.get("/api/v1/events")
    async with opened(few, token, path, 1) as freed:
        again = freed[0].status
    async with watching(one, token), one.client(other) as client, signed_in(one) as person:
        of_job = await client.get(path, headers={"Accept": "text/event-stream"})
        of_page = await person.get("/ui/changes?topic=all")

    assert statuses == [200] * 3 + [429] * 9
    assert (events.status_code, again) == (429, 200)
    assert (of_job.status_code, of_job.json()["code"]) == (429, "quota")
    assert of_page.status_code == 429


async def test_a_fault_of_one_look_silences_no_viewer(loud: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any error but one of the store's ended the tail, and those who listened to it heard nothing more."""
    token = loud.token("read:meta")
    plain, failed = Follower.poll, asyncio.Event()
    loop = asyncio.get_running_loop()

    def fails(_: Follower) -> Any:
        monkeypatch.setattr(Follower, "poll", plain)
        loop.call_soon_threadsafe(failed.set)
        raise RuntimeError("a fault")

    async with watching(loud, token) as stream:
        monkeypatch.setattr(Follower, "poll", fails)
        await asyncio.wait_for(failed.wait(), 20)
        job_id = (await loud.app.aio.enqueue("k")).id
        found = await stream.next()

    assert found["job_id"] == job_id


async def test_what_all_viewers_share_is_asked_and_made_once(small: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    small.app.queues.set("default", events=True)
    token = small.token("read:meta")
    made: list[int] = []
    plain = events._job_message

    def noted(event: Any, *given: Any, **more: Any) -> bytes:
        made.append(event.seq)
        return plain(event, *given, **more)

    monkeypatch.setattr(events, "_job_message", noted)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(watching(small, token)) for _ in range(5)]
        with asked(small) as requests:
            await small.app.aio.enqueue("k")
            seen = [(await stream.next())["seq"] for stream in streams]
            found = await small.app.aio.access.check_token(token)
            assert found is not None
            who = Principal("test", (), "default", small.app, "127.0.0.1", token_id=found.id)
            hub = Hub()
            before = len([one for one in requests if isinstance(one, FindToken)])
            assert all(await asyncio.gather(*(hub.may_look(who) for _ in range(20))))
            checks = len([one for one in requests if isinstance(one, FindToken)]) - before

    assert (made, set(seen), checks) == (seen[:1], set(seen[:1]), 1)


async def test_a_reader_that_lags_is_told_to_read_anew(small: Server) -> None:
    small.app.queues.set("default", events=True)
    tight = Server(small.app, stream_queue=3)
    token = tight.token("read:meta")

    async with watching(tight, token) as stream:
        await small.app.aio.enqueue_many([("k", {}) for _ in range(50)])
        await stream.next("resync")
        assert stream.arrived.qsize() <= 3


async def test_a_wrong_topic_is_refused(small: Server) -> None:
    async with small.client(small.token("read:meta")) as client:
        assert (await client.get("/api/v1/events", params={"topics": "nonsense"})).status_code == 400
