"""`updated_at` moves with every UPDATE, by whomever: Tenure's own moves set it, and triggers see to changes by hand."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pytest

from tenure import App
from tests.conformance.engines import scratch_folder, sqlite_url
from tests.profiles.ground import Ground
from tests.profiles.test_substrate import tick
from tests.profiles.test_views import MAIN, put
from tests.servers import PostgresServer

TRIGGERS = {
    "tr_job_queue_updated_at": "job",
    "tr_queue_heartbeat_updated_at": "worker",
    "update_tasks_updated_at": "job",
}
TABLES = {"job": ("tenure.job", "tenure_job"), "worker": ("tenure.worker", "tenure_worker")}


def table(ground: Ground, name: str) -> str:
    return TABLES[name][ground.engine == "sqlite"]


def updated_at(ground: Ground, profile: str) -> Any:
    return ground.row(MAIN[profile].view)["updated_at"]


def stored(ground: Ground) -> Any:
    (row,) = ground.execute(f"SELECT updated_at FROM {table(ground, 'job')}")
    return row["updated_at"]


@pytest.mark.parametrize("profile", ["substrate", "orchestrator"])
def test_a_change_by_hand_moves_updated_at_each_time(ground: Ground, profile: str) -> None:
    ground.open()
    put(ground, profile, "made")
    seen = [stored(ground)]

    for priority in (3, 3, 4):
        ground.execute(f"UPDATE {table(ground, 'job')} SET priority = {priority}")
        seen.append(stored(ground))

    assert seen == sorted(set(seen))
    assert len(seen) == 4
    assert ground.row(MAIN[profile].view)["priority"] == 4


@pytest.mark.postgres
def test_a_change_by_hand_takes_the_stores_clock_and_returns_it(server_ground: Ground) -> None:
    server_ground.open()
    put(server_ground, "substrate", "made")
    server_ground.clock.advance(60)

    told = server_ground.execute("UPDATE tenure.job SET priority = 3 RETURNING updated_at")

    assert told == [{"updated_at": server_ground.clock.now()}]
    assert updated_at(server_ground, "substrate") == server_ground.clock.now()


@pytest.mark.parametrize("profile", ["substrate", "orchestrator"])
def test_a_change_that_sets_updated_at_itself_keeps_what_it_set(ground: Ground, profile: str) -> None:
    ground.open()
    put(ground, profile, "made")
    at = "'2026-01-31 12:00:00+00'" if ground.engine == "postgres" else "1769860800000000"

    ground.execute(f"UPDATE {table(ground, 'job')} SET updated_at = {at}, priority = 3")

    assert str(updated_at(ground, profile)).startswith("2026-01-31 12:00:00")


@pytest.mark.parametrize("profile", ["substrate", "orchestrator"])
def test_the_engines_own_moves_set_it_to_their_own_moment(ground: Ground, profile: str) -> None:
    ground.open()
    put(ground, profile, "made")

    for move in ("claim", "heartbeat", "complete"):
        ground.clock.advance(1)
        if move == "claim":
            grant = ground.claim(profile)
        else:
            getattr(ground.app, move)(grant)
        assert ground.app.get(grant.id).updated_at == ground.clock.now(), move


def test_jobs_of_other_profiles_are_left_alone(ground: Ground) -> None:
    put(ground, "outbox", "made")
    before = stored(ground)

    ground.execute(f"UPDATE {table(ground, 'job')} SET priority = 3")

    assert stored(ground) == before


def test_an_executors_row_changed_by_hand_is_updated_but_has_not_ticked(ground: Ground) -> None:
    ground.open()
    tick(ground, "x-1")
    before = ground.row("substrate.queue_heartbeat")

    ground.execute(f"UPDATE {table(ground, 'worker')} SET status = 'warn'")
    by_hand = ground.row("substrate.queue_heartbeat")
    ground.clock.advance(3600)
    tick(ground, "x-1")
    ticked = ground.row("substrate.queue_heartbeat")

    assert (by_hand["last_tick_status"], by_hand["last_tick_at"]) == ("warn", before["last_tick_at"])
    assert before["updated_at"] <= by_hand["updated_at"] < ticked["updated_at"]
    assert ticked["updated_at"] == ticked["last_tick_at"]


def test_an_executor_that_is_gone_leaves_no_note_of_its_changes(ground: Ground) -> None:
    ground.open()
    tick(ground, "x-1")
    ground.execute(f"UPDATE {table(ground, 'worker')} SET status = 'warn'")
    assert len(ground.rows("substrate.executor_change")) == 1

    ground.execute(f"DELETE FROM {table(ground, 'worker')}")

    assert ground.rows("substrate.executor_change") == []


@pytest.mark.postgres
def test_on_postgresql_the_triggers_come_with_their_profile_and_once(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    found = "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal AND tgname = ANY (%s)"
    try:
        with App(url, migrate="always") as app, psycopg.connect(url, autocommit=True) as connection:
            app.migrate()
            app.profiles.install("outbox")
            assert connection.execute(found, [list(TRIGGERS)]).fetchall() == []
            for _ in range(2):
                app.profiles.install("substrate")
                app.profiles.install("orchestrator")
            assert dict(connection.execute(found, [list(TRIGGERS)]).fetchall()) == {
                name: f"tenure.{on}" for name, on in TRIGGERS.items()
            }
    finally:
        postgres_server.drop_database(url)


def test_on_sqlite_the_triggers_come_with_their_profile_and_once() -> None:
    found = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%updated_at'"
    with scratch_folder() as folder, App(sqlite_url(folder / "jobs.db")) as app:
        app.profiles.install("outbox")
        connection = sqlite3.connect(folder / "jobs.db")
        before = connection.execute(found).fetchall()
        for _ in range(2):
            app.profiles.install("substrate")
            app.profiles.install("orchestrator")
        after = connection.execute(found).fetchall()
        connection.close()

    assert before == []
    assert dict(after) == {name: f"tenure_{on}" for name, on in TRIGGERS.items()}
    assert len(after) == len(TRIGGERS)


def test_on_sqlite_a_client_with_recursive_triggers_does_no_harm(file_ground: Ground) -> None:
    put(file_ground, "orchestrator", "made")
    file_ground.execute("PRAGMA recursive_triggers = ON")
    before = stored(file_ground)

    file_ground.execute("UPDATE tenure_job SET priority = 3")

    assert stored(file_ground) > before
