"""The official client over HTTP, on a real `tenure serve`: tokens, scopes, audiences, and clients that go away."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult

import tenure.mcp
import tenure.web
from tenure import App, Backoff
from tenure.mcp.caller import TOOLSETS
from tests.mcp.conftest import Served, ask, names, refused, serving, until

pytestmark = pytest.mark.anyio
EVERYTHING = ("read:meta", "read:payload", "enqueue:*", "worker:*", "operate", "approve", "admin")
WAIT = 30.0


def fresh(app: Any) -> str:
    """A queue of a test's own."""
    name = f"q{uuid.uuid4().hex[:12]}"
    app.queues.set(name, max_attempts=1, actor="test")
    return name


async def agrees(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """A client whose user agrees to everything."""
    return ElicitResult(action="accept", content={"agree": True})


async def test_scopes_decide_the_toolsets(served: Served) -> None:
    async with served.client("read:meta") as client:
        assert await names(client) == list(TOOLSETS["inspect"])
    async with served.client("enqueue:kind=k") as client:
        assert await names(client) == list(TOOLSETS["use"])
    async with served.client("worker:queue=default", mode="legacy") as client:
        assert await names(client) == list(TOOLSETS["work"])
    async with served.client(*EVERYTHING) as client:
        assert await names(client) == [one for tools in TOOLSETS.values() for one in tools]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_all_toolsets_over_http(served: Served, mode: str) -> None:
    queue = fresh(served.app)
    async with (
        served.client(*EVERYTHING, mode=mode) as client,
        served.client("worker:queue=" + queue, mode=mode) as worker,
    ):
        job = (await ask(client, "enqueue", kind="k", payload={"n": 1}, queue=queue))["job_id"]
        held = (await ask(worker, "claim", queue=queue, seconds=20))["job"]
        assert held["untrusted"]["payload"] == {"n": 1}
        who = {"job_id": job, "token": held["token"]}
        assert (await ask(worker, "heartbeat", **who))["stop"] is False
        await ask(worker, "progress", **who, value={"done": 3})
        assert (await ask(client, "status", job_id=job))["untrusted"]["progress"] == {"done": 3}
        await ask(worker, "complete", **who, result={"ok": True})
        assert (await ask(client, "wait", job_id=job))["untrusted"]["result"] == {"ok": True}
        second = (await ask(client, "enqueue", kind="k", queue=queue))["job_id"]
        held = (await ask(worker, "claim"))["job"]
        await ask(worker, "fail", job_id=second, token=held["token"], error="broken")
        letters = (await ask(client, "dead_letters"))["dead_letters"]
        (letter,) = [one for one in letters if one["job_id"] == second]
        assert (await ask(client, "replay", ids=[letter["id"]], reason="mended"))["would_replay"] == [second]
        assert (await ask(client, "explain", job_id=second))["state"] == "dead"
        assert (await ask(client, "list_jobs", queue=queue))["jobs"]
        assert queue in json.dumps(await ask(client, "queues"))
        assert (await ask(client, "gates")) is not None
        assert "entries" in await ask(client, "inbox")
        assert "untrusted" in str(await client.read_resource(f"tenure://jobs/{job}"))


async def test_a_token_is_good_for_its_audience_alone(served: Served) -> None:
    api, agent = served.token("read:meta"), served.token("mcp", "read:meta", "admin")
    async with httpx.AsyncClient(base_url=served.url) as http:
        with_api, with_agent = {"Authorization": f"Bearer {api}"}, {"Authorization": f"Bearer {agent}"}
        assert (await http.get("/api/v1/jobs", headers=with_api)).status_code == 200
        assert (await http.get("/api/v1/jobs", headers=with_agent)).status_code == 401
        answer = await http.post("/mcp", headers=with_api, json={})
        assert answer.status_code == 401
        assert "not for MCP" in answer.json()["detail"]
        form = {"token": agent}
        origin = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
        assert (await http.post("/ui/session", data=form, headers=origin)).status_code in {400, 401, 403}
    assert served.app.access.open_session(token=agent) is None


async def test_hosts_origins_methods_and_bodies_are_checked_as_for_the_api(served: Served) -> None:
    text = served.token("mcp", "read:meta")
    good = {"Authorization": f"Bearer {text}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=served.url) as http:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer tnr_wrong"}, 401),
            (good | {"Host": "evil.test"}, 421),
            (good | {"Origin": "https://evil.test"}, 403),
            (good | {"Origin": "null"}, 403),
            (good | {"Sec-Fetch-Site": "cross-site"}, 403),
        ):
            assert (await http.post("/mcp", headers=headers, content=b"{}")).status_code == status, headers
        assert (await http.post(f"/mcp?token={text}", content=b"{}")).status_code == 400
        assert (await http.get("/mcp", headers=good)).status_code == 405
        assert (await http.post("/mcp", headers=good, content=b"[" * 1000)).status_code == 422
        assert (await http.post("/mcp", headers=good, content=b"x" * 2_000_000)).status_code == 413
        answer = await http.options("/mcp", headers={"Origin": "https://evil.test"})
        assert "access-control-allow-origin" not in answer.headers


