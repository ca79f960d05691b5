"""What holds for the views of every profile: their words, whose jobs they show, and what a look at them costs."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tenure import App, Backoff
from tenure.model.profile import Profile
from tests.conformance.engines import scratch_folder, sqlite_url
from tests.profiles.ground import PROFILES, Ground, PostgresGround
from tests.servers import PostgresServer

FILL: Final = Path(__file__).parent
ROWS: Final = 50_000


@dataclass(frozen=True)
class Main:
    """A profile's main view, and what it calls the columns that a dashboard asks for."""

    view: str
    id: str = "id"
    status: str = "status"
    kind: str = "type"


MAIN: Final = {
    "agent_queue": Main("agent_queue.agent_jobs"),
    "automechanica": Main("automechanica.tasks", kind="task_type"),
    "substrate": Main("substrate.job_queue", "job_id", "state", "job_kind"),
    "orchestrator": Main("orchestrator.tasks"),
    "outbox": Main("outbox.jobs"),
}

ENDED: Final = {"agent_queue": "finished_at", "automechanica": "updated_at", "substrate": "finished_at"}
"""What a view calls the moment of the end; the others say completed_at."""


def profile_of(name: str) -> Profile:
    return App().profiles.read(name)


def queue_of(ground: Ground, name: str) -> str:
    """A queue of the profile that takes jobs."""
    if name != "automechanica":
        return name
    ground.app.create_task({"agent_name": "Agent", "task_type": "made"})
    return "Agent"


def put(ground: Ground, queue: str, kind: str, **options: Any) -> str:
    return ground.app.enqueue(kind, {"unit": 7}, queue=queue, key=f"{queue}-{kind}", actor="ada", **options).id


@pytest.mark.parametrize("name", PROFILES)
def test_a_view_says_the_words_of_the_profiles_file_for_every_stage(ground: Ground, name: str) -> None:
    ground.open()
    queue = queue_of(ground, name)
    ground.app.queues.set(queue, backoff=Backoff(shape="constant", base_seconds=60, jitter=0), retain_seconds=0)
    claim = partial(ground.app.claim, worker="w", queues=queue)
    put(ground, queue, "cleaned")
    ground.app.complete(claim(kinds=["cleaned"])[0])
    ground.clock.advance(61)
    ground.app.prune()
    put(ground, queue, "due")
    put(ground, queue, "later", delay=600)
    ground.app.cancel(put(ground, queue, "cancelled"))
    for kind in ("retry", "waiting", "leased", "running", "succeeded", "failed", "dead"):
        put(ground, queue, kind, max_attempts=1 if kind == "dead" else 3)
        (grant,) = claim(kinds=[kind])
        if kind in {"retry", "dead"}:
            ground.app.fail(grant, "no")
        elif kind == "failed":
            ground.app.reject(grant, "no")
        elif kind == "succeeded":
            ground.app.complete(grant)
        elif kind == "running":
            ground.app.heartbeat(grant)
        elif kind == "waiting":
            ground.app.suspend(grant, "an answer")
    main = MAIN[name]
    words = dict(profile_of(name).words)
    words.setdefault("cleaned", words["succeeded"])

    shown = {row[main.kind]: row[main.status] for row in ground.rows(main.view) if row[main.kind] != "made"}

    assert shown == words
    for word in set(words.values()):
        found = {row[main.kind] for row in ground.rows(main.view, f"{main.status} = ?", word)} - {"made"}
        assert found == {stage for stage, told in words.items() if told == word}, word


