"""An idle worker's poll carries its heartbeat; whatever goes wrong with that, the thread sends it as ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from tenure.errors import StoreUnavailable
from tenure.model.ids import WorkerId
from tenure.model.outcome import Beat
from tenure.store.contract import Exchange, Exchanged, Heartbeat, Request, Store, WorkerRow
from tenure.store.queries import ListWorkers
from tenure.worker import lease
from tenure.worker.config import WorkerConfig
from tenure.worker.lease import Leases
from tenure.worker.policies import Policies
from tenure.worker.report import Reporter, Silence
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.exchangers import Fleet, NoBeats, exchanger, settle_down

pytestmark = pytest.mark.anyio

ROW = WorkerRow(WorkerId("w"), "host", 1)


class Beats(Fleet):
    """A store without jobs that takes every poll for a heartbeat if it may, unless it is away."""

    def __init__(self) -> None:
        super().__init__(waiting=1)
        self.beats: list[bool] = []
        self.is_away = False

    async def ado(self, request: Request[Any], *, may_block: bool = False) -> Exchanged:
        arrived = await super().ado(request, may_block=may_block)
        claim = cast(Exchange, request).claim
        assert claim is not None
        self.beats.append(claim.beats)
        if self.is_away:
            raise StoreUnavailable("away")
        return replace(arrived, beat=Beat() if claim.beats else None)


class Due(NoBeats):
    """A heartbeat is due, and may be carried."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.beats: list[Beat] = []

    def is_due_within(self, seconds: float) -> bool:
        self.asked.append(seconds)
        return True

    def carried(self, beat: Beat, sent: float) -> None:
        self.beats.append(beat)


async def test_a_poll_is_a_heartbeat_and_the_look_after_a_wake_up_is_none() -> None:
    due = Due()
    made = exchanger(store := Beats(), poll_seconds=3600.0, leases=due)
    running = asyncio.ensure_future(made.run())
    await settle_down(store)
    assert not any(store.beats), "the worker has just come"

    made.wake()
    await settle_down(store)
    assert (store.beats[-1], due.beats) == (False, []), "a job may be there, and does not wait for the write"
    made._look()
    await settle_down(store)

    assert (store.beats[-1], due.beats, due.asked) == (True, [Beat()], [3600.0])
    made.finish()
    await running


async def test_a_worker_that_holds_a_job_leaves_heartbeats_to_their_thread() -> None:
    due = Due()
    made = exchanger(store := Beats(), leases=due)
    running = asyncio.ensure_future(made.run())
    await settle_down(store)
    made.unfinished = 1

    before = store.claims
    made._look()
    await settle_down(store)

    assert (store.claims, store.beats[-1], due.asked) == (before + 1, False, [])
    made.unfinished = 0
    made.finish()
    await running


async def test_a_poll_that_fails_was_no_heartbeat() -> None:
    due = Due()
    made = exchanger(store := Beats(), leases=due)
    running = asyncio.ensure_future(made.run())
    await settle_down(store)

    store.is_away = True
    made._look()
    await settle_down(store)

    assert (store.beats[-1], due.beats) == (True, [])
    made.give_up()
    await running


class Moment:
    """A clock set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Moment:
    made = Moment()
    monkeypatch.setattr(lease, "monotonic", made)
    return made


def leases(row: WorkerRow = ROW) -> Leases:
    """Without its thread, and a heartbeat each 20 s: the first has been sent, the next is due now."""
    report, config = Reporter(WorkerId("w"), Silence()), WorkerConfig(heartbeat_seconds=20.0)
    policies = Policies(cast(Store, None), config, {})
    made = Leases(cast(Store, None), {}, lambda: row, policies, report, asyncio.Event())
    made._told = ROW
    return made


async def test_a_heartbeat_that_was_carried_is_not_sent(moment: Moment) -> None:
    made = leases()
    assert made.is_due_within(0.0)
    moment.now += 1.0

    made.carried(Beat(led_seconds=5.0), sent=300.0)

    assert made._beat_at == 1020.0, "counted from before the poll was sent"
    assert (made.beats, made.led_until) == (1, 305.0)
    assert not made.is_due_within(18.9), "the next poll will do"
    assert made.is_due_within(19.0)


async def test_a_heartbeat_is_offered_once(moment: Moment) -> None:
    made = leases()
    assert made.is_due_within(1.0)

    assert not made.is_due_within(1.0)
    assert made._beat_at == moment.now, "so the thread sends it"


@pytest.mark.usefixtures("moment")
async def test_a_heartbeat_that_has_something_to_say_is_sent() -> None:
    assert not leases(replace(ROW, status="warn")).is_due_within(1.0)


async def test_a_heartbeat_that_was_asked_for_is_sent_whatever_a_poll_has_carried(moment: Moment) -> None:
    made = leases()
    made._beat_at = moment.now + 5.0
    assert made.is_due_within(10.0)

    made.kick()
    made.carried(Beat(), sent=300.0)

    assert made._beat_at == moment.now


async def test_an_idle_workers_row_stays_fresh_whoever_carries_it(bed: Bed) -> None:
    """PostgreSQL takes a poll for a heartbeat, SQLite leaves it to the thread."""

    async def nothing() -> None: ...

    bed.handle(nothing)
    async with bed.working(poll_seconds=0.02, heartbeat_seconds=0.1) as worker:
        await until(lambda: [seen.ticks >= 5 for seen in bed.store.do(ListWorkers())] == [True])
        await until(lambda: worker.stats().heartbeats >= 5)


@pytest.mark.parametrize("url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
async def test_an_idle_workers_polls_are_its_heartbeats(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    carried, sent = list[Exchange](), list[Heartbeat]()
    ado, do = bed.store.ado, bed.store.do

    async def watch(request: Request[Any], **settings: Any) -> Any:
        answer = await ado(request, **settings)
        if isinstance(answer, Exchanged) and answer.beat is not None:
            carried.append(cast(Exchange, request))
        return answer

    def count(request: Request[Any]) -> Any:
        if isinstance(request, Heartbeat):
            sent.append(request)
        return do(request)

    monkeypatch.setattr(bed.store, "ado", watch)
    monkeypatch.setattr(bed.store, "do", count)

    async def nothing() -> None: ...

    bed.handle(nothing)
    async with bed.working(poll_seconds=0.05, heartbeat_seconds=0.2) as worker:
        await until(lambda: len(carried) >= 3)

        assert worker.stats().heartbeats >= len(carried)
    assert sent, "the worker shows itself at once"
