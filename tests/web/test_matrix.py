"""Every route with every scope: exactly 401, 403, 404 or an answer of its own. The table itself says what to expect."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tenure.model.access import EVERYTHING, Scope, parse_scope
from tenure.web.application import table
from tenure.web.routes import PUBLIC, Route
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio

MISSING = "00000000-0000-7000-8000-000000000000"

BODIES: dict[str, dict[str, Any]] = {
    "enqueue": {"kind": "k", "payload": {}},
    "cancel": {"reason": "r"},
    "revive": {"reason": "r"},
    "clone": {"reason": "r"},
    "edit": {"priority": 3, "reason": "r"},
    "resolve_effect": {"name": "send", "outcome": "retry"},
    "claim": {"worker": "w", "queues": ["default"]},
    "heartbeat": {"worker": "w", "grants": []},
    "settle": {"results": [{"id": MISSING, "token": "x", "outcome": "complete"}]},
    "exchange": {"worker": "w"},
    "set_queue": {"settings": {"max_attempts": 4}},
    "set_budget": {"scope": "all", "usd": "5.00"},
    "raise_budget": {"scope": "tenant:7", "usd": "5.00"},
    "remove_budgets": {"scope": "tenant:7"},
    "triage": {"ids": [MISSING], "triage": "closed"},
    "replay": {"ids": [MISSING], "reason": "r"},
    "new_token": {"name": "weaker", "scopes": ["read:meta"]},
    "new_bulk": {"act": "cancel", "filter": {"queue": ["default"], "state": ["queued"]}, "reason": "r"},
    "undo_bulk": {"reason": "r"},
    "signal": {"key": "paid"},
    "cancel_workflow": {"reason": "r"},
    "retry_workflow": {"reason": "r"},
    "answer_escalation": {"answer": "go_on"},
    "decide_approval": {"choice": "approve", "args_hash": "0" * 64},
    "link_approval": {"person": "ann"},
    "forget_memos": {"name": "extract", "reason": "r"},
    "set_limit": {"per_minute": 5},
    "block_limit": {"seconds": 5},
}
"""What each handler takes; others take an empty object."""

NAMES = {"name": "default", "kind": "unknown", "id": MISSING, "key": "llm"}

WITHOUT_ROW = {
    "set_queue": 200,
    "queue": 200,
    "queue_backlog": 200,
    "pause_queue": 200,
    "resume_queue": 200,
    "open_gate": 400,
    "close_gate": 400,
    "pause_schedule": 200,
    "resume_schedule": 200,
    "raise_budget": 404,
    "remove_budgets": 404,
    "settle": 409,
    "replay": 404,
    "claim": 204,
    "enqueue": 201,
    "new_token": 201,
    "new_bulk": 202,
    "set_limit": 200,
    "block_limit": 200,
    "clear_limit": 200,
    "remove_limit": 200,
}
"""What they answer on an empty database. Others: 404 if the path names something, else 200."""


def path_of(route: Route) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NAMES[found[1]], route.path)


def expected(route: Route) -> int:
    usual = 404 if "{" in route.path else 200
    return WITHOUT_ROW.get(route.handler.__name__, usual)


def may(scope: str, route: Route) -> bool:
    held = parse_scope(scope)
    return held.verb == route.scope or held.covers(Scope(route.scope))


@pytest.mark.parametrize("scope", EVERYTHING)
async def test_a_scope_opens_its_own_routes_and_no_other(small: Server, scope: str) -> None:
    text = small.token(scope)

    wrong = []
    async with small.client(text) as client:
        for route in table():
            if route.handler.__name__ == "stream":
                continue  # it does not end; test_events opens it
            body = None if route.verb in {"GET", "DELETE"} else BODIES.get(route.handler.__name__, {})
            answer = await client.request(route.verb, path_of(route), json=body)
            allowed = route.scope == PUBLIC or may(scope, route)
            wanted = expected(route) if allowed else 403
            if answer.status_code != wanted:
                wrong.append((route.verb, route.path, answer.status_code, wanted, answer.text[:200]))

    assert wrong == []


async def test_every_change_leaves_exactly_one_row_of_the_door_also_a_failed_one(small: Server) -> None:
    everything = small.token(*EVERYTHING)
    reader = small.token("read:meta", name="reader")

    for text in (everything, reader):
        async with small.client(text) as client:
            for route in table():
                if route.audit is None or route.scope == PUBLIC:
                    continue
                before = len(_rows(small))
                body = None if route.verb == "DELETE" else BODIES.get(route.handler.__name__, {})
                answer = await client.request(route.verb, path_of(route), json=body)
                added = _rows(small)[: len(_rows(small)) - before]
                assert [row.act for row in added] == [f"http:{route.audit}"], route
                assert added[0].detail["status"] == answer.status_code
                assert added[0].detail["token"] == text.split("_")[1]


async def test_a_path_that_no_engine_could_keep_does_not_pass_the_audit(small: Server) -> None:
    """It left no row: the path itself was refused as the row's subject."""
    async with small.client(small.token("operate")) as client:
        answer = await client.post("/api/v1/queues/a%00b/pause", json={})

    (row,) = _rows(small)
    assert (row.act, row.subject) == ("http:pause_queue", "/api/v1/queues/a\\x00b/pause")
    assert row.detail["status"] == answer.status_code == 400


def _rows(server: Server) -> list[Any]:
    return [row for row in server.app.access.audit(limit=1000) if row.act.startswith("http:")]


async def test_reading_changes_nothing(small: Server) -> None:
    text = small.token("read:meta", "admin")
    small.app.enqueue("k", {"a": 1})
    async with small.client(text) as client:
        await client.get("/api/v1/me")  # its use is noted once a minute
        before = _contents(small)
        for route in table():
            if route.verb == "GET" and route.handler.__name__ != "stream":
                await client.get(path_of(route))

        assert _contents(small) == before


def _contents(server: Server) -> list[str]:
    import sqlite3

    with sqlite3.connect(server.app.url.removeprefix("sqlite:///")) as connection:
        return list(connection.iterdump())
