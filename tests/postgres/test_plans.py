"""What a claim and a settle touch, by count of pages, does not depend on what else lies in the table.

Pages are counted by the server itself (EXPLAIN with BUFFERS over the function call); no timing decides anything here.
`TENURE_LONG=1` puts 1,000,000 rows beside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tenure.model.ids import new_job_id
from tests.conformance.engines import migrated_template
from tests.fault.scale import TIMEOUT, scaled
from tests.postgres.fill import fill
from tests.servers import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(TIMEOUT)]

BASE = 20_000
ROWS = scaled(40_000, 1_000_000)
BATCHES = (1, 100, 1000)
# By itself a VACUUM leaves the dead entries of an index where they are few beside the table, and here they would count.
VACUUM = "VACUUM (INDEX_CLEANUP ON) tenure.job"
QUEUES = tuple(f"q{number}" for number in range(5))


@pytest.fixture
def connection(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A session that began on an empty database, and so has every reason to remember a bad plan. On each version:
    PostgreSQL 18 skips over leading columns of an index that a statement does not name, older ones walk them."""
    url = server.create_database(template=migrated_template(server))
    with psycopg.connect(url, autocommit=True) as session:
        exchange(session, 1)
        exchange(session, 1, done=exchange(session, 1)[0])
        yield session
    server.drop_database(url)


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
    warm, _ = exchange(session, batch, queues=queues)  # the catalogue is read once, and that does not count
    exchange(session, 0, done=warm, queues=queues)
    granted, claimed = exchange(session, batch, queues=queues)
    assert len(granted) == batch
    _, settled = exchange(session, 0, done=granted, queues=queues)
    return claimed, settled


def costs(session: psycopg.Connection[Any], queues: tuple[str, ...] = ("default",)) -> list[int]:
    """Pages of a claim and of the settle after it, for each size of batch."""
    return [pages for batch in BATCHES for pages in claim_and_settle_pages(session, batch, queues)]


def compare(few: list[int], many: list[int]) -> None:
    """A deeper tree costs a page or two for each lookup; reading the table would cost thousands."""
    print(f"pages of claim, settle at batches of {BATCHES}: {few} beside nothing, {many} beside {ROWS} rows")
    batches = [batch for batch in BATCHES for _ in range(2)]
    rows = zip(few, many, batches, strict=True)
    assert [more for less, more, batch in rows if more > 1.3 * less + batch / 2 + 10] == []


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param({"state": "succeeded"}, id="finished rows"),
        pytest.param({"later": "1 day", "priorities": 100}, id="jobs due tomorrow at every priority"),
        pytest.param({"first": BASE + 1}, id="a longer backlog"),
    ],
)
def test_a_claim_and_a_settle_touch_as_many_pages_beside_many_other_rows(
    connection: psycopg.Connection[Any], beside: dict[str, Any]
) -> None:
    fill(connection, BASE)
    connection.execute(VACUUM)
    few = costs(connection)
    connection.execute("DELETE FROM tenure.job WHERE state <> 'queued'")

    fill(connection, ROWS, **beside)
    connection.execute(VACUUM)

    compare(few, costs(connection))


def test_an_idle_claim_over_a_future_backlog_touches_what_an_empty_queue_does(
    connection: psycopg.Connection[Any],
) -> None:
    _, empty = exchange(connection, 100)

    fill(connection, ROWS, later="1 day", priorities=100)
    connection.execute(VACUUM)
    exchange(connection, 100)
    _, idle = exchange(connection, 100)

    print(f"pages of an idle claim: {empty} beside nothing, {idle} beside {ROWS} jobs due tomorrow")
    assert idle <= 2 * empty


def test_a_claim_over_five_queues_touches_little_more_than_one_over_one(connection: psycopg.Connection[Any]) -> None:
    fill(connection, 3000)
    alone, _ = claim_and_settle_pages(connection, 500)

    for queue in QUEUES:
        fill(connection, 3000, queue=queue)
    together, _ = claim_and_settle_pages(connection, 500, QUEUES)

    assert together <= 1.3 * alone + 5 * 20


