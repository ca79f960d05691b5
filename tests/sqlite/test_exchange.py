"""An exchange by one statement: it says and leaves what the long way does, or does nothing and leaves it to that."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import StoreUnavailable
from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, Token, new_job_ids
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, Failed, Outcome
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Exchanged, Heartbeat, Hold
from tenure.store.queries import GetJobs, ListEvents
from tenure.store.sqlite import acts, one_statement
from tenure.store.sqlite import exchange as exchange_room
from tenure.store.sqlite import store as door
from tenure.store.sqlite.store import SqliteStore
from tenure.store.sqlite.waiting import A_MOMENT, giving_way
from tests.sqlite.bed import WORKER
from tests.waiting import until, wait_until

LONG = '{"text": "' + "ä" * 30_000 + '"}'
CLAIM = Claim(WORKER, ["default"], 100)


@pytest.fixture
def long_way(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """Another store on the same clock, which does nothing by one statement."""
    made = SqliteStore(f"sqlite:///{tmp_path / 'long.db'}", clock)
    made.migrate()
    short = dict(acts.AT_ONCE)

    class Chosen(dict[type, Any]):
        def get(self, kind: type, default: Any = None) -> Any:
            return default if LONG_WAY.is_set() else short.get(kind, default)

    monkeypatch.setattr(door, "AT_ONCE", Chosen())
    yield made
    made.close()


LONG_WAY = threading.Event()


def both(store: SqliteStore, long_way: SqliteStore, act: Callable[[SqliteStore], Any]) -> tuple[Any, Any]:
    """What an act answers on either store."""
    first = act(store)
    LONG_WAY.set()
    try:
        return first, act(long_way)
    finally:
        LONG_WAY.clear()


def warm(store: SqliteStore) -> None:
    """Let the store read what there is to know about the queue."""
    store.do(Exchange([], CLAIM))


def fill(store: SqliteStore, number: int = 10) -> list[JobId]:
    ids = new_job_ids(number)
    store.do(Enqueue([NewJob(job_id, "work") for job_id in ids]))
    return ids


def claim(store: SqliteStore, limit: int = 100) -> list[Grant]:
    return store.do(Exchange([], Claim(WORKER, ["default"], limit))).grants


def statements(store: SqliteStore, act: Callable[[], Any]) -> int:
    before = store.stats().statements
    act()
    return store.stats().statements - before


def rows(store: SqliteStore, ids: list[JobId]) -> list[dict[str, Any]]:
    return [asdict(job) for job in store.do(GetJobs(ids)) if job is not None]


def test_both_ways_say_and_leave_the_same(store: SqliteStore, long_way: SqliteStore, clock: ManualClock) -> None:
    ids = new_job_ids(12)
    jobs = [
        NewJob(job_id, f"kind{n % 3}", LONG if n == 7 else '{"n": 1}', priority=n % 4, key=f"k{n}" if n % 2 else None)
        for n, job_id in enumerate(ids)
    ]

    def life(each: SqliteStore) -> list[Any]:
        warm(each)
        each.do(Enqueue(jobs))
        told: list[Any] = []
        first = each.do(Exchange([], Claim(WORKER, ["default"], 6))).grants
        retried = first.pop()
        each.do(Exchange([Failed(retried.id, retried.token, "once more", retry_after_seconds=0)], None))
        ends: list[Outcome] = [Completed(grant.id, grant.token) for grant in first[:3]]
        ends += [Completed(grant.id, grant.token, '{"ok": "ä"}', "fine", "/a") for grant in first[3:]]
        told.append(each.do(Exchange(ends, CLAIM)))
        told.append(each.do(Exchange([Completed(grant.id, grant.token) for grant in told[0].grants], CLAIM)))
        return told

    short, long = both(store, long_way, life)

    for one, other in zip(short, long, strict=True):
        assert one.settled == other.settled == {}
        assert [asdict(grant) for grant in one.grants] == [asdict(grant) for grant in other.grants]
    assert rows(store, ids) == rows(long_way, ids)
    assert {row["state"] for row in rows(store, ids)} == {"succeeded"}


def test_an_exchange_is_one_statement_whatever_its_size(store: SqliteStore) -> None:
    warm(store)
    fill(store, 200)
    grants = claim(store, 150)
    ends: list[Outcome] = [Completed(grant.id, grant.token) for grant in grants[:75]]
    ends += [Completed(grant.id, grant.token, "[1]") for grant in grants[75:]]

    assert statements(store, lambda: store.do(Exchange(ends, CLAIM))) == 1


def test_a_thread_that_writes_for_a_loop_does_it_by_one_statement_too(store: SqliteStore) -> None:
    warm(store)
    fill(store)
    grants = claim(store, 5)

    async def work() -> Exchanged:
        return await store.ado(Exchange([Completed(grant.id, grant.token) for grant in grants], CLAIM))

    answers: list[Exchanged] = []
    assert statements(store, lambda: answers.append(asyncio.run(work()))) == 1
    assert len(answers[0].grants) == 5


def test_ends_without_a_claim_grant_nothing(store: SqliteStore) -> None:
    warm(store)
    ids = fill(store)
    grants = claim(store, 5)

    answer = store.do(Exchange([Completed(grant.id, grant.token) for grant in grants], None))

    assert (answer.settled, answer.grants) == ({}, [])
    assert [row["state"] for row in rows(store, ids)] == ["succeeded"] * 5 + ["queued"] * 5


@pytest.mark.parametrize("result", [None, "[1]"])
def test_an_end_that_is_not_taken_in_holds_up_no_other(store: SqliteStore, result: str | None) -> None:
    warm(store)
    ids = fill(store, 8)
    grants = claim(store, 4)
    store.do(Cancel([grants[1].id], "ops", "not needed"))
    ends = [Completed(grant.id, grant.token, result) for grant in grants[:3]]
    ends.append(Completed(grants[3].id, Token(grants[3].token + 1), result))

    answer = store.do(Exchange(ends, Claim(WORKER, ["default"], 2)))

    told = {job_id: settled.state for (job_id, _), settled in answer.settled.items()}
    assert told == {grants[1].id: "cancelled", grants[3].id: None}
    assert [grant.id for grant in answer.grants] == ids[4:6]
    states = ["succeeded", "cancelled", "succeeded", "running", "running", "running", "queued", "queued"]
    assert [row["state"] for row in rows(store, ids)] == states


def test_ends_that_are_repeated_get_the_answer_they_had(store: SqliteStore) -> None:
    warm(store)
    fill(store, 4)
    ends = [Completed(grant.id, grant.token) for grant in claim(store, 2)]
    store.do(Exchange(ends, None))

    answer = store.do(Exchange(ends, CLAIM))

    assert answer.settled == {}
    assert len(answer.grants) == 2


def test_a_lease_that_ran_out_is_taken_back_before_anything_is_granted(store: SqliteStore, clock: ManualClock) -> None:
    warm(store)
    ids = fill(store, 3)
    lost, kept = claim(store, 2)
    clock.advance(30)
    store.do(Heartbeat([Hold(kept.id, kept.token)]))
    clock.advance(31)

    answer = store.do(Exchange([Completed(kept.id, kept.token), Completed(lost.id, lost.token)], CLAIM))

    assert {key[0]: settled.lost for key, settled in answer.settled.items()} == {lost.id: True}
    assert [(grant.id, grant.token) for grant in answer.grants] == [(lost.id, 2), (ids[2], 1)]
    assert answer.grants[0].crashes == 1


def test_a_job_that_came_due_is_granted_in_its_turn(store: SqliteStore, clock: ManualClock) -> None:
    warm(store)
    later = new_job_ids(1)[0]
    store.do(Enqueue([NewJob(later, "work", priority=9, delay_seconds=10)]))
    ids = fill(store, 2)
    clock.advance(11)

    answer = store.do(Exchange([], Claim(WORKER, ["default"], 60)))

    assert [grant.id for grant in answer.grants] == [later, *ids]


def test_what_was_known_of_a_queue_is_not_gone_by_once_it_has_changed(store: SqliteStore, tmp_path: Path) -> None:
    warm(store)
    fill(store, 70)
    ends = [Completed(grant.id, grant.token) for grant in claim(store, 5)]
    other = SqliteStore(store.url)
    other.do(SetQueues({"default": QueuePolicy(concurrency=3)}, actor="test"))

    answer = store.do(Exchange(ends, CLAIM))

    assert (answer.settled, len(answer.grants)) == ({}, 3)
    other.do(SetGate("worker", is_open=False, actor="test"))
    refused = store.do(Exchange([Completed(grant.id, grant.token) for grant in answer.grants], CLAIM))
    assert refused.refused is not None
    assert refused.grants == []
    other.close()


def test_events_are_kept_where_they_are_asked_for(store: SqliteStore) -> None:
    store.do(SetQueues({"default": QueuePolicy(events=True)}, actor="test"))
    warm(store)
    fill(store, 2)

    store.do(Exchange([Completed(grant.id, grant.token) for grant in claim(store, 1)], CLAIM))

    kinds = [event.kind for event in store.do(ListEvents())]
    assert [kind for kind in kinds if kind in {"claimed", "completed"}] == ["claimed", "completed", "claimed"]


def test_who_finds_the_file_locked_waits_and_still_needs_one_statement(store: SqliteStore, path: Path) -> None:
    warm(store)
    fill(store, 4)
    ends = [Completed(grant.id, grant.token) for grant in claim(store, 2)]
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    writer = store._database.writer
    answers: list[Exchanged] = []
    before = store.stats().statements

    asking = threading.Thread(target=lambda: answers.append(store.do(Exchange(ends, CLAIM))))
    asking.start()
    wait_until(lambda: writer.handle.retries > 2)
    other.execute("COMMIT")
    asking.join(10)

    other.close()
    assert len(answers[0].grants) == 2
    assert store.stats().statements - before == 1


def test_grants_that_cannot_be_read_are_granted_again_and_not_replaced_by_others(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody locks the file between the commit and the look at what was granted, and the look needs the lock."""
    warm(store)
    ids = new_job_ids(6)
    store.do(Enqueue([NewJob(job_id, "work", LONG) for job_id in ids]))
    ends = [Completed(grant.id, grant.token) for grant in claim(store, 1)]
    other = sqlite3.connect(path, isolation_level=None)
    connection = store._database.writer.handle.connection
    assert connection is not None
    connection.create_function("lock", 0, lambda: other.execute("BEGIN IMMEDIATE").rowcount)
    monkeypatch.setattr(one_statement, "_TOLD", "SELECT :worker, :now, :rowids WHERE lock() < 0")
    monkeypatch.setattr(one_statement, "_REST", "UPDATE tenure_job SET token = token WHERE id = :ids")

    with pytest.raises(StoreUnavailable, match="could not be read"):
        store.do(Exchange(ends, Claim(WORKER, ["default"], 2)))
    monkeypatch.undo()
    other.close()
    again = store.do(Exchange(ends, Claim(WORKER, ["default"], 2, held=[])))

    assert again.settled == {}
    assert [(grant.id, grant.token) for grant in again.grants] == [(ids[1], 1), (ids[2], 1)]
    assert [grant.payload_text for grant in again.grants] == [LONG, LONG]
    assert [row["state"] for row in rows(store, ids)] == ["succeeded", "running", "running"] + ["queued"] * 3


