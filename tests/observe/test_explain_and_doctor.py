"""What `explain` and `doctor` say about unknown kinds, suspicion, refunds and leases that ran out, on both engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import QueuePolicy
from tenure.observe.doctor import Check, examine
from tenure.observe.explain import Reason, explain, suspicion_says
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue, Heartbeat, Reap, Store, WorkerRow
from tenure.store.limits import BlockLimiter, ClearLimiter, SetLimiter
from tests.conformance.engines import SteeredDatabase, scratch_folder
from tests.servers import PostgresServer
from tests.stateful.grounds import PostgresGround, SqliteGround
from tests.stateful.machine import Ground


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "sqlite":
        with scratch_folder() as folder:
            yield from _made(SqliteGround(folder))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = SteeredDatabase(server)
    yield from _made(PostgresGround(database))
    database.close()


def _made(ground: Ground) -> Iterator[Ground]:
    ground.renew()
    ground.store.do(SetQueues({"mail": QueuePolicy(lease_seconds=10, on_unknown_kind="leave")}, actor="test"))
    yield ground
    ground.close()


def enqueue(store: Store, kind: str, count: int = 1) -> list[JobId]:
    return [one.id for one in store.do(Enqueue([NewJob(new_job_id(), kind, queue="mail") for _ in range(count)]))]


def serve(store: Store, worker: str, *kinds: str) -> None:
    row = WorkerRow(WorkerId(worker), "host", 1, queues=("mail",), kinds=kinds, concurrency=5)
    store.do(Heartbeat([], worker=row))


def reasons(store: Store, job_id: JobId) -> dict[str, Reason]:
    return {one.code: one for one in explain(store, job_id).reasons}


def checks(store: Store, name: str) -> list[Check]:
    return [one for one in examine(store, store.url) if one.name == name]


def test_a_kind_that_no_live_worker_handles_is_named_with_the_workers_seen(ground: Ground) -> None:
    store = ground.store
    [job_id] = enqueue(store, "letter")
    serve(store, "w-1", "parcel")
    serve(store, "w-2", "postcard", "stamp")

    reason = reasons(store, job_id)["no_handler"]

    assert reason.blocks
    assert "'letter'" in reason.sentence
    assert "stays queued" in reason.sentence
    assert "w-1 (handles parcel)" in reason.sentence
    assert "w-2 (handles postcard, stamp)" in reason.sentence
    assert reason.fix is not None
    assert "tenure worker" in reason.fix


def test_doctor_lists_kinds_that_wait_and_that_no_live_worker_handles(ground: Ground) -> None:
    store = ground.store
    enqueue(store, "letter", 3)
    enqueue(store, "parcel")
    assert checks(store, "unknown kind") == [], "without a live worker the queue is unserved, whatever the kind"
    serve(store, "w-1", "parcel")

    [check] = checks(store, "unknown kind")

    assert check.status == "wrong"
    assert check.says == "3 jobs of kind 'letter' in queue 'mail', and of its 1 live worker none has a handler for it"
    assert check.fix is not None
    assert "tenure jobs cancel --queue mail --kind letter" in check.fix
    serve(store, "w-2", "letter")
    assert checks(store, "unknown kind") == []


def test_a_job_held_beside_others_by_a_worker_that_vanished_is_suspect_and_refunded(ground: Ground) -> None:
    store = ground.store
    [job_id, _] = enqueue(store, "letter", 2)
    store.do(Claim(WorkerId("gone"), ["mail"], limit=2))
    ground.advance(11)
    store.do(Reap())

    found = reasons(store, job_id)

    assert found["suspect"].sentence.endswith("it runs in a process of its own.")
    assert not found["suspect"].blocks
    assert found["refunded"].sentence.startswith("Attempt 1 was not counted: its worker held other jobs too")


def test_a_second_worker_that_vanishes_lets_the_job_run_alone(ground: Ground) -> None:
    store = ground.store
    [job_id, _] = enqueue(store, "letter", 2)
    for worker in ("gone", "gone too"):
        store.do(Claim(WorkerId(worker), ["mail"], limit=2))
        ground.advance(11)
        store.do(Reap())

    assert reasons(store, job_id)["suspect"].sentence.endswith("in a process of its own and alone on its worker.")
    [grant] = store.do(Claim(WorkerId("w-3"), ["mail"], limit=2))
    assert "suspect" in reasons(store, grant.id)


def test_an_attempt_of_a_job_that_was_alone_is_not_called_refunded(ground: Ground) -> None:
    store = ground.store
    [job_id] = enqueue(store, "letter")
    store.do(Claim(WorkerId("gone"), ["mail"]))
    ground.advance(11)
    store.do(Reap())

    assert "refunded" not in reasons(store, job_id)


def test_a_lease_that_ran_out_long_ago_is_named_with_what_to_do(ground: Ground) -> None:
    store = ground.store
    [job_id] = enqueue(store, "letter")
    store.do(Claim(WorkerId("gone"), ["mail"]))
    ground.advance(15)
    assert [check.status for check in checks(store, "stuck")] == ["warn"]
    assert reasons(store, job_id).keys() == {"lease_ran_out"}
    ground.advance(3600)

    [check] = checks(store, "stuck")

    assert (check.status, job_id in check.says, job_id in (check.fix or "")) == ("wrong", True, True)
    assert "not_taken_back" in reasons(store, job_id)


@pytest.mark.parametrize(
    ("suspicion", "ends"),
    [(0, None), (1, "in a process of its own."), (2, "alone on its worker."), (7, "alone on its worker.")],
)
def test_suspicion_in_one_sentence(suspicion: int, ends: str | None) -> None:
    said = suspicion_says(suspicion)

    assert (said is None) == (ends is None)
    assert said is None or (said.endswith(str(ends)) and said.count(".") == 1)


def test_a_kind_in_quarantine_is_named_with_what_undoes_it(ground: Ground) -> None:
    store = ground.store
    for number in range(3):
        store.do(Enqueue([NewJob(new_job_id(), "bad", queue="mail", max_attempts=2)]))
        for turn in range(2):
            assert store.do(Claim(WorkerId(f"w{number}{turn}"), ["mail"], 1))
            ground.advance(11)
            store.do(Reap())
    [waiting] = enqueue(store, "bad")

    assert store.do(Claim(WorkerId("w"), ["mail"], 1)) == []
    found = reasons(store, waiting)["gate_closed"]
    assert "closed by itself" in found.sentence
    assert found.fix == "tenure gates open kind:bad"
    [check] = checks(store, "quarantine")
    assert check.status == "wrong"
    assert "'bad' keep crashing" in check.says
    assert checks(store, "gate") == []


def test_a_blocked_limiter_is_named_with_its_end_and_what_clears_it(ground: Ground) -> None:
    store = ground.store
    job = NewJob(new_job_id(), "k", queue="mail", limiter="anthropic")
    store.do(Enqueue([job]))
    store.do(BlockLimiter("anthropic", 30, "ops", "429 busy"))

    blocked = reasons(store, job.id)["limiter_blocked"]
    assert "blocked by limiter 'anthropic' until" in blocked.sentence
    assert "429 busy" in blocked.sentence
    assert blocked.fix == "tenure limits clear anthropic"
    [check] = checks(store, "limiter")
    assert "'anthropic' is blocked until" in check.says

    ground.advance(31)
    assert not reasons(store, job.id)["limiter_reopening"].blocks
    store.do(ClearLimiter("anthropic", "ops"))
    store.do(SetLimiter("anthropic", "ops", per_minute=1))
    other = NewJob(new_job_id(), "k", queue="mail", limiter="anthropic")
    store.do(Enqueue([other]))
    assert store.do(Claim(WorkerId("w"), ["mail"], 1))
    assert "lets 1 jobs a minute" in reasons(store, other.id)["limiter_at_rate"].sentence
