"""Budgets by HTTP."""

from __future__ import annotations

import pytest

from tests.web.conftest import Server

pytestmark = pytest.mark.anyio


async def test_budgets_are_set_raised_listed_and_removed(server: Server) -> None:
    async with server.client(server.token("operate", "read:meta", name="ada")) as client:
        made = await client.put("/api/v1/budgets", json={"scope": "tenant:7", "usd": "5.00", "per": "day"})
        assert made.status_code == 200, made.text
        raised = await client.post(
            "/api/v1/budgets/raise", json={"scope": "tenant:7", "usd": "0.5", "per": "day", "reason": "more"}
        )
        assert raised.json()["items"][0]["limit"] == 5_500_000
        await client.put("/api/v1/budgets", json={"scope": "all", "tokens": 10})
        first = (await client.get("/api/v1/budgets", params={"limit": 1})).json()
        rest = (await client.get("/api/v1/budgets", params={"limit": 1, "cursor": first["next"]})).json()
        assert [first["items"][0]["name"], rest["items"][0]["name"]] == [
            "budget:all:tokens:total",
            "budget:tenant:7:usd:day",
        ]
        assert rest["items"][0]["left"] == 5_500_000
        one = (await client.get("/api/v1/budgets", params={"scope": "tenant:7"})).json()
        assert [item["scope"] for item in one["items"]] == ["tenant:7"]
        removed = await client.post("/api/v1/budgets/remove", json={"scope": "tenant:7"})
        assert removed.json() == {"changed": ["budget:tenant:7:usd:day"]}
        assert (await client.post("/api/v1/budgets/remove", json={"scope": "tenant:7"})).status_code == 404

    acts = server.app.access.audit(subject="budget:tenant:7:usd:day")
    assert [(one.act, one.actor) for one in reversed(acts)] == [
        ("set_budget", "ada"),
        ("raise_budget", "ada"),
        ("remove_budget", "ada"),
    ]


async def test_floats_as_money_are_refused_with_what_to_write(small: Server) -> None:
    async with small.client(small.token("operate")) as client:
        refused = await client.put("/api/v1/budgets", json={"scope": "all", "usd": 0.4})

    assert refused.status_code == 400
    assert 'usd=\\"0.40\\"' in refused.text
    assert small.app.budgets.all() == []


async def test_a_limiter_that_would_never_reopen_is_refused_with_the_bound(small: Server) -> None:
    async with small.client(small.token("operate")) as client:
        too_long = await client.post("/api/v1/limits/llm/block", json={"seconds": 90_000, "reason": "x"})
        answers = [
            await client.post(
                "/api/v1/limits/llm/block",
                content=f'{{"seconds": {seconds}, "reason": "x"}}',
                headers={"Content-Type": "application/json"},
            )
            for seconds in ("1e999", "-1", "null", '"soon"', "NaN")
        ]

    assert too_long.status_code in {400, 422}
    assert "86" in too_long.text
    assert {one.status_code for one in answers} <= {400, 422}
    assert small.app.limits.all() == []
