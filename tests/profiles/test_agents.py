"""Specification 001, section 10: an agent never creates tasks for other agents, and its database login enforces it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from tests.profiles.ground import Ground, PostgresGround

pytestmark = pytest.mark.postgres

VIEW = "automechanica.tasks"
FORBIDDEN = "TN010"


@pytest.fixture
def fitment(server_ground: Ground, postgres_ground: PostgresGround) -> Iterator[psycopg.Connection]:
    """A connection of FitmentAgent's own login."""
    url = postgres_ground.make_login("agent_fitment")
    server_ground.execute("SELECT automechanica.grant_agent('agent_fitment', 'FitmentAgent')")
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
    server_ground.execute("SELECT automechanica.revoke_agent('agent_fitment', 'FitmentAgent')")


def create(connection: psycopg.Connection, agent: str) -> str:
    task = {"agent_name": agent, "task_type": "generate_fitment", "payload": {"sku": 7}}
    return str(ask(connection, "create_task", json.dumps(task)))


def ask(connection: psycopg.Connection, function: str, *values: Any) -> Any:
    places = ", ".join("%s" for _ in values)
    row = connection.execute(f"SELECT automechanica.{function}({places})".encode(), values).fetchone()
    assert row is not None
    return row[0]


def test_an_agent_works_through_the_whole_life_of_its_own_task(
    server_ground: Ground, fitment: psycopg.Connection
) -> None:
    task_id = server_ground.app.create_task({"agent_name": "FitmentAgent", "task_type": "generate_fitment"}).id

    leased = ask(fitment, "claim_task", "FitmentAgent", "host-1-a")
    started = ask(fitment, "start_task", task_id, "host-1-a")
    extended = ask(fitment, "extend_lease", task_id, "host-1-a", 60)
    failed = ask(fitment, "fail_task", task_id, "host-1-a", json.dumps({"message": "no fit", "tried": ["a", "b"]}))
    server_ground.clock.advance(5)
    again = ask(fitment, "claim_task", "FitmentAgent", "host-1-a")
    done = ask(fitment, "complete_task", task_id, "host-1-a", '{"fits": true}', again["token"])

    assert (leased["id"], leased["status"], leased["token"]) == (task_id, "leased", 1)
    assert started["task"]["status"] == "running"
    assert extended["task"]["lease_expires_at"].startswith("2026-01-01T00:01:00")
    assert failed["task"]["status"] == "pending"
    assert failed["task"]["error_info"] == {"message": "no fit", "class": "error", "tried": ["a", "b"]}
    assert done["task"]["status"] == "completed"
    assert server_ground.app.get(task_id).result == {"fits": True}


def test_an_agent_may_create_tasks_for_itself_and_for_nobody_else(
    server_ground: Ground, fitment: psycopg.Connection
) -> None:
    create(fitment, "FitmentAgent")

    with pytest.raises(psycopg.Error, match="may not act for agent 'PricingAgent'") as refused:
        create(fitment, "PricingAgent")

    assert refused.value.sqlstate == FORBIDDEN
    assert [row["agent_name"] for row in server_ground.rows(VIEW)] == ["FitmentAgent"]


