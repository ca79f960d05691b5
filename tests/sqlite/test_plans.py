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
from tenure.store.contract import Claim, Enqueue, Exchange, Prune, Settle
from tenure.store.limits import BlockLimiter
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER

GRANT = {"state": "running", "worker": "w", "lease_until": 2, "now": 1, "started_at": 1}
PICK = {
    "queue": "default", "rank": -(2**63), "run_at": -(2**63), "id": "", "kinds": None, "affinity": None,
    "affinity_none": False, "full": None, "limit": 100, "limiter": None, "closed_kinds": None,
}  # fmt: skip
HOLDS = '[["x", 1, null, true]]'
BY_ID = "sqlite_autoindex_tenure_job_1"

# file, statement → its values and the index it must use.
HOT: Mapping[tuple[str, str], tuple[Any, str]] = {
    ("claim", "first"): ({}, "job_lease_idx"),
    ("claim", "pick"): (PICK, "job_claim_idx"),
    ("claim", "pick_suspect"): (PICK, "job_suspect_idx"),
    ("claim", "needs"): ({"worker": "w", "queues": '["default"]'}, "job_claim_idx"),
    ("claim", "limited"): ({"queues": '["default"]'}, "job_claim_idx"),
    ("claim", "promote"): ({"now": 1, "limit": 100}, "job_due_idx"),
    ("claim", "grant"): ({**GRANT, "rowids": "[1, 2]"}, "INTEGER PRIMARY KEY"),
    ("claim", "granted"): ({"rowids": "[1, 2]"}, "INTEGER PRIMARY KEY"),
    ("settle", "expired"): ({"now": 1, "limit": 100}, "job_lease_idx"),
    ("settle", "complete"): ({"done": '[["x", 1]]', "now": 1}, BY_ID),
    ("settle", "followed"): ({"done": '[["x", 1]]', "now": 1}, BY_ID),
    ("settle", "crashed"): ({"job_id": "x", "since": 1, "crashes": 2, "jobs": 3}, "job_crashed_idx"),
    ("settle", "held"): ({"job_id": "x", "token": 1, "now": 1, "is_expiry": 0}, BY_ID),
    ("heartbeat", "heartbeat"): ({"now": 1, "lease_seconds": None, "holds": HOLDS}, BY_ID),
    ("heartbeat", "held"): ({"now": 1, "holds": HOLDS}, BY_ID),
    ("enqueue", "found"): ({"ids": '["x"]'}, BY_ID),
    ("enqueue", "holder"): (("x",), "job_dedup_idx"),
}


