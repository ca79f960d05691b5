"""No list and no page reads the whole table of jobs: the plan of every statement behind every GET says so.

On SQLite each statement is explained with the values that it ran with. On PostgreSQL each call is made once more, and
the server's own count of sequential scans in that transaction is read: they are made as dear as can be first, so that
one is left only where no index can serve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import tenure
from tenure.model.access import EVERYTHING
from tenure.store.postgres.store import PostgresStore
from tenure.store.sqlite.transaction import Transaction
from tenure.web.application import table
from tests.web.conftest import Server
from tests.web.test_matrix import MISSING
from tests.web.test_pages import PAGES, _populate, signed_in

pytestmark = pytest.mark.anyio

EXACT = "/api/v1/jobs:count"
"""It counts all jobs, exactly, so it reads them all; the time that it may take is bounded. See test_bounds."""
ENDLESS = "stream"
SCANS = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'tenure.job'::regclass"

FILTERS = [
    "/api/v1/jobs?state=queued",
    "/api/v1/jobs?state=dead&queue=mail&kind=welcome&key=none",
    "/api/v1/jobs:count?state=queued&state=running",
    "/api/v1/jobs?worker=w-1",
    "/api/v1/jobs?worker=w-1&state=running",
    f"/api/v1/jobs?parent={MISSING}",
    f"/api/v1/jobs?workflow={MISSING}&kind=k",
    "/api/v1/dead-letters?triage=pending&kind=k&queue=mail",
    "/api/v1/dead-letters?fingerprint=abc",
    "/api/v1/audit?subject=mail",
    "/ui/jobs?q=kind:welcome+state:dead",
    "/ui/jobs?q=error:boom",
    "/ui/jobs/{done}",
    "/ui/jobs/{dead}?tab=output",
    "/ui/jobs/{held}?tab=related",
]


async def visit(server: Server, ids: dict[str, str]) -> list[str]:
    """Ask for everything that can be asked by GET. Answers the paths."""
    names = {"name": "mail", "kind": "welcome", "id": ids["dead"], "key": "llm", "stream": "output"}
    paths = [
        re.sub(r"\{(\w+)\}", lambda found: names[found[1]], route.path)
        for route in table()
        if route.verb == "GET" and route.handler.__name__ != ENDLESS and route.path != EXACT
    ]
    paths += [f"/ui{path}" for path in PAGES]
    paths += [path.format(**ids) for path in FILTERS]
    async with server.client(server.token(*EVERYTHING)) as programs, signed_in(server) as people:
        for path in paths:
            client = people if path.startswith("/ui") else programs
            answer = await client.get(path)
            assert answer.status_code in {200, 404}, (path, answer.status_code, answer.text[:300])
    return paths


@contextmanager
def statements() -> Iterator[set[tuple[str, str]]]:
    """Each statement that runs on SQLite within, with its values."""
    found: set[tuple[str, str]] = set()
    plain = Transaction.run

    def noted(self: Transaction, sql: str, parameters: Any = ()) -> Any:
        found.add((sql, json.dumps(parameters)))
        return plain(self, sql, parameters)

    Transaction.run = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Transaction.run = plain  # type: ignore[method-assign]


async def test_no_get_reads_all_jobs_on_sqlite(small: Server) -> None:
    ids = _populate(small.app)

    with statements() as found:
        await visit(small, ids)

    wide = []
    with _beside(small) as connection:
        for sql, parameters in sorted(found):
            if "tenure_job" in sql and not sql.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
                plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", json.loads(parameters)).fetchall()
                names = {"tenure_job", *re.findall(r"tenure_job (?:AS )?([a-z]\w*)", sql)}
                wide += [(row[3], sql) for row in plan if _scans(row[3], names)]
    assert len(found) > 50
    assert wide == [], "\n\n".join(map(str, wide))


def _scans(step: str, names: set[str]) -> bool:
    """Whether a step of SQLite's plan walks through all rows of a table, or all of an index that holds all rows."""
    word, _, rest = step.partition(" ")
    name, _, by = rest.partition(" ")
    is_partial = re.search(r"INDEX job_(?!dedup)\w+_idx", by) is not None
    return word == "SCAN" and name in names and not is_partial


@contextmanager
def _beside(server: Server) -> Iterator[Any]:
    import sqlite3

    connection = sqlite3.connect(str(server.app.url).removeprefix("sqlite:///"))
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.postgres
async def test_no_get_reads_all_jobs_on_postgres(postgres_url: str) -> None:
    found: set[tuple[str, str | None]] = set()
    plain = PostgresStore._call

    def noted(self: PostgresStore, function: str, argument: str | None, *rest: Any, **more: Any) -> Any:
        found.add((function, argument))
        return plain(self, function, argument, *rest, **more)

    with tenure.App(postgres_url) as app, pytest.MonkeyPatch.context() as patch:
        server = Server(app)
        ids = _populate(app)
        patch.setattr(PostgresStore, "_call", noted)
        await visit(server, ids)
        wide = _wide_calls(postgres_url, found)

    assert len(found) > 40
    assert wide == [], "\n\n".join(map(str, wide))


def _wide_calls(url: str, calls: set[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Those of the calls that read the table of jobs from its first row to its last, by the server's own count."""
    wide = []
    with psycopg.connect(url) as connection:
        connection.execute("SET enable_seqscan = off")
        for function, argument in sorted(calls, key=str):
            place, values = ("", ()) if argument is None else ("%s::json", (argument,))
            with connection.transaction(force_rollback=True):
                before = connection.execute(SCANS).fetchone()
                connection.execute(f"SELECT tenure.{function}({place})::text".encode(), values)
                after = connection.execute(SCANS).fetchone()
            if after is not None and after[0] > (0 if before is None else before[0]):
                wide.append((function, argument))
    return wide


@pytest.mark.postgres
def test_a_call_that_reads_all_jobs_is_found(postgres_url: str) -> None:
    with tenure.App(postgres_url) as app:
        app.enqueue("k")

        assert _wide_calls(postgres_url, {("count_jobs", "{}"), ("list_queues", "{}")}) == [("count_jobs", "{}")]


@pytest.mark.parametrize(
    ("step", "is_wide"),
    [
        ("SCAN tenure_job", True),
        ("SCAN j USING COVERING INDEX sqlite_autoindex_tenure_job_1", True),
        ("SCAN tenure_job USING INDEX job_lease_idx", False),
        ("SEARCH tenure_job USING INDEX sqlite_autoindex_tenure_job_1 (id<?)", False),
        ("SCAN tenure_queue", False),
    ],
)
def test_a_step_that_walks_through_all_jobs_is_known_by_its_words(step: str, is_wide: bool) -> None:
    assert _scans(step, {"tenure_job", "j"}) is is_wide
