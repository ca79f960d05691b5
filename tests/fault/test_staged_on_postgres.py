"""Races on one row, staged with the winner holding it: the loser waits, and must then see what the winner left.

SQLite has one writer, so there a loser never waits amid a statement; the unstaged races cover it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import psycopg
import pytest

from tenure.model.clock import to_us
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.store.contract import Claim, Enqueue, Exchange, Heartbeat, Hold, Settle, Start, Store
from tenure.store.queries import GetJobs
from tests.conformance.engines import SteeredDatabase, migrated_database, open_store
from tests.fault.scale import PATIENCE
from tests.servers import PostgresServer

pytestmark = pytest.mark.postgres

T = TypeVar("T")

HEARTBEAT = "UPDATE tenure.job SET lease_until = lease_until + interval '1 second' WHERE id = %s"
STOP = "UPDATE tenure.job SET cancel_requested_at = tenure.now() WHERE id = %s"


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[Store]:
    with migrated_database(postgres_server, has_grace=False) as url:
        opened = open_store(url)
        yield opened
        opened.close()


def a_grant(store: Store) -> Grant:
    store.do(Enqueue([NewJob(id=new_job_id(), kind="work")]))
    [grant] = store.do(Claim(WorkerId("w1"), ["default"], lease_seconds=600))
    return grant


@contextmanager
def winner(store: Store, statement: str, job_id: JobId) -> Iterator[None]:
    """Another connection writes to the row first, and commits when the block ends."""
    with psycopg.connect(store.url) as connection:
        connection.execute(statement.encode(), [job_id])
        yield


def loser(store: Store, statement: str, grant: Grant, act: Callable[[], T]) -> T:
    """What `act` answers when it had to wait, amid its statement, for the winner to commit."""
    with ThreadPoolExecutor(1) as pool:
        with winner(store, statement, grant.id):
            answer = pool.submit(act)
            wait_until_blocked(store.url)
        return answer.result(PATIENCE)


def wait_until_blocked(url: str, sessions: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
            if row is not None and row[0] >= sessions:
                return
            time.sleep(0.005)
    raise AssertionError("no connection waited for the row")


ENDS: dict[str, tuple[Callable[[Grant], Outcome], str]] = {
    "complete": (lambda grant: Completed(grant.id, grant.token), "succeeded"),
    "complete with a result": (lambda grant: Completed(grant.id, grant.token, result="1"), "succeeded"),
    "complete with a follow-up": (
        lambda grant: Completed(grant.id, grant.token, jobs=(NewJob(id=new_job_id(), kind="next"),)),
        "succeeded",
    ),
    "fail": (lambda grant: Failed(grant.id, grant.token, "boom"), "queued"),
    "reject": (lambda grant: Rejected(grant.id, grant.token, "never"), "failed"),
    "release": (lambda grant: Released(grant.id, grant.token), "queued"),
    "give back": (lambda grant: Released(grant.id, grant.token, failure_class=None), "queued"),
    "suspend": (lambda grant: Suspended(grant.id, grant.token, "event"), "waiting"),
    "stop": (lambda grant: Stopped(grant.id, grant.token), "cancelled"),
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_that_waited_for_a_heartbeat_is_taken_in(store: Store, name: str) -> None:
    grant = a_grant(store)
    outcome, expected = ENDS[name]

    [settled] = loser(store, HEARTBEAT, grant, lambda: store.do(Settle([outcome(grant)])))

    assert settled.state == expected


@pytest.mark.parametrize("name", ENDS)
def test_an_end_that_waited_for_a_request_to_stop_is_cancelled(store: Store, name: str) -> None:
    grant = a_grant(store)
    outcome, _ = ENDS[name]

    [settled] = loser(store, STOP, grant, lambda: store.do(Settle([outcome(grant)])))

    assert settled.state == "cancelled"
    [job] = store.do(GetJobs([grant.id]))
    assert job is not None
    assert job.state == "cancelled"


def test_a_heartbeat_that_waited_for_another_is_taken_in(store: Store) -> None:
    grant = a_grant(store)

    beat = loser(store, HEARTBEAT, grant, lambda: store.do(Heartbeat([Hold(grant.id, grant.token, progress="[1]")])))

    assert beat.lost == frozenset()
    [job] = store.do(GetJobs([grant.id]))
    assert job is not None
    assert job.progress == [1]


def test_a_heartbeat_that_waited_for_a_request_to_stop_learns_of_it(store: Store) -> None:
    grant = a_grant(store)

    beat = loser(store, STOP, grant, lambda: store.do(Heartbeat([Hold(grant.id, grant.token)])))

    assert (beat.lost, beat.cancel_requested) == (frozenset(), frozenset({grant.id}))


def test_a_start_that_waited_for_a_heartbeat_is_taken_in(store: Store) -> None:
    grant = a_grant(store)

    [started] = loser(store, HEARTBEAT, grant, lambda: store.do(Start([Hold(grant.id, grant.token)])))

    assert started.state == "running"


# --- on a clock that moves while a statement waits -------------------------------------------------------------------


@pytest.fixture
def steered(postgres_server: PostgresServer) -> Iterator[tuple[Store, SteeredDatabase]]:
    database = SteeredDatabase(postgres_server)
    opened = open_store(database.url)
    yield opened, database
    opened.close()
    database.close()


def two_grants(store: Store, lease_seconds: float) -> list[Grant]:
    """Two jobs that are held, in the order in which their rows are locked: the first so long, the other for an hour."""
    store.do(Enqueue([NewJob(id=new_job_id(), kind="work") for _ in range(2)]))
    leases = (lease_seconds, 3600)
    return [store.do(Claim(WorkerId("w1"), ["default"], lease_seconds=lease))[0] for lease in leases]


LOCK = "SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE"


def test_a_success_that_came_too_late_is_no_failure(steered: tuple[Store, SteeredDatabase]) -> None:
    """The lease of a job has run out when its success comes, and a heartbeat that was sent in time, and waited,
    extends it while the success of another job waits. The success was then taken for a failed attempt: the job was
    queued again, with the class `error`."""
    store, clock = steered
    first, second = two_grants(store, 60)
    with ThreadPoolExecutor(2) as pool:
        with winner(store, LOCK, second.id):
            with winner(store, LOCK, first.id):
                clock.advance(10)
                beating = pool.submit(store.do, Heartbeat([Hold(first.id, first.token)], 60))
                wait_until_blocked(store.url)
                clock.advance(51)
                outcomes = [Completed(one.id, one.token) for one in (first, second)]
                settling = pool.submit(store.do, Settle(outcomes))
                wait_until_blocked(store.url, 2)
            assert beating.result(PATIENCE).lost == frozenset()
        answers = settling.result(PATIENCE)

    [job] = store.do(GetJobs([first.id]))
    assert job is not None
    assert [one.state for one in answers] == [None, "succeeded"]
    assert (job.state, job.token, job.failure_class) == ("running", first.token, None)


def test_a_claim_behind_a_settle_that_waited_leases_from_then_on(steered: tuple[Store, SteeredDatabase]) -> None:
    """The leases of what it granted counted from the moment at which the exchange was sent: after a long wait they had
    run out before their worker heard of them."""
    store, clock = steered
    [done, _] = two_grants(store, 600)
    store.do(Enqueue([NewJob(id=new_job_id(), kind="work")]))
    exchange = Exchange([Completed(done.id, done.token)], Claim(WorkerId("w2"), ["default"], lease_seconds=10))
    with ThreadPoolExecutor(1) as pool:
        with winner(store, LOCK, done.id):
            exchanging = pool.submit(store.do, exchange)
            wait_until_blocked(store.url)
            clock.advance(60)
        exchanged = exchanging.result(PATIENCE)

    [grant] = exchanged.grants
    assert grant.lease_until_us == to_us(clock.now()) + 10_000_000
