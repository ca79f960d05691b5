"""Gates: switches in the database. No row means open; a closed one refuses with its name and changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.errors import GateClosed, InvalidArgument
from tenure.model.ids import WorkerId
from tenure.model.outcome import Completed
from tenure.model.state import State
from tenure.store.admin import RemoveWorkers, SetGate
from tenure.store.contract import Claim, Enqueue, Exchange, Heartbeat, WorkerRow
from tenure.store.queries import ListAudit, ListGates, ListWorkers
from tests.conformance.acts import (
    Subject,
    claim,
    claim_one,
    complete,
    enqueue,
    exists,
    get,
    hold,
    make_queue,
    new_job,
    set_gate,
)
from tests.conformance.engines import SteeredClock

WORKER = WorkerRow(WorkerId("w1"), "host", 1)


@pytest.mark.parametrize("gate", ["master", "default.master", "queue:default"])
def test_a_closed_gate_refuses_to_enqueue(store: Subject, gate: str) -> None:
    set_gate(store, gate, is_open=False)
    job = new_job()

    with pytest.raises(GateClosed) as caught:
        store.do(Enqueue([job]))

    assert caught.value.gate == gate
    assert gate in str(caught.value)
    assert not exists(store, job.id)

    set_gate(store, gate, is_open=True)
    assert store.do(Enqueue([job]))


@pytest.mark.parametrize("gate", ["worker", "default.worker", "notify", "heartbeat", "outbox.master", "queue:other"])
def test_other_gates_let_jobs_in(store: Subject, gate: str) -> None:
    set_gate(store, gate, is_open=False)

    assert enqueue(store)


@pytest.mark.parametrize("gate", ["master", "worker", "default.master", "default.worker", "queue:default"])
def test_a_closed_gate_refuses_to_claim(store: Subject, gate: str) -> None:
    job_id = enqueue(store)
    set_gate(store, gate, is_open=False)

    with pytest.raises(GateClosed) as caught:
        claim(store)

    assert caught.value.gate == gate
    assert get(store, job_id).state is State.QUEUED

    set_gate(store, gate, is_open=True)
    assert claim_one(store).id == job_id


@pytest.mark.parametrize("gate", ["notify", "heartbeat", "outbox.master", "outbox.worker", "queue:other"])
def test_other_gates_let_jobs_out(store: Subject, gate: str) -> None:
    enqueue(store)
    set_gate(store, gate, is_open=False)

    assert len(claim(store)) == 1


def test_the_gate_of_a_worker_refuses_its_claims_and_no_others(store: Subject) -> None:
    enqueue(store)
    held = claim_one(store, "w1")
    later = enqueue(store)
    set_gate(store, "worker:w1", is_open=False)

    with pytest.raises(GateClosed) as caught:
        claim(store, worker="w1")

    assert caught.value.gate == "worker:w1"
    assert complete(store, held).state == State.SUCCEEDED
    assert [grant.id for grant in claim(store, worker="w2")] == [later]


@pytest.mark.parametrize("is_silent", [False, True])
def test_the_gate_of_a_worker_goes_with_its_row(store: Subject, clock: SteeredClock, is_silent: bool) -> None:
    store.do(Heartbeat([], worker=WORKER))
    set_gate(store, "worker:w1", is_open=False)
    clock.advance(120)

    gone = store.do(RemoveWorkers(unseen_seconds=60) if is_silent else RemoveWorkers([WorkerId("w1")]))

    assert gone == ["w1"]
    assert "worker:w1" not in {gate.name for gate in store.do(ListGates())}
    assert claim(store, worker="w1") == []


def test_a_queue_with_a_closed_gate_of_its_own_is_skipped_while_others_give(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    enqueue(store, queue="a", priority=9)
    job_id = enqueue(store, queue="b")
    set_gate(store, "queue:a", is_open=False)

    assert [grant.id for grant in claim(store, 10, queues=["a", "b"])] == [job_id]


@pytest.mark.parametrize("gate", ["substrate.master", "substrate.worker"])
def test_the_queues_of_a_profile_with_a_closed_gate_are_skipped_while_others_give(store: Subject, gate: str) -> None:
    make_queue(store, "a", profile="substrate", key_scope="none")
    make_queue(store, "b")
    enqueue(store, queue="a", priority=9)
    job_id = enqueue(store, queue="b")
    set_gate(store, gate, is_open=False)

    assert [grant.id for grant in claim(store, 10, queues=["a", "b"])] == [job_id]

    with pytest.raises(GateClosed) as caught:
        claim(store, queues=["a"])
    assert caught.value.gate == gate


@pytest.mark.parametrize("gate", ["master", "worker", "worker:w1"])
def test_a_gate_that_stands_before_every_queue_refuses_a_claim_whatever_else_is_closed(
    store: Subject, gate: str
) -> None:
    make_queue(store, "a", profile="substrate", key_scope="none")
    make_queue(store, "b")
    for closed in ("substrate.worker", "queue:b", gate):
        set_gate(store, closed, is_open=False)

    with pytest.raises(GateClosed) as caught:
        claim(store, worker="w1", queues=["a", "b"])

    assert caught.value.gate == gate


def test_a_claim_is_refused_when_no_queue_is_left(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    set_gate(store, "queue:a", is_open=False)
    set_gate(store, "queue:b", is_open=False)

    with pytest.raises(GateClosed):
        claim(store, queues=["a", "b"])


def test_a_profiles_gate_closes_only_queues_of_that_profile(store: Subject) -> None:
    make_queue(store, "a", profile="substrate")
    make_queue(store, "b", profile="outbox")
    set_gate(store, "substrate.master", is_open=False)

    with pytest.raises(GateClosed) as caught:
        enqueue(store, queue="a")
    assert caught.value.gate == "substrate.master"
    assert enqueue(store, queue="b")


@pytest.mark.parametrize("gate", ["master", "worker", "heartbeat", "default.master", "default.worker", "queue:default"])
def test_settling_and_extending_leases_is_never_gated(store: Subject, clock: SteeredClock, gate: str) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    set_gate(store, gate, is_open=False)
    clock.advance(30)

    beat = store.do(Heartbeat([hold(grant)], worker=WORKER))

    assert beat.lost == frozenset()
    assert get(store, job_id).lease_until > grant.lease_until  # type: ignore[operator]
    assert complete(store, grant).state == "succeeded"


@pytest.mark.parametrize("gate", ["master", "default.master", "queue:default", "queue:next"])
def test_follow_ups_of_a_completed_job_pass_every_gate(store: Subject, gate: str) -> None:
    make_queue(store, "next", key_scope="window", key_window_seconds=60)
    job_id = enqueue(store)
    grant = claim_one(store)
    set_gate(store, gate, is_open=False)
    follow, keyed = new_job("next"), new_job("next", key="k", queue="next")

    assert complete(store, grant, jobs=(follow, keyed)).state == "succeeded"

    assert get(store, job_id).state is State.SUCCEEDED
    assert [get(store, one.id).state for one in (follow, keyed)] == [State.QUEUED, State.QUEUED]


def test_a_closed_heartbeat_gate_keeps_the_worker_row_out(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)
    set_gate(store, "heartbeat", is_open=False)

    store.do(Heartbeat([hold(grant)], worker=WORKER))

    assert store.do(ListWorkers()) == []


def test_a_closed_heartbeat_gate_is_an_error_when_there_is_nothing_else_to_do(store: Subject) -> None:
    set_gate(store, "heartbeat", is_open=False)

    with pytest.raises(GateClosed) as caught:
        store.do(Heartbeat([], worker=WORKER))

    assert caught.value.gate == "heartbeat"
    assert store.do(ListWorkers()) == []


def test_the_heartbeat_gate_of_a_profile_keeps_the_rows_of_its_own_workers_out(store: Subject) -> None:
    set_gate(store, "default.heartbeat", is_open=False)

    with pytest.raises(GateClosed) as caught:
        store.do(Heartbeat([], worker=replace(WORKER, queues=["default"])))
    store.do(Heartbeat([], worker=replace(WORKER, queues=[])))

    assert caught.value.gate == "default.heartbeat"
    assert len(store.do(ListWorkers())) == 1


def test_an_exchange_settles_even_if_a_gate_refuses_its_claim(store: Subject) -> None:
    first, second = enqueue(store), enqueue(store)
    grant = claim_one(store)
    set_gate(store, "worker", is_open=False)

    answer = store.do(Exchange([Completed(grant.id, grant.token)], Claim(WorkerId("w1"), ["default"], limit=5)))

    assert answer.grants == []
    assert isinstance(answer.refused, GateClosed)
    assert answer.refused.gate == "worker"
    assert (get(store, first).state, get(store, second).state) == (State.SUCCEEDED, State.QUEUED)


def test_an_exchange_without_outcomes_raises_what_its_claim_raises(store: Subject) -> None:
    set_gate(store, "worker", is_open=False)

    with pytest.raises(GateClosed):
        store.do(Exchange([], Claim(WorkerId("w1"), ["default"])))


def test_the_four_global_gates_are_listed_open_from_the_start(store: Subject) -> None:
    gates = {gate.name: gate.is_open for gate in store.do(ListGates())}

    assert {name: gates[name] for name in ("master", "worker", "notify", "heartbeat")} == {
        "master": True,
        "worker": True,
        "notify": True,
        "heartbeat": True,
    }


def test_a_gate_tells_who_set_it_and_when(store: Subject, clock: SteeredClock) -> None:
    clock.advance(3)

    answer = store.do(SetGate("queue:default", is_open=False, actor="ann", reason="deploy"))

    assert (answer.name, answer.is_open, answer.actor, answer.updated_at) == (
        "queue:default",
        False,
        "ann",
        clock.now(),
    )
    assert answer in store.do(ListGates())
    rows = store.do(ListAudit())
    assert ("ann", "deploy") in [(row.actor, row.reason) for row in rows]


@pytest.mark.parametrize(
    "name", ["", "nonsense", "queue:", "worker:", ".master", "default.", "default.nonsense", "Master"]
)
def test_a_name_that_is_no_gate_is_refused(store: Subject, name: str) -> None:
    with pytest.raises(InvalidArgument):
        set_gate(store, name, is_open=False)


def test_repeating_is_harmless(store: Subject) -> None:
    set_gate(store, "master", is_open=False)
    set_gate(store, "master", is_open=False)
    set_gate(store, "master", is_open=True)
    set_gate(store, "master", is_open=True)

    assert enqueue(store)
