"""A grant belongs to the login that claimed (V5): id and token alone, which are no secrets, move nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest

from tenure.errors import Forbidden
from tenure.model.event import NewEvent
from tenure.model.ids import WorkerId
from tenure.model.job import Grant
from tenure.model.outcome import Completed, EffectRecord, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.step import NewGroup, NewStep
from tenure.store.admin import AppendEvents, RecordEffect, RemoveWorkers
from tenure.store.contract import Claim, Enqueue, Heartbeat, Hold, Request, Settle, Start, WorkerRow
from tenure.store.flow import FillGroup, RecordSteps
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job

pytestmark = pytest.mark.postgres

WORKER: Final = WorkerId("fitter-1")


@pytest.fixture
def stores(login: Callable[..., str]) -> Iterator[tuple[PostgresStore, PostgresStore, PostgresStore]]:
    """Two workers with a login each, and an operator."""
    opened = (
        PostgresStore(login("worker")),
        PostgresStore(login("worker", "_b")),
        PostgresStore(login("operator")),
    )
    yield opened
    for store in opened:
        store.close()


def claim_one(store: PostgresStore) -> Grant:
    store.do(Enqueue([new_job()]))
    [grant] = store.do(Claim(WORKER, ["default"], lease_seconds=300))
    return grant


def whole_row(admin: psycopg.Connection, job_id: str) -> Any:
    return admin.execute("SELECT j::text FROM tenure.job AS j WHERE j.id = %s", [job_id]).fetchone()


ENDS: Final[dict[str, Callable[[Grant], Outcome]]] = {
    "complete": lambda grant: Completed(grant.id, grant.token, result='"forged"'),
    "complete with more": lambda grant: Completed(grant.id, grant.token, jobs=(new_job(),), events=(NewEvent("x"),)),
    "fail": lambda grant: Failed(grant.id, grant.token, "forged"),
    "reject": lambda grant: Rejected(grant.id, grant.token, "forged"),
    "release": lambda grant: Released(grant.id, grant.token),
    "suspend": lambda grant: Suspended(grant.id, grant.token, "forged"),
    "suspend on steps": lambda grant: Suspended(
        grant.id, grant.token, "x", steps=(NewStep("s", kind="signal", state="open", awaits="signal:x"),)
    ),
    "suspend on children": lambda grant: Suspended(
        grant.id, grant.token, "x", groups=(NewGroup("children", (new_job(),)),)
    ),
    "stop": lambda grant: Stopped(grant.id, grant.token),
}


@pytest.mark.parametrize("end", ENDS)
def test_another_login_cannot_end_a_job_with_the_right_id_and_token(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], admin: psycopg.Connection, end: str
) -> None:
    holder, other, _ = stores
    grant = claim_one(holder)
    before = whole_row(admin, grant.id)

    [answer] = other.do(Settle([ENDS[end](grant)]))

    assert answer.lost
    assert whole_row(admin, grant.id) == before
    assert admin.execute("SELECT count(*) FROM tenure.job").fetchone() == (1,)
    [own] = holder.do(Settle([Completed(grant.id, grant.token)]))
    assert own.state == "succeeded"


@pytest.mark.parametrize("end", ENDS)
def test_another_login_is_not_told_how_a_grant_has_ended(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], end: str
) -> None:
    holder, other, _ = stores
    grant = claim_one(holder)
    outcome = ENDS[end](grant)
    [first] = holder.do(Settle([outcome]))

    [repeated] = holder.do(Settle([outcome]))
    [foreign] = other.do(Settle([outcome]))

    assert (repeated.state, foreign.lost) == (first.state, True)


HOLDS: Final[dict[str, tuple[Callable[[Grant], Request[Any]], Callable[[Grant, Any], bool]]]] = {
    "heartbeat": (
        lambda grant: Heartbeat([Hold(grant.id, grant.token, progress='"forged"')], lease_seconds=60),
        lambda grant, answer: answer.lost == {grant.id},
    ),
    "start": (
        lambda grant: Start([Hold(grant.id, grant.token, progress='"forged"')]),
        lambda _, answer: answer[0].lost,
    ),
    "events": (
        lambda grant: AppendEvents(grant.id, grant.token, [NewEvent("x")]),
        lambda _, answer: answer is False,
    ),
    "effect": (
        lambda grant: RecordEffect(grant.id, grant.token, EffectRecord("pay", "sent")),
        lambda _, answer: answer is None,
    ),
    "steps": (
        lambda grant: RecordSteps(grant.id, grant.token, [NewStep("s", value='"forged"')], jobs=[new_job()]),
        lambda _, answer: answer is None,
    ),
    "children": (
        lambda grant: FillGroup(grant.id, grant.token, NewGroup("children", (new_job(),)), total=1),
        lambda _, answer: answer is None,
    ),
}


@pytest.mark.parametrize("act", HOLDS)
def test_another_login_cannot_write_to_a_job_that_is_held(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], admin: psycopg.Connection, act: str
) -> None:
    holder, other, _ = stores
    grant = claim_one(holder)
    before = whole_row(admin, grant.id)
    request, is_refused = HOLDS[act]

    assert is_refused(grant, other.do(request(grant)))

    assert whole_row(admin, grant.id) == before
    written = "SELECT count(*) FROM tenure.{}"
    for table, rows in (("job", 1), ("event", 0), ("effect", 0), ("step", 0), ("job_group", 0)):
        assert admin.execute(written.format(table).encode()).fetchone() == (rows,), table
    assert not is_refused(grant, holder.do(request(grant)))


def test_a_claim_that_names_anothers_worker_is_not_granted_what_that_worker_holds(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore],
) -> None:
    holder, other, _ = stores
    grant = claim_one(holder)
    again = Claim(WORKER, ["default"], limit=5, lease_seconds=300, held=[])

    assert other.do(again) == []
    assert [one.id for one in holder.do(again)] == [grant.id]


def test_a_worker_is_changed_and_removed_by_its_own_login_and_by_operators(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], admin: psycopg.Connection
) -> None:
    holder, other, operator = stores
    grant = claim_one(holder)
    holder.do(Heartbeat([], worker=WorkerRow(WORKER, "here", 1)))
    before = whole_row(admin, grant.id)

    with pytest.raises(Forbidden, match="another login"):
        other.do(Heartbeat([], worker=WorkerRow(WORKER, "there", 2, status="error")))
    with pytest.raises(Forbidden, match="another login"):
        other.do(RemoveWorkers(ids=[WORKER]))

    assert whole_row(admin, grant.id) == before
    assert admin.execute("SELECT hostname, status FROM tenure.worker").fetchall() == [("here", "ok")]
    assert operator.do(RemoveWorkers(ids=[WORKER])) == [WORKER]
    assert admin.execute("SELECT state FROM tenure.job").fetchall() == [("queued",)]


def test_what_a_worker_without_a_row_holds_is_not_taken_back_by_another_login(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], admin: psycopg.Connection
) -> None:
    holder, other, _ = stores
    grant = claim_one(holder)
    before = whole_row(admin, grant.id)

    with pytest.raises(Forbidden, match="another login"):
        other.do(RemoveWorkers(ids=[WORKER]))

    assert whole_row(admin, grant.id) == before
    holder.do(RemoveWorkers(ids=[WORKER]))
    assert admin.execute("SELECT state FROM tenure.job").fetchall() == [("queued",)]


def test_a_name_that_another_login_has_registered_takes_nothing_back_from_its_holder(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], admin: psycopg.Connection
) -> None:
    """A worker need not register. Another login did so under its name, and then removed that name as its own."""
    holder, other, operator = stores
    grant = claim_one(holder)
    before = whole_row(admin, grant.id)
    other.do(Heartbeat([], worker=WorkerRow(WORKER, "there", 2)))

    with pytest.raises(Forbidden, match="another login"):
        other.do(RemoveWorkers(ids=[WORKER]))

    assert whole_row(admin, grant.id) == before
    assert operator.do(RemoveWorkers(ids=[WORKER])) == [WORKER]


def test_a_login_cannot_choose_after_how_long_the_workers_of_others_are_silent(
    stores: tuple[PostgresStore, PostgresStore, PostgresStore], admin: psycopg.Connection
) -> None:
    """With a time of nothing it removed every idle worker, and with its row the gate that drained it."""
    holder, other, operator = stores
    admin.execute(
        "CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$"
    )
    holder.do(Heartbeat([], worker=WorkerRow(WORKER, "here", 1)))
    admin.execute(
        "SELECT tenure.set_gate(json_build_object('name', 'worker:fitter-1', 'is_open', false, 'actor', 'ops'))"
    )

    assert other.do(RemoveWorkers(unseen_seconds=0.000001)) == []

    assert admin.execute("SELECT is_open FROM tenure.gate WHERE name = 'worker:fitter-1'").fetchall() == [(False,)]
    admin.execute("UPDATE tenure.worker SET last_seen_at = last_seen_at - interval '301 seconds'")
    assert other.do(RemoveWorkers(unseen_seconds=0.000001)) == [WORKER]
    holder.do(Heartbeat([], worker=WorkerRow(WORKER, "here", 1)))
    assert operator.do(RemoveWorkers(unseen_seconds=0.000001)) == [WORKER]


def test_logins_that_act_as_one_role_share_their_grants(login: Callable[..., str], admin: psycopg.Connection) -> None:
    """Logins of a vault come and go: `ALTER ROLE … SET role` lets them be one and the same to Tenure."""
    first, second = login("worker", "_c"), login("worker", "_d")
    if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'login_team'").fetchone():
        admin.execute("CREATE ROLE login_team NOLOGIN")
    admin.execute("GRANT tenure_worker TO login_team")
    admin.execute("GRANT login_team TO login_worker_c, login_worker_d")
    for name in ("login_worker_c", "login_worker_d"):
        admin.execute(f"ALTER ROLE {name} SET role = 'login_team'".encode())

    one, two = PostgresStore(first), PostgresStore(second)
    try:
        grant = claim_one(one)
        [answer] = two.do(Settle([Completed(grant.id, grant.token)]))
    finally:
        one.close()
        two.close()

    assert answer.state == "succeeded"
    assert admin.execute("SELECT lease_login FROM tenure.job").fetchall() == [("login_team",)]
