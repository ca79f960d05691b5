"""The tests are tested: each planted bug must be found, by the machine of random lives or by the checker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, Failed, Outcome
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import AcquireLease, SetQueues
from tenure.store.contract import Claim, Enqueue, Reap, Settle, Store
from tests.conformance.engines import START, scratch_folder
from tests.fault.checker import check, snapshot
from tests.fault.journal import Record, granted
from tests.fault.planted import (
    AttemptsCountedOnFailureOnly,
    BlindRetryOfCommit,
    ClientClockJudges,
    DeleteBeforeRun,
    FinishFromQueued,
    GuardByStateOnly,
    HeartbeatRevives,
    LeaderKeptOnRollback,
    LookThenInsert,
    NoTokenInComplete,
    Planted,
    ReapByIdAlone,
    WorkerIdIsHostName,
    opener,
)
from tests.fault.scale import TIMEOUT
from tests.stateful.grounds import SqliteGround
from tests.stateful.machine import machine_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as path:
        yield path


@pytest.mark.parametrize(
    "bug",
    [
        NoTokenInComplete,
        GuardByStateOnly,
        FinishFromQueued,
        ReapByIdAlone,
        AttemptsCountedOnFailureOnly,
        DeleteBeforeRun,
        BlindRetryOfCommit,
        HeartbeatRevives,
        ClientClockJudges,
    ],
)
def test_the_machine_finds_a_planted_bug(folder: Path, bug: type[Planted]) -> None:
    ground = SqliteGround(folder, opener(bug))

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine_on(ground),
            settings=settings(
                max_examples=3_000,  # one in ten finds it, so a miss of all is out of reach
                stateful_step_count=50,
                phases=[Phase.generate],
                database=None,
                report_multiple_bugs=False,
                print_blob=False,
                suppress_health_check=list(HealthCheck),
            ),
        )


class Story:
    """Two workers and a clock, writing down what they are told."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.records: list[Record] = []
        store.do(SetQueues({"q": QueuePolicy(backoff=Backoff(shape="none", jitter=0))}, actor="test"))

    def enqueue(self, key: str | None = None) -> None:
        job = NewJob(id=new_job_id(), kind="work", queue="q", key=key)
        self.records.append(Record("enqueue", "invoke", "client", job.id))
        [answer] = self.store.do(Enqueue([job]))
        self.records.append(Record("enqueue", "ok", "client", answer.id))

    def claim(self, worker: str, limit: int = 1, held: list[JobId] | None = None) -> list[Grant]:
        """`held`: what the worker knows that it holds; a worker that has just begun knows of nothing."""
        grants = self.store.do(Claim(WorkerId(worker), ["q"], limit=limit, lease_seconds=10, held=held))
        self.records += [granted(worker, grant) for grant in grants]
        return grants

    def settle(self, worker: str, outcome: Outcome) -> None:
        [one] = self.store.do(Settle([outcome]))
        self.records.append(Record("settle", "ok", worker, one.job_id, one.token, type(outcome).__name__, one.state))

    def lead(self, worker: str) -> None:
        lease = self.store.do(AcquireLease("leader", worker, 10))
        name = JobId(lease.name)
        self.records.append(Record("lead", "ok", worker, name, lease.term, answer=name if lease.acquired else None))

    def complete(self, worker: str, grants: list[Grant]) -> None:
        for grant in grants:
            self.settle(worker, Completed(grant.id, grant.token))


def tell(story: Story) -> None:
    """A zombie, a change of mind, a reaper among live leases, a worker that has just begun, two that want to lead, and
    a drain at the end."""
    for _ in range(4):
        story.enqueue()
    old = story.claim("w1", 2)
    story.clock.advance(11)
    new = story.claim("w2", 2)
    story.complete("w1", old)
    story.complete("w2", new)
    for grant in story.claim("w1"):
        story.settle("w1", Failed(grant.id, grant.token, "boom"))
        story.settle("w1", Completed(grant.id, grant.token))
    held = story.claim("w1", 2)
    story.complete("w3", story.claim("w3", 2, held=[]))
    for worker in ("w1", "w2", "w1"):
        story.lead(worker)
    story.store.do(Reap())
    story.complete("w2", story.claim("w2", 4))
    story.complete("w1", held)
    story.clock.advance(11)
    story.complete("w2", story.claim("w2", 10))


def told_on(folder: Path, kind: type[Planted]) -> tuple[list[str], list[Record]]:
    clock = ManualClock(START)
    store = opener(kind)(folder / "jobs.db", clock)
    try:
        story = Story(store, clock)
        tell(story)
        return check(story.records, snapshot(store)), story.records
    finally:
        store.close()


def test_the_checker_finds_nothing_where_nothing_is_wrong(folder: Path) -> None:
    broken, records = told_on(folder, Planted)

    assert broken == []
    refused = [record for record in records if record.op == "settle" and record.answer is None]
    assert len(refused) >= 3, "a run in which nobody was refused proves nothing"


@pytest.mark.parametrize(
    ("bug", "number"),
    [
        (NoTokenInComplete, 7),
        (GuardByStateOnly, 7),
        (FinishFromQueued, 3),
        (ReapByIdAlone, 5),
        (AttemptsCountedOnFailureOnly, 8),
        (DeleteBeforeRun, 1),
        (BlindRetryOfCommit, 2),
        (WorkerIdIsHostName, 6),
        (LeaderKeptOnRollback, 19),
    ],
)
def test_the_checker_names_a_planted_bug(folder: Path, bug: type[Planted], number: int) -> None:
    broken, _ = told_on(folder, bug)

    assert any(sentence.startswith(f"{number}:") for sentence in broken), broken


def test_the_checker_finds_keys_that_were_looked_up_before_the_insert(folder: Path) -> None:
    clock = ManualClock(START)
    gate = threading.Barrier(2)

    class Both(LookThenInsert):
        def looked(self) -> None:
            gate.wait(30)

    stores = [opener(Both)(folder / "jobs.db", clock) for _ in range(2)]
    stories = [Story(store, clock) for store in stores]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda story: story.enqueue(key="k"), stories))

    broken = check([*stories[0].records, *stories[1].records], snapshot(stores[0]), drained=False)
    for store in stores:
        store.close()

    assert [sentence for sentence in broken if sentence.startswith("11:")] != []