def test_a_claim_over_five_queues_touches_as_many_pages_whatever_lies_in_them(
    connection: psycopg.Connection[Any],
) -> None:
    for queue in QUEUES:
        fill(connection, BASE // len(QUEUES), queue=queue)
    connection.execute(VACUUM)
    few = costs(connection, QUEUES)

    for queue in QUEUES:
        fill(connection, ROWS // len(QUEUES), queue=queue, first=BASE)
    connection.execute(VACUUM)

    compare(few, costs(connection, QUEUES))


@contextmanager
def explained(server: PostgresServer, *, filled: bool) -> Iterator[tuple[psycopg.Connection[Any], list[str]]]:
    """A session, and the plans of what the functions do in it, once it asks for the log. `auto_explain` shows them,
    which comes with Debian's server and not with the wheel."""
    url = server.create_database(template=migrated_template(server))
    with psycopg.connect(url, autocommit=True) as session:
        if filled:
            fill(session, 20_000)
            fill(session, 20_000, state="succeeded")
        notes: list[str] = []
        session.add_notice_handler(lambda note: notes.append(note.message_primary or ""))
        session.execute("LOAD 'auto_explain'")
        session.execute("SET auto_explain.log_min_duration = 0")
        session.execute("SET auto_explain.log_nested_statements = on")
        yield session, notes
    server.drop_database(url)


@pytest.mark.parametrize("filled", [False, True], ids=["empty", "full"])
@pytest.mark.parametrize("batch", [1, 100, 1000])
def test_the_plans_inside_an_exchange_use_the_indexes_made_for_them(
    postgres15_server: PostgresServer, batch: int, filled: bool
) -> None:
    with explained(postgres15_server, filled=filled) as (session, notes):
        granted, _ = exchange(session, batch)
        session.execute("SET client_min_messages = log")
        exchange(session, batch, done=granted or [("01900000-0000-7000-8000-000000000000", 1)])
        session.execute("SET client_min_messages = warning")

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


STATEMENTS = {"idle": 7, "claim": 7, "settle": 9, "enqueue": 6}
"""What a worker's small requests run inside their functions, the call itself counted; beginning a statement is most of
what each costs. Raise a number only with a reason."""


@pytest.mark.parametrize("what", STATEMENTS)
def test_a_small_request_runs_few_statements(postgres15_server: PostgresServer, what: str) -> None:
    def ask(function: str, request: dict[str, Any]) -> Any:
        row = session.execute(f"SELECT tenure.{function}(%s)".encode(), [json.dumps(request)]).fetchone()
        assert row is not None
        return row[0]

    def enqueue() -> None:
        ask("enqueue", {"groups": [{"queue": "default", "kind": "k", "jobs": [{"i": str(new_job_id()), "p": {}}]}]})

    def claim(limit: int = 1, **outcomes: Any) -> list[dict[str, Any]]:
        asked = {"claim": {"worker": "w", "queues": ["default"], "kinds": ["k"], "limit": limit}}
        granted = ask("exchange", asked | outcomes)["granted"]
        return [{"i": grant[0], "t": grant[2]} for line in granted["lines"] for grant in line[3]]

    with explained(postgres15_server, filled=False) as (session, notes):
        for _ in range(2):  # functions are read and planned in the first round
            enqueue()
            claim(10, outcomes={"done": claim()})
        enqueue()
        acts: dict[str, Callable[[], Any]] = {
            "idle": lambda: claim(10),
            "claim": claim,
            "settle": lambda: claim(10, outcomes={"done": held}),
            "enqueue": enqueue,
        }
        held = claim() if what in ("idle", "settle") else []
        session.execute("SET client_min_messages = log")
        acts[what]()
        session.execute("SET client_min_messages = warning")

    ran = [
        note.split("Query Text: ")[1] for note in notes if "Query Text" in note and "client_min_messages" not in note
    ]
    assert len(ran) <= STATEMENTS[what], "\n---\n".join(ran)


def test_counting_a_minute_touches_what_happened_in_it(connection: psycopg.Connection[Any]) -> None:
    count = "SELECT tenure.count_minutes(now() - interval '1 minute', now() + interval '1 minute', now())"
    connection.execute(count.encode())  # the plan is remembered from an empty table
    fill(connection, ROWS)
    fill(connection, ROWS, state="succeeded")

    [[plan]] = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {count}".encode()).fetchall()

    root = plan[0]["Plan"]
    pages = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
    print(f"pages of counting a minute without any event: {pages}")
    assert pages < 100


def test_a_prune_touches_what_is_to_go_and_not_what_is_kept(connection: psycopg.Connection[Any]) -> None:
    """The leader prunes every minute, beside all the jobs of the last week."""
    prune = """SELECT tenure.prune('{"limit": 1000, "delete_after_seconds": 2592000}')"""

    def touched() -> int:
        connection.execute(prune.encode())
        asked = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {prune}"
        [[plan]] = connection.execute(asked.encode()).fetchall()
        return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])

    few = touched()
    fill(connection, ROWS, state="succeeded")
    connection.execute("ANALYZE tenure.job")
    many = touched()

    print(f"pages of a prune: {few} beside nothing, {many} beside {ROWS} jobs that are kept")
    assert many < few + 100


def test_a_backlog_touches_as_many_pages_beside_many_other_rows(connection: psycopg.Connection[Any]) -> None:
    """What an autoscaler asks every few seconds: bounded by the cap, whatever is done, due later or waiting behind."""

    def pages(call: str) -> int:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT {call}"
        connection.execute(explain.encode())  # the catalogue is read once, and that does not count
        [[plan]] = connection.execute(explain.encode()).fetchall()
        return int(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])

    calls = ("tenure.backlog('default', 100)", """tenure.read_gauges('{"cap": 100}')""")
    fill(connection, 1000)
    connection.execute(VACUUM)
    few = [pages(call) for call in calls]

    fill(connection, ROWS, state="succeeded", first=2 * ROWS)
    fill(connection, ROWS, later="1 day", priorities=100, first=4 * ROWS)
    fill(connection, ROWS, first=6 * ROWS)
    connection.execute(VACUUM)
    many = [pages(call) for call in calls]

    print(f"pages of a backlog and of all gauges: {few} beside nothing, {many} beside {ROWS} rows of each sort")
    assert connection.execute("SELECT tenure.backlog('default', 100)").fetchone() == (100,)
    assert [more for less, more in zip(few, many, strict=True) if more > 2 * less + 150] == []


def test_a_page_s_look_at_what_ran_touches_as_many_pages_however_much_ended(
    connection: psycopg.Connection[Any],
) -> None:
    """A console beside millions of jobs of the last hour waited for the whole hour to be added up."""
    look = """SELECT tenure.summary('{"window_seconds": 3600, "limit": 20, "scan": 100}')"""
    touched = []
    for rows, first in ((1000, 1), (ROWS, 2 * ROWS)):
        fill(connection, rows, state="succeeded", first=first)
        connection.execute("UPDATE tenure.job SET finished_at = now() - random() * interval '50 minutes'")
        connection.execute(VACUUM)
        explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {look}"
        connection.execute(explain.encode())  # the catalogue is read once, and that does not count
        [[plan]] = connection.execute(explain.encode()).fetchall()
        touched.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])

    print(f"pages of a look at the newest 100 jobs of 1,000 and of {ROWS} that ended: {touched}")
    assert touched[1] <= 2 * touched[0] + 150
