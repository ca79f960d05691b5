"""Specification 003, the task orchestrator: each rule as given, when, then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from tenure import Context
from tenure.model.ids import WorkerId
from tenure.store.contract import Heartbeat, Prune, WorkerRow
from tenure.worker.config import WorkerConfig
from tenure.worker.leader import Leader
from tenure.worker.log import WorkerLog
from tests.profiles.ground import Ground, PostgresGround, wait_until_blocked
from tests.waiting import wait_until
from tests.worker.bed import EventLog

TASKS = "orchestrator.tasks"
WORKERS = "orchestrator.workers"
TASK_COLUMNS = [
    "id",
    "type",
    "payload",
    "status",
    "priority",
    "idempotency_key",
    "worker_id",
    "created_at",
    "claimed_at",
    "started_at",
    "completed_at",
    "updated_at",
    "attempts",
    "max_retries",
    "last_error",
    "next_retry_at",
]
WORKER_COLUMNS = ["id", "hostname", "started_at", "last_heartbeat", "pool_size", "version", "is_leader", "leader_until"]

ACQUIRE = """
UPDATE workers
SET is_leader = TRUE, leader_until = NOW() + interval '30 seconds'
WHERE id = %(my_worker_id)s
  AND (
      -- No current leader
      NOT EXISTS (SELECT 1 FROM workers WHERE is_leader = TRUE AND leader_until > NOW())
      -- Or I'm already leader (extending my lease)
      OR (id = %(my_worker_id)s AND is_leader = TRUE)
  );
"""
"""As the specification prints it, but for the name of its parameter."""


def put(ground: Ground, kind: str = "email:send", key: str | None = None, **options: Any) -> str:
    return ground.app.enqueue(kind, {"to": "user@example.com"}, queue="orchestrator", key=key, **options).id


def shown(ground: Ground, task_id: str) -> dict[str, Any]:
    return ground.row(TASKS, "id = ?", task_id)


def beat(ground: Ground, worker: str, pool_size: int = 4) -> None:
    row = WorkerRow(worker, "host", 1, ["orchestrator"], concurrency=pool_size, version="1.2")  # type: ignore[arg-type]
    ground.app.store.do(Heartbeat((), worker=row))


def test_tasks_and_workers_have_the_columns_of_the_specification(ground: Ground) -> None:
    put(ground)
    beat(ground, "host-1-a")

    assert list(ground.row(TASKS)) == TASK_COLUMNS
    assert list(ground.row(WORKERS)) == WORKER_COLUMNS


@pytest.mark.postgres
def test_the_status_is_the_enum_of_the_specification(server_ground: Ground) -> None:
    words = server_ground.execute("SELECT unnest(enum_range(NULL::orchestrator.task_status))::text AS word")
    column = server_ground.execute(
        "SELECT format_type(atttypid, atttypmod) AS type FROM pg_attribute "
        "WHERE attrelid = 'orchestrator.tasks'::regclass AND attname = 'status'"
    )

    assert [row["word"] for row in words] == ["pending", "claimed", "running", "completed", "failed", "dead_letter"]
    assert column == [{"type": "orchestrator.task_status"}]
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        server_ground.rows(TASKS, "status = 'resting'")


def test_a_plain_insert_enqueues_with_the_defaults_of_the_specification(ground: Ground) -> None:
    ground.execute(f"INSERT INTO {ground.view(TASKS)} (type, payload) VALUES ('service:nextjs', '{{\"port\": 3000}}')")

    row = ground.row(TASKS)
    assert (row["status"], row["priority"], row["attempts"], row["max_retries"]) == ("pending", 0, 0, 3)
    nothing_yet = (
        "idempotency_key",
        "worker_id",
        "claimed_at",
        "started_at",
        "completed_at",
        "last_error",
        "next_retry_at",
    )
    assert {row[name] for name in nothing_yet} == {None}


def test_a_payload_may_be_left_out(ground: Ground) -> None:
    ground.execute(f"INSERT INTO {ground.view(TASKS)} (type) VALUES ('task:backup')")

    assert ground.row(TASKS)["payload"] == (None if ground.engine == "postgres" else "null")
    assert ground.claim("orchestrator").payload is None


def test_sqlite_takes_no_upsert_on_a_view_and_the_plain_insert_makes_one_task(file_ground: Ground) -> None:
    with pytest.raises(Exception, match="cannot UPSERT a view"):
        file_ground.execute(
            "INSERT INTO orchestrator_tasks (type, idempotency_key) VALUES ('email:send', 'k') ON CONFLICT DO NOTHING"
        )
    for _ in range(2):
        file_ground.execute("INSERT INTO orchestrator_tasks (type, idempotency_key) VALUES ('email:send', 'k')")

    assert len(file_ground.rows(TASKS)) == 1


def test_a_key_is_taken_for_ever_within_its_type(ground: Ground) -> None:
    first = put(ground, key="event-7")
    ground.app.complete(ground.claim("orchestrator"))

    assert shown(ground, first)["status"] == "completed"
    assert put(ground, key="event-7") == first
    assert put(ground, "sms:send", key="event-7") != first


def test_retention_removes_no_task_and_so_frees_no_key(ground: Ground) -> None:
    """A worker's own retention deleted ended tasks after 30 days: the same event made a second task then."""
    first = put(ground, key="event-7")
    ground.app.complete(ground.claim("orchestrator"))
    ground.clock.advance(400 * 86_400)

    ground.app.store.do(Prune(delete_after_seconds=WorkerConfig().delete_after_seconds))

    assert (shown(ground, first)["status"], shown(ground, first)["payload"] is not None) == ("completed", True)
    assert put(ground, key="event-7") == first