@pytest.fixture(params=["empty", "full", "analyzed"])
def filled(request: pytest.FixtureRequest, store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """Plans may change with what the tables hold and what is known of it."""
    if request.param != "empty":
        store.do(Enqueue([NewJob(job_id, "work") for job_id in new_job_ids(2000)]))
        grants = store.do(Claim(WORKER, ["default"], 500))
        store.do(Exchange([Completed(grant.id, grant.token) for grant in grants[:400]], None))
    connection = sqlite3.connect(path, isolation_level=None)
    if request.param == "analyzed":
        connection.execute("ANALYZE")
    yield connection
    connection.close()


@pytest.mark.parametrize("name", HOT, ids="-".join)
def test_a_hot_statement_uses_its_index_and_sorts_nothing(filled: sqlite3.Connection, name: tuple[str, str]) -> None:
    values, index = HOT[name]

    plan = [row[3] for row in filled.execute(f"EXPLAIN QUERY PLAN {load(name[0])[name[1]]}", values)]

    assert any(index in step for step in plan), plan
    assert not [step for step in plan if "TEMP B-TREE" in step], plan
    assert not [step for step in plan if step.startswith("SCAN tenure_job") and "INDEX" not in step], plan


def steps(store: SqliteStore, request: Any, granted: list[str] | None = None) -> int:
    """How many hundred instructions of SQLite's machine a request takes: no clock, so no noise. `granted` is told the
    jobs of a claim."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = store._database.writer.writing.connection
    assert connection is not None
    connection.set_progress_handler(count, 100)
    answer = store.do(request)
    if granted is not None:
        granted += [grant.id for grant in answer]
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


def test_ten_thousand_jobs_on_a_closed_key_are_not_walked(tmp_path: Path) -> None:
    """They stand before all others, and neither jobs without a limiter nor those of an open key pay for them."""
    closed = [NewJob(job_id, "work", priority=9, limiter="closed") for job_id in new_job_ids(10_000)]
    plain = [NewJob(job_id, "work") for job_id in new_job_ids(100)]
    limited = [NewJob(job_id, "work", limiter="open") for job_id in new_job_ids(100)]

    def cost(name: str, jobs: list[NewJob], is_blocked: bool) -> tuple[int, int]:
        store = SqliteStore(f"sqlite:///{tmp_path / name}")
        store.migrate()
        store.do(Enqueue(jobs))
        if is_blocked:
            store.do(BlockLimiter("closed", 3600, "ops"))
        granted: list[str] = []
        instructions = steps(store, Claim(WORKER, ["default"], 100), granted)
        store.close()
        return instructions, len(granted)

    few = closed[:1]
    base = cost("few.db", [*few, *plain], True)
    many = cost("many.db", [*closed, *plain], True)
    base_open = cost("few_open.db", [*few, *limited], True)
    many_open = cost("many_open.db", [*closed, *limited], True)
    none = cost("none.db", plain, False)

    assert [granted for _, granted in (base, many, base_open, many_open, none)] == [100] * 5
    assert many[0] <= base[0] * 1.1
    assert many_open[0] <= base_open[0] * 1.1
    assert base[0] <= none[0] * 1.3, "to pass a closed key by costs little"


def test_a_claim_without_limiters_takes_no_statement_for_them(tmp_path: Path) -> None:
    """Eight statements: the same as before there were limiters; a job with a limiter costs two more."""
    store = SqliteStore(f"sqlite:///{tmp_path / 'jobs.db'}")
    store.migrate()

    def statements(limiter: str | None) -> tuple[int, int]:
        store.do(Enqueue([NewJob(new_job_ids(1)[0], "work", limiter=limiter)]))
        before = store.stats().statements
        [grant] = store.do(Claim(WORKER, ["default"], 1))
        between = store.stats().statements
        store.do(Settle([Completed(grant.id, grant.token)]))
        return between - before, store.stats().statements - between

    plain = statements(None)
    limited = statements("llm")
    store.do(BlockLimiter("other", 3600, "ops"))
    beside = statements(None)
    store.close()

    assert beside == plain
    assert limited[0] - plain[0] == 3, "which limiters are due, their levels, and a look at the list"
    assert limited[1] - plain[1] == 1


def test_a_claim_over_five_queues_reads_no_further_than_it_must(tmp_path: Path) -> None:
    names = tuple(f"q{number}" for number in range(5))
    few = [NewJob(job_id, "work", queue=names[n % 5]) for n, job_id in enumerate(new_job_ids(500))]
    many = [NewJob(job_id, "work", queue=names[n % 5]) for n, job_id in enumerate(new_job_ids(20_000))]

    assert claim_cost(tmp_path / "many.db", many, names) <= claim_cost(tmp_path / "few.db", few, names) * 1.3


def test_an_idle_claim_touches_nothing_that_is_not_due(tmp_path: Path) -> None:
    later = [NewJob(job_id, "work", delay_seconds=86_400) for job_id in new_job_ids(10_000)]

    assert claim_cost(tmp_path / "later.db", later) <= claim_cost(tmp_path / "none.db", []) + 5


def test_a_prune_walks_what_is_to_go_and_not_what_is_kept(tmp_path: Path) -> None:
    """Every minute it walked all jobs of the last week, in the one thread that writes."""

    def cost(name: str, kept: int) -> int:
        store = SqliteStore(f"sqlite:///{tmp_path / name}")
        store.migrate()
        store.do(Enqueue([NewJob(job_id, "work") for job_id in new_job_ids(kept)]))
        while grants := store.do(Claim(WORKER, ["default"], 1000)):
            store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
        taken = steps(store, Prune(delete_after_seconds=86_400))
        store.close()
        return taken

    assert cost("many.db", 10_000) <= cost("few.db", 100) + 10
