"""Large exchanges that a process of their own carries out: as the writer does, or not at all, and never in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import StoreUnavailable
from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, new_job_ids
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, Failed, Outcome
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Exchanged
from tenure.store.queries import GetJobs
from tenure.store.sqlite import dictation as ours
from tenure.store.sqlite import store as door
from tenure.store.sqlite.claim import BACKLOG_JOBS
from tenure.store.sqlite.dictation import FAR_AHEAD
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, in_fork, start_child
from tests.sqlite.desks import Desk, at_desk, fill
from tests.waiting import until, wait_until

LONG = '{"text": "' + "ä" * 30_000 + '"}'
MANY = 200


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    """On the machine's clock, by which scribes go."""
    made = SqliteStore(f"sqlite:///{path}")
    made.migrate()
    yield made
    made.close()


def rows(store: SqliteStore, ids: list[JobId]) -> list[dict[str, Any]]:
    return [asdict(job) for job in store.do(GetJobs(ids)) if job is not None]


def asking(limit: int = MANY) -> Exchange:
    return Exchange([], Claim(WORKER, ["default"], limit))


def completed(grants: list[Grant], limit: int = MANY) -> Exchange:
    return Exchange([Completed(grant.id, grant.token) for grant in grants], Claim(WORKER, ["default"], limit))


def test_a_scribe_says_and_leaves_what_the_writer_does(store: SqliteStore, tmp_path: Path) -> None:
    other = SqliteStore(f"sqlite:///{tmp_path / 'other.db'}")
    other.migrate()
    ids = new_job_ids(MANY + 100)
    jobs = [
        NewJob(job_id, f"kind{n % 3}", LONG if n == 7 else '{"n": 1}', priority=n % 4, key=f"k{n}" if n % 2 else None)
        for n, job_id in enumerate(ids)
    ]

    async def life(exchange: Callable[[Exchange], Awaitable[Exchanged]]) -> list[Exchanged]:
        first = await exchange(asking())
        ends: list[Outcome] = [Completed(grant.id, grant.token) for grant in first.grants[:90]]
        ends += [Completed(grant.id, grant.token, '{"ok": "ä"}', "fine", "/a") for grant in first.grants[90:]]
        second = await exchange(Exchange(ends, Claim(WORKER, ["default"], MANY)))
        third = await exchange(completed(second.grants))
        return [first, second, third]

    async def dictated(made: Desk) -> list[Exchanged]:
        store.do(Enqueue(jobs))
        before = made.by_writer
        told = await life(made.exchange)
        assert (made.asked, made.by_writer - before) == (3, 0)
        return told

    short = at_desk(store, dictated)
    other.do(asking(1))
    other.do(Enqueue(jobs))
    long = asyncio.run(life(other.ado))

    moments = {"lease_until"}
    for one, another in zip(short, long, strict=True):
        assert one.settled == another.settled == {}
        assert without(one.grants, moments) == without(another.grants, moments)
    moments = {"run_at", "created_at", "updated_at", "claimed_at", "started_at", "finished_at"}
    assert without(store.do(GetJobs(ids)), moments) == without(other.do(GetJobs(ids)), moments)
    assert {row["state"] for row in rows(store, ids)} == {"succeeded"}
    other.close()


def without(values: Any, names: set[str]) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(each).items() if name not in names} for each in values]


def test_a_lease_begins_when_the_scribe_gives_it(store: SqliteStore, path: Path) -> None:
    """However long it waited for the file's lock. It had begun when it was asked for."""

    async def act(made: Desk) -> list[Grant]:
        fill(store, MANY)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            asked = asyncio.ensure_future(made.exchange(asking()))
            await until(lambda: made.asked == 1)
            asked_at = store.now()
            await until(lambda: store.now() > asked_at + timedelta(milliseconds=5))
            other.execute("ROLLBACK")
        grants = (await asked).grants
        jobs = [job for job in store.do(GetJobs([grant.id for grant in grants])) if job is not None]

        assert len(jobs) == MANY
        for job, grant in zip(jobs, grants, strict=True):
            assert job.claimed_at is not None
            assert job.claimed_at > asked_at
            assert job.started_at == job.claimed_at
            assert job.lease_until == job.claimed_at + timedelta(seconds=60) == grant.lease_until
        return grants

    at_desk(store, act)


def test_results_larger_than_the_line_holds_at_once_arrive_whole(store: SqliteStore) -> None:
    async def act(made: Desk) -> list[JobId]:
        fill(store, 2 * MANY)
        grants = (await made.exchange(asking())).grants
        ends = [Completed(grant.id, grant.token, LONG) for grant in grants]
        more = await made.exchange(Exchange(ends, Claim(WORKER, ["default"], MANY)))
        assert len(more.grants) == MANY
        assert made.asked == 2
        return [grant.id for grant in grants]

    ids = at_desk(store, act)

    assert all(row["result"] == json.loads(LONG) for row in rows(store, ids))


