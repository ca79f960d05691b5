"""A dashboard's looks at a profile's views read a handful of pages, however many jobs are queued or dead."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tenure import App
from tests.conformance.engines import scratch_folder, sqlite_url
from tests.profiles.ground import PROFILES, Ground, PostgresGround
from tests.profiles.test_views import ENDED, FILL, MAIN, profile_of, steps
from tests.servers import PostgresServer

SIZES: Final = (1_000, 10_000)
FEW_PAGES: Final = 60
ANY_OF_MANY: Final = frozenset({"queued", "to be tried again"})
"""Any 50 of the jobs that are most of the table: the planner may take them from the table's beginning."""

FROM_THE_BEGINNING: Final = frozenset({("orchestrator", "by kind")})
"""003's tasks are a narrow table of their own. Any 50 of the tenth of all rows that is of one kind are in its first 20
pages, and the planner takes them from there: fewer pages than by an index, as long as kinds lie mixed."""

FEW_STEPS: Final = 9_000


INDEXED: Final = {
    "substrate": {
        "by key": "SELECT * FROM substrate.job_queue WHERE idempotency_key = 'key-7'",
        "newest": "SELECT * FROM substrate.job_queue ORDER BY created_at DESC LIMIT 50",
        "claim order": "SELECT * FROM substrate.job_queue WHERE state = 'queued' "
        "ORDER BY scheduled_at, priority LIMIT 10",
        "order of retries": "SELECT * FROM substrate.job_queue WHERE state = 'retry_waiting' "
        "ORDER BY scheduled_at, priority LIMIT 10",
    },
    "orchestrator": {
        "by type and key": "SELECT * FROM orchestrator.tasks WHERE type = 'kind3' AND idempotency_key = 'key-7'",
        "by worker": "SELECT * FROM orchestrator.tasks WHERE worker_id = 'host-1-a'",
        "claimable": "SELECT * FROM orchestrator.tasks WHERE status = 'pending' "
        "ORDER BY priority DESC, created_at LIMIT 10",
    },
    "outbox": {
        "poll": "SELECT * FROM outbox.jobs WHERE status = 'pending' ORDER BY priority DESC, created_at LIMIT 1",
        "by type and key": "SELECT * FROM outbox.jobs WHERE type = 'kind3' AND idempotency_key = 'key-7'",
    },
}
"""M6: what a specification has an index for, in its own words."""


def looks(name: str, some_id: str) -> dict[str, str]:
    """By state, by kind, one id, oldest queued; in the words of the view."""
    main, words = MAIN[name], dict(profile_of(name).words)
    rows = f"SELECT * FROM {main.view} WHERE"
    queued, retried, dead = (f"{main.status} = '{words[stage]}'" for stage in ("due", "retry", "dead"))
    ended = ENDED.get(name, "completed_at")
    return {
        "queued": f"{rows} {queued} LIMIT 50",
        "to be tried again": f"{rows} {retried} LIMIT 50",
        "dead": f"{rows} {dead} LIMIT 50",
        "newest dead": f"{rows} {dead} ORDER BY {ended} DESC LIMIT 50",
        "newest completed": f"{rows} {main.status} = '{words['succeeded']}' ORDER BY {ended} DESC LIMIT 50",
        "by kind": f"{rows} {main.kind} = 'kind3' LIMIT 50",
        "by kind, rare": f"{rows} {main.kind} = 'rare' LIMIT 50",
        "by kind, none": f"{rows} {main.kind} = 'never' LIMIT 50",
        "by kind and state": f"{rows} {main.kind} = 'rare' AND {queued} LIMIT 50",
        "one id": f"{rows} {main.id} = '{some_id}'",
        "oldest queued": f"SELECT {main.id}, {main.kind}, created_at FROM {main.view} WHERE {queued} "
        "ORDER BY created_at LIMIT 1",
        "oldest queued, whole": f"{rows} {queued} ORDER BY created_at LIMIT 1",
        "oldest to be tried again": f"{rows} {retried} ORDER BY created_at LIMIT 1",
    }


