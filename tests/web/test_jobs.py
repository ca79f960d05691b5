"""Jobs by HTTP: enqueue, keys, pages, masks, waiting, acts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

import tenure
from tenure.web.api import jobs
from tenure.web.guard import check_json
from tenure.web.problems import Problem
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio

SMALL = "enqueue:queue=mail,kind=k"
CANARY = "canary-7f3a"
BIG = 2**53 + 1


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what another task brings about."""
    while not is_so():  # noqa: ASYNC110  it looks at a database
        await asyncio.sleep(0.01)


class Welcome(pydantic.BaseModel):
    user_id: int


async def test_a_job_goes_in_and_comes_out_exact(server: Server) -> None:
    text = server.token("enqueue:*", "read:meta", "read:payload")

    async with server.client(text) as client:
        made = await client.post(
            "/api/v1/jobs", json={"kind": "k", "payload": {"n": BIG, "é": [0.1, None]}, "key": "a"}
        )
        job_id = made.json()["jobs"][0]["id"]
        again = await client.post(
            "/api/v1/jobs", json={"kind": "k", "payload": {"n": BIG, "é": [0.1, None]}, "key": "a"}
        )
        found = await client.get(f"/api/v1/jobs/{job_id}", params={"payload": True})

    assert made.status_code == 201
    assert made.headers["location"] == f"/api/v1/jobs/{job_id}"
    assert again.json()["jobs"] == [{"id": job_id, "duplicate": True}]
    assert found.json()["job"]["payload"] == {"n": BIG, "é": [0.1, None]}
    assert str(BIG) in found.text
    assert found.json()["job"]["actor"] == "test"


async def test_a_batch_with_one_foreign_kind_enqueues_nothing(server: Server) -> None:
    text = server.token("enqueue:queue=default,kind=welcome")

    async with server.client(text) as client:
        both = await client.post("/api/v1/jobs", json={"jobs": [{"kind": "welcome"}, {"kind": "bye"}]})
        other = await client.post("/api/v1/jobs", json={"kind": "welcome", "queue": "mail"})
        right = await client.post("/api/v1/jobs", json={"jobs": [{"kind": "welcome"}, {"kind": "welcome"}]})

    assert (both.status_code, other.status_code, right.status_code) == (403, 403, 201)
    assert len(server.app.jobs().items) == 2


async def test_a_payload_is_checked_by_its_kind(small: Server) -> None:
    @small.app.job(queue="mail")
    def welcome(payload: Welcome) -> None: ...

    text = small.token("enqueue:*", "read:meta")
    async with small.client(text) as client:
        wrong = await client.post("/api/v1/jobs", json={"kind": "welcome", "payload": {"user_id": "x"}})
        right = await client.post("/api/v1/jobs", json={"kind": "welcome", "payload": {"user_id": 7}})
        schema = await client.get("/api/v1/kinds/welcome/schema")

    assert (wrong.status_code, right.status_code) == (422, 201)
    assert wrong.json()["code"] == "invalid_payload"
    assert schema.json()["item"]["schema"]["properties"]["user_id"]["type"] == "integer"
    assert small.app.get(right.json()["jobs"][0]["id"]).queue == "mail"


async def test_an_idempotency_key_makes_one_job_and_another_body_is_refused(server: Server) -> None:
    text, other = server.token("enqueue:*"), server.token("enqueue:*", name="other")
    headers = {"Idempotency-Key": '"order-7"'}

    async with server.client(text, headers=headers) as client:
        first = await client.post("/api/v1/jobs", json={"jobs": [{"kind": "k"}, {"kind": "k"}]})
        again = await client.post("/api/v1/jobs", json={"jobs": [{"kind": "k"}, {"kind": "k"}]})
        bare = await client.post(
            "/api/v1/jobs", json={"jobs": [{"kind": "k"}, {"kind": "k"}]}, headers={"Idempotency-Key": "order-7"}
        )
        changed = await client.post("/api/v1/jobs", json={"kind": "k"})
    async with server.client(other, headers=headers) as client:
        theirs = await client.post("/api/v1/jobs", json={"jobs": [{"kind": "k"}, {"kind": "k"}]})

    assert first.json() == again.json() == bare.json()
    assert (first.headers["idempotency-replayed"], again.headers["idempotency-replayed"]) == ("false", "true")
    assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_key_reused")
    assert theirs.json() != first.json()
    assert len(server.app.jobs().items) == 4


