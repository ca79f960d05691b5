"""The word by which a worker learns of a job that was handed over: in time, late, or lost."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from tenure.errors import StoreUnavailable, TenureError
from tenure.store.admin import SetGate
from tenure.store.contract import Enqueue
from tenure.store.sqlite import armed as arming
from tenure.store.sqlite.armed import ArmedClaim
from tenure.store.sqlite.store import SqliteStore
from tenure.testing import crash_at
from tests.sqlite.bed import WORKER, in_fork, job, put
from tests.sqlite.forked import BEFORE_COMMIT, BEFORE_WORD, Enqueuer, prime, put_as_before
from tests.sqlite.lines import Line, is_read_by_its_loop, left, run
from tests.waiting import until, wait_until

pytestmark = pytest.mark.usefixtures("only_datagrams", "looked")


@pytest.mark.parametrize("way", ["disarm", "datagram", "renewal"])
def test_a_job_whose_enqueuer_was_killed_before_the_word_is_found_by_its_worker(
    store: SqliteStore, path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "renewal":
        monkeypatch.setattr(arming, "RENEW_SECONDS", 0.001)

    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
        enqueuer.wait_there()
        enqueuer.kill()

        if way == "disarm":
            assert not armed.disarm()
        else:
            if way == "datagram":
                line.send(b"qdefault")
            await line.woken(2 if way == "datagram" else 1)
            assert left(line) == 1
            assert not armed.disarm()
        exchanged = await armed.answer()

        (grant,) = exchanged.grants
        assert not exchanged.is_handed_over, "its lease was set anew"
        assert (grant.token, grant.attempt, grant.worker) == (1, 1, WORKER)
        assert line.job(grant.id).state == "running"

    run(store, path, work)


def test_an_enqueuer_that_was_killed_before_its_commit_leaves_nothing(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_COMMIT)
        enqueuer.wait_there()
        enqueuer.kill()

        assert not armed.disarm()
        assert (await armed.answer()).grants == []

    run(store, path, work)


def test_an_answer_waits_for_the_word_and_for_whoever_still_writes(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_COMMIT)
        enqueuer.wait_there()
        assert not armed.disarm()
        asked = asyncio.ensure_future(armed.answer())
        await until(lambda: store._database.writer.handle.retries > 0)
        enqueuer.finish()

        (grant,) = (await asked).grants

        assert (grant.token, grant.worker) == (1, WORKER)

    run(store, path, work)


def test_a_word_on_its_way_is_waited_for(store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arming, "WORD_SECONDS", 600.0)

    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
        enqueuer.wait_there()
        assert not armed.disarm()
        asked = asyncio.ensure_future(armed.answer())
        await asyncio.sleep(0)
        enqueuer.finish()

        exchanged = await asked

        assert exchanged.is_handed_over
        assert [grant.token for grant in exchanged.grants] == [1]
        assert line.told == [], "whoever fetches the answer knows of it"

    run(store, path, work)


def test_a_word_that_comes_after_the_answer_is_ignored(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
        enqueuer.wait_there()
        assert not armed.disarm()
        (grant,) = (await armed.answer()).grants
        again = line.arm()

        enqueuer.finish()
        line.send(b"*")
        await line.woken()

        assert grant.token == 1
        assert left(line) == 0
        assert again.disarm(), "and the next offer still stood"

    run(store, path, work)


def test_a_word_for_another_offer_is_ignored(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        assert isinstance(armed, ArmedClaim)
        assert armed.nonce is not None

        armed.hand(armed.nonce + 1, "")
        line.send(b"g%d\n" % (armed.nonce + 1))
        line.send(b"*")
        await line.woken()

        assert left(line) == 0
        assert armed.disarm()

    run(store, path, work)


def test_a_wake_up_for_another_job_means_another_look_if_the_offer_was_taken(store: SqliteStore, path: Path) -> None:
    """The worker counts one wake-up as the one that its claim has followed. A second one is news."""

    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
        enqueuer.wait_there()

        line.send(b"qdefault")
        await line.woken(2)

        assert (left(line), line.told.count("wake")) == (1, 2)
        enqueuer.finish()
        assert (await armed.answer()).is_handed_over

    run(store, path, work)


def test_an_enqueue_that_fails_tells_the_worker_to_ask(store: SqliteStore, path: Path) -> None:
    def enqueue() -> None:
        prime(store)
        with pytest.raises(TenureError), crash_at(BEFORE_COMMIT, error=sqlite3.OperationalError("on purpose")):
            put(store)
        store.do(Enqueue([job(queue="elsewhere")]))

    async def work(line: Line) -> None:
        armed = line.arm()

        in_fork(enqueue)

        await line.woken()
        assert left(line) == 1
        assert (await armed.answer()).grants == []

    run(store, path, work)


def test_a_gate_that_was_closed_meanwhile_does_not_make_the_worker_forget_what_it_may_hold(
    store: SqliteStore, path: Path
) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        enqueuer = Enqueuer(lambda: put_as_before(store), BEFORE_WORD)
        enqueuer.wait_there()
        enqueuer.kill()
        store.do(SetGate("worker", is_open=False, actor="ann"))
        assert not armed.disarm()

        with pytest.raises(StoreUnavailable, match="worker"):
            await armed.answer()

    run(store, path, work)


def test_a_word_that_the_thread_reads_comes_to_the_loop_all_the_same(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        other = store.subscribe(["elsewhere"], lambda: None)  # on no loop, so the thread reads for both
        await until(lambda: not is_read_by_its_loop(store))

        job_id = in_fork(lambda: put_as_before(store))
        await line.woken()

        exchanged = await armed.answer()
        assert exchanged.is_handed_over
        assert [grant.id for grant in exchanged.grants] == [job_id]
        assert line.told[0] == f"leave {threading.get_ident()}"
        other.close()

    run(store, path, work)


def test_an_enqueue_on_an_event_loop_hands_over_too(store: SqliteStore, path: Path) -> None:
    def enqueue() -> str:
        prime(store)
        return asyncio.new_event_loop().run_until_complete(store.ado(Enqueue([job()])))[0].id

    async def work(line: Line) -> None:
        line.arm()

        assert line.job(in_fork(enqueue)).lease_owner == WORKER

    run(store, path, work)


def test_another_process_that_writes_just_then_is_waited_for(store: SqliteStore, path: Path) -> None:
    def lock() -> None:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        def unlock() -> None:
            wait_until(lambda: store._database.writer.handle.retries > 0)
            other.execute("COMMIT")
            other.close()

        threading.Thread(target=unlock).start()

    async def work(line: Line) -> None:
        armed = line.arm()

        job_id = in_fork(lambda: put_as_before(store, before=lock))

        assert line.job(job_id).lease_owner == WORKER
        await line.woken()
        assert (await armed.answer()).is_handed_over

    run(store, path, work)
