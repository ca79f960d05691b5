"""Races of durable flow and workflows on PostgreSQL, staged: a row that the test holds decides who comes first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.memo import memo_id
from tenure.model.outcome import Completed, Failed, Rejected, Suspended
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.model.step import NewStep
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Request, Revive, Settle, Wake
from tenure.store.flow import RecordSteps, SweepFlow
from tenure.store.memo import TakeMemo
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import GetJobs
from tenure.store.workflows import (
    AdvanceWorkflows,
    CancelWorkflow,
    GetWorkflow,
    NewTask,
    NewWorkflow,
    StartWorkflow,
    WorkflowRow,
)
from tests.conformance.acts import NO_BACKOFF, new_job
from tests.conformance.engines import migrated_database
from tests.postgres.test_races import holding, wait_until_blocked
from tests.servers import PostgresServer

pytestmark = pytest.mark.postgres

AGENT = QueuePolicy(backoff=NO_BACKOFF, max_attempts=1, key_scope="none")


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    with migrated_database(postgres_server, has_grace=False) as made:
        yield made


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    retries = made.stats().retries
    made.close()
    assert retries == 0, "a deadlock was resolved by repeating a request"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def claim(store: PostgresStore, *queues: str, limit: int = 10) -> list[Grant]:
    return store.do(Claim(WorkerId("w1"), queues or ("default",), limit))


def state(store: PostgresStore, job_id: JobId) -> State:
    [job] = store.do(GetJobs([job_id]))
    assert job is not None
    return job.state


def sweep(store: PostgresStore) -> None:
    """What events tell of, and nothing by time."""
    while (swept := store.do(SweepFlow())).events or swept.more:
        pass


# --- signals


def test_two_signals_that_one_sweep_finds_end_a_wait_by_one_of_them(store: PostgresStore, url: str) -> None:
    store.do(Enqueue([new_job()]))
    [grant] = claim(store)
    steps = tuple(NewStep(f"wait/{key}", "signal", "open", awaits=f"signal:{key}") for key in "ab")
    store.do(Exchange([Suspended(grant.id, grant.token, "a or b", steps=steps)], None))
    sweep(store)
    with psycopg.connect(url) as connection:
        for number, key in enumerate("ab"):
            told = json.dumps({"key": key, "value": number, "scope": "queue"})
            connection.execute("SELECT tenure.signal(%s::json)", [told])

    sweep(store)

    [grant] = claim(store)
    assert {step.key: step.value for step in grant.steps if step.state == "done"} == {"wait/a": "0"}
    again = NewStep("wait/b/2", "signal", "open", awaits="signal:b")
    settled = store.do(Exchange([Suspended(grant.id, grant.token, "b", steps=(again,))], None)).settled
    assert [one.state for one in settled.values()] == ["queued"]


# --- the end of a job that another waits for


def waiting_for(store: PostgresStore, *, is_durable: bool) -> tuple[Grant, Grant]:
    """Two held jobs: the second is about to wait for the end of the first, which has steps of its own or none."""
    store.do(Enqueue([new_job(), new_job()]))
    awaited, waiting = claim(store)
    if is_durable:
        store.do(RecordSteps(awaited.id, awaited.token, [NewStep("own")]))
    return awaited, waiting


def park_on(store: PostgresStore, waiting: Grant, awaits: str) -> None:
    kind = awaits.partition(":")[0]
    step = NewStep("it", kind, "open", awaits=awaits)
    store.do(Exchange([Suspended(waiting.id, waiting.token, awaits, steps=(step,))], None))


def rejected(grant: Grant) -> str:
    """The end of a job, as `tenure.settle` takes it."""
    return json.dumps({"rest": [{"i": grant.id, "t": grant.token, "o": "reject", "e": "no"}]})


@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
def test_a_wait_for_a_job_that_is_ending_right_now_is_not_lost(
    store: PostgresStore, url: str, is_durable: bool
) -> None:
    """The end does not see the wait, and neither the wait nor the sweep sees the end."""
    awaited, waiting = waiting_for(store, is_durable=is_durable)

    with holding(url, "SELECT tenure.settle(%s)", rejected(awaited)) as ending:
        park_on(store, waiting, f"job:{awaited.id}")
        for _ in range(5):
            store.do(SweepFlow())
        assert state(store, waiting.id) is State.WAITING
        ending.commit()
    sweep(store)

    assert state(store, awaited.id) is State.FAILED
    assert state(store, waiting.id) is State.QUEUED


@pytest.mark.parametrize("is_durable", [False, True], ids=["plain", "durable"])
def test_an_end_that_waits_for_the_look_at_the_wait_tells_of_itself(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor, is_durable: bool
) -> None:
    awaited, waiting = waiting_for(store, is_durable=is_durable)
    park_on(store, waiting, f"job:{awaited.id}")

    with holding(url, "SELECT tenure.sweep_flow('{}')") as looking:
        ending = threads.submit(store.do, Settle([Completed(awaited.id, awaited.token)]))
        wait_until_blocked(url)
        looking.commit()
    ending.result(15)
    sweep(store)

    assert state(store, waiting.id) is State.QUEUED


def test_a_memo_whose_owner_is_ending_right_now_is_handed_on(store: PostgresStore, url: str) -> None:
    owner, waiting = waiting_for(store, is_durable=False)
    memo = memo_id(None, "extract", "k")
    store.do(TakeMemo(owner.id, owner.token, memo, "extract", "k"))

    with holding(url, "SELECT tenure.settle(%s)", rejected(owner)) as ending:
        park_on(store, waiting, f"memo:{memo}")
        for _ in range(5):
            store.do(SweepFlow())
        assert state(store, waiting.id) is State.WAITING
        ending.commit()
    sweep(store)

    assert state(store, waiting.id) is State.QUEUED


def test_a_memo_that_is_locked_while_it_is_looked_at_is_looked_at_again(store: PostgresStore, url: str) -> None:
    owner, waiting = waiting_for(store, is_durable=False)
    memo = memo_id(None, "extract", "k")
    store.do(TakeMemo(owner.id, owner.token, memo, "extract", "k"))
    park_on(store, waiting, f"memo:{memo}")
    sweep(store)

    with holding(url, "SELECT 1 FROM tenure.memo FOR UPDATE"):
        store.do(Settle([Rejected(owner.id, owner.token, "no")]))
        for _ in range(5):
            store.do(SweepFlow())
        assert state(store, waiting.id) is State.WAITING
    sweep(store)

    assert state(store, waiting.id) is State.QUEUED


# --- acts on several tasks while their workflow is folded


def crossed(store: PostgresStore) -> tuple[str, JobId, JobId]:
    """A workflow top → late → early whose last task has the lowest id; `top` has failed, and that is not folded.

    The fold cancels `late` and then `early`, against the order of ids. Answers the workflow, `early` and `late`.
    """
    early, late, top = (new_job_id() for _ in range(3))
    workflow_id = new_job_id()
    tasks = [
        NewTask(new_job("t", queue="A", job_id=job_id, workflow_id=workflow_id), name, needs, depth)
        for job_id, name, needs, depth in ((top, "top", 0, 0), (late, "late", 1, 1), (early, "early", 1, 2))
    ]
    edges = [(top, late, "ok"), (late, early, "ok")]
    store.do(StartWorkflow(NewWorkflow(workflow_id, "crossed", 3, "d"), tasks, edges, create_queues={"A": AGENT}))
    [grant] = claim(store, "A")
    assert grant.id == top
    store.do(Settle([Failed(top, grant.token, "boom")]))
    return workflow_id, early, late


def folded(store: PostgresStore, workflow_id: str) -> WorkflowRow:
    while store.do(AdvanceWorkflows()).more:
        pass
    found = store.do(GetWorkflow(workflow_id))
    assert found is not None
    return found


ACTS: dict[str, Callable[[list[JobId]], Request[Any]]] = {
    "cancel": lambda ids: Cancel(ids, "ann", "enough"),
    "revive": lambda ids: Revive(ids, "ann", "again"),
    "wake": Wake,
}


@pytest.mark.parametrize("act", ACTS)
def test_an_act_on_tasks_that_a_fold_is_at_waits_in_no_circle(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor, act: str
) -> None:
    """The fold held `late` and wanted `early`, the act held `early` and wanted `late`."""
    workflow_id, early, late = crossed(store)

    with holding(url, "SELECT 1 FROM tenure.task WHERE job_id = %s FOR UPDATE", early) as gate:
        folding = threads.submit(store.do, AdvanceWorkflows())
        wait_until_blocked(url)
        acting = threads.submit(store.do, ACTS[act]([early, late]))
        wait_until_blocked(url, 2)
        gate.commit()

    folding.result(15)
    acting.result(15)
    run = folded(store, workflow_id)
    assert run.failed == 1
    if act == "revive":  # what was skipped was revived and is open again
        assert {state(store, early), state(store, late)} == {State.QUEUED}
    else:
        assert (run.state, run.skipped) == ("completed", 2)


@pytest.mark.parametrize("act", ["cancel", "wake"])
def test_a_fold_that_meets_an_act_on_its_tasks_waits_in_no_circle(
    store: PostgresStore, url: str, threads: ThreadPoolExecutor, act: str
) -> None:
    workflow_id, early, late = crossed(store)

    with holding(url, "SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", late) as gate:
        acting = threads.submit(store.do, ACTS[act]([early, late]))
        wait_until_blocked(url)
        folding = threads.submit(store.do, AdvanceWorkflows())
        wait_until_blocked(url, 2)
        gate.commit()

    acting.result(15)
    folding.result(15)
    run = folded(store, workflow_id)
    if act == "wake":  # woken by hand, they are still skipped
        assert (run.state, run.skipped) == ("completed", 2)
    else:
        assert (run.state, run.failed, run.cancelled + run.skipped) == ("completed", 1, 2)


def test_an_act_on_one_workflow_does_not_wait_for_another(store: PostgresStore, url: str) -> None:
    """Each of two cancels held its own workflow, and folded what was left to fold of the other's."""
    one, *_ = crossed(store)
    other, *_ = crossed(store)

    with holding(url, "SELECT 1 FROM tenure.workflow WHERE id = %s FOR UPDATE", other):
        assert store.do(CancelWorkflow(one, "ann", "enough")).state == "cancelled"

    with psycopg.connect(url) as connection:
        left = connection.execute(
            "SELECT count(*) FROM tenure.workflow_event WHERE workflow_id = %s", [other]
        ).fetchone()
    assert left == (1,)
    assert folded(store, other).state == "completed"
