"""What a live page carries and what its stream tells: no change may fall between the two."""

from __future__ import annotations

import re
import threading
from typing import Any, cast
from urllib.parse import unquote

import httpx
import pytest

import tenure
from tenure.model.step import NewStep
from tenure.observe.browse import newest_events
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.flow import RecordSteps
from tenure.web.pages import _pulses, overview
from tenure.web.pages.changes import _messages
from tenure.web.pages.pulse import Look, OneLook, Pulse, take
from tests.web.conftest import Server
from tests.web.test_pages import signed_in

pytestmark = pytest.mark.anyio


def _stream_of(answer: httpx.Response) -> tuple[str, str]:
    """The topic that a page follows, and the marker that it was made with."""
    found = re.search(r'hx-sse:connect="[^"]*topic=([^"&]*)&amp;seen=([^"&]*)', answer.text)
    assert found is not None
    return unquote(found[1]), found[2]


async def _marker(client: httpx.AsyncClient, topic: str) -> str:
    return (await client.get("/ui/changes", params={"topic": topic, "once": "1"})).text


async def test_a_change_while_a_page_is_made_is_told_by_its_stream(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page had read its events when a job came; the look that its marker was made from was newer than that, so the
    page kept what it showed until something else changed."""
    app = small.app
    app.enqueue("welcome")
    read = newest_events

    def read_while_a_job_comes(store: Any, count: int) -> Any:
        found = read(store, count)
        app.enqueue("welcome")
        _pulses[app].forget()
        return found

    async with signed_in(small) as client:
        monkeypatch.setattr(overview, "newest_events", read_while_a_job_comes)
        page = await client.get("/ui/")
        topic, seen = _stream_of(page)
        marker = await _marker(client, topic)

    assert page.status_code == 200
    assert topic == "all"
    assert seen != marker


@pytest.mark.parametrize("what", ["a log line", "an effect", "a step", "the job itself"])
async def test_a_job_page_follows_all_that_it_shows(server: Server, what: str) -> None:
    app = server.app
    job_id = app.enqueue("welcome").id
    (grant,) = app.claim(worker="w-1")
    async with signed_in(server) as client:
        topic, seen = _stream_of(await client.get(f"/ui/jobs/{job_id}"))
        unchanged = await _marker(client, topic)
        if what == "a log line":
            app.store.do(AppendEvents(grant.id, grant.token, [tenure.NewEvent("log", '{"message": "on it"}')]))
        elif what == "an effect":
            app.store.do(
                RecordEffect(grant.id, grant.token, tenure.EffectRecord(name="mail", state="intended", args="{}"))
            )
        elif what == "a step":
            app.store.do(RecordSteps(grant.id, grant.token, [NewStep("charge")]))
        else:
            app.complete(grant)
        changed = await _marker(client, topic)

    assert seen == unchanged
    assert seen != changed


async def test_a_page_that_was_made_without_a_look_is_asked_for_anew() -> None:
    """Its health line says "Looking", so the first marker that comes is a change."""
    told = _messages(cast("Any", None), cast("Any", None), cast("Any", None), lambda: "5f3a", "", None)

    assert [await anext(told), await anext(told)] == ["retry: 3000\n\n", "id: 5f3a\nevent: change\ndata: 5f3a\n\n"]


async def test_a_page_that_shows_what_is_there_is_told_nothing(small: Server) -> None:
    async with signed_in(small) as client:
        topic, seen = _stream_of(await client.get("/ui/"))
        marker = await _marker(client, topic)

    assert seen == marker


def test_a_request_sees_one_look(small: Server) -> None:
    pulse = Pulse(small.app)
    one = OneLook(pulse)
    first = one.now()
    pulse.forget()

    assert pulse.now() is not first
    assert one.now() is first


def test_a_look_that_began_before_a_change_by_hand_is_taken_again(small: Server) -> None:
    began, go = threading.Event(), threading.Event()
    looks: list[Look] = []

    def slow(app: tenure.App) -> Look:
        found = take(app)
        if not looks:
            began.set()
            go.wait(60)
        looks.append(found)
        return found

    pulse = Pulse(small.app, slow)
    answered: list[Look | None] = []
    waits = threading.Thread(target=lambda: answered.append(pulse.now()))
    waits.start()
    assert began.wait(60)
    pulse.forget()
    go.set()
    waits.join(60)
    while (last := pulse.now()) is None:
        pass

    assert len(looks) >= 2
    assert last is not looks[0]