def test_an_agent_may_not_touch_the_tasks_of_another(server_ground: Ground, fitment: psycopg.Connection) -> None:
    other = server_ground.app.create_task({"agent_name": "PricingAgent", "task_type": "refresh"}).id
    held = server_ground.claim("PricingAgent", worker="host-2-b")

    for function, values in (
        ("claim_task", ("PricingAgent", "host-1-a")),
        ("start_task", (other, "host-2-b")),
        ("extend_lease", (other, "host-2-b")),
        ("complete_task", (other, "host-2-b", None, held.token)),
        ("fail_task", (other, "host-2-b", "{}", held.token)),
    ):
        with pytest.raises(psycopg.Error) as refused:
            ask(fitment, function, *values)
        assert refused.value.sqlstate == FORBIDDEN, function

    assert server_ground.row(VIEW)["status"] == "leased"


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM automechanica.tasks",
        "INSERT INTO automechanica.tasks (agent_name, task_type) VALUES ('PricingAgent', 'x')",
        "SELECT * FROM automechanica.agent",
        "INSERT INTO automechanica.agent VALUES ('agent_fitment', 'PricingAgent', now(), 'me')",
        "SELECT automechanica.grant_agent('agent_fitment', 'PricingAgent')",
        "SELECT tenure.enqueue('{}')",
        "SELECT tenure.reap('{}')",
        "SELECT tenure.list_jobs('{}')",
        "SELECT tenure.bind_login('agent_fitment', 'PricingAgent')",
        "SELECT * FROM tenure.job",
        "SELECT automechanica.hold(NULL, NULL, NULL)",
    ],
)
def test_an_agent_has_no_way_around_its_functions(fitment: psycopg.Connection, statement: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        fitment.execute(statement.encode())


@pytest.mark.parametrize("acts_as_the_role", [False, True], ids=["by membership", "by SET ROLE"])
def test_members_of_a_role_that_is_bound_are_bound_too(
    server_ground: Ground, postgres_ground: PostgresGround, acts_as_the_role: bool
) -> None:
    """M9: a member of an agent's role had its rights, but no row of its own, and so created tasks for every agent."""
    postgres_ground.make_login("agent_team")
    url = postgres_ground.make_login("agent_member")
    server_ground.execute("SELECT automechanica.grant_agent('agent_team', 'FitmentAgent')")
    server_ground.execute("GRANT agent_team TO agent_member")
    other = server_ground.app.create_task({"agent_name": "PricingAgent", "task_type": "refresh"}).id
    try:
        with psycopg.connect(url, autocommit=True) as member:
            if acts_as_the_role:
                member.execute("SET ROLE agent_team")
            own = create(member, "FitmentAgent")
            for function, values in (
                ("create_task", (json.dumps({"agent_name": "PricingAgent", "task_type": "t"}),)),
                ("claim_task", ("PricingAgent", "host-1-a")),
                ("start_task", (other, "host-1-a")),
            ):
                with pytest.raises(psycopg.Error, match="may not act for agent 'PricingAgent'") as refused:
                    ask(member, function, *values)
                assert refused.value.sqlstate == FORBIDDEN, function
    finally:
        server_ground.execute("REVOKE agent_team FROM agent_member")
        server_ground.execute("SELECT automechanica.revoke_agent('agent_team', 'FitmentAgent')")

    assert {str(row["id"]) for row in server_ground.rows(VIEW)} == {other, own}


def test_a_lost_lease_is_told_and_changes_nothing(server_ground: Ground, fitment: psycopg.Connection) -> None:
    task_id = create(fitment, "FitmentAgent")
    ask(fitment, "claim_task", "FitmentAgent", "host-1-a")
    server_ground.clock.advance(31)

    answer = ask(fitment, "complete_task", task_id, "host-1-a")

    assert (answer["ok"], answer["error"]) == (False, "lease_lost")
    assert server_ground.row(VIEW)["status"] == "leased"


def test_a_login_that_may_do_more_is_not_bound(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    postgres_ground.login("worker")

    with pytest.raises(psycopg.Error, match="reaches beyond one agent"):
        server_ground.execute("SELECT automechanica.grant_agent('profile_worker', 'FitmentAgent')")


def test_a_login_whose_binding_was_revoked_may_do_nothing_more(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    url = postgres_ground.make_login("agent_gone")
    server_ground.execute("SELECT automechanica.grant_agent('agent_gone', 'SeoAgent')")
    server_ground.execute("SELECT automechanica.revoke_agent('agent_gone', 'SeoAgent')")

    with psycopg.connect(url, autocommit=True) as connection, pytest.raises(InsufficientPrivilege):
        create(connection, "SeoAgent")


def test_a_queue_of_another_profile_cannot_become_an_agents(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    postgres_ground.make_login("agent_sly")

    with pytest.raises(psycopg.Error, match="another profile"):
        server_ground.execute("SELECT automechanica.grant_agent('agent_sly', 'outbox')")


def test_the_orchestrator_creates_tasks_for_all(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    with psycopg.connect(postgres_ground.login("producer"), autocommit=True) as orchestrator:
        for agent in ("FitmentAgent", "PricingAgent"):
            create(orchestrator, agent)

    assert {row["agent_name"] for row in server_ground.rows(VIEW)} == {"FitmentAgent", "PricingAgent"}


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"agent_nam": "A"}, "no field 'agent_nam'"),
        ({"task_type": "t"}, "needs an agent_name"),
        ({"agent_name": "A", "task_type": "t", "priority": 4}, "Priority is 4"),
        ({"agent_name": "A"}, "needs a kind"),
        ({"agent_name": "outbox", "task_type": "t"}, "belongs to profile"),
        ({"agent_name": ["A"], "task_type": "t"}, "agent_name is a text, not"),
        ({"agent_name": "A", "task_type": 5}, "task_type is a text, not 5"),
        ({"agent_name": "A", "task_type": "t", "priority": "high"}, "priority is a whole number, not"),
        ({"agent_name": "A", "task_type": "t", "max_attempts": 2.5}, "max_attempts is a whole number, not 2.5"),
        ({"agent_name": "A", "task_type": "t", "workflow_id": "x"}, "workflow_id is a UUID, not"),
        ({"agent_name": "A", "task_type": "t", "available_at": 5}, "available_at is a moment as text, not 5"),
        (["A", "t"], "A task is an object with agent_name"),
        (None, "A task is an object with agent_name"),
    ],
)
def test_create_task_says_what_is_wrong(server_ground: Ground, task: Any, told: str) -> None:
    with (
        psycopg.connect(server_ground.app.url, autocommit=True) as connection,
        pytest.raises(psycopg.Error, match=told) as refused,
    ):
        ask(connection, "create_task", json.dumps(task))

    assert refused.value.sqlstate in {"TN007", FORBIDDEN}
    assert server_ground.rows(VIEW) == []


APP = """
import tenure

app = tenure.App()
fitment = app.agent("FitmentAgent")


@fitment.job(kind="generate_fitment")
def generate(ctx: tenure.Context, task: dict[str, int]) -> dict[str, int]:
    if task["sku"] == 7:
        ctx.enqueue("generate_fitment", {"sku": 8}, queue="FitmentAgent")
    return task
"""


def run_worker(url: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "tasks.py").write_text(APP)
    return subprocess.run(
        [sys.executable, "-P", "-m", "tenure.cli.main", "worker", "tasks:app", "--drain", "--log", "json", *options],
        capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=os.environ | {"TENURE_URL": url},
    )  # fmt: skip


def test_tenures_own_worker_runs_under_an_agents_login(
    server_ground: Ground, postgres_ground: PostgresGround, fitment: psycopg.Connection, tmp_path: Path
) -> None:
    """M9: it could not, so the rule held for hand-written SQL alone."""
    assert fitment.info.user == "agent_fitment"
    task_id = create(fitment, "FitmentAgent")
    foreign = server_ground.app.create_task({"agent_name": "PricingAgent", "task_type": "generate_fitment"}).id

    done = run_worker(postgres_ground.make_login("agent_fitment"), tmp_path, "-q", "FitmentAgent")

    assert done.returncode == 0, done.stderr
    assert server_ground.app.get(task_id).state == "succeeded", done.stderr
    assert server_ground.app.get(foreign).state == "queued"
    tasks = server_ground.execute(
        "SELECT state, lease_login, queue FROM tenure.job WHERE id <> ? AND kind = 'generate_fitment'", foreign
    )
    assert [(row["state"], row["lease_login"], row["queue"]) for row in tasks] == [
        ("succeeded", "agent_fitment", "FitmentAgent")
    ] * 2
    events = [json.loads(line)["event"] for line in done.stderr.splitlines() if line.startswith("{")]
    assert "upkeep_failed" not in events


def test_a_worker_under_an_agents_login_claims_from_no_other_queue(
    server_ground: Ground, postgres_ground: PostgresGround, fitment: psycopg.Connection, tmp_path: Path
) -> None:
    foreign = server_ground.app.create_task({"agent_name": "PricingAgent", "task_type": "generate_fitment"}).id
    claim = json.dumps({"worker": "w", "queues": ["FitmentAgent", "PricingAgent"], "limit": 1})

    with pytest.raises(psycopg.Error, match="may not claim from queue 'PricingAgent'") as refused:
        fitment.execute("SELECT tenure.claim(%s::json)", [claim])

    assert refused.value.sqlstate == FORBIDDEN
    assert server_ground.app.get(foreign).state == "queued"


def test_an_agents_login_has_the_functions_of_work_and_no_others(
    server_ground: Ground, fitment: psycopg.Connection
) -> None:
    rows = server_ground.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace "
        "AND has_function_privilege('agent_fitment', oid, 'EXECUTE')"
    )

    assert fitment.info.user == "agent_fitment"
    assert {row["proname"] for row in rows} == {
        "now",
        "now_us",
        "to_us",
        "from_us",
        "schema_version",
        "schema_checksum",
        "schema_compatible_from",
        "exchange",
        "claim",
        "settle",
        "start",
        "heartbeat",
        "append_events",
        "append_streams",
        "record_effect",
        "record_steps",
        "fill_group",
        "list_steps",
        "get_group",
        "list_children",
        "sweep_flow",
        "advance_workflows",
        "get_jobs",
        "list_queues",
        "list_profiles",
    }
