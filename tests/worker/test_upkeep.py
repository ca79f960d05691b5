"""The leader's duties: minutes are counted by whoever leads, once, and by nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tenure.errors import AccessDenied
from tenure.model.clock import ManualClock
from tenure.model.ids import WorkerId
from tenure.model.outcome import Completed, Rejected
from tenure.store.admin import AcquireLease, ReleaseLease
from tenure.store.contract import Claim, Enqueue, Prune, Reap, Settle, Store
from tenure.store.metrics import ListMetrics, Metric
from tenure.store.queries import GetJobs
from tenure.worker import leader
from tenure.worker.config import WorkerConfig
from tenure.worker.leader import LEADER, Leader
from tenure.worker.log import WorkerLog
from tests.conformance.acts import new_job
from tests.conformance.engines import START, SteeredClock, SteeredDatabase, open_postgres, open_sqlite
from tests.servers import PostgresServer
from tests.waiting import until
from tests.worker.bed import EventLog


@dataclass
class Ground:
    """A store on a clock that the test moves."""

    store: Store
    clock: SteeredClock

    def happen(self) -> None:
        """Two jobs are made in the first minute, and one of them ends well; then the minute is over."""
        self.store.do(Enqueue([new_job(), new_job()]))
        [grant] = self.store.do(Claim(WorkerId("w1"), ["default"]))
        self.store.do(Settle([Completed(grant.id, grant.token)]))
        self.clock.advance(180)

    def metrics(self) -> list[Metric]:
        return self.store.do(ListMetrics())

    def worker(self, name: str, log: EventLog | None = None) -> Leader:
        async def nothing() -> None: ...

        reporter = WorkerLog(name, log or EventLog())
        return Leader(self.store, WorkerId(name), WorkerConfig(), [], reporter, nothing)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ground]:
    if request.param == "sqlite":
        clock = ManualClock(START)
        store = open_sqlite(tmp_path / "jobs.db", clock)
        yield Ground(store, clock)
        store.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = SteeredDatabase(server)
    store = open_postgres(database.url)
    yield Ground(store, database)
    store.close()
    database.close()


@contextlib.asynccontextmanager
async def upkeep(*workers: Leader) -> AsyncIterator[None]:
    """Workers that do their upkeep meanwhile."""
    tasks = [asyncio.ensure_future(each.run()) for each in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.anyio
async def test_the_leader_counts_minutes_that_are_over(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "ROLL_UP_SECONDS", 0.05)
    ground.happen()

    async with upkeep(ground.worker("one"), ground.worker("two")):
        await until(ground.metrics)

    assert [(one.minute, one.queue, one.completed, one.failed) for one in ground.metrics()] == [
        (START, "default", 1, 0)
    ]


@pytest.mark.anyio
async def test_two_that_both_believe_to_lead_count_a_minute_once(ground: Ground) -> None:
    ground.happen()
    believers = [ground.worker(name) for name in ("one", "two", "three")]

    async def counted() -> bool:
        await asyncio.gather(*(each.roll_up() for each in believers))
        return bool(ground.metrics())

    await until(counted)  # on a server that others use too, a transaction of theirs may have to end first
    await asyncio.gather(*(each.roll_up() for each in believers))

    assert [(one.minute, one.completed) for one in ground.metrics()] == [(START, 1)]


@pytest.mark.anyio
async def test_who_does_not_lead_counts_nothing_until_it_does(ground: Ground) -> None:
    ground.happen()
    lease = ground.store.do(AcquireLease(LEADER, "somebody else"))
    follower = ground.worker("one")
    await follower.stand_for_election()

    counting = asyncio.ensure_future(follower._roll_up_as_leader())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not follower.is_leader
    assert not counting.done()
    assert ground.metrics() == []

    ground.store.do(ReleaseLease(LEADER, "somebody else", lease.term))
    await follower.stand_for_election()
    await counting
    assert len(ground.metrics()) == 1


class Counted:
    """A store that counts the reaps that go through it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reaps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def ado(self, request: Any) -> Any:
        self.reaps += isinstance(request, Reap)
        return await self._store.ado(request)


