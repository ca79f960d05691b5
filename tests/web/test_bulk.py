"""Acts on all that match: a frozen filter, a count, a pace, progress, an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.effects import bulk
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio


async def work(app: tenure.App) -> None:
    """Run what waits in the queue of bulk acts."""
    own = tenure.App(app.url).use(bulk())
    try:
        await own.worker(["bulk"], drain=True, handle_signals=False).run()
    finally:
        own.close()


async def ask(server: Server, **body: Any) -> Any:
    async with server.client(server.token("operate", name="ops")) as client:
        return await client.post("/api/v1/bulk", json={"reason": "wrong template", **body})


async def test_all_that_match_are_cancelled_and_later_ones_left_alone(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.enqueue_many([app.new_job("k", {"n": n}, queue="mail") for n in range(1200)])
    other = app.enqueue("k").id

    answer = await ask(server, act="cancel", filter={"queue": ["mail"], "state": ["queued"]})
    later = app.enqueue("k", queue="mail").id
    await work(app)
    async with server.client(server.token("operate")) as client:
        shown = (await client.get(f"/api/v1/bulk/{answer.json()['item']['id']}")).json()["item"]

    assert answer.status_code == 202
    assert answer.json()["item"]["total"] == 1200
    assert (shown["state"], shown["progress"]) == ("succeeded", {"done": 1200, "failed": 0, "total": 1200})
    assert (shown["act"], shown["actor"]) == ("cancel", "ops")
    assert {app.get(one).state for one in (other, later)} == {"queued"}
    assert sum(one.jobs for one in app.queues.counts(queue="mail", state="cancelled")) == 1200
    assert {row.actor for row in app.access.audit(limit=1000) if row.act == "cancel"} == {"ops"}


async def test_the_right_to_enqueue_is_not_the_right_to_act_on_all_that_match(server: Server) -> None:
    """A job of the kind `tenure.bulk` was carried out whoever enqueued it, in the name that its payload gave."""
    app = server.app
    victim = app.enqueue("k").id
    forged: dict[str, Any] = {"act": "cancel", "filter": {"queue": ["default"]}, "frozen_at": app.now().isoformat()}
    forged |= {"total": 1, "actor": "ops", "reason": "forged"}
    body = {"kind": "tenure.bulk", "queue": "bulk", "payload": forged}
    app.queues.set("bulk")

    async with server.client(server.token("enqueue:*")) as client:
        refused = await client.post("/api/v1/jobs", json=body)
    by_sql = app.enqueue("tenure.bulk", forged, queue="bulk").id  # as any login with the role of producers may
    await work(app)

    assert (refused.status_code, "enqueue:queue=bulk,kind=tenure.bulk" in refused.text) == (403, True)
    job = app.get(by_sql)
    assert (job.state, "No audit row asks for this act" in str(job.last_error)) == ("failed", True)
    assert app.get(victim).state == "queued"


async def test_a_group_of_dead_letters_is_revived(server: Server) -> None:
    app = server.app
    app.queues.set("default", max_attempts=1)
    app.enqueue_many([("k", {"n": n}) for n in range(5)])
    for grant in app.claim(worker="w", limit=5):
        app.fail(grant, "KeyError: 'x'")
    (group,) = app.dead_letters.groups()

    answer = await ask(server, act="revive", filter={"fingerprint": group.fingerprint})
    await work(app)

    assert answer.json()["item"]["total"] == 5
    assert sum(one.jobs for one in app.queues.counts(queue="default", state="queued")) == 5


async def test_an_act_is_aborted_and_what_it_did_stays(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.enqueue_many([app.new_job("k", {"n": n}, queue="mail") for n in range(300)])
    answer = await ask(server, act="cancel", filter={"queue": ["mail"]}, pace=20)
    identity = answer.json()["item"]["id"]

    working = asyncio.create_task(work(app))
    while not app.queues.counts(queue="mail", state="cancelled"):  # noqa: ASYNC110  it looks at a database
        await asyncio.sleep(0.05)
    async with server.client(server.token("operate")) as client:
        aborted = await client.post(f"/api/v1/bulk/{identity}/abort", json={})
    await asyncio.wait_for(working, 60)

    assert aborted.status_code == 200
    assert app.get(identity).state == "cancelled"
    done = sum(one.jobs for one in app.queues.counts(queue="mail", state="cancelled"))
    assert 0 < done < 300


@pytest.mark.parametrize("chosen", [{}, {"state": ["nonsense"]}, {"unknown": 1}, {"queue": [""]}])
async def test_a_filter_that_says_nothing_or_nonsense_is_refused(small: Server, chosen: dict[str, Any]) -> None:
    assert (await ask(small, act="cancel", filter=chosen)).status_code in {400, 422}


async def test_a_dry_run_only_counts(small: Server) -> None:
    small.app.enqueue("k")

    answer = await ask(small, act="cancel", filter={"kind": ["k"]}, dry_run=True)

    assert answer.json()["item"] == {"id": None, "total": 1, "is_exact": True}
    assert [job.kind for job in small.app.jobs().items] == ["k"]


async def act(server: Server, identity: str, verb: str, **body: Any) -> Any:
    async with server.client(server.token("operate", name="ops")) as client:
        return await client.post(f"/api/v1/bulk/{identity}/{verb}", json=body)


async def test_an_act_is_paused_goes_on_where_it_was_and_is_undone(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.enqueue_many([app.new_job("k", {"n": n}, queue="mail") for n in range(60)])
    by_hand = app.jobs(queue="mail", limit=1).items[0].id
    app.cancel(by_hand, reason="not wanted")
    asked = await ask(server, act="cancel", filter={"queue": ["mail"]}, pace=10)
    identity = asked.json()["item"]["id"]

    working = asyncio.create_task(work(app))
    while not sum(one.jobs for one in app.queues.counts(queue="mail", state="cancelled")) > 5:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    paused = await act(server, identity, "pause")
    await asyncio.wait_for(working, 60)
    stopped = app.get(identity)
    went_on = await act(server, identity, "resume")
    await asyncio.wait_for(work(app), 120)
    done = app.get(identity)
    undone = await act(server, identity, "undo", reason="it was the right template")
    await asyncio.wait_for(work(app), 120)

    assert asked.json()["item"]["total"] == 59
    assert (paused.status_code, went_on.status_code, undone.status_code) == (200, 200, 202)
    assert stopped.state == "cancelled"
    assert 0 < stopped.progress["done"] < 59
    assert (done.state, done.result) == ("succeeded", {"done": 59, "failed": 0, "total": 59})
    assert sum(one.jobs for one in app.queues.counts(queue="mail", state="queued")) == 59
    assert app.get(by_hand).state == "cancelled"  # the act did not cancel it, so its undo leaves it alone


async def test_states_as_people_see_them_and_words_of_errors_choose(server: Server) -> None:
    app = server.app
    first, second, third = (app.enqueue("k", {"n": n}, tenant="acme" if n else None).id for n in range(3))
    for grant in app.claim(worker="w", limit=1):
        app.fail(grant, "TimeoutError: no answer", retry_after=3600)

    fresh = await ask(server, act="cancel", filter={"shown": ["queued"], "tenant": "acme"}, dry_run=True)
    retrying = await ask(server, act="cancel", filter={"shown": ["retry_waiting"], "error": "no ANSWER"})
    await work(app)

    assert fresh.json()["item"]["total"] == 2
    assert retrying.json()["item"]["total"] == 1
    assert [app.get(one).state for one in (first, second, third)] == ["cancelled", "queued", "queued"]


async def test_what_cannot_be_done_is_refused_and_says_why(small: Server) -> None:
    app = small.app
    app.enqueue("k")
    revived = await ask(small, act="revive", filter={"state": ["queued"]})
    asked = await ask(small, act="cancel", filter={"kind": ["k"]})
    identity = asked.json()["item"]["id"]

    early = await act(small, identity, "undo", reason="r")
    going = await act(small, identity, "resume")
    other = await act(small, app.jobs(kind="k").items[0].id, "pause")

    assert revived.status_code == 400
    assert "no job that is queued can be revived" in revived.json()["detail"]
    assert (early.status_code, going.status_code, other.status_code) == (400, 400, 404)
    assert "is over" in early.json()["detail"]
