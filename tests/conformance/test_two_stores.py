"""Two stores on one database share everything but memory: what one changes holds for the other at its next request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.errors import GateClosed, UnknownQueue
from tenure.model.clock import ManualClock
from tenure.model.state import State
from tenure.store.admin import PauseQueues
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    make_queue,
    offer,
    release,
    set_gate,
)
from tests.conformance.engines import SteeredClock, open_postgres, open_sqlite, sqlite_path


@pytest.fixture
def other(store: Subject) -> Iterator[Subject]:
    """Another store on the same database, as another process would have it."""
    if store.engine == "sqlite":
        assert isinstance(store.clock, ManualClock)
        raw = open_sqlite(sqlite_path(store.store.url), store.clock)
    else:
        raw = open_postgres(store.store.url)
    yield Subject(store.engine, raw, store.clock)
    raw.close()


def test_a_gate_that_one_closes_is_closed_for_the_other(store: Subject, other: Subject) -> None:
    enqueue_many(store, 3)
    enqueue(other)
    claim_one(other)

    for gate in ("master", "worker", "queue:default", "default.worker"):
        set_gate(store, gate, is_open=False)
        with pytest.raises(GateClosed):
            claim(other)
        set_gate(store, gate, is_open=True)
        release(other, claim_one(other))


def test_an_enqueue_gate_that_one_closes_is_closed_for_the_other(store: Subject, other: Subject) -> None:
    enqueue(other)

    set_gate(store, "master", is_open=False)
    with pytest.raises(GateClosed):
        enqueue(other)
    set_gate(store, "master", is_open=True)

    assert enqueue(other)


def test_a_queue_that_one_makes_is_there_for_the_other(store: Subject, other: Subject) -> None:
    with pytest.raises(UnknownQueue):
        enqueue(other, queue="fresh")
    with pytest.raises(UnknownQueue):
        claim(other, queues=["fresh"])

    make_queue(store, "fresh")

    job_id = enqueue(other, queue="fresh")
    assert claim_one(other, queue="fresh").id == job_id


def test_a_queue_that_one_pauses_gives_the_other_nothing(store: Subject, other: Subject) -> None:
    enqueue_many(other, 2)
    claim_one(other)

    store.do(PauseQueues(["default"], paused=True, actor="ann"))
    assert claim(other) == []

    store.do(PauseQueues(["default"], paused=False, actor="ann"))
    assert len(claim(other)) == 1


def test_a_policy_that_one_sets_is_the_others_too(store: Subject, other: Subject, clock: SteeredClock) -> None:
    make_queue(store, max_attempts=3, lease_seconds=10, concurrency=None)
    enqueue_many(other, 5, queue="q")
    assert (claim_one(other, queue="q").lease_until - clock.now()).total_seconds() == 10

    make_queue(store, max_attempts=7, lease_seconds=20, concurrency=2, key_scope="none", backoff=NO_BACKOFF)

    assert get(other, enqueue(other, queue="q")).max_attempts == 7
    [grant] = claim(other, 5, queues=["q"])
    assert (grant.lease_until - clock.now()).total_seconds() == 20
    assert enqueue(other, queue="q", key="k") != enqueue(other, queue="q", key="k")
    assert fail(other, grant).run_at_us == round(clock.now().timestamp() * 1_000_000)


def test_jobs_pass_from_one_to_the_other(store: Subject, other: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, key="k", delay_seconds=5)
    assert claim(other) == []
    assert offer(other, key="k").id == job_id
    clock.advance(5)

    grant = claim_one(other)
    assert claim(store) == []
    assert cancel(store, job_id).answer == "requested"
    assert complete(other, grant).state == "cancelled"

    assert get(store, job_id).state is State.CANCELLED
    assert not offer(store, key="k").duplicate


def test_work_that_comes_back_late_is_found_by_both(store: Subject, other: Subject, clock: SteeredClock) -> None:
    """A job with an old place in the order returns after both have looked past it."""
    first, *_ = enqueue_many(store, 6)
    early = claim_one(store)
    assert early.id == first
    held = [claim_one(other), claim_one(store)]
    for subject in (other, store):
        complete(subject, held.pop())

    release(store, early)

    assert claim_one(other).id == first