# Of ten jobs that ended well, five are made due, two to be tried again, one dead; and nobody holds any.
SHARES: Final = """
UPDATE {job} SET state = 'queued', is_due = {true}, attempt = 0, finished_at = NULL
WHERE state = 'succeeded' AND cleaned_at IS NULL AND {number} % 10 < 5;
UPDATE {job} SET state = 'queued', is_due = {false}, attempt = 1, failure_class = 'error', finished_at = NULL
WHERE state = 'succeeded' AND cleaned_at IS NULL AND {number} % 10 IN (5, 6);
UPDATE {job} SET state = 'dead' WHERE state = 'succeeded' AND cleaned_at IS NULL AND {number} % 10 = 7;
DELETE FROM {job} WHERE state IN ('leased', 'running');
"""


# --- PostgreSQL ---


@pytest.fixture(scope="module")
def databases(postgres_ground: PostgresGround, postgres_server: PostgresServer) -> Iterator[list[psycopg.Connection]]:
    """Two databases with all profiles; the second has ten times the jobs."""
    urls = [postgres_server.create_database(template="profiles") for _ in SIZES]
    made = [psycopg.connect(url, autocommit=True) for url in urls]
    for connection, rows in zip(made, SIZES, strict=True):
        for name in PROFILES:
            values = {"rows": rows, "queue": name, "profile": name}
            connection.execute((FILL / "fill_postgres.sql").read_bytes(), values)
        words = {
            "job": "tenure.job",
            "true": "true",
            "false": "false",
            "number": "substr(idempotency_key, 5)::integer",
        }
        connection.execute(SHARES.format_map(words).encode())
        connection.execute("VACUUM (FULL, ANALYZE) tenure.job")
        # A row lies where it was written last, and that of a task that has ended at its end.
        connection.execute("CREATE INDEX written_idx ON orchestrator.tasks (coalesce(completed_at, created_at))")
        connection.execute("CLUSTER orchestrator.tasks USING written_idx")
        connection.execute("DROP INDEX orchestrator.written_idx")
        connection.execute("VACUUM (ANALYZE) orchestrator.tasks")
    yield made
    for connection, url in zip(made, urls, strict=True):
        connection.close()
        postgres_server.drop_database(url)


@pytest.mark.postgres
@pytest.mark.parametrize("name", PROFILES)
def test_on_postgresql_a_look_reads_as_few_pages_when_ten_times_as_many_jobs_are_queued(
    databases: list[psycopg.Connection], name: str
) -> None:
    read: list[dict[str, int]] = []
    for connection in databases:
        row = connection.execute(f"SELECT {MAIN[name].id} FROM {MAIN[name].view} LIMIT 1".encode()).fetchone()
        assert row is not None
        read.append({what: pages(connection, statement) for what, statement in looks(name, str(row[0])).items()})

    few, many = read
    for what in few:
        assert what in ANY_OF_MANY or many[what] <= min(2 * few[what] + 20, FEW_PAGES), (what, few, many)


@pytest.mark.postgres
@pytest.mark.parametrize("name", PROFILES)
def test_on_postgresql_no_look_sorts_or_scans_the_table(databases: list[psycopg.Connection], name: str) -> None:
    connection = databases[1]
    row = connection.execute(f"SELECT {MAIN[name].id} FROM {MAIN[name].view} LIMIT 1".encode()).fetchone()
    assert row is not None

    for what, statement in looks(name, str(row[0])).items():
        if what in ANY_OF_MANY or (name, what) in FROM_THE_BEGINNING:
            continue
        for node in nodes(plan_of(connection, statement)):
            assert node["Node Type"] not in {"Seq Scan", "Sort", "Incremental Sort", "Gather", "Gather Merge"}, (
                what,
                node,
            )
            assert node.get("Rows Removed by Filter", 0) <= 1, (what, node)


