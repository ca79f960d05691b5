"""Durable jobs whose workers are really killed: nothing that is recorded runs again, and every job ends.

`TENURE_LONG=1`: 1,000 jobs of ten steps with workers killed at random, and 10,000 children of one job; otherwise 60 and
1,500.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Job, NewJob
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue
from tenure.store.flow import ListChildren, ListSteps
from tenure.store.queries import CountJobs, GetJobs, ListJobs
from tests.fault.conftest import Place
from tests.fault.scale import LONG, PATIENCE, QUEUE, TIMEOUT, scaled
from tests.fault.workers import Restarted, drain, restarted
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

APP = "tests.fault.children.durable:app"
LEASE = 2.0
SECONDS = 1800.0 if LONG else 240.0


@pytest.fixture
def notes(place: Place, tmp_path: Path) -> Path:
    policy = QueuePolicy(lease_seconds=LEASE, max_attempts=20, backoff=Backoff(shape="none", jitter=0))
    place.store.do(SetQueues({QUEUE: policy}, actor="test"))
    return tmp_path / "notes"


def enqueue(place: Place, kind: str, payload: Any = None, count: int = 1) -> list[JobId]:
    jobs = [NewJob(new_job_id(), kind, json.dumps(payload or {}), queue=QUEUE) for _ in range(count)]
    place.store.do(Enqueue(jobs))
    return [job.id for job in jobs]


def job_of(place: Place, job_id: JobId) -> Job:
    (job,) = place.store.do(GetJobs([job_id]))
    assert job is not None
    return job


def noted(notes: Path, what: str) -> list[list[str]]:
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [line.split()[1:] for line in lines if line.startswith(f"{what} ")]


@pytest.mark.parametrize(
    ("at", "ones", "runs"),
    [
        pytest.param("in step", 2, 3, id="before the step's commit: it runs again"),
        pytest.param("after step", 1, 3, id="commit done, answer lost: it does not run again"),
        pytest.param("between", 1, 3, id="between steps"),
        pytest.param("before suspend", 1, 3, id="between spawn and suspend: no child is there"),
        pytest.param("after suspend", 1, 2, id="suspended, answer lost: children are there once"),
        pytest.param("at the end", 1, 3, id="before the completion"),
    ],
)
def test_a_job_goes_on_after_its_worker_was_killed(place: Place, notes: Path, at: str, ones: int, runs: int) -> None:
    once = notes.with_name("once")
    (job_id,) = enqueue(place, "dies", {"at": at, "once": str(once)})

    with restarted(place.url, notes, "-c", "4", app=APP) as worker:
        wait_until(once.exists, PATIENCE)
        if at == "before suspend":
            assert not place.store.do(ListJobs(parent_id=job_id)).items
        drain(place.store, [worker], SECONDS)

    job = job_of(place, job_id)
    assert (job.state, job.result[1]) == ("succeeded", [0, 1])
    assert len(noted(notes, "one")) == ones
    assert len(noted(notes, "two")) == 1
    assert len(noted(notes, "run")) == runs
    assert len(place.store.do(ListJobs(parent_id=job_id)).items) == 2
    steps = [step.key for step in place.store.do(ListSteps(job_id)) if step.kind == "step"]
    assert steps == ["one", "two"]


def test_a_worker_that_comes_back_late_cannot_record_its_step(place: Place, notes: Path) -> None:
    once = notes.with_name("once")
    (job_id,) = enqueue(place, "dies", {"at": "late", "once": str(once)})

    with restarted(place.url, notes, "-c", "1", app=APP) as late:
        wait_until(once.exists, PATIENCE)
        with restarted(place.url, notes.with_name("second"), "-c", "1", app=APP) as second:
            drain_without(place, second)
            assert late.process is not None
            before = place.store.do(ListSteps(job_id))
            late.process.send_signal(signal.SIGCONT)
            wait_until(lambda: "lease" in late.log.read_text(), PATIENCE)

    assert place.store.do(ListSteps(job_id)) == before
    job = job_of(place, job_id)
    recorded = next(step for step in before if step.key == "one")
    assert (job.state, job.result[0]) == ("succeeded", recorded.token)
    assert recorded.token > int(noted(notes, "one")[0][1])


def drain_without(place: Place, worker: Restarted) -> None:
    """Wait until every job has ended, with this worker alone."""
    deadline = time.monotonic() + PATIENCE
    while place.store.do(CountJobs(states=["queued", "leased", "running", "waiting"])):
        worker.tend()
        assert time.monotonic() < deadline, worker.tail()
        time.sleep(0.05)


def test_no_recorded_step_runs_again_however_often_workers_are_killed(place: Place, notes: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    ids = enqueue(place, "ten_steps", count=scaled(60, 1000))

    with ExitStack() as stack:
        crews = [
            stack.enter_context(restarted(place.url, notes, "-c", "5", "--poll", "0.2", app=APP))
            for _ in range(scaled(2, 4))
        ]
        deadline = time.monotonic() + SECONDS
        kills = 0
        while place.store.do(CountJobs(states=["queued", "leased", "running", "waiting"])):
            assert time.monotonic() < deadline, crews[0].tail()
            time.sleep(chance.uniform(0.1, 0.5))
            if kills < scaled(6, 100) and noted(notes, "part"):
                chance.choice(crews).kill()
                kills += 1
            for crew in crews:
                crew.tend()

    assert kills
    recorded: dict[tuple[str, str], int] = {}
    for job_id in ids:
        assert job_of(place, job_id).result == 45
        steps = place.store.do(ListSteps(job_id))
        assert [step.key for step in steps] == [f"part/{n}" for n in range(10)]
        recorded |= {(job_id, step.key): step.token for step in steps}
    again = [
        (job_id, token, n) for job_id, token, n in noted(notes, "part") if int(token) > recorded[job_id, f"part/{n}"]
    ]
    assert not again


def test_a_map_whose_parent_is_killed_goes_on_where_it_was_and_wakes_it_once(place: Place, notes: Path) -> None:
    count, once = scaled(1500, 10_000), notes.with_name("once")
    terms = {"at": "after page", "once": str(once), "count": count, "window": 200}
    (job_id,) = enqueue(place, "maps", terms)

    with restarted(place.url, notes, "-c", "20", app=APP) as worker:
        wait_until(once.exists, PATIENCE)
        drain(place.store, [worker], SECONDS)

    job = job_of(place, job_id)
    counts = {"total": count, "succeeded": count, "failed": 0, "cancelled": 0}
    assert (job.state, job.result) == ("succeeded", [counts, count * (count - 1) // 2])
    assert len(noted(notes, "run")) == 3, "killed while it created, then created the rest, then woken once"
    (group,) = [step for step in place.store.do(ListSteps(job_id)) if step.kind == "group"]
    group_id = (group.awaits or "").removeprefix("group:")
    positions: Counter[int] = Counter()
    after = -1
    while page := place.store.do(ListChildren(group_id, after, 1000)):
        positions.update(child.position for child in page)
        after = page[-1].position
    assert positions == Counter(range(count))


@pytest.mark.parametrize("part", ["hotel", "train"])
def test_a_worker_that_dies_while_it_undoes_leaves_the_rest_to_the_next_one(
    place: Place, notes: Path, part: str
) -> None:
    once = notes.with_name("once")
    (job_id,) = enqueue(place, "undoes", {"at": f"undo {part}", "once": str(once)})

    with restarted(place.url, notes, "-c", "1", app=APP) as worker:
        drain(place.store, [worker], SECONDS)

    assert once.exists()
    job = job_of(place, job_id)
    assert (job.state, job.failure_class) == ("failed", "permanent")
    assert "no visa" in (job.last_error or "")
    assert [len(noted(notes, f"book-{one}")) for one in ("train", "hotel")] == [1, 1]
    times = {"train": 1, "hotel": 1, part: 2}
    assert {one: len(noted(notes, f"undo-{one}")) for one in times} == times


def test_a_sleep_that_ends_while_no_worker_runs_is_over_when_one_comes(place: Place, notes: Path) -> None:
    (job_id,) = enqueue(place, "sleeps", {"seconds": 2})
    with restarted(place.url, notes, app=APP) as worker:
        wait_until(lambda: job_of(place, job_id).state == "waiting", PATIENCE)
        worker.kill()
        due = job_of(place, job_id).run_at
        wait_until(lambda: place.store.now() > due, PATIENCE)
        drain(place.store, [worker], SECONDS)

    assert job_of(place, job_id).result is True
    assert len(noted(notes, "run")) == 2
