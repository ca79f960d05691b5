"""Who may do what (S06, S07): functions and nothing else, each role its own, and no way to be somebody more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tenure.errors import AccessDenied
from tenure.store.contract import Enqueue, Revive
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListQueues
from tests.conformance.acts import new_job
from tests.postgres.conftest import ROLES

pytestmark = pytest.mark.postgres

CALLERS: Final = {
    "producer worker reader operator admin": "list_limiters now now_us to_us from_us schema_version schema_checksum "
    "schema_compatible_from get_jobs list_profiles list_workflows",
    "producer worker operator admin": "enqueue signal sweep_flow start_workflow join_workflow",
    "worker admin": "exchange claim settle start heartbeat append_events append_streams record_effect record_steps "
    "take_memo keep_memo use_tokens "
    "fill_group acquire_lease release_lease set_schedules tick_schedule roll_up "
    "write_agent_events read_events reserve_budget settle_budget",
    "worker operator admin": "reap wake remove_workers list_unremembered write_memories "
    "advance_workflows are_workflows_due tend_workflows",
    "worker reader operator admin": "list_queues list_jobs list_effects list_attempts list_gates list_schedules "
    "readable list_agent_events find_words find_near list_vectors get_memories list_memories list_steps "
    "read_stream list_streams get_group list_children read_metrics list_tasks list_escalations "
    "backlog count_backlog list_approvals count_approvals list_budgets",
    "reader operator admin": "count_jobs browse_jobs list_deaths list_limited prune_lag list_dead_letters "
    "group_dead_letters list_workers list_events follow_events list_audit summary standing newest prunable "
    "list_metrics count_memories workflow_edges read_gauges read_usage read_totals sum_usage list_memos",
    "operator admin": "cancel revive forget_steps resolve_effect clone edit_job triage_dead_letters pause_queues "
    "prune "
    "set_limiter block_limiter clear_limiter remove_limiter "
    "pause_schedules remove_schedules forget_memories forget_memos "
    "answer_escalation cancel_workflow retry_workflow decide_approval set_budgets raise_budgets remove_budgets",
    "admin": "set_queues remove_queues set_gate create_token list_tokens revoke_tokens touch_tokens find_token "
    "create_link open_session find_session touch_session list_sessions end_sessions keep_secret "
    "remember_request append_audit seal_audit list_sealed count_unsealed",
}
MATRIX: Final = {name: frozenset(roles.split()) for roles, names in CALLERS.items() for name in names.split()}
"""What each function's callers are, exactly. Whatever is not named here is a step inside another function."""

SCHEMA = "'tenure'::regnamespace"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_call_just_the_functions_that_are_its_own(admin: psycopg.Connection, role: str) -> None:
    rows = admin.execute(
        f"SELECT proname, has_function_privilege('tenure_{role}', oid, 'EXECUTE') FROM pg_proc "
        f"WHERE pronamespace = {SCHEMA}".encode()
    ).fetchall()

    assert set(MATRIX) <= {name for name, _ in rows}
    assert {name for name, may in rows if may} == {name for name, callers in MATRIX.items() if role in callers}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_no_right_on_any_table_or_sequence_or_on_the_schema(admin: psycopg.Connection, role: str) -> None:
    rights = "SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"
    tables = admin.execute(
        f"SELECT relname FROM pg_class WHERE relnamespace = {SCHEMA} AND relkind IN ('r', 'v') "
        f"AND (has_table_privilege('tenure_{role}', oid, '{rights}') "
        f"OR has_any_column_privilege('tenure_{role}', oid, 'SELECT, INSERT, UPDATE, REFERENCES'))".encode()
    ).fetchall()
    sequences = admin.execute(
        f"SELECT relname FROM pg_class WHERE relnamespace = {SCHEMA} AND CASE relkind "
        f"WHEN 'S' THEN has_sequence_privilege('tenure_{role}', oid, 'USAGE, SELECT, UPDATE') END".encode()
    ).fetchall()
    schema = admin.execute(
        f"SELECT has_schema_privilege('tenure_{role}', 'tenure', 'USAGE'), "
        f"has_schema_privilege('tenure_{role}', 'tenure', 'CREATE')".encode()
    ).fetchone()

    assert (tables, sequences, schema) == ([], [], (True, False))


