"""Workers over HTTP: grants bound to their token, fences, waiting claims, clients that go away."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tenure.web.site import Site
from tests.web.conftest import BASE, Server

pytestmark = pytest.mark.anyio

CLAIM = {"worker": "w", "queues": ["default"]}


async def claim(client: Any, **more: Any) -> dict[str, Any]:
    answer = await client.post("/api/v1/claims", json={**CLAIM, **more})
    assert answer.status_code == 200, answer.text
    (grant,) = answer.json()["grants"]
    found: dict[str, Any] = grant
    return found


def result(grant: dict[str, Any], outcome: str = "complete", **more: Any) -> dict[str, Any]:
    return {"id": grant["job"]["id"], "token": grant["token"], "outcome": outcome, **more}


async def test_a_job_is_claimed_kept_and_completed(server: Server) -> None:
    server.app.queues.set("default", events=True)
    job_id = server.app.enqueue("k", {"n": 2**53 + 1}).id
    text = server.token("worker:*")

    async with server.client(text) as client:
        grant = await claim(client, lease_seconds=30)
        held = {"id": job_id, "token": grant["token"], "progress": {"done": 1}, "logs": ["one", "two"]}
        beat = await client.post("/api/v1/heartbeats", json={"worker": "w", "grants": [held], "lease_seconds": 30})
        done = await client.post("/api/v1/settlements", json={"results": [result(grant, result={"ok": True})]})
        again = await client.post("/api/v1/settlements", json={"results": [result(grant, result={"ok": True})]})
        empty = await client.post("/api/v1/claims", json=CLAIM)

    assert grant["job"]["payload"] == {"n": 2**53 + 1}
    assert beat.json() == {
        "held": [job_id], "lost": [], "cancel": [], "overdue": [], "invalid": [], "drain": False, "next_in": 10.0,
    }  # fmt: skip
    assert done.json()["results"][0]["state"] == "succeeded"
    assert again.json() == done.json()
    assert empty.status_code == 204
    job = server.app.get(job_id)
    assert (job.state, job.result, job.progress) == ("succeeded", {"ok": True}, {"done": 1})
    assert [event.data for event in server.app.events(job_id=job_id, kind="log")] == [
        {"message": "one"},
        {"message": "two"},
    ]
    (worker,) = server.app.workers.all()
    assert worker.row.id.startswith("w@")


async def test_another_token_can_neither_keep_nor_end_a_job(server: Server) -> None:
    job_id = server.app.enqueue("k").id
    mine, theirs = server.token("worker:*"), server.token("worker:*", name="other")
    async with server.client(mine) as client:
        grant = await claim(client)
    before = server.app.get(job_id)

    async with server.client(theirs) as client:
        same_worker = await client.post("/api/v1/claims", json=CLAIM)
        beat = await client.post(
            "/api/v1/heartbeats", json={"worker": "w", "grants": [{"id": job_id, "token": grant["token"]}]}
        )
        settled = await client.post("/api/v1/settlements", json={"results": [result(grant)]})
        guessed = await client.post(
            "/api/v1/settlements", json={"results": [{**result(grant), "token": str(before.token)}]}
        )

    assert same_worker.status_code == 204
    assert beat.json()["lost"] == [job_id]
    assert (settled.status_code, settled.json()["code"]) == (409, "lease_lost")
    assert guessed.status_code == 409
    assert server.app.get(job_id) == before


async def test_a_batch_answers_each_result_by_itself(server: Server) -> None:
    ids = [server.app.enqueue("k", {"n": n}).id for n in range(4)]
    text = server.token("worker:*")

    async with server.client(text) as client:
        answer = await client.post("/api/v1/claims", json={**CLAIM, "limit": 4})
        one, two, three, four = answer.json()["grants"]
        answer = await client.post(
            "/api/v1/settlements",
            json={
                "results": [
                    result(one, result=1),
                    {**result(two), "token": one["token"]},
                    result(three, "fail"),
                    result(four, "fail", error="ValueError: x", retry_after=60),
                ]
            },
        )

    assert [row["status"] for row in answer.json()["results"]] == ["settled", "lost", "invalid", "settled"]
    assert answer.json()["results"][3]["state"] == "queued"
    assert answer.json()["results"][3]["run_at"] is not None
    assert {server.app.get(one).state for one in ids[1:3]} == {"running"}


async def test_a_cancel_is_told_by_the_heartbeat_and_a_closed_gate_says_drain(server: Server) -> None:
    job_id = server.app.enqueue("k").id
    text = server.token("worker:*")

    async with server.client(text) as client:
        grant = await claim(client)
        server.app.cancel(job_id, reason="wrong")
        server.app.gates.close("worker")
        held = {"id": job_id, "token": grant["token"]}
        beat = await client.post("/api/v1/heartbeats", json={"worker": "w", "grants": [held]})
        stopped = await client.post("/api/v1/settlements", json={"results": [result(grant, "stop")]})
        refused = await client.post("/api/v1/claims", json=CLAIM)

    assert (beat.json()["cancel"], beat.json()["drain"]) == ([job_id], True)
    assert stopped.json()["results"][0]["state"] == "cancelled"
    assert (refused.status_code, refused.json()["code"]) == (503, "gate_closed")


async def test_an_exchange_settles_and_claims(server: Server) -> None:
    server.app.enqueue_many([("k", {"n": n}) for n in range(2)])
    text = server.token("worker:queue=default")

    async with server.client(text) as client:
        first = await claim(client)
        answer = await client.post(
            "/api/v1/exchange", json={"worker": "w", "settle": [result(first)], "claim": {**CLAIM, "limit": 5}}
        )
        foreign = await client.post("/api/v1/claims", json={**CLAIM, "queues": ["default", "mail"]})

    assert answer.json()["results"][0]["state"] == "succeeded"
    assert len(answer.json()["grants"]) == 1
    assert foreign.status_code == 403


async def test_an_exchange_tells_what_it_settled_although_its_claim_is_refused(server: Server) -> None:
    """It was answered with the refusal alone, so that a worker never learned what became of its jobs."""
    ids = [server.app.enqueue("k", {"n": n}).id for n in range(2)]

    async with server.client(server.token("worker:queue=default")) as client:
        answer = await client.post("/api/v1/claims", json={**CLAIM, "limit": 2})
        first, second = answer.json()["grants"]
        server.app.gates.close("worker")
        asked = {"worker": "w", "settle": [result(first)], "claim": CLAIM}
        told = [(await client.post("/api/v1/exchange", json=asked)) for _ in range(2)]
        bare = await client.post("/api/v1/exchange", json={**asked, "settle": []})
        server.app.gates.open("worker")
        foreign = await client.post(
            "/api/v1/exchange",
            json={"worker": "w", "settle": [result(second)], "claim": {**CLAIM, "queues": ["mail"]}},
        )

    for one in told:
        assert one.status_code == 200, one.text
        assert (one.json()["results"][0]["state"], one.json()["grants"]) == ("succeeded", [])
        assert one.json()["refused"]["code"] == "gate_closed"
    assert (bare.status_code, bare.json()["code"]) == (503, "gate_closed")
    assert foreign.status_code == 403
    assert [server.app.get(one).state for one in ids] == ["succeeded", "running"]


async def test_a_result_with_a_text_that_no_engine_holds_leaves_the_others_alone(server: Server) -> None:
    """One NUL refused the whole batch, so that nothing of it was settled."""
    for n in range(7):
        server.app.enqueue("k", {"n": n})

    async with server.client(server.token("worker:*")) as client:
        answer = await client.post("/api/v1/claims", json={**CLAIM, "limit": 7})
        grants = answer.json()["grants"]
        results = [
            result(grants[0], summary="a\0b"),
            result(grants[1], "suspend", waiting_for="a\0b"),
            result(grants[2], "release", limiter="a\0b"),
            result(grants[3], "release", reason="a\0b"),
            result(grants[4], "stop", reason="a\0b"),
            result(grants[5], "fail", error="a\0b" + "x" * 50_000),
            result(grants[6], summary=""),
        ]
        settled = await client.post("/api/v1/settlements", json={"results": results})

    told = [(one["status"], one["code"]) for one in settled.json()["results"]]
    assert told == [("invalid", "invalid_argument")] * 3 + [("settled", None)] * 4
    last_error = server.app.get(grants[5]["job"]["id"]).last_error
    assert last_error is not None
    assert last_error.startswith("a\ufffdb")
    assert len(last_error) <= server.app.registry.limits.error_chars


async def test_a_worker_says_what_a_failure_is_counted_as(server: Server) -> None:
    """The heartbeat asked for the class `deadline`, and there was no way to give it."""
    late, slow = (server.app.enqueue("k", {"n": n}).id for n in range(2))

    async with server.client(server.token("worker:*")) as client:
        answer = await client.post("/api/v1/claims", json={**CLAIM, "limit": 2})
        first, second = answer.json()["grants"]
        results = [
            result(first, "reject", error="too late", failure_class="deadline"),
            result(second, "fail", error="took too long", failure_class="timeout"),
        ]
        await client.post("/api/v1/settlements", json={"results": results})
        unknown = await client.post(
            "/api/v1/settlements", json={"results": [result(first, "fail", error="x", failure_class="bad luck")]}
        )

    assert server.app.get(late).failure_class == "deadline"
    assert [one.failure_class for one in server.app.attempts(slow)] == ["timeout"]
    assert unknown.status_code == 422


async def test_a_waiting_claim_is_answered_when_a_job_comes(server: Server) -> None:
    text = server.token("worker:*")

    async with server.client(text, timeout=60) as client:
        waiting = asyncio.create_task(claim(client, wait=20))
        await asyncio.sleep(0)
        job_id = (await server.app.aio.enqueue("k")).id
        grant = await waiting

    assert grant["job"]["id"] == job_id


class Gone:
    """A client that goes away: after `after` reads of the request, every further one says so."""

    def __init__(self, body: Any) -> None:
        self.body = json.dumps(body).encode()
        self.is_sent = False
        self.is_gone = asyncio.Event()
        self.messages: list[Any] = []

    async def receive(self) -> Any:
        if not self.is_sent:
            self.is_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)


def scope(text: str, path: str) -> dict[str, Any]:
    host = BASE.removeprefix("http://").encode()
    headers = [(b"host", host), (b"authorization", f"Bearer {text}".encode()), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8400),
    }


async def test_what_was_granted_to_a_client_that_has_gone_is_given_back_at_once(server: Server) -> None:
    job_id = server.app.enqueue("k").id
    text = server.token("worker:*")
    client = Gone(CLAIM)
    client.is_gone.set()  # the socket closes while the claim is on its way

    await server.asgi(scope(text, "/api/v1/claims"), client.receive, client.send)

    job = server.app.get(job_id)
    assert (job.state, job.attempt, job.token) == ("queued", 0, 1)
    assert server.app.attempts(job_id) == []


async def test_a_waiting_claim_ends_when_its_client_goes(server: Server) -> None:
    text = server.token("worker:*")
    client = Gone({**CLAIM, "wait": 25})
    waiting = asyncio.create_task(server.asgi(scope(text, "/api/v1/claims"), client.receive, client.send))
    await asyncio.sleep(0)

    client.is_gone.set()
    await asyncio.wait_for(waiting, 15)

    job_id = server.app.enqueue("k").id
    assert server.app.get(job_id).state == "queued"


async def test_a_waiting_claim_ends_when_its_token_is_revoked(server: Server) -> None:
    """It was granted what came, for as long as it had asked to wait: a job that no one could settle any more."""
    text = server.token("worker:*")

    async with server.client(text, timeout=60) as client:
        waiting = asyncio.create_task(client.post("/api/v1/claims", json={**CLAIM, "wait": 25}))
        places = server.asgi._site.places
        while places.is_free("wait", text.split("_")[1], 1):  # noqa: ASYNC110  it has no event to wait for
            await asyncio.sleep(0.01)
        await server.app.aio.access.revoke(text.split("_")[1])
        answer = await asyncio.wait_for(waiting, 15)

    assert answer.status_code == 204
    job_id = server.app.enqueue("k").id
    assert server.app.get(job_id).state == "queued"


async def test_what_was_granted_goes_back_when_the_answer_cannot_be_made(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leases were kept until they ran out, and its attempts were spent."""
    job_id = server.app.enqueue("k").id

    async def fails(*_: Any) -> str:
        raise StoreUnavailable("The database is away.")

    monkeypatch.setattr(Site, "sign", fails)
    async with server.client(server.token("worker:*")) as client:
        claimed = await client.post("/api/v1/claims", json=CLAIM)
        exchanged = await client.post("/api/v1/exchange", json={"worker": "w", "claim": CLAIM})

    job = server.app.get(job_id)
    assert (claimed.status_code, exchanged.status_code) == (503, 503)
    assert (job.state, job.attempt, job.token) == ("queued", 0, 2)