async def test_a_revoked_token_is_refused_at_once(served: Served) -> None:
    made = served.app.access.new_token("short", ("mcp", "read:meta"))
    async with served.client(token=made.text) as client:
        await ask(client, "overview")
        served.app.access.revoke(made.token.id)
        with pytest.raises(MCPError):
            await client.call_tool("overview", {})


async def test_kinds_and_queues_of_the_scopes_are_the_bounds(served: Served) -> None:
    queue, other = fresh(served.app), fresh(served.app)
    hidden = served.app.enqueue("secret", queue=other)
    async with served.client(f"enqueue:queue={queue},kind=k", f"worker:queue={queue},kind=k") as client:
        job = (await ask(client, "enqueue", kind="k", queue=queue))["job_id"]
        assert '"forbidden"' in await refused(client, "enqueue", kind="other", queue=queue)
        assert '"forbidden"' in await refused(client, "enqueue", kind="k", queue=other)
        assert '"forbidden"' in await refused(client, "claim", queue=other)
        for tool in ("status", "wait", "cancel"):
            assert '"not_found"' in await refused(client, tool, job_id=hidden.id)
        served.app.enqueue("other", queue=queue)
        assert (await ask(client, "claim"))["job"]["job_id"] == job
        assert (await ask(client, "claim"))["job"] is None
        assert (await ask(client, "status", job_id=job))["state"] == "running"
        assert "overview" not in await names(client)
        assert "nknown tool" in await refused(client, "overview")


async def test_a_grant_belongs_to_the_token_that_claimed(served: Served) -> None:
    queue = fresh(served.app)
    job = served.app.enqueue("k", queue=queue)
    scope = f"worker:queue={queue}"
    async with served.client(scope) as one, served.client(scope) as two:
        held = (await ask(one, "claim"))["job"]
        for tool, more in (
            ("complete", {}),
            ("heartbeat", {}),
            ("fail", {"error": "x"}),
            ("release", {}),
            ("progress", {"value": 1}),
            ("ask", {"question": "?"}),
        ):
            assert '"lease_lost"' in await refused(two, tool, job_id=job.id, token=held["token"], **more)
        assert '"lease_lost"' in await refused(one, "complete", job_id=job.id, token=held["token"][:-2] + "AA")
        assert served.app.get(job.id).state == "running"
        await ask(one, "complete", job_id=job.id, token=held["token"])
    assert served.app.get(job.id).state == "succeeded"


async def test_an_agent_that_stops_heartbeating_loses_the_job_and_its_late_complete_is_refused(served: Served) -> None:
    queue = fresh(served.app)
    served.app.queues.set(queue, max_attempts=5, backoff=Backoff(shape="none"), actor="test")
    job = served.app.enqueue("k", queue=queue)
    scope = f"worker:queue={queue}"
    async with served.client(scope) as silent, served.client(scope) as other:
        lost = (await ask(silent, "claim", lease_seconds=1))["job"]
        held = None
        with anyio.fail_after(WAIT):
            while held is None:
                held = (await ask(other, "claim", seconds=25, lease_seconds=300))["job"]
        assert (held["job_id"], held["attempt"]) == (job.id, 2)
        for tool, more in (("complete", {}), ("heartbeat", {}), ("progress", {"value": 1}), ("fail", {"error": "x"})):
            assert '"lease_lost"' in await refused(silent, tool, job_id=job.id, token=lost["token"], **more)
        await ask(other, "complete", job_id=job.id, token=held["token"], result="second")
    assert (served.app.get(job.id).state, served.app.get(job.id).result) == ("succeeded", "second")


