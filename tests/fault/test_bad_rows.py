"""A row that cannot be taken back stops no claim of any queue, and `doctor` names it (B13)."""

from __future__ import annotations

import sqlite3
import time

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.state import State
from tenure.observe.doctor import examine
from tenure.store.contract import Claim, Enqueue, Reap
from tenure.store.queries import GetJobs
from tests.fault.conftest import Place
from tests.fault.scale import PATIENCE

# Each engine in its own way: whatever takes the job out of its worker's hands is refused by the database itself.
POSTGRES = """
ALTER TABLE tenure.job ADD CONSTRAINT test_refuses_to_be_taken_back
    CHECK (kind <> 'cursed' OR state IN ('leased', 'running')) NOT VALID
"""
SQLITE = """
CREATE TRIGGER test_refuses_to_be_taken_back
BEFORE UPDATE ON tenure_job
WHEN NEW.kind = 'cursed' AND NEW.state NOT IN ('leased', 'running')
BEGIN
    SELECT RAISE(ABORT, 'this row refuses to be taken back');
END
"""
LONG_AGO = {
    "postgres": "UPDATE tenure.job SET lease_until = lease_until - interval '1 hour' WHERE kind = 'cursed'",
    "sqlite": "UPDATE tenure_job SET lease_until = lease_until - 3600000000 WHERE kind = 'cursed'",
}


def run_sql(place: Place, statement: str) -> None:
    if place.engine == "postgres":
        with psycopg.connect(place.url, autocommit=True) as connection:
            connection.execute(statement.encode())
        return
    bare = sqlite3.connect(place.path, isolation_level=None, timeout=30)
    bare.execute(statement)
    bare.close()


def enqueue(place: Place, kind: str, queue: str = "quick") -> JobId:
    [answer] = place.store.do(Enqueue([NewJob(new_job_id(), kind, queue=queue, max_attempts=2)]))
    return answer.id


def claim(place: Place, worker: str, queue: str = "quick", lease: float = 600) -> list[JobId]:
    return [one.id for one in place.store.do(Claim(WorkerId(worker), [queue], limit=10, lease_seconds=lease))]


def state_of(place: Place, job_id: JobId) -> State:
    [job] = place.store.do(GetJobs([job_id]))
    assert job is not None
    return job.state


@pytest.fixture
def cursed(place: Place) -> JobId:
    """A job whose lease has run out and whose row the database refuses to change back."""
    job_id = enqueue(place, "cursed")
    assert claim(place, "gone", lease=0.05) == [job_id]
    run_sql(place, POSTGRES if place.engine == "postgres" else SQLITE)
    [job] = place.store.do(GetJobs([job_id]))
    assert job is not None
    assert job.lease_until is not None
    deadline = time.monotonic() + PATIENCE
    while place.store.now() <= job.lease_until:
        assert time.monotonic() < deadline, "the store's clock does not move"
    return job_id


def test_claims_of_every_queue_go_on(place: Place, cursed: JobId) -> None:
    here, elsewhere = enqueue(place, "work"), enqueue(place, "work", "churn")

    assert claim(place, "w1", "churn") == [elsewhere]
    assert claim(place, "w2") == [here]
    assert state_of(place, cursed) is State.RUNNING


def test_others_whose_lease_ran_out_are_taken_back(place: Place, cursed: JobId) -> None:
    before, after = enqueue(place, "work"), enqueue(place, "work", "churn")
    assert claim(place, "also gone", lease=0.05) == [before]
    assert claim(place, "gone too", "churn", lease=0.05) == [after]
    taken: set[JobId] = set()
    deadline = time.monotonic() + PATIENCE
    while taken != {before, after}:
        assert time.monotonic() < deadline, f"taken back: {taken}"
        taken |= {one.job_id for one in place.store.do(Reap())}

    assert [state_of(place, one) for one in (before, after, cursed)] == [State.QUEUED, State.QUEUED, State.RUNNING]


def test_doctor_names_it_and_says_what_to_do(place: Place, cursed: JobId) -> None:
    run_sql(place, LONG_AGO[place.engine])

    [check] = [one for one in examine(place.store, place.url) if one.name == "stuck"]

    assert check.status == "wrong"
    assert cursed in check.says
    assert check.fix is not None
    assert cursed in check.fix