async def test_a_heartbeat_is_asked_for_in_time_for_the_lease_that_the_claim_gave(server: Server) -> None:
    """It was asked for every 20 seconds, whatever the queue's leases were, so that shorter ones ran out."""
    server.app.queues.set("default", lease_seconds=6, lease_max_seconds=3600)
    server.app.enqueue("k")
    server.app.enqueue("k")

    async with server.client(server.token("worker:*")) as client:
        answer = await client.post("/api/v1/claims", json=CLAIM)
        (short,) = answer.json()["grants"]
        long = await claim(client, lease_seconds=900)
        beats = [
            await client.post(
                "/api/v1/heartbeats",
                json={"worker": "w", "grants": [{"id": one["job"]["id"], "token": one["token"]} for one in grants]},
            )
            for grants in ([short], [long], [short, long], [])
        ]
        held = server.app.get(long["job"]["id"])

    assert 5 < short["lease_seconds"] <= 6
    now, until = (datetime.fromisoformat(text) for text in (answer.json()["now"], short["lease_until"]))
    assert 5 < (until - now).total_seconds() <= 6
    assert [round(beat.json()["next_in"]) for beat in beats] == [2, 300, 2, 20]
    assert held.lease_until is not None
    assert (held.lease_until - server.app.now()).total_seconds() > 600  # never shortened


