"""What a read costs, in steps of SQLite's machine, does not depend on jobs that it has no need to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.model.clock import ManualClock
from tenure.model.ids import new_job_ids
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.model.state import ACTIVE
from tenure.store.contract import Claim, Enqueue, Exchange
from tenure.store.gauges import CountBacklog, ReadGauges
from tenure.store.queries import CountJobs
from tenure.store.sqlite import gauges, queries
from tenure.store.sqlite.connection import open_reader
from tenure.store.sqlite.store import SqliteStore
from tenure.store.sqlite.transaction import Transaction
from tests.sqlite.bed import WORKER

FEW, MANY = 1_000, 30_000
STRIDE = 10

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def steps(path: Path, act: Callable[[Transaction, Any], Any], request: Any) -> int:
    """How many steps of SQLite's machine a read takes, in tens."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = open_reader(path)
    connection.set_progress_handler(count, STRIDE)
    act(Transaction(connection, ManualClock().now_us()), request)
    connection.close()
    return counted


def fill(store: SqliteStore, jobs: int) -> None:
    """Enqueue so many jobs, of three priorities, half of them with a limiter."""
    for _ in range(0, jobs, FEW):
        ids = new_job_ids(FEW)
        made = [NewJob(one, "work", priority=n % 3, limiter="api" if n % 2 else None) for n, one in enumerate(ids)]
        store.do(Enqueue(made))


def finish(store: SqliteStore, jobs: int) -> None:
    """Claim and complete so many jobs."""
    ended: list[Completed] = []
    while jobs > 0:
        found = store.do(Exchange(ended, Claim(WORKER, ("default",), min(FEW, jobs)))).grants
        ended = [Completed(grant.id, grant.token) for grant in found]
        jobs -= len(found)
    store.do(Exchange(ended, None))


def test_gauges_cost_their_cap_and_not_the_backlog(store: SqliteStore, path: Path) -> None:
    """The look for the oldest job went through the whole queue once its jobs stood in one list for each limiter."""
    asked: list[tuple[Callable[[Transaction, Any], Any], Any]] = [
        (gauges.count_backlog, CountBacklog("default", cap=100)),
        (gauges.read_gauges, ReadGauges(cap=100)),
    ]
    fill(store, FEW)
    few = [steps(path, act, request) for act, request in asked]
    fill(store, MANY - FEW)

    many = [steps(path, act, request) for act, request in asked]

    print(f"steps, in tens, at {FEW} and {MANY} jobs: {few} and {many}")
    assert [more for less, more in zip(few, many, strict=True) if more > 1.1 * less] == []


def test_counts_of_jobs_still_to_do_cost_nothing_for_those_that_have_ended(store: SqliteStore, path: Path) -> None:
    fill(store, FEW)
    few = steps(path, queries.count_jobs, CountJobs(states=sorted(ACTIVE)))
    fill(store, MANY)
    finish(store, MANY)

    many = steps(path, queries.count_jobs, CountJobs(states=sorted(ACTIVE)))

    print(f"steps beside 0 and {MANY} ended jobs: {few * STRIDE} and {many * STRIDE}")
    assert many <= 1.1 * few
