"""Budgets on PostgreSQL: what a plain job does not pay for, plain SQL, and whose reservation it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tenure.model.ids import new_job_id
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres
Connection = psycopg.Connection[tuple[Any, ...]]


def call(connection: Connection, function: str, request: object) -> Any:
    row = connection.execute(f"SELECT tenure.{function}(%s::json)".encode(), [json.dumps(request)]).fetchone()
    assert row is not None
    return row[0]


def set_budget(connection: Connection, scope: str = "all", unit: str = "usd", limit: int = 10) -> None:
    call(connection, "set_budgets", {"budgets": [{"scope": scope, "unit": unit, "limit": limit}], "actor": "ops"})


def held_job(connection: Connection) -> str:
    """A job that is held under token 1."""
    job_id = new_job_id()
    call(connection, "enqueue", {"groups": [{"queue": "default", "kind": "k", "jobs": [{"i": job_id, "p": {}}]}]})
    call(connection, "claim", {"worker": "w", "queues": ["default"], "limit": 1, "lease": 600})
    return job_id


def test_a_plain_job_does_not_look_at_the_tables_of_budgets(url: str, admin: Connection) -> None:
    set_budget(admin)
    set_budget(admin, "queue:default", "calls", 0)
    with psycopg.connect(url) as connection:  # whose counters begin at nothing
        job_id = held_job(connection)
        settled = call(connection, "settle", {"done": [{"i": job_id, "t": 1}]})
        looks = connection.execute(
            "SELECT sum(seq_scan + coalesce(idx_scan, 0)) FROM pg_stat_xact_user_tables"
            " WHERE schemaname = 'tenure' AND relname IN ('budget', 'spend')"
        ).fetchone()
        ended = connection.execute("SELECT state FROM tenure.job WHERE id = %s", [job_id]).fetchone()

    assert ended == ("succeeded",), settled
    assert looks == (0,)


@pytest.mark.parametrize(
    ("function", "request_", "says"),
    [
        ("set_budgets", {"budgets": [{"scope": "all", "unit": "usd", "limit": 0.5}], "actor": "a"}, "whole number"),
        ("set_budgets", {"budgets": [{"scope": "all", "unit": "usd"}], "actor": "a"}, "whole number"),
        ("set_budgets", {"budgets": [{"scope": "me", "unit": "usd", "limit": 1}], "actor": "a"}, "scope is one of"),
        ("set_budgets", {"budgets": [{"scope": "all", "unit": "eur", "limit": 1}], "actor": "a"}, "counts usd"),
        ("set_budgets", {"budgets": [{"scope": "all", "unit": "usd", "limit": 1, "per": "week"}], "actor": "a"}, "per"),
        ("set_budgets", {"budgets": [{"scope": "all", "unit": "usd", "limit": 1}]}, "actor"),
        ("raise_budgets", {"scope": "all", "amounts": {"usd": 1}, "actor": "a"}, "no budget"),
        ("reserve_budget", {"job_id": new_job_id(), "token": 1, "key": " ", "amounts": {}}, "key"),
        ("reserve_budget", {"job_id": new_job_id(), "token": 1, "key": "k", "amounts": {"usd": -1}}, "whole number"),
    ],
)
def test_plain_sql_is_refused_in_words(url: str, function: str, request_: object, says: str) -> None:
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match=says) as refused:
        call(connection, function, request_)
    assert (refused.value.sqlstate or "").startswith("TN0")


def test_room_that_is_made_while_a_job_parks_is_found_by_the_sweep(url: str, admin: Connection) -> None:
    """The settle looks for waiting jobs before the park has committed, and commits after the sweep has begun."""
    set_budget(admin)
    first, second = held_job(admin), held_job(admin)
    asked = {"key": "1", "amounts": {"usd": 10}}
    assert call(admin, "reserve_budget", {"job_id": first, "token": 1, **asked})["refusal"] is None
    assert call(admin, "reserve_budget", {"job_id": second, "token": 1, **asked})["refusal"][0] == "all"
    name = "budget:all:usd:total"
    step = {"key": "$b", "kind": "budget", "state": "open", "awaits": name, "value": {"key": "1", "asked": {"usd": 10}}}

    with psycopg.connect(url) as settling, ThreadPoolExecutor(1) as pool:
        told = call(settling, "settle_budget", {"job_id": first, "token": 1, "key": "1", "used": {"usd": 0}})
        assert told == {"is_found": True, "flow": False}, "it sees no job that waits"
        call(admin, "settle", {"rest": [{"i": second, "t": 1, "o": "suspend", "w": name, "steps": [step]}]})
        assert admin.execute("SELECT state FROM tenure.job WHERE id = %s", [second]).fetchone() == ("waiting",)
        swept = pool.submit(_call, url, "sweep_flow", {})
        wait_until(lambda: _is_blocked(admin, "sweep_flow"))
        settling.commit()
        assert swept.result(30)["jobs"] == 1

    assert admin.execute("SELECT state FROM tenure.job WHERE id = %s", [second]).fetchone() == ("queued",)
    assert admin.execute("SELECT used, reserved FROM tenure.budget").fetchall() == [(0, 10)]


def test_a_reservation_is_settled_by_the_login_that_holds_the_job(
    url: str, admin: Connection, login: Callable[..., str]
) -> None:
    set_budget(admin)
    with (
        psycopg.connect(login("worker"), autocommit=True) as mine,
        psycopg.connect(login("worker", "2"), autocommit=True) as other,
    ):
        job_id = held_job(mine)
        place = {"job_id": job_id, "token": 1, "key": "1"}
        assert call(other, "reserve_budget", {**place, "amounts": {"usd": 10}}) is None
        assert call(mine, "reserve_budget", {**place, "amounts": {"usd": 10}})["refusal"] is None
        assert not call(other, "settle_budget", {**place, "is_unused": True})["is_found"]
        assert call(mine, "settle_budget", {**place, "used": {"usd": 4}})["is_found"]
    assert admin.execute("SELECT used, reserved FROM tenure.budget").fetchall() == [(4, 0)]


def test_a_budget_made_in_the_middle_of_a_reservation_keeps_nothing_of_it(url: str, admin: Connection) -> None:
    """Each statement of a function sees what was committed before it. A budget that came between the row of the
    reservation and the change of the budgets was charged without a row, and no settle gave that back."""
    set_budget(admin, limit=100)
    job_id = held_job(admin)
    (row,) = admin.execute("SELECT id FROM tenure.budget").fetchall()
    spend = (
        "INSERT INTO tenure.spend (job_id, token, key, budget_id, state, reserved, at)"
        " VALUES (%s, 1, '1', %s, 'held', 1, now())"
    )

    with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute(spend.encode(), [job_id, row[0]])  # the reservation waits for this key, and it is rolled back
        reserving = pool.submit(
            _call, url, "reserve_budget", {"job_id": job_id, "token": 1, "key": "1", "amounts": {"usd": 7}}
        )
        wait_until(lambda: _is_blocked(admin, "reserve_budget"))
        set_budget(admin, "queue:default", limit=50)
        set_budget(admin, "kind:k", "tokens", limit=50)
        holder.rollback()
        assert reserving.result(30)["refusal"] is None

    counted = "SELECT scope, reserved FROM tenure.budget ORDER BY scope"
    assert admin.execute(counted).fetchall() == [("all", 7), ("kind:k", 0), ("queue:default", 0)]
    assert call(admin, "settle_budget", {"job_id": job_id, "token": 1, "key": "1", "used": {"usd": 3}})["is_found"]
    assert admin.execute(counted).fetchall() == [("all", 0), ("kind:k", 0), ("queue:default", 0)]


def test_setting_budgets_takes_their_locks_in_the_order_of_all_others(url: str, admin: Connection) -> None:
    """It took them by scope, all others by id: two that met waited for each other."""
    pair: list[tuple[str, str]] = []
    while pair == sorted(pair, key=lambda one: one[1]):  # by id; ids are random, and here the scopes go the other way
        scopes = [f"queue:{name}{new_job_id()}" for name in "ab"]
        for scope in scopes:
            set_budget(admin, scope)
        pair = admin.execute(
            "SELECT id, scope FROM tenure.budget WHERE scope = ANY (%s) ORDER BY id", [scopes]
        ).fetchall()
    lock = b"SELECT 1 FROM tenure.budget WHERE id = %s FOR NO KEY UPDATE"

    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(lock, [pair[0][0]])
        budgets = [{"scope": scope, "unit": "usd", "limit": 5} for _, scope in pair]
        setting = pool.submit(_call, url, "set_budgets", {"budgets": budgets, "actor": "ops"})
        wait_until(lambda: _is_blocked(admin, "set_budgets"))
        other.execute(lock, [pair[1][0]])
        other.commit()
        assert len(setting.result(30)) == 2


def _call(url: str, function: str, request: object) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return call(connection, function, request)


def _is_blocked(connection: Connection, function: str) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    return connection.execute(query, [f"%{function}%"]).fetchone() == (1,)