def test_a_duplicate_with_another_payload_answers_the_first_task(ground: Ground) -> None:
    first = put(ground, key="click")

    second = ground.app.enqueue("email:send", {"to": "other@example.com"}, queue="orchestrator", key="click")

    assert (second.id, second.duplicate) == (first, True)


def test_the_life_of_a_task_is_pending_claimed_running_completed_with_its_times(ground: Ground) -> None:
    task_id = put(ground)
    seen = []
    for step in ("none", "claim", "start", "complete"):
        ground.clock.advance(1)
        if step == "claim":
            grant = ground.claim("orchestrator", worker="host-1-a")
        elif step == "start":
            ground.app.start(grant)
        elif step == "complete":
            ground.app.complete(grant)
        row = shown(ground, task_id)
        seen.append(
            (
                row["status"],
                row["worker_id"],
                *(row[f"{name}_at"] is not None for name in ("claimed", "started", "completed")),
            )
        )

    assert seen == [
        ("pending", None, False, False, False),
        ("claimed", "host-1-a", True, False, False),
        ("running", "host-1-a", True, True, False),
        ("completed", None, True, True, True),
    ]


def test_a_failure_waits_for_next_retry_at_and_ends_in_dead_letter_after_max_retries(ground: Ground) -> None:
    task_id = put(ground)

    waits = []
    for _ in range(3):
        settled = ground.app.fail(ground.claim("orchestrator"), "smtp is down")
        assert settled.run_at_us is not None
        waits.append(round(settled.run_at_us / 1e6 - ground.clock.now().timestamp()))
        row = shown(ground, task_id)
        assert (row["status"], row["next_retry_at"] is not None) == ("pending", True)
        assert ground.app.claim(worker="w", queues="orchestrator") == []
        ground.clock.advance(waits[-1])
    ground.app.fail(ground.claim("orchestrator"), "smtp is down")

    row = shown(ground, task_id)
    assert waits == [5, 10, 20]
    assert (row["status"], row["attempts"], row["max_retries"]) == ("dead_letter", 4, 3)
    assert (row["last_error"], row["next_retry_at"]) == ("smtp is down", None)
    assert row["completed_at"] is not None


