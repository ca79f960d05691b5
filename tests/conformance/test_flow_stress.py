"""Many parents, children and signals at once, by six workers that hold their transactions at random: nothing is stuck,
nothing ends twice, and the server has seen no deadlock. `TENURE_LONG=1` runs it at full size, fifty times; a seed is
printed, and `TENURE_SEED` replays it.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from pathlib import Path

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Failed, Outcome, Suspended
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.model.step import NewGroup, NewStep
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue, Exchange, Store
from tenure.store.flow import GetGroup, ListSteps, Signal, SweepFlow
from tenure.store.queries import GetJobs, ListAttempts
from tests.conformance.acts import NO_BACKOFF, new_job
from tests.conformance.engines import migrated_database, open_sqlite, open_store, scratch_folder
from tests.servers import PostgresServer

LONG = os.environ.get("TENURE_LONG") == "1"
PARENTS, CHILDREN = (300, 20) if LONG else (40, 6)
RUNS = 50 if LONG else 1
WORKERS = 6
WITHIN_SECONDS = 600.0 if LONG else 90.0


@pytest.mark.timeout(0 if LONG else 180)
@pytest.mark.parametrize("run", range(RUNS))
def test_no_parent_is_stuck_on_sqlite(run: int) -> None:
    with scratch_folder() as folder:
        store = open_sqlite(Path(folder) / "jobs.db")
        with contextlib.closing(store):
            Crew([store] * WORKERS, run).work()


@pytest.mark.postgres
@pytest.mark.timeout(0 if LONG else 180)
@pytest.mark.parametrize("run", range(RUNS))
def test_no_parent_is_stuck_on_postgresql_and_nothing_deadlocks(run: int, postgres_server: PostgresServer) -> None:
    with migrated_database(postgres_server, has_grace=False) as url, contextlib.ExitStack() as stack:
        stores = [stack.enter_context(contextlib.closing(open_store(url))) for _ in range(WORKERS)]
        before = deadlocks(url)
        Crew(stores, run).work()
        retries = sum(store.stats().retries for store in stores)
        assert (deadlocks(url) - before, retries) == (0, 0)


def deadlocks(url: str) -> int:
    """Deadlocks that the server has counted in this database."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


class Crew:
    """Workers that carry out parents and children until all parents have ended."""

    def __init__(self, stores: list[Store], run: int) -> None:
        seed = int(os.environ.get("TENURE_SEED", random.randrange(10**9)))
        print(f"TENURE_SEED={seed}, run {run}")
        self.stores = stores
        self.random = random.Random(seed)
        self.parents = [new_job("parent", {"n": number}, queue="flow") for number in range(PARENTS)]
        self.is_over = threading.Event()
        self.errors: list[BaseException] = []

    def work(self) -> None:
        store = self.stores[0]
        policy = QueuePolicy(max_attempts=3, backoff=NO_BACKOFF)
        store.do(SetQueues({"flow": policy}, "test"))
        store.do(Enqueue(self.parents))
        seeds = [self.random.random() for _ in range(WORKERS + 1)]
        threads = [
            threading.Thread(target=self._guarded, args=(self._serve, number, random.Random(seeds[number])))
            for number in range(WORKERS)
        ]
        threads.append(threading.Thread(target=self._guarded, args=(self._send, 0, random.Random(seeds[-1]))))
        for thread in threads:
            thread.start()
        ids = [job.id for job in self.parents]
        until = time.monotonic() + WITHIN_SECONDS
        left = ids
        while left and time.monotonic() < until and not self.errors:
            store.do(SweepFlow())
            left = [job.id for job in store.do(GetJobs(left)) if job is not None and job.finished_at is None]
            self.is_over.wait(0.05)
        self.is_over.set()
        for thread in threads:
            thread.join(30)
        assert self.errors == []
        assert left == [], [(job, store.do(ListSteps(JobId(job)))) for job in left[:3]]
        self._check(store, ids)

    def _check(self, store: Store, ids: list[JobId]) -> None:
        for job in store.do(GetJobs(ids)):
            assert job is not None
            steps = store.do(ListSteps(job.id))
            assert (job.state, [(step.key, step.state) for step in steps]) == (
                State.SUCCEEDED,
                [("parts", "done"), ("go", "done")],
            )
            assert steps[1].value == str(job.payload["n"])
            group = store.do(GetGroup((steps[0].awaits or "").removeprefix("group:")))
            assert group is not None
            assert (group.total, group.ended, group.failed) == (CHILDREN, CHILDREN, 1)
            assert store.do(ListAttempts(job.id)) == [], "no attempt row for a suspend"

    def _serve(self, number: int, chance: random.Random) -> None:
        store, held = self.stores[number], list[Grant]()
        claim = Claim(WorkerId(f"w{number}"), ["flow"], limit=8, lease_seconds=600)
        while not self.is_over.is_set():
            outcomes = [self._end(grant) for grant in held]
            answer = store.do(Exchange(outcomes, claim))
            held = answer.grants
            if answer.has_flow_events and chance.random() < 0.5:
                store.do(SweepFlow())
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0, 0.004))  # holds what it has, so that others overtake it

    def _end(self, grant: Grant) -> Outcome:
        if grant.kind == "child":
            if grant.payload["n"] == 0:
                return Failed(grant.id, grant.token, "not this one")
            return Completed(grant.id, grant.token)
        steps = {step.key: step for step in grant.steps}
        if "parts" not in steps:
            jobs = tuple(new_job("child", {"n": n}, queue="flow", max_attempts=1) for n in range(CHILDREN))
            return Suspended(grant.id, grant.token, "parts", groups=(NewGroup("parts", jobs, tolerate=1),))
        if "go" not in steps:
            waits = NewStep("go", "signal", "open", awaits=f"signal:go-{grant.payload['n']}", due_seconds=3600)
            return Suspended(grant.id, grant.token, "go", steps=(waits,))
        assert (steps["parts"].state, steps["go"].state) == ("done", "done"), steps
        return Completed(grant.id, grant.token)

    def _send(self, number: int, chance: random.Random) -> None:
        """Signals: some before anything waits, the others spread over the run."""
        for place in chance.sample(range(PARENTS), PARENTS):
            self.stores[number].do(Signal(f"go-{place}", str(place), scope=chance.choice(("once", "queue"))))
            if self.is_over.wait(chance.uniform(0, 0.02)):
                return

    def _guarded(self, act: object, number: int, chance: random.Random) -> None:
        try:
            act(number, chance)  # type: ignore[operator]
        except BaseException as exc:  # noqa: BLE001 - told by the test's own thread
            self.errors.append(exc)