async def test_a_repeat_is_answered_as_the_first_time_when_what_it_met_is_gone(server: Server) -> None:
    """The key's holder ended meanwhile, or the job itself was removed: a repeat made a job then."""
    server.app.queues.set("default", key_scope="active")
    holder = server.app.enqueue("k", key="order-7").id
    body = {"kind": "k", "key": "order-7"}

    async with server.client(server.token("enqueue:*")) as client:
        met = await client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "a"})
        made = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "b"})
        while grants := await server.app.aio.claim():
            await server.app.aio.complete(grants[0])
        met_again = await client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "a"})
        await server.app.aio.prune(older_than=0, delete_after=0)
        made_again = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "b"})

    assert met.json()["jobs"] == [{"id": holder, "duplicate": True}]
    assert met_again.json() == met.json()
    assert made_again.json() == made.json()
    assert (met_again.status_code, met_again.headers["idempotency-replayed"]) == (201, "true")
    assert server.app.jobs().items == []


async def test_an_enqueue_that_may_not_wait_any_more_is_done_all_the_same(small: Server) -> None:
    """It was answered 429 after the job had been made, so a client that tried again made it twice."""
    busy = Server(small.app, waiters=0)

    async with busy.client(busy.token("enqueue:*")) as client:
        answer = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Prefer": "wait=5"})

    (job,) = small.app.jobs().items
    assert (answer.status_code, answer.json()["jobs"]) == (202, [{"id": job.id, "duplicate": False}])
    assert "preference-applied" not in answer.headers


async def test_who_may_not_read_jobs_learns_of_one_that_it_waited_for_how_it_ended(small: Server) -> None:
    """The job that holds the key may be another's."""
    small.app.queues.set("default", key_scope="forever")
    small.app.enqueue("other", key="order-7", queue="default")
    (grant,) = small.app.claim(worker=f"host-{CANARY}")
    small.app.complete(grant, {"r": 1})

    async with small.client(small.token("enqueue:*"), headers={"Prefer": "wait=5"}) as client:
        answer = await client.post("/api/v1/jobs", json={"kind": "other", "key": "order-7"})

    assert answer.json()["jobs"] == [{"id": grant.id, "duplicate": True}]
    assert set(answer.json()["job"]) == {"id", "state", "shown_state", "result", "last_error", "masked"}
    assert (answer.json()["job"]["state"], answer.json()["job"]["result"]) == ("succeeded", None)
    assert CANARY not in answer.text


async def test_pages_go_on_with_a_signed_cursor_that_holds_the_filter(server: Server) -> None:
    server.app.enqueue_many([("k" if n % 2 else "other", {"n": n}) for n in range(10)])
    text = server.token("read:meta")

    async with server.client(text) as client:
        first = await client.get("/api/v1/jobs", params={"kind": "k", "limit": 3})
        second = await client.get("/api/v1/jobs", params={"cursor": first.json()["next"], "limit": 3})
        changed = await client.get("/api/v1/jobs", params={"cursor": first.json()["next"][:-4] + "AAAA"})
        counts = await client.get("/api/v1/jobs:count", params={"state": "queued"})

    found = [job["id"] for page in (first, second) for job in page.json()["jobs"]]
    assert len(found) == len(set(found)) == 5
    assert {job["kind"] for page in (first, second) for job in page.json()["jobs"]} == {"k"}
    assert second.json()["next"] is None
    assert 'rel="next"' in first.headers["link"]
    assert changed.status_code == 400
    assert {(one["kind"], one["jobs"]) for one in counts.json()["counts"]} == {("k", 5), ("other", 5)}


