"""The short claim grants what the long one would, and hands over to it whenever there is more to do than to grant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Enqueue
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job
from tests.postgres.fill import fill

pytestmark = pytest.mark.postgres

NOW = "2030-01-01T00:00:00.123456Z"
SHORT = "tenure.grant_few(%(claim)s)"
LONG = "tenure.grant_jobs(%(claim)s, tenure.now())"
PLAIN = """tenure.claim_few(
    c.worker, c.queues ->> 0, c."limit", c.lease, (c.marks ->> 'expired')::bigint, (c.marks ->> 'due')::bigint,
    c.wake)
FROM json_to_record(%(claim)s) AS c(
    worker text, queues json, "limit" integer, lease double precision, marks json, wake boolean)"""
"""The short claim in plain arguments, as Tenure's own workers send it."""


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def claim(**fields: Any) -> str:
    return json.dumps({"worker": "w", "queues": ["default"], "limit": 10, **fields})


def granted(admin: psycopg.Connection, function: str, request: str) -> tuple[Any, list[Any]]:
    """What a function answers and what it leaves in the tables; nothing of it stays."""
    with admin.transaction(force_rollback=True):
        admin.execute(
            "CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz LANGUAGE sql "
            f"AS $$ SELECT '{NOW}'::timestamptz $$".encode()
        )
        [[answer]] = admin.execute(f"SELECT {function}".encode(), {"claim": request}).fetchall()
        rows = admin.execute("SELECT row_to_json(j) FROM tenure.job AS j ORDER BY id").fetchall()
        waiters = admin.execute("SELECT queue, worker FROM tenure.waiter").fetchall()
    return answer, [*rows, *waiters]


@pytest.mark.parametrize(
    "request_fields",
    [
        pytest.param({}, id="plain"),
        pytest.param({"limit": 2}, id="fewer than there are"),
        pytest.param({"limit": 1}, id="one"),
        pytest.param({"limit": 0}, id="none"),
        pytest.param({"lease": 12.5, "strict": True}, id="a lease of its own"),
        pytest.param({"wake": True}, id="wants to be woken"),
        pytest.param({"wake": False}, id="wants no more"),
        pytest.param({"queues": ["empty"]}, id="an empty queue"),
        pytest.param({"marks": {"expired": 1893455999000000, "due": 1893455999000000, "queues": {}}}, id="with marks"),
    ],
)
@pytest.mark.parametrize("start_on_claim", [True, False])
def test_it_grants_as_the_long_claim_does(
    store: PostgresStore, admin: psycopg.Connection, request_fields: dict[str, Any], start_on_claim: bool
) -> None:
    store.do(SetQueues({name: QueuePolicy(start_on_claim=start_on_claim) for name in ("default", "empty")}, actor="t"))
    user = "0192f0c1-2b3c-7def-8123-456789abcdef"
    store.do(Enqueue([new_job(payload={"n": 'ü"\\'}, priority=n % 3) for n in range(5)]))
    store.do(Enqueue([new_job(key="k", actor="me", tenant="t", created_by_user_id=user, trace="x", priority=9)]))
    admin.execute("UPDATE tenure.job SET run_at = '2029-12-31', created_at = '2029-12-31'")

    few = granted(admin, SHORT, claim(**request_fields))

    assert few[0] is not None
    assert few == granted(admin, LONG, claim(**request_fields))
    assert few == granted(admin, PLAIN, claim(**request_fields))


@pytest.mark.parametrize(
    ("request_fields", "before"),
    [
        pytest.param({"limit": 50}, "", id="a large claim"),
        pytest.param({"queues": ["default", "other"]}, "", id="two queues"),
        pytest.param({"queues": ["nowhere"]}, "", id="an unknown queue"),
        pytest.param({"kinds": ["work"]}, "", id="kinds"),
        pytest.param({"affinity": [None]}, "", id="affinity"),
        pytest.param({"held": []}, "", id="a lost reply"),
        pytest.param({"lease": 1e9}, "", id="too long a lease"),
        pytest.param({"lease": 0}, "", id="no lease"),
        pytest.param({"marks": {"queues": {"default": [[0, 0, None]]}}}, "", id="marks of the queue"),
        pytest.param({}, "UPDATE tenure.queue SET paused_at = now()", id="paused"),
        pytest.param({}, "UPDATE tenure.queue SET events = true", id="events"),
        pytest.param({}, "UPDATE tenure.queue SET concurrency = 3", id="a limited queue"),
        pytest.param({}, "UPDATE tenure.queue SET concurrency_per_key = 3", id="limited keys"),
        pytest.param(
            {},
            "UPDATE tenure.job SET state = 'running', lease_owner = 'v', lease_until = '2029-12-31' "
            "WHERE id = (SELECT min(id::text)::uuid FROM tenure.job)",
            id="a lease ran out",
        ),
        pytest.param({}, "UPDATE tenure.job SET is_due = false", id="a job came due"),
        pytest.param(
            {"marks": {"expired": 1893456000123456, "due": 1893455940000000, "queues": {}}},
            "UPDATE tenure.job SET is_due = false, run_at = '2029-12-31T23:59:00Z'",
            id="a job came due at the mark",
        ),
    ],
)
def test_it_leaves_the_rest_to_the_long_claim(
    store: PostgresStore, admin: psycopg.Connection, request_fields: dict[str, Any], before: str
) -> None:
    admin.execute(
        "CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$"
    )
    store.do(Enqueue([new_job() for _ in range(3)]))
    if before:
        admin.execute(before.encode())
    untouched = admin.execute("SELECT row_to_json(j) FROM tenure.job AS j ORDER BY id").fetchall()

    assert granted(admin, SHORT, claim(**request_fields)) == (None, untouched)


def test_any_closed_gate_is_judged_by_the_long_claim(store: PostgresStore, admin: psycopg.Connection) -> None:
    store.do(Enqueue([new_job()]))
    store.do(SetGate("queue:other", is_open=False, actor="t"))

    assert granted(admin, SHORT, claim())[0] is None
    assert len(granted(admin, LONG, claim())[0]["lines"]) == 1


@pytest.mark.parametrize("limit", [5, 100])
def test_an_idle_claim_touches_no_more_beside_many_jobs_that_others_hold(admin: psycopg.Connection, limit: int) -> None:
    def pages() -> int:
        request = json.dumps({"claim": {"worker": "w", "queues": ["default"], "limit": limit}})
        for _ in range(3):
            [[plan]] = admin.execute(
                "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT tenure.exchange(%s)", [request]
            ).fetchall()
        root = plan[0]["Plan"]
        return int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])

    empty = pages()
    fill(admin, 20_000)
    admin.execute("UPDATE tenure.job SET state = 'running', lease_owner = 'v', lease_until = now() + interval '1 hour'")
    admin.execute("VACUUM tenure.job")

    assert pages() <= 2 * empty + 10
