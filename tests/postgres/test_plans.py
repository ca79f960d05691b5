"""What a claim and a settle touch, by count of pages, does not depend on what else lies in the table.

Pages are counted by the server itself (EXPLAIN with BUFFERS over the function call); no timing decides anything here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tenure.store.postgres.migrate import migrate
from tests.postgres.fill import fill
from tests.servers import PostgresServer

pytestmark = pytest.mark.postgres

ROWS = 40_000


@pytest.fixture
def connection(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A session that began on an empty database, and so has every reason to remember a bad plan."""
    postgres_server.template("tenure", _prepare)
    url = postgres_server.create_database(template="tenure")
    with psycopg.connect(url, autocommit=True) as session:
        exchange(session, 1)
        exchange(session, 1, done=exchange(session, 1)[0])
        yield session
    postgres_server.drop_database(url)


def _prepare(url: str) -> None:
    migrate(url)


def exchange(
    session: psycopg.Connection[Any],
    limit: int,
    done: list[tuple[str, int]] | None = None,
    queues: tuple[str, ...] = ("default",),
) -> tuple[list[tuple[str, int]], int]:
    """One exchange; answers what was granted, as (id, token), and the pages it touched."""
    request: dict[str, Any] = {"claim": {"worker": "w", "queues": list(queues), "limit": limit}}
    if done:
        request["outcomes"] = {"done": [{"i": job_id, "t": token} for job_id, token in done]}
    with session.transaction():
        session.execute("SET LOCAL track_io_timing = off")
        before = _held(session)
        [[plan]] = session.execute(
            "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT tenure.exchange(%s)", [json.dumps(request)]
        ).fetchall()
        granted = [(str(job_id), token) for job_id, token in _held(session) if (job_id, token) not in set(before)]
    root = plan[0]["Plan"]
    return granted, root["Shared Hit Blocks"] + root["Shared Read Blocks"]


def _held(session: psycopg.Connection[Any]) -> list[tuple[Any, int]]:
    return session.execute("SELECT id, token FROM tenure.job WHERE state IN ('leased', 'running')").fetchall()


def claim_and_settle_pages(
    session: psycopg.Connection[Any], batch: int, queues: tuple[str, ...] = ("default",)
) -> tuple[int, int]:
    """Pages touched by a claim of `batch`, and by the exchange that settles it and claims nothing."""
    exchange(session, batch, queues=queues)  # warms what is read once
    granted, claimed = exchange(session, batch, queues=queues)
    assert len(granted) == batch
    _, settled = exchange(session, 0, done=granted, queues=queues)
    return claimed, settled


@pytest.mark.parametrize("batch", [1, 100, 1000])
@pytest.mark.parametrize(
    "beside",
    [
        pytest.param({"state": "succeeded"}, id="finished rows"),
        pytest.param({"later": "1 day", "priorities": 100}, id="jobs due tomorrow at every priority"),
        pytest.param({}, id="a longer backlog"),
    ],
)
def test_a_claim_and_a_settle_touch_as_many_pages_beside_many_other_rows(
    connection: psycopg.Connection[Any], beside: dict[str, Any], batch: int
) -> None:
    fill(connection, 4000)
    claimed, settled = claim_and_settle_pages(connection, batch)
    connection.execute("DELETE FROM tenure.job WHERE state <> 'queued'")

    fill(connection, ROWS, **(beside or {"queue": "other"}))
    if not beside:
        connection.execute("UPDATE tenure.job SET queue = 'default' WHERE queue = 'other'")
    connection.execute("VACUUM tenure.job")
    full_claimed, full_settled = claim_and_settle_pages(connection, batch)

    # A deeper tree costs a page or two per lookup; reading the table would cost thousands.
    assert full_claimed <= 1.3 * claimed + 3 * batch + 30
    assert full_settled <= 1.3 * settled + 2 * batch + 30


def test_an_idle_claim_over_a_future_backlog_touches_what_an_empty_queue_does(
    connection: psycopg.Connection[Any],
) -> None:
    _, empty = exchange(connection, 100)

    fill(connection, ROWS, later="1 day", priorities=100)
    connection.execute("VACUUM tenure.job")
    exchange(connection, 100)
    _, idle = exchange(connection, 100)

    assert idle <= 2 * empty


def test_a_claim_over_five_queues_touches_little_more_than_one_over_one(connection: psycopg.Connection[Any]) -> None:
    fill(connection, 3000)
    alone, _ = claim_and_settle_pages(connection, 500)

    queues = tuple(f"q{n}" for n in range(5))
    for queue in queues:
        fill(connection, 3000, queue=queue)
    together, _ = claim_and_settle_pages(connection, 500, queues)

    assert together <= 1.3 * alone + 5 * 20


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "full"])
@pytest.mark.parametrize("batch", [1, 100, 1000])
def test_the_plans_inside_an_exchange_use_the_indexes_made_for_them(
    postgres15_server: PostgresServer, batch: int, filled: bool
) -> None:
    """auto_explain shows the plans of the statements inside the functions.
    It comes with Debian's server, not with the wheel."""
    postgres15_server.template("tenure", _prepare)
    url = postgres15_server.create_database(template="tenure")
    with psycopg.connect(url, autocommit=True) as session:
        if filled:
            fill(session, 20_000)
            fill(session, 20_000, state="succeeded")
        notes: list[str] = []
        session.add_notice_handler(lambda note: notes.append(note.message_primary or ""))
        session.execute("LOAD 'auto_explain'")
        session.execute("SET auto_explain.log_min_duration = 0")
        session.execute("SET auto_explain.log_nested_statements = on")
        granted, _ = exchange(session, batch)
        session.execute("SET client_min_messages = log")
        exchange(session, batch, done=granted or [("01900000-0000-7000-8000-000000000000", 1)])
        session.execute("SET client_min_messages = warning")
    postgres15_server.drop_database(url)

    plans = [note for note in notes if "tenure.job" in note and "Query Text" in note and "EXPLAIN" not in note]
    assert plans
    for plan in plans:
        if "SELECT id, token FROM tenure.job" in plan:
            continue  # the test's own look
        assert not re.search(r"Seq Scan on (tenure\.)?job", plan), plan
        assert "Hash Join" not in plan, plan
    text = "\n".join(plans)
    assert "job_claim_idx" in text
    assert "job_pkey" in text
