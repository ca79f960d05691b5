"""A worker that speaks nothing but SQL asks, waits, and does what was approved; each role does its own part only."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.model.ids import new_job_id
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "approvals.md"
ARGS = '{"eur":120}'


def call(url: str, function: str, request: Any) -> Any:
    """One call of a function, as `psql` would send it."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(f"SELECT tenure.{function}(%s::json)".encode(), [json.dumps(request)]).fetchone()
    assert row is not None
    return row[0]


def claimed(url: str) -> list[Any]:
    """The one job that a claim gives: [id, kind, token, …, steps]."""
    told = call(url, "exchange", {"claim": {"worker": "psql", "queues": ["default"], "limit": 1}})
    [[_, _, _, [grant]]] = told["granted"]["lines"]
    found: list[Any] = grant
    return found


def test_a_worker_in_sql_asks_as_the_guide_says_and_uses_the_approval(login: Callable[..., str]) -> None:
    worker, operator, reader = login("worker"), login("operator"), login("reader")
    job_id = new_job_id()
    call(worker, "enqueue", {"groups": [{"queue": "default", "kind": "order", "jobs": [{"i": job_id, "p": {}}]}]})
    token = claimed(worker)[2]
    [statement] = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    statement = statement.replace("JOB", job_id).replace('"t": 1', f'"t": {token}').replace("UUID", new_job_id())

    with psycopg.connect(worker, autocommit=True) as connection:
        connection.execute(statement.encode())
    [asked] = call(reader, "list_approvals", {"states": ["pending"]})
    approval, digest = asked[0], asked[5]
    assert (asked[1], asked[4], digest) == (job_id, ARGS, hashlib.sha256(ARGS.encode()).hexdigest())
    answer = {"id": approval, "voter": "maria", "choice": "approve", "args_hash": digest}
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(worker, "decide_approval", answer)
    with pytest.raises(psycopg.Error, match="another person has to answer"):
        call(operator, "decide_approval", {**answer, "voter": "psql"})
    assert call(operator, "decide_approval", answer)[10] == "granted"
    call(worker, "sweep_flow", {})

    grant = claimed(worker)
    [step] = grant[-1]["steps"]
    told = json.loads(step[6])
    assert (step[1], step[4], told["granted"], told["by"], told["args"]) == (
        "approve/refund", "done", True, ["maria"], ARGS,
    )  # fmt: skip
    effect = {"name": "refund", "state": "intended", "args": json.loads(ARGS), "approval": approval}
    held = {"job_id": job_id, "token": grant[2]}
    with pytest.raises(psycopg.Error, match="other arguments"):
        call(worker, "record_effect", {**held, "effect": {**effect, "args": {"eur": 121}}})
    assert call(worker, "record_effect", {**held, "effect": effect}) is not None
    assert call(reader, "list_approvals", {"ids": [approval]})[0][10] == "used"


def asked(worker: str) -> tuple[str, str, str]:
    """A fresh job's approval: the job, the approval, the hash."""
    job_id, approval = new_job_id(), new_job_id()
    call(worker, "enqueue", {"groups": [{"queue": "default", "kind": "order", "jobs": [{"i": job_id, "p": {}}]}]})
    value = {"id": approval, "name": "refund", "args": ARGS}
    step = {"key": "approve/refund", "kind": "approval", "state": "open", "value": value}
    suspend = {"i": job_id, "t": claimed(worker)[2], "o": "suspend", "w": "approval:refund", "steps": [step]}
    call(worker, "settle", {"rest": [suspend]})
    return job_id, approval, hashlib.sha256(ARGS.encode()).hexdigest()


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_second_of_two_that_answer_at_once_waits_for_the_first_and_finds_its_decision(
    url: str, is_committed: bool
) -> None:
    """Staged: the first has answered and holds the row; the second is seen to wait for it; then the first ends."""
    _, approval, digest = asked(url)
    answer = {"id": approval, "voter": "ann", "choice": "approve", "args_hash": digest}
    with psycopg.connect(url) as first, ThreadPoolExecutor(1) as pool:
        first.execute("SELECT tenure.decide_approval(%s::json)", [json.dumps(answer)])
        second = pool.submit(call, url, "decide_approval", {**answer, "voter": "bob", "choice": "deny"})
        wait_until(lambda: _waits_for(url, first.info.backend_pid))
        assert not second.done()
        first.commit() if is_committed else first.rollback()
        if is_committed:
            with pytest.raises(psycopg.Error, match="decided before: it is granted"):
                second.result(30)
        else:
            assert second.result(30)[10] == "denied"

    assert call(url, "list_approvals", {"ids": [approval]})[0][10] == ("granted" if is_committed else "denied")