async def test_a_bad_progress_costs_no_job_its_lease(server: Server) -> None:
    """One NUL in one progress refused the heartbeat of all that the worker held."""
    for n in range(2):
        server.app.enqueue("k", {"n": n})

    async with server.client(server.token("worker:*")) as client:
        answer = await client.post("/api/v1/claims", json={**CLAIM, "limit": 2, "lease_seconds": 30})
        grants = [{"id": one["job"]["id"], "token": one["token"]} for one in answer.json()["grants"]]
        asked = [{**grants[0], "progress": "a\0b"}, {**grants[1], "progress": 0.5}]
        beat = await client.post("/api/v1/heartbeats", json={"worker": "w", "grants": asked, "lease_seconds": 900})

    told = beat.json()
    assert told["held"] == [one["id"] for one in grants]
    assert [(one["id"], one["code"]) for one in told["invalid"]] == [(grants[0]["id"], "invalid_payload")]
    jobs = [server.app.get(one["id"]) for one in grants]
    assert [job.progress for job in jobs] == [None, 0.5]
    left = [job.lease_until - server.app.now() for job in jobs if job.lease_until is not None]
    assert [one.total_seconds() > 600 for one in left] == [True, True]


async def test_waiting_claims_of_one_token_are_bounded(small: Server) -> None:
    few = Server(small.app, waiters=2)
    text = few.token("worker:*")

    async with few.client(text, timeout=60) as client:
        tasks = [asyncio.create_task(client.post("/api/v1/claims", json={**CLAIM, "wait": 3})) for _ in range(3)]
        answers = sorted(one.status_code for one in await asyncio.gather(*tasks))

    assert answers == [204, 204, 429]


