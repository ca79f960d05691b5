"""M7: what a specification forbids is forbidden at every door: Python, the command line's requests, plain SQL."""

from __future__ import annotations

import json

import psycopg
import pytest

from tenure.errors import InvalidArgument, TenureError
from tenure.model.ids import WorkerId, new_job_id
from tenure.store.contract import Claim, Enqueue, Heartbeat, WorkerRow
from tests.conformance.acts import new_job
from tests.profiles.ground import Ground


def refused(ground: Ground, statement: str, *values: object) -> str:
    """What the database says to a statement that it must refuse."""
    with pytest.raises(Exception, match=r".") as caught:
        ground.execute(statement, *values)
    return str(caught.value)


@pytest.mark.parametrize("priority", [-1, -5])
def test_a_negative_priority_of_002_is_refused_from_python(ground: Ground, priority: int) -> None:
    ground.open()

    with pytest.raises(InvalidArgument, match=f"priority is {priority}"):
        ground.app.enqueue("k", {}, queue="substrate", key="a", actor="me", priority=priority)

    assert ground.rows("substrate.job_queue") == []
    ground.app.enqueue("k", {}, queue="substrate", key="a", actor="me", priority=0)


@pytest.mark.parametrize("priority", [-1, 4, 30])
def test_priorities_of_001_are_0_to_3_from_python(ground: Ground, priority: int) -> None:
    ground.open()
    ground.app.agent("FitmentAgent")
    ground.app.enqueue("task", {}, queue="FitmentAgent", priority=3)

    with pytest.raises(InvalidArgument, match="priorities from 0 to 3"):
        ground.app.enqueue("task", {}, queue="FitmentAgent", priority=priority)

    assert len(ground.rows("automechanica.tasks")) == 1


@pytest.mark.parametrize("door", ["outbox", "default", "substrate"])
def test_a_blank_actor_is_refused_from_python(ground: Ground, door: str) -> None:
    ground.open()

    with pytest.raises(InvalidArgument, match="actor"):
        ground.app.store.do(Enqueue([new_job(queue=door, actor=" ", key="k")]))


def test_a_blank_kind_is_refused_at_every_door(ground: Ground) -> None:
    with pytest.raises(InvalidArgument):
        ground.app.store.do(Enqueue([new_job(" ")]))
    with pytest.raises(TenureError):
        ground.app.enqueue(" ")
    with pytest.raises(InvalidArgument):
        ground.app.store.do(Enqueue([new_job("two\nlines")]))


@pytest.mark.parametrize("name", ["", " ", "w" * 501, "w" * 9000], ids=["empty", "blank", "long", "very long"])
def test_a_worker_without_a_name_that_tells_it_is_refused(ground: Ground, name: str) -> None:
    row = WorkerRow(WorkerId(name), "host", 1)
    for request in (Claim(WorkerId(name), ["default"]), Heartbeat([], worker=row)):
        with pytest.raises(InvalidArgument, match="1 to 500 characters"):
            ground.app.store.do(request)


def test_a_job_is_cancelled_whose_worker_has_the_longest_name(ground: Ground) -> None:
    """PostgreSQL notifies of at most 8,000 bytes: the cancel of a job whose worker had a longer name failed, and with
    it that of every other job of the same request."""
    ids = [ground.app.enqueue("k").id for _ in range(2)]
    [grant] = ground.app.store.do(Claim(WorkerId("\N{GRINNING FACE}" * 500), ["default"]))

    ground.app.cancel_many(ids, actor="ops", reason="no longer wanted")

    assert ground.app.heartbeat(grant).cancel_requested == {grant.id}


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("queue", "kind", "row", "why"),
    [
        ("default", " ", {}, "job_kind_not_blank"),
        ("default", "a\tb", {}, "job_kind_not_blank"),
        ("default", "k", {"x": {"actor": " "}}, "job_actor_not_blank"),
        ("substrate", "k", {"r": -5, "k": "key"}, "priorities from 0"),
    ],
)
def test_tenure_enqueue_refuses_the_same_from_plain_sql(
    server_ground: Ground, queue: str, kind: str, row: dict[str, object], why: str
) -> None:
    server_ground.open()
    job = {"i": new_job_id(), "p": {}, **row}
    request = {"groups": [{"queue": queue, "kind": kind, "jobs": [job]}]}

    assert why in refused(server_ground, "SELECT tenure.enqueue(?::json)", json.dumps(request))
    assert why != "job_kind_not_blank" or server_ground.execute("SELECT 1 FROM tenure.job") == []


