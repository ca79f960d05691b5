"""Specification 003's own statement, as printed: INSERT … ON CONFLICT (type, idempotency_key) DO UPDATE … RETURNING id.

`orchestrator.tasks` is a real table on PostgreSQL. These tests hold it to its job table: one id per key whichever door
and however many at once, the same row after every move, nothing that an INSERT could forge, no deadlock between doors.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from tenure import App, GateClosed
from tests.profiles.ground import Ground, PostgresGround, wait_until_blocked

pytestmark = pytest.mark.postgres

ENQUEUE: Final = """
-- Enqueue with idempotency key
INSERT INTO tasks (type, payload, idempotency_key)
VALUES ('email:send', '{"to":"user@example.com"}', 'email-user-123')
ON CONFLICT (type, idempotency_key)
DO UPDATE SET updated_at = NOW()
RETURNING id;
"""
"""As the specification prints it."""

MANY: Final = """
INSERT INTO tasks (type, payload, idempotency_key) VALUES (%s, %s, %s)
ON CONFLICT (type, idempotency_key) DO UPDATE SET updated_at = NOW() RETURNING id
"""


@contextmanager
def session(url: str, *, autocommit: bool = True) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(url, autocommit=autocommit) as connection:
        connection.execute("SET search_path = orchestrator")
        if not autocommit:
            connection.commit()
        yield connection


def one(connection: psycopg.Connection[tuple[Any, ...]], statement: str, *values: Any) -> Any:
    row = connection.execute(statement.encode(), values or None).fetchone()
    assert row is not None
    return row[0]


def tasks(ground: Ground) -> list[dict[str, Any]]:
    return ground.execute("SELECT * FROM orchestrator.tasks ORDER BY id")


def jobs(ground: Ground) -> list[dict[str, Any]]:
    """What the rows of tasks must say, read from the jobs themselves."""
    return ground.execute(
        "SELECT t.* FROM tenure.job AS j, orchestrator.task_of(j) AS t WHERE j.profile = 'orchestrator' ORDER BY j.id"
    )


@pytest.mark.parametrize("role", ["owner", "producer", "worker", "operator", "admin"])
def test_the_printed_statement_makes_one_task_and_returns_its_id_again(
    server_ground: Ground, postgres_ground: PostgresGround, role: str
) -> None:
    url = server_ground.app.url if role == "owner" else postgres_ground.login(role)
    with session(url) as connection:
        first = one(connection, ENQUEUE)
        (before,) = tasks(server_ground)
        again = one(connection, ENQUEUE)
        other = one(connection, ENQUEUE.replace("email:send", "sms:send"))

    assert again == first
    assert other != first
    rows = {row["id"]: row for row in tasks(server_ground)}
    assert rows.keys() == {first, other}
    assert rows[first]["updated_at"] > before["updated_at"]
    assert {**rows[first], "updated_at": None} == {**before, "updated_at": None}
    job = server_ground.app.get(str(first))
    assert (job.kind, job.key) == ("email:send", "email-user-123")
    grants = server_ground.app.claim(worker="w", queues="orchestrator", limit=9)
    assert {grant.id for grant in grants} == {str(first), str(other)}


VARIANTS: Final = (
    "ON CONFLICT (type, idempotency_key) DO UPDATE SET updated_at = EXCLUDED.updated_at RETURNING *",
    "ON CONFLICT ON CONSTRAINT unique_idempotency_key DO UPDATE SET updated_at = NOW() RETURNING id, status",
    "ON CONFLICT (type, idempotency_key) DO UPDATE SET updated_at = NOW() WHERE tasks.status = 'pending' RETURNING id",
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_producer_may_write_the_statement_in_other_legal_ways(
    server_ground: Ground, postgres_ground: PostgresGround, variant: str
) -> None:
    """Its login could read three columns of its own tasks, so that EXCLUDED.updated_at and RETURNING * were refused."""
    insert = f"INSERT INTO tasks (type, idempotency_key) VALUES ('k', 'a'), ('k', 'b') {variant}"

    with session(postgres_ground.login("producer")) as producer:
        first, again = ([row[0] for row in producer.execute(insert.encode()).fetchall()] for _ in range(2))
        shown = producer.execute("SELECT id FROM tasks WHERE status = 'pending' ORDER BY idempotency_key").fetchall()

    assert first == again == [row[0] for row in shown]
    assert len(set(first)) == 2


def test_two_sessions_at_once_get_one_id(server_ground: Ground) -> None:
    """The second waits for the first to commit, then finds its task; after a rollback it makes its own."""
    for end in ("commit", "rollback"):
        with session(server_ground.app.url, autocommit=False) as first:
            mine = one(first, MANY, "email:send", "{}", end)
            answers: list[Any] = []

            def contend(key: str = end, answers: list[Any] = answers) -> None:
                with session(server_ground.app.url) as second:
                    answers.append(one(second, MANY, "email:send", "{}", key))

            contender = threading.Thread(target=contend)
            contender.start()
            wait_until_blocked(first)
            getattr(first, end)()
            contender.join(20)

        assert (answers == [mine]) is (end == "commit")
    assert len(tasks(server_ground)) == len(jobs(server_ground)) == 2


def test_many_sessions_and_the_app_at_once_get_one_id_per_key(server_ground: Ground) -> None:
    keys = [f"k{n % 5}" for n in range(60)]

    def put(n: int) -> tuple[str, str]:
        if n % 3 == 0:
            found = server_ground.app.enqueue("email:send", {}, queue="orchestrator", key=keys[n])
            return keys[n], found.id
        with session(server_ground.app.url) as connection:
            return keys[n], str(one(connection, MANY, "email:send", "{}", keys[n]))

    with ThreadPoolExecutor(6) as threads:
        answers = set(threads.map(put, range(60)))

    assert Counter(key for key, _ in answers) == dict.fromkeys(set(keys), 1)
    assert tasks(server_ground) != []
    assert {str(row["id"]) for row in tasks(server_ground)} == {found for _, found in answers}
    assert {row["id"] for row in jobs(server_ground)} == {row["id"] for row in tasks(server_ground)}


def test_the_doors_take_their_locks_in_one_order(server_ground: Ground) -> None:
    """Sixty transactions through both doors, each with the same two keys in the same order. Were one door to take the
    task's row before the job's key, two of them would each hold what the other waits for, and one would be refused."""
    url = server_ground.app.url

    def put(n: int) -> tuple[str, ...]:
        with App(url) as app, session(url, autocommit=False) as connection:
            keys = (f"a{n // 6}", f"b{n // 6}")
            if n % 2:
                found: list[str] = [
                    app.enqueue("email:send", {}, queue="orchestrator", key=key, connection=connection).id
                    for key in keys
                ]
            else:
                found = [str(one(connection, MANY, "email:send", "{}", key)) for key in keys]
            connection.commit()
            return tuple(found)

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(put, range(60)))

    assert len(set(answers)) == 10
    assert {row["id"] for row in jobs(server_ground)} == {row["id"] for row in tasks(server_ground)}


def test_a_duplicate_beside_a_worker_that_settles_does_not_deadlock(server_ground: Ground) -> None:
    """A producer that holds a task's row makes the worker wait, and does itself not wait for the worker's job."""
    url = server_ground.app.url
    with session(url) as connection:
        task = one(connection, MANY, "email:send", "{}", "k")
    grant = server_ground.claim("orchestrator")
    done: list[Any] = []
    with session(url, autocommit=False) as producer:
        one(producer, MANY, "email:send", "{}", "k")
        settling = threading.Thread(target=lambda: done.append(server_ground.app.complete(grant).state))
        settling.start()
        wait_until_blocked(producer)
        assert one(producer, MANY, "email:send", "{}", "k") == task
        producer.commit()
        settling.join(20)

    assert done == ["succeeded"]
    assert [row["status"] for row in tasks(server_ground)] == ["completed"]


def test_a_row_says_what_its_job_says_after_every_move(server_ground: Ground) -> None:
    app = server_ground.app

    def check() -> None:
        assert tasks(server_ground) == jobs(server_ground)

    with session(app.url) as connection:
        for n in range(6):
            one(connection, MANY, f"t{n}", json.dumps({"n": n}), "k")
    check()
    app.enqueue("t9", {"n": 9}, queue="orchestrator", delay=60)
    check()
    grants = app.claim(worker="host-1-a", queues="orchestrator", limit=5, lease_seconds=60)
    check()
    app.start(grants[0])
    app.heartbeat(grants)
    check()
    app.complete(grants[0], {"ok": True})
    app.fail(grants[1], "no")
    app.release(grants[2])
    app.reject(grants[3], "no handler")
    app.cancel(grants[2].id)
    check()
    server_ground.clock.advance(3600)
    app.reap()
    check()
    app.revive(grants[3].id, reason="mended")
    app.clone(grants[0].id, reason="again")
    check()
    server_ground.clock.advance(30 * 86400)
    app.prune(older_than=0, delete_after=0)
    check()
    assert {row["status"] for row in tasks(server_ground)} == {"pending"}


def test_a_gate_refuses_the_statement_and_leaves_no_task(server_ground: Ground) -> None:
    server_ground.app.gates.close("master")

    with session(server_ground.app.url) as connection, pytest.raises(psycopg.Error, match="master"):
        connection.execute(ENQUEUE.encode())
    with pytest.raises(GateClosed):
        server_ground.app.enqueue("email:send", {}, queue="orchestrator")

    assert tasks(server_ground) == []


def test_a_duplicate_by_the_plain_insert_is_the_error_of_the_constraint(server_ground: Ground) -> None:
    with session(server_ground.app.url) as connection:
        connection.execute("INSERT INTO tasks (type, idempotency_key) VALUES ('a', 'k')")
        with pytest.raises(psycopg.errors.UniqueViolation, match="unique_idempotency_key"):
            connection.execute("INSERT INTO tasks (type, idempotency_key) VALUES ('a', 'k')")
        nothing = connection.execute(
            "INSERT INTO tasks (type, idempotency_key) VALUES ('a', 'k') ON CONFLICT DO NOTHING RETURNING id"
        ).fetchall()

    assert nothing == []
    assert len(tasks(server_ground)) == len(jobs(server_ground)) == 1


def test_no_insert_forges_a_task(server_ground: Ground) -> None:
    held = server_ground.app.enqueue("email:send", {}, queue="orchestrator").id
    with session(server_ground.app.url) as connection:
        for columns, values in (
            ("type, status", "'a', 'completed'"),
            ("type, attempts", "'a', 2"),
            ("id, type, status", f"'{held}', 'other', 'completed'"),
        ):
            with pytest.raises(psycopg.Error):
                connection.execute(f"INSERT INTO tasks ({columns}) VALUES ({values})".encode())

    assert tasks(server_ground) == jobs(server_ground)


def test_a_producer_sees_its_own_tasks_and_no_others(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    server_ground.app.enqueue("secret:type", {"secret": "payload"}, queue="orchestrator", key="secret-key")

    with session(postgres_ground.login("producer"), autocommit=False) as connection:
        seen = connection.execute("SELECT id, type, idempotency_key FROM tasks").fetchall()
        mine = one(connection, ENQUEUE)
        then = connection.execute("SELECT id, type, idempotency_key FROM tasks").fetchall()
        connection.commit()
        after = connection.execute("SELECT id, type, idempotency_key FROM tasks").fetchall()
        connection.commit()
        carried = connection.execute("SELECT payload FROM tasks").fetchall()

    assert seen == []
    assert then == after == [(mine, "email:send", "email-user-123")]
    assert carried == [({"to": "user@example.com"},)]


def test_the_holder_of_a_key_is_returned_to_its_own_login_alone(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    held = server_ground.app.enqueue(
        "email:send", {"to": "user@example.com"}, queue="orchestrator", key="email-user-123"
    )

    with session(postgres_ground.login("producer")) as connection:
        with pytest.raises(psycopg.Error, match="a task of another login") as refused:
            connection.execute(ENQUEUE.encode())
        connection.execute("SELECT set_config('orchestrator.touched', %s, false)", [held.id])
        seen = connection.execute("SELECT id, type, idempotency_key FROM tasks").fetchall()

    assert held.id not in str(refused.value)
    assert seen == []


def test_a_tasks_row_made_inside_a_trigger_of_the_application_is_kept_too(server_ground: Ground) -> None:
    """The application's own trigger enqueues: the depth of triggers says nothing about where a job comes from."""
    with session(server_ground.app.url, autocommit=False) as connection:
        connection.execute("CREATE TEMP TABLE orders (id integer)")
        connection.execute(
            "CREATE FUNCTION pg_temp.put() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM tenure.enqueue(json_build_object('groups', json_build_array(json_build_object("
            "'queue', 'orchestrator', 'kind', 'order', 'jobs', json_build_array(json_build_object("
            "'i', gen_random_uuid(), 'p', '{}'::json)))))); RETURN NULL; END $$"
        )
        connection.execute("CREATE TRIGGER put AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION pg_temp.put()")
        connection.execute("INSERT INTO orders VALUES (1), (2)")
        connection.commit()

    assert [row["type"] for row in tasks(server_ground)] == ["order", "order"]
    assert tasks(server_ground) == jobs(server_ground)
