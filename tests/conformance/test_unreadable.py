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
from tests.conformance.acts import Subject, claim, claim_one, complete, enqueue, get

HOSTILE = {
    "digits": "[" + "9" * 5000 + "]",
    "depth": "[" * 600 + "]" * 600,
    "surrogate": '["\\ud800"]',
}
POSTGRES_ONLY = {"nul": '["\\u0000"]', "exponent": "[1e999999]", "deeper": "[" * 5000 + "]" * 5000}


def store_payload(store: Subject, job_id: JobId, payload: str, column: str = "payload") -> None:
    """Write as a client with plain SQL would that has the right to."""
    if store.engine == "sqlite":
        with contextlib.closing(sqlite3.connect(store.store.url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute(f"UPDATE tenure_job SET {column} = ? WHERE id = ?", (payload, job_id))
    else:
        with psycopg.connect(store.store.url) as session:
            session.execute(f"UPDATE tenure.job SET {column} = %s WHERE id = %s".encode(), (payload, job_id))


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


@pytest.mark.parametrize("column", ["progress", "backoff"])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_read_beside_a_payload_stops_no_claim(store: Subject, name: str, column: str) -> None:
    """The answer to the claim could not be parsed: on SQLite every claim of the queue was refused, on PostgreSQL all
    that it granted was lost to its worker until the leases had run out, again and again."""
    bad, beside = enqueue(store), enqueue(store)
    store_payload(store, bad, HOSTILE[name], column)

    first, second = claim(store, 5)

    assert (first.id, second.id) == (bad, beside)
    assert set(first.extra(column)) == {"$unreadable"}
    assert {job.id for job in store.do(ListJobs()).items} == {bad, beside}
    assert complete(store, first).state == "succeeded"