def test_an_answer_that_comes_while_the_job_ends_is_refused(url: str) -> None:
    """Staged: the cancel has voided the approval and holds the row when the answer comes."""
    job_id, approval, digest = asked(url)
    answer = {"id": approval, "voter": "ann", "choice": "approve", "args_hash": digest}
    cancel = {"job_ids": [job_id], "actor": "ops", "reason": "not needed"}
    with psycopg.connect(url) as first, ThreadPoolExecutor(1) as pool:
        first.execute("SELECT tenure.cancel(%s::json)", [json.dumps(cancel)])
        second = pool.submit(call, url, "decide_approval", answer)
        wait_until(lambda: _waits_for(url, first.info.backend_pid))
        first.commit()
        with pytest.raises(psycopg.Error, match="has ended as cancelled"):
            second.result(30)


def _waits_for(url: str, pid: int) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_stat_activity AS a WHERE %s = ANY (pg_blocking_pids(a.pid)))", [pid]
        ).fetchone()
    return row is not None and row[0] is True


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"id": "x", "name": "refund", "args": "{}"},
        {"name": "refund", "args": "{}"},
        {"id": new_job_id(), "name": "refund", "args": {"eur": 1}},
        {"id": new_job_id(), "name": "refund", "args": "{"},
        {"id": new_job_id(), "name": " ", "args": "{}"},
        {"id": new_job_id(), "name": "refund", "args": "{}", "need": "many"},
        {"id": new_job_id(), "name": "refund", "args": "{}", "need": 101},
        {"id": new_job_id(), "name": "refund", "args": "{}", "expires": 0},
        {"id": new_job_id(), "name": "refund", "args": "{}", "on_expiry": "maybe"},
        {"id": new_job_id(), "name": "refund", "args": "{}", "ask": "ops"},
        {"id": new_job_id(), "name": "refund", "args": "{}", "ask": {"a": 1}},
        {"id": new_job_id(), "name": "refund", "args": "{}", "ask": [1]},
        {"id": new_job_id(), "name": "refund", "args": "{}", "ask": ["", "x"]},
    ],
    ids=range(15),
)
def test_a_question_in_sql_that_cannot_be_asked_is_refused(login: Callable[..., str], value: Any) -> None:
    worker = login("worker")
    job_id = new_job_id()
    call(worker, "enqueue", {"groups": [{"queue": "default", "kind": "order", "jobs": [{"i": job_id, "p": {}}]}]})
    token = claimed(worker)[2]
    step = {"key": "approve/refund", "kind": "approval", "state": "open", "value": value}
    suspend = {"i": job_id, "t": token, "o": "suspend", "w": "approval:refund", "steps": [step]}

    with pytest.raises(psycopg.Error) as refused:
        call(worker, "settle", {"rest": [suspend]})

    assert refused.value.sqlstate == "TN007"
    assert call(worker, "list_approvals", {}) == []


def test_only_a_login_of_the_role_admin_answers_in_the_name_of_a_group(login: Callable[..., str]) -> None:
    """An operator would only type the group; a server with the role admin has it from a token."""
    worker, operator, admin = login("worker"), login("operator"), login("admin")
    job_id = new_job_id()
    call(worker, "enqueue", {"groups": [{"queue": "default", "kind": "order", "jobs": [{"i": job_id, "p": {}}]}]})
    token = claimed(worker)[2]
    value = {"id": new_job_id(), "name": "refund", "args": ARGS, "ask": ["billing"]}
    step = {"key": "approve/refund", "kind": "approval", "state": "open", "value": value}
    call(
        worker, "settle", {"rest": [{"i": job_id, "t": token, "o": "suspend", "w": "approval:refund", "steps": [step]}]}
    )
    answer = {
        "id": value["id"], "voter": "ann", "choice": "approve", "args_hash": hashlib.sha256(ARGS.encode()).hexdigest(),
        "groups": ["billing"],
    }  # fmt: skip

    with pytest.raises(psycopg.Error, match="in the name of a group") as refused:
        call(operator, "decide_approval", answer)
    assert refused.value.sqlstate == "TN010"
    assert call(admin, "decide_approval", answer)[10] == "granted"
