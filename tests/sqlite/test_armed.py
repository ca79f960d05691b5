"""A claim that the datagram itself carries out, on the loop that reads it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from tenure.errors import StoreUnavailable
from tenure.store.sqlite.armed import ArmedClaim
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import in_fork, put
from tests.sqlite.lines import LOOK, is_read_by_its_loop, listening
from tests.waiting import until, wait_until

pytestmark = pytest.mark.usefixtures("only_datagrams")


def test_a_datagram_carries_out_what_lies_ready_before_it_wakes(store: SqliteStore, path: Path) -> None:
    async def work() -> None:
        async with listening(store, path) as line:
            put(store)
            await line.woken()
            armed, job_id = line.arm(), in_fork(lambda: put(store))
            await line.woken(2)
            before = store.stats().transactions

            exchanged = await armed.answer()

            assert job_id in [grant.id for grant in exchanged.grants]
            assert line.told == ["wake", f"leave {threading.get_ident()}", "wake"]
            assert store.stats().transactions == before, "the answer was there already"

    asyncio.run(work())


def test_it_is_carried_out_once(store: SqliteStore, path: Path) -> None:
    async def work() -> None:
        async with listening(store, path) as line:
            line.arm()
            put(store)  # in this process, whose writer must not be led from within it
            line.send(b"qdefault")
            await line.woken(2)
            second = put(store)
            line.send(b"qdefault")
            await line.woken(4)

            assert len([word for word in line.told if word.startswith("leave")]) == 1
            assert line.state(second) == "queued"

    asyncio.run(work())


@pytest.mark.parametrize("message", [b"*", b"qelsewhere\ndefault"], ids=["stop", "taken-back"])
def test_a_stop_does_not_carry_it_out_nor_does_anything_once_it_was_taken_back(
    store: SqliteStore, path: Path, message: bytes
) -> None:
    async def work() -> None:
        async with listening(store, path) as line:
            job_id = put(store)
            await line.woken()
            armed = line.arm()
            if message != b"*":
                armed.disarm()
            line.send(message)
            await line.woken(2)

            assert line.told == ["wake", "wake"]
            assert line.state(job_id) == "queued"

    asyncio.run(work())


def test_what_another_process_keeps_from_being_done_is_asked_for_again(store: SqliteStore, path: Path) -> None:
    async def work() -> None:
        async with listening(store, path) as line:
            job_id = put(store)
            await line.woken()
            armed, other = line.arm(), sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            line.send(b"qdefault")
            await line.woken(2)
            assert not store._database.writer._is_led
            asked = asyncio.ensure_future(armed.answer())
            await until(lambda: store._database.writer.handle.retries > 0)
            other.execute("COMMIT")
            other.close()

            assert [grant.id for grant in (await asked).grants] == [job_id]

    asyncio.run(work())


def test_what_another_thread_keeps_from_being_done_is_asked_for_again(store: SqliteStore, path: Path) -> None:
    async def work() -> None:
        async with listening(store, path) as line:
            job_id = put(store)
            await line.woken()
            armed = line.arm()
            assert store._database.writer.pause(5.0)
            line.send(b"qdefault")
            await line.woken(2)
            store._database.writer.go_on()

            assert [grant.id for grant in (await armed.answer()).grants] == [job_id]

    asyncio.run(work())


def test_what_went_wrong_is_told_to_whoever_fetches_the_answer(store: SqliteStore, path: Path) -> None:
    async def work() -> None:
        async with listening(store, path) as line:
            put(store)
            await line.woken()
            armed = line.arm()
            await asyncio.to_thread(path.rename, path.with_name("elsewhere"))
            line.send(b"qdefault")
            await line.woken(2)

            with pytest.raises(StoreUnavailable, match="replaced or taken away"):
                await armed.answer()

    asyncio.run(work())


def test_nothing_can_lie_ready_without_a_loop(store: SqliteStore) -> None:
    subscription = store.subscribe(["default"], lambda: None)

    assert subscription.arm(LOOK, lambda: None) is None
    subscription.close()


def test_a_worker_starts_a_job_of_another_process_by_the_claim_that_lay_ready(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tenure

    app = tenure.App(f"sqlite:///{path}")
    ran: list[int] = []
    enqueued: list[str] = []
    carried: list[ArmedClaim] = []
    carry_out = ArmedClaim.carry_out

    def note(armed: ArmedClaim) -> None:
        carried.append(armed)
        carry_out(armed)

    monkeypatch.setattr(ArmedClaim, "carry_out", note)

    @app.job(queue="default")
    async def work(payload: dict[str, int]) -> None:
        ran.append(payload["process"])

    def enqueue_when_it_waits() -> None:
        store = app.store
        assert isinstance(store, SqliteStore)
        wait_until(lambda: is_read_by_its_loop(store))
        while len(carried) < 3 and len(ran) < 30:  # now and then a worker has something else to do just then
            wait_until(lambda: any(each.armed is not None for each in store._database.hub._subscribers))
            before = len(ran)
            enqueued.append(in_fork(lambda: work.enqueue({"process": os.getpid()}).id))
            wait_until(lambda before=before: len(ran) > before)  # type: ignore[misc]
        worker.stop()

    worker = app.worker(poll_seconds=600.0)  # a poll could find the job first
    enqueuing = threading.Thread(target=enqueue_when_it_waits)
    enqueuing.start()
    worker.run_sync()
    enqueuing.join(10)

    assert len(ran) == len(enqueued)
    assert os.getpid() not in ran
    assert len(carried) == 3
    app.close()
