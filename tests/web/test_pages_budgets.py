"""Budgets and limiters in the console: what they hold, who waits, and changes with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.testing import drain
from tests.web.conftest import Server
from tests.web.test_pages import _text, signed_in

pytestmark = pytest.mark.anyio


def _spend(server: Server) -> str:
    """A budget with room for one of two jobs; the id of the one that waits."""
    app = server.app
    app.budgets.set("kind:translate", usd="0.50", per="total")

    @app.job(kind="translate")
    def translate(payload: dict[str, Any], ctx: tenure.Context) -> str:
        with ctx.reserve(usd="0.40") as spent:
            spent.used(usd="0.30")
        return "done"

    first, second = (app.enqueue("translate", {"page": n}).id for n in range(2))
    drain(app)
    (waiting,) = app.jobs(state="waiting").items
    assert waiting.id in {first, second}
    return waiting.id


async def test_a_budget_says_what_is_used_and_who_waits_and_is_raised_with_a_reason(server: Server) -> None:
    waiting = await asyncio.to_thread(_spend, server)
    which = {"scope": "kind:translate", "unit": "usd", "per": "total"}

    async with signed_in(server) as client:
        page = await client.get("/ui/budgets")
        asked = await client.get("/ui/budgets/raise", params=which)
        unsaid = await client.post("/ui/budgets/raise", data={**which, "amount": "1.00"})
        kept = server.app.budgets.all()[0].limit
        raised = await client.post("/ui/budgets/raise", data={**which, "amount": "1.00", "reason": "a second page"})
        after = await client.get("/ui/budgets")

    said = _text(page)
    assert "0.30" in said
    assert "0.50 USD" in said
    assert f"/ui/jobs/{waiting}" in page.text
    assert "1 job waits for it" in _text(asked).replace("\u00a0", " ")
    assert unsaid.status_code == 400
    assert kept == 500_000
    assert raised.status_code == 303
    assert "1.50 USD" in _text(after)
    assert f"/ui/jobs/{waiting}" not in after.text
    assert server.app.get(waiting).state == tenure.State.QUEUED
    acts = [
        (one.act, one.actor, one.reason) for one in server.app.access.audit(subject="budget:kind:translate:usd:total")
    ]
    assert ("raise_budget", "ada", "a second page") in acts


async def test_a_budget_is_set_and_removed(small: Server) -> None:
    form = {"scope": "tenant:7", "unit": "tokens", "per": "day", "amount": "20000", "on_empty": "fail", "reason": "new"}

    async with signed_in(small) as client:
        empty = await client.get("/ui/budgets")
        made = await client.post("/ui/budgets/set", data=form)
        wrong = await client.post("/ui/budgets/set", data={**form, "amount": "many"})
        (found,) = small.app.budgets.all()
        gone = await client.post("/ui/budgets/remove", data=form)

    assert "No budget is set" in _text(empty)
    assert made.status_code == 303
    assert (found.scope, found.limit, found.on_empty) == ("tenant:7", 20_000, "fail")
    assert wrong.status_code == 400
    assert gone.status_code == 303
    assert small.app.budgets.all() == []


async def test_a_blocked_key_says_until_when_and_is_cleared_with_a_reason(server: Server) -> None:
    app = server.app
    app.limits.set("openai", per_minute=600, tokens_per_minute=90_000)
    app.limits.block("anthropic", 1800, reason="429 Too Many Requests")

    async with signed_in(server) as client:
        page = await client.get("/ui/limits")
        asked = await client.get("/ui/limits/clear", params={"key": "anthropic"})
        unsaid = await client.post("/ui/limits/clear", data={"key": "anthropic"})
        still = app.limits.all(["anthropic"])[0].strikes
        cleared = await client.post("/ui/limits/clear", data={"key": "anthropic", "reason": "they are back"})
        blocked = await client.post("/ui/limits/block", data={"key": "openai", "seconds": "60", "reason": "outage"})
        unknown = await client.get("/ui/limits/clear", params={"key": "nowhere"})

    said = _text(page)
    assert "429 Too Many Requests" in said
    assert "90,000" in said
    assert "No job that carries it starts" in _text(asked)
    assert unsaid.status_code == 400
    assert still == 1
    assert cleared.status_code == 303
    assert all(one.strikes == 0 for one in app.limits.all(["anthropic"]))
    assert blocked.status_code == 303
    assert app.limits.all(["openai"])[0].room == 0
    assert unknown.status_code == 404


@pytest.mark.parametrize("topic", ["budgets", "limits"])
async def test_pages_of_lists_follow_their_list(small: Server, topic: str) -> None:
    app = small.app
    async with signed_in(small) as client:
        page = await client.get(f"/ui/{topic}")
        first = (await client.get("/ui/changes", params={"topic": topic, "once": "1"})).text
        if topic == "budgets":
            app.budgets.set("all", usd="1.00")
        else:
            app.limits.block("openai", 60)
        second = (await client.get("/ui/changes", params={"topic": topic, "once": "1"})).text

    assert f"topic={topic}&amp;seen={first}" in page.text
    assert first != second
