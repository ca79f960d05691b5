"""The plans of the hot statements: indexes only, no sorting, and a cost that the backlog does not change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tenure.model.ids import new_job_ids
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue, Exchange
from tenure.store.sqlite.connect import add_functions
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER

GRANT = {"state": "running", "worker": "w", "lease_until": 2, "now": 1, "started_at": 1}

# statement → its values, the index it must use, and whether it may sort what it found.
HOT: Mapping[str, tuple[Any, str]] = {
    "claim_pick": ({"queue": "default", "limit": 100}, "job_claim_idx"),
    "claim_read": ({"rowids": "[1, 2]"}, "INTEGER PRIMARY KEY"),
    "claim_rest": ({"ids": '["x"]'}, "sqlite_autoindex_tenure_job_1"),
    "claim": ({**GRANT, "rowids": "[1, 2]"}, "INTEGER PRIMARY KEY"),
    "claim_at_once": ({**GRANT, "queue": "default", "limit": 50, "stamp": 1}, "job_claim_idx"),
    "claim_in_vain": ({"queue": "default", "now": 1, "stamp": 1}, "job_claim_idx"),
    "claim_candidates": ({"queue": "default"}, "job_claim_idx"),
    "claim_candidates_filtered": (
        {"queue": "default", "kinds": '["a"]', "affinity": None, "affinity_none": False},
        "job_claim_idx",
    ),
    "claim_promote": ({"now": 1, "limit": 100}, "job_due_idx"),
    "expired": ({"now": 1, "limit": 100}, "job_lease_idx"),
    "complete_plain": ({"done": '["x"]', "token": 1, "now": 1}, "sqlite_autoindex_tenure_job_1"),
    "complete_batch": ({"done": '[["x", 1]]', "now": 1}, "sqlite_autoindex_tenure_job_1"),
    "complete": ((None, None, None, 1, 1, "x", 1, 1), "sqlite_autoindex_tenure_job_1"),
    "heartbeat": (
        {"now": 1, "lease_seconds": None, "started": 1, "progress": None, "job_id": "x", "token": 1},
        "sqlite_autoindex_tenure_job_1",
    ),
    "heartbeat_batch": (
        {"now": 1, "lease_seconds": None, "started": 1, "ids": '["x"]', "token": 1},
        "sqlite_autoindex_tenure_job_1",
    ),
    "heartbeat_held": ({"now": 1, "ids": '["x"]', "token": 1}, "sqlite_autoindex_tenure_job_1"),
    "enqueue_holder": (("x",), "job_dedup_idx"),
}


@pytest.fixture(params=["empty", "full", "analyzed"])
def filled(request: pytest.FixtureRequest, store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """Plans may change with what the tables hold and what is known of it."""
    if request.param != "empty":
        store.do(Enqueue([NewJob(job_id, "work") for job_id in new_job_ids(2000)]))
        grants = store.do(Claim(WORKER, ["default"], 500))
        store.do(Exchange([Completed(grant.id, grant.token) for grant in grants[:400]], None))
    connection = sqlite3.connect(path, isolation_level=None)
    add_functions(connection)
    if request.param == "analyzed":
        connection.execute("ANALYZE")
    yield connection
    connection.close()


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_uses_its_index_and_sorts_nothing(filled: sqlite3.Connection, name: str) -> None:
    values, index = HOT[name]

    plan = [row[3] for row in filled.execute(f"EXPLAIN QUERY PLAN {load(name)}", values)]

    assert any(index in step for step in plan), plan
    assert not [step for step in plan if "TEMP B-TREE" in step], plan
    assert not [step for step in plan if step.startswith("SCAN tenure_job") and "INDEX" not in step], plan


def steps(store: SqliteStore, request: Any) -> int:
    """How many hundred instructions of SQLite's machine a request takes: no clock, so no noise."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = store._database.writer.handle.connection
    assert connection is not None
    connection.set_progress_handler(count, 100)
    store.do(request)
    connection.set_progress_handler(None, 0)
    return counted


def claim_cost(path: Path, jobs: list[NewJob], queues: tuple[str, ...] = ("default",)) -> int:
    store = SqliteStore(f"sqlite:///{path}")
    store.migrate()
    store.do(SetQueues({queue: QueuePolicy() for queue in queues}, actor="test"))
    store.do(Enqueue(jobs))
    cost = steps(store, Claim(WORKER, queues, 100))
    store.close()
    return cost


def test_a_claim_costs_the_same_whatever_the_backlog(tmp_path: Path) -> None:
    few = [NewJob(job_id, "work") for job_id in new_job_ids(200)]
    many = [NewJob(job_id, "work", priority=number % 7) for number, job_id in enumerate(new_job_ids(20_000))]
    later = [NewJob(job_id, "work", delay_seconds=86_400, priority=9) for job_id in new_job_ids(20_000)]

    base = claim_cost(tmp_path / "few.db", few)

    assert claim_cost(tmp_path / "many.db", many) <= base * 1.3
    assert claim_cost(tmp_path / "later.db", [*later, *few]) <= base * 1.3


def test_a_claim_over_five_queues_reads_no_further_than_it_must(tmp_path: Path) -> None:
    names = tuple(f"q{number}" for number in range(5))
    few = [NewJob(job_id, "work", queue=names[n % 5]) for n, job_id in enumerate(new_job_ids(500))]
    many = [NewJob(job_id, "work", queue=names[n % 5]) for n, job_id in enumerate(new_job_ids(20_000))]

    assert claim_cost(tmp_path / "many.db", many, names) <= claim_cost(tmp_path / "few.db", few, names) * 1.3


def test_an_idle_claim_touches_nothing_that_is_not_due(tmp_path: Path) -> None:
    later = [NewJob(job_id, "work", delay_seconds=86_400) for job_id in new_job_ids(10_000)]

    assert claim_cost(tmp_path / "later.db", later) <= claim_cost(tmp_path / "none.db", []) + 5
