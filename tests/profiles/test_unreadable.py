"""V7 at the doors of profiles: what JSON parsers cannot read hides no row beside it, and blocks no claim."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from tenure import App
from tenure.model.ids import new_job_id
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tests.profiles.ground import Ground, PostgresGround

pytestmark = pytest.mark.postgres

HOSTILE: Final = {
    "digits": "[" + "9" * 5000 + "]",
    "depth": "[" * 600 + "]" * 600,
    "exponent": "[1e999999]",
}
REFUSED: Final = {"nul": '["\\u0000"]', "surrogate": '["\\ud800"]'}
"""What PostgreSQL's own functions for JSON refuse, so that none of ours ever stores it."""
VIEWS: Final = {
    "agent_queue.agent_jobs": ("agent_queue", "id", "payload"),
    "outbox.jobs": ("outbox", "id", "payload"),
    "automechanica.tasks": ("FitmentAgent", "id", "payload"),
    "orchestrator.tasks": ("orchestrator", "id", "payload"),
}


@pytest.fixture
def logins(server_ground: Ground, postgres_ground: PostgresGround) -> Iterator[dict[str, psycopg.Connection]]:
    """Connections by role; the gates are open and one agent is there."""
    server_ground.open()
    server_ground.app.agent("FitmentAgent")
    server_ground.app.create_task({"agent_name": "FitmentAgent", "task_type": "first"})
    made = {
        role: psycopg.connect(postgres_ground.login(role), autocommit=True) for role in ("producer", "worker", "reader")
    }
    yield made
    for connection in made.values():
        connection.close()


def put(producer: psycopg.Connection, queue: str, payload: str, kind: str = "k", key: str | None = None) -> str:
    """A job by the one function that a producer has, with a payload as it stands."""
    job_id = new_job_id()
    keyed = "" if key is None else f', "k": "{key}"'
    jobs = f'[{{"i": "{job_id}", "p": {payload}{keyed}}}]'
    groups = f'{{"groups": [{{"queue": "{queue}", "kind": "{kind}", "jobs": {jobs}}}]}}'
    producer.execute("SELECT tenure.enqueue(%s::json)", [groups])
    return job_id


def shown(connection: psycopg.Connection, view: str, id_column: str, column: str) -> dict[str, Any]:
    rows = connection.execute(f"SELECT {id_column}::text, {column}::text FROM {view}".encode()).fetchall()
    return {job_id: None if value is None else json.loads(value) for job_id, value in rows}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_payload_that_cannot_be_read_hides_no_row_of_a_view(
    logins: dict[str, psycopg.Connection], view: str, name: str
) -> None:
    """Every look at the view failed for every reader, until somebody deleted the row."""
    queue, id_column, column = VIEWS[view]
    good = put(logins["producer"], queue, '{"n": 1}')
    bad = put(logins["producer"], queue, HOSTILE[name])

    found = shown(logins["reader"], view, id_column, column)

    assert found[good] == {"n": 1}
    assert set(found[bad]) == {"$unreadable"}


@pytest.mark.parametrize("name", REFUSED)
def test_text_that_no_column_holds_is_refused_at_every_door(logins: dict[str, psycopg.Connection], name: str) -> None:
    for queue, _, _ in VIEWS.values():
        with pytest.raises(psycopg.Error):
            put(logins["producer"], queue, REFUSED[name])
    assert sum(len(shown(logins["reader"], view, "id", "payload")) for view in VIEWS) == 1, "the first task alone"


@pytest.mark.parametrize("name", ["digits", "depth"])
def test_the_same_holds_for_002_and_its_dead_letters(
    server_ground: Ground, logins: dict[str, psycopg.Connection], name: str
) -> None:
    """A job of 002 has a key and so a hash of its payload. What has none is refused."""
    bad = put(logins["producer"], "substrate", HOSTILE[name], key="bad")
    [grant] = server_ground.app.claim(worker="w", queues="substrate")

    assert set(shown(logins["reader"], "substrate.job_queue", "job_id", "payload_json")[bad]) == {"$unreadable"}
    for _ in range(5):
        server_ground.app.fail(grant, "no", retry_after=0)
        for again in server_ground.app.claim(worker="w", queues="substrate"):
            grant = again
    assert set(shown(logins["reader"], "substrate.job_dead_letter", "job_id", "payload_json")[bad]) == {"$unreadable"}
    with pytest.raises(psycopg.Error):
        put(logins["producer"], "substrate", HOSTILE["exponent"], key="other")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_task_that_cannot_be_read_blocks_no_agent(logins: dict[str, psycopg.Connection], name: str) -> None:
    """`claim_task` failed at the same task each time, so its agent did nothing any more."""
    worker = logins["worker"]
    worker.execute(
        "SELECT automechanica.complete_task((automechanica.claim_task('FitmentAgent', 'w') ->> 'id')::uuid, 'w')"
    )
    bad = put(logins["producer"], "FitmentAgent", HOSTILE[name])
    good = put(logins["producer"], "FitmentAgent", '{"sku": 7}')

    claimed = [
        row[0]
        for row in (worker.execute("SELECT automechanica.claim_task('FitmentAgent', 'w')").fetchone() for _ in range(2))
        if row is not None
    ]

    assert [task["id"] for task in claimed] == [bad, good]
    assert set(claimed[0]["payload"]) == {"$unreadable"}
    failed = worker.execute("SELECT automechanica.fail_task(%s, 'w', '{}')", [bad]).fetchone()
    assert failed is not None
    assert failed[0]["ok"]


