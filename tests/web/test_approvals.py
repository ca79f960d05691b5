"""Approvals by HTTP, in the console and by signed links: what is shown is what is answered, and by whom."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure.model.approval import Question
from tenure.model.approval_link import KEY_NAME, LinkClaim, sign_link
from tenure.model.clock import ManualClock
from tenure.model.ids import new_job_id
from tenure.model.outcome import Suspended
from tenure.model.step import NewStep
from tenure.testing import drain
from tenure.web.auth import csrf_of
from tests.web.conftest import Server
from tests.web.test_pages import SAME_ORIGIN, VECTORS

pytestmark = pytest.mark.anyio
APPROVALS = "/api/v1/approvals"


async def ask(server: Server, actor: str = "carl", **terms: Any) -> tenure.Approval:
    """What a fresh job asks."""

    def order(payload: dict[str, Any], ctx: tenure.Context) -> Any:
        ok = ctx.approve("refund", **{"args": {"eur": 120}, "text": "Pay it back?", **terms})
        return [ok.granted, list(ok.by)]

    def asked() -> tenure.Approval:
        if "order" not in server.app.registry:
            server.app.job(kind="order", durable=True)(order)
        job = server.app.enqueue("order", {}, actor=actor)
        drain(server.app)
        [found] = server.app.approvals.all(job_id=job.id)
        return found

    return await asyncio.to_thread(asked)


def decide(one: tenure.Approval, choice: str = "approve", **more: Any) -> tuple[str, dict[str, Any]]:
    return f"{APPROVALS}/{one.id}/decide", {"choice": choice, "args_hash": one.args_hash, **more}


async def test_a_program_lists_shows_and_decides(server: Server) -> None:
    one = await ask(server)
    async with server.client(server.token("approve", name="maria")) as client:
        listed = (await client.get(APPROVALS)).json()
        shown = (await client.get(f"{APPROVALS}/{one.id}")).json()["item"]
        path, body = decide(one, note="as agreed")
        done = await client.post(path, json=body)
        inbox = (await client.get("/api/v1/inbox")).json()["items"]
        past = (await client.get(APPROVALS, params={"state": "granted"})).json()["items"]

    assert [item["id"] for item in listed["items"]] == [one.id]
    assert (shown["args"], shown["args_text"], shown["args_hash"], shown["state"]) == (
        {"eur": 120}, '{"eur":120}', one.args_hash, "pending",
    )  # fmt: skip
    assert f"job {one.job_id} (order in default) goes on" in shown["unlocks"]
    assert done.status_code == 200
    [vote] = done.json()["item"]["votes"]
    assert (vote["voter"], vote["door"], vote["note"]) == ("maria", "http", "as agreed")
    assert inbox == []
    assert [item["id"] for item in past] == [one.id]
    await asyncio.to_thread(drain, server.app)
    assert server.app.get(one.job_id).result == [True, ["maria"]]


async def test_pages_of_approvals_follow_each_other(small: Server) -> None:
    ones = [await ask(small) for _ in range(3)]
    async with small.client(small.token("approve")) as client:
        first = (await client.get(APPROVALS, params={"limit": 2})).json()
        second = (await client.get(APPROVALS, params={"limit": 2, "cursor": first["next"]})).json()
        forged = await client.get(APPROVALS, params={"cursor": "x" * 40})

    assert [item["id"] for item in first["items"] + second["items"]] == [one.id for one in reversed(ones)]
    assert forged.status_code == 400


async def test_the_inbox_has_what_is_asked(small: Server) -> None:
    one = await ask(small, expires=60)
    async with small.client(small.token("approve")) as client:
        [entry] = (await client.get("/api/v1/inbox")).json()["items"]

    assert (entry["kind"], entry["id"], entry["job_id"]) == ("approval", one.id, one.job_id)
    assert entry["title"] == "refund: Pay it back?"


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (409, {"args_hash": "0" * 64}),
        (422, {"args_hash": "abc"}),
        (422, {"choice": "maybe"}),
        (422, {"surprise": 1}),
    ],
)
async def test_an_answer_that_cannot_count_is_refused_and_changes_nothing(
    small: Server, status: int, change: dict[str, Any]
) -> None:
    one = await ask(small)
    path, body = decide(one)
    async with small.client(small.token("approve", name="maria")) as client:
        answer = await client.post(path, json={**body, **change})

    assert answer.status_code == status
    assert small.app.approvals.get(one.id) == one


async def test_ended_jobs_and_second_answers_are_refused_with_the_reason(small: Server) -> None:
    one, other = await ask(small), await ask(small)
    small.app.cancel(other.job_id, reason="not wanted")
    async with small.client(small.token("approve", name="maria")) as client:
        path, body = decide(one)
        await client.post(path, json=body)
        late = await client.post(path, json={**body, "choice": "deny"})
        path, body = decide(other)
        ended = await client.post(path, json=body)
        missing = await client.get(f"{APPROVALS}/00000000-0000-7000-8000-000000000000")

    assert (late.status_code, ended.status_code, missing.status_code) == (409, 409, 404)
    assert "it is granted" in late.json()["detail"]
    assert "has ended as cancelled" in ended.json()["detail"]


async def test_the_token_that_enqueued_the_job_cannot_approve_it(server: Server) -> None:
    await ask(server)  # declares the handler
    async with server.client(server.token("approve", "enqueue:*", name="agent-7")) as client:
        job_id = (await client.post("/api/v1/jobs", json={"kind": "order", "payload": {}})).json()["jobs"][0]["id"]
        await asyncio.to_thread(drain, server.app)
        [one] = server.app.approvals.all(job_id=job_id)
        path, body = decide(one)
        refused = await client.post(path, json=body)
        link = await client.post(f"{APPROVALS}/{one.id}/link", json={"person": "a friend"})

    assert (refused.status_code, link.status_code) == (403, 403)
    assert server.app.approvals.get(one.id).votes == ()


async def test_a_token_that_works_for_the_queue_cannot_approve(small: Server) -> None:
    one = await ask(small)
    path, body = decide(one)
    for scopes, status in ((("approve", "worker:queue=default"), 403), (("approve", "worker:queue=other"), 200)):
        async with small.client(small.token(*scopes, name=f"w{status}")) as client:
            assert (await client.post(path, json=body)).status_code == status


async def test_without_the_scope_nothing_is_shown(small: Server) -> None:
    one = await ask(small, args={"canary": "c-4711"})
    async with small.client(small.token("read:meta", "operate", "worker:*", "enqueue:*")) as client:
        for path in (APPROVALS, f"{APPROVALS}/{one.id}", "/api/v1/inbox"):
            answer = await client.get(path)
            assert answer.status_code == 403
            assert "c-4711" not in answer.text


async def test_an_answer_leaves_a_row_of_the_store_and_one_of_the_door(small: Server) -> None:
    one = await ask(small)
    path, body = decide(one, "deny")
    async with small.client(small.token("approve", name="maria")) as client:
        await client.post(path, json=body)

    rows = {row.act: row for row in small.app.access.audit(limit=20)}
    assert (rows["deny"].actor, rows["deny"].subject, rows["deny"].detail["args_hash"]) == (
        "maria", one.id, one.args_hash,
    )  # fmt: skip
    assert rows["http:decide_approval"].actor == "maria"


# --- signed links ---


async def link_of(server: Server, one: tenure.Approval, person: str = "ann", **terms: Any) -> str:
    return "/answer/" + await server.app.aio.approvals.link(one.id, person, by="maria", **terms)


async def test_a_person_without_an_account_answers_once_by_a_link(server: Server) -> None:
    one = await ask(server)
    async with server.client(server.token("approve", name="maria")) as client:
        made = (await client.post(f"{APPROVALS}/{one.id}/link", json={"person": "ann", "valid": 60})).json()
    async with server.client(headers=SAME_ORIGIN) as guest:
        looked = [await guest.get(made["path"]) for _ in range(2)]
        form = {"choice": "approve", "note": "fine", "args_hash": one.args_hash}
        done = await guest.post(made["path"], data=form)
        again = await guest.post(made["path"], data={**form, "choice": "deny"})
        after = await guest.get(made["path"])

    assert made["link"].endswith(made["path"])
    for page in looked:
        assert page.status_code == 200
        assert one.args_hash in page.text
        assert f"job {one.job_id} (order in default) goes on" in page.text
        assert "&#34;eur&#34;: 120" in page.text
        assert 'value="approve"' in page.text
    assert "content-security-policy" in looked[0].headers
    assert "set-cookie" not in done.headers
    assert (done.status_code, again.status_code, after.status_code) == (200, 409, 200)
    assert 'value="approve"' not in after.text
    [vote] = server.app.approvals.get(one.id).votes
    assert (vote.voter, vote.choice, vote.note, vote.door) == ("ann", "approve", "fine", "link")


def _other_name(text: str) -> str:
    approval, until, _, maker, signature = text.split(".")
    return f"{approval}.{until}.ZXZl.{maker}.{signature}"


@pytest.mark.parametrize(
    "forge",
    [
        lambda text: text[:-2] + ("AA" if not text.endswith("AA") else "BB"),
        _other_name,
        lambda text: text.replace(".", ".9", 1),
        lambda _: "x",
        lambda _: "....",
    ],
)
async def test_a_forged_link_shows_nothing_and_answers_nothing(small: Server, forge: Callable[[str], str]) -> None:
    one = await ask(small, args={"canary": "c-4711"})
    path = "/answer/" + forge((await link_of(small, one)).removeprefix("/answer/"))
    async with small.client(headers=SAME_ORIGIN) as guest:
        looked = await guest.get(path)
        done = await guest.post(path, data={"choice": "approve", "args_hash": one.args_hash})

    assert (looked.status_code, done.status_code) == (403, 403)
    assert "c-4711" not in looked.text + done.text
    assert small.app.approvals.get(one.id).state == "pending"


async def test_guessing_links_is_slowed_down(small: Server) -> None:
    async with small.client(headers=SAME_ORIGIN) as guest:
        codes = [(await guest.get(f"/answer/guess-{n}")).status_code for n in range(25)]

    assert codes[0] == 403
    assert codes[-1] == 429


async def test_a_link_ends_by_the_clock(tmp_path: Any) -> None:
    clock = ManualClock()
    with tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}", clock=clock) as app:
        server = Server(app)
        one = await ask(server)
        path = await link_of(server, one, valid=timedelta(minutes=5))
        async with server.client(headers=SAME_ORIGIN) as guest:
            clock.advance(299)
            before = await guest.get(path)
            clock.advance(1)
            after = await guest.post(path, data={"choice": "approve", "args_hash": one.args_hash})

    assert (before.status_code, after.status_code) == (200, 403)
    assert "This link is over" in after.text


async def test_who_had_the_job_done_gets_no_link_and_makes_none(small: Server) -> None:
    one = await ask(small, actor="carl")
    for person, by in (("Carl", "maria"), ("ann", "CARL"), ("ann", "default")):
        with pytest.raises(tenure.Forbidden):
            await small.app.aio.approvals.link(one.id, person, by=by)


async def test_a_page_of_another_site_cannot_send_the_form_of_a_link(small: Server) -> None:
    one = await ask(small)
    path = await link_of(small, one)
    async with small.client(headers={"Origin": "https://evil.test"}) as guest:
        answer = await guest.post(path, data={"choice": "approve", "args_hash": one.args_hash})

    assert answer.status_code == 403
    assert small.app.approvals.get(one.id).state == "pending"


# --- the console ---


@asynccontextmanager
async def browser(server: Server, *scopes: str, name: str = "ada") -> AsyncIterator[httpx.AsyncClient]:
    async with server.client(headers={"Accept": "text/html", **SAME_ORIGIN}) as client:
        await client.post("/ui/session", data={"code": server.link(*scopes, name=name)})
        client.headers["X-CSRF-Token"] = csrf_of(client.cookies["tenure-8400"].strip('"').partition(".")[2])
        yield client


async def test_the_console_shows_the_exact_arguments_and_takes_the_answer(server: Server) -> None:
    one = await ask(server, need=2, expires=3600)
    server.app.approvals.approve(one.id, by="bob", args_hash=one.args_hash, note="prices look right")
    async with browser(server, "read:meta", "approve") as client:
        inbox = (await client.get("/ui/approvals")).text
        page = (await client.get(f"/ui/approvals/{one.id}")).text
        form = {"choice": "approve", "note": "yes", "args_hash": one.args_hash}
        done = await client.post(f"/ui/approvals/{one.id}/answer", data=form)
        after = (await client.get(f"/ui/approvals/{one.id}")).text

    for text in (inbox, page):
        assert "Pay it back?" in text
        assert one.args_hash in text
        assert f"job {one.job_id} (order in default) goes on" in text
        assert "&#34;eur&#34;: 120" in text
        assert "prices look right" in text
        assert re.search(r"<b>1 of 2</b> said yes", text)
        assert "then <b>denied</b>" in text
    assert "1 ask" in inbox, "the badge"
    assert done.status_code == 303
    assert "approved" in after
    assert 'name="choice"' not in after
    votes = server.app.approvals.get(one.id).votes
    assert [(vote.voter, vote.door) for vote in votes] == [("bob", "python"), ("ada", "console")]


async def test_who_had_the_job_done_is_refused_in_the_console(small: Server) -> None:
    one = await ask(small, actor="Ada")
    async with browser(small, "read:meta", "approve") as client:
        page = await client.get(f"/ui/approvals/{one.id}")
        form = {"choice": "approve", "args_hash": one.args_hash}
        done = await client.post(f"/ui/approvals/{one.id}/answer", data=form)

    assert "another person has to answer" in page.text
    assert done.status_code == 403
    assert small.app.approvals.get(one.id).state == "pending"


async def test_a_reader_sees_that_something_is_asked_and_not_about_what(small: Server) -> None:
    one = await ask(small, args={"canary": "c-4711"})
    async with browser(small, "read:meta") as client:
        page = await client.get(f"/ui/approvals/{one.id}")
        done = await client.post(
            f"/ui/approvals/{one.id}/answer", data={"choice": "approve", "args_hash": one.args_hash}
        )

    assert page.status_code == 200
    assert "c-4711" not in page.text
    assert done.status_code == 403


async def test_the_job_page_says_what_approval_it_waits_for(small: Server) -> None:
    one = await ask(small)
    async with browser(small, "read:meta", "approve") as client:
        page = (await client.get(f"/ui/jobs/{one.job_id}")).text

    assert f"/ui/approvals/{one.id}" in page
    assert "refund" in page


async def test_hostile_text_stays_text_on_every_page(small: Server) -> None:
    one = await ask(small, args={vector: vector for vector in VECTORS}, text="<script>alert(1)</script>", ask=["<b>x"])
    path = await link_of(small, one, "<b>x")
    async with browser(small, "read:meta", "approve", name="<i>y") as client:
        pages = [await client.get("/ui/approvals"), await client.get(f"/ui/approvals/{one.id}"), await client.get(path)]

    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert "<b>x" not in page.text
        assert "\x1b" not in page.text
        assert "\u202e" not in page.text


async def test_a_malformed_id_is_not_found(small: Server) -> None:
    async with browser(small) as client:
        for bad in ("x", "00000000-0000-7000-8000-000000000000", "%27;DROP"):
            assert (await client.get(f"/ui/approvals/{bad}")).status_code == 404


# --- groups, and agents that answer themselves ---


async def test_a_group_is_what_the_token_says_and_not_what_the_request_says(server: Server) -> None:
    one = await ask(server, ask=["billing"])
    path, body = decide(one)
    async with (
        server.client(server.token("approve", name="carl2")) as typed,
        server.client(server.token("approve", "group:Billing", name="ada")) as member,
        server.client(server.token("approve", "group:ops", name="bob")) as other,
    ):
        claimed = await typed.post(path, json={**body, "groups": ["billing"]})
        refused = [(await client.post(path, json=body)).status_code for client in (typed, other)]
        link = await other.post(f"{APPROVALS}/{one.id}/link", json={"person": "eve"})
        done = await member.post(path, json=body)

    assert claimed.status_code == 422
    assert refused == [403, 403]
    assert link.status_code == 403
    assert done.json()["item"]["state"] == "granted"


async def test_an_admin_gives_no_group_to_a_token_that_it_does_not_have(small: Server) -> None:
    async with small.client(small.token("admin", "approve", "group:ops", name="root")) as client:
        beyond = await client.post("/api/v1/tokens", json={"name": "x", "scopes": ["approve", "group:billing"]})
        within = await client.post("/api/v1/tokens", json={"name": "x", "scopes": ["approve", "group:ops"]})
        alone = await client.post("/api/v1/tokens", json={"name": "x", "scopes": ["group:ops"]})

    assert (beyond.status_code, within.status_code) == (403, 201)
    assert alone.status_code in {400, 422}


async def test_a_token_cannot_answer_what_it_asked_as_a_worker(server: Server) -> None:
    """A scope for all queues names none, so only the claim tells that the holder of the token is the agent."""
    made = server.app.access.new_token("agent", ("worker:*", "approve"))
    job_id = server.app.enqueue("remote", {}, actor="carl").id
    async with (
        server.client(made.text) as agent,
        server.client(server.token("worker:*", "approve", name="other")) as other,
    ):
        claimed = await agent.post("/api/v1/claims", json={"worker": "w" * 200, "queues": ["default"], "limit": 1})
        assert claimed.status_code == 200, claimed.text
        held = server.app.get(job_id)
        asked = Question(new_job_id(), "refund", '{"eur":120}', "", 1, (), None, "deny")
        step = NewStep("approve/refund", "approval", "open", value=asked.to_json())
        await server.app.aio.settle([Suspended(held.id, held.token, "approval:refund", steps=(step,))])
        [one] = server.app.approvals.all(job_id=job_id)
        path, body = decide(one)
        own = await agent.post(path, json=body)
        link = await agent.post(f"{APPROVALS}/{one.id}/link", json={"person": "a friend"})
        done = await other.post(path, json=body)

    assert one.asked_by.endswith(f"@{made.token.id}")
    assert (own.status_code, link.status_code) == (403, 403)
    assert done.status_code == 200


async def test_a_copy_of_the_database_alone_signs_no_link(
    small: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await ask(small)
    until = int(small.app.now().timestamp()) + 600
    forged = sign_link(small.app.access.shared_secret(KEY_NAME), LinkClaim(one.id, "eve", until, "mallory"))
    assert (await small.app.aio.approvals.open_link(forged))[1] == "eve", "who reads the database signs links"
    key = tmp_path / "link.key"
    key.write_text("k" * 64 + "\n")
    key.chmod(0o600)
    monkeypatch.setenv("TENURE_LINK_KEY_FILE", str(key))

    with pytest.raises(tenure.Forbidden, match="not valid"):
        await small.app.aio.approvals.open_link(forged)
    made = await small.app.aio.approvals.link(one.id, "ann", by="maria")
    assert (await small.app.aio.approvals.open_link(made))[1] == "ann"

    key.chmod(0o640)
    with pytest.raises(tenure.ConfigError, match="chmod 600"):
        await small.app.aio.approvals.open_link(made)
    key.chmod(0o600)
    for text in ("short", "k" * 5_000):
        key.write_text(text)
        with pytest.raises(tenure.ConfigError, match="random"):
            await small.app.aio.approvals.open_link(made)
    key.unlink()
    with pytest.raises(tenure.ConfigError, match="cannot be read"):
        await small.app.aio.approvals.open_link(made)
