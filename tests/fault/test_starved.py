"""Workers that get little of the processor keep their leases: no healthy job dies, and none starts twice without cause.

`TENURE_LONG=1`: 30,000 jobs that do nothing beside 400 of two seconds, a lease of three seconds, workers at nice 10
beside six busy loops. Otherwise the same on a smaller scale.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue
from tenure.store.queries import ListAttempts
from tests.conformance.engines import open_sqlite, sqlite_url
from tests.fault.scale import LONG, QUEUE, TIMEOUT, scaled
from tests.fault.workers import all_jobs, drain, restarted, starts_by_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

LEASE = 3.0
EMPTY = scaled(5_000, 30_000)
LONG_ONES = scaled(40, 400)
NAP_SECONDS = 2.0 if LONG else 1.0
BUSY_LOOPS = scaled(3, 6)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def test_starved_workers_lose_no_job_and_start_none_twice_without_cause(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "jobs.db")
    store.do(SetQueues({QUEUE: QueuePolicy(lease_seconds=LEASE, max_attempts=3)}, actor="test"))
    naps = [
        NewJob(new_job_id(), "nap", json.dumps({"seconds": NAP_SECONDS}), queue=QUEUE, priority=1)
        for _ in range(LONG_ONES)
    ]
    empty = [NewJob(new_job_id(), "healthy", queue=QUEUE) for _ in range(EMPTY)]
    for first in range(0, EMPTY, 1000):
        store.do(Enqueue(empty[first : first + 1000]))
    store.do(Enqueue(naps))
    notes = tmp_path / "notes"
    url = sqlite_url(tmp_path / "jobs.db")

    with (
        busy_loops(BUSY_LOOPS),
        restarted(url, notes, "-c", "10", nice=10) as one,
        restarted(url, notes.with_name("other"), "-c", "10", nice=10) as two,
    ):
        drain(store, [one, two], TIMEOUT - 30)
        assert (one.starts, two.starts) == (1, 1), f"a worker died by itself\n{one.tail()}\n{two.tail()}"

    jobs = all_jobs(store)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    lost = {job.id: len(store.do(ListAttempts(job.id))) for job in jobs if job.token > 1}
    started = sum(
        (starts_by_job(file, kind) for file in (notes, notes.with_name("other")) for kind in ("healthy", "nap")),
        start=starts_by_job(tmp_path / "none", ""),
    )
    store.close()
    assert started.keys() == {job.id for job in jobs}
    unexplained = {job_id: count for job_id, count in started.items() if count > 1 + lost.get(job_id, 0)}
    assert unexplained == {}
    again = sum(count - 1 for count in started.values())
    print(f"{again} of {len(jobs)} started again, {sum(lost.values())} leases lost")
    assert again < 0.02 * len(jobs)
