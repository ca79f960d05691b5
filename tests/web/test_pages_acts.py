"""Acts of the console that change a job by hand, and lists that go further back: exact, fenced, audited."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

import tenure
from tenure.effects.bulk_payload import BulkFilter
from tenure.model.clock import ManualClock
from tenure.model.schedule import Schedule
from tenure.store.schedules import TickSchedule
from tenure.web import bulk_acts
from tenure.web.pages.job_edit import exact_json
from tenure.web.pages.schedules import last_ticks
from tests.web.conftest import Server
from tests.web.test_pages import VECTORS, _text, signed_in

pytestmark = pytest.mark.anyio


def _area(answer: httpx.Response) -> str:
    found = re.search(r"<textarea[^>]*>(.*?)</textarea>", answer.text, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def _version(answer: httpx.Response) -> str:
    found = re.search(r'name="version" value="([^"]+)"', answer.text)
    assert found is not None
    return found[1]


async def test_a_waiting_payload_is_edited_exactly_and_in_place(server: Server) -> None:
    payload = {"to": "user@exmaple.org", "id": 2**53 + 1, "password": "hunter2", "odd": "a\u202egnp.exe\x7f\u2028 ü"}
    job_id = server.app.enqueue("welcome", payload, key="once").id

    async with signed_in(server) as client:
        form = await client.get(f"/ui/jobs/{job_id}/edit")
        shown = _area(form)
        text = shown.replace("exmaple", "example")
        told = {"payload": text, "version": _version(form), "priority": "7", "reason": "a typing error"}
        done = await client.post(f"/ui/jobs/{job_id}/edit", data=told)

    now = server.app.get(job_id)
    assert json.loads(shown) == payload
    assert "\u202e" not in shown
    assert "ü" in shown
    assert done.status_code == 303
    assert now.payload == payload | {"to": "user@example.org"}
    assert (now.priority, now.key, now.state) == (7, "once", tenure.State.QUEUED)
    acts = {(one.act, one.actor) for one in server.app.access.audit(subject=job_id)}
    assert ("edit", "ada") in acts
    assert "http:unmask" in {one.act for one in server.app.access.audit(limit=50)}


@pytest.mark.parametrize("text", VECTORS)
def test_what_is_edited_is_what_was_there(text: str) -> None:
    assert json.loads(exact_json({text: [text]})) == {text: [text]}


async def test_an_edit_over_a_change_is_refused_and_a_wrong_text_is_kept_in_the_form(small: Server) -> None:
    job_id = small.app.enqueue("welcome", {"n": 1}).id

    async with signed_in(small) as client:
        form = await client.get(f"/ui/jobs/{job_id}/edit")
        told = {"payload": '{"n": 2,}', "version": _version(form), "reason": "why"}
        wrong = await client.post(f"/ui/jobs/{job_id}/edit", data=told)
        unsaid = await client.post(f"/ui/jobs/{job_id}/edit", data={**told, "payload": '{"n": 2}', "reason": ""})
        small.app.edit(job_id, {"n": 3}, reason="another editor")
        late = await client.post(f"/ui/jobs/{job_id}/edit", data={**told, "payload": '{"n": 2}'})

    assert wrong.status_code == 422
    assert _area(wrong) == '{"n": 2,}'
    assert "is not JSON" in _text(wrong)
    assert unsaid.status_code == 400
    assert late.status_code == 412
    assert small.app.get(job_id).payload == {"n": 3}


async def test_a_payload_is_edited_only_by_those_who_may_read_and_enqueue_it(small: Server) -> None:
    job_id = small.app.enqueue("welcome", {"secret": "hunter2"}).id

    async with signed_in(small, "read:meta", "operate", "enqueue:*") as client:
        unread = await client.get(f"/ui/jobs/{job_id}/edit")
    async with signed_in(small, "read:meta", "operate", "read:payload") as client:
        unmade = await client.get(f"/ui/jobs/{job_id}/edit")
        written = await client.post(f"/ui/jobs/{job_id}/edit", data={"payload": "{}", "reason": "x"})

    assert unread.status_code == 403
    assert unmade.status_code == 403
    assert written.status_code == 403
    assert "hunter2" not in unread.text + unmade.text + written.text
    assert small.app.get(job_id).payload == {"secret": "hunter2"}


async def test_a_dead_job_is_replayed_with_an_edited_payload_and_its_letter_closed(server: Server) -> None:
    app = server.app
    app.queues.set("mail", max_attempts=1)
    dead = app.enqueue("welcome", {"to": "x"}, queue="mail", tenant="acme").id
    app.fail(app.claim(queues="mail", worker="w")[0], "ValueError: no such address")
    fingerprint = app.dead_letters.all().items[0].fingerprint

    async with signed_in(server) as client:
        group = await client.get(f"/ui/dead-letters/{fingerprint}")
        form = await client.get(f"/ui/jobs/{dead}/edit")
        done = await client.post(f"/ui/jobs/{dead}/edit", data={"payload": '{"to": "y"}', "reason": "moved"})

    (letter,) = app.dead_letters.all(job_id=dead).items
    made = app.get(done.headers["location"].rpartition("/")[2])
    assert f"/ui/jobs/{dead}/edit" in group.text
    assert "Edit and replay" in _text(form)
    assert (made.payload, made.parent_id, made.tenant, made.queue) == ({"to": "y"}, dead, "acme", "mail")
    assert app.get(dead).state == tenure.State.DEAD
    assert letter.triage == "closed"
    assert made.id in (letter.triage_note or "")
    assert "edit_and_replay" in {one.act for one in app.access.audit(subject=dead)}


async def test_a_job_gets_another_priority(server: Server) -> None:
    job_id = server.app.enqueue("welcome", {"n": 1}).id

    async with signed_in(server) as client:
        asked = await client.get(f"/ui/jobs/{job_id}/priority")
        wrong = await client.post(f"/ui/jobs/{job_id}/priority", data={"priority": "soon", "reason": "x"})
        told = {"priority": "-3", "version": _version(asked), "reason": "not urgent"}
        done = await client.post(f"/ui/jobs/{job_id}/priority", data=told)

    assert wrong.status_code == 400
    assert done.status_code == 303
    assert server.app.get(job_id).priority == -3


async def test_a_lease_is_released_only_if_it_is_the_one_that_was_shown(server: Server) -> None:
    app = server.app
    job_id = app.enqueue("welcome").id
    (first,) = app.claim(worker="w-1")

    async with signed_in(server) as client:
        asked = await client.get(f"/ui/jobs/{job_id}/release")
        done = await client.post(f"/ui/jobs/{job_id}/release", data={"token": first.token, "reason": "w-1 hangs"})
        (second,) = app.claim(worker="w-2")
        late = await client.post(f"/ui/jobs/{job_id}/release", data={"token": first.token, "reason": "again"})

    with pytest.raises(tenure.LeaseLost):
        app.complete(first)
    assert "w-1" in _text(asked)
    assert done.status_code == 303
    assert late.status_code == 412
    assert app.get(job_id).lease_owner == "w-2"
    assert second.attempt == 1
    (row,) = [one for one in app.access.audit(subject=job_id) if one.act == "release_lease"]
    assert (row.actor, row.reason) == ("ada", "w-1 hangs")


async def test_the_audit_is_read_page_by_page(small: Server) -> None:
    app = small.app
    for n in range(130):
        app.access.note("tried", "queue:mail", actor="ada", reason=f"row {n}")

    async with signed_in(small) as client:
        first = await client.get("/ui/audit", params={"subject": "queue:mail"})
        older = re.search(r'href="([^"]+)" rel="next"', first.text)
        assert older is not None
        second = await client.get(html.unescape(older[1]))
        wrong = await client.get("/ui/audit", params={"before": "x"})

    rows = [int(one) for page in (first, second) for one in re.findall(r"</span>row (\d+)</td>", page.text)]
    assert rows == list(reversed(range(130)))
    assert 'rel="next"' not in second.text
    assert 'rel="prev"' in second.text
    assert wrong.status_code == 400


async def test_a_schedule_shows_its_next_five_and_the_results_of_its_last_ticks(server: Server) -> None:
    app = server.app
    app.schedule("prices", "*/5 * * * *", "refresh")
    app.schedules.declare()
    (row,) = app.schedules.all()
    told = Schedule.from_spec(row.name, row.spec)
    at = row.last_tick
    for n in range(3):
        tick = told.next_tick(at)
        app.store.do(TickSchedule("prices", at, tick, [told.job(tick)]))
        (grant,) = app.claim(worker="w")
        app.complete(grant) if n else app.reject(grant, "ValueError: no list")
        at = tick

    async with signed_in(server) as client:
        page = await client.get("/ui/schedules")

    dots = re.search(r'<span class="dots">(.*?)</span></td>', page.text, re.DOTALL)
    assert dots is not None
    assert re.findall(r'aria-label="(\w+)"', dots[1]) == ["failed", "succeeded", "succeeded"]
    line = page.text[page.text.index('id="schedule-prices"') :]
    assert len(re.findall("<time ", line[: line.index('class="dots"')])) == 5


@pytest.mark.parametrize(
    ("cron", "last", "expected"),
    [
        ("*/5 * * * *", "2026-11-18T12:00", [5 * n for n in range(10)]),
        ("0 3 * * *", "2026-11-18T03:00", [1440 * n for n in range(10)]),
        ("0 9 * * 1-5", "2026-11-16T09:00", [1440 * n for n in (0, 3, 4, 5, 6, 7, 10, 11, 12, 13)]),
    ],
)
def test_the_last_ticks_are_those_that_the_schedule_had(cron: str, last: str, expected: list[int]) -> None:
    moment = datetime.fromisoformat(last).replace(tzinfo=UTC)
    schedule = Schedule.from_spec("x", json.dumps({"cron": cron, "kind": "x", "payload": "{}", "queue": "default"}))

    found = last_ticks(schedule, moment)

    assert found == [moment - timedelta(minutes=one) for one in expected][: len(found)]
    assert len(found) >= 6


async def test_queues_begin_with_the_oldest_ready_job_then_with_the_most(tmp_path: Path) -> None:
    clock = ManualClock()
    with tenure.App(f"sqlite:///{tmp_path / 'order.db'}", clock=clock) as app:
        for name in ("a-idle", "b-shallow", "c-deep", "d-oldest", "e-paused"):
            app.queues.set(name)
        app.queues.pause("e-paused", reason="x")
        app.enqueue("x", queue="d-oldest")
        clock.advance(300)
        app.enqueue("x", queue="b-shallow")
        app.enqueue_many([app.new_job("x", queue="c-deep") for _ in range(5)])
        async with signed_in(Server(app)) as client:
            overview = await client.get("/ui/")
            queues = await client.get("/ui/queues")

    expected = ["d-oldest", "c-deep", "b-shallow", "e-paused", "a-idle"]
    beside = overview.text[overview.text.index('id="h-age"') :]
    assert re.findall(r'href="/ui/queues/([a-e]-\w+)"', beside) == expected
    assert re.findall(r'id="queue-([a-e]-\w+)"', queues.text) == expected


async def test_ids_of_one_millisecond_are_told_apart_on_a_page(small: Server) -> None:
    ids = [one.id for one in small.app.enqueue_many([small.app.new_job("x") for _ in range(20)])]

    async with signed_in(small) as client:
        page = await client.get("/ui/jobs")

    shown = re.findall(r'<a class="id mono"[^>]*>([^<]+)</a>', page.text)
    assert len(shown) == len(set(shown)) == 20
    assert {one.partition("…")[2] for one in shown} == {one[-4:] for one in ids}


async def test_the_keys_that_a_page_names_are_those_that_do_something_there(server: Server) -> None:
    """Found by looking: a bulk act had keys that were told nowhere, and a group named a key for an act that it did not
    offer."""
    app = server.app
    app.queues.set("mail", max_attempts=1)
    for kind in ("first", "second"):
        app.enqueue(kind, queue="mail")
        app.fail(app.claim(queues="mail", worker="w")[0], f"ValueError: {kind}")
    [decided, fresh] = app.dead_letters.all().items
    app.dead_letters.triage([decided.id], "acknowledged", actor="ada", note="seen")
    app.agent("Loader")
    flow = tenure.Workflow("import")
    flow.task("load", agent="Loader", task_type="load")
    run = app.workflows.start(flow).id
    act = bulk_acts.frozen_act(app, "cancel", BulkFilter(kind=("nothing",)), actor="ada", reason="why", pace=1.0)
    paths = ["/", "/jobs", "/dead-letters", *(f"/dead-letters/{one.fingerprint}" for one in (decided, fresh))]
    paths += ["/queues/mail", f"/workflows/{run}", f"/bulk/{bulk_acts.start(app, act)}", f"/jobs/{fresh.job_id}"]
    wrong = []

    for scopes in (("admin", "read:payload"), ("read:meta",)):
        async with signed_in(server, *scopes) as client:
            for path in paths:
                page = (await client.get(f"/ui{path}")).text
                main, _, foot = page.partition('<footer class="foot">')
                told = set(re.findall("<kbd>([a-z])</kbd>", foot.partition("</footer>")[0])) - set("gjkx")
                told -= {"d"} if path == "/" else set()  # `g d`
                acts = set(re.findall('data-key="([a-z])"', main.partition("<main")[2]))
                if told != acts:
                    wrong.append((scopes, path, told, acts))

    assert wrong == []