def test_what_a_scribe_cannot_do_as_a_whole_the_writer_does(store: SqliteStore) -> None:
    async def act(made: Desk) -> None:
        fill(store, 3 * MANY)
        grants = (await made.exchange(asking())).grants
        store.do(Cancel([grants[0].id], actor="test", reason="test"))

        before = made.by_writer
        answer = await made.exchange(completed(grants))

        assert made.asked == 2
        assert made.by_writer - before > 1, "the long way, and the one statement not once more"
        assert [(settled.job_id, settled.state) for settled in answer.settled.values()] == [(grants[0].id, "cancelled")]
        assert len(answer.grants) == MANY

    at_desk(store, act)


def test_a_policy_that_was_changed_by_another_process_holds_for_the_next_exchange(
    store: SqliteStore, path: Path
) -> None:
    async def act(made: Desk) -> None:
        fill(store, 2 * MANY)
        await made.exchange(asking(100))
        in_fork(lambda: set_limit(path))

        assert len((await made.exchange(asking())).grants) == 20

    def set_limit(path: Path) -> None:
        other = SqliteStore(f"sqlite:///{path}")
        other.do(SetQueues({"default": QueuePolicy(concurrency=120)}, actor="test"))
        other.close()

    at_desk(store, act)


def test_ends_that_are_no_plain_successes_go_to_the_writer(store: SqliteStore) -> None:
    async def act(made: Desk) -> None:
        fill(store, MANY)
        grants = (await made.exchange(asking())).grants
        ends: list[Outcome] = [Completed(grant.id, grant.token) for grant in grants[1:]]

        await made.exchange(Exchange([*ends, Failed(grants[0].id, grants[0].token, "no")], None))

        assert made.asked == 1

    at_desk(store, act)


def test_an_exchange_whose_scribe_is_killed_has_an_unknown_outcome_and_can_be_repeated(store: SqliteStore) -> None:
    async def act(made: Desk) -> list[JobId]:
        ids = fill(store, 2 * MANY)
        grants = (await made.exchange(asking())).grants
        made.process.send_signal(signal.SIGSTOP)
        asked = asyncio.ensure_future(made.exchange(completed(grants)))
        await until(lambda: made.asked == 2)
        made.process.kill()

        with pytest.raises(StoreUnavailable, match="not known whether"):
            await asked

        held = Claim(WORKER, ["default"], MANY, held=[])
        again = await made.exchange(Exchange(completed(grants).outcomes, held))
        assert len(again.grants) == MANY
        await made.exchange(completed(again.grants))
        assert made.asked == 2, "the writer does it, and no other scribe is started at once"
        assert made.dictation._line is None
        return ids

    ids = at_desk(store, act)

    assert {(row["state"], row["attempt"], row["token"]) for row in rows(store, ids)} == {("succeeded", 1, 1)}


