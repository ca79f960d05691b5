"""Tenants are databases: a token of one reaches nothing of another (R10, R24, R25)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure.model.access import EVERYTHING
from tenure.web.application import table
from tests.web.conftest import Server
from tests.web.test_access import SAME_ORIGIN
from tests.web.test_matrix import BODIES

pytestmark = pytest.mark.anyio

CANARY = "canary-of-b"


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Server]:
    with tenure.App(f"sqlite:///{tmp_path / 'a.db'}") as a, tenure.App(f"sqlite:///{tmp_path / 'b.db'}") as b:
        yield Server({"a": a, "b": b})


async def test_a_token_of_one_tenant_reaches_no_byte_of_another(both: Server) -> None:
    b = both.apps["b"]
    b.set_queue(CANARY, events=True, max_attempts=1)
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
        assert sum(count.jobs for count in a.counts()) == 3
