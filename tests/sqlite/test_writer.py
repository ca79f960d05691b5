"""Group commit: requests share transactions, and none takes another along when it fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import GateClosed, KeyConflict, StoreBusy, StoreUnavailable, TenureError, UnknownQueue
from tenure.model.ids import JobId
from tenure.model.job import Enqueued
from tenure.store.admin import SetGate
from tenure.store.contract import Claim, Enqueue
from tenure.store.queries import GetJobs
from tenure.store.sqlite.store import SqliteStore
from tenure.store.sqlite.transaction import Transaction
from tests.sqlite.bed import WORKER, job, put
from tests.waiting import wait_until


def pending(store: SqliteStore) -> int:
    """How many requests wait for the next commit."""
    return len(store._database.writer._pending)


class Crowd:
    """Threads that enqueue one batch each; what became of each is kept."""

    def __init__(self, store: SqliteStore, requests: list[Enqueue]) -> None:
        self.answers: dict[int, list[Enqueued]] = {}
        self.errors: dict[int, BaseException] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(store, place, request)) for place, request in enumerate(requests)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _run(self, store: SqliteStore, place: int, request: Enqueue) -> None:
        try:
            self.answers[place] = store.do(request)
        except TenureError as exc:
            self.errors[place] = exc


def gather(store: SqliteStore, requests: list[Enqueue]) -> Crowd:
    """All of them pending before anybody leads: so they are one batch."""
    writer = store._database.writer
    assert writer.pause(5.0)
    crowd = Crowd(store, requests)
    wait_until(lambda: pending(store) == len(requests))
    writer.go_on()
    crowd.join()
    return crowd


def exists(store: SqliteStore, job_id: JobId) -> bool:
    return store.do(GetJobs([job_id]))[0] is not None


def test_fifty_threads_that_come_together_share_one_commit(store: SqliteStore) -> None:
    before = store.stats().transactions

    crowd = gather(store, [Enqueue([job()]) for _ in range(50)])

    assert store.stats().transactions - before == 1
    assert len(crowd.answers) == 50
    assert all(exists(store, answer.id) for [answer] in crowd.answers.values())


def test_fifty_tasks_on_a_loop_share_a_few_commits(store: SqliteStore) -> None:
    before = store.stats().transactions

    async def enqueue_all() -> list[list[Enqueued]]:
        return await asyncio.gather(*(store.ado(Enqueue([job()])) for _ in range(50)))

    answers = asyncio.run(enqueue_all())

    assert len({answer.id for [answer] in answers}) == 50
    assert store.stats().transactions - before <= 3


def test_threads_and_loops_share_the_same_commit(store: SqliteStore) -> None:
    writer = store._database.writer
    before = store.stats().transactions

    async def both() -> None:
        assert writer.pause(5.0)
        crowd = Crowd(store, [Enqueue([job()]) for _ in range(5)])
        tasks = [asyncio.ensure_future(store.ado(Enqueue([job()]))) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.to_thread(wait_until, lambda: pending(store) == 10)
        writer.go_on()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(crowd.join)

    asyncio.run(both())

    assert store.stats().transactions - before == 1


def test_a_request_that_fails_before_it_wrote_is_left_out_of_the_commit(store: SqliteStore) -> None:
    bad = Enqueue([job(queue="no-such-queue")])

    crowd = gather(store, [Enqueue([job()]), bad, Enqueue([job()])])

    assert isinstance(crowd.errors[1], UnknownQueue)
    assert sorted(crowd.answers) == [0, 2]
    assert all(exists(store, crowd.answers[place][0].id) for place in (0, 2))


def test_a_request_that_fails_halfway_is_undone_alone(store: SqliteStore) -> None:
    put(store, key="k", payload='{"n": 1}')
    first, second = job(), job(key="k", payload='{"n": 2}')

    crowd = gather(store, [Enqueue([job()]), Enqueue([first, second]), Enqueue([job()])])

    assert isinstance(crowd.errors[1], KeyConflict)
    assert not exists(store, first.id)
    assert all(exists(store, crowd.answers[place][0].id) for place in (0, 2))


def test_when_the_commit_cannot_be_made_everybody_learns_of_it(store: SqliteStore) -> None:
    put(store)
    writer = store._database.writer
    assert writer.handle.connection is not None
    pages = writer.handle.connection.execute("PRAGMA page_count").fetchone()[0]
    writer.handle.connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk full"
    large = '{"text": "' + "x" * 200_000 + '"}'

    crowd = gather(store, [Enqueue([job()]), Enqueue([job(payload=large)]), Enqueue([job()])])
    writer.handle.connection.execute("PRAGMA max_page_count = 1000000")

    assert sorted(crowd.errors) == [0, 1, 2]
    assert {error.code for error in crowd.errors.values() if isinstance(error, TenureError)} == {"disk_full"}
    assert exists(store, put(store))


def test_an_interrupted_leader_passes_the_lead_on(store: SqliteStore) -> None:
    writer = store._database.writer

    def interrupted(_transaction: Transaction, _request: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        writer.call(interrupted, None, store._clock)

    assert exists(store, put(store))


def test_a_caller_interrupted_while_it_waits_leaves_the_queue_of_callers(store: SqliteStore) -> None:
    writer = store._database.writer
    assert writer.pause(5.0)

    async def give_up() -> None:
        task = asyncio.ensure_future(store.ado(Enqueue([job()])))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    writer.go_on()

    assert exists(store, put(store))


def test_the_event_loop_goes_on_while_a_write_waits(store: SqliteStore, path: Path) -> None:
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    async def work() -> list[Enqueued]:
        task = asyncio.ensure_future(store.ado(Enqueue([job()])))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not task.done()
        blocker.execute("COMMIT")
        return await task

    [answer] = asyncio.run(work())
    blocker.close()

    assert exists(store, answer.id)


def test_a_lock_that_is_never_freed_is_reported_within_the_bound(path: Path, store: SqliteStore) -> None:
    store.close()
    impatient = SqliteStore(f"sqlite:///{path}", busy_seconds=0.1)
    blocker = sqlite3.connect(path, isolation_level=None)
    put(impatient)
    blocker.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreBusy, match="locked by another process"):
        put(impatient)

    assert impatient.stats().retries > 0
    blocker.execute("ROLLBACK")
    assert exists(impatient, put(impatient))
    blocker.close()
    impatient.close()


def test_reads_do_not_wait_for_a_writer(store: SqliteStore, path: Path) -> None:
    job_id = put(store)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")

    assert exists(store, job_id)

    blocker.close()


def test_stores_of_one_file_share_one_writer(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(f"sqlite:///{path}")

    assert other._database is store._database

    other.close()
    assert exists(store, put(store))


def test_policies_changed_by_another_process_count_at_once(store: SqliteStore, path: Path) -> None:
    put(store)
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO tenure_gate VALUES ('master', 0, 'ann', 0)")
    other.close()

    with pytest.raises(GateClosed):
        put(store)


def test_a_policy_that_was_rolled_back_does_not_count(store: SqliteStore) -> None:
    put(store)

    def close_and_fail(transaction: Transaction, _request: Any) -> None:
        from tenure.store.sqlite.operating import set_gate

        set_gate(transaction, SetGate("master", is_open=False, actor="ann"))
        raise UnknownQueue("on purpose")

    with pytest.raises(UnknownQueue):
        store._database.writer.call(close_and_fail, None, store._clock)

    assert exists(store, put(store))


def test_happy_moves_take_few_statements(store: SqliteStore) -> None:
    store.do(Enqueue([job() for _ in range(100)]))
    store.do(Claim(WORKER, ["default"], 1))
    before = store.stats().statements

    store.do(Enqueue([job() for _ in range(100)]))
    enqueued = store.stats().statements
    grants = store.do(Claim(WORKER, ["default"], 100))
    claimed = store.stats().statements

    assert len(grants) == 100
    assert enqueued - before <= 3
    assert claimed - enqueued <= 4


def test_a_closed_store_refuses_and_another_on_the_file_goes_on(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(f"sqlite:///{path}")
    other.close()
    other.close()

    with pytest.raises(TenureError, match="closed"):
        put(other)

    assert exists(store, put(store))


def test_a_driver_error_in_an_act_comes_out_as_ours(store: SqliteStore) -> None:
    def wrong(transaction: Transaction, _request: Any) -> None:
        transaction.run("SELECT * FROM nowhere")

    with pytest.raises(TenureError) as caught:
        store._database.writer.call(wrong, None, store._clock)

    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert not isinstance(caught.value, StoreUnavailable)
