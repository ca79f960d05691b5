"""Specification 004, the unified job queue: each rule as given, when, then. What its handlers do is in tests/effect."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure import InvalidPayload, StoreUnavailable
from tenure.effects import files
from tenure.store.contract import Enqueue
from tenure.store.sqlite.store import SqliteStore
from tests.profiles.ground import Ground

VIEW = "outbox.jobs"
COLUMNS = [
    "id",
    "type",
    "payload",
    "status",
    "priority",
    "attempts",
    "max_attempts",
    "last_error",
    "locked_by",
    "locked_at",
    "created_at",
    "claimed_at",
    "completed_at",
    "idempotency_key",
]
FILE = {"path": "a.txt", "content": "x"}


def put(ground: Ground, kind: str = "create_file", **options: Any) -> str:
    return ground.app.enqueue(kind, FILE, queue="outbox", **options).id


def shown(ground: Ground, job_id: str) -> dict[str, Any]:
    return ground.row(VIEW, "id = ?", job_id)


def moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value).replace(tzinfo=UTC)


def test_jobs_has_the_columns_of_the_specification_and_the_key_it_speaks_of(ground: Ground) -> None:
    put(ground)

    assert list(ground.row(VIEW)) == COLUMNS


def test_a_plain_insert_enqueues_with_the_defaults_of_the_specification(ground: Ground) -> None:
    ground.execute(f"INSERT INTO {ground.view(VIEW)} (type, payload) VALUES ('create_file', '{json.dumps(FILE)}')")

    row = ground.row(VIEW)
    assert (row["status"], row["priority"], row["attempts"], row["max_attempts"]) == ("pending", 0, 0, 3)
    assert (row["locked_by"], row["locked_at"], row["claimed_at"], row["completed_at"]) == (None, None, None, None)
    assert json.loads(row["payload"]) == FILE
    ground.clock.advance(1)
    assert ground.claim("outbox").kind == "create_file"


def test_an_id_of_ones_own_may_be_given(ground: Ground) -> None:
    mine = "0192f0c1-2b3c-7def-8123-456789abcdef"
    ground.execute(f"INSERT INTO {ground.view(VIEW)} (id, type, payload) VALUES ('{mine}', 'create_file', '{{}}')")

    assert str(ground.row(VIEW)["id"]) == mine


def test_an_insert_joins_the_transaction_of_the_data_it_belongs_to(file_ground: Ground) -> None:
    path = file_ground.app.url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("CREATE TABLE model (id INTEGER PRIMARY KEY, name TEXT)")
        for ending in ("ROLLBACK", "COMMIT"):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO model (name) VALUES ('x')")
            connection.execute("INSERT INTO outbox_jobs (type, payload) VALUES ('create_file', '{}')")
            connection.execute(ending)
        rows = connection.execute("SELECT count(*) FROM model").fetchone()
    finally:
        connection.close()

    assert rows == (1,)
    assert len(file_ground.rows(VIEW)) == 1


def test_a_job_that_could_not_be_written_was_not_accepted(file_ground: Ground) -> None:
    job = file_ground.app.new_job("create_file", FILE, queue="outbox")
    file_ground.app.close()  # one writer serves all stores of a process on a file, with the patience of the first
    impatient = SqliteStore(file_ground.app.url, busy_seconds=0.05)
    file_ground.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(StoreUnavailable):
            impatient.do(Enqueue([job]))
    finally:
        file_ground.execute("ROLLBACK")
        impatient.close()

    assert file_ground.rows(VIEW) == []


def test_a_claim_sets_the_lock_and_counts_the_attempt(ground: Ground) -> None:
    job_id = put(ground)

    ground.claim("outbox", worker="w1")

    row = shown(ground, job_id)
    assert (row["status"], row["locked_by"], row["attempts"]) == ("claimed", "w1", 1)
    assert moment(row["locked_at"]) == moment(row["claimed_at"])


def test_two_workers_get_different_jobs_or_nothing(ground: Ground) -> None:
    first, second = put(ground), put(ground)

    claimed = [ground.app.claim(worker=f"w{n}", queues="outbox") for n in range(3)]

    assert [[grant.id for grant in grants] for grants in claimed] == [[first], [second], []]


def test_higher_priorities_go_first_and_equal_ones_in_the_order_they_came(ground: Ground) -> None:
    first, second, urgent = put(ground), put(ground), put(ground, priority=9)

    assert [ground.claim("outbox", worker=f"w{n}").id for n in range(3)] == [urgent, first, second]


def test_success_is_completed_with_its_time(ground: Ground) -> None:
    job_id = put(ground)

    ground.app.complete(ground.claim("outbox"))

    row = shown(ground, job_id)
    assert (row["status"], row["locked_by"], row["locked_at"]) == ("completed", None, None)
    assert row["completed_at"] is not None


def test_a_failure_is_pending_again_with_its_error_until_attempts_are_spent(ground: Ground) -> None:
    job_id = put(ground)

    seen = []
    for n in (1, 2, 3):
        ground.app.fail(ground.claim("outbox"), f"failure {n}")
        row = shown(ground, job_id)
        seen.append((row["status"], row["attempts"], row["last_error"], row["locked_by"]))

    assert seen == [
        ("pending", 1, "failure 1", None),
        ("pending", 2, "failure 2", None),
        ("failed", 3, "failure 3", None),
    ]
    assert shown(ground, job_id)["completed_at"] is not None
    assert ground.app.claim(worker="w", queues="outbox") == []
    assert [attempt.error for attempt in ground.app.attempts(job_id)] == ["failure 1", "failure 2", "failure 3"]


def test_a_manual_retry_resets_the_attempts_to_zero(ground: Ground) -> None:
    job_id = put(ground, max_attempts=1)
    ground.app.fail(ground.claim("outbox"), "no")

    ground.app.revive(job_id, reason="the disk has room again", actor="ada")

    row = shown(ground, job_id)
    assert (row["status"], row["attempts"], row["completed_at"]) == ("pending", 0, None)
    assert [(one.actor, one.reason) for one in ground.app.access.audit(subject=job_id)] == [
        ("ada", "the disk has room again")
    ]


def test_a_stale_lock_is_reclaimed_without_a_second_increment(ground: Ground) -> None:
    job_id = put(ground)
    ground.claim("outbox", worker="crashed")

    ground.clock.advance(299)
    assert ground.app.reap() == []
    ground.clock.advance(2)
    ground.app.reap()

    row = shown(ground, job_id)
    assert (row["status"], row["attempts"], row["locked_by"]) == ("pending", 1, None)


def test_a_renewed_lock_is_not_stale_however_long_the_job_takes(ground: Ground) -> None:
    job_id = put(ground)
    grant = ground.claim("outbox")

    for _ in range(5):
        ground.clock.advance(200)
        assert not ground.app.heartbeat(grant).lost

    row = shown(ground, job_id)
    assert moment(row["locked_at"]) - moment(row["claimed_at"]) == timedelta(seconds=1000)
    assert ground.app.reap() == []


def test_without_renewal_the_lock_lasts_five_minutes(ground: Ground) -> None:
    put(ground)
    grant = ground.claim("outbox")

    assert (grant.lease_until - ground.clock.now()).total_seconds() == pytest.approx(300)


def test_a_poison_job_that_kills_its_workers_ends_in_failed(ground: Ground) -> None:
    job_id = put(ground)

    for _ in range(3):
        ground.claim("outbox")
        ground.clock.advance(301)
        ground.app.reap()

    row = shown(ground, job_id)
    assert (row["status"], row["attempts"]) == ("failed", 3)


def test_a_key_answers_the_active_job_and_is_free_once_it_ended(ground: Ground) -> None:
    first = put(ground, key="requirement-7")

    assert put(ground, key="requirement-7") == first
    grant = ground.claim("outbox")
    assert put(ground, key="requirement-7") == first
    assert put(ground, "delete_file", key="requirement-7") != first
    ground.app.complete(grant)

    assert put(ground, key="requirement-7") != first


def test_the_index_decides_about_a_key_not_a_look_before(file_ground: Ground) -> None:
    """The second looks before the first commits, and finds the key free; it makes nothing all the same."""
    statement = "INSERT INTO outbox_jobs (type, payload, idempotency_key) VALUES ('create_file', '{}', 'k')"
    look = "SELECT count(*) FROM outbox_jobs WHERE type = 'create_file' AND idempotency_key = 'k'"
    with closing(sqlite3.connect(file_ground.app.url.removeprefix("sqlite:///"), isolation_level=None)) as second:
        file_ground.execute("BEGIN IMMEDIATE")
        file_ground.execute(statement)
        found = second.execute(look).fetchone()
        file_ground.execute("COMMIT")
        second.execute(statement)
    put(file_ground, key="k")

    assert found == (0,)
    assert len(file_ground.rows(VIEW)) == 1


def test_payloads_are_typed_when_queued_and_when_run(ground: Ground, tmp_path: Path) -> None:
    ground.app.use(files(root=tmp_path, queue="outbox"))
    with pytest.raises(InvalidPayload, match="path"):
        ground.app.enqueue("create_file", {"content": "x"})
    ground.execute(f"INSERT INTO {ground.view(VIEW)} (type, payload) VALUES ('create_file', '{{\"content\": \"x\"}}')")
    ground.clock.advance(1)

    ground.app.run_worker(queues=["outbox"], drain=True, handle_signals=False, maintain=False)

    row = ground.row(VIEW)
    assert (row["status"], row["attempts"]) == ("failed", 1)  # no retry could help
    assert "path" in row["last_error"]


def test_a_file_is_created_by_a_job_of_the_profile(ground: Ground, tmp_path: Path) -> None:
    ground.app.use(files(root=tmp_path, queue="outbox"))
    ground.execute(f"INSERT INTO {ground.view(VIEW)} (type, payload) VALUES ('create_file', '{json.dumps(FILE)}')")
    ground.clock.advance(1)

    ground.app.run_worker(queues=["outbox"], drain=True, handle_signals=False, maintain=False)

    assert (tmp_path / "a.txt").read_text() == "x"
    assert ground.row(VIEW)["status"] == "completed"


def test_a_new_type_needs_a_handler_and_no_migration(ground: Ground) -> None:
    before = ground.app.migrate()
    ground.app.registry.add(tenure.App().job(kind="brand_new", queue="outbox")(lambda: None).handler)

    job_id = ground.app.enqueue("brand_new", {}).id
    ground.app.run_worker(queues=["outbox"], drain=True, handle_signals=False, maintain=False)

    assert before == []
    assert shown(ground, job_id)["status"] == "completed"


def test_failed_jobs_stay_for_inspection(ground: Ground) -> None:
    job_id = put(ground, max_attempts=1)
    ground.app.fail(ground.claim("outbox"), "no")

    ground.clock.advance(400 * 86_400)
    ground.app.prune()

    row = shown(ground, job_id)
    assert (row["status"], row["last_error"]) == ("failed", "no")
    assert row["payload"] is not None


@pytest.fixture
def busy(ground: Ground) -> dict[str, str]:
    """One job of each sort, by what it is: half an hour ago some ended, six minutes ago a worker went silent."""
    clock = ground.clock
    clock.advance(-7200)
    made = {"old": put(ground)}
    ground.app.complete(ground.claim("outbox"))
    clock.advance(5400)
    made["done"] = put(ground, key="twice")
    grant = ground.claim("outbox")
    clock.advance(90)
    ground.app.complete(grant)
    made["again"] = put(ground, key="twice")
    ground.app.complete(ground.claim("outbox"))
    made["failed"] = put(ground, "sync_aws", max_attempts=1)
    ground.app.fail(ground.claim("outbox"), "AccessDenied")
    clock.advance(1710 - 360)
    made["stuck"] = put(ground)
    ground.claim("outbox", worker="silent")
    clock.advance(360)
    made["pending"] = put(ground, "claude_extraction")
    return made


def dialect(ground: Ground, sqlite: str, postgres: str) -> str:
    return sqlite if ground.engine == "sqlite" else postgres


def test_what_work_is_outstanding_right_now(ground: Ground, busy: dict[str, str]) -> None:
    rows = ground.execute(
        f"SELECT type, count(*) AS jobs FROM {ground.view(VIEW)} WHERE status IN ('pending', 'claimed') GROUP BY type"
    )

    assert {row["type"]: row["jobs"] for row in rows} == {"create_file": 1, "claude_extraction": 1}


def test_what_failed_and_why(ground: Ground, busy: dict[str, str]) -> None:
    rows = ground.execute(f"SELECT id, type, last_error FROM {ground.view(VIEW)} WHERE status = 'failed'")

    assert [(str(row["id"]), row["last_error"]) for row in rows] == [(busy["failed"], "AccessDenied")]


def test_is_anything_stuck(ground: Ground, busy: dict[str, str]) -> None:
    since = dialect(ground, "datetime('now', '-5 minutes')", "tenure.now() - interval '5 minutes'")
    rows = ground.execute(
        f"SELECT id, locked_by FROM {ground.view(VIEW)} WHERE status = 'claimed' AND locked_at < {since}"
    )

    assert [(str(row["id"]), row["locked_by"]) for row in rows] == [(busy["stuck"], "silent")]


def test_how_long_do_jobs_take(ground: Ground, busy: dict[str, str]) -> None:
    took = dialect(
        ground,
        "(julianday(completed_at) - julianday(claimed_at)) * 86400",
        "extract(epoch FROM completed_at - claimed_at)",
    )
    rows = ground.execute(f"SELECT id, {took} AS seconds FROM {ground.view(VIEW)} WHERE status = 'completed'")

    seconds = {str(row["id"]): round(float(row["seconds"])) for row in rows}
    assert seconds == {busy["old"]: 0, busy["done"]: 90, busy["again"]: 0}


def test_are_there_duplicate_jobs(ground: Ground, busy: dict[str, str]) -> None:
    rows = ground.execute(
        f"SELECT type, idempotency_key, count(*) AS jobs FROM {ground.view(VIEW)} "
        "WHERE idempotency_key IS NOT NULL GROUP BY type, idempotency_key HAVING count(*) > 1"
    )

    assert [tuple(row.values()) for row in rows] == [("create_file", "twice", 2)]


def test_what_ran_in_the_last_hour(ground: Ground, busy: dict[str, str]) -> None:
    since = dialect(ground, "datetime('now', '-60 minutes')", "tenure.now() - interval '60 minutes'")
    rows = ground.execute(f"SELECT id FROM {ground.view(VIEW)} WHERE completed_at >= {since}")

    assert {str(row["id"]) for row in rows} == {busy["done"], busy["again"], busy["failed"]}