def test_profiles_in_one_database_neither_show_nor_claim_each_others_jobs(ground: Ground) -> None:
    ground.open()
    queues = {name: queue_of(ground, name) for name in PROFILES} | {"default": "default"}
    made = {name: put(ground, queue, "mine") for name, queue in queues.items()}

    for name in PROFILES:
        rows = ground.rows(MAIN[name].view, f"{MAIN[name].kind} = 'mine'")
        assert [str(row[MAIN[name].id]) for row in rows] == [made[name]]
    for name, queue in queues.items():
        grants = ground.app.claim(worker="w", queues=queue, kinds=["mine"], limit=10)
        assert [grant.id for grant in grants] == [made[name]]


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize(("held", "attempts"), [(1, 2), (2, 1)])
def test_a_crash_beside_another_job_gives_the_attempt_back_and_one_alone_does_not(
    ground: Ground, name: str, held: int, attempts: int
) -> None:
    ground.open()
    queue = queue_of(ground, name)
    for grant in ground.app.claim(worker="w", queues=queue, limit=10):
        ground.app.complete(grant)
    job_id, *_ = [put(ground, queue, f"mine-{number}") for number in range(held)]
    assert len(ground.app.claim(worker="gone", queues=queue, limit=held)) == held

    ground.clock.advance(301)
    ground.app.claim(worker="w", queues=queue, limit=held)

    row = ground.row(MAIN[name].view, f"{MAIN[name].id} = ?", job_id)
    assert row["attempt" if name == "agent_queue" else "attempts"] == attempts


@pytest.mark.parametrize("name", PROFILES)
def test_the_policy_of_a_profile_is_the_table_of_settings(ground: Ground, name: str) -> None:
    (row,) = ground.app.queues.all(name)

    assert row.policy == profile_of(name).policy


