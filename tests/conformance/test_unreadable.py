"""V7: what plain SQL may store and a JSON parser may not read never hides the rows beside it."""

from __future__ import annotations

import contextlib
import sqlite3

import psycopg
import pytest

from tenure.model.ids import JobId
from tenure.model.outcome import Rejected
from tenure.store.contract import Settle
from tenure.store.queries import ListDeadLetters, ListJobs
from tests.conformance.acts import Subject, claim_one, enqueue, get

HOSTILE = {
    "digits": "[" + "9" * 5000 + "]",
    "depth": "[" * 600 + "]" * 600,
    "surrogate": '["\\ud800"]',
}
POSTGRES_ONLY = {"nul": '["\\u0000"]', "exponent": "[1e999999]", "deeper": "[" * 5000 + "]" * 5000}


def store_payload(store: Subject, job_id: JobId, payload: str) -> None:
    """Write as a client with plain SQL would that has the right to."""
    if store.engine == "sqlite":
        with contextlib.closing(sqlite3.connect(store.store.url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("UPDATE tenure_job SET payload = ? WHERE id = ?", (payload, job_id))
    else:
        with psycopg.connect(store.store.url) as session:
            session.execute("UPDATE tenure.job SET payload = %s WHERE id = %s", (payload, job_id))


@pytest.mark.parametrize("name", [*HOSTILE, *POSTGRES_ONLY])
def test_a_payload_that_cannot_be_read_is_shown_as_such_beside_the_others(store: Subject, name: str) -> None:
    if store.engine == "sqlite" and name in POSTGRES_ONLY:
        pytest.skip("SQLite's own check refuses it, or reads it")
    first, bad, last = (enqueue(store, payload={"n": n}) for n in range(3))
    store_payload(store, bad, (HOSTILE | POSTGRES_ONLY)[name])

    listed = {job.id: job.payload for job in store.do(ListJobs())}

    assert (listed[first], listed[last]) == ({"n": 0}, {"n": 2})
    assert set(listed[bad]) == {"$unreadable"}
    assert get(store, bad).payload == listed[bad]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_payload_that_cannot_be_read_is_granted_and_its_dead_letter_listed(store: Subject, name: str) -> None:
    bad = enqueue(store)
    store_payload(store, bad, HOSTILE[name])
    beside = enqueue(store, payload={"n": 1})

    grant = claim_one(store)
    store.do(Settle([Rejected(grant.id, grant.token, "unreadable")]))

    assert grant.id == bad
    assert claim_one(store).id == beside
    assert [set(letter.payload) for letter in store.do(ListDeadLetters())] == [{"$unreadable"}]
