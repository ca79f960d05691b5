"""An UPDATE or DELETE of a main view is an error that says what, why and what to do; never silence."""

from __future__ import annotations

import sqlite3
from typing import Final

import psycopg
import pytest

from tests.profiles.ground import PROFILES, Ground, PostgresGround
from tests.profiles.test_orchestrator import beat
from tests.profiles.test_views import MAIN, put, queue_of

# What an UPDATE that means to move a job would say.
SETS: Final = {
    name: f"{main.status} = '{'failed' if name != 'automechanica' else 'dead'}'" for name, main in MAIN.items()
}


# What is told of a job by what becomes of it, so that an INSERT cannot say it: a lease, times of moves, an outcome.
TOLD_LATER: Final = {
    "agent_queue": "claimed_by lease_expires_at result_summary error_message started_at finished_at",
    "automechanica": "lease_owner lease_expires_at error_info",
    "substrate": "picked_at finished_at lease_owner lease_until last_error",
    "orchestrator": "worker_id claimed_at started_at completed_at last_error next_retry_at",
    "outbox": "last_error locked_by locked_at claimed_at completed_at",
}
INSERTS: Final = {
    "agent_queue": ("type", "'report'"),
    "automechanica": ("agent_name, task_type", "'Agent', 'report'"),
    "substrate": ("job_kind, idempotency_key, actor", "'report', 'k', 'ada'"),
    "orchestrator": ("type", "'report'"),
    "outbox": ("type", "'report'"),
}


def change(ground: Ground, statement: str) -> str:
    """The error that the statement ends with, its hint included."""
    with pytest.raises((sqlite3.Error, psycopg.Error)) as caught:
        ground.execute(statement)
    if isinstance(caught.value, psycopg.Error):
        assert caught.value.sqlstate == "TN008"
        return f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
    return str(caught.value)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("tail", ["", " RETURNING *"])
def test_an_update_of_a_main_view_says_why_not_and_what_to_do(ground: Ground, name: str, tail: str) -> None:
    ground.open()
    job_id = put(ground, queue_of(ground, name), "made")
    main = MAIN[name]
    before = ground.app.get(job_id)

    told = change(ground, f"UPDATE {ground.view(main.view)} SET {SETS[name]} WHERE {main.id} = '{job_id}'{tail}")

    assert "changed by UPDATE" in told
    assert "lost its lease" in told
    assert "Nothing was changed" in told
    assert "tenure" in told.replace("tenure.store", "")
    assert ground.app.get(job_id) == before


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("tail", ["", " RETURNING *"])
def test_a_delete_from_a_main_view_removes_nothing_and_says_so(ground: Ground, name: str, tail: str) -> None:
    ground.open()
    job_id = put(ground, queue_of(ground, name), "made")

    told = change(ground, f"DELETE FROM {ground.view(MAIN[name].view)}{tail}")

    assert "Nothing was changed" in told
    assert "DELETE" in told
    assert "cancel" in told
    assert ground.app.get(job_id).id == job_id


@pytest.mark.postgres
@pytest.mark.parametrize("name", PROFILES)
def test_on_postgresql_a_change_that_finds_no_row_is_refused_too(server_ground: Ground, name: str) -> None:
    main = MAIN[name]

    assert "UPDATE" in change(server_ground, f"UPDATE {main.view} SET {SETS[name]} WHERE false")
    assert "DELETE" in change(server_ground, f"DELETE FROM {main.view} WHERE false")


@pytest.mark.postgres
def test_the_table_of_003_cannot_be_emptied_under_its_jobs(server_ground: Ground) -> None:
    """A TRUNCATE left the jobs, and a key that one of them held could be inserted by no client any more."""
    job_id = put(server_ground, "orchestrator", "made")

    assert "Nothing was changed" in change(server_ground, "TRUNCATE orchestrator.tasks")

    assert [str(row["id"]) for row in server_ground.rows("orchestrator.tasks")] == [job_id]


@pytest.mark.postgres
@pytest.mark.parametrize("role", ["producer", "worker", "reader", "operator", "admin"])
@pytest.mark.parametrize("name", PROFILES)
def test_no_role_changes_a_job_through_a_main_view(
    server_ground: Ground, postgres_ground: PostgresGround, name: str, role: str
) -> None:
    server_ground.open()
    job_id = put(server_ground, queue_of(server_ground, name), "made")
    main = MAIN[name]

    with psycopg.connect(postgres_ground.login(role), autocommit=True) as connection:
        for statement in (f"UPDATE {main.view} SET {SETS[name]}", f"DELETE FROM {main.view}"):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(statement.encode())
            assert caught.value.sqlstate in {"42501", "TN008"}

    assert server_ground.app.get(job_id).state == "queued"


@pytest.mark.parametrize(
    ("statement", "command"),
    [
        ("UPDATE substrate_dot_config SET value = 'true' WHERE key LIKE '%worker%'", "tenure gates open"),
        ("UPDATE substrate_job_dead_letter SET triage_status = 'closed'", "tenure dlq ack"),
        ("UPDATE orchestrator_workers SET is_leader = 1", "tenure worker"),
        ("INSERT INTO orchestrator_workers (id, hostname, pool_size) VALUES ('host-2-b', 'h', 1)", "tenure worker"),
        ("DELETE FROM orchestrator_workers", "App.workers.remove"),
    ],
)
@pytest.mark.parametrize("tail", ["", " RETURNING *"])
def test_on_sqlite_decisions_are_made_by_command_and_the_view_says_by_which(
    file_ground: Ground, statement: str, command: str, tail: str
) -> None:
    file_ground.open()
    put(file_ground, "substrate", "made", max_attempts=1)
    file_ground.app.fail(file_ground.claim("substrate"), "no")
    beat(file_ground, "host-1-a")

    told = change(file_ground, statement + tail)

    assert command in told
    assert "Nothing was changed" in told


@pytest.mark.parametrize(
    ("name", "column"), [(name, column) for name, columns in TOLD_LATER.items() for column in columns.split()]
)
def test_an_insert_cannot_say_what_becomes_of_a_job(ground: Ground, name: str, column: str) -> None:
    ground.open()
    columns, values = INSERTS[name]
    value = "'2026-01-31 12:00:00'" if column.endswith(("_at", "_until")) else "'{}'"

    with pytest.raises((sqlite3.Error, psycopg.Error), match="begins as") as caught:
        ground.execute(f"INSERT INTO {ground.view(MAIN[name].view)} ({columns}, {column}) VALUES ({values}, {value})")

    assert column in str(caught.value)
    assert ground.rows(MAIN[name].view) == []


@pytest.mark.parametrize("name", PROFILES)
def test_an_id_of_ones_own_may_be_given_in_an_insert(ground: Ground, name: str) -> None:
    ground.open()
    columns, values = INSERTS[name]
    job_id = "0192f0c1-2b3c-7def-8123-456789abcdef"

    ground.execute(
        f"INSERT INTO {ground.view(MAIN[name].view)} ({MAIN[name].id}, {columns}) VALUES ('{job_id}', {values})"
    )

    assert str(ground.row(MAIN[name].view)[MAIN[name].id]) == job_id