SETTINGS: Final = {
    # order, default, starts, attempts, lease, scope, space, required, revive
    "agent_queue": ("high", 0, True, 3, 300, "none", "kind", False, "clone"),
    "automechanica": ("low", 2, False, 3, 30, "none", "kind", False, "revive"),
    "substrate": ("low", 100, False, 5, 300, "active", "global", True, "revive"),
    "orchestrator": ("high", 0, False, 4, 60, "forever", "kind", False, "revive"),
    "outbox": ("high", 0, True, 3, 300, "active", "kind", False, "revive"),
    "default": ("high", 0, True, 3, 60, "active", "kind", False, "revive"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_those_of_the_design(name: str) -> None:
    policy = profile_of(name).policy

    assert (
        policy.priority_order,
        policy.priority_default,
        policy.start_on_claim,
        policy.max_attempts,
        policy.lease_seconds,
        policy.key_scope,
        policy.key_space,
        policy.key_required,
        policy.revive,
    ) == SETTINGS[name]


# --- what a look costs ---


def looks(main: Main, some_id: str, words: dict[str, str]) -> dict[str, str]:
    """The queries of a dashboard."""
    rows = f"SELECT * FROM {main.view} WHERE"
    return {
        "by state": f"{rows} {main.status} = '{words['dead']}' LIMIT 50",
        "queued": f"{rows} {main.status} = '{words['due']}' LIMIT 50",
        "held": f"{rows} {main.status} = '{words['running']}' LIMIT 50",
        "by kind": f"{rows} {main.kind} = 'rare' LIMIT 50",
        "by kind and state": f"{rows} {main.kind} = 'rare' AND {main.status} = '{words['succeeded']}' LIMIT 50",
        "one id": f"{rows} {main.id} = '{some_id}'",
        "oldest queued": f"SELECT {main.id}, created_at FROM {main.view} WHERE {main.status} = '{words['due']}' "
        "ORDER BY created_at LIMIT 1",
    }


@pytest.fixture(scope="module")
def full_database(postgres_ground: PostgresGround, postgres_server: PostgresServer) -> Iterator[psycopg.Connection]:
    """A database with many jobs of each profile, on the server's own clock."""
    url = postgres_server.create_database(template="profiles")
    statement = (FILL / "fill_postgres.sql").read_bytes()
    with psycopg.connect(url, autocommit=True) as connection:
        for name in PROFILES:
            connection.execute(statement, {"rows": ROWS // len(PROFILES), "queue": name, "profile": name})
        connection.execute("VACUUM ANALYZE tenure.job")
        connection.execute("VACUUM ANALYZE orchestrator.tasks")
        connection.execute("ANALYZE tenure.queue")
        for _ in range(2):
            connection.execute("UPDATE tenure.test_clock SET at = at + interval '1 day'")
            connection.execute("SELECT tenure.tally_up(tenure.now())")
        yield connection
    postgres_server.drop_database(url)


@pytest.mark.postgres
@pytest.mark.parametrize("name", PROFILES)
def test_on_postgresql_every_look_goes_by_an_index(full_database: psycopg.Connection, name: str) -> None:
    main, words = MAIN[name], dict(profile_of(name).words)
    row = full_database.execute(f"SELECT {main.id} FROM {main.view} LIMIT 1".encode()).fetchone()
    assert row is not None

    for what, statement in looks(main, str(row[0]), words).items():
        plan = "\n".join(
            line for (line,) in full_database.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement}".encode()).fetchall()
        )
        pages = sum(int(found) for found in re.findall(r"^  Buffers: shared hit=(\d+)", plan, re.MULTILINE))
        reads = re.findall(r"^  Buffers: .*?read=(\d+)", plan, re.MULTILINE)
        assert not re.search(r"Seq Scan on (job|tasks)", plan), f"{what}\n{plan}"
        assert "Gather" not in plan, f"{what}\n{plan}"
        assert pages + sum(map(int, reads)) < 900, f"{what}\n{plan}"  # the table has thousands


@pytest.mark.postgres
@pytest.mark.parametrize("page", ["LIMIT 50", "ORDER BY {ended} DESC LIMIT 50", ""])
@pytest.mark.parametrize("name", PROFILES)
def test_on_postgresql_each_status_word_is_found_by_an_index(
    full_database: psycopg.Connection, name: str, page: str
) -> None:
    main, words = MAIN[name], dict(profile_of(name).words)
    rest = page.format(ended=ENDED.get(name, "completed_at"))

    for word in set(words.values()):
        if page == "LIMIT 50" and word == words["succeeded"]:
            continue  # see the next test
        if name == "orchestrator" and not page and word == words["succeeded"]:
            continue  # nearly all rows of a table that holds no other profile's
        statement = f"SELECT * FROM {main.view} WHERE {main.status} = '{word}' {rest}"
        plan = "\n".join(line for (line,) in full_database.execute(f"EXPLAIN {statement}".encode()).fetchall())
        assert not re.search(r"Seq Scan on (job|tasks)", plan), f"{word}\n{plan}"
        assert re.search(r"Index (Only )?Scan .*\b(job_\w+_idx|idx_tasks_\w+)", plan), f"{word}\n{plan}"


@pytest.mark.postgres
@pytest.mark.parametrize("name", PROFILES)
def test_on_postgresql_a_page_of_any_status_reads_few_pages_of_the_table(
    full_database: psycopg.Connection, name: str
) -> None:
    """A scan of the table from its beginning would read all jobs that other profiles have put there before.

    Jobs that ended well are most of the table, so the planner takes any 50 of them from its beginning: a page of them
    needs an order.
    """
    main, words = MAIN[name], dict(profile_of(name).words)

    for word in set(words.values()) - {words["leased"], words["running"]}:
        order = f"ORDER BY {ENDED.get(name, 'completed_at')} DESC" if word == words["succeeded"] else ""
        statement = f"SELECT * FROM {main.view} WHERE {main.status} = '{word}' {order} LIMIT 50"
        rows = full_database.execute(f"EXPLAIN (ANALYZE, BUFFERS) {statement}".encode()).fetchall()
        plan = "\n".join(line for (line,) in rows)
        found = re.search(r"^  Buffers: shared (?:hit=(\d+))? ?(?:read=(\d+))?", plan, re.MULTILINE)
        assert found is not None, plan
        assert sum(int(pages or 0) for pages in found.groups()) < 150, f"{word}\n{plan}"


@pytest.mark.postgres
def test_on_postgresql_health_counts_no_history(full_database: psycopg.Connection) -> None:
    rows = full_database.execute("EXPLAIN (ANALYZE, BUFFERS) SELECT * FROM substrate.v_queue_health").fetchall()
    plan = "\n".join(line for (line,) in rows)

    found = re.search(r"^  Buffers: shared hit=(\d+)", plan, re.MULTILINE)
    assert "Seq Scan on job" not in plan
    assert found is not None
    assert int(found[1]) < 900, plan
    for line in re.findall(r"Scan using job_substrate_\w+_idx .*\n\s+(Index Cond: .*)", plan):
        assert "CASE" in line, plan  # without the status, the index would be read to its end
    told = full_database.execute("SELECT jobs_succeeded, jobs_cleaned, jobs_queued FROM substrate.v_queue_health")
    counted = full_database.execute(
        "SELECT count(*) FILTER (WHERE state = 'succeeded'), count(*) FILTER (WHERE state = 'cleaned'), "
        "count(*) FILTER (WHERE state = 'queued') FROM substrate.job_queue"
    )
    assert told.fetchall() == counted.fetchall()


@pytest.fixture(scope="module")
def files_of_two_sizes() -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Two files with the same live jobs; the second has twenty times the history."""
    with scratch_folder() as folder:
        made = [_file(folder / f"{rows}.db", rows) for rows in (1_000, 20_000)]
        try:
            yield made[0], made[1]
        finally:
            for connection in made:
                connection.close()


def _file(path: Path, rows: int) -> sqlite3.Connection:
    with App(sqlite_url(path)) as app:
        for name in PROFILES:
            app.profiles.install(name)
        connection = sqlite3.connect(path, isolation_level=None)
        statement = (FILL / "fill_sqlite.sql").read_text()
        for name in PROFILES:
            values = {"queue": name, "profile": name, "now": int(time.time() * 1e6)}
            connection.execute(statement, values | {"rows": rows})
            connection.execute(
                "DELETE FROM tenure_job WHERE profile = ? AND state <> 'succeeded' "
                "AND CAST(substr(idempotency_key, 5) AS INTEGER) > 1000",
                [name],
            )
        app.prune()
    return connection


@pytest.mark.parametrize("name", PROFILES)
def test_on_sqlite_no_look_costs_more_when_history_grows(
    files_of_two_sizes: tuple[sqlite3.Connection, sqlite3.Connection], name: str
) -> None:
    main, words = MAIN[name], dict(profile_of(name).words)
    main = Main(main.view.replace(".", "_"), main.id, main.status, main.kind)
    small, large = files_of_two_sizes

    for what, statement in looks(main, "0192f0c1-2b3c-7def-8123-456789abcdef", words).items():
        few, many = steps(small, statement), steps(large, statement)
        assert many < 3 * few + 2_000, (what, few, many)


def test_on_sqlite_health_counts_no_history(
    files_of_two_sizes: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    few, many = (steps(one, "SELECT * FROM substrate_v_queue_health") for one in files_of_two_sizes)

    assert many < 2 * few + 2_000


def test_on_sqlite_what_ran_lately_is_found_by_an_index(
    files_of_two_sizes: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    statement = "SELECT * FROM outbox_jobs WHERE status = 'completed' AND completed_at > datetime('now', '-1 hour')"

    plan = files_of_two_sizes[1].execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()

    assert any("job_ended_idx (profile=? AND state=? AND <expr>>?)" in line for *_, line in plan)


def steps(connection: sqlite3.Connection, statement: str) -> int:
    """How many instructions SQLite's machine carries out for it."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(tick, 1)
    try:
        connection.execute(statement).fetchall()
    finally:
        connection.set_progress_handler(None, 0)
    return count
