"""A job that an enqueue of another process hands over to a worker that waits, in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import GateClosed
from tenure.model.clock import ManualClock
from tenure.model.policy import QueuePolicy
from tenure.store.admin import PauseQueues, SetGate, SetQueues
from tenure.store.contract import Claim, Enqueue, Exchange
from tenure.store.sqlite.sockets import LONGEST_MESSAGE
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, in_fork, job, put
from tests.sqlite.forked import Enqueuer, prime, put_as_before
from tests.sqlite.lines import LOOK, Line, left, run, stands

pytestmark = pytest.mark.usefixtures("only_datagrams", "looked")


# --- handed over
# ---------------------------------------------------------------------------------------------------------


def test_the_job_is_the_workers_before_the_enqueue_returns(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()

        job_id = in_fork(lambda: put_as_before(store))

        found = line.job(job_id)
        assert (found.state, found.token, found.attempt, found.lease_owner) == ("running", 1, 1, WORKER)
        assert line.told == [], "and the loop has not run yet"
        await line.woken()
        assert (left(line), line.told.count("wake")) == (1, 1)
        assert not armed.disarm()
        exchanged = await armed.answer()
        (grant,) = exchanged.grants
        assert exchanged.is_handed_over
        assert (grant.id, grant.token, grant.attempt, grant.worker) == (job_id, 1, 1, WORKER)
        assert grant.lease_until == found.lease_until
        assert grant.payload == {}

    run(store, path, work)


def test_it_takes_one_transaction_in_all(store: SqliteStore, path: Path) -> None:
    def enqueue() -> int:
        before: list[int] = []
        put_as_before(store, before=lambda: before.append(store.stats().transactions))
        return store.stats().transactions - before[0]

    async def work(line: Line) -> None:
        armed, before = line.arm(), store.stats().transactions

        assert in_fork(enqueue) == 1
        await line.woken()
        assert len((await armed.answer()).grants) == 1
        assert store.stats().transactions == before

    run(store, path, work)


@pytest.mark.parametrize("starts", [True, False])
def test_the_row_is_as_if_the_worker_had_claimed_it(store: SqliteStore, path: Path, starts: bool) -> None:
    store.do(SetQueues({"default": QueuePolicy(start_on_claim=starts, aging_seconds=60.0)}, "test"))
    store.do(LOOK)

    def row(job_id: str) -> dict[str, Any]:
        connection = sqlite3.connect(path)
        connection.row_factory = sqlite3.Row
        found = dict(connection.execute("SELECT * FROM tenure_job WHERE id = ?", (job_id,)).fetchone())
        connection.close()
        assert found.pop("id") == job_id
        return found

    async def work(line: Line) -> None:
        armed = line.arm()
        handed = in_fork(lambda: put_as_before(store))
        await line.woken()
        (grant,) = (await armed.answer()).grants
        claimed = put(store)
        (other,) = store.do(LOOK).grants

        assert row(handed) == row(claimed)
        assert grant.started is starts
        other.id = grant.id
        assert asdict(grant) == asdict(other)

    run(store, path, work)


def test_an_older_job_goes_first_and_everybody_is_woken_for_the_new_one(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        older = store.do(Enqueue([replace(job(key="k", payload='{"n": "ä"}'), tenant="t", trace="00-ab")]))[0].id
        await line.woken()
        armed = line.arm()

        newer = in_fork(lambda: put_as_before(store))

        assert (line.job(older).lease_owner, line.state(newer)) == (WORKER, "queued")
        await line.woken(3)
        (grant,) = (await armed.answer()).grants
        assert (grant.id, grant.payload) == (older, {"n": "ä"})
        assert [grant.extra(name) for name in ("key", "tenant", "trace", "actor")] == ["k", "t", "00-ab", None]

    run(store, path, work)


def test_a_payload_too_long_for_a_word_is_asked_for(store: SqliteStore, path: Path) -> None:
    text = json.dumps({"text": "ä" * LONGEST_MESSAGE})

    async def work(line: Line) -> None:
        armed = line.arm()
        job_id = in_fork(lambda: put_as_before(store, text))
        await line.woken()

        (grant,) = (await armed.answer()).grants

        assert (grant.id, grant.token, grant.payload) == (job_id, 1, json.loads(text))

    run(store, path, work)


def test_words_pass_where_the_path_is_too_long_for_a_socket(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / ("deep-" * 30)
    folder.mkdir()
    store = SqliteStore(f"sqlite:///{folder}/jobs.db", clock)
    store.migrate()
    store.do(SetQueues({"elsewhere": QueuePolicy()}, "test"))
    store.do(LOOK)

    async def work(line: Line) -> None:
        armed = line.arm()
        job_id = in_fork(lambda: put_as_before(store))
        await line.woken()

        assert [grant.id for grant in (await armed.answer()).grants] == [job_id]

    run(store, folder / "jobs.db", work)
    store.close()


def test_of_two_that_enqueue_at_once_one_hands_over_and_the_other_wakes(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        both = [Enqueuer(lambda: put_as_before(store)) for _ in range(2)]
        for each in both:
            each.wait_there()
        for each in both:
            each.go_on()
        for each in both:
            each.wait()

        await line.woken(2)
        exchanged = await armed.answer()
        more = store.do(LOOK).grants

        assert exchanged.is_handed_over
        tokens = {grant.id: grant.token for grant in (*exchanged.grants, *more)}
        assert (len(exchanged.grants), len(more), set(tokens.values())) == (1, 1, {1})
        assert left(line) == 1

    run(store, path, work)


def test_each_of_two_workers_is_handed_a_job_of_its_own(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        other = Line(store, path)
        other.subscription = store.subscribe(["default"], lambda: other.told.append("wake"), asyncio.get_running_loop())
        claim = Claim(type(WORKER)("w2"), ["default"], limit=10)
        first, second = line.arm(), other.arm(Exchange((), claim))

        ids = in_fork(lambda: [put_as_before(store), put(store)])

        await line.woken()
        await other.woken()
        grants = [*(await first.answer()).grants, *(await second.answer()).grants]
        assert {grant.id for grant in grants} == set(ids)
        assert {grant.worker for grant in grants} == {"w1", "w2"}
        other.subscription.close()

    run(store, path, work)


# --- not handed over
# ---------------------------------------------------------------------------------------------------------


def _pause(store: SqliteStore) -> None:
    store.do(PauseQueues(["default"], paused=True, actor="ann"))


def _close_gate(store: SqliteStore) -> None:
    store.do(SetGate("worker", is_open=False, actor="ann"))


def _close_gate_of_its_profile(store: SqliteStore) -> None:
    store.do(SetGate("default.worker", is_open=False, actor="ann"))


def _limit(store: SqliteStore) -> None:
    store.do(SetQueues({"default": QueuePolicy(concurrency=5)}, "ann"))


def _limit_by_key(store: SqliteStore) -> None:
    store.do(SetQueues({"default": QueuePolicy(concurrency_per_key=5)}, "ann"))


def _shorten_lease(store: SqliteStore) -> None:
    store.do(SetQueues({"default": QueuePolicy(lease_seconds=7.0)}, "ann"))


CLOSED = [_pause, _close_gate, _close_gate_of_its_profile, _limit, _limit_by_key]


@pytest.mark.parametrize("change", [*CLOSED, _shorten_lease])
def test_a_worker_offers_nothing_where_a_claim_is_not_plain(
    store: SqliteStore, path: Path, change: Callable[[SqliteStore], None]
) -> None:
    async def work(line: Line) -> None:
        change(store)
        with contextlib.suppress(GateClosed):
            store.do(LOOK)
        armed = line.arm()

        assert not stands(armed)
        assert line.state(in_fork(lambda: put_as_before(store))) == "queued"

    run(store, path, work)


@pytest.mark.parametrize("change", CLOSED)
def test_an_offer_made_before_a_change_is_taken_in_vain(
    store: SqliteStore, path: Path, change: Callable[[SqliteStore], None]
) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        assert stands(armed)
        in_fork(lambda: change(store))

        job_id = in_fork(lambda: put_as_before(store))

        assert line.state(job_id) == "queued"
        await line.woken()
        with contextlib.suppress(GateClosed):
            exchanged = await armed.answer()
            assert not exchanged.is_handed_over

    run(store, path, work)


@pytest.mark.parametrize(
    "claim",
    [
        Claim(WORKER, ["default"], kinds=["work"]),
        Claim(WORKER, ["default"], affinity=[None]),
        Claim(WORKER, ["default", "elsewhere"]),
        Claim(WORKER, ["default"], held=()),
        Claim(WORKER, ["default"], lease_seconds=7.9),
    ],
    ids=["kinds", "affinity", "two queues", "held", "a short lease"],
)
def test_a_claim_with_wishes_is_not_offered(store: SqliteStore, path: Path, claim: Claim) -> None:
    async def work(line: Line) -> None:
        store.do(Exchange((), claim))

        armed = line.arm(Exchange((), claim))

        assert not stands(armed)
        assert line.state(in_fork(lambda: put_as_before(store))) == "queued"

    run(store, path, work)


def test_the_lease_that_the_worker_asked_for_is_given(store: SqliteStore, path: Path, clock: ManualClock) -> None:
    async def work(line: Line) -> None:
        line.arm(Exchange((), Claim(WORKER, ["default"], lease_seconds=17)))

        found = line.job(in_fork(lambda: put_as_before(store)))

        assert found.lease_until is not None
        assert (found.lease_until - clock.now()).total_seconds() == 17

    run(store, path, work)


def test_a_batch_a_keyed_job_a_later_one_and_a_callers_transaction_leave_the_offer_alone(
    store: SqliteStore, path: Path
) -> None:
    def enqueue() -> None:
        prime(store)
        store.do(Enqueue([job(), job()]))
        store.do(Enqueue([job(key="k")]))
        store.do(Enqueue([replace(job(), delay_seconds=60)]))
        connection = sqlite3.connect(path)
        store.enqueue_on(connection, Enqueue([job()]))
        connection.commit()
        connection.close()

    async def work(line: Line) -> None:
        armed = line.arm()

        in_fork(enqueue)

        assert stands(armed)
        assert armed.disarm()

    run(store, path, work)


def test_who_enqueues_where_a_worker_waits_does_so_as_before(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        line.arm()
        put(store)
        assert store._database.hub.postman.offers, "the pipe was seen"
        armed = line.arm()

        job_id = put(store)

        assert line.state(job_id) == "queued"
        assert armed.disarm()

    run(store, path, work)


@pytest.mark.parametrize("what", ["a lease that ran out", "a job that came due"])
def test_what_a_claim_has_to_see_to_first_is_left_to_the_worker(
    store: SqliteStore, path: Path, clock: ManualClock, what: str
) -> None:
    async def work(line: Line) -> None:
        if what == "a lease that ran out":
            older = put(store)
            store.do(Claim(type(WORKER)("gone"), ["default"]))
        else:
            older = store.do(Enqueue([replace(job(), delay_seconds=60)]))[0].id
        clock.advance(600)
        armed = line.arm()

        newer = in_fork(lambda: put_as_before(store))

        assert line.state(newer) == "queued"
        await line.woken(2)
        assert [grant.id for grant in (await armed.answer()).grants] == [older, newer]

    run(store, path, work)


def test_terms_that_were_changed_since_they_were_read_give_nothing(store: SqliteStore, path: Path) -> None:
    def enqueue() -> tuple[str, str]:
        first = put_as_before(store)
        with sqlite3.connect(path) as other:
            other.execute("UPDATE tenure_queue SET paused_at = 1 WHERE name = 'default'")
        other.close()
        return first, put(store)

    async def work(line: Line) -> None:
        other = store.subscribe(["default"], lambda: None, asyncio.get_running_loop())
        line.arm()
        assert other.arm(Exchange((), Claim(type(WORKER)("w2"), ["default"])), lambda: None) is not None

        first, second = in_fork(enqueue)

        assert (line.state(first), line.state(second)) == ("running", "queued")
        other.close()

    run(store, path, work)