async def test_writes_and_refusals_and_unmasked_reads_are_audited(served: Served) -> None:
    queue = fresh(served.app)
    async with served.client(f"enqueue:queue={queue}", "read:meta", "read:payload") as client:
        job = (await ask(client, "enqueue", kind="k", queue=queue))["job_id"]
        await ask(client, "cancel", job_id=job, reason="done with it")
        await ask(client, "get_job", job_id=job)
        await refused(client, "pause_queue", queue=queue, reason="x")
    rows = [
        one for one in served.app.access.audit(limit=1000) if one.act.startswith("mcp:") and one.subject in {job, queue}
    ]

    found = {one.act: one for one in rows}
    assert set(found) == {"mcp:enqueue", "mcp:cancel", "mcp:get_job", "mcp:pause_queue"}
    assert all(one.actor == "agent" for one in rows)
    assert found["mcp:cancel"].reason == "done with it"
    assert found["mcp:pause_queue"].detail["status"] == "refused"
    assert found["mcp:enqueue"].detail["status"] == "done"


async def test_the_user_of_the_client_agrees_to_what_is_hard_to_take_back(served: Served) -> None:
    queue = fresh(served.app)
    job = served.app.enqueue("k", queue=queue)
    asked: list[str] = []

    async def decides(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"agree": len(asked) > 1})

    async with served.client("admin", "enqueue:*", elicitation_callback=decides) as client:
        paused = {"queue": queue, "reason": "too loud"}
        assert (await ask(client, "pause_queue", **paused))["dry_run"] is True
        assert asked == []
        assert '"forbidden"' in await refused(client, "pause_queue", **paused, dry_run=False)
        assert served.app.queues.all(queue)[0].paused_at is None
        assert (await ask(client, "pause_queue", **paused, dry_run="false"))["is_changed"] is True
        assert served.app.queues.all(queue)[0].paused_at is not None
        assert queue in asked[0]
        await ask(client, "resume_queue", **paused, dry_run=False)
        await ask(client, "close_gate", gate=f"queue:{queue}", reason="x", dry_run=False)
        await ask(client, "open_gate", gate=f"queue:{queue}", reason="x", dry_run=False)
        await ask(client, "cancel", job_id=job.id, reason="not mine")
        assert len(asked) == 6
        await ask(client, "revive", job_id=job.id, reason="after all", dry_run=False)
    assert served.app.get(job.id).state == "queued"