@pytest.mark.parametrize("name", HOSTILE)
def test_progress_that_cannot_be_read_hides_no_task(logins: dict[str, psycopg.Connection], name: str) -> None:
    worker = logins["worker"]
    row = worker.execute("SELECT automechanica.claim_task('FitmentAgent', 'w')").fetchone()
    assert row is not None
    task = row[0]
    hold = f'{{"i": "{task["id"]}", "t": {task["token"]}, "p": {HOSTILE[name]}}}'
    worker.execute("SELECT tenure.heartbeat(%s::json)", [f'{{"holds": [{hold}]}}'])
    fail = json.dumps({"rest": [{"i": task["id"], "t": task["token"], "o": "fail", "c": "error", "e": "no fit"}]})
    worker.execute("SELECT tenure.settle(%s::json)", [fail])

    [(told,)] = logins["reader"].execute("SELECT error_info FROM automechanica.tasks").fetchall()

    assert told == {"class": "error", "message": "no fit"}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_data_of_workflows_and_agent_events_hides_no_row(logins: dict[str, psycopg.Connection], name: str) -> None:
    job_id, run = new_job_id(), new_job_id()
    jobs = json.dumps(
        {"groups": [{"queue": "FitmentAgent", "kind": "k", "jobs": [{"i": job_id, "x": {"workflow_id": run}}]}]}
    )
    about = f'"id": "{run}", "name": "f", "profile": "automechanica", "total": 1, "policy": {{}}'
    tasks = f'[["{job_id}", "a", 0, 0, false, null]]'
    request = f'{{"workflow": {{{about}, "data": {HOSTILE[name]}}}, "jobs": {jobs}, "tasks": {tasks}, "last": true}}'
    logins["producer"].execute("SELECT tenure.start_workflow(%s::json)", [request])
    event = f'{{"agent": "FitmentAgent", "kind": "note", "data": {HOSTILE[name]}}}'
    logins["worker"].execute("SELECT tenure.write_agent_events(%s::json)", [f'{{"events": [{event}]}}'])

    [(data,)] = logins["reader"].execute("SELECT data FROM automechanica.workflows").fetchall()
    [(told,)] = logins["reader"].execute("SELECT data FROM automechanica.agent_events").fetchall()

    assert (set(data), set(told)) == ({"$unreadable"}, {"$unreadable"})


@pytest.mark.parametrize("number", ['"abc"', "1e300", "-1", "9" * 40, "{}", "null"])
def test_an_embedding_job_of_somebody_elses_making_hides_no_other(
    server_ground: Ground, logins: dict[str, psycopg.Connection], number: str
) -> None:
    server_ground.app.complete(server_ground.claim("FitmentAgent"))
    bad = put(logins["producer"], "embedding", f'{{"agent_event_id": {number}}}', kind="embedding")

    rows = logins["reader"].execute("SELECT id::text, agent_event_id FROM automechanica.embedding_jobs").fetchall()

    found: dict[str, int | None] = dict(rows)
    assert found.pop(bad) is None
    [event_id] = found.values()
    assert event_id is not None


def test_a_profile_can_be_installed_beside_a_job_that_cannot_be_read(postgres_url: str) -> None:
    """003's table takes over the jobs that its queue has already; one of them ended the installation."""
    with (
        App(postgres_url, migrate="always", actor="me") as app,
        psycopg.connect(postgres_url, autocommit=True) as owner,
    ):
        app.migrate()
        app.store.do(SetQueues({"orchestrator": QueuePolicy(profile="orchestrator")}, actor="me"))
        bad = put(owner, "orchestrator", HOSTILE["exponent"])

        app.profiles.install("orchestrator")

        assert set(shown(owner, "orchestrator.tasks", "id", "payload")[bad]) == {"$unreadable"}
