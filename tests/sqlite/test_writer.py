"""Group commit: requests share transactions, and none takes another along when it fails."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import GateClosed, KeyConflict, StoreBusy, StoreClosed, StoreUnavailable, TenureError, UnknownQueue
from tenure.model.ids import JobId, Token
from tenure.model.job import Enqueued
from tenure.model.outcome import Completed
from tenure.store.admin import SetGate
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Heartbeat, Hold, Prune, Reap, Settle, Start, Wake
from tenure.store.queries import CountJobs, GetJobs
from tenure.store.sqlite import store as door
from tenure.store.sqlite import writer as writing
from tenure.store.sqlite.store import SqliteStore
from tenure.store.sqlite.transaction import Transaction
from tests.sqlite.bed import WORKER, in_fork, job, put
from tests.waiting import wait_until


def pending(store: SqliteStore) -> int:
    """How many requests wait for the next commit."""
    writer = store._database.writer
    return writer._queue.qsize() + len(writer._pending)


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
    """All of them queued before the writer looks: so they are one batch."""
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


def test_a_request_that_finds_no_room_hurts_no_other(store: SqliteStore) -> None:
    put(store)
    writer = store._database.writer
    assert writer.writing.connection is not None
    pages = writer.writing.connection.execute("PRAGMA page_count").fetchone()[0]
    writer.writing.connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk full"
    large = '{"text": "' + "x" * 200_000 + '"}'

    crowd = gather(store, [Enqueue([job()]), Enqueue([job(payload=large)]), Enqueue([job()])])
    writer.writing.connection.execute("PRAGMA max_page_count = 1000000")

    assert [(place, error.code) for place, error in crowd.errors.items() if isinstance(error, TenureError)] == [
        (1, "disk_full")
    ]
    assert all(exists(store, crowd.answers[place][0].id) for place in (0, 2))
    assert exists(store, put(store))


def test_an_interrupted_writer_says_that_the_outcome_is_unknown_and_goes_on(store: SqliteStore) -> None:
    writer = store._database.writer

    def interrupted(_transaction: Transaction, _request: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(StoreUnavailable, match="interrupted"):
        writer.submit(interrupted, None, store._clock).result()

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
        from tenure.store.sqlite.admin import set_gate

        set_gate(transaction, SetGate("master", is_open=False, actor="ann"))
        raise UnknownQueue("on purpose")

    with pytest.raises(UnknownQueue):
        store._database.writer.submit(close_and_fail, None, store._clock).result()

    assert exists(store, put(store))


def test_happy_moves_take_few_statements(store: SqliteStore) -> None:
    store.do(Enqueue([job() for _ in range(100)]))
    store.do(Claim(WORKER, ["default"], 1))
    before = store.stats().statements

    store.do(Enqueue([job() for _ in range(100)]))
    enqueued = store.stats().statements
    grants = store.do(Claim(WORKER, ["default"], 100))
    claimed = store.stats().statements
    store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
    settled = store.stats().statements

    assert len(grants) == 100
    assert enqueued - before <= 2
    assert claimed - enqueued <= 7
    assert settled - claimed <= 2, "one to look for consequences, one to end"


def test_every_request_is_answered_while_the_writer_is_closed_again_and_again(store: SqliteStore) -> None:
    writer = store._database.writer
    answered: list[int] = []

    def submit() -> None:
        answered.extend(writer.submit(lambda _, given: given, n, store._clock).result(30) for n in range(50))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        writer.close()

    assert sorted(answered) == sorted([*range(50)] * 4)


def test_an_exchange_of_a_hundred_jobs_reads_few_rows(store: SqliteStore) -> None:
    """sqlite3 gives up Python's lock at every row. Beside handlers that compute, each row of a settle waited up to 5 ms
    to get it back, 500 of them in one transaction, while the whole file stood still for other writers."""
    store.do(Enqueue([job() for _ in range(200)]))
    grants = store.do(Claim(WORKER, ["default"], 100))
    connection = store._database.writer.writing.connection
    assert connection is not None
    rows = []

    def counted(_cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        rows.append(row)
        return row

    connection.row_factory = counted
    ends = [Completed(grant.id, grant.token) for grant in grants]
    answer = store.do(Exchange(ends, Claim(WORKER, ["default"], 100)))
    connection.row_factory = None

    assert len(answer.grants) == 100
    assert len(rows) <= 10


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
        store._database.writer.submit(wrong, None, store._clock).result()

    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert not isinstance(caught.value, StoreUnavailable)


def test_heartbeats_go_before_claims_in_the_queue(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    put(store)
    [grant] = store.do(Claim(WORKER, ["default"]))
    monkeypatch.setitem(door.WRITES, Claim, lambda *_: order.append("claim"))
    monkeypatch.setitem(door.WRITES, Heartbeat, lambda *_: order.append("heartbeat"))
    writer = store._database.writer
    assert writer.pause(5.0)
    requests: list[Any] = [Claim(WORKER, ["default"]) for _ in range(3)]
    requests.append(Heartbeat([Hold(grant.id, grant.token)]))
    threads = [threading.Thread(target=store.do, args=(request,)) for request in requests]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda number=number: pending(store) == number)  # type: ignore[misc]

    writer.go_on()
    for thread in threads:
        thread.join(10)

    assert order == ["heartbeat", "claim", "claim", "claim"]


def test_a_batch_that_takes_long_is_committed_and_the_rest_shares_the_next(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    monkeypatch.setattr(writing, "BATCH_SECONDS", 0.0)
    before = store.stats().transactions

    crowd = gather(store, [Enqueue([job()]) for _ in range(5)])

    assert len(crowd.answers) == 5
    assert store.stats().transactions - before == 5


REQUESTS: list[Any] = [
    Enqueue([job()]),
    Claim(WORKER, ["default"]),
    Exchange([], Claim(WORKER, ["default"])),
    Settle([]),
    Heartbeat([Hold(JobId("x"), Token(1))]),
    Start([Hold(JobId("x"), Token(1))]),
    Wake(),
    Cancel([], "ann", "test"),
    Reap(),
    Prune(),
    GetJobs([]),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_cancelled_await_leaves_the_store_usable(store: SqliteStore, request_: Any) -> None:
    """Cancelled while it is queued, and at several points while it is carried out."""

    async def give_up(turns: int) -> None:
        task = asyncio.ensure_future(store.ado(request_))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for turns in (0, 1, 2, 5, 50):
        asyncio.run(give_up(turns))

    assert exists(store, put(store))
    asyncio.run(store.ado(request_))


class Load:
    """Loops and threads that enqueue until told to stop."""

    def __init__(self, store: SqliteStore) -> None:
        self.written: list[JobId] = []
        self.stop = threading.Event()
        self._store = store
        looped = [threading.Thread(target=lambda: asyncio.run(self._on_loop())) for _ in range(2)]
        self._threads = [*looped, threading.Thread(target=self._on_thread)]
        for thread in self._threads:
            thread.start()

    def end(self) -> list[JobId]:
        """All ids that were answered."""
        self.stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        return self.written

    async def _on_loop(self) -> None:
        while not self.stop.is_set():
            self.written += [made.id for made in await self._store.ado(Enqueue([job()]))]

    def _on_thread(self) -> None:
        while not self.stop.is_set():
            self.written.append(put(self._store))


def test_loops_and_threads_at_once_lose_nothing(store: SqliteStore) -> None:
    load = Load(store)
    wait_until(lambda: len(load.written) > 200)
    written = load.end()

    assert len(set(written)) == len(written)
    [counted] = store.do(CountJobs())
    assert counted.jobs == len(written)


def test_forks_between_transactions_of_a_loop_leave_no_lock_behind(store: SqliteStore) -> None:
    load = Load(store)
    made: list[JobId] = []
    for turn in range(1, 6):
        wait_until(lambda turn=turn: len(load.written) > 20 * turn)  # type: ignore[misc]
        made.append(in_fork(lambda: asyncio.run(store.ado(Enqueue([job()])))[0].id))
    written = load.end()

    [counted] = store.do(CountJobs())
    assert counted.jobs == len({*written, *made})


def test_closing_waits_for_a_request_in_flight(store: SqliteStore) -> None:
    entered, may_end = threading.Event(), threading.Event()
    answers: list[str] = []

    def slow(*_: Any) -> str:
        entered.set()
        assert may_end.wait(10)
        return "done"

    writer = store._database.writer
    calling = threading.Thread(target=lambda: answers.append(writer.submit(slow, None, store._clock).result()))
    calling.start()
    assert entered.wait(10)
    closing = threading.Thread(target=store.close)
    closing.start()
    assert writer.writing.connection is not None
    may_end.set()
    calling.join(10)
    closing.join(10)

    assert answers == ["done"]
    with pytest.raises(StoreClosed):
        store.do(Enqueue([job()]))
