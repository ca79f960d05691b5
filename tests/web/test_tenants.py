"""Tenants are databases: a token of one reaches nothing of another (R10, R24, R25)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

import tenure
from tenure.model.access import EVERYTHING
from tenure.observe.stats import usage_of
from tenure.web.application import table
from tests.web.conftest import Server
from tests.web.test_access import SAME_ORIGIN
from tests.web.test_matrix import BODIES
from tests.web.test_pages import signed_in

pytestmark = pytest.mark.anyio

CANARY = "canary-of-b"


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Server]:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as a, tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as b:
        yield Server({"a": a, "b": b})


async def test_a_token_of_one_tenant_reaches_no_byte_of_another(both: Server) -> None:
    b = both.apps["b"]
    b.queues.set(CANARY, events=True, max_attempts=1)
    job_id = b.enqueue(CANARY, {"x": CANARY}, queue=CANARY).id
    (grant,) = b.claim(worker=CANARY, queues=CANARY)
    b.fail(grant, CANARY)
    token_id = b.access.new_token(CANARY, "read:meta").token.id
    text = both.token(*EVERYTHING)
    names = {"id": job_id, "name": "default", "kind": "unknown", "key": "llm"}

    async with both.client(text) as client:
        for route in table():
            if route.handler.__name__ == "stream":
                continue
            path = re.sub(r"\{(\w+)\}", lambda found: names[found[1]], route.path)
            path = path.replace(job_id, token_id) if "/tokens/" in path else path
            body = None if route.verb in {"GET", "DELETE"} else BODIES.get(route.handler.__name__, {})
            answer = await client.request(route.verb, path, json=body, params={"payload": "true"})
            if "{id}" in route.path:
                assert answer.status_code == 404, route
            assert CANARY not in answer.text, route

    assert b.get(job_id).state == "dead"
    assert b.access.token(token_id).is_valid


async def test_each_token_finds_its_own_tenant(both: Server) -> None:
    texts = {name: app.access.new_token("t", "read:meta").text for name, app in both.apps.items()}

    for name, text in texts.items():
        async with both.client(text) as client:
            assert (await client.get("/api/v1/me")).json()["tenant"] == name


async def test_a_session_belongs_to_the_tenant_that_its_link_was_made_in(both: Server) -> None:
    link = both.apps["b"].access.new_link("ada", EVERYTHING)

    async with both.client() as client:
        answer = await client.post("/ui/session", data={"code": link}, headers=SAME_ORIGIN)
    value = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    secret = value.partition(".")[2]

    assert value.startswith("b.")
    for name in ("a", "../b", "b.db?mode=ro", "", "c"):
        async with both.client(cookies={"tenure-8400": f"{name}.{secret}"}) as client:
            assert (await client.get("/ui/")).status_code == 401, name


async def test_a_tenant_at_its_quota_is_refused_and_its_neighbour_is_not(tmp_path: Path) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as a, tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as b:
        server = Server({"a": a, "b": b}, queued=3)
        texts = [app.access.new_token("producer", "enqueue:*").text for app in (a, b)]
        jobs = {"jobs": [{"kind": "k"}, {"kind": "k"}]}
        async with server.client(texts[0]) as one, server.client(texts[1]) as other:
            assert (await one.post("/api/v1/jobs", json=jobs)).status_code == 201
            refused = await one.post("/api/v1/jobs", json=jobs)
            assert (refused.status_code, refused.json()["code"]) == (429, "quota")
            assert refused.headers["retry-after"] == "5"
            assert (await one.post("/api/v1/jobs", json={"kind": "k"})).status_code == 201
            assert (await other.post("/api/v1/jobs", json=jobs)).status_code == 201
        assert sum(count.jobs for count in a.queues.counts()) == 3


async def _at_quota(
    tmp_path: Path, act: Callable[[httpx.AsyncClient, int], Awaitable[httpx.Response]], **quota: int
) -> None:
    """The first tenant is let in twice and then refused, while its neighbour is not."""
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as a, tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as b:
        server = Server({"a": a, "b": b}, **quota)
        texts = [app.access.new_token("all", EVERYTHING).text for app in (a, b)]
        async with server.client(texts[0]) as one, server.client(texts[1]) as other:
            for number in range(2):
                assert (await act(one, number)).status_code < 300
            refused = await act(one, 2)
            assert (refused.status_code, refused.json()["code"]) == (429, "quota"), refused.text
            assert int(refused.headers["retry-after"]) > 0
            assert (await act(one, 2)).status_code == 429
            assert (await act(other, 0)).status_code < 300


async def test_queues_are_bounded_and_those_that_are_there_can_be_changed(tmp_path: Path) -> None:
    async def make(client: httpx.AsyncClient, number: int) -> httpx.Response:
        changed = await client.put("/api/v1/queues/default", json={"settings": {"max_attempts": 4}})
        assert changed.status_code == 200
        return await client.put(f"/api/v1/queues/q{number}", json={"settings": {"max_attempts": 5}})

    await _at_quota(tmp_path, make, queues=3)


async def test_valid_tokens_are_bounded_and_a_revoked_one_makes_room(tmp_path: Path) -> None:
    async def make(client: httpx.AsyncClient, number: int) -> httpx.Response:
        return await client.post("/api/v1/tokens", json={"name": f"t{number}", "scopes": ["read:meta"]})

    await _at_quota(tmp_path, make, tokens=3)


async def test_clones_count_as_jobs_that_wait(tmp_path: Path) -> None:
    ended: dict[httpx.AsyncClient, str] = {}

    async def copy(client: httpx.AsyncClient, _number: int) -> httpx.Response:
        if client not in ended:
            made = await client.post("/api/v1/jobs", json={"kind": "k"})
            ended[client] = made.json()["jobs"][0]["id"]
            await client.post(f"/api/v1/jobs/{ended[client]}/cancel", json={"reason": "r"})
        return await client.post(f"/api/v1/jobs/{ended[client]}/clone", json={"reason": "r"})

    await _at_quota(tmp_path, copy, queued=3)


def _died(app: tenure.App, jobs: int) -> str:
    """Jobs that died of one error; its fingerprint."""
    app.queues.set("default", max_attempts=1)
    app.enqueue_many([app.new_job("k", {"n": n}) for n in range(jobs)])
    for grant in app.claim(worker="w", limit=jobs):
        app.fail(grant, "KeyError: 'x'")
    return app.dead_letters.all().items[0].fingerprint


REVIVALS: dict[str, Callable[[str, list[str]], tuple[str, dict[str, object]]]] = {
    "revive": lambda _, ids: (f"/api/v1/jobs/{ids[0]}/revive", {"reason": "r"}),
    "replay a group": lambda group, _: (
        "/api/v1/dead-letters/replay", {"fingerprint": group, "limit": 3, "reason": "r"}
    ),
    "all that match": lambda _, __: (
        "/api/v1/bulk", {"act": "revive", "filter": {"state": ["dead"]}, "reason": "r"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", REVIVALS)
async def test_jobs_that_are_queued_again_count_as_jobs_that_wait(tmp_path: Path, way: str) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as app:
        group = _died(app, 3)
        path, body = REVIVALS[way](group, [one.job_id for one in app.dead_letters.all().items])
        app.enqueue_many([app.new_job("other") for _ in range(3)])
        full, roomy = Server(app, queued=3), Server(app, queued=6)
        token = full.token("operate")
        async with full.client(token) as client:
            refused = await client.post(path, json=body)
        states = sorted(job.state for job in app.jobs().items)
        async with roomy.client(token) as client:
            done = await client.post(path, json=body)

    assert (refused.status_code, refused.json()["code"]) == (429, "quota"), refused.text
    assert states == ["dead"] * 3 + ["queued"] * 3
    assert done.status_code < 300, done.text


async def test_an_act_that_cancels_is_let_in_at_the_quota(tmp_path: Path) -> None:
    """It makes room."""
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as app:
        app.enqueue_many([app.new_job("k") for _ in range(3)])
        server = Server(app, queued=3)
        async with server.client(server.token("operate")) as client:
            body = {"act": "cancel", "filter": {"state": ["queued"]}, "reason": "r"}
            assert (await client.post("/api/v1/bulk", json=body)).status_code == 202


async def test_enqueues_that_come_at_once_share_one_read_of_what_is_there(tmp_path: Path) -> None:
    """Each read anew and forgot what the others had taken meanwhile."""
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as app:
        server = Server(app, queued=10)
        async with server.client(server.token("enqueue:*"), timeout=60) as client:
            body = {"jobs": [{"kind": "k"}] * 2}
            answers = await asyncio.gather(*(client.post("/api/v1/jobs", json=body) for _ in range(20)))

        assert sorted(one.status_code for one in answers) == [201] * 5 + [429] * 15
        assert sum(count.jobs for count in app.queues.counts()) == 10


async def test_a_tenant_whose_tables_are_full_is_refused_and_its_neighbour_is_not(tmp_path: Path) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as a, tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as b:
        texts = [app.access.new_token("producer", "enqueue:*").text for app in (a, b)]
        room = max(usage_of(app.store, 10).bytes for app in (a, b)) + 400_000
        a.enqueue_many([a.new_job("k", {"x": "y" * 50_000}) for _ in range(20)])
        server = Server({"a": a, "b": b}, bytes=room)
        async with server.client(texts[0]) as one, server.client(texts[1]) as other:
            refused = await one.post("/api/v1/jobs", json={"kind": "k"})
            assert (refused.status_code, refused.json()["code"]) == (429, "quota")
            assert "--max-bytes" in refused.json()["detail"]
            assert (await other.post("/api/v1/jobs", json={"kind": "k"})).status_code == 201


async def test_a_repeat_by_idempotency_key_takes_no_room(tmp_path: Path) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as app:
        server = Server(app, queued=1)
        async with server.client(server.token("enqueue:*")) as client:
            first = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "a"})
            again = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "a"})
            other = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "b"})
            other_again = await client.post("/api/v1/jobs", json={"kind": "k"}, headers={"Idempotency-Key": "b"})

        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()
        assert (other.status_code, other_again.status_code) == (429, 429)
        assert sum(count.jobs for count in app.queues.counts()) == 1


async def test_the_console_is_bound_by_the_same_quotas(tmp_path: Path) -> None:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as app:
        group = _died(app, 2)
        dead = app.dead_letters.all().items[0].job_id
        app.enqueue("k")
        app.access.new_token("first", "read:meta")
        server = Server(app, queued=1, tokens=1)
        async with signed_in(server) as client:
            page = (await client.get("/ui/enqueue")).text
            csrf = {"csrf": re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]}
            job = await client.post("/ui/enqueue", data={**csrf, "kind": "k", "payload": "{}"}, headers=SAME_ORIGIN)
            done = app.jobs(limit=1).items[0].id
            copy = await client.post(f"/ui/jobs/{done}/clone", data={**csrf, "reason": "again"}, headers=SAME_ORIGIN)
            again = {**csrf, "reason": "fixed"}
            revived = [
                await client.post(path, data={**again, **more}, headers=SAME_ORIGIN)
                for path, more in (
                    (f"/ui/jobs/{dead}/revive", {}),
                    (f"/ui/jobs/{dead}/edit", {"payload": '{"n": 7}'}),
                    (f"/ui/dead-letters/{group}/replay", {"count": "all"}),
                    ("/ui/jobs/picked/do", {"act": "revive", "pick": dead}),
                    ("/ui/bulk/new", {"act": "revive", "q": "state:dead"}),
                )
            ]
            token = await client.post(
                "/ui/access/tokens", data={**csrf, "name": "t", "scope": "read:meta"}, headers=SAME_ORIGIN
            )

        assert (job.status_code, copy.status_code, token.status_code) == (429, 429, 429)
        assert [one.status_code for one in revived] == [429] * 5
        assert sum(count.jobs for count in app.queues.counts(state="queued")) == 1
        assert sum(count.jobs for count in app.queues.counts()) == 3
        assert len(app.access.tokens()) == 1


async def test_a_form_beyond_a_quota_is_shown_again_with_what_was_written(tmp_path: Path) -> None:
    """The payload that an operator had mended was gone with the refusal."""
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as app:
        _died(app, 1)
        (dead,) = (one.job_id for one in app.dead_letters.all().items)
        app.enqueue_many([app.new_job("k") for _ in range(3)])
        server = Server(app, queued=3)
        async with signed_in(server) as client:
            form = {"payload": '{"n": 4711}', "reason": "mended", "priority": "0"}
            replayed = await client.post(f"/ui/jobs/{dead}/edit", data=form)
            enqueued = await client.post("/ui/enqueue", data={"kind": "k", "payload": '{"n": 4711}'})

        assert len(app.jobs().items) == 4
    for answer in (replayed, enqueued):
        assert answer.status_code == 429
        assert "4711" in answer.text
        assert "At most 3 jobs may wait here" in answer.text
