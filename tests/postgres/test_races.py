"""Races on PostgreSQL, staged: a winner holds the row until the other side is seen to wait for it, or to pass it by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

import tenure
from tenure.model.ids import JobId, WorkerId
from tenure.model.outcome import Completed, Rejected
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.store.admin import AcquireLease, AppendEvents, RemoveWorkers, SetQueues
from tenure.store.contract import Cancel, Claim, Clone, Enqueue, Heartbeat, Prune, Request, Revive, Settle, WorkerRow
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import GetJobs, ListAudit, ListEvents, ListWorkers
from tests.conformance.acts import new_job
from tests.conformance.engines import migrated_database
from tests.servers import PostgresServer
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    with migrated_database(postgres_server, has_grace=False) as made:
        yield made


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@contextmanager
def holding(url: str, statement: str, *values: Any) -> Iterator[psycopg.Connection]:
    """A transaction that has done `statement` and not yet committed."""
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode(), values)
        yield connection


def wait_until_blocked(url: str, sessions: int = 1) -> None:
    question = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as watcher:
        wait_until(lambda: (watcher.execute(question.encode()).fetchone() or (0,))[0] >= sessions)


def ended_job(store: PostgresStore, **fields: Any) -> JobId:
    """A job that was rejected: failed, with a dead letter."""
    [made] = store.do(Enqueue([new_job(**fields)]))
    [grant] = store.do(Claim(WorkerId("w1"), ["default"]))
    store.do(Settle([Rejected(grant.id, grant.token, "no good")]))
    return made.id


def cancelled_job(store: PostgresStore) -> JobId:
    """A job that has ended without a dead letter, so that a prune may clean it."""
    [made] = store.do(Enqueue([new_job()]))
    store.do(Cancel([made.id], actor="ann", reason="test"))
    return made.id


def test_a_prune_passes_by_what_a_revive_holds(store: PostgresStore, url: str) -> None:
    job_id = cancelled_job(store)

    with holding(url, "SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", job_id):
        pruned = store.do(Prune(older_than_seconds=0))

    assert pruned.cleaned == 0
    assert store.do(Prune(older_than_seconds=0)).cleaned == 1


def test_a_revive_that_waited_for_a_prune_finds_the_payload_gone(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    job_id = cancelled_job(store)
    prune = 'SELECT tenure.prune(\'{"limit": 10, "older_than_seconds": 0}\')'

    with holding(url, prune) as pruning:
        reviving = threads.submit(store.do, Revive([job_id], actor="ann", reason="again"))
        wait_until_blocked(url)
        pruning.commit()

    [answer] = reviving.result(15)
    assert answer.state is None
    [row] = store.do(ListAudit(limit=1))
    assert row.detail["why"] == "its payload was pruned"


def test_a_prune_that_comes_after_a_revive_leaves_the_job(store: PostgresStore) -> None:
    job_id = cancelled_job(store)
    store.do(Revive([job_id], actor="ann", reason="again"))

    store.do(Prune(older_than_seconds=0))

    [job] = store.do(GetJobs([job_id]))
    assert job is not None
    assert (job.state, job.payload) == (State.QUEUED, {})


def test_two_revives_of_one_job_make_it_queued_once(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    job_id = ended_job(store)
    revive = Revive([job_id], actor="ann", reason="again")

    with holding(url, "SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", job_id) as gate:
        both = [threads.submit(store.do, revive) for _ in range(2)]
        wait_until_blocked(url, 2)
        gate.commit()

    states = [future.result(15)[0].state for future in both]
    assert sorted(map(str, states)) == ["None", "queued"]


def test_two_revives_that_need_the_same_key_make_one_job_active(
    store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    jobs = [ended_job(store, key="k"), ended_job(store, key="k")]

    both = [threads.submit(store.do, Revive([job_id], actor="ann", reason="again")) for job_id in jobs]

    states = [future.result(15)[0].state for future in both]
    assert sorted(map(str, states)) == ["None", "queued"]
    whys = [row.detail["why"] for row in store.do(ListAudit(limit=2))]
    assert sorted(map(str, whys)) == ["None", "another job holds its key"]


def test_clones_of_many_at_once_take_a_key_once(store: PostgresStore, threads: ThreadPoolExecutor) -> None:
    job_id = ended_job(store, key="k")
    clones = [Clone({job_id: new_job().id}, actor="ann", reason="again") for _ in range(8)]

    answers = [future.result(15)[0] for future in [threads.submit(store.do, clone) for clone in clones]]

    assert sum(not answer.duplicate for answer in answers) == 1
    assert len({answer.id for answer in answers}) == 1


def test_a_named_lease_has_one_owner_however_many_ask(store: PostgresStore, threads: ThreadPoolExecutor) -> None:
    barrier = threading.Barrier(12)

    def ask(owner: str) -> tuple[bool, str, int]:
        barrier.wait(15)
        lease = store.do(AcquireLease("leader", owner, 60))
        return lease.acquired, lease.owner, lease.term

    answers = [future.result(15) for future in [threads.submit(ask, f"w{n}") for n in range(12)]]

    assert sum(acquired for acquired, _, _ in answers) == 1
    assert len({(owner, term) for _, owner, term in answers}) == 1


def test_a_lease_that_ran_out_is_taken_by_one_and_its_term_rises_by_one(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    first = store.do(AcquireLease("leader", "old", 60))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("UPDATE tenure.lease SET until = tenure.now() - interval '1 second'")

    with holding(url, "SELECT 1 FROM tenure.lease FOR UPDATE") as gate:
        both = [threads.submit(store.do, AcquireLease("leader", f"new{n}", 60)) for n in range(2)]
        wait_until_blocked(url, 2)
        gate.commit()

    answers = [future.result(15) for future in both]
    assert sorted(answer.acquired for answer in answers) == [False, True]
    assert {answer.term for answer in answers} == {first.term + 1}


def test_a_worker_that_speaks_while_it_is_being_removed_keeps_its_jobs(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    """The removal found it silent and waits for its job; meanwhile it beats. This profile lets silence take leases."""
    with tenure.App(url) as app:
        app.profiles.install("orchestrator")
    store.do(Enqueue([new_job(queue="orchestrator")]))
    [grant] = store.do(Claim(WorkerId("w1"), ["orchestrator"]))
    row = WorkerRow(WorkerId("w1"), "host", 1, queues=("orchestrator",))
    store.do(Heartbeat([], worker=row))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("UPDATE tenure.worker SET last_seen_at = last_seen_at - interval '1 hour'")

    with holding(url, "SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", grant.id) as gate:
        removing = threads.submit(store.do, RemoveWorkers(unseen_seconds=60))
        wait_until_blocked(url)
        gate.execute("UPDATE tenure.worker SET last_seen_at = tenure.now()")
        gate.execute("UPDATE tenure.job SET lease_until = lease_until + interval '1 minute' WHERE id = %s", [grant.id])
        gate.commit()

    assert removing.result(15) == []
    assert [seen.row.id for seen in store.do(ListWorkers())] == ["w1"]
    [settled] = store.do(Settle([Completed(grant.id, grant.token)]))
    assert settled.state == "succeeded"


@pytest.mark.parametrize("result", [pytest.param(None, id="no result"), pytest.param("1", id="a result")])
def test_a_completion_that_meets_a_heartbeat_counts(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor, result: str | None
) -> None:
    """The row has moved by the time the completion gets its lock."""
    store.do(Enqueue([new_job() for _ in range(3)]))
    grants = store.do(Claim(WorkerId("w1"), ["default"], limit=3))
    longer = "UPDATE tenure.job SET lease_until = lease_until + interval '1 minute'"

    with holding(url, longer) as beating:
        ending = threads.submit(store.do, Settle([Completed(grant.id, grant.token, result) for grant in grants]))
        wait_until_blocked(url)
        beating.commit()

    assert [settled.state for settled in ending.result(15)] == ["succeeded"] * 3


def test_a_completion_that_waited_while_its_job_was_taken_away_is_lost(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    store.do(Enqueue([new_job()]))
    [grant] = store.do(Claim(WorkerId("w1"), ["default"]))

    with holding(url, "UPDATE tenure.job SET token = token + 1, lease_owner = 'w2'") as taking:
        ending = threads.submit(store.do, Settle([Completed(grant.id, grant.token)]))
        wait_until_blocked(url)
        taking.commit()

    assert [settled.state for settled in ending.result(15)] == [None]
    [job] = store.do(GetJobs([grant.id]))
    assert job is not None
    assert job.state is State.RUNNING


def test_an_event_is_written_before_the_end_or_not_at_all(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    """The fence and the row are one step: an append that waited behind the end is refused."""
    from tenure.model.event import NewEvent

    store.do(Enqueue([new_job()]))
    [grant] = store.do(Claim(WorkerId("w1"), ["default"]))
    end = (
        "UPDATE tenure.job SET state = 'succeeded', finished_at = tenure.now(), lease_owner = NULL, lease_until = NULL"
    )

    with holding(url, end) as ending:
        appending = threads.submit(store.do, AppendEvents(grant.id, grant.token, [NewEvent("log")]))
        wait_until_blocked(url)
        ending.commit()

    assert appending.result(15) is False
    assert store.do(ListEvents(job_id=grant.id)) == []


def test_operators_and_workers_crossing_each_other_never_wait_in_a_circle(
    store: PostgresStore, threads: ThreadPoolExecutor
) -> None:
    """Everybody takes many rows at once, in every order that a caller may name them: locks are taken in one order."""
    store.do(SetQueues({"default": QueuePolicy(max_attempts=50)}, actor="ann"))
    jobs = [answer.id for answer in store.do(Enqueue([new_job() for _ in range(40)]))]
    rounds: list[Callable[[int], Request[Any]]] = [
        lambda n: Cancel(jobs[:: -1 if n % 2 else 1], actor="a", reason="r"),
        lambda n: Revive(jobs[:: 1 if n % 2 else -1], actor="b", reason="r"),
        lambda _: Claim(WorkerId("w1"), ["default"], limit=20),
        lambda _: RemoveWorkers([WorkerId("w1")]),
        lambda _: Prune(limit=5, older_than_seconds=3600),
    ]

    def act(which: int) -> None:
        for n in range(12):
            store.do(rounds[which](n))

    futures: list[Future[None]] = [threads.submit(act, which) for which in range(len(rounds))]
    for future in futures:
        future.result(60)

    assert store.stats().retries == 0, "a deadlock was met and tried again"


@pytest.mark.parametrize(
    "change", ["lease_until = lease_until + interval '1 minute'", "updated_at = now()", "state = 'running'"]
)
def test_a_claim_passes_by_a_held_job_that_another_session_is_changing(
    store: PostgresStore, url: str, change: str
) -> None:
    """Neither the claim nor the sweep of expired leases that it begins with waits for the other session (B11)."""
    store.do(Enqueue([new_job()]))
    [held] = store.do(Claim(WorkerId("w1"), ["default"]))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE tenure.job SET lease_until = now() - interval '1 hour'")
    [free] = store.do(Enqueue([new_job()]))
    impatient = PostgresStore(f"{url}?options=-clock_timeout%3D100")
    try:
        with holding(url, f"UPDATE tenure.job SET {change} WHERE id = %s", held.id):
            grants = impatient.do(Claim(WorkerId("w2"), ["default"], 5))
    finally:
        impatient.close()

    assert [grant.id for grant in grants] == [free.id]


def test_a_claim_does_not_wait_for_a_queued_job_that_another_session_is_changing(
    store: PostgresStore, url: str
) -> None:
    """The row has a newer version, which the other session has locked: the claim passes it by (B11)."""
    made = store.do(Enqueue([new_job() for _ in range(3)]))
    impatient = PostgresStore(f"{url}?options=-clock_timeout%3D100")
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("UPDATE tenure.job SET updated_at = updated_at WHERE id = %s", [made[0].id])
        with holding(url, "UPDATE tenure.job SET updated_at = updated_at WHERE id = %s", made[0].id):
            grants = impatient.do(Claim(WorkerId("w2"), ["default"], 5))
    finally:
        impatient.close()

    assert {grant.id for grant in grants} == {made[1].id, made[2].id}
