"""Transactions on the event loop's own thread: only where nobody has to wait for them, and by the writer's rules."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import SchemaError, StoreClosed, TenureError, UnknownQueue
from tenure.model.clock import SystemClock
from tenure.model.ids import JobId
from tenure.store.contract import Claim, Enqueue
from tenure.store.queries import CountJobs
from tenure.store.sqlite import writer as writing
from tenure.store.sqlite.store import SqliteStore
from tenure.store.sqlite.transaction import Transaction
from tenure.store.sqlite.writer import Writer
from tests.sqlite.bed import WORKER, in_fork, job, put
from tests.waiting import until, wait_until

CLOCK = SystemClock()


@pytest.fixture
def writer(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """The writer, with its connection open and a disk that is never too slow."""
    monkeypatch.setattr(writing, "MOMENT_SECONDS", 3600.0)
    put(store)
    return store._database.writer


def where(_: Transaction, __: Any) -> int:
    """An act: the thread it runs on."""
    return threading.get_ident()


def test_an_idle_writer_is_led_by_the_loop_itself(writer: Writer) -> None:
    answer = asyncio.run(writer.acall(where, None, CLOCK, may_block=True))

    assert answer == threading.get_ident()
    assert writer._thread is None


def test_a_loop_with_other_things_to_do_never_leads(writer: Writer) -> None:
    assert asyncio.run(writer.acall(where, None, CLOCK)) != threading.get_ident()


def test_nothing_is_opened_on_the_loop(store: SqliteStore) -> None:
    store._database.writer.handle.drop()

    assert asyncio.run(store._database.writer.acall(where, None, CLOCK, may_block=True)) != threading.get_ident()


def test_while_somebody_else_leads_the_loop_goes_on(writer: Writer) -> None:
    async def work() -> int:
        assert writer.pause(5.0)
        asked = asyncio.create_task(writer.acall(where, None, CLOCK, may_block=True))
        await until(lambda: len(writer._pending) == 1)
        assert not asked.done()
        writer.go_on()
        return int(await asked)

    assert asyncio.run(work()) != threading.get_ident()


def test_while_another_process_writes_the_loop_goes_on(store: SqliteStore, writer: Writer, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)

    async def work() -> int:
        other.execute("BEGIN IMMEDIATE")
        asked = asyncio.create_task(writer.acall(where, None, CLOCK, may_block=True))
        await until(lambda: writer.handle.retries > 0)
        assert not asked.done()
        other.execute("COMMIT")
        return int(await asked)

    assert asyncio.run(work()) != threading.get_ident()
    other.close()
    assert put(store)


def test_who_found_the_file_locked_stays_ahead_of_those_who_came_since(
    writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    order: list[str] = []
    late = threading.Thread(target=lambda: writer.call(lambda *_: order.append("late"), None, CLOCK))
    ready = writer.handle.ready

    def ready_when_somebody_waits() -> sqlite3.Connection:
        monkeypatch.setattr(writer.handle, "ready", ready)
        late.start()
        wait_until(lambda: len(writer._pending) == 1)
        return ready()

    async def work() -> None:
        monkeypatch.setattr(writer.handle, "ready", ready_when_somebody_waits)
        asked = asyncio.create_task(writer.acall(lambda *_: order.append("early"), None, CLOCK, may_block=True))
        await until(lambda: writer.handle.retries > 0)
        other.execute("COMMIT")
        await asked

    asyncio.run(work())
    late.join(10)
    other.close()
    assert order == ["early", "late"]


def test_after_a_slow_transaction_the_thread_leads_until_one_is_fast(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> bool:
        return bool(await writer.acall(where, None, CLOCK, may_block=True) == threading.get_ident())

    async def work() -> list[bool]:
        writer._took = writing.MOMENT_SECONDS + 1
        first = await ask()
        await until(lambda: not writer._is_led)
        return [first, await ask()]

    assert asyncio.run(work()) == [False, True]


def test_the_checkpoint_is_left_to_the_thread(
    store: SqliteStore, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran_on: list[int] = []
    checkpointer = writer._checkpointer
    run = checkpointer.run

    def note(connection: sqlite3.Connection) -> bool:
        ran_on.append(threading.get_ident())
        return run(connection)

    monkeypatch.setattr(checkpointer, "run", note)
    checkpointer._score = 1e6

    asyncio.run(store.ado(Enqueue([job()]), may_block=True))
    wait_until(lambda: bool(ran_on))
    put(store)  # the lead came back

    assert threading.get_ident() not in ran_on


def test_a_refused_request_changes_nothing_and_keeps_nobody_from_leading(store: SqliteStore, writer: Writer) -> None:
    before = store.do(CountJobs())

    def half(transaction: Transaction, _: Any) -> None:
        transaction.run("UPDATE tenure_job SET priority = 7")
        transaction.run("SELECT * FROM nowhere")

    with pytest.raises(UnknownQueue):
        asyncio.run(store.ado(Enqueue([job(queue="nowhere")]), may_block=True))
    with pytest.raises(SchemaError) as caught:
        asyncio.run(writer.acall(half, None, CLOCK, may_block=True))

    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert store.do(CountJobs()) == before
    [grant] = asyncio.run(store.ado(Claim(WORKER, ["default"]), may_block=True))
    assert grant.priority == 0


def test_an_interrupt_passes_the_lead_on(store: SqliteStore, writer: Writer) -> None:
    def interrupted(transaction: Transaction, _: Any) -> None:
        transaction.run("UPDATE tenure_job SET priority = 7")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(writer.acall(interrupted, None, CLOCK, may_block=True))

    assert put(store)
    assert {grant.priority for grant in store.do(Claim(WORKER, ["default"], limit=9))} == {0}


def test_closing_waits_for_a_transaction_on_a_loop(store: SqliteStore, writer: Writer) -> None:
    entered, may_end = threading.Event(), threading.Event()
    answers: list[str] = []

    def slow(*_: Any) -> str:
        entered.set()
        assert may_end.wait(10)
        return "done"

    looping = threading.Thread(
        target=lambda: answers.append(asyncio.run(writer.acall(slow, None, CLOCK, may_block=True)))
    )
    looping.start()
    assert entered.wait(10)
    closing = threading.Thread(target=store.close)
    closing.start()
    assert writer.handle.connection is not None
    may_end.set()
    looping.join(10)
    closing.join(10)

    assert answers == ["done"]
    with pytest.raises(StoreClosed):
        asyncio.run(store.ado(Enqueue([job()]), may_block=True))


class Load:
    """Loops and threads that enqueue until told to stop."""

    def __init__(self, store: SqliteStore) -> None:
        self.written: list[JobId] = []
        self.errors: list[TenureError] = []
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
            self.written += [made.id for made in await self._store.ado(Enqueue([job()]), may_block=True)]

    def _on_thread(self) -> None:
        while not self.stop.is_set():
            self.written.append(put(self._store))


def test_loops_and_threads_at_once_lose_nothing(store: SqliteStore, writer: Writer) -> None:
    load = Load(store)
    wait_until(lambda: len(load.written) > 200)
    written = load.end()

    assert len(set(written)) == len(written)
    [counted] = store.do(CountJobs())
    assert counted.jobs == len(written) + 1


def test_forks_between_transactions_of_a_loop_leave_no_lock_behind(store: SqliteStore, writer: Writer) -> None:
    load = Load(store)
    made: list[JobId] = []
    for turn in range(1, 6):
        wait_until(lambda turn=turn: len(load.written) > 20 * turn)  # type: ignore[misc]
        made.append(in_fork(lambda: asyncio.run(store.ado(Enqueue([job()]), may_block=True))[0].id))
    written = load.end()

    [counted] = store.do(CountJobs())
    assert counted.jobs == len({*written, *made}) + 1