@pytest.mark.anyio
async def test_the_leader_and_no_other_takes_back_leases_although_no_worker_claims(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "REAP_SECONDS", 0.01)
    job = new_job()
    ground.store.do(Enqueue([job]))
    ground.store.do(Claim(WorkerId("gone"), ["default"]))
    ground.clock.advance(3600)
    leading, following = ground.worker("one"), ground.worker("two")
    leading._store = leads = cast(Any, Counted(ground.store))
    following._store = follows = cast(Any, Counted(ground.store))
    await leading.stand_for_election()

    async with upkeep(leading, following):
        await until(lambda: leads.reaps >= 5)

    [found] = ground.store.do(GetJobs([job.id]))
    assert found is not None
    assert found.state == "queued"
    assert follows.reaps == 0


@pytest.mark.anyio
async def test_a_duty_that_is_denied_is_said_once_and_told_until_it_is_allowed(ground: Ground) -> None:
    log = EventLog()
    leader = ground.worker("one", log)
    refusals = [AccessDenied("no right"), AccessDenied("no right"), None, AccessDenied("no right again")]

    async def act() -> None:
        refusal = refusals.pop(0)
        if refusal is not None:
            raise refusal

    told = []
    for _ in range(4):
        await leader._duty("prune", act)
        told.append(dict(leader.denied))

    assert told == [{"prune": "no right"}, {"prune": "no right"}, {}, {"prune": "no right again"}]
    assert log.names() == ["upkeep_denied", "upkeep_denied"]
    assert "tenure_operator" in str(log.events[0].message)


@pytest.mark.anyio
async def test_one_sweep_prunes_more_than_any_number_of_batches(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention keeps up with a fleet however many jobs it ends: only time bounds a sweep."""
    monkeypatch.setattr(leader, "SWEEP_LIMIT", 5)
    jobs = 40 * leader.SWEEP_LIMIT
    ground.store.do(Enqueue([new_job() for _ in range(jobs)]))
    grants = ground.store.do(Claim(WorkerId("w1"), ["default"], limit=jobs))
    ground.store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
    ground.clock.advance(8 * 86_400)

    await ground.worker("one").sweep()

    assert ground.store.do(Prune()).cleaned == 0
    assert len(grants) == jobs


@pytest.mark.anyio
async def test_a_sweep_ends_when_its_time_is_over(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "SWEEP_LIMIT", 1)
    monkeypatch.setattr(leader, "PRUNE_SECONDS", 0.0)
    ground.happen()
    grants = ground.store.do(Claim(WorkerId("w1"), ["default"], limit=9))
    ground.store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
    ground.clock.advance(8 * 86_400)

    await ground.worker("one").sweep()

    assert ground.store.do(Prune()).cleaned == 1, "one batch of one job was pruned, and the next sweep goes on"


@pytest.mark.anyio
async def test_by_default_a_leader_deletes_the_rows_of_jobs_that_ended_a_month_ago(ground: Ground) -> None:
    """U15: they were never deleted. A job with a dead letter that is not closed stays."""
    ended, died, left = new_job(), new_job(), new_job()
    ground.store.do(Enqueue([ended, died, left]))
    first, second, _ = ground.store.do(Claim(WorkerId("w1"), ["default"], limit=3, lease_seconds=80_000))
    ground.store.do(Settle([Completed(first.id, first.token), Rejected(second.id, second.token, "no")]))
    ground.clock.advance(29 * 86_400)
    await ground.worker("one").sweep()
    assert None not in ground.store.do(GetJobs([ended.id]))

    ground.clock.advance(2 * 86_400)
    await ground.worker("one").sweep()

    assert [job is None for job in ground.store.do(GetJobs([ended.id, died.id, left.id]))] == [True, False, False]


@pytest.mark.anyio
async def test_a_duty_that_fails_in_an_unforeseen_way_ends_neither_the_others_nor_the_worker(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that refused one more thread ended the whole worker, and with it all that it held."""
    for name in ("REFRESH_SECONDS", "ROLL_UP_SECONDS"):
        monkeypatch.setattr(leader, name, 0.05)
    ground.happen()
    log, tries = EventLog(), 0

    async def refresh() -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("can't start new thread")

    one = Leader(ground.store, WorkerId("one"), WorkerConfig(), [], WorkerLog("one", log), refresh)
    async with upkeep(one):
        await until(lambda: tries >= 2)
        await until(ground.metrics)

    failed = [event for event in log.events if event.name == "upkeep_failed"]
    assert {(event.message, event.fields["code"]) for event in failed} == {("can't start new thread", "RuntimeError")}