def test_the_roles_are_siblings_without_any_power_of_their_own(admin: psycopg.Connection) -> None:
    roles = admin.execute(
        "SELECT rolname, rolcanlogin, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication "
        "FROM pg_roles WHERE rolname LIKE 'tenure\\_%' AND rolname NOT IN ('tenure_test', 'tenure_password')"
    ).fetchall()
    memberships = admin.execute(
        "SELECT roleid::regrole, member::regrole FROM pg_auth_members "
        "WHERE member IN (SELECT oid FROM pg_roles WHERE rolname LIKE 'tenure\\_%' AND NOT rolcanlogin)"
    ).fetchall()

    assert sorted(row[0] for row in roles) == sorted(f"tenure_{role}" for role in (*ROLES, "owner"))
    assert {row[1:] for row in roles} == {(False,) * 6}
    assert memberships == []


def test_everything_belongs_to_the_owner_and_nothing_to_everybody(admin: psycopg.Connection) -> None:
    owners = admin.execute(
        f"SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = {SCHEMA} "
        f"UNION SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = {SCHEMA} "
        f"UNION SELECT nspowner::regrole::text FROM pg_namespace WHERE oid = {SCHEMA} "
        f"UNION SELECT typowner::regrole::text FROM pg_type WHERE typnamespace = {SCHEMA} AND typtype = 'd'".encode()
    ).fetchall()
    public = admin.execute(
        f"SELECT oid::regprocedure::text FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS a "
        f"WHERE pronamespace = {SCHEMA} AND a.grantee = 0".encode()
    ).fetchall()

    assert owners == [("tenure_owner",)]
    assert public == []


def test_every_function_that_lends_its_owners_rights_pins_its_path(admin: psycopg.Connection) -> None:
    rows = admin.execute(
        f"SELECT oid::regprocedure::text, proconfig FROM pg_proc WHERE pronamespace = {SCHEMA} AND prosecdef".encode()
    ).fetchall()

    assert len(rows) > len(MATRIX) / 2
    loose = [name for name, config in rows if "search_path=pg_catalog, tenure, pg_temp" not in (config or [])]
    assert loose == []


def test_what_a_role_may_call_lends_the_owners_rights_or_touches_nothing(admin: psycopg.Connection) -> None:
    rows = admin.execute(
        f"SELECT proname FROM pg_proc WHERE pronamespace = {SCHEMA} AND NOT prosecdef "
        "AND has_function_privilege('tenure_admin', oid, 'EXECUTE')".encode()
    ).fetchall()

    assert {name for (name,) in rows} == {"now", "to_us", "from_us", "readable"}


def test_the_matrix_holds_for_a_real_login(login: Callable[[str], str], admin: psycopg.Connection) -> None:
    signatures = admin.execute(
        f"SELECT proname, pronargs FROM pg_proc WHERE pronamespace = {SCHEMA} AND pronargs <= 1 "
        f"AND coalesce(proargtypes[0], 'json'::regtype) = 'json'::regtype".encode()
    ).fetchall()

    for role in ROLES:
        with psycopg.connect(login(role), autocommit=True) as connection:
            denied = set()
            for name, arguments in signatures:
                try:
                    connection.execute(f"SELECT tenure.{name}({'NULL::json' if arguments else ''})".encode())
                except InsufficientPrivilege:
                    denied.add(name)
                except psycopg.Error:
                    pass  # allowed, and then refused for its empty argument
            assert denied == {name for name, _ in signatures if role not in MATRIX.get(name, ())}, role


WAYS_AROUND: Final = (
    "SELECT * FROM tenure.job",
    "INSERT INTO tenure.gate VALUES ('master', true, 'me', now())",
    "UPDATE tenure.job SET state = 'queued'",
    "DELETE FROM tenure.audit",
    "TRUNCATE tenure.event",
    "CREATE TABLE tenure.mine (x int)",
    "CREATE FUNCTION tenure.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER FUNCTION tenure.now() VOLATILE",
    "DROP SCHEMA tenure CASCADE",
    "SET ROLE tenure_owner",
    "SET SESSION AUTHORIZATION tenure_owner",
    "GRANT tenure_admin TO CURRENT_USER",
    "ALTER ROLE tenure_admin LOGIN",
    "CREATE TRIGGER t AFTER INSERT ON tenure.job EXECUTE FUNCTION tenure.now()",
)


@pytest.mark.parametrize("role", ROLES)
def test_there_is_no_way_around_the_functions(login: Callable[[str], str], role: str) -> None:
    with psycopg.connect(login(role), autocommit=True) as connection:
        for statement in WAYS_AROUND:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement.encode())


def test_a_store_says_access_denied_where_its_login_may_not(login: Callable[[str], str]) -> None:
    store = PostgresStore(login("producer"))
    try:
        [answer] = store.do(Enqueue([new_job()]))

        with pytest.raises(AccessDenied, match="tenure_operator"):
            store.do(Revive([answer.id], actor="me", reason="I want to"))
        with pytest.raises(AccessDenied):
            store.do(ListQueues())
    finally:
        store.close()
