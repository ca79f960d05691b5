"""Acts on all that match, from the console: the filter is what was shown, the count is told, and an act can be stopped
and undone."""

from __future__ import annotations

import httpx
import pytest

from tests.web.conftest import Server
from tests.web.test_bulk import work
from tests.web.test_pages import _text, signed_in

pytestmark = pytest.mark.anyio


async def start(client: httpx.AsyncClient, **form: str) -> str:
    """Ask for an act by the console's form; the path of its page."""
    answer = await client.post("/ui/bulk/new", data={"reason": "wrong template", **form})
    assert answer.status_code == 303, _text(answer)
    return answer.headers["location"]


async def test_all_that_match_the_filter_of_the_jobs_page_are_cancelled_and_brought_back(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.enqueue_many([app.new_job("welcome", {"n": n}, queue="mail", tenant="acme") for n in range(7)])
    other = app.enqueue("welcome", queue="mail", tenant="globex").id

    async with signed_in(server) as client:
        jobs = await client.get("/ui/jobs", params={"q": "tenant:acme state:queued"})
        asked = await client.get("/ui/bulk/new", params={"q": "tenant:acme state:queued", "act": "cancel"})
        path = await start(client, q="tenant:acme state:queued", act="cancel", pace="500")
        await work(app)
        done = await client.get(path)
        undo = await client.post(f"{path}/undo", data={"reason": "it was right"})
        await work(app)
        listed = await client.get("/ui/bulk")

    assert "All 7 that match" in _text(jobs)
    assert "Cancel 7 jobs?" in _text(asked)
    assert "7 done of 7" in _text(done)
    assert undo.status_code == 303
    assert {one.state for one in app.jobs(queue="mail").items} == {"queued"}
    assert app.get(other).cancel_requested_at is None
    assert _text(listed).count("wrong template") == 1
    assert "it was right" in _text(listed)


async def test_a_group_is_sampled_and_then_replayed_as_a_whole(server: Server) -> None:
    app = server.app
    app.queues.set("default", max_attempts=1)
    app.enqueue_many([("k", {"n": n}) for n in range(8)])
    for grant in app.claim(worker="w", limit=8):
        app.fail(grant, "KeyError: 'x'")
    (group,) = app.dead_letters.groups()
    base = f"/ui/dead-letters/{group.fingerprint}"

    async with signed_in(server) as client:
        sample = await client.post(f"{base}/replay", data={"count": "5", "reason": "try"})
        path = await start(client, fingerprint=group.fingerprint, act="revive", pace="50")
        board, page = await client.get("/ui/dead-letters"), await client.get(base)
        await work(app)
        done = await client.get(path)

    assert sample.status_code == 303
    assert "Replay 3 jobs" in _text(board)
    assert "Replay 3 jobs" in _text(page)
    assert "3 done of 3" in _text(done)
    assert "cannot be undone" in _text(done)
    assert {one.state for one in app.jobs(kind="k").items} == {"queued"}


async def test_an_act_is_paused_aborted_and_taken_up_by_its_buttons(small: Server) -> None:
    app = small.app
    app.enqueue_many([("k", {"n": n}) for n in range(4)])

    async with signed_in(small) as client:
        path = await start(client, q="kind:k", act="cancel")
        paused = await client.post(f"{path}/pause")
        stopped = _text(await client.get(path))
        went_on = await client.post(f"{path}/resume")
        aborted = await client.post(f"{path}/abort")
        over = await client.get(path)
        again = await client.post(f"{path}/resume")

    assert [one.status_code for one in (paused, went_on, aborted)] == [303, 303, 303]
    assert "paused" in stopped
    assert "&amp;seen=" in over.text
    assert '&amp;seen="' not in over.text
    assert "aborted" in _text(over)
    assert again.status_code == 400
    assert {one.state for one in app.jobs(kind="k").items} == {"queued"}


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"act": "cancel", "q": ""}, "would match every job"),
        ({"act": "revive", "q": "state:running"}, "can be revived"),
        ({"act": "burn", "q": "kind:k"}, "What should be done"),
        ({"act": "cancel", "q": "kind:nothing"}, "No job matches any more"),
        ({"act": "cancel", "q": "kind:k", "pace": "fast"}, "Pace:"),
        ({"act": "cancel", "q": "kind:k nonsense:1"}, "There is no token nonsense:"),
        ({"act": "cancel", "q": "kind:k", "reason": ""}, "A reason is needed"),
    ],
)
async def test_what_says_nothing_or_nonsense_changes_nothing(small: Server, form: dict[str, str], says: str) -> None:
    job_id = small.app.enqueue("k").id

    async with signed_in(small) as client:
        answer = await client.post("/ui/bulk/new", data={"reason": "r", **form})

    assert answer.status_code == 400
    assert says in _text(answer)
    assert small.app.get(job_id).state == "queued"
    assert small.app.jobs(kind="tenure.bulk").items == []


async def test_a_reader_is_shown_no_acts_and_may_start_none(small: Server) -> None:
    async with signed_in(small, "read:meta") as client:
        listed = await client.get("/ui/bulk")
        board = await client.get("/ui/dead-letters")
        started = await client.post("/ui/bulk/new", data={"act": "cancel", "q": "kind:k", "reason": "r"})

    assert (listed.status_code, board.status_code, started.status_code) == (403, 200, 403)


async def test_a_second_sample_takes_letters_that_were_not_replayed_yet(server: Server) -> None:
    """Those of the first are the newest still; replaying them again would say that nothing could be done."""
    app = server.app
    app.queues.set("default", max_attempts=1)
    app.enqueue_many([("k", {"n": n}) for n in range(4)])
    for grant in app.claim(worker="w", limit=4):
        app.fail(grant, "KeyError: 'x'")
    (group,) = app.dead_letters.groups()
    base = f"/ui/dead-letters/{group.fingerprint}"

    async with signed_in(server) as client:
        for _ in range(2):
            await client.post(f"{base}/replay", data={"count": "2", "reason": "a sample"})
        page = _text(await client.get(base))

    assert {one.state for one in app.jobs(kind="k").items} == {"queued"}
    assert page.count("a sample") == 1, "one note for one act, however many letters it is kept with"
    assert "4 letters manual_replay" in page


async def test_a_replay_of_a_group_says_replay_and_what_its_jobs_died_of(server: Server) -> None:
    app = server.app
    app.queues.set("default", max_attempts=1)
    app.enqueue("k")
    app.fail(app.claim(worker="w")[0], "KeyError: 'x'")
    (group,) = app.dead_letters.groups()

    async with signed_in(server) as client:
        asked = await client.get("/ui/bulk/new", params={"fingerprint": group.fingerprint, "act": "revive"})
        path = await start(client, fingerprint=group.fingerprint, act="revive")
        page = await client.get(path)

    assert "Replay 1 job of KeyError?" in _text(asked)
    assert "Replay 1 job" in _text(page)
    assert f'href="/ui/dead-letters/{group.fingerprint}"' in page.text
