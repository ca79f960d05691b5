"""No transaction of durable flow grows with the flow: it reads and writes as many rows beside 5,000 tasks as beside
2,000.

Rows and steps of the engines' machines are counted, not time. Written are rows of tables; read are, on PostgreSQL,
entries of indexes and rows of scans, and on SQLite hundreds of steps of its machine, writes included.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import psycopg
import pytest

from tenure.flow.workflows import prepare, requests
from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Failed, Suspended
from tenure.model.policy import Limits
from tenure.model.step import GROUP_PAGE, NewGroup, NewStep
from tenure.model.workflow import FailureThreshold, Workflow
from tenure.store.contract import Cancel, Claim, Enqueue, Request, Settle, Store
from tenure.store.flow import FillGroup, GetGroup, Signal, SweepFlow
from tenure.store.postgres.store import PostgresStore
from tenure.store.sqlite.store import SqliteStore
from tenure.store.workflows import (
    PAGE_TASKS,
    AdvanceWorkflows,
    CancelWorkflow,
    GetWorkflow,
    RetryWorkflow,
    WorkflowRow,
)
from tests.conformance.acts import new_job
from tests.conformance.engines import START, migrated_database, open_sqlite, scratch_folder, sqlite_url
from tests.conformance.runs import AGENT
from tests.servers import PostgresServer

T = TypeVar("T")

FEW, MANY = 2_000, 5_000
WRITES = 8 * PAGE_TASKS
"""No transaction writes more rows than this: a page of jobs, of tasks, of events, each read once and moved once."""
SLACK = {"sqlite": 1.05, "postgres": 1.5}
"""PostgreSQL reads what was updated or deleted until it is vacuumed. What grows with the flow grows by 2.5."""
WORKER = WorkerId("w1")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Cost(NamedTuple):
    """What one transaction did."""

    written: int
    read: int


class Counted:
    """A store whose transactions are counted, each by what it is for. The largest of each sort is kept."""

    def __init__(self) -> None:
        self.store: Store
        self.look: Callable[[], Cost]
        self.largest: dict[str, Cost] = {}

    def count(self, name: str, act: Callable[[], T]) -> T:
        before = self.look()
        answer = act()
        cost = Cost(*(now - then for now, then in zip(self.look(), before, strict=True)))
        known = self.largest.get(name, Cost(0, 0))
        self.largest[name] = Cost(max(cost.written, known.written), max(cost.read, known.read))
        return answer

    def do(self, request: Request[T]) -> T:
        return self.store.do(request)

    # --- what the scenes have in common

    def claim(self, queue: str, limit: int) -> list[Grant]:
        return self.do(Claim(WORKER, [queue], limit, lease_seconds=600))

    def settle(self) -> None:
        """Fold and sweep until nothing is left."""
        while True:
            swept, advanced = self.do(SweepFlow()), self.do(AdvanceWorkflows())
            if not (swept.more or swept.events or swept.jobs or advanced.more or advanced.events):
                return

    def start(self, flow: Workflow) -> str:
        prepared = prepare(flow, lambda _: None, Limits(), key=None, actor="test", tenant=None)
        workflow_id = new_job_id()
        for request in requests(prepared, workflow_id, {"A": AGENT}):
            self.do(request)
        self.settle()
        return workflow_id

    def run(self, workflow_id: str) -> WorkflowRow:
        found = self.do(GetWorkflow(workflow_id))
        assert found is not None
        return found


class CountedSqlite(SqliteStore):
    """Each request is one transaction."""

    counted: Counted

    def do(self, request: Request[T]) -> T:
        return self.counted.count(type(request).__name__, lambda: super(CountedSqlite, self).do(request))


class CountedPostgres(PostgresStore):
    """Each call of a function is one transaction; a request may call several."""

    counted: Counted

    def _call(self, function: str, *args: Any, **options: Any) -> Any:
        return self.counted.count(function, lambda: super(CountedPostgres, self)._call(function, *args, **options))


@contextmanager
def on_sqlite(_: pytest.FixtureRequest) -> Iterator[Counted]:
    with scratch_folder() as folder, ExitStack() as stack:
        open_sqlite(folder / "jobs.db", ManualClock(START)).close()
        store = CountedSqlite(sqlite_url(folder / "jobs.db"), clock=ManualClock(START))
        stack.callback(store.close)
        steps = itertools.count()
        writer = store._database.writer
        # By the writer's own thread: another one could wait for the connection while it holds the interpreter.
        counting = writer.submit(
            lambda transaction, _: transaction.connection.set_progress_handler(lambda: next(steps) < 0, 100),
            None,
            ManualClock(START),
        )
        counting.result()

        def look() -> Cost:
            assert writer.writing.connection is not None
            return Cost(writer.writing.connection.total_changes, next(steps))

        store.counted = Counted()
        store.counted.store, store.counted.look = store, look
        yield store.counted


@contextmanager
def on_postgres(request: pytest.FixtureRequest) -> Iterator[Counted]:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with ExitStack() as stack:
        url = stack.enter_context(migrated_database(server, has_grace=False, is_new=True))
        reader = stack.enter_context(psycopg.connect(url, autocommit=True))
        reader.execute("ANALYZE")  # plans are made for empty tables, and kept: the worst that the planner can believe
        store = CountedPostgres(url, pool_size=1)
        stack.callback(store.close)

        def look() -> Cost:
            with store._pool.connection() as connection:  # the only one, so that all it did is told
                connection.execute("SELECT pg_stat_force_next_flush()")
            row = reader.execute(
                "SELECT sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del), sum(t.seq_tup_read) + ("
                " SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes AS i WHERE i.schemaname = 'tenure')"
                " FROM pg_stat_user_tables AS t WHERE t.schemaname = 'tenure'"
            ).fetchone()
            assert row is not None
            return Cost(int(row[0]), int(row[1]))

        store.counted = Counted()
        store.counted.store, store.counted.look = store, look
        yield store.counted


ENGINES = {"sqlite": on_sqlite, "postgres": on_postgres}


# --- the scenes, each with so many tasks or jobs


def a_wide_workflow_ends(store: Counted, size: int) -> None:
    """One task readies all others, and one waits for all of them."""
    flow = Workflow("wide")
    first = flow.task("first", agent="A", task_type="t")
    wide = [flow.task(f"t{number}", agent="A", task_type="t", after=[first]) for number in range(size)]
    flow.task("last", agent="A", task_type="t", after=wide)
    workflow_id = store.start(flow)
    while held := store.claim("A", 500):
        store.do(Settle([Completed(grant.id, grant.token) for grant in held]))
        store.settle()
    assert store.run(workflow_id).succeeded == size + 2


def what_was_skipped_is_retried(store: Counted, size: int) -> None:
    """A failure skips all others page by page, and a retry brings them back."""
    flow = Workflow("skipped", on_breach="continue")
    first = flow.task("first", agent="A", task_type="t", max_attempts=1)
    for number in range(size):
        flow.task(f"t{number}", agent="A", task_type="t", after=[first])
    workflow_id = store.start(flow)
    [held] = store.claim("A", 500)
    store.do(Settle([Failed(held.id, held.token, "no")]))
    store.settle()
    assert store.run(workflow_id).skipped == size
    store.do(RetryWorkflow(workflow_id, "ops", "again"))
    store.settle()
    assert store.run(workflow_id).counts["open"] == size + 1


def what_was_cancelled_is_retried(store: Counted, size: int) -> None:
    """A breach cancels all others page by page; a retry brings them back, and a cancel ends them for good."""
    flow = Workflow("cancelled", fail=FailureThreshold(count=1))
    flow.task("first", agent="A", task_type="t", max_attempts=1, priority=9)
    for number in range(size):
        flow.task(f"t{number}", agent="A", task_type="t")
    workflow_id = store.start(flow)
    held = store.claim("A", 500)
    store.do(Settle([Failed(held[0].id, held[0].token, "no")]))
    store.settle()
    store.do(Settle([Completed(grant.id, grant.token) for grant in held[1:]]))
    store.settle()
    found = store.run(workflow_id)
    assert (found.state, found.failed + found.cancelled) == ("failed", size + 1)
    store.do(RetryWorkflow(workflow_id, "ops", "again"))
    store.settle()
    assert store.run(workflow_id).counts["open"] == size + 1
    store.do(CancelWorkflow(workflow_id, "ops", "enough"))
    store.settle()
    assert store.run(workflow_id).cancelled == size + 1


def one_task_of_many_is_blocked_when_it_drains(store: Counted, size: int) -> None:
    flow = Workflow("drained", fail=FailureThreshold(count=1), on_breach="drain")
    flow.task("first", agent="A", task_type="t", max_attempts=1, priority=9)
    free = [flow.task(f"t{number}", agent="A", task_type="t") for number in range(size)]
    flow.task("last", agent="A", task_type="t", after=free)
    workflow_id = store.start(flow)
    [held] = store.claim("A", 1)
    store.do(Settle([Failed(held.id, held.token, "no")]))
    store.settle()
    found = store.run(workflow_id)
    assert (found.phase, found.failed, found.cancelled) == ("draining", 1, 1)


def a_list_is_fanned_out(store: Counted, size: int) -> None:
    flow = Workflow("fanned")
    first = flow.task("first", agent="A", task_type="t")
    flow.each("each", agent="A", task_type="t", over=first.result)
    workflow_id = store.start(flow)
    [held] = store.claim("A", 500)
    store.do(Settle([Completed(held.id, held.token, json.dumps(list(range(size))))]))
    store.settle()
    assert store.run(workflow_id).total == size + 2
    store.do(CancelWorkflow(workflow_id, "ops", "enough"))
    store.settle()
    assert store.run(workflow_id).cancelled == size + 1


def children_are_let_go_and_cancelled(store: Counted, size: int) -> None:
    """A group is filled by pages with room for one child; then it has room for all; then all are cancelled."""
    store.do(Enqueue([new_job("parent", queue="default")]))
    [parent] = store.claim("default", 1)
    group_id = new_job_id()
    for at in range(0, size, GROUP_PAGE):
        jobs = tuple(new_job("child", queue="default") for _ in range(GROUP_PAGE))
        group = NewGroup("parts", jobs, window=size - 2, id=group_id)
        store.do(FillGroup(parent.id, parent.token, group, at, size))
    step = NewStep("parts", "group", "open", awaits=f"group:{group_id}")
    store.do(Settle([Suspended(parent.id, parent.token, "parts", steps=(step,))]))
    store.settle()
    held = store.claim("default", 500)
    store.do(Settle([Completed(grant.id, grant.token) for grant in held]))
    store.settle()
    store.do(Cancel([parent.id], "ops", "enough"))
    store.settle()
    found = store.do(GetGroup(group_id))
    assert found is not None
    assert (found.ended, found.cancelled) == (size, size - 500)


def one_signal_wakes_many(store: Counted, size: int) -> None:
    ids: list[JobId] = []
    for _ in range(0, size, 500):
        store.do(Enqueue([new_job("waits", queue="default") for _ in range(500)]))
        held = store.claim("default", 500)
        ids += [grant.id for grant in held]
        go = NewStep("go", "signal", "open", awaits="signal:go")
        store.do(Settle([Suspended(grant.id, grant.token, "go", steps=(go,)) for grant in held]))
        store.settle()
    store.do(Signal("go", "1"))
    store.settle()
    assert sum(len(store.claim("default", 500)) for _ in range(0, size, 500)) == size


SCENES = (
    a_wide_workflow_ends,
    what_was_skipped_is_retried,
    what_was_cancelled_is_retried,
    one_task_of_many_is_blocked_when_it_drains,
    a_list_is_fanned_out,
    children_are_let_go_and_cancelled,
    one_signal_wakes_many,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_no_transaction_grows_with_the_flow(
    request: pytest.FixtureRequest, engine: str, scene: Callable[[Counted, int], None]
) -> None:
    largest: list[dict[str, Cost]] = []
    for size in (FEW, MANY):
        with ENGINES[engine](request) as store:
            scene(store, size)
            largest.append(store.largest)
    few, many = largest

    print({name: (few[name], many[name]) for name in few})
    beyond = Counter({name: cost.written for name, cost in many.items() if cost.written > WRITES})
    grown = [
        f"{name}: {what} {few[name][place]} and {cost[place]}"
        for name, cost in many.items()
        for place, what in enumerate(("written", "read"))
        # A claim on PostgreSQL reads what was granted until it is vacuumed; no page bounds that.
        if (name, what) != ("exchange", "read") and cost[place] > SLACK[engine] * few[name][place] + 50
    ]
    assert (grown, beyond) == ([], {})