@pytest.mark.postgres
@pytest.mark.parametrize(
    "insert",
    [
        "agent_queue.agent_jobs (type, max_attempts) VALUES ('k', 0)",
        "automechanica.tasks (agent_name, task_type, max_attempts) VALUES ('A', 'k', 0)",
        "substrate.job_queue (job_kind, idempotency_key, actor, max_attempts) VALUES ('k', 'a', 'me', -1)",
        "orchestrator.tasks (type, max_retries) VALUES ('k', -1)",
        "orchestrator.tasks (type, max_retries) VALUES ('k', 2147483647)",
        "outbox.jobs (type, max_attempts) VALUES ('k', 0)",
    ],
)
def test_an_insert_says_how_often_a_job_may_be_attempted(server_ground: Ground, insert: str) -> None:
    """It was the error of a domain, or of the addition, with a page of our own statements as its context."""
    server_ground.open()

    with pytest.raises(psycopg.Error, match="A job is attempted 1 to") as refused:
        server_ground.execute(f"INSERT INTO {insert}")

    assert refused.value.sqlstate == "TN007"
    assert server_ground.execute("SELECT 1 FROM tenure.job") == []


@pytest.mark.postgres
def test_tenure_claim_refuses_a_blank_worker(server_ground: Ground) -> None:
    claim = json.dumps({"worker": "", "queues": ["default"], "limit": 1})

    assert "needs a name" in refused(server_ground, "SELECT tenure.claim(?::json)", claim)


NO_UUID = "no-uuid"
INSERTS: dict[str, tuple[str, str]] = {
    "agent_queue.agent_jobs": ("(type, {}) VALUES ('k', ?)", "created_by_user_id requested_by_user_id id"),
    "automechanica.tasks": ("(agent_name, task_type, {}) VALUES ('A', 'k', ?)", "workflow_id available_at id"),
    "substrate.job_queue": (
        "(job_kind, idempotency_key, actor, {}) VALUES ('k', 'a', 'me', ?)",
        "run_id scheduled_at job_id",
    ),
    "orchestrator.tasks": ("(type, {}) VALUES ('k', ?)", "id"),
    "outbox.jobs": ("(type, {}) VALUES ('k', ?)", "id"),
}


@pytest.mark.parametrize(("view", "column"), [(view, one) for view in INSERTS for one in INSERTS[view][1].split()])
def test_what_is_no_uuid_and_no_moment_is_refused_by_a_plain_insert(ground: Ground, view: str, column: str) -> None:
    """SQLite's views kept such an id, that PostgreSQL refuses in a move, and ran a job with such a moment at once."""
    ground.open()
    rest = INSERTS[view][0].format(column)

    refused(ground, f"INSERT INTO {ground.view(view)} {rest}", NO_UUID)

    assert ground.rows(view) == []


def test_a_uuid_is_kept_in_its_canonical_form_however_it_is_spelled(ground: Ground) -> None:
    own = "5F0C6F9E-7A7B-4D8E-9A3E-0D8F2B1C4E5A"
    view = ground.view("automechanica.tasks")

    ground.execute(f"INSERT INTO {view} (agent_name, task_type, workflow_id, id) VALUES ('A', 'k', '{own}', '{own}')")

    row = ground.row("automechanica.tasks")
    assert (str(row["workflow_id"]), str(row["id"])) == (own.lower(), own.lower())
    assert [job.id for job in ground.app.jobs(workflow_id=own).items] == [own.lower()]


@pytest.mark.parametrize("other", ["'k', '{\"b\": 2}'", "'other', '{\"a\": 1}'"])
def test_an_id_that_belongs_to_another_job_is_refused_by_a_plain_insert(ground: Ground, other: str) -> None:
    """V15: on SQLite the INSERT was answered as if it had found its own job."""
    view, own = ground.view("outbox.jobs"), "5f0c6f9e-7a7b-4d8e-9a3e-0d8f2b1c4e5a"
    insert = f"INSERT INTO {view} (id, type, payload) VALUES ('{own}', "
    ground.execute(f"{insert}'k', '{{\"a\": 1}}')")

    assert "belongs to another job" in refused(ground, f"{insert}{other})")

    assert [(row["type"], row["payload"]) for row in ground.rows("outbox.jobs")] == [("k", '{"a": 1}')]
    ground.execute(f"{insert}'k', '{{\"a\":1}}')")
    assert len(ground.rows("outbox.jobs")) == 1
