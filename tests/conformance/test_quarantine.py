"""Quarantine: a kind whose jobs keep crashing their workers is closed by itself."""

from __future__ import annotations

from tenure.model.ids import JobId
from tenure.model.outcome import FailureClass
from tenure.model.state import State
from tenure.store.contract import Claim, Exchange
from tenure.store.queries import ListAudit, ListGates
from tests.conformance.acts import NO_BACKOFF, Subject, claim, claim_one, enqueue, fail, get, make_queue, set_gate
from tests.conformance.engines import SteeredClock


def crash(store: Subject, clock: SteeredClock, job_id: JobId, times: int = 2, apart: float = 0.0) -> None:
    """Workers that hold this job, and nothing else, vanish; the next claim takes it back."""
    for _ in range(times):
        [grant] = claim(store, 1, worker=f"w{clock.now()}", kinds=[get(store, job_id).kind], lease_seconds=5)
        assert grant.id == job_id
        clock.advance(6 + apart)
        claim(store, 0, worker="other")


def is_closed(store: Subject, gate: str = "kind:bad") -> bool:
    return any(one.name == gate and not one.is_open for one in store.do(ListGates()))


def test_three_jobs_that_crashed_twice_close_their_kind(store: Subject, clock: SteeredClock) -> None:
    ids = []
    for _ in range(3):
        assert not is_closed(store)
        ids.append(enqueue(store, "bad", max_attempts=2))
        crash(store, clock, ids[-1])
    waiting, good = enqueue(store, "bad"), enqueue(store, "good")

    assert is_closed(store)
    assert [grant.id for grant in claim(store, 10)] == [good], "jobs of the kind wait, others go on"
    assert get(store, waiting).state is State.QUEUED
    [row] = store.do(ListAudit("kind:bad"))
    assert (row.act, row.actor) == ("close_gate", "tenure")
    assert all(job_id in (row.reason or "") for job_id in ids)


def test_a_process_of_the_handler_that_died_counts_too(store: Subject) -> None:
    make_queue(store, "q", backoff=NO_BACKOFF)
    for _ in range(3):
        enqueue(store, "bad", queue="q", max_attempts=2)
        for _ in range(2):
            fail(store, claim_one(store, queue="q"), "killed by signal 11", FailureClass.CRASH)

    assert is_closed(store)


def test_an_operator_opens_the_gate_and_it_takes_three_new_crashers_to_close_it(
    store: Subject, clock: SteeredClock
) -> None:
    for _ in range(3):
        crash(store, clock, enqueue(store, "bad", max_attempts=2))
    set_gate(store, "kind:bad", is_open=True)

    for _ in range(2):
        crash(store, clock, enqueue(store, "bad", max_attempts=2))
    assert not is_closed(store)
    crash(store, clock, enqueue(store, "bad", max_attempts=2))

    assert is_closed(store)


def test_crashes_that_lie_far_apart_close_nothing(store: Subject, clock: SteeredClock) -> None:
    for _ in range(5):
        crash(store, clock, enqueue(store, "bad", max_attempts=2), apart=300.0)

    assert not is_closed(store)


def test_one_job_that_crashes_many_times_closes_nothing(store: Subject, clock: SteeredClock) -> None:
    crash(store, clock, enqueue(store, "bad", max_attempts=20), times=8)

    assert not is_closed(store)


def test_jobs_that_were_only_beside_a_crash_are_not_blamed(store: Subject, clock: SteeredClock) -> None:
    """Their worker held others too, so the crash is not proven to be theirs."""
    for _ in range(4):
        enqueue(store, "innocent", max_attempts=20)
    for number in range(2):
        assert len(claim(store, 10, worker=f"w{number}", lease_seconds=5)) >= 1
        clock.advance(6)

    assert not is_closed(store, "kind:innocent")


def test_a_kind_that_an_operator_closed_waits_and_refuses_nothing(store: Subject) -> None:
    set_gate(store, "kind:bad", is_open=False)
    job_id = enqueue(store, "bad")
    limited = enqueue(store, "bad", limiter="llm")

    assert claim(store, 10) == []
    assert claim(store, 10, kinds=["bad"]) == []
    assert store.do(Exchange((), Claim("w", ["default"], 5))).refused is None  # type: ignore[arg-type]

    set_gate(store, "kind:bad", is_open=True)
    assert {grant.id for grant in claim(store, 10)} == {job_id, limited}