LARGE: Final = (200, 20_000)
LARGE_FILES: Final = (1_000, 100_000)
"""How many jobs: few, and a hundred times as many. PostgreSQL counts pages, which show a scan among 20,000; SQLite
counts steps, whose bound is wider."""


@pytest.fixture(scope="module")
def large(postgres_ground: PostgresGround, postgres_server: PostgresServer) -> Iterator[list[psycopg.Connection]]:
    """Two databases with jobs of the profiles whose specifications name indexes: few, and a hundred times as many."""
    urls = [postgres_server.create_database(template="profiles") for _ in LARGE]
    made = [psycopg.connect(url, autocommit=True) for url in urls]
    for connection, rows in zip(made, LARGE, strict=True):
        for name in INDEXED:
            values = {"rows": rows, "queue": name, "profile": name}
            connection.execute((FILL / "fill_postgres.sql").read_bytes(), values)
        # Held are ever few, however many there are in all: as many here as in the small one.
        connection.execute(
            "DELETE FROM tenure.job WHERE state IN ('leased', 'running') AND substr(idempotency_key, 5)::integer > %s",
            [LARGE[0]],
        )
        connection.execute("VACUUM (ANALYZE) tenure.job")
        connection.execute("VACUUM (ANALYZE) orchestrator.tasks")
    yield made
    for connection, url in zip(made, urls, strict=True):
        connection.close()
        postgres_server.drop_database(url)


@pytest.mark.postgres
@pytest.mark.parametrize(("name", "what"), [(name, what) for name, every in INDEXED.items() for what in every])
def test_on_postgresql_what_a_specification_indexes_reads_index_pages_only(
    large: list[psycopg.Connection], name: str, what: str
) -> None:
    """M6: they read all live jobs, 764 to 2,673 pages at 20,000."""
    statement = INDEXED[name][what]

    few, many = (pages(connection, statement) for connection in large)

    plan = plan_of(large[1], statement)
    assert many <= min(2 * few + 20, FEW_PAGES), (few, many, plan)
    assert not {node["Node Type"] for node in nodes(plan)} & {"Seq Scan", "Sort", "Gather"}, plan