def test_what_was_taken_away_between_the_commit_and_the_look_is_not_told(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what stands in its place by then, after a VACUUM that numbered the rows anew, is not told either."""
    warm(store)
    ids = fill(store, 6)
    ends = [Completed(grant.id, grant.token) for grant in claim(store, 2)]
    other = sqlite3.connect(path, isolation_level=None)

    def look(connection: sqlite3.Connection, rowids: str, worker: str, now: int) -> Any:
        other.execute("UPDATE tenure_job SET lease_owner = 'somebody' WHERE id = ?", (ids[2],))
        other.execute("DELETE FROM tenure_job WHERE id = ?", (ids[0],))
        other.execute("VACUUM")
        return told(connection, rowids, worker, now)

    told = one_statement.tell
    monkeypatch.setattr(exchange_room, "tell", look)
    answer = store.do(Exchange(ends, Claim(WORKER, ["default"], 2)))
    other.close()

    granted = {grant.id for grant in answer.grants}
    assert granted <= {ids[3]}
    monkeypatch.undo()
    again = store.do(Exchange([], Claim(WORKER, ["default"], 1, held=sorted(granted))))
    assert {grant.id for grant in again.grants} | granted >= {ids[3]}


@pytest.mark.parametrize("kind", ["a\x1fb", "c\x1e d 1 1 1 1 1\x1f{}", "\x01", "new\nline"])
def test_neither_kind_nor_payload_holds_what_separates_jobs(store: SqliteStore, path: Path, kind: str) -> None:
    """The front door takes names only; this is for whoever writes to the file."""
    (job_id,) = fill(store, 1)
    raw = sqlite3.connect(path)

    with pytest.raises(sqlite3.IntegrityError, match="job_kind"):
        raw.execute("UPDATE tenure_job SET kind = ? WHERE id = ?", (kind, job_id))
    with pytest.raises(sqlite3.IntegrityError, match="job_payload_is_json"):
        raw.execute("UPDATE tenure_job SET payload = ? WHERE id = ?", (f'"{kind}"', job_id))
    raw.close()

    assert [grant.kind for grant in claim(store)] == ["work"]


def test_kinds_and_numbers_are_told_as_they_are(store: SqliteStore, long_way: SqliteStore) -> None:
    wishes: list[dict[str, Any]] = [{}, {"priority": -7}, {"max_attempts": 1}, {"priority": 2**31 - 1}, {"tenant": "ä"}]
    kinds = ["two words", "3 1 1 1 1 1", "ü\x7f", "work", " "]
    ids = new_job_ids(len(kinds))
    jobs = [NewJob(job_id, kind, **more) for job_id, kind, more in zip(ids, kinds, wishes, strict=True)]

    def granted(each: SqliteStore) -> list[dict[str, Any]]:
        warm(each)
        each.do(Enqueue(jobs))
        return [asdict(grant) for grant in each.do(Exchange([], Claim(WORKER, ["default"], 60))).grants]

    short, long = both(store, long_way, granted)

    assert short == long
    assert {grant["id"]: grant["kind"] for grant in short} == dict(zip(ids, kinds, strict=True))
    assert [grant["priority"] for grant in short] == [2**31 - 1, 0, 0, 0, -7]


@pytest.mark.parametrize("result", [None, "[1]"])
def test_its_cost_does_not_depend_on_how_many_are_held_or_have_ended(
    store: SqliteStore, path: Path, result: str | None
) -> None:
    def cost() -> int:
        grants = claim(store, 20)
        connection = store._database.writer.handle.connection
        assert connection is not None
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        connection.set_progress_handler(count, 10)
        ends = [Completed(grant.id, grant.token, result) for grant in grants]
        store.do(Exchange(ends, Claim(WORKER, ["default"], 20)))
        connection.set_progress_handler(None, 0)
        return steps

    warm(store)
    fill(store, 60)
    other = sqlite3.connect(path)
    other.execute("ANALYZE")  # the planner now believes that the table is small
    other.close()
    few = cost()
    fill(store, 6000)
    held = claim(store, 4000)
    store.do(Exchange([Completed(grant.id, grant.token) for grant in held[:2000]], None))

    assert cost() <= few * 1.3


def test_large_exchanges_have_commits_of_their_own_and_small_ones_share_one(store: SqliteStore) -> None:
    warm(store)
    fill(store, 300)
    writer = store._database.writer
    requests = [Exchange([], Claim(WORKER, ["default"], limit)) for limit in (1, 2, 100, 100, 3, 4)]

    async def work() -> list[Exchanged]:
        assert writer.pause(5.0)
        asked = [asyncio.create_task(store.ado(request)) for request in requests]
        await until(lambda: len(writer._pending) == len(requests))
        before = writer.transactions
        writer.go_on()
        answers = await asyncio.gather(*asked)
        assert writer.transactions - before == 4
        return answers

    assert [len(answer.grants) for answer in asyncio.run(work())] == [1, 2, 100, 100, 3, 4]


def test_a_loop_gives_way_again_and_again_until_its_answer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    loop = Timers()

    with giving_way(loop, 0.001, now=True):  # type: ignore[arg-type]
        assert slept == [A_MOMENT]
        loop.fire()
        loop.fire()

    assert slept == [A_MOMENT] * 3
    assert loop.live == []
    assert loop.pauses == [0.001, 0.001, pytest.approx(0.0011)]


class Timers:
    """As much of an event loop as there is to timers; they fire when told to."""

    def __init__(self) -> None:
        self.live: list[Callable[[], None]] = []
        self.pauses: list[float] = []

    def call_later(self, seconds: float, act: Callable[[float], None], value: float) -> Timers:
        self.live.append(lambda: act(value))
        self.pauses.append(seconds)
        return self

    def cancel(self) -> None:
        self.live.pop()

    def fire(self) -> None:
        self.live.pop()()
