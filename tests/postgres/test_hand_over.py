"""The job that an enqueue hands over: granted in its own transaction to a worker that has offered to take one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tenure.model.ids import JobId, Token, WorkerId, new_job_id
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed
from tenure.model.policy import QueuePolicy
from tenure.store.admin import RemoveWorkers, SetGate, SetQueues
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Exchanged, Heartbeat, WorkerRow
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job
from tests.postgres.test_races import holding, wait_until_blocked
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres

ENQUEUE = "SELECT tenure.enqueue_one('default', 'work', %s, '{}', NULL, NULL, true)"
CLAIM = "SELECT tenure.claim_few('w1', 'default', 1, NULL, NULL, NULL, NULL, false, false, true, true)"


def set_clock(admin: psycopg.Connection, at: str) -> None:
    """The database's clock stands still: however slow the machine is, an offer is as fresh as the test says."""
    clock = (
        f"CREATE OR REPLACE FUNCTION tenure.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '{at}' $$"
    )
    admin.execute(clock.encode())


@pytest.fixture(autouse=True)
def _clock(admin: psycopg.Connection) -> None:
    set_clock(admin, "2030-01-01 00:00:00Z")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def listener(url: str) -> Iterator[psycopg.Connection]:
    """The session that listens for all workers of a test."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("SELECT tenure.stand_by(name) FROM unnest(ARRAY['w1', 'w2', 'w3']) AS name")
        yield session


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def claim(store: PostgresStore, worker: str = "w1", limit: int = 1, **fields: Any) -> Exchanged:
    return store.do(Exchange((), Claim(WorkerId(worker), ["default"], limit=limit, **fields)))


def offer(store: PostgresStore, worker: str = "w1", **fields: Any) -> bool:
    """A claim that finds nothing, of a worker that then sleeps."""
    answer = claim(store, worker, wants_wake=True, offers=True, **fields)
    assert not answer.grants
    return answer.is_offered


def enqueue(store: PostgresStore, job: NewJob | None = None) -> JobId:
    made = job or new_job()
    store.do(Enqueue([made]))
    return made.id


def row(admin: psycopg.Connection, job: str) -> tuple[Any, ...]:
    """State, token, attempt and owner of a job."""
    [found] = admin.execute("SELECT state, token, attempt, lease_owner FROM tenure.job WHERE id = %s", [job]).fetchall()
    return tuple(found)


def offers(admin: psycopg.Connection) -> list[str]:
    """Who offers."""
    found = admin.execute("SELECT worker FROM tenure.waiter WHERE offered_until IS NOT NULL ORDER BY worker")
    return [worker for (worker,) in found]


def hang_up(listener: psycopg.Connection, admin: psycopg.Connection) -> None:
    """End the session that listens, and wait until the server knows."""
    listener.close()
    wait_until(lambda: not admin.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'").fetchall())


def waiters(admin: psycopg.Connection) -> list[str]:
    return [worker for (worker,) in admin.execute("SELECT worker FROM tenure.waiter ORDER BY worker")]


def heard(admin: psycopg.Connection) -> list[str]:
    """What was notified since the session listens."""
    admin.execute("SELECT 1")
    return [note.payload for note in admin.notifies(timeout=0)]


HANDED = ("running", 1, 1, "w1")
QUEUED = ("queued", 0, 0, None)


# --- what is handed over ----------------------------------------------------------------------------------------------


def test_nothing_is_handed_to_a_worker_that_is_gone(
    store: PostgresStore, admin: psycopg.Connection, listener: psycopg.Connection
) -> None:
    """Killed, or cut off so that the server noticed it: the offer is fresh, and nobody is there any more."""
    assert offer(store)
    hang_up(listener, admin)
    admin.execute("LISTEN tenure")

    job = enqueue(store)

    assert row(admin, job) == QUEUED
    assert heard(admin) == ["default"]
    assert offers(admin) == [], "and nobody asks for it again"


def test_two_that_find_nobody_there_hand_nothing_over(
    store: PostgresStore, url: str, admin: psycopg.Connection, listener: psycopg.Connection
) -> None:
    """Who finds nobody holds the lock itself: another must not take that for the worker."""
    assert offer(store)
    hang_up(listener, admin)

    with holding(url, ENQUEUE, new_job_id()):
        job = enqueue(store)

    assert row(admin, job) == QUEUED


def test_the_job_is_granted_once_the_enqueue_returns_and_the_word_names_it(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    assert offer(store)
    admin.execute("LISTEN tenure")

    job = enqueue(store)

    assert row(admin, job) == HANDED
    assert offers(admin) == []
    assert heard(admin) == [f"granted:w1:{job}"]


def test_a_second_job_waits_for_a_claim(store: PostgresStore, admin: psycopg.Connection) -> None:
    offer(store)
    enqueue(store)
    admin.execute("LISTEN tenure")

    second = enqueue(store)

    assert row(admin, second) == QUEUED
    assert heard(admin) == ["default"]


def test_the_row_is_as_a_claim_would_leave_it(store: PostgresStore, admin: psycopg.Connection) -> None:
    offer(store, lease_seconds=45.0)
    handed = enqueue(store)
    claimed = enqueue(store)
    claim(store, lease_seconds=45.0)

    look = "SELECT state, token, attempt, lease_owner, lease_until - claimed_at, started_at = claimed_at, "
    look += "updated_at = claimed_at, is_due, crashes FROM tenure.job WHERE id = %s"
    one, other = (admin.execute(look.encode(), [job]).fetchall() for job in (handed, claimed))
    assert one == other


def test_a_queue_whose_workers_start_by_themselves_gives_a_lease_only(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    store.do(SetQueues({"default": QueuePolicy(start_on_claim=False)}, "t"))
    offer(store)

    job = enqueue(store)

    assert row(admin, job)[0] == "leased"
    [grant] = claim(store, offered=True).grants
    assert not grant.started


@pytest.mark.parametrize(("priority", "is_handed"), [(-1, True), (0, False), (1, False)])
def test_a_job_that_a_claim_would_take_first_is_left_to_a_claim_together_with_this_one(
    store: PostgresStore, admin: psycopg.Connection, url: str, priority: int, is_handed: bool
) -> None:
    old = new_job(priority=priority)
    with psycopg.connect(url) as caller:
        store.enqueue_on(caller, Enqueue([old]))
        offer(store)  # which cannot see it yet
    admin.execute("LISTEN tenure")

    job = enqueue(store)

    assert row(admin, job) == (HANDED if is_handed else QUEUED)
    assert heard(admin) == [f"granted:w1:{job}" if is_handed else "default"]
    order = [job, old.id] if is_handed else [old.id, job]
    assert [grant.id for grant in claim(store, limit=10, offered=True).grants] == order


def test_a_repeated_enqueue_hands_nothing_over(store: PostgresStore, admin: psycopg.Connection) -> None:
    offer(store)
    job = new_job()
    enqueue(store, job)
    offer(store, "w2")

    enqueue(store, job)

    assert row(admin, job.id) == HANDED
    assert offers(admin) == ["w2"]


def test_the_exchange_that_settles_the_last_job_may_offer_and_take_nothing(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    offer(store)
    first = enqueue(store)
    done = Completed(first, Token(1))

    answer = store.do(Exchange([done], Claim(WorkerId("w1"), ["default"], limit=0, offers=True)))

    assert (answer.grants, answer.is_offered) == ([], True)
    assert row(admin, enqueue(store)) == HANDED


# --- what is not ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "end"), [("00:00:02.499Z", HANDED), ("00:00:02.5Z", QUEUED)])
def test_an_offer_does_not_outlive_the_moment(
    store: PostgresStore, admin: psycopg.Connection, at: str, end: tuple[Any, ...]
) -> None:
    offer(store)
    set_clock(admin, f"2030-01-01 {at}")

    assert row(admin, enqueue(store)) == end


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("UPDATE tenure.queue SET paused_at = now()", id="paused"),
        pytest.param("UPDATE tenure.queue SET concurrency = 3", id="a limited queue"),
        pytest.param("UPDATE tenure.queue SET concurrency_per_key = 3", id="limited keys"),
        pytest.param("UPDATE tenure.queue SET events = true", id="events"),
        pytest.param("UPDATE tenure.queue SET aging_seconds = 60", id="aging"),
        pytest.param("UPDATE tenure.queue SET lease_max_seconds = 60", id="too long a lease"),
        pytest.param("INSERT INTO tenure.gate VALUES ('worker', false, 't', now())", id="no workers"),
        pytest.param("INSERT INTO tenure.gate VALUES ('notify', false, 't', now())", id="no notifications"),
    ],
)
def test_nothing_is_handed_over_where_a_claim_would_have_more_to_judge(
    store: PostgresStore, admin: psycopg.Connection, change: str
) -> None:
    offer(store, lease_seconds=61.0)
    admin.execute(change.encode())

    assert row(admin, enqueue(store)) == QUEUED
    assert offers(admin) == ["w1"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("state = 'running', lease_owner = 'v', lease_until = tenure.now()", id="a lease ran out"),
        pytest.param("is_due = false, run_at = tenure.now()", id="a job came due"),
    ],
)
def test_a_claim_goes_first_where_there_is_more_to_do_than_to_grant(
    store: PostgresStore, admin: psycopg.Connection, change: str
) -> None:
    admin.execute(
        "CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$"
    )
    other = enqueue(store, new_job(delay_seconds=3600.0))
    offer(store)
    admin.execute(f"UPDATE tenure.job SET {change} WHERE id = %s".encode(), [other])

    assert row(admin, enqueue(store)) == QUEUED


@pytest.mark.parametrize(
    "job",
    [new_job(key="k"), new_job(delay_seconds=5.0), new_job(tenant="t")],
    ids=["a key", "a delay", "a rare column"],
)
def test_only_plain_jobs_are_handed_over(store: PostgresStore, admin: psycopg.Connection, job: NewJob) -> None:
    offer(store)

    assert row(admin, enqueue(store, job)) == QUEUED


def test_neither_a_batch_nor_a_callers_transaction_nor_a_plain_call_hands_over(
    store: PostgresStore, admin: psycopg.Connection, url: str
) -> None:
    offer(store)
    batch, mine, called = [new_job(), new_job()], new_job(), new_job()

    store.do(Enqueue(batch))
    with psycopg.connect(url) as caller:
        store.enqueue_on(caller, Enqueue([mine]))
    admin.execute("SELECT tenure.enqueue_one('default', 'work', %s, '{}')", [called.id])

    assert [row(admin, job.id) for job in (*batch, mine, called)] == [QUEUED] * 4
    assert offers(admin) == ["w1"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"kinds": ["work"]}, id="kinds"),
        pytest.param({"affinity": ["a"]}, id="affinity"),
        pytest.param({"lease_seconds": 9.0}, id="a short lease"),
        pytest.param({"worker": "w" * 201}, id="a name that no notification has room for"),
    ],
)
def test_a_claim_that_asks_for_something_of_its_own_does_not_offer(
    store: PostgresStore, admin: psycopg.Connection, fields: dict[str, Any]
) -> None:
    assert not offer(store, **fields)
    assert offers(admin) == []


def test_nobody_offers_who_does_not_wait(store: PostgresStore, admin: psycopg.Connection) -> None:
    assert not claim(store, offers=True).is_offered
    assert offers(admin) == []


def test_nobody_offers_where_many_wait(store: PostgresStore, admin: psycopg.Connection) -> None:
    for number in range(9):
        claim(store, f"other {number}", wants_wake=True)

    assert not offer(store)
    assert offers(admin) == []


# --- the next claim ---------------------------------------------------------------------------------------------------


def the_grant(answer: Exchanged) -> Grant:
    assert not answer.is_offered
    [grant] = answer.grants
    return grant


@pytest.mark.parametrize("limit", [0, 1, 10, 100])
def test_a_claim_gives_out_what_was_handed_over_if_the_word_was_lost(
    store: PostgresStore, admin: psycopg.Connection, limit: int
) -> None:
    offer(store)
    job = enqueue(store)
    set_clock(admin, "2030-01-01 00:00:02Z")

    answer = claim(store, limit=limit, offered=True)

    grant = the_grant(answer)
    assert (grant.id, grant.token, grant.attempt, grant.payload) == (job, 1, 1, {})
    assert answer.age_seconds == 2.0
    assert waiters(admin) == ["w1"], "it is still to be woken"


def test_a_claim_takes_more_beside_what_was_handed_over(store: PostgresStore) -> None:
    offer(store)
    jobs = [enqueue(store), enqueue(store)]

    grants = claim(store, limit=10, offered=True, offers=True).grants

    assert [grant.id for grant in grants] == jobs


def test_a_claim_that_grants_leaves_no_offer(store: PostgresStore, admin: psycopg.Connection, url: str) -> None:
    offer(store)
    with psycopg.connect(url) as caller:
        store.enqueue_on(caller, Enqueue([new_job()]))

    assert len(claim(store, offered=True, offers=True).grants) == 1

    assert offers(admin) == []
    assert row(admin, enqueue(store)) == QUEUED, "a worker with one slot never holds two"


def test_a_claim_that_finds_nothing_makes_the_offer_anew_or_withdraws_it(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    offer(store)
    admin.execute("UPDATE tenure.waiter SET offered_until = '2020-01-01'")

    assert claim(store, offered=True, offers=True).is_offered
    assert admin.execute("SELECT offered_until > tenure.now() FROM tenure.waiter").fetchall() == [(True,)]
    assert not claim(store, offered=True).is_offered
    assert offers(admin) == []


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_repeat_after_a_lost_reply_settles_the_offer_of_the_claim_that_was_lost(
    store: PostgresStore, admin: psycopg.Connection, is_taken: bool
) -> None:
    offer(store)  # and say that the answer was lost
    if is_taken:
        job = enqueue(store)

    grants = claim(store, limit=5, held=[]).grants

    assert [grant.id for grant in grants] == ([job] if is_taken else [])
    assert row(admin, enqueue(store)) == QUEUED


def test_a_job_that_was_cancelled_meanwhile_is_given_out_all_the_same(store: PostgresStore) -> None:
    """Its worker learns of it, as of any job it holds."""
    offer(store)
    job = enqueue(store)
    store.do(Cancel([job], actor="t", reason="t"))

    assert the_grant(claim(store, offered=True)).id == job


def test_a_gate_that_closes_meanwhile_changes_nothing(store: PostgresStore, admin: psycopg.Connection) -> None:
    offer(store)
    job = enqueue(store)
    store.do(SetGate("queue:other", is_open=False, actor="t"))

    assert the_grant(claim(store, offered=True)).id == job


# --- reading what was handed over -------------------------------------------------------------------------------------


def taken(admin: psycopg.Connection, worker: str, job: str) -> list[Any]:
    [[answer]] = admin.execute("SELECT tenure.take_over(%s, %s)", [worker, job]).fetchall()
    return list(answer["lines"])


def test_the_worker_reads_its_job_as_a_claim_would_have_granted_it(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    offer(store)
    job = enqueue(store, new_job(payload={"a": [1, "ü"]}, priority=3))

    [line] = taken(admin, "w1", job)

    with admin.transaction(force_rollback=True):
        admin.execute(
            "UPDATE tenure.job SET state = 'queued', token = 0, attempt = 0, lease_owner = NULL, lease_until = NULL"
        )
        claimed = admin.execute("SELECT tenure.claim_few('w1', 'default', 1, NULL, NULL, NULL)").fetchall()[0][0]
    [other] = claimed["lines"]
    assert [line[0], *line[2:]] == [other[0], *other[2:]]


def test_nobody_reads_a_job_that_is_anothers_or_not_held_any_more(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    offer(store)
    job = enqueue(store)

    assert taken(admin, "w2", job) == []
    assert taken(admin, "w1", new_job_id()) == []
    store.do(Exchange([Completed(job, Token(1))], None))
    assert taken(admin, "w1", job) == []


# --- races, staged ----------------------------------------------------------------------------------------------------


def test_of_two_enqueues_at_once_one_takes_the_offer(store: PostgresStore, admin: psycopg.Connection, url: str) -> None:
    offer(store)
    first = new_job_id()
    with holding(url, ENQUEUE, first):
        second = enqueue(store)  # which does not wait

    assert row(admin, first) == HANDED
    assert row(admin, second) == QUEUED


def test_two_enqueues_at_once_take_two_offers(store: PostgresStore, admin: psycopg.Connection, url: str) -> None:
    offer(store)
    offer(store, "w2")
    first = new_job_id()
    with holding(url, ENQUEUE, first):
        second = enqueue(store)

    assert {row(admin, job)[3] for job in (first, second)} == {"w1", "w2"}
    assert offers(admin) == []


def test_a_claim_waits_for_the_enqueue_that_has_taken_its_offer_and_gives_the_job_out(
    store: PostgresStore, admin: psycopg.Connection, url: str, threads: ThreadPoolExecutor
) -> None:
    offer(store)
    job = new_job_id()
    with holding(url, ENQUEUE, job):
        claiming = threads.submit(claim, store, offered=True, offers=True)
        wait_until_blocked(url)

    grant = the_grant(claiming.result(15))
    assert (grant.id, grant.token, grant.attempt) == (job, 1, 1)
    assert row(admin, job) == HANDED


def test_an_enqueue_that_is_rolled_back_leaves_the_offer(
    store: PostgresStore, admin: psycopg.Connection, url: str
) -> None:
    offer(store)
    with holding(url, ENQUEUE, new_job_id()) as enqueuing:
        enqueuing.rollback()

    assert row(admin, enqueue(store)) == HANDED


def test_an_enqueue_passes_an_offer_by_while_its_worker_claims(
    store: PostgresStore, admin: psycopg.Connection, url: str
) -> None:
    offer(store)
    admin.execute("LISTEN tenure")
    with holding(url, CLAIM):
        job = enqueue(store)

    assert row(admin, job) == QUEUED
    assert heard(admin) == ["default"]


def test_a_poll_that_offers_and_beats_does_not_lock_itself_against_the_removal_of_its_worker(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor
) -> None:
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("w1"), "host", 1, ["default"])))
    offer(store)
    with holding(url, CLAIM) as polling:
        removing = threads.submit(store.do, RemoveWorkers(ids=[WorkerId("w1")]))
        wait_until_blocked(url)
        polling.execute("SELECT tenure.beat_idle('w1', tenure.now())")

    assert removing.result(15) == ["w1"]
