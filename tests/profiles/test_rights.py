"""S06 and S07 for the schemas of profiles: who may do what, and nothing that a caller put in front is used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from typing import Final

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, ObjectNotInPrerequisiteState

from tenure import App
from tenure.errors import Forbidden
from tests.profiles.ground import PROFILES, ROLES, Ground, PostgresGround

pytestmark = pytest.mark.postgres

SCHEMAS: Final = "(" + ", ".join(f"'{name}'::regnamespace" for name in PROFILES) + ")"

VIEWS: Final = {
    "agent_queue.agent_jobs": {"SELECT": "worker reader operator admin", "INSERT": "producer worker operator admin"},
    "outbox.jobs": {"SELECT": "worker reader operator admin", "INSERT": "producer worker operator admin"},
    "orchestrator.tasks": {
        "SELECT": "producer worker reader operator admin",  # its rows are of one login each
        "INSERT": "producer worker operator admin",
    },
    "orchestrator.workers": {
        "SELECT": "worker reader operator admin",
        "INSERT": "worker admin",
        "UPDATE": "worker admin",
        "DELETE": "worker admin",
    },
    "automechanica.tasks": {
        "SELECT": "worker reader operator admin",
        "INSERT": "producer worker operator admin",
        "UPDATE": "worker operator admin",  # for SELECT … FOR UPDATE; an UPDATE itself is refused
    },
    "automechanica.agent": {},
    **{
        f"automechanica.{name}": {"SELECT": "reader operator admin"}
        for name in ("workflows", "agent_events", "embedding_jobs", "task_queue_metrics")
    },
    "substrate.job_queue": {"SELECT": "worker reader operator admin", "INSERT": "producer worker operator admin"},
    "substrate.job_dead_letter": {"SELECT": "reader operator admin", "UPDATE": "operator admin"},
    "substrate.executor_change": {},
    "substrate.queue_heartbeat": {"SELECT": "worker reader operator admin"},
    "substrate.dot_config": {"SELECT": "worker reader operator admin", "UPDATE": "admin"},
    **{
        f"substrate.{name}": {"SELECT": "reader operator admin"}
        for name in ("v_queue_health", "v_job_queue_backlog", "v_job_dead_letter_summary")
    },
}

FUNCTIONS: Final = {
    "orchestrator.is_own_task": "producer worker",
    "automechanica.create_task": "producer worker operator admin",
    "automechanica.claim_task": "worker admin",
    "automechanica.start_task": "worker admin",
    "automechanica.extend_lease": "worker admin",
    "automechanica.complete_task": "worker admin",
    "automechanica.fail_task": "worker admin",
    "automechanica.grant_agent": "admin",
    "automechanica.revoke_agent": "admin",
    "substrate.fn_job_enqueue": "producer worker operator admin",
    "substrate.fn_job_claim": "worker admin",
    "substrate.fn_job_ack": "worker admin",
    "substrate.fn_job_fail_or_retry": "worker admin",
    "substrate.fn_job_move_to_dead_letter": "worker operator admin",
    "substrate.fn_queue_heartbeat_tick": "worker admin",
    "substrate.fn_queue_stale_check": "worker reader operator admin",
}
"""Whatever is not named here is a step inside another function, and nobody's to call."""


def test_every_definer_function_has_a_pinned_search_path_with_pg_temp_last_and_an_owner_that_cannot_log_in(
    server_ground: Ground,
) -> None:
    rows = server_ground.execute(
        "SELECT p.oid::regprocedure::text AS name, p.prosecdef, p.proconfig, p.proowner::regrole::text AS owner "
        f"FROM pg_proc AS p WHERE p.pronamespace IN {SCHEMAS}"
    )

    assert len(rows) > 25
    for row in rows:
        assert row["owner"] == "tenure_owner", row["name"]
        assert "search_path=pg_catalog, tenure, pg_temp" in (row["proconfig"] or []), row["name"]
    assert server_ground.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'tenure_owner'") == [
        {"rolcanlogin": False}
    ]