async def test_an_approval_is_answered_by_another_caller_whose_user_saw_the_arguments(served: Served) -> None:
    queue = fresh(served.app)
    job = served.app.enqueue("k", queue=queue)
    shown: list[str] = []

    async def reads(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        shown.append(params.message)
        return ElicitResult(action="accept", content={"agree": True})

    agent, person = (
        served.token("mcp", "worker:*", "approve"),
        served.token("mcp", "approve", "read:payload", name="ada"),
    )
    async with (
        served.client(token=agent, elicitation_callback=reads) as worker,
        served.client(token=person, elicitation_callback=reads) as other,
        served.client("approve") as silent,
    ):
        held = (await ask(worker, "claim", queue=queue))["job"]
        who = {"job_id": job.id, "token": held["token"]}
        asked = await ask(worker, "ask", **who, question="Delete it all?", details={"rows": 7})
        assert served.app.get(job.id).state == "waiting"
        assert '"lease_lost"' in await refused(worker, "complete", **who)
        entries = (await ask(other, "inbox"))["entries"]
        (entry,) = [one for one in entries if one["id"] == asked["approval_id"]]
        assert entry["untrusted"]["arguments"]["details"] == {"rows": 7}
        unlocks = f"job {job.id} (k in {queue}) goes on"
        assert unlocks in entry["untrusted"]["unlocks"]
        answer = {"approval_id": entry["id"], "args_hash": entry["args_hash"], "choice": "approve", "note": "go"}
        assert '"confirmation_required"' in await refused(silent, "decide", **answer)
        assert '"forbidden"' in await refused(worker, "decide", **answer)
        assert '"forbidden"' in await refused(other, "decide", **{**answer, "args_hash": "0" * 64})
        assert shown == []
        assert (await ask(other, "decide", **answer))["state"] == "granted"
        assert '"rows":7' in shown[0]
        assert f"Unlocks: {unlocks}" in shown[0]
        again = (await ask(worker, "claim", queue=queue, seconds=20))["job"]
        assert again["untrusted"]["answers"] == [{"question": "Delete it all?", "granted": True, "note": "go"}]
        assert '"illegal_move"' in await refused(other, "decide", **{**answer, "choice": "deny"})

        who = {"job_id": job.id, "token": again["token"]}
        late = (await ask(worker, "ask", **who, question="And this?"))["approval_id"]
        served.app.cancel(job.id)
        answer = {"approval_id": late, "args_hash": served.app.approvals.get(late).args_hash, "choice": "approve"}
        assert "has ended as cancelled" in await refused(other, "decide", **answer)


async def test_the_requester_cannot_approve_its_own(served: Served) -> None:
    queue = fresh(served.app)
    requester = served.token("mcp", "enqueue:*", "approve", name="grace")
    async with (
        served.client(token=requester, elicitation_callback=agrees) as client,
        served.client(f"worker:queue={queue}") as worker,
    ):
        job = (await ask(client, "enqueue", kind="k", queue=queue))["job_id"]
        held = (await ask(worker, "claim"))["job"]
        asked = (await ask(worker, "ask", job_id=job, token=held["token"], question="May I?"))["approval_id"]
        found = served.app.approvals.get(asked)
        answer = {"approval_id": asked, "args_hash": found.args_hash, "choice": "approve"}
        assert '"forbidden"' in await refused(client, "decide", **answer)
    assert served.app.approvals.get(asked).state == "pending"


async def test_a_client_of_the_older_protocol_is_given_a_plan(served: Served) -> None:
    """Over HTTP without sessions it cannot be asked anything."""
    async with served.client("admin", elicitation_callback=agrees, mode="legacy") as client:
        told = await refused(client, "pause_queue", queue="default", reason="x", dry_run=False)
    assert '"plan"' in told
    assert served.app.queues.all("default")[0].paused_at is None


async def test_a_token_reaches_its_own_tenant_alone(tmp_path: Path) -> None:
    """Two databases behind one server, in memory."""
    with App(f"sqlite:///{tmp_path / 'a.db'}") as one, App(f"sqlite:///{tmp_path / 'b.db'}") as two:
        mounted = tenure.mcp.http(calls_per_minute=8)
        served = tenure.web.asgi({"a": one, "b": two}, mcp=mounted, hosts=["tenure.test"])
        there = {app: app.enqueue("k", key=name) for app, name in ((one, "a"), (two, "b"))}
        for app, other in ((one, two), (two, one)):
            token = app.access.new_token("agent", ("mcp", "read:meta", "enqueue:*")).text
            transport = httpx2.ASGITransport(served)
            async with (
                httpx2.AsyncClient(transport=transport, headers={"Authorization": f"Bearer {token}"}) as http,
                Client(streamable_http_client("http://tenure.test/mcp", http_client=http)) as client,
            ):
                (job,) = (await ask(client, "list_jobs"))["jobs"]
                assert job["job_id"] == there[app].id
                assert '"not_found"' in await refused(client, "get_job", job_id=there[other].id)
                with pytest.raises(MCPError, match="not_found"):
                    await client.read_resource(f"tenure://jobs/{there[other].id}")
                for _ in range(5):
                    await ask(client, "overview")
                assert '"too_many_calls"' in await refused(client, "overview")  # its own 8, whatever others spent
                with pytest.raises(MCPError, match="calls per minute"):
                    await client.read_resource(f"tenure://jobs/{there[app].id}")
        await mounted.stop()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_disconnects_while_its_claim_waits_takes_no_job_with_it(served: Served, mode: str) -> None:
    queue = fresh(served.app)
    scope = f"worker:queue={queue}"
    async with served.client(scope, mode=mode) as gone:
        with anyio.move_on_after(2):
            await gone.call_tool("claim", {"seconds": 25, "lease_seconds": 3000})
    job = served.app.enqueue("k", queue=queue)
    async with served.client(scope) as client:
        held = None
        with anyio.fail_after(WAIT):
            while held is None:
                held = (await ask(client, "claim", seconds=5))["job"]
        assert (held["job_id"], held["attempt"]) == (job.id, 1)


async def test_a_client_that_disconnects_while_it_waits_leaves_the_job_alone(served: Served) -> None:
    queue = fresh(served.app)
    token = served.token("mcp", "enqueue:*")
    async with served.client(token=token) as gone:
        with anyio.move_on_after(1):
            await gone.call_tool("run", {"kind": "k", "queue": queue})
    async with served.client(token=token) as client:
        found = await until(lambda: served.app.jobs(queue=queue).items)
        assert (await ask(client, "status", job_id=found[0].id))["state"] == "queued"


async def test_an_agent_is_bound_by_its_tenant_s_quotas(tmp_path: Path) -> None:
    with serving(f"sqlite:///{tmp_path / 'small.db'}", "--max-queued", "1") as small:
        async with small.client("enqueue:*") as client:
            await ask(client, "enqueue", kind="k", payload={})
            said = await refused(client, "enqueue", kind="k", payload={})

        assert "At most 1 jobs may wait here" in str(said)
        assert sum(count.jobs for count in small.app.queues.counts()) == 1


async def test_a_replay_and_a_revive_are_bound_by_the_quotas_too(tmp_path: Path) -> None:
    """By the API they were, and an agent's went past them."""
    with serving(f"sqlite:///{tmp_path / 'small.db'}", "--max-queued", "1") as small:
        dead = small.app.enqueue("k", max_attempts=1)
        (grant,) = small.app.claim()
        small.app.fail(grant, "no")
        small.app.enqueue("k")
        (letter,) = small.app.dead_letters.all().items
        async with small.client("admin", elicitation_callback=agrees) as client:
            replayed = await refused(client, "replay", ids=[letter.id], reason="again", dry_run=False)
            revived = await refused(client, "revive", job_id=dead.id, reason="again", dry_run=False)

        assert "At most 1 jobs may wait here" in replayed
        assert "At most 1 jobs may wait here" in revived
        assert small.app.get(dead.id).state == "dead"


async def test_http_works_on_postgres_too(postgres_url: str) -> None:
    with serving(postgres_url) as served:
        async with served.client(*EVERYTHING, elicitation_callback=agrees) as client:
            assert isinstance(client, Client)
            job = (await ask(client, "enqueue", kind="k"))["job_id"]
            held = (await ask(client, "claim"))["job"]
            assert held["job_id"] == job
            asked = await ask(client, "ask", job_id=job, token=held["token"], question="May I?")
            assert served.app.approvals.get(asked["approval_id"]).state == "pending"
            await ask(client, "pause_queue", queue="default", reason="x", dry_run=False)


async def test_a_question_that_one_process_asked_is_answered_to_another(tmp_path: Path) -> None:
    """Behind several server processes the retry with the answer may reach any of them."""
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    with App(url) as one, App(url) as two:
        servers = [(tenure.mcp.http(), app) for app in (one, two)]
        ways = [
            httpx2.ASGITransport(tenure.web.asgi(app, mcp=mounted, hosts=["tenure.test"])) for mounted, app in servers
        ]
        reached: list[int] = []

        class Balanced(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                number = int(b"inputResponses" in await request.aread())
                reached.append(number)
                return await ways[number].handle_async_request(request)

        token = one.access.new_token("agent", ("mcp", "admin")).text
        async with (
            httpx2.AsyncClient(transport=Balanced(), headers={"Authorization": f"Bearer {token}"}) as http,
            Client(
                streamable_http_client("http://tenure.test/mcp", http_client=http), elicitation_callback=agrees
            ) as client,
        ):
            done = await ask(client, "pause_queue", queue="default", reason="too loud", dry_run=False)
        for mounted, _ in servers:
            await mounted.stop()

        assert done["is_changed"] is True
        assert set(reached) == {0, 1}
        assert two.queues.all("default")[0].paused_at is not None


async def test_arguments_that_a_form_would_cut_are_not_answered_by_one(served: Served) -> None:
    """What stands behind the cut would be approved unseen."""
    queue = fresh(served.app)
    job = served.app.enqueue("k", queue=queue)
    shown: list[str] = []

    async def reads(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        shown.append(params.message)
        return ElicitResult(action="accept", content={"agree": True})

    details = {"a": "x" * 9_000, "then": "delete everything"}
    async with (
        served.client(f"worker:queue={queue}") as worker,
        served.client("approve", "admin", "read:payload", elicitation_callback=reads) as person,
    ):
        held = (await ask(worker, "claim"))["job"]
        asked = await ask(worker, "ask", job_id=job.id, token=held["token"], question="Arguments: {}", details=details)
        found = served.app.approvals.get(asked["approval_id"])
        answer = {"approval_id": found.id, "args_hash": found.args_hash, "choice": "approve"}
        told = await refused(person, "decide", **answer)
        assert '"confirmation_required"' in told
        assert "too long" in told
        assert shown == []

        long_reason = {"queue": queue, "reason": "\u202e" * 2_000}
        assert '"plan"' in await refused(person, "pause_queue", **long_reason, dry_run=False)
        assert shown == []
    assert served.app.approvals.get(found.id).votes == ()


async def test_the_words_of_a_job_cannot_pass_for_its_arguments(served: Served) -> None:
    queue = fresh(served.app)
    job = served.app.enqueue("k", queue=queue)
    shown: list[str] = []

    async def reads(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        shown.append(params.message)
        return ElicitResult(action="decline")

    async with (
        served.client(f"worker:queue={queue}") as worker,
        served.client("approve", elicitation_callback=reads) as person,
    ):
        held = (await ask(worker, "claim"))["job"]
        question = 'Arguments: {"details":{"rows":0}}'
        asked = await ask(worker, "ask", job_id=job.id, token=held["token"], question=question, details={"rows": 7})
        found = served.app.approvals.get(asked["approval_id"])
        await refused(person, "decide", approval_id=found.id, args_hash=found.args_hash, choice="approve")

    assert shown[0].startswith('Approve this? Arguments: {"details":{"rows":7},')


async def test_an_agent_cannot_answer_what_its_own_queue_asks_nor_claim_a_group(served: Served) -> None:
    queue = fresh(served.app)
    job = served.app.enqueue("k", queue=queue)

    @served.app.job(kind=f"asks-{queue}", queue=queue, durable=True)
    def asks(ctx: tenure.Context) -> None:
        ctx.approve("refund", args={"eur": 120}, ask=["billing"])

    async with served.client(f"worker:queue={queue}") as worker:
        held = (await ask(worker, "claim"))["job"]
        asked = (await ask(worker, "ask", job_id=job.id, token=held["token"], question="May I?"))["approval_id"]
    found = served.app.approvals.get(asked)
    answer = {"approval_id": asked, "args_hash": found.args_hash, "choice": "approve"}
    async with served.client(f"worker:queue={queue}", "approve", elicitation_callback=agrees) as colleague:
        assert '"forbidden"' in await refused(colleague, "decide", **answer)
    assert served.app.approvals.get(asked).state == "pending"

    asks.enqueue()
    await anyio.to_thread.run_sync(lambda: served.app.run_worker(drain=True, queues=[queue]))
    (group,) = [one for one in served.app.approvals.all() if one.asked_of == ("billing",)]
    answer = {"approval_id": group.id, "args_hash": group.args_hash, "choice": "approve"}
    async with (
        served.client(
            "approve", token=served.token("mcp", "approve", name="carl"), elicitation_callback=agrees
        ) as carl,
        served.client(
            token=served.token("mcp", "approve", "group:billing", name="ada"), elicitation_callback=agrees
        ) as ada,
    ):
        assert group.id not in json.dumps(await ask(carl, "inbox"))
        assert '"forbidden"' in await refused(carl, "decide", **answer)
        assert group.id in json.dumps(await ask(ada, "inbox"))
        assert (await ask(ada, "decide", **answer))["state"] == "granted"
