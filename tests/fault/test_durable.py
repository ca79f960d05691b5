"""Durable jobs whose workers are really killed: nothing that is recorded runs again, and every job ends.

What may break, and the test in which the process is killed there, on both engines:

    before a step's commit                             test_a_job_goes_on_after_its_worker_was_killed[in step]
    commit done, answer lost                           …[after step], …[after suspend]
    a late worker records a step                       test_a_worker_that_comes_back_late_cannot_record_its_step
    between spawn and suspend                          …[before suspend]
    a child ends while the parent runs                 test_children_that_end_before_the_parents_suspend[before]
    a child ends while the suspend is in flight        …[in]; the race itself is staged in conformance/test_flow_stress
    after the child's commit, before the sweep         …[after child]
    the sweep dies half way                            test_a_sweep_that_dies_half_way_has_done_nothing
    a sleep ends while no worker runs                  test_a_sleep_that_ends_while_no_worker_runs_…
    the database is restored from a backup             test_a_restored_database_goes_on_from_the_steps_that_it_holds
    the parent's children are pruned                   test_a_prune_spares_what_a_parent_has_not_read
    a map is being created                             test_a_map_whose_parent_is_killed_…
    an undo is being carried out                       test_a_worker_that_dies_while_it_undoes_…

`TENURE_LONG=1`: 1,000 jobs of ten steps with workers killed at random, and 10,000 children of one job; otherwise 60 and
1,500.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Job, NewJob
from tenure.model.outcome import Completed, Suspended
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.step import NewGroup
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Prune
from tenure.store.flow import ListChildren, ListSteps, SweepFlow
from tenure.store.queries import CountJobs, GetJobs, ListJobs
from tests.conformance.engines import open_store, sqlite_url
from tests.fault.conftest import Place
from tests.fault.scale import LONG, PATIENCE, QUEUE, TIMEOUT, scaled
from tests.fault.workers import ROOT, Restarted, drain, restarted
from tests.servers import PostgresServer
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
        pytest.param("after child", 1, 2, id="a child's end is committed and not swept"),
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
            # Kills that hit workers of one job alone look like a kind that crashes them, and close its gate.
            place.store.do(SetGate("kind:ten_steps", is_open=True, actor="test", reason="we kill the workers"))
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


@pytest.mark.parametrize("at", ["before the parent's suspend", "in the parent's suspend"])
def test_children_that_end_before_the_parents_suspend(place: Place, notes: Path, at: str) -> None:
    once = notes.with_name("once")
    (job_id,) = enqueue(place, "fast_children", {"at": at, "once": str(once)})

    with restarted(place.url, notes, "-c", "4", app=APP) as worker:
        drain(place.store, [worker], SECONDS)

    assert once.exists()
    job = job_of(place, job_id)
    assert (job.state, job.result[1]) == ("succeeded", [0, 1])
    assert len(noted(notes, "run")) == 3, "killed, then parked on a group that is over, then done"
    assert len(place.store.do(ListJobs(parent_id=job_id)).items) == 2


def test_a_prune_spares_what_a_parent_has_not_read(place: Place, notes: Path) -> None:
    once = notes.with_name("once")
    (job_id,) = enqueue(place, "dies", {"at": "after child", "once": str(once)})

    with restarted(place.url, notes, "-c", "1", app=APP) as worker:
        assert worker.process is not None
        worker.process.wait(PATIENCE)
        assert any(child.state == "succeeded" for child in place.store.do(ListJobs(parent_id=job_id)).items)
        place.store.do(Prune(older_than_seconds=0, delete_after_seconds=0))
        drain(place.store, [worker], SECONDS)

    assert (job_of(place, job_id).state, job_of(place, job_id).result[1]) == ("succeeded", [0, 1])


def test_a_sweep_that_dies_half_way_has_done_nothing(place: Place, notes: Path) -> None:
    """It is killed with its work done and not committed: on SQLite in its transaction; on PostgreSQL it waits for the
    row of the parent, and its connection is cut."""
    (job_id,) = enqueue(place, "parent")
    [parent] = place.store.do(Claim(WorkerId("test"), [QUEUE], 1))
    child = NewJob(new_job_id(), "child", "1", queue=QUEUE)
    suspend = Suspended(job_id, parent.token, "group", groups=(NewGroup("group", (child,)),))
    place.store.do(Exchange([suspend], None))
    if place.engine == "sqlite":
        place.store.do(Cancel([job_id], "test", "not needed"))
        sweep = subprocess.run([sys.executable, "-m", SWEEPER, place.url], cwd=ROOT, timeout=PATIENCE, check=False)
        assert sweep.returncode == -signal.SIGKILL
        assert job_of(place, child.id).state == "queued"
        sweep_all(place)
        assert job_of(place, child.id).state == "cancelled"
        return
    sweep_all(place)
    [grant] = place.store.do(Claim(WorkerId("test"), [QUEUE], 1))
    place.store.do(Exchange([Completed(grant.id, grant.token)], None))
    with psycopg.connect(place.url) as other, psycopg.connect(place.url, autocommit=True) as watch:
        other.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [job_id])
        with subprocess.Popen([sys.executable, "-m", SWEEPER, place.url], cwd=ROOT) as sweep_process:
            wait_until(lambda: watch.execute(WAITS).fetchone() is not None, PATIENCE)
            sweep_process.kill()
            watch.execute(CUT)
            wait_until(lambda: watch.execute(WAITS).fetchone() is None, PATIENCE)
        other.rollback()
    assert job_of(place, job_id).state == "waiting"
    sweep_all(place)
    assert job_of(place, job_id).state == "queued"


SWEEPER = "tests.fault.children.sweeps"
WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%sweep_flow%'"
CUT = WAITS.replace("SELECT pid", "SELECT pg_terminate_backend(pid)")


def sweep_all(place: Place) -> None:
    while place.store.do(SweepFlow()).more:
        pass


def test_a_restored_database_goes_on_from_the_steps_that_it_holds(
    place: Place, notes: Path, request: pytest.FixtureRequest
) -> None:
    once = notes.with_name("once")
    (job_id,) = enqueue(place, "dies", {"at": "between", "once": str(once)})
    with restarted(place.url, notes, "-c", "4", app=APP) as worker:
        assert worker.process is not None
        worker.process.wait(PATIENCE)
    copy = backup(place, request)

    for url in (place.url, copy):
        store = open_store(url)
        with restarted(url, notes, "-c", "4", app=APP) as worker:
            drain(store, [worker], SECONDS)
        (job,) = store.do(GetJobs([job_id]))
        store.close()
        assert job is not None
        assert (job.state, job.result[1]) == ("succeeded", [0, 1])

    assert (len(noted(notes, "one")), len(noted(notes, "two"))) == (1, 2), "what the backup held is not done again"


def backup(place: Place, request: pytest.FixtureRequest) -> str:
    """A copy of the database as it stands. Answers its URL."""
    if place.engine == "sqlite":
        path = place.path.with_name("copy.db")
        with closing(sqlite3.connect(place.path)) as here, closing(sqlite3.connect(path)) as there:
            here.backup(there)
        return sqlite_url(path)
    name = place.url.rpartition("/")[2].partition("?")[0]
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with psycopg.connect(place.url.replace(f"/{name}", "/postgres"), autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        admin.execute(f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"'.encode())
    copy = place.url.replace(f"/{name}", f"/{name}_copy")
    request.addfinalizer(lambda: server.drop_database(copy))
    return copy
