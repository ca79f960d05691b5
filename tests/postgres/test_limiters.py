"""Limiters on PostgreSQL: what a closed key costs others, and claims that race for a key that counts its starts."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed, FailureClass, Outcome, Released
from tenure.store.contract import Claim, Enqueue, Exchange, Settle
from tenure.store.limits import BlockLimiter, ListLimiters, SetLimiter
from tenure.store.postgres.store import PostgresStore
from tests.postgres.conftest import new_database
from tests.waiting import wait_until

pytestmark = pytest.mark.postgres


def jobs(count: int, limiter: str | None = None, priority: int = 0) -> list[NewJob]:
    return [NewJob(id=JobId(new_job_id()), kind="k", limiter=limiter, priority=priority) for _ in range(count)]


def claim(limit: int, worker: str = "w") -> Claim:
    return Claim(worker=WorkerId(worker), queues=["default"], limit=limit)


@new_database
@pytest.mark.parametrize("limiter", [None, "open"])
def test_ten_thousand_jobs_on_a_closed_key_are_not_walked(
    url: str, admin: psycopg.Connection, limiter: str | None
) -> None:
    """They stand before all others; a claim reads the entries of those that it grants, and one for each key."""
    store = PostgresStore(url)
    store.do(Enqueue(jobs(10_000, "closed", priority=9)))
    store.do(Enqueue(jobs(200, limiter)))
    store.do(BlockLimiter("closed", 3600, "ops"))
    store.close()
    before = _entries_read(admin)
    store = PostgresStore(url)

    granted = sum(len(store.do(claim(10))) for _ in range(20))
    store.close()  # A server process reports its statistics when it ends.

    wait_until(lambda: _entries_read(admin) >= before + granted)
    assert granted == 200
    assert _entries_read(admin) - before <= 12 * granted, "every claim walked the closed key: 200,000 and more"


@new_database
def test_a_claim_looks_once_at_each_key_and_into_few_lists(url: str, admin: psycopg.Connection) -> None:
    """It read the head of each list again, and copied the row of the queue for each: with ten thousand keys, which any
    producer may make up, a claim took seconds."""
    keys, claims = 2_000, 5
    store = PostgresStore(url)
    store.do(Enqueue([job for number in range(keys) for job in jobs(1, f"customer {number}")]))
    store.close()
    before = _entries_read(admin)
    store = PostgresStore(url)

    granted = sum(len(store.do(claim(10))) for _ in range(claims))
    store.close()

    wait_until(lambda: _entries_read(admin) >= before + granted)
    assert granted == 10 * claims
    assert _entries_read(admin) - before <= 1.3 * keys * claims


def _entries_read(admin: psycopg.Connection) -> int:
    row = admin.execute("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'job_claim_idx'").fetchone()
    assert row is not None
    return int(row[0])


def test_many_claimers_at_once_take_no_more_than_the_rate_has(url: str) -> None:
    store = PostgresStore(url, pool_size=8)
    store.do(SetLimiter("llm", "ops", per_minute=300))  # ten are saved up
    store.do(Enqueue(jobs(500, "llm")))
    began = store.now()
    barrier = threading.Barrier(8)
    granted: list[int] = []

    def work(name: str) -> None:
        barrier.wait()
        granted.extend(len(store.do(claim(50, name))) for _ in range(5))

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = (store.now() - began).total_seconds()
    store.close()

    assert 10 <= sum(granted) <= 10 + 291 / 60 * seconds + 1


def test_refusals_successes_and_claims_at_once_end_without_a_deadlock(url: str) -> None:
    """Workers settle and claim jobs of two keys in one transaction, some of them refused: none waits for ever, and no
    job is lost."""
    store = PostgresStore(url, pool_size=8)
    for key in ("a", "b"):
        store.do(SetLimiter(key, "ops", per_minute=1e6))
    store.do(Enqueue([job for keys in ("a", "b", "a,b") for job in jobs(200, keys)]))
    failures: list[BaseException] = []
    done: list[str] = []

    def work(number: int) -> None:
        outcomes: list[Outcome] = []
        try:
            for turn in range(4000):
                answer = store.do(Exchange(outcomes, claim(8, f"w{number}")))
                outcomes = []
                for place, grant in enumerate(answer.grants):
                    if (turn + place + number) % 5 == 0:
                        key = ("a", "b")[(place + number) % 2]
                        outcomes.append(
                            Released(grant.id, grant.token, 0.0, FailureClass.RATE_LIMITED, "429", limiter=key)
                        )
                    else:
                        outcomes.append(Completed(grant.id, grant.token))
                        done.append(grant.id)
                if len(set(done)) >= 600 and not answer.grants:
                    break
            store.do(Settle(outcomes))
        except Exception as exc:  # noqa: BLE001 - told by the test itself
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.do(ListLimiters())
    store.close()

    assert not failures
    assert len(set(done)) == 600
    assert [one.key for one in found] == ["a", "b"]
