"""What a live page carries and what its stream tells: no change may fall between the two."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, cast
from urllib.parse import unquote

import httpx
import pytest

import tenure
from tenure.errors import TooWide
from tenure.model.step import NewStep
from tenure.observe.browse import newest_events
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.flow import RecordSteps
from tenure.web.pages import _pulses, overview
from tenure.web.pages.changes import _messages
from tenure.web.pages.pulse import SHARED_SECONDS, Look, OneLook, Pulse, take
from tests.waiting import wait_until
from tests.web.conftest import Server
from tests.web.test_pages import SAME_ORIGIN, signed_in

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

    async def marker() -> str:
        return "5f3a"

    told = _messages(cast("Any", None), cast("Any", None), cast("Any", None), marker, "", None)

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


def test_the_first_viewer_after_a_quiet_hour_is_not_shown_what_was_there_an_hour_ago(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse, clock = Pulse(small.app), [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    first = pulse.now()
    assert first is not None
    small.app.enqueue("welcome", {"to": "x"})

    clock[0] += 3600
    later = pulse.now()

    assert later is not None
    assert (first.outstanding, later.outstanding) == (0, 1)


def test_what_many_viewers_read_at_once_is_read_once(small: Server) -> None:
    pulse, all_ask, reads = Pulse(small.app), threading.Barrier(21), list[int]()

    def read() -> int:
        reads.append(1)
        return len(reads)

    def ask() -> int:
        all_ask.wait(60)
        return pulse.shared("jobs", None, read)

    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(ask) for _ in range(20)]
        all_ask.wait(60)
        found = {one.result(60) for one in asked}

    assert (found, len(reads)) == ({1}, 1)


def test_a_read_that_takes_long_is_not_begun_anew_by_each_that_waited_for_it(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reads, waits = [1000.0], list[int](), threading.Event()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    pulse = Pulse(small.app)

    def read() -> int:
        clock[0] += 1
        reads.append(1)
        waits.wait(60)
        clock[0] += 1  # two seconds in all
        return len(reads)

    with ThreadPoolExecutor(5) as threads:
        asked = [threads.submit(pulse.shared, "jobs", None, read) for _ in range(5)]
        wait_until(lambda: bool(reads), 60)
        waits.set()
        found = {one.result(60) for one in asked}

    assert (found, len(reads)) == ({1}, 1)


def test_a_read_that_was_too_wide_is_not_tried_again_by_each_that_waited_for_it(small: Server) -> None:
    pulse, reads = Pulse(small.app), list[int]()

    def read() -> None:
        reads.append(1)
        raise TooWide(2.0)

    for _ in range(5):
        with pytest.raises(TooWide):
            pulse.shared("jobs", None, read)

    assert len(reads) == 1


def test_a_shared_read_is_good_for_a_moment_and_never_older_than_the_look_of_its_page(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's marker is made from its look: a page that showed less would not be told of what it lacks."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    pulse, reads = Pulse(small.app), count(1)
    look = take(small.app)

    def read(of: Look | None) -> int:
        return pulse.shared("jobs", of, lambda: next(reads))

    first = [read(look), read(look)]
    clock[0] += 0.5
    newer = [read(look), read(take(small.app)), read(look)]
    clock[0] += SHARED_SECONDS + 0.01
    later = read(look)
    pulse.forget_reads()
    forgotten = read(look)
    pulse.forget()

    assert (first, newer, later, forgotten, read(look)) == ([1, 1], [1, 2, 2], 3, 4, 5)


async def test_a_person_sees_what_they_have_just_done(small: Server) -> None:
    """What pages share is read anew behind every act, whatever the act tells."""
    async with signed_in(small) as client:
        before = await client.get("/ui/jobs")
        await client.post("/ui/enqueue", data={"kind": "welcome", "payload": "{}"}, headers=SAME_ORIGIN)
        after = await client.get("/ui/jobs")

    assert "welcome" not in before.text
    assert "welcome" in after.text


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
