"""The output of a running job: by offset, as server-sent events that resume, and on the job's page."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import tenure
from tenure.model.stream import NewChunk
from tenure.store.streams import AppendStreams
from tests.web.conftest import Server
from tests.web.test_pages import _text, signed_in

pytestmark = pytest.mark.anyio


def held(app: tenure.App) -> Any:
    app.enqueue("talk")
    (grant,) = app.claim(worker="w")
    return grant


def write(app: tenure.App, grant: Any, *texts: str, part: int = 1, name: str = "output") -> None:
    chunks = [NewChunk(grant.id, grant.token, name, part + nth, text) for nth, text in enumerate(texts)]
    app.store.do(AppendStreams(chunks))


def taken_over(app: tenure.App, grant: Any) -> Any:
    """The same job, held by a newer grant."""
    app.fail(grant, "ConnectionError: gone", retry_after=0)
    (newer,) = app.claim(worker="w-2")
    return newer


def messages(text: str) -> list[tuple[str, str, Any]]:
    """(id, event, data) of each server-sent message."""
    found = []
    for block in text.split("\n\n"):
        told = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in told:
            data = told["data"]  # that of a change is a bare marker
            found.append((told.get("id", ""), told["event"], json.loads(data) if told["event"] != "change" else data))
    return found


async def test_a_stream_is_read_by_offset_and_says_when_it_has_ended(server: Server) -> None:
    app = server.app
    grant = held(app)
    write(app, grant, "Hel", "lo")
    path = f"/api/v1/jobs/{grant.id}/streams"

    async with server.client(server.token("read:payload", "read:meta")) as client:
        listed = (await client.get(path)).json()["items"]
        first = (await client.get(f"{path}/output", params={"limit": 1})).json()
        rest = (await client.get(f"{path}/output", params={"after": first["next"]})).json()
        newer = taken_over(app, grant)
        write(app, newer, "Again")
        again = (await client.get(f"{path}/output", params={"after": rest["next"]})).json()
        app.complete(newer, {})
        ended = (await client.get(f"{path}/output", params={"after": again["next"]})).json()

    assert [(one["name"], one["last_offset"]) for one in listed] == [("output", 2)]
    assert ([one["text"] for one in first["chunks"]], first["ended"]) == (["Hel"], False)
    assert [one["text"] for one in rest["chunks"]] == ["lo"]
    assert [(one["kind"], one["text"]) for one in again["chunks"]] == [("reset", ""), ("text", "Again")]
    assert (ended["chunks"], ended["ended"], ended["next"]) == ([], True, again["next"])
    assert [row.act for row in app.access.audit(limit=100)].count("http:read_stream") == 4


async def test_it_is_followed_to_its_end_and_resumed_behind_the_last_event(server: Server) -> None:
    app = server.app
    grant = held(app)
    write(app, grant, "a\nb", "c")
    path = f"/api/v1/jobs/{grant.id}/streams/output"
    headers = {"Accept": "text/event-stream"}

    async with server.client(server.token("read:payload"), timeout=60) as client:
        following = asyncio.create_task(client.get(path, headers=headers))
        await asyncio.to_thread(write, app, grant, "d", part=3)
        await asyncio.to_thread(app.complete, grant, {})
        whole = messages((await following).text)
        resumed = messages((await client.get(path, headers={**headers, "Last-Event-ID": "2"})).text)
        wrong = await client.get(path, headers={**headers, "Last-Event-ID": "x"})

    assert [(one, event, data.get("text")) for one, event, data in whole] == [
        ("1", "text", "a\nb"),
        ("2", "text", "c"),
        ("3", "text", "d"),
        ("", "end", None),
    ]
    assert [(one, event) for one, event, _ in resumed] == [("3", "text"), ("", "end")]
    assert wrong.status_code == 400


async def test_without_the_scope_for_payloads_no_text_is_told(small: Server) -> None:
    app = small.app
    grant = held(app)
    write(app, grant, "the secret plan")

    async with small.client(small.token("read:meta", "operate")) as client:
        read = await client.get(f"/api/v1/jobs/{grant.id}/streams/output")
    async with signed_in(small, "read:meta") as client:
        page = await client.get(f"/ui/jobs/{grant.id}?tab=output")

    assert read.status_code == 403
    assert page.status_code == 200
    assert "secret plan" not in page.text
    assert "needs the scope" in _text(page)


async def test_the_page_shows_the_output_of_the_last_attempt_and_escapes_it(server: Server) -> None:
    app = server.app
    grant = held(app)
    write(app, grant, "the first attempt")
    newer = taken_over(app, grant)
    write(app, newer, "<script>alert(1)</script>", "done")

    async with signed_in(server) as client:
        running = await client.get(f"/ui/jobs/{grant.id}?tab=output")
        app.complete(newer, {})
        ended = await client.get(f"/ui/jobs/{grant.id}?tab=output")

    assert "the first attempt" not in running.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;done" in running.text
    assert "&amp;output=output&amp;after=4" in running.text
    assert "Started anew" in _text(running)
    assert "has ended, and so has its output" in _text(ended)


async def test_pieces_come_to_the_page_by_its_one_stream(small: Server) -> None:
    app = small.app
    grant = held(app)
    write(app, grant, "one", "two")

    async with signed_in(small) as client:
        path = f"/ui/changes?topic=job:{grant.id}&output=output&after=1"
        reading = asyncio.create_task(_first_chunk(small, client.cookies, path))
        found = await asyncio.wait_for(reading, 30)

    assert found == ("two", 2)


async def _first_chunk(server: Server, cookies: Any, path: str) -> tuple[str, int]:
    """The first piece that the page's stream brings. Asked of the ASGI app itself: a test client waits for the end."""
    got: asyncio.Queue[str] = asyncio.Queue()
    where, _, query = path.partition("?")
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": where, "raw_path": where.encode(),
        "query_string": query.encode(), "scheme": "http", "server": ("127.0.0.1", 8400), "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"127.0.0.1:8400"), (b"cookie", cookie.encode()), (b"accept", b"text/event-stream")],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await got.put(message["body"].decode())

    serving = asyncio.create_task(server.asgi(scope, receive, send))
    try:
        text = ""
        while True:
            text += await got.get()
            for _, event, data in messages(text if text.endswith("\n\n") else ""):
                if event == "chunk":
                    return data["text"], data["offset"]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