def test_public_may_nothing(server_ground: Ground) -> None:
    functions = server_ground.execute(
        f"SELECT p.proname FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a "
        f"WHERE p.pronamespace IN {SCHEMAS} AND a.grantee = 0"
    )
    tables = server_ground.execute(
        f"SELECT c.relname FROM pg_class AS c, aclexplode(c.relacl) AS a "
        f"WHERE c.relnamespace IN {SCHEMAS} AND a.grantee = 0"
    )

    assert (functions, tables) == ([], [])


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_just_its_own_rights_on_views_and_tables(server_ground: Ground, role: str) -> None:
    relations = server_ground.execute(
        f"SELECT c.oid::regclass::text AS name FROM pg_class AS c "
        f"WHERE c.relnamespace IN {SCHEMAS} AND c.relkind IN ('r', 'v')"
    )

    found = {
        (row["name"], right)
        for row in relations
        for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
        if server_ground.execute("SELECT has_table_privilege(?, ?, ?) AS may", f"tenure_{role}", row["name"], right)[0][
            "may"
        ]
    }

    assert {row["name"] for row in relations} == set(VIEWS)
    assert found == {
        (view, right) for view, rights in VIEWS.items() for right, roles in rights.items() if role in roles.split()
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_just_its_own_functions(server_ground: Ground, role: str) -> None:
    rows = server_ground.execute(
        "SELECT n.nspname || '.' || p.proname AS name, has_function_privilege(?, p.oid, 'EXECUTE') AS may "
        f"FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.pronamespace IN {SCHEMAS}",
        f"tenure_{role}",
    )

    assert {row["name"] for row in rows if row["may"]} == {
        name for name, roles in FUNCTIONS.items() if role in roles.split()
    }


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_create_nothing_in_a_profiles_schema(server_ground: Ground, role: str) -> None:
    rows = server_ground.execute(
        f"SELECT nspname, has_schema_privilege(?, nspname, 'CREATE') AS may FROM pg_namespace WHERE oid IN {SCHEMAS}",
        f"tenure_{role}",
    )

    assert {row["nspname"]: row["may"] for row in rows} == dict.fromkeys(PROFILES, False)


@pytest.mark.parametrize("role", ROLES)
def test_the_matrix_holds_for_a_real_login(server_ground: Ground, postgres_ground: PostgresGround, role: str) -> None:
    with psycopg.connect(postgres_ground.login(role), autocommit=True) as connection:
        for view, rights in VIEWS.items():
            for right, statement in (("SELECT", f"SELECT * FROM {view} LIMIT 1"), ("DELETE", f"DELETE FROM {view}")):
                if role in rights.get(right, "").split():
                    connection.execute(statement.encode())
                else:  # a view that nobody may delete from has no way to do it either
                    with pytest.raises((InsufficientPrivilege, ObjectNotInPrerequisiteState)):
                        connection.execute(statement.encode())
        with pytest.raises(InsufficientPrivilege):
            connection.execute("SELECT * FROM tenure.shown")


def test_a_producer_learns_the_id_of_what_it_inserted_and_reads_nothing_else(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    with psycopg.connect(postgres_ground.login("producer"), autocommit=True) as producer:
        row = producer.execute("INSERT INTO outbox.jobs (type, payload) VALUES ('x', '{}') RETURNING id").fetchone()
        assert row is not None
        assert server_ground.app.get(str(row[0])).kind == "x"
        assert producer.execute("SELECT id FROM outbox.jobs").fetchall() == []
        for statement in (
            "SELECT payload FROM outbox.jobs",
            "INSERT INTO outbox.jobs (type) VALUES ('x') RETURNING payload",
        ):
            with pytest.raises(InsufficientPrivilege):
                producer.execute(statement.encode())


IDS: Final = {
    "agent_queue.agent_jobs": "id",
    "outbox.jobs": "id",
    "automechanica.tasks": "id",
    "substrate.job_queue": "job_id",
    "orchestrator.tasks": "id",
}


def test_no_view_shows_a_producer_the_ids_of_others(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    """V4. A function of the reader's own in the condition is not given the rows either."""
    server_ground.open()
    for name in ("agent_queue", "outbox", "orchestrator", "substrate"):
        server_ground.app.enqueue("x", {}, queue=name, key="k", actor="me")
    server_ground.execute('SELECT automechanica.create_task(\'{"agent_name": "A", "task_type": "t"}\')')
    server_ground.execute(
        "CREATE FUNCTION public.tells(p_id uuid) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS "
        "$$ BEGIN RAISE WARNING 'id %', p_id; RETURN true; END $$"
    )
    server_ground.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")

    with psycopg.connect(postgres_ground.login("producer"), autocommit=True) as producer:
        warnings: list[str] = []
        producer.add_notice_handler(lambda notice: warnings.append(notice.message_primary or ""))
        for view, column in IDS.items():
            assert len(server_ground.execute(f"SELECT {column} FROM {view}")) >= 1, "otherwise this could not fail"
            statement = f"SELECT {column} FROM {view} WHERE public.tells({column})"
            assert producer.execute(statement.encode()).fetchall() == [], view

    server_ground.execute("DROP FUNCTION public.tells")
    assert warnings == []


CANARY: Final = "canary"


def carried(view: str) -> str:
    """What a job carries, in the words of a view."""
    return {
        "agent_queue.agent_jobs": "payload::text, error_message, result_summary",
        "outbox.jobs": "payload, last_error",
        "automechanica.tasks": "payload::text, error_info ->> 'message', error_info ->> 'note'",
        "substrate.job_queue": "payload_json::text, last_error",
        "orchestrator.tasks": "payload::text, last_error",
    }[view]


@pytest.fixture
def lives(server_ground: Ground, postgres_ground: PostgresGround) -> Iterator[dict[str, psycopg.Connection]]:
    """In every profile a job that one worker's login has failed, one it completed and one it holds; the connections of
    that login, of a second worker's and of a reader. Whatever a job carries is a canary."""
    server_ground.open()
    server_ground.app.create_task({"agent_name": "A", "task_type": "t"})
    made = {name: psycopg.connect(postgres_ground.login(name), autocommit=True) for name in ("worker", "reader")}
    other = postgres_ground.make_login("profile_worker_b")
    server_ground.execute("GRANT tenure_worker TO profile_worker_b")
    made["other"] = psycopg.connect(other, autocommit=True)
    queues = [*(name for name in PROFILES if name != "automechanica"), "A"]
    with (
        App(postgres_ground.login("producer"), actor="ada") as producer,
        App(postgres_ground.login("worker")) as holder,
    ):
        for queue in queues:
            for number in range(3):
                producer.enqueue("t", {"x": CANARY}, queue=queue, key=f"{queue}-{number}")
            *_, failed, done, held = holder.claim(worker="host-1-a", queues=queue, limit=4)
            for grant in (failed, done, held):
                holder.heartbeat([grant], progress={"error_info": {"note": CANARY}})
            holder.fail(failed, CANARY)
            holder.complete(done, {"y": CANARY}, summary=CANARY)
    made["worker"].execute(
        "SELECT substrate.fn_queue_heartbeat_tick('x', 'Codex', p_lease_owner => %s, p_metadata => %s::jsonb)",
        [CANARY, json.dumps({"note": CANARY})],
    )
    yield made
    for connection in made.values():
        connection.close()


def test_a_worker_sees_which_jobs_there_are_and_what_its_own_carry(lives: dict[str, psycopg.Connection]) -> None:
    """V4, V5: the views of profiles showed every worker what every job carried."""
    for view in IDS:
        rows = {
            who: connection.execute(f"SELECT * FROM {view}".encode()).fetchall() for who, connection in lives.items()
        }
        assert CANARY not in str(rows["other"]), view
        assert str(rows["reader"]).count(CANARY) >= 4, view
        # 003's tasks are a table, of which a row is there or not.
        assert len(rows["other"]) == (0 if view == "orchestrator.tasks" else len(rows["reader"])), view
        assert str(rows["worker"]).count(CANARY) == str(rows["reader"]).count(CANARY), view
    heartbeats = {who: lives[who].execute("SELECT * FROM substrate.queue_heartbeat").fetchall() for who in lives}
    assert CANARY not in str(heartbeats["other"])
    assert str(heartbeats["worker"]) == str(heartbeats["reader"])
    assert str(heartbeats["reader"]).count(CANARY) == 2


TAKEN_KEYS: Final = (
    """INSERT INTO outbox.jobs (type, payload, idempotency_key) VALUES ('t', '{"x": "canary"}', 'outbox-2')
    RETURNING last_error""",
    """INSERT INTO substrate.job_queue (job_kind, payload_json, idempotency_key, actor)
    VALUES ('t', '{}', 'substrate-2', 'me') RETURNING *""",
    """INSERT INTO orchestrator.tasks (type, idempotency_key) VALUES ('t', 'orchestrator-0')
    ON CONFLICT (type, idempotency_key) DO UPDATE SET updated_at = now() RETURNING *""",
)


def test_no_condition_and_no_key_tells_a_worker_what_anothers_job_carries(
    server_ground: Ground, lives: dict[str, psycopg.Connection]
) -> None:
    """A function of the caller's own sees the columns as the view shows them; a taken key gives its row without."""
    server_ground.execute(
        "CREATE FUNCTION public.tells(p_text text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS "
        "$$ BEGIN RAISE WARNING 'seen %', p_text; RETURN true; END $$"
    )
    server_ground.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
    said: list[str] = []
    other = lives["other"]
    other.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    try:
        for view in IDS:
            for column in carried(view).split(", "):
                other.execute(f"SELECT 1 FROM {view} WHERE public.tells({column})".encode()).fetchall()
        said += [_said(other, statement) for statement in TAKEN_KEYS]
    finally:
        server_ground.execute("DROP FUNCTION public.tells")

    assert len(said) >= 3 + 4 * 4, "otherwise this could not fail"
    assert [one for one in said if CANARY in one] == []


def _said(connection: psycopg.Connection, statement: str, *values: object) -> str:
    try:
        return str(connection.execute(statement.encode(), values or None).fetchall())
    except psycopg.Error as exc:
        return str(exc)


def test_a_worker_that_claims_by_a_profiles_own_function_reads_what_it_claimed(
    lives: dict[str, psycopg.Connection], postgres_ground: PostgresGround
) -> None:
    """The specifications' own statements go on: 001's claim and 002's give the whole job to the login that holds it."""
    other = lives["other"]
    with App(postgres_ground.login("producer")) as producer:
        producer.enqueue("t", {"x": CANARY}, queue="A")
        producer.enqueue("t", {"x": CANARY}, queue="substrate", key="one-more", actor="ada")
    task = other.execute("SELECT automechanica.claim_task('A', 'host-2-b')").fetchone()
    job = other.execute("SELECT substrate.fn_job_claim('host-2-b')").fetchone()

    assert task is not None
    assert job is not None
    assert (task[0]["payload"], job[0]["job"]["payload_json"]) == ({"x": CANARY}, {"x": CANARY})
    shown = other.execute("SELECT payload FROM automechanica.tasks WHERE id = %s", [task[0]["id"]]).fetchone()
    assert shown == ({"x": CANARY},)


GIVES_JOBS: Final = frozenset({"automechanica.claim_task", "substrate.fn_job_claim"})
"""Functions that grant jobs: what is granted is read."""


def argument(name: str, kind: str, victim: dict[str, object]) -> list[object]:
    """What to fill in for a parameter: whatever of the victim's fits it, and nothing."""
    if kind == "uuid":
        return [victim["id"]]
    if name in {"p_lease_owner", "p_worker_id", "p_moved_by", "p_executor_name"}:
        return [victim["lease_owner"] or "host-1-a", "host-2-b"]
    by_name: dict[str, object] = {
        "p_agent_name": "A",
        "p_idempotency_key": victim["idempotency_key"],
        "p_job_kind": "t",
        "p_executor_kind": "Codex",
        "p_status": "ok",
        "p_token": victim["token"],
    }
    if name in by_name:
        return [by_name[name]]
    return [{"jsonb": '{"message": "forged"}', "text": "forged"}.get(kind)]


def calls_of(connection: psycopg.Connection, victims: list[dict[str, object]]) -> Iterator[tuple[str, str]]:
    """What every function of a profile that this login may call says about every victim. By the catalogue: a function
    that comes tomorrow is asked as well."""
    functions = connection.execute(
        f"SELECT n.nspname || '.' || p.proname, p.proargnames, "
        f"ARRAY(SELECT t::regtype::text FROM unnest(p.proargtypes) AS t) FROM pg_proc AS p "
        f"JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE p.pronamespace IN {SCHEMAS} "
        "AND p.prorettype <> 'trigger'::regtype AND p.prorettype::regtype::text NOT LIKE '%.tasks' "
        "AND has_function_privilege(p.oid, 'EXECUTE') AND has_schema_privilege(n.oid, 'USAGE')".encode()
    ).fetchall()
    for name, names, kinds in functions:
        if name in GIVES_JOBS:
            continue
        for victim in victims:
            given = itertools.product(*(argument(*one, victim) for one in zip(names or [], kinds, strict=True)))
            for values in given:
                places = ", ".join(f"%s::{kind}" for kind in kinds)
                yield f"{name}{values}", _said(connection, f"SELECT {name}({places})", *values)


@pytest.mark.parametrize("who", ["worker", "producer", "agent"])
def test_no_function_of_a_profile_tells_or_changes_what_another_login_works_on(
    server_ground: Ground, postgres_ground: PostgresGround, lives: dict[str, psycopg.Connection], who: str
) -> None:
    """V4, V5: with the right ids, tokens, names and keys, none of which is a secret among workers."""
    victims = server_ground.execute(
        "SELECT id::text, token, lease_owner, idempotency_key FROM tenure.job WHERE kind = 't'"
    )
    other = postgres_ground.make_login(f"profile_{who}_b")
    if who == "agent":
        server_ground.app.agent("Stranger")
        server_ground.execute(f"SELECT automechanica.grant_agent('profile_{who}_b', 'Stranger')")
    else:
        server_ground.execute(f"GRANT tenure_{who} TO profile_{who}_b")
    held = "SELECT j::text FROM tenure.job AS j WHERE lease_login IS NOT NULL ORDER BY j.id"
    before = server_ground.execute(held)

    try:
        with psycopg.connect(other, autocommit=True) as connection:
            answers = dict(calls_of(connection, victims))
            columns = dict(columns_of(connection))
    finally:
        if who == "agent":
            server_ground.execute(f"SELECT automechanica.revoke_agent('profile_{who}_b', 'Stranger')")

    told = {asked: said for asked, said in (answers | columns).items() if CANARY in said}
    assert told == {}
    assert server_ground.execute(held) == before
    assert len(before) >= 3 * 5
    assert len(answers) > (15 if who == "producer" else 60), "otherwise this could not fail"
    assert len(columns) >= {"worker": 60, "producer": 5, "agent": 0}[who]


def columns_of(connection: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """What every column of a profile's views and tables shows that this login may read."""
    columns = connection.execute(
        f"SELECT c.oid::regclass::text, a.attname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid "
        f"WHERE c.relnamespace IN {SCHEMAS} AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped "
        "AND has_column_privilege(c.oid, a.attnum, 'SELECT') AND has_schema_privilege(c.relnamespace, 'USAGE')".encode()
    ).fetchall()
    for relation, column in columns:
        yield f"{relation}.{column}", _said(connection, f"SELECT {column}::text FROM {relation}")


WORKERS_CHANGES: Final = (
    "DELETE FROM orchestrator.workers WHERE id = 'host-1-a'",
    "UPDATE orchestrator.workers SET is_leader = false WHERE id = 'host-1-a'",
    "UPDATE orchestrator.workers SET is_leader = true, leader_until = now() + interval '9 days' WHERE id = 'host-1-a'",
    "UPDATE orchestrator.workers SET id = 'host-1-a', is_leader = true WHERE id = 'host-2-b'",
    "UPDATE orchestrator.workers SET last_heartbeat = now() WHERE id = 'host-1-a'",
)


@pytest.mark.parametrize("statement", WORKERS_CHANGES)
def test_a_worker_of_003_is_changed_by_its_own_login_alone_while_it_is_alive(
    server_ground: Ground, postgres_ground: PostgresGround, statement: str
) -> None:
    """V5: any worker's login removed another's worker from the view and so took back what that one held."""
    other = postgres_ground.make_login("profile_worker_b")
    server_ground.execute("GRANT tenure_worker TO profile_worker_b")
    with (
        psycopg.connect(postgres_ground.login("worker"), autocommit=True) as own,
        psycopg.connect(other, autocommit=True) as stranger,
    ):
        insert = "INSERT INTO orchestrator.workers (id, hostname, pool_size) VALUES (%s, 'h', 1)"
        own.execute(insert, ["host-1-a"])
        stranger.execute(insert, ["host-2-b"])
        own.execute("UPDATE orchestrator.workers SET is_leader = true WHERE id = 'host-1-a'")
        own.execute("INSERT INTO orchestrator.tasks (type) VALUES ('t')")
        own.execute("""SELECT tenure.claim('{"worker": "host-1-a", "queues": ["orchestrator"], "limit": 1}')""")
        before = _of_workers(server_ground)

        with pytest.raises(psycopg.Error, match="another login") as refused:
            stranger.execute(statement.encode())

        assert refused.value.sqlstate == "TN010"
        assert _of_workers(server_ground) == before
        server_ground.clock.advance(301)  # WORKER_TIMEOUT: now it counts as dead, and any worker may be the leader
        stranger.execute("DELETE FROM orchestrator.workers WHERE last_heartbeat < tenure.now() - interval '5 minutes'")
        assert server_ground.row("orchestrator.tasks")["status"] == "pending"


def _of_workers(ground: Ground) -> list[dict[str, object]]:
    """Workers, who leads them, and what they hold."""
    return ground.execute(
        "SELECT w.*, l.owner, l.until, t.status, t.worker_id FROM orchestrator.workers AS w "
        "LEFT JOIN tenure.lease AS l ON l.name = 'leader:orchestrator' "
        "LEFT JOIN orchestrator.tasks AS t ON true ORDER BY w.id"
    )


def test_a_leader_that_goes_leaves_the_lead_to_the_next(server_ground: Ground) -> None:
    """Its lease ran on for up to 30 s after its row had gone: the next one saw no leader, and its UPDATE failed."""
    for name in ("host-1-a", "host-2-b"):
        server_ground.execute("INSERT INTO orchestrator.workers (id, hostname, pool_size) VALUES (?, 'h', 1)", name)
    lead = "UPDATE orchestrator.workers SET is_leader = true WHERE id = ? RETURNING id"
    assert server_ground.execute(lead, "host-1-a") != []
    assert server_ground.execute(lead, "host-2-b") == []

    server_ground.execute("DELETE FROM orchestrator.workers WHERE id = 'host-1-a'")

    assert server_ground.execute(lead, "host-2-b") == [{"id": "host-2-b"}]


def test_an_operator_cannot_open_gates_or_change_policies_through_dot_config(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    """V11: set_gate and set_queues are an admin's, and so is the view that calls them."""
    before = server_ground.execute("SELECT key, value FROM substrate.dot_config ORDER BY key")

    with psycopg.connect(postgres_ground.login("operator"), autocommit=True) as operator:
        for key, value in (("queue.worker.enabled", "true"), ("queue.lease.duration_sec", "60")):
            with pytest.raises(InsufficientPrivilege):
                operator.execute("UPDATE substrate.dot_config SET value = %s WHERE key = %s", [value, key])

    assert server_ground.execute("SELECT key, value FROM substrate.dot_config ORDER BY key") == before


INTRUDER = """
CREATE FUNCTION {schema}.back() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN RETURN current_user; END $$;
GRANT USAGE ON SCHEMA {schema} TO profile_mallory;
"""


@pytest.mark.parametrize("schema", ["tenure", *PROFILES])
def test_a_schema_that_another_role_has_made_is_not_taken_over(
    postgres_url: str, postgres_ground: PostgresGround, schema: str
) -> None:
    """S06: what was in it became tenure_owner's, and a function with its owner's rights ran with ours."""
    postgres_ground.make_login("profile_mallory")
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        if schema != "tenure":
            with App(postgres_url, migrate="always", actor="me") as app:
                app.migrate()
        owner.execute(f'GRANT CREATE ON DATABASE "{owner.info.dbname}" TO profile_mallory'.encode())
        owner.execute("SET ROLE profile_mallory")
        owner.execute(f"CREATE SCHEMA {schema}".encode())
        owner.execute(INTRUDER.format(schema=schema).encode())
        owner.execute("RESET ROLE")

        with App(postgres_url, migrate="always", actor="me") as app:
            make = app.migrate if schema == "tenure" else partial(app.profiles.install, schema)
            with pytest.raises(Forbidden, match="profile_mallory"):
                make()

        assert owner.execute(f"SELECT {schema}.back()".encode()).fetchone() == ("profile_mallory",)
        owner.execute(f"ALTER SCHEMA {schema} OWNER TO CURRENT_USER; DROP FUNCTION {schema}.back".encode())
        with App(postgres_url, migrate="always", actor="me") as app:
            app.migrate()
            if schema != "tenure":
                app.profiles.install(schema)


TRAPS = """
CREATE TABLE public.caught (what text, who text DEFAULT current_user);
GRANT ALL ON public.caught TO PUBLIC;
GRANT CREATE, USAGE ON SCHEMA public TO profile_mallory;
"""

# Each trap notes that it was sprung, and by whom; with our owner's rights it would say tenure_owner.
SHADOWS = """
CREATE TEMP TABLE job (id uuid);
CREATE TEMP TABLE queue (name text, profile text);
CREATE TEMP TABLE gate (name text, is_open boolean);
CREATE TEMP TABLE job_queue (job_id uuid);
CREATE TEMP TABLE agent (login name, agent_name text);
CREATE FUNCTION public.spring(p_what text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.caught (what) VALUES (p_what); RETURN true; END $$;
CREATE FUNCTION public.btrim(text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('btrim'); RETURN $1; END $$;
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('now'); RETURN clock_timestamp(); END $$;
CREATE FUNCTION public.reach(json, text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('->>'); RETURN NULL; END $$;
CREATE OPERATOR public.->> (LEFTARG = json, RIGHTARG = text, FUNCTION = public.reach);
CREATE FUNCTION public.same(text, text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.spring('='); RETURN true; END $$;
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same);
SET search_path = pg_temp, public, tenure, substrate, pg_catalog;
"""

CALLS = (
    "SELECT substrate.fn_job_enqueue('k', 'key', 'me')",
    "SELECT substrate.fn_job_claim('w')",
    "SELECT substrate.fn_queue_heartbeat_tick('x', 'Codex')",
    "SELECT substrate.fn_queue_stale_check(5)",
    "SELECT substrate.fn_job_ack(NULL, 'w')",
    "SELECT substrate.fn_job_fail_or_retry(NULL, 'w', 'e')",
    "SELECT substrate.fn_job_move_to_dead_letter(NULL, 'e', 'w')",
    'SELECT automechanica.create_task(\'{"agent_name": "A", "task_type": "t"}\')',
    "SELECT automechanica.claim_task('A', 'w')",
    "SELECT automechanica.complete_task(NULL, 'w')",
    "SELECT automechanica.fail_task(NULL, 'w', '{}')",
    "INSERT INTO outbox.jobs (type) VALUES ('x')",
    "INSERT INTO agent_queue.agent_jobs (type) VALUES ('x')",
    "INSERT INTO orchestrator.tasks (type) VALUES ('x')",
    "INSERT INTO substrate.job_queue (job_kind, idempotency_key, actor) VALUES ('x', 'y', 'me')",
    "UPDATE substrate.dot_config SET value = '60'",
    "INSERT INTO orchestrator.workers (id, hostname, pool_size) VALUES ('w', 'h', 1)",
)


@pytest.fixture
def mallory(server_ground: Ground, postgres_ground: PostgresGround) -> Iterator[psycopg.Connection]:
    """A login with every role of ours that may create things in `public`, and has."""
    server_ground.open()
    url = postgres_ground.make_login("profile_mallory")
    for role in ROLES:
        server_ground.execute(f"GRANT tenure_{role} TO profile_mallory")
    for statement in TRAPS.strip().split(";\n"):
        server_ground.execute(statement)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SET client_min_messages = error")
            connection.execute(SHADOWS.encode())
            yield connection
    finally:
        server_ground.execute("DROP OWNED BY profile_mallory CASCADE")
        server_ground.execute("DROP TABLE public.caught")
        for role in ROLES:
            server_ground.execute(f"REVOKE tenure_{role} FROM profile_mallory")


def test_nothing_that_a_caller_put_in_front_is_used(server_ground: Ground, mallory: psycopg.Connection) -> None:
    assert mallory.execute("SELECT 'a'::text = 'b'::text, now() IS NOT NULL").fetchone() == (True, True)
    assert len(server_ground.execute("SELECT * FROM public.caught")) == 2, "otherwise this test could not fail"

    states = {statement: _state(mallory, statement) for statement in CALLS}

    # What is refused is refused by a rule of ours.
    assert {s: state for s, state in states.items() if state and not state.startswith(("TN", "22"))} == {}
    assert [row["what"] for row in server_ground.execute("SELECT what FROM public.caught")] == ["=", "now"]
    assert len(server_ground.rows("outbox.jobs")) == 1
    assert len(server_ground.rows("substrate.job_queue")) == 2


def _state(connection: psycopg.Connection, statement: str) -> str | None:
    try:
        connection.execute(statement.encode())
    except psycopg.Error as exc:
        return exc.sqlstate
    return None


def test_a_view_lends_its_reader_no_functions_of_the_owner(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    """Functions in a view run with the reader's rights: every one that ours use must be the reader's to call."""
    server_ground.open()
    server_ground.app.enqueue("x", queue="outbox")

    with psycopg.connect(postgres_ground.login("reader"), autocommit=True) as reader:
        for view, rights in VIEWS.items():
            if "reader" in rights.get("SELECT", "").split():
                reader.execute(f"SELECT * FROM {view}".encode())