def test_a_task_without_a_handler_fails_at_once_and_is_not_retried(ground: Ground) -> None:
    task_id = put(ground, "nobody:knows")

    ground.app.run_worker(queues=["orchestrator"], drain=True, handle_signals=False, maintain=False)

    row = shown(ground, task_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert "nobody:knows" in row["last_error"]
    assert row["completed_at"] is not None


def test_higher_priorities_go_first_and_older_ones_within_them(ground: Ground) -> None:
    low, first, second, high = (put(ground, priority=p) for p in (-5, 0, 0, 5))

    assert [ground.claim("orchestrator", worker=f"w{n}").id for n in range(4)] == [high, first, second, low]


def test_a_dead_worker_is_removed_and_its_tasks_are_pending_again(ground: Ground) -> None:
    task_id = put(ground)
    beat(ground, "host-1-a")
    beat(ground, "host-2-b")
    ground.claim("orchestrator", worker="host-1-a", lease_seconds=3600)
    ground.clock.advance(100)
    beat(ground, "host-2-b")

    removed = ground.app.workers.remove(unseen=90)

    assert removed == ["host-1-a"]
    assert [row["id"] for row in ground.rows(WORKERS)] == ["host-2-b"]
    row = shown(ground, task_id)
    assert (row["status"], row["worker_id"]) == ("pending", None)
    assert ground.claim("orchestrator", worker="host-2-b").id == task_id


def test_a_worker_is_shown_with_its_pool_and_version(ground: Ground) -> None:
    beat(ground, "host-1-a", pool_size=8)

    row = ground.row(WORKERS)

    assert (row["id"], row["hostname"], row["pool_size"], row["version"]) == ("host-1-a", "host", 8, "1.2")
    assert (bool(row["is_leader"]), row["leader_until"]) == (False, None)


def test_one_worker_leads_for_thirty_seconds_and_the_next_one_takes_over(ground: Ground) -> None:
    for worker in ("host-1-a", "host-2-b"):
        beat(ground, worker)

    mine = ground.app.leases.acquire("leader:orchestrator", "host-1-a")
    not_yours = ground.app.leases.acquire("leader:orchestrator", "host-2-b")

    assert (mine.acquired, not_yours.acquired) == (True, False)
    assert (mine.until - ground.clock.now()).total_seconds() == pytest.approx(30)
    leaders = {row["id"]: bool(row["is_leader"]) for row in ground.rows(WORKERS)}
    assert leaders == {"host-1-a": True, "host-2-b": False}
    ground.clock.advance(31)
    assert ground.app.leases.acquire("leader:orchestrator", "host-2-b").term == mine.term + 1


@pytest.mark.postgres
def test_a_worker_registers_beats_and_goes_by_plain_sql(server_ground: Ground) -> None:
    server_ground.execute(f"INSERT INTO {WORKERS} (id, hostname, pool_size) VALUES ('host-7-x', 'host', 4)")
    server_ground.clock.advance(5)
    server_ground.execute(f"UPDATE {WORKERS} SET last_heartbeat = NOW() WHERE id = 'host-7-x'")
    row = server_ground.row(WORKERS)
    task_id = put(server_ground)
    server_ground.claim("orchestrator", worker="host-7-x")
    server_ground.execute(f"DELETE FROM {WORKERS} WHERE id = 'host-7-x'")

    assert (row["pool_size"], (row["last_heartbeat"] - row["started_at"]).total_seconds()) == (4, 5)
    assert server_ground.rows(WORKERS) == []
    assert shown(server_ground, task_id)["status"] == "pending"


@pytest.mark.postgres
@pytest.mark.parametrize("change", ["id = 'host-8-y'", "hostname = 'other'", "started_at = NOW()"])
def test_an_update_of_what_a_worker_is_says_that_it_changes_nothing(server_ground: Ground, change: str) -> None:
    """It answered UPDATE 1, and nothing had changed."""
    server_ground.execute(f"INSERT INTO {WORKERS} (id, hostname, pool_size) VALUES ('host-7-x', 'host', 4)")
    before = server_ground.row(WORKERS)

    with pytest.raises(psycopg.Error, match="keeps its id, hostname and started_at") as refused:
        server_ground.execute(f"UPDATE {WORKERS} SET {change} WHERE id = 'host-7-x'")

    assert refused.value.sqlstate == "TN008"
    assert server_ground.row(WORKERS) == before


@pytest.mark.postgres
def test_the_leadership_update_of_the_specification_runs_against_the_view(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    with psycopg.connect(postgres_ground.login("worker"), autocommit=True) as connection:
        connection.execute("SET search_path = orchestrator")
        for worker in ("host-1-a", "host-2-b"):
            connection.execute("INSERT INTO workers (id, hostname, pool_size) VALUES (%s, 'h', 1)", [worker])
        changed = [
            connection.execute(ACQUIRE.encode(), {"my_worker_id": worker}).rowcount
            for worker in ("host-1-a", "host-2-b", "host-1-a")
        ]

    assert changed == [1, 0, 1]
    rows = {row["id"]: row for row in server_ground.rows(WORKERS)}
    assert [rows[worker]["is_leader"] for worker in ("host-1-a", "host-2-b")] == [True, False]


def test_a_worker_of_another_profile_that_leads_the_database_does_not_lead_this_one(ground: Ground) -> None:
    """The lease `leader` is the database's. Where it was this profile's too, a worker of `default` that had it left
    the specification's query without a leader, and its UPDATE without effect."""
    ground.app.leases.acquire("leader", "elsewhere-1-a")
    beat(ground, "host-1-a")

    async def lead() -> None:
        async def nothing() -> None: ...

        store = ground.app._state.open_store()
        log = WorkerLog("host-1-a", EventLog())
        worker = Leader(
            store, WorkerId("host-1-a"), WorkerConfig(), [], log, nothing, profiles=lambda: ["orchestrator"]
        )
        await worker.stand_for_election()
        await worker.stand_for_profiles()
        assert not worker.is_leader

    asyncio.run(lead())

    assert bool(ground.row(WORKERS)["is_leader"])


@pytest.mark.postgres
def test_a_running_worker_leads_the_profiles_of_its_queues_and_gives_them_back(
    server_ground: Ground,
) -> None:
    server_ground.app.queue("mine", profile="orchestrator")
    seen: list[Any] = []

    @server_ground.app.job(kind="look", queue="mine")
    def look(ctx: Context) -> None:
        wait_until(lambda: server_ground.rows(WORKERS, "is_leader"))
        seen.extend(server_ground.rows(WORKERS, "is_leader"))

    server_ground.app.enqueue("look", queue="mine")
    server_ground.app.run_worker(queues=["mine", "default"], drain=True, handle_signals=False)

    assert len(seen) == 1
    taken = server_ground.app.leases.acquire("leader:orchestrator", "next")
    assert taken.acquired


@pytest.mark.postgres
def test_removing_a_worker_leaves_it_what_it_holds_of_other_profiles(server_ground: Ground) -> None:
    server_ground.execute(f"INSERT INTO {WORKERS} (id, hostname, pool_size) VALUES ('host-7-x', 'host', 4)")
    task_id = put(server_ground)
    other = server_ground.app.enqueue("tea", {}, queue="outbox").id
    for queue in ("orchestrator", "outbox"):
        server_ground.claim(queue, worker="host-7-x")

    server_ground.execute(f"DELETE FROM {WORKERS} WHERE id = 'host-7-x'")

    assert shown(server_ground, task_id)["status"] == "pending"
    held = server_ground.app.get(other)
    assert (held.lease_owner, held.state in ("leased", "running")) == ("host-7-x", True)


@pytest.mark.postgres
def test_two_that_both_see_no_leader_do_not_both_become_one(server_ground: Ground) -> None:
    """The letter of the specification elects two here; the lease's own row lets one through."""
    for worker in ("host-1-a", "host-2-b"):
        beat(server_ground, worker)
    url = server_ground.app.url
    second: list[int] = []

    def contend() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SET search_path = orchestrator")
            second.append(other.execute(ACQUIRE.encode(), {"my_worker_id": "host-2-b"}).rowcount)

    with psycopg.connect(url) as first:
        first.execute("SET search_path = orchestrator")
        won = first.execute(ACQUIRE.encode(), {"my_worker_id": "host-1-a"}).rowcount
        contender = threading.Thread(target=contend)
        contender.start()
        wait_until_blocked(first)
        first.commit()
        contender.join(20)

    assert (won, second) == (1, [0])
    assert [row["is_leader"] for row in server_ground.rows(WORKERS, "true ORDER BY id")] == [True, False]


def test_every_move_refreshes_updated_at(ground: Ground) -> None:
    task_id = put(ground)
    seen = [shown(ground, task_id)["updated_at"]]
    for move in ("claim", "start", "fail"):
        ground.clock.advance(1)
        if move == "claim":
            grant = ground.claim("orchestrator")
        elif move == "start":
            ground.app.start(grant)
        else:
            ground.app.fail(grant, "no")
        seen.append(shown(ground, task_id)["updated_at"])

    assert seen == sorted(set(seen))
    assert len(seen) == 4
