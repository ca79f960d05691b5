"""A job that kills its worker never costs a healthy neighbour its life, and is dead after exactly its own crashes.

The workers are `tenure worker` processes, started again whenever they die. `TENURE_LONG=1`: 800 healthy jobs beside
each kind of poison, on both engines, with every setting; otherwise 60 and a choice that covers each of them once.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import State
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue, Store
from tenure.store.queries import CountJobs, GetJobs, ListAttempts
from tests.fault.conftest import Place
from tests.fault.scale import LONG, QUEUE, TIMEOUT, scaled
from tests.fault.workers import all_jobs, drain, restarted, starts, starts_by_job
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

LEASE = 2.0
MAX_ATTEMPTS = 3
HEALTHY = scaled(60, 800)
SECONDS = 600.0 if LONG else 240.0  # a guard against a hang: a loaded machine may take long

POISONS = ("signal", "segfault", "exit", "memory", "parent", "ancestors")
SETTINGS = {"one": ["-c", "1"], "ten": ["-c", "10"], "two processes": ["-P", "2"]}
CHOSEN = [
    ("sqlite", "signal", "one"),
    ("postgres", "segfault", "ten"),
    ("sqlite", "exit", "two processes"),
    ("postgres", "memory", "one"),
    ("postgres", "parent", "two processes"),
    ("sqlite", "ancestors", "ten"),
]
CASES = list(itertools.product(("sqlite", "postgres"), POISONS, SETTINGS)) if LONG else CHOSEN


def fill(store: Store, jobs: list[NewJob]) -> None:
    policy = QueuePolicy(lease_seconds=LEASE, max_attempts=MAX_ATTEMPTS, backoff=Backoff(shape="none", jitter=0))
    store.do(SetQueues({QUEUE: policy}, actor="test"))
    store.do(Enqueue(jobs))


@pytest.mark.parametrize(
    ("place", "how", "setting"),
    [
        pytest.param(engine, how, setting, marks=[pytest.mark.postgres] if engine == "postgres" else [])
        for engine, how, setting in CASES
    ],
    indirect=["place"],
)
def test_healthy_jobs_survive_their_neighbour(place: Place, tmp_path: Path, how: str, setting: str) -> None:
    jobs = [NewJob(new_job_id(), "healthy", queue=QUEUE) for _ in range(HEALTHY)]
    poison = NewJob(new_job_id(), "poison", json.dumps({"how": how}), queue=QUEUE)
    fill(place.store, [*jobs[: HEALTHY // 2], poison, *jobs[HEALTHY // 2 :]])
    notes = tmp_path / "notes"

    with restarted(place.url, notes, *SETTINGS[setting]) as worker:
        drain(place.store, [worker], SECONDS)

    found = {job.id: job for job in all_jobs(place.store)}
    dead = found.pop(poison.id)
    assert Counter(job.state for job in found.values()) == {State.SUCCEEDED: HEALTHY}
    assert set(starts_by_job(notes, "healthy")) == found.keys()
    assert (dead.state, dead.failure_class, dead.attempt, dead.crashes) == ("dead", "crash", MAX_ATTEMPTS, MAX_ATTEMPTS)
    # A refunded attempt keeps its number for the next one: the numbers that occur are those that were charged.
    rows = place.store.do(ListAttempts(poison.id))
    assert {row.failure_class for row in rows} == {"crash"}
    assert {row.attempt for row in rows} == set(range(1, MAX_ATTEMPTS + 1))
    assert MAX_ATTEMPTS <= starts_by_job(notes, "poison")[poison.id] <= len(rows) <= dead.token


@pytest.mark.parametrize("count", [6])
def test_jobs_of_a_machine_that_was_switched_off_run_beside_each_other_again(
    place: Place, tmp_path: Path, count: int
) -> None:
    """Hour-long jobs that their vanished worker makes suspect are not made to run one by one."""
    end, notes = tmp_path / "end", tmp_path / "notes"
    fill(
        place.store,
        [NewJob(new_job_id(), "hold", json.dumps({"until": str(end)}), queue=QUEUE) for _ in range(count)],
    )
    with restarted(place.url, notes, "-c", str(count)) as worker:
        wait_until(lambda: len(starts(notes, "hold")) == count, SECONDS)
        worker.kill()
        worker.tend()
        wait_until(lambda: len([one for one in starts(notes, "hold") if one[1] == 2]) == count, SECONDS)
        # None of them can have ended, so all run at once: each in a process of its own, which is not the worker's.
        again = [pid for _, token, pid in starts(notes, "hold") if token == 2]
        assert worker.process is not None
        assert len(set(again)) == count
        assert worker.process.pid not in again
        [held] = place.store.do(CountJobs(queues=[QUEUE]))
        assert (held.state, held.jobs) == ("running", count)
        ids = [job_id for job_id, _, _ in starts(notes, "hold")[:count]]
        assert {job.suspicion for job in place.store.do(GetJobs(ids)) if job is not None} == {1}
        end.touch()
        drain(place.store, [worker])

    assert {(job.state, job.attempt, job.crashes, job.suspicion) for job in all_jobs(place.store)} == {
        (State.SUCCEEDED, 1, 0, 0)
    }
