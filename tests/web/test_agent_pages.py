"""Agents and their memory in the console: figures from what the store wrote, search, and forgetting."""

from __future__ import annotations

import json

import pytest

from tenure.model.step import NewStep
from tenure.store.flow import RecordSteps
from tests.web.conftest import Server
from tests.web.test_pages import _text, signed_in

pytestmark = pytest.mark.anyio


def _run(server: Server) -> str:
    """An agent that did three tasks, one of them badly; the id of one that told its cost."""
    app = server.app
    app.queues.set("Pricing", agent_events="ends", max_attempts=1)
    app.enqueue_many([app.new_job("reprice", {"n": n}, queue="Pricing") for n in range(3)])
    good, paid, bad = app.claim(queues="Pricing", worker="w", limit=3)
    app.complete(good, {"ok": True})
    app.complete(paid, {"costUsd": 0.25, "tokens": {"input": 1200, "output": 34}})
    app.fail(bad, "ValueError: no price")
    app.memory.remember("the supplier sends brake pads late on Mondays", agent="Pricing")
    app.memory.remember("wheel bearings are priced per pair", agent="Pricing", kind="rule")
    return paid.id


async def test_the_figures_of_an_agent_are_those_of_its_jobs(server: Server) -> None:
    paid = _run(server)

    async with signed_in(server) as client:
        answer = await client.get("/ui/agents")

    said = _text(answer)
    assert answer.status_code == 200
    assert "33.3 %" in said
    assert "0.2500 USD" in said
    assert "1,234" in said  # tokens in and out
    assert f"/ui/jobs/{paid}" in answer.text


async def test_memories_are_found_by_words_and_forgotten_with_a_reason(server: Server) -> None:
    _run(server)
    app = server.app
    (hit,) = app.memory.search("brake pads", by="words")

    async with signed_in(server) as client:
        found = await client.get("/ui/memory", params={"q": "late brake pads", "by": "words"})
        unsaid = await client.post("/ui/memory/forget", data={"pick": hit.id})
        kept = app.memory.search("brake pads", by="words")
        gone = await client.post("/ui/memory/forget", data={"pick": hit.id, "reason": "no longer so", "q": "brake"})

    assert "the supplier sends brake pads late on Mondays" in _text(found)
    assert "wheel bearings" not in _text(found)
    assert unsaid.status_code == 400
    assert kept
    assert gone.status_code == 303
    assert app.memory.search("brake pads", by="words") == []
    assert app.memory.search("wheel bearings", by="words")


async def test_what_is_remembered_is_told_only_to_those_who_may_read_payloads(small: Server) -> None:
    _run(small)

    async with signed_in(small, "read:meta", "operate") as client:
        answer = await client.get("/ui/memory", params={"q": "brake pads"})

    assert answer.status_code == 200
    assert "brake pads late" not in answer.text
    assert "needs the scope" in _text(answer)


async def test_tokens_and_cost_that_a_framework_recorded_in_steps_are_added_up_once(server: Server) -> None:
    app = server.app
    app.queues.set("Cashier", agent_events="ends")
    for told in ({"answer": "yes"}, {"costUsd": 0.25, "tokens": {"input": 1000}}):
        app.enqueue("answer", queue="Cashier")
        (grant,) = app.claim(queues="Cashier", worker="w")
        calls = [
            {"parts": [], "usage": {"input_tokens": 1800, "output_tokens": 40, "cost": 0.02}},
            {"parts": [], "usage": {"input_tokens": 2000, "output_tokens": 60, "cost": 0.03}},
            {"usage": "unknown"},
            ["usage"],
        ]
        steps = [NewStep(f"model/{n}", value=json.dumps(one)) for n, one in enumerate(calls)]
        app.store.do(RecordSteps(grant.id, grant.token, steps))
        app.complete(grant, told)

    async with signed_in(server) as client:
        said = _text(await client.get("/ui/agents"))

    assert "4,900" in said  # 3,900 of the steps of the first run, 1,000 of the result of the second
    assert "0.3000 USD" in said