async def test_without_the_scope_no_byte_of_payload_result_or_error_is_shown(server: Server) -> None:
    app = server.app
    app.queues.set("default", events=True, max_attempts=1)
    app.enqueue("k", {"secret": CANARY})
    (grant,) = app.claim(worker="w")
    app.fail(grant, f"ValueError: {CANARY}")
    app.enqueue("k", {"secret": CANARY})
    (grant,) = app.claim(worker="w")
    app.complete(grant, {"secret": CANARY}, summary=CANARY, events=[tenure.NewEvent("log", json.dumps({"m": CANARY}))])
    app.schedule("nightly", "@daily", "k", {"secret": CANARY})
    app.schedules.declare()
    ids = [job.id for job in app.jobs().items]
    text = server.token("read:meta", "operate")
    paths = ["/jobs", "/dead-letters", "/dead-letter-groups", "/metrics", "/schedules", "/kinds", "/queues"]
    paths += [f"/jobs/{one}{part}" for one in ids for part in PARTS]

    async with server.client(text) as client:
        for path in paths:
            answer = await client.get(f"/api/v1{path}")
            assert answer.status_code == 200, path
            assert CANARY not in answer.text, path
            refused = await client.get(f"/api/v1{path}", params={"payload": True})
            assert CANARY not in refused.text, path
        assert CANARY not in (await client.get("/metrics")).text

    allowed = server.token("read:meta", "read:payload")
    async with server.client(allowed) as client:
        for path in paths:
            if path not in {"/kinds", "/queues"} and not path.endswith("explain"):
                await client.get(f"/api/v1{path}", params={"payload": True})
        shown = await client.get("/api/v1/jobs", params={"payload": True})
    assert CANARY in shown.text
    assert (
        len([row for row in app.access.audit(limit=500) if row.act == "http:read_payload"])
        == len(paths) - 2 - len(ids) + 1
    )


PARTS = ["", "/attempts", "/events", "/logs", "/effects", "/explain", "/steps"]


async def test_an_etag_saves_what_is_known_and_guards_what_changed(server: Server) -> None:
    job_id = server.app.enqueue("k").id
    text = server.token("read:meta", "operate")

    async with server.client(text) as client:
        first = await client.get(f"/api/v1/jobs/{job_id}")
        tag = first.headers["etag"]
        known = await client.get(f"/api/v1/jobs/{job_id}", headers={"If-None-Match": tag})
        (grant,) = server.app.claim(worker="w")
        late = await client.post(f"/api/v1/jobs/{job_id}/cancel", json={"reason": "r"}, headers={"If-Match": tag})
        anew = await client.get(f"/api/v1/jobs/{job_id}", headers={"If-None-Match": tag})

    assert (known.status_code, known.content) == (304, b"")
    assert (late.status_code, anew.status_code) == (412, 200)
    assert server.app.get(grant.id).cancel_requested_at is None


async def test_a_tag_that_a_proxy_made_weak_is_known_all_the_same(small: Server) -> None:
    """nginx writes W/ before the ETag of what it compresses."""
    job_id = small.app.enqueue("k").id

    async with small.client(small.token("read:meta", "operate")) as client:
        tag = (await client.get(f"/api/v1/jobs/{job_id}")).headers["etag"]
        known = [
            (await client.get(f"/api/v1/jobs/{job_id}", headers={"If-None-Match": one})).status_code
            for one in (f"W/{tag}", f'"other", W/{tag}', "*", '"other"')
        ]
        weak = {"If-Match": f"W/{tag}"}  # which is compared strongly
        refused = await client.post(f"/api/v1/jobs/{job_id}/cancel", json={"reason": "r"}, headers=weak)

    assert known == [304, 304, 304, 200]
    assert refused.status_code == 412