def test_a_scribe_that_says_nothing_for_too_long_is_given_up(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(ours, "SILENT_SECONDS", -29.9)  # beyond the 30 s of a lock

    async def act(made: Desk) -> None:
        fill(store, MANY)
        made.process.send_signal(signal.SIGSTOP)
        process = made.process

        with pytest.raises(StoreUnavailable, match="it gave no answer"):
            await made.exchange(asking())

        await until(lambda: process.poll() is not None)

    at_desk(store, act)


def test_whatever_goes_wrong_in_a_scribe_is_told_and_it_is_let_go(store: SqliteStore, path: Path) -> None:
    async def act(made: Desk) -> None:
        fill(store, MANY)
        moved = path.with_suffix(".moved")
        os.rename(path, moved)  # noqa: PTH104 - no wait for a disk to speak of

        with pytest.raises(StoreUnavailable, match="was replaced or taken away"):
            await made.exchange(asking())

        os.rename(moved, path)  # noqa: PTH104
        assert made.dictation._line is None

    at_desk(store, act)


def test_signals_that_are_meant_for_the_worker_leave_its_scribe_at_work(store: SqliteStore) -> None:
    async def act(made: Desk) -> None:
        fill(store, MANY)
        for number in (signal.SIGINT, signal.SIGTERM):
            made.process.send_signal(number)

        assert len((await made.exchange(asking())).grants) == MANY
        assert made.asked == 1

    at_desk(store, act)


def test_a_scribe_is_gone_when_its_worker_has_ended(store: SqliteStore) -> None:
    processes = []

    async def act(made: Desk) -> None:
        processes.append(made.process)

    at_desk(store, act)

    assert processes[0].returncode == 0
    assert store._database.dictation is None


def test_a_scribe_that_has_nothing_to_do_is_let_go_and_comes_back(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(made: Desk) -> None:
        fill(store, 2 * FAR_AHEAD)
        first = made.process
        monkeypatch.setattr(ours, "WATCH_SECONDS", 0.01)
        monkeypatch.setattr(ours, "IDLE_SECONDS", 0.0)
        made.dictation._watch()
        await until(lambda: first.poll() is not None)

        monkeypatch.setattr(ours, "IDLE_SECONDS", 60.0)
        made.dictation._not_before = 0.0
        grants = (await made.exchange(asking(FAR_AHEAD))).grants  # by the writer, and worth a scribe
        await until(lambda: made.dictation._is_ready)
        await made.exchange(completed(grants))

        assert made.asked == 1

    at_desk(store, act)


def test_only_a_backlog_or_a_large_claim_is_worth_a_scribe(store: SqliteStore) -> None:
    async def scribes(before: int, limit: int) -> bool:
        fill(store, before)
        subscription = await asyncio.to_thread(store.subscribe, ["default"], lambda: None, asyncio.get_running_loop())
        await store.ado(asking(limit))
        dictation = store._database.dictation
        assert dictation is not None
        is_started = dictation._process is not None
        await asyncio.to_thread(subscription.close)
        return is_started

    assert not asyncio.run(scribes(10, FAR_AHEAD - 1))
    assert asyncio.run(scribes(0, FAR_AHEAD))
    assert asyncio.run(scribes(BACKLOG_JOBS + 1, 1))


def test_a_store_whose_clock_is_set_by_hand_has_no_scribe(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}", ManualClock())
    store.migrate()

    assert not asyncio.run(has_line(store))
    store.close()


def test_a_process_with_one_processor_has_no_scribe(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(has_line(store))

    monkeypatch.setattr(door, "processors", lambda: 1)

    assert not asyncio.run(has_line(store))


async def has_line(store: SqliteStore) -> bool:
    subscription = await asyncio.to_thread(store.subscribe, ["default"], lambda: None, asyncio.get_running_loop())
    found = store._database.dictation
    await asyncio.to_thread(subscription.close)
    return found is not None


def test_whoever_subscribes_on_the_loop_itself_does_not_wait_for_a_scribe(store: SqliteStore) -> None:
    fill(store, BACKLOG_JOBS + 1)

    async def act() -> tuple[bool, bool]:
        subscription = store.subscribe(["default"], lambda: None, asyncio.get_running_loop())
        dictation = store._database.dictation
        assert dictation is not None
        at_once = dictation._is_ready
        await until(lambda: dictation._is_ready)
        later = dictation._is_ready
        await asyncio.to_thread(subscription.close)
        return at_once, later

    assert asyncio.run(act()) == (False, True)


def test_where_no_scribe_can_be_started_the_writer_does_it_all(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    ids = fill(store, BACKLOG_JOBS + 1)

    async def act() -> bool:
        subscription = await asyncio.to_thread(store.subscribe, ["default"], lambda: None, asyncio.get_running_loop())
        dictation = store._database.dictation
        assert dictation is not None
        await until(lambda: dictation._line is None)
        grants = (await store.ado(asking(FAR_AHEAD))).grants
        await store.ado(completed(grants, FAR_AHEAD))
        was_tried_again = dictation._process is not None
        await asyncio.to_thread(subscription.close)
        return was_tried_again

    assert not asyncio.run(act())
    assert Counter(row["state"] for row in rows(store, ids))["succeeded"] == FAR_AHEAD


def test_a_forked_child_lets_go_of_the_line(store: SqliteStore) -> None:
    async def act(made: Desk) -> None:
        fill(store, MANY)
        line = made.dictation._line
        assert line is not None
        number = line.fileno()

        assert in_fork(lambda: (store._database.dictation, is_open(number))) == (None, False)

        assert len((await made.exchange(asking())).grants) == MANY
        assert made.asked == 1

    at_desk(store, act)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_worker_drains_a_backlog_although_its_scribes_are_killed(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = 12_000
    monkeypatch.setattr(ours, "AGAIN_SECONDS", 0.0)
    app = tenure.App(f"sqlite:///{path}")
    begun: Counter[int] = Counter()
    killed: list[int] = []

    @app.job(kind="work")
    async def work(number: int) -> None:
        begun[number] += 1
        dictation = store._database.dictation
        if dictation is None or dictation._process is None or not dictation._is_ready:
            return
        if len(begun) > 1_000 * (len(killed) + 1) and dictation._process.pid not in killed:
            killed.append(dictation._process.pid)
            dictation._process.kill()

    work.enqueue_many(range(jobs))
    app.run_worker(["default"], drain=True)

    assert killed
    assert len(begun) == jobs
    assert set(begun.values()) == {1}
    app.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ends = connection.execute("SELECT state, attempt, token, count(*) FROM tenure_job GROUP BY 1, 2, 3").fetchall()
    assert ends == [("succeeded", 1, 1, jobs)]


def test_a_scribe_ends_when_its_worker_is_killed(path: Path, store: SqliteStore) -> None:
    fill(store, 40_000)
    child = start_child("drain", f"sqlite:///{path}")
    assert child.stdout is not None
    scribe = int(child.stdout.readline())

    os.kill(child.pid, signal.SIGKILL)
    child.communicate()

    wait_until(lambda: not Path(f"/proc/{scribe}").exists())