async def test_a_refusal_by_a_service_holds_back_all_jobs_of_its_limiter(server: Server) -> None:
    for n in range(3):
        server.app.enqueue("k", {"n": n}, limits=["llm"])

    async with server.client(server.token("worker:*", "read:meta", "operate", "enqueue:*")) as client:
        made = await client.post("/api/v1/jobs", json={"jobs": [{"kind": "k", "limits": ["llm"]}]})
        grant = await claim(client)
        told = result(grant, "release", delay=600, limiter="llm", reason="429")
        released = await client.post("/api/v1/settlements", json={"results": [told]})
        held_back = await client.post("/api/v1/claims", json=CLAIM)
        listed = await client.get("/api/v1/limits")
        forever = result(grant, "release", delay=1e8, limiter="llm")
        refused = await client.post("/api/v1/settlements", json={"results": [forever]})
        too_long = await client.post("/api/v1/limits/llm/block", json={"seconds": 1e6})
        cleared = await client.post("/api/v1/limits/llm/clear", json={"reason": "quota raised"})
        rates = await client.put("/api/v1/limits/llm", json={"per_minute": 1})
        again = await client.post("/api/v1/claims", json={**CLAIM, "limit": 10})
        removed = await client.delete("/api/v1/limits/llm")
        missing = await client.delete("/api/v1/limits/llm")

    assert made.status_code == 201, made.text
    assert released.json()["results"][0]["state"] == "queued"
    assert held_back.status_code == 204
    (row,) = listed.json()["items"]
    assert (row["key"], row["strikes"], row["room"], row["reason"]) == ("llm", 1, 0, "429")
    (one,) = refused.json()["results"]
    assert (one["status"], one["code"], "ends within" in one["detail"]) == ("invalid", "invalid_argument", True)
    assert too_long.status_code == 422
    assert cleared.json()["item"]["room"] is None
    assert rates.json()["item"]["room"] == 1
    assert len(again.json()["grants"]) == 1
    assert removed.json() == {"changed": ["llm"]}
    assert missing.status_code == 404