@pytest.mark.parametrize("act", ["cancel", "revive"])
async def test_a_job_that_changes_while_the_etag_is_compared_is_left_alone(
    server: Server, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header was compared with a read of its own, and the act came after it."""
    job_id = server.app.enqueue("k", max_attempts=1).id
    if act == "revive":
        server.app.fail(server.app.claim(worker="w")[0], "boom")
    found = jobs.find

    async def overtaken(*given: Any) -> Any:
        job = await found(*given)
        if act == "revive":
            server.app.revive(job_id, reason="another was first")
        else:
            server.app.claim(worker="w")
        return job

    async with server.client(server.token("read:meta", "operate")) as client:
        tag = (await client.get(f"/api/v1/jobs/{job_id}")).headers["etag"]
        monkeypatch.setattr(jobs, "find", overtaken)
        late = await client.post(f"/api/v1/jobs/{job_id}/{act}", json={"reason": "r"}, headers={"If-Match": tag})

    assert late.status_code == 412
    acts = [row.reason for row in server.app.access.audit(subject=job_id)]
    assert "r" not in acts
    assert server.app.get(job_id).cancel_requested_at is None


async def test_a_waiting_job_is_edited_by_the_one_who_read_it_last(server: Server) -> None:
    job_id = server.app.enqueue("k", {"to": "a"}, queue="default").id
    text = server.token("read:meta", "operate", "enqueue:queue=default,kind=k")
    path = f"/api/v1/jobs/{job_id}"

    async with server.client(text) as client:
        tag = (await client.get(path)).headers["etag"]
        edited = await client.patch(
            path, json={"payload": {"to": CANARY, "n": BIG}, "priority": 7, "reason": "typo"}, headers={"If-Match": tag}
        )
        late = await client.patch(path, json={"priority": 1, "reason": "r"}, headers={"If-Match": tag})
        unsure = await client.patch(path, json={"priority": 1, "reason": "r"})
        newest = await client.get(path)

    job = server.app.get(job_id)
    assert (edited.status_code, edited.json()["job"]["priority"]) == (200, 7)
    assert edited.headers["etag"] == newest.headers["etag"] != tag
    assert CANARY not in edited.text
    assert (job.payload, job.priority) == ({"to": CANARY, "n": BIG}, 7)
    assert (late.status_code, late.json()["code"]) == (412, "outdated")
    assert (unsure.status_code, unsure.json()["code"]) == (428, "precondition_required")
    assert [row.act for row in server.app.access.audit(subject=job_id)] == ["edit"]


async def test_a_new_payload_needs_the_right_to_enqueue_it(server: Server) -> None:
    """What a payload says is what a worker will do: an operator who may not enqueue a kind may not rewrite its jobs."""
    job_id = server.app.enqueue("k", {"to": "a"}).id
    path = f"/api/v1/jobs/{job_id}"
    anyway = {"If-Match": "*"}

    async with server.client(server.token("operate", "enqueue:queue=default,kind=other")) as client:
        refused = await client.patch(path, json={"payload": {"to": "b"}, "reason": "r"}, headers=anyway)
        ranked = await client.patch(path, json={"priority": 2, "reason": "r"}, headers=anyway)
    async with server.client(server.token("enqueue:*", "read:meta")) as client:
        producer = await client.patch(path, json={"priority": 3, "reason": "r"}, headers=anyway)

    job = server.app.get(job_id)
    assert (refused.status_code, ranked.status_code, producer.status_code) == (403, 200, 403)
    assert (job.payload, job.priority) == ({"to": "a"}, 2)


async def test_an_edit_is_checked_as_an_enqueue_is(server: Server) -> None:
    @server.app.job(kind="welcome")
    def welcome(payload: Welcome) -> None: ...

    server.app.queues.set("guarded", forbidden_keys=("password",))
    typed = welcome.enqueue(Welcome(user_id=1)).id
    guarded = server.app.enqueue("k", {}, queue="guarded").id
    anyway = {"If-Match": "*"}

    async with server.client(server.token("operate", "enqueue:*")) as client:

        async def edit(job_id: str, body: dict[str, Any]) -> tuple[int, str]:
            answer = await client.patch(f"/api/v1/jobs/{job_id}", json={"reason": "r", **body}, headers=anyway)
            return answer.status_code, answer.json().get("code", "")

        assert await edit(typed, {"payload": {"user_id": "seven"}}) == (422, "invalid_payload")
        assert await edit(guarded, {"payload": {"a": [{"Password": 1}]}}) == (422, "forbidden_key")
        assert await edit(typed, {}) == (400, "invalid_argument")
        assert await edit(typed, {"payload": {"user_id": 7}}) == (200, "")
        server.app.claim(queues=["default"], worker="w")
        assert await edit(typed, {"payload": {"user_id": 8}}) == (409, "illegal_move")

    assert server.app.get(typed).payload == {"user_id": 7}
    assert server.app.get(guarded).payload == {}


async def test_waiting_answers_when_the_job_has_ended(server: Server) -> None:
    text = server.token("read:meta", "enqueue:*", "read:payload")
    job_id = server.app.enqueue("k").id

    async def work() -> None:
        (grant,) = await server.app.aio.claim(worker="w")
        await server.app.aio.complete(grant, {"done": True})

    async with server.client(text, timeout=60) as client:
        waited, _ = await asyncio.gather(client.get(f"/api/v1/jobs/{job_id}", params={"wait": 20}), work())
        at_once = await client.get(f"/api/v1/jobs/{job_id}", params={"wait": 20, "payload": True})
        posted = asyncio.create_task(
            client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Prefer": "respond-async, wait=20"})
        )
        await until(lambda: bool(server.app.jobs(state="queued").items))
        await work()
        over = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Prefer": "wait=0"})

    assert waited.json()["job"]["state"] == "succeeded"
    assert at_once.json()["job"]["result"] == {"done": True}
    assert (await posted).json()["job"]["result"] == {"done": True}
    assert over.status_code == 202


async def test_operators_cancel_revive_and_clone_by_their_own_name(server: Server) -> None:
    job_id = server.app.enqueue("k").id
    text = server.token("operate", name="ops")

    async with server.client(text) as client:
        cancelled = await client.post(f"/api/v1/jobs/{job_id}/cancel", json={"reason": "wrong"})
        ended = await client.post(f"/api/v1/jobs/{job_id}/cancel", json={"reason": "again"})
        cloned = await client.post(f"/api/v1/jobs/{job_id}/clone", json={"reason": "copy"})
        revived = await client.post(f"/api/v1/jobs/{job_id}/revive", json={"reason": "right after all"})
        illegal = await client.post(f"/api/v1/jobs/{job_id}/revive", json={"reason": "twice"})
        reasonless = await client.post(f"/api/v1/jobs/{job_id}/cancel", json={})

    assert [a.status_code for a in (cancelled, ended, cloned, revived, illegal, reasonless)] == [
        200,
        200,
        201,
        200,
        409,
        422,
    ]
    assert illegal.json()["code"] == "illegal_move"
    acts = {(row.act, row.actor) for row in server.app.access.audit(subject=job_id)}
    assert {("cancel", "ops"), ("clone", "ops"), ("revive", "ops")} <= acts


async def test_dead_letters_are_triaged_and_replayed_by_group(server: Server) -> None:
    app = server.app
    app.queues.set("default", max_attempts=1)
    app.enqueue_many([("k", {"n": n}) for n in range(3)])
    for grant in app.claim(worker="w", limit=3):
        app.fail(grant, "KeyError: 'x'")
    text = server.token("operate")

    async with server.client(text) as client:
        (group,) = (await client.get("/api/v1/dead-letter-groups")).json()["items"]
        sample = await client.post(
            "/api/v1/dead-letters/replay", json={"fingerprint": group["fingerprint"], "limit": 2, "reason": "fixed"}
        )
        (left,) = (await client.get("/api/v1/dead-letters", params={"triage": "pending"})).json()["items"]
        closed = await client.post("/api/v1/dead-letters/triage", json={"ids": [left["id"]], "triage": "closed"})
        none = await client.post(
            "/api/v1/dead-letters/replay", json={"fingerprint": group["fingerprint"], "reason": "fixed"}
        )

    assert group["letters"] == 3
    assert [one["state"] for one in sample.json()["items"]] == ["queued", "queued"]
    assert closed.json()["changed"] == [left["id"]]
    assert none.status_code == 404


async def test_a_durable_job_is_told_what_it_waits_for_and_shows_its_steps(server: Server) -> None:
    app = server.app

    @app.job(durable=True)
    def order(ctx: tenure.Context) -> Any:
        ctx.step("first", lambda: CANARY)
        return ctx.wait_for("paid:7")

    job_id = app.enqueue("order").id
    await app.aio.run_worker(drain=True, handle_signals=False)
    async with server.client(server.token("operate")) as client:
        shown = await client.get(f"/api/v1/jobs/{job_id}/steps")
        sent = await client.post("/api/v1/signals", json={"key": "paid:7", "value": {"cents": 700}})
    await app.aio.run_worker(drain=True, handle_signals=False)

    assert shown.json()["items"][0]["key"] == "first"
    assert CANARY not in shown.text
    assert sent.status_code == 200
    assert app.get(job_id).result == {"cents": 700}


@pytest.mark.parametrize("bad", ["00000000-0000-7000-8000-000000000000", "nonsense", "..%2Fb", "%00", "1' OR '1"])
async def test_what_is_not_there_has_one_answer(server: Server, bad: str) -> None:
    text = server.token("read:meta", "operate")

    async with server.client(text) as client:
        answer = await client.get(f"/api/v1/jobs/{bad}")

    told = answer.json()
    del told["request_id"]
    assert answer.status_code == 404
    assert told["detail"] == "There is nothing here under this name."


HOSTILE: list[tuple[bytes, int]] = [
    (b"{" * 100_000, 422),
    (b'{"kind":"k","payload":' + b"[" * 65 + b"]" * 65 + b"}", 422),
    (b'{"kind":"k","payload":1' + b"0" * 100_000 + b"}", 422),
    (b'{"kind":"k","payload":"\\ud800"}', 422),
    (b'{"kind":"k","payload":"\\u0000"}', 422),
    (b'{"kind":"k","payload":1e999}', 422),
    (b'{"kind":"k","payload":NaN}', 422),
    (b"\xff\xfe", 422),
    ('{"kind":"k","payload":"\u2200"}'.encode("utf-16"), 422),
    (b'{"kind":"k\\u0000"}', 400),
    (b'{"kind":"k","priority":99999999999}', 422),
    (b'{"kind":"k","unknown":1}', 422),
    (b'{"kind":"' + b"k" * 300 + b'"}', 422),
    (b"[]", 422),
    (b"", 422),
    (b'{"kind":"k","payload":"' + b"x" * 1_100_000 + b'"}', 413),
]


@pytest.mark.parametrize(("body", "status"), HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_bodies_are_refused_with_a_problem(server: Server, body: bytes, status: int) -> None:
    text = server.token("enqueue:*")

    async with server.client(text, headers={"Content-Type": "application/json"}) as client:
        answer = await client.post("/api/v1/jobs", content=body)

    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 3000
    assert server.app.jobs().items == []


@pytest.mark.parametrize("body", [b'\\"' * 100_000, b'"' + b'\\"' * 100_000, b"[" + b'"\\' * 100_000])
def test_quotes_without_an_end_are_judged_in_one_walk(body: bytes) -> None:
    """Each quote of a body walked through all that came behind it: a mebibyte of them held the server for hours."""
    begun = time.process_time()

    with contextlib.suppress(Problem):
        check_json(body, 64, 19)

    assert time.process_time() - begun < 1


async def test_a_body_without_end_is_cut_off(small: Server) -> None:
    text = small.token("enqueue:*")
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 65_536
            yield b" " * 65_536

    async with small.client(text, headers={"Content-Type": "application/json"}) as client:
        answer = await client.post("/api/v1/jobs", content=endless())

    assert answer.status_code == 413
    assert sent < 3_000_000


async def test_a_body_that_drips_in_is_cut_off_by_its_whole_time(small: Server) -> None:
    """Each piece comes in time; together they would take for ever, and hold a place meanwhile."""
    slow = Server(small.app, body_seconds=0.2)
    pieces = 0

    async def dripping() -> Any:
        nonlocal pieces
        while True:
            pieces += 1
            yield b" "
            await asyncio.sleep(0.02)

    async with slow.client(slow.token("enqueue:*"), headers={"Content-Type": "application/json"}) as client:
        async with asyncio.timeout(60):
            answer = await client.post("/api/v1/jobs", content=dripping())

    assert (answer.status_code, answer.json()["code"]) == (408, "timeout")


async def test_an_explanation_repeats_no_error_to_those_who_may_not_read_it(server: Server) -> None:
    """An error whose first line is short was repeated: the mask looked for more of it than the sentence has."""
    server.app.queues.set("default", max_attempts=1)
    job_id = server.app.enqueue("k").id
    server.app.fail(server.app.claim()[0], f"{CANARY}\nTraceback: line 1\nline 2")

    async with server.client(server.token("read:meta")) as client:
        masked = await client.get(f"/api/v1/jobs/{job_id}/explain")
    async with server.client(server.token("read:meta", "read:payload")) as client:
        whole = await client.get(f"/api/v1/jobs/{job_id}/explain")

    assert masked.status_code == 200
    assert CANARY not in masked.text
    assert CANARY in whole.text


async def test_a_result_that_was_waited_for_is_shown_by_scope_and_audited(small: Server) -> None:
    async def run_one() -> None:
        while not (grants := await small.app.aio.claim(worker="w")):  # noqa: ASYNC110  it asks a database
            await asyncio.sleep(0.01)
        await small.app.aio.complete(grants[0], {"r": CANARY})

    answers = []
    for scopes in (["enqueue:*"], ["enqueue:*", "read:payload"]):
        async with small.client(small.token(*scopes), headers={"Prefer": "wait=20"}) as client:
            worker = asyncio.create_task(run_one())
            answers.append(await client.post("/api/v1/jobs", json={"kind": "k"}))
            await worker

    assert [CANARY in answer.text for answer in answers] == [False, True]
    assert len([row for row in small.app.access.audit(limit=500) if row.act == "http:read_payload"]) == 1


async def test_the_hash_of_a_payload_is_masked_with_it(small: Server) -> None:
    """A payload of few possible values is found by its hash."""
    job_id = small.app.enqueue("k", {"pin": 1234}, key="a").id

    async with small.client(small.token("read:meta", "read:payload")) as client:
        masked = (await client.get(f"/api/v1/jobs/{job_id}")).json()["job"]
        whole = (await client.get(f"/api/v1/jobs/{job_id}", params={"payload": True})).json()["job"]

    assert masked["payload_hash"] is None
    assert whole["payload_hash"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_the_api_takes_json_and_nothing_else(small: Server, kind: str) -> None:
    async with small.client(small.token("enqueue:*"), headers={"Content-Type": kind}) as client:
        assert (await client.post("/api/v1/jobs", content=b'{"kind":"k"}')).status_code == 415


async def test_a_method_is_not_overridden_by_a_header(small: Server) -> None:
    async with small.client(small.token("admin"), headers={"X-HTTP-Method-Override": "DELETE"}) as client:
        answer = await client.post("/api/v1/tokens/abc", json={})

    assert answer.status_code == 405


@pytest.mark.parametrize("limit", [0, -1, 201, 10**9])
async def test_a_limit_is_bounded(small: Server, limit: int) -> None:
    async with small.client(small.token("read:meta")) as client:
        assert (await client.get("/api/v1/jobs", params={"limit": limit})).status_code == 422


@pytest.mark.parametrize("word", ["%", "_", "(a+)+$", "'; DROP TABLE tenure_job; --", "\\"])
async def test_filters_are_literal(server: Server, word: str) -> None:
    server.app.enqueue("k")

    async with server.client(server.token("read:meta")) as client:
        answer = await client.get("/api/v1/jobs", params={"kind": word})

    assert answer.status_code == 200
    assert answer.json()["jobs"] == []


async def test_a_token_makes_only_weaker_tokens(small: Server) -> None:
    text = small.token("admin", "enqueue:queue=mail")

    async with small.client(text) as client:
        weaker = await client.post(
            "/api/v1/tokens", json={"name": "w", "scopes": ["operate", "enqueue:queue=mail,kind=k"]}
        )
        stronger = [
            await client.post("/api/v1/tokens", json={"name": "s", "scopes": [scope]})
            for scope in ("read:payload", "enqueue:*", "enqueue:queue=other", "worker:queue=mail")
        ]
        made = weaker.json()
        listed = await client.get("/api/v1/tokens")
        revoked = await client.delete(f"/api/v1/tokens/{made['id']}")
    async with small.client(made["token"]) as client:
        after = await client.get("/api/v1/me")

    assert weaker.status_code == 201
    assert [one.status_code for one in stronger] == [403] * 4
    assert made["token"] not in listed.text
    assert "digest" not in listed.text
    assert revoked.json()["changed"] == [made["id"]]
    assert after.status_code == 401


async def test_settings_of_a_queue_are_named_as_on_the_command_line_and_sent_back_as_they_were_read(
    server: Server,
) -> None:
    path = "/api/v1/queues/mail"

    async with server.client(server.token("admin")) as client:
        made = await client.put(
            path,
            json={"settings": {"max_attempts": 5, "lease_seconds": "10m", "backoff.shape": "linear", "events": True}},
        )
        policy = made.json()["item"]["policy"]
        again = await client.put(path, json={"settings": policy})
        cleared = await client.put(path, json={"settings": {"aging_seconds": None, "forbidden_keys": ["a", "b"]}})

    assert (policy["max_attempts"], policy["lease_seconds"], policy["events"]) == (5, 600.0, True)
    assert policy["backoff"]["shape"] == "linear"
    assert again.json()["item"]["policy"] == policy
    assert cleared.json()["item"]["policy"] == policy | {"aging_seconds": None, "forbidden_keys": ["a", "b"]}


@pytest.mark.parametrize(
    "settings",
    [{"policy": {"max_attempts": 3}}, {"actor": "ada"}, {"name": "x"}, {"reason": "r"}, {"max_attempt": 3},
     {"max_attempts": "many"}, {"backoff": {"shape": {"x": 1}}}, {"self": 1}],
)  # fmt: skip
async def test_what_is_no_setting_of_a_queue_is_refused(server: Server, settings: Any) -> None:
    """`policy` and `actor` were taken for arguments of our own, and the refusal spoke of Python functions."""
    async with server.client(server.token("admin")) as client:
        answer = await client.put("/api/v1/queues/mail", json={"settings": settings})

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument"), answer.text
    assert server.app.queues.all("mail") == []


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"kind"', "The body is not JSON: Expecting ':' delimiter, at character 7."),
        ('{"kind": "k", "priorty": 3}', "/priorty: Extra inputs are not permitted."),
        ('{"queue": "mail"}', "/kind: Field required."),
        ('{"jobs": [{"kind": "k", "payload": 1, "prio": 2}]}', "/jobs/0/prio: Extra inputs are not permitted."),
    ],
)
async def test_a_body_that_does_not_fit_is_told_of_the_one_form_that_it_is_nearest_to(
    small: Server, body: str, detail: str
) -> None:
    """One job and many have different bodies: a typing error in the first was told in the words of both."""
    async with small.client(small.token("enqueue:*")) as client:
        answer = await client.post("/api/v1/jobs", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 422
    assert answer.json()["detail"] == detail
    assert "Body" not in answer.text


async def test_a_cursor_that_was_changed_is_refused_in_a_whole_sentence(small: Server) -> None:
    async with small.client(small.token("read:meta")) as client:
        answer = await client.get("/api/v1/jobs", params={"cursor": "abc"})

    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("This text was not made by this server")


async def test_a_slash_in_a_name_is_sent_encoded(server: Server) -> None:
    """What has a slash in its name could not be asked for: the path was parted there."""
    server.app.queues.set("team/mail")
    async with server.client(server.token("admin", "read:meta")) as client:
        shown = await client.get("/api/v1/queues/team%2Fmail")
        paused = await client.post("/api/v1/queues/team%2fmail/pause", json={"reason": "too loud"})
        limited = await client.put("/api/v1/limits/openai%2Fgpt-4", json={"per_minute": 5})
        closed = await client.post("/api/v1/gates/queue:team%2Fmail/close", json={})
        plain = await client.get("/api/v1/queues/team/mail")
        above = await client.get("/api/v1/queues/..%2F..%2Fhealthz")

    assert shown.json()["item"]["name"] == "team/mail"
    assert paused.json() == {"changed": ["team/mail"]}
    assert limited.json()["item"]["key"] == "openai/gpt-4"
    assert closed.json()["item"]["is_open"] is False
    assert (plain.status_code, above.status_code) == (404, 404)


async def test_the_effects_of_a_job_come_in_pages(server: Server) -> None:
    """What came behind the first 500 was left out, and nothing said so."""

    @server.app.job
    def send(ctx: tenure.Context) -> None:
        for number in range(3):
            ctx.effect("mail", do=lambda call: None, step=str(number))

    job_id = server.app.enqueue("send").id
    await server.app.aio.run_worker(drain=True, handle_signals=False)
    async with server.client(server.token("read:meta")) as client:
        path = f"/api/v1/jobs/{job_id}/effects"
        first = (await client.get(path, params={"limit": 2})).json()
        second = (await client.get(path, params={"limit": 2, "cursor": first["next"]})).json()
        foreign = await client.get("/api/v1/jobs", params={"cursor": first["next"]})

    assert [row["step"] for row in first["items"] + second["items"]] == ["0", "1", "2"]
    assert second["next"] is None
    assert foreign.status_code == 400