def plan_of(connection: psycopg.Connection, statement: str) -> dict[str, Any]:
    """What was done, node by node."""
    row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()).fetchone()
    assert row is not None
    told = row[0] if isinstance(row[0], list) else json.loads(row[0])
    found: dict[str, Any] = told[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def pages(connection: psycopg.Connection, statement: str) -> int:
    """How many pages it reads, from memory or from disk."""
    plan = plan_of(connection, statement)
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


# --- SQLite ---


@pytest.fixture(scope="module")
def files() -> Iterator[list[sqlite3.Connection]]:
    """The same in two files."""
    with scratch_folder() as folder:
        made = [_file(folder / f"{rows}.db", rows) for rows in SIZES]
        try:
            yield made
        finally:
            for connection in made:
                connection.close()


def _file(path: Path, rows: int) -> sqlite3.Connection:
    with App(sqlite_url(path)) as app:
        for name in PROFILES:
            app.profiles.install(name)
    connection = sqlite3.connect(path, isolation_level=None)
    for name in PROFILES:
        values = {"rows": rows, "queue": name, "profile": name, "now": int(time.time() * 1e6)}
        connection.execute((FILL / "fill_sqlite.sql").read_text(), values)
    words = {"job": "tenure_job", "true": 1, "false": 0, "number": "CAST(substr(idempotency_key, 5) AS INTEGER)"}
    connection.executescript(SHARES.format_map(words))
    return connection


@pytest.mark.parametrize("name", PROFILES)
def test_on_sqlite_a_look_takes_as_few_steps_when_ten_times_as_many_jobs_are_queued(
    files: list[sqlite3.Connection], name: str
) -> None:
    view = MAIN[name].view
    read: list[dict[str, int]] = []
    for connection in files:
        some_id = connection.execute("SELECT id FROM tenure_job WHERE profile = ?", [name]).fetchone()[0]
        asked = {what: told.replace(view, view.replace(".", "_")) for what, told in looks(name, some_id).items()}
        read.append({what: steps(connection, statement) for what, statement in asked.items()})

    few, many = read
    for what in few:
        assert many[what] <= min(2 * few[what] + 2_000, FEW_STEPS), (what, few, many)


@pytest.fixture(scope="module")
def large_files() -> Iterator[list[sqlite3.Connection]]:
    """Two files with jobs of the profiles whose specifications name indexes: few, and a hundred times as many."""
    with scratch_folder() as folder:
        made = []
        for rows in LARGE_FILES:
            with App(sqlite_url(folder / f"{rows}.db")) as app:
                for name in PROFILES:
                    app.profiles.install(name)
            made.append(sqlite3.connect(folder / f"{rows}.db", isolation_level=None))
            for name in INDEXED:
                values = {"rows": rows, "queue": name, "profile": name, "now": int(time.time() * 1e6)}
                made[-1].execute((FILL / "fill_sqlite.sql").read_text(), values)
            made[-1].execute(
                "DELETE FROM tenure_job WHERE state IN ('leased', 'running') "
                "AND CAST(substr(idempotency_key, 5) AS INTEGER) > ?",
                [LARGE_FILES[0]],
            )
        try:
            yield made
        finally:
            for connection in made:
                connection.close()


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, every in INDEXED.items() for what in every])
def test_on_sqlite_what_a_specification_indexes_takes_as_few_steps_beside_a_hundred_times_as_many_jobs(
    large_files: list[sqlite3.Connection], name: str, what: str
) -> None:
    """M6. Most of them read every job of the profile: 499,825 steps to find one key among 100,000."""
    statement = INDEXED[name][what].replace(f"{name}.", f"{name}_")

    few, many = (steps(connection, statement) for connection in large_files)

    plan = [line for *_, line in large_files[1].execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()]
    assert many <= min(2 * few + 2_000, FEW_STEPS), (few, many, plan)
    assert large_files[1].execute(statement).fetchone() is not None or what == "by type and key"
    for line in plan:
        # Held jobs are few; every other branch of the view is searched.
        assert "SCAN" not in line or "job_lease_idx" in line, plan


@pytest.mark.parametrize("name", PROFILES)
def test_on_sqlite_every_look_goes_by_an_index(files: list[sqlite3.Connection], name: str) -> None:
    view = MAIN[name].view

    for what, told in looks(name, "0192f0c1-2b3c-7def-8123-456789abcdef").items():
        statement = told.replace(view, view.replace(".", "_"))
        for *_, line in files[1].execute(f"EXPLAIN QUERY PLAN {statement}").fetchall():
            assert line.startswith("SEARCH") or "INDEX" in line or "SCAN" not in line, (what, line)


def test_an_index_of_a_profile_holds_that_profiles_jobs_alone(ground: Ground) -> None:
    """A job of another profile pays nothing for it."""
    listed = {
        "sqlite": "SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'tenure_job' AND sql > ''",
        "postgres": "SELECT indexname AS name, indexdef AS sql FROM pg_indexes WHERE tablename = 'job'",
    }[ground.engine]
    predicates = {row["name"]: row["sql"].rpartition("WHERE")[2] for row in ground.execute(listed)}

    found = {index: name for name in PROFILES for index in predicates if index.startswith(f"job_{name}_")}

    assert len(found) > 12
    for index, name in found.items():
        predicate = predicates[index].strip().removeprefix("(").removesuffix(")") + " "
        while predicate != (shorter := re.sub(r"\([^()]*\)", "", predicate)):
            predicate = shorter
        assert " OR " not in predicate, index
        assert re.search(rf"\bprofile = '{name}'", predicates[index]), index
