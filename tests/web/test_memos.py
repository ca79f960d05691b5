"""Memos and the sums of agents' usage over HTTP."""

from __future__ import annotations

import asyncio

import pytest

import tenure
from tenure.testing import drain
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio

CANARY = "canary-of-a-memo"


@pytest.fixture
def filled(server: Server) -> Server:
    @server.app.job(durable=True, kind="work")
    def work(payload: dict[str, str], ctx: tenure.Context) -> str:
        found: str = ctx.memo("prices", key=payload["key"], ttl=3600, do=lambda: CANARY)
        return found

    for key in ("a1", "a2", "b1"):
        server.app.enqueue("work", {"key": key})
    drain(server.app)
    return server


async def test_memos_are_listed_masked_and_forgotten(filled: Server) -> None:
    async with filled.client(filled.token("read:meta", "operate", name="ada")) as client:
        first = (await client.get("/api/v1/memos", params={"name": "prices", "limit": 2})).json()
        rest = (await client.get("/api/v1/memos", params={"limit": 2, "cursor": first["next"]})).json()
        listed = first["memos"] + rest["memos"]
        assert [one["masked"] for one in listed] == [True] * 3
        assert CANARY not in str(listed)
        assert {one["key"] for one in listed} == {None}
        gone = await client.delete(f"/api/v1/memos/{listed[0]['id']}")
        again = await client.delete(f"/api/v1/memos/{listed[0]['id']}")
        most = await client.post("/api/v1/memos/forget", json={"name": "prices", "prefix": "a", "reason": "new prices"})
        none = await client.post("/api/v1/memos/forget", json={"reason": "all of them"})
        assert (gone.json(), again.status_code, most.json(), none.status_code) == (
            {"forgotten": 1},
            404,
            {"forgotten": 1},
            400,
        )

    async with filled.client(filled.token("read:meta", "read:payload")) as client:
        (left,) = (await client.get("/api/v1/memos", params={"payload": True})).json()["memos"]
    assert (left["name"], left["key"], left["masked"]) == ("prices", "b1", False)
    assert CANARY in left["preview"]


async def test_usage_is_added_up_by_agent_kind_or_job(server: Server) -> None:
    @server.app.job(durable=True, kind="ask")
    def ask(payload: dict[str, str], ctx: tenure.Context) -> None:
        ctx.step("call", lambda: {"usage": {"input_tokens": 7, "output_tokens": 2, "cost": 0.5}})

    job_id = server.app.enqueue("ask", {}).id
    await asyncio.to_thread(drain, server.app)

    async with server.client(server.token("read:meta")) as client:
        by_agent = (await client.get("/api/v1/usage")).json()
        by_job = (await client.get("/api/v1/usage", params={"by": "job", "kind": "ask"})).json()
        later = (await client.get("/api/v1/usage", params={"since": "2999-01-01T00:00:00Z"})).json()
        refused = [
            (await client.get("/api/v1/usage", params=params)).status_code
            for params in ({"by": "day"}, {"since": "2026-01-01T00:00:00"}, {"limit": 0})
        ]

    row = {"jobs": 1, "calls": 1, "input_tokens": 7, "output_tokens": 2, "usd_micro": 500_000}
    assert by_agent == {"items": [{"name": "default", **row}], "is_cut": False}
    assert by_job["items"] == [{"name": job_id, **row}]
    assert later["items"] == []
    assert refused == [422, 422, 422]
