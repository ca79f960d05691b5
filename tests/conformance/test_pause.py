"""Pause: claims give nothing from a paused queue; everything else goes on."""

from __future__ import annotations

import pytest

from tenure.errors import UnknownQueue
from tenure.store.admin import PauseQueues
from tenure.store.queries import ListAudit, ListQueues
from tests.conformance.acts import Subject, claim, claim_one, complete, enqueue, make_queue, reap
from tests.conformance.engines import SteeredClock


def pause(store: Subject, *names: str, paused: bool = True) -> list[str]:
    return store.do(PauseQueues(names, paused=paused, actor="ann", reason="deploy"))


def test_a_paused_queue_takes_jobs_but_gives_none(store: Subject) -> None:
    pause(store, "default")
    job_id = enqueue(store)

    assert claim(store) == []

    pause(store, "default", paused=False)
    assert claim_one(store).id == job_id


def test_other_queues_go_on(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    enqueue(store, queue="a", priority=9)
    open_job = enqueue(store, queue="b")
    pause(store, "a")

    assert [grant.id for grant in claim(store, 10, queues=["a", "b"])] == [open_job]


def test_a_held_job_of_a_paused_queue_is_settled(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)
    pause(store, "default")

    assert complete(store, grant).state == "succeeded"


def test_an_expired_job_of_a_paused_queue_is_taken_back(store: Subject, clock: SteeredClock) -> None:
    enqueue(store)
    claim_one(store, lease_seconds=10)
    pause(store, "default")
    clock.advance(11)

    assert len(reap(store)) == 1


def test_only_changed_names_are_answered(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")

    assert pause(store, "a") == ["a"]
    assert sorted(pause(store, "a", "b")) == ["b"]
    assert sorted(pause(store, "a", "b", paused=False)) == ["a", "b"]
    assert pause(store, "a", paused=False) == []


def test_the_queue_tells_who_paused_it_and_when(store: Subject, clock: SteeredClock) -> None:
    clock.advance(7)
    pause(store, "default")

    [row] = store.do(ListQueues(["default"]))
    assert (row.paused_at, row.paused_by) == (clock.now(), "ann")

    pause(store, "default", paused=False)
    [row] = store.do(ListQueues(["default"]))
    assert (row.paused_at, row.paused_by) == (None, None)


def test_a_new_policy_does_not_resume_a_paused_queue(store: Subject) -> None:
    make_queue(store)
    pause(store, "q")
    make_queue(store, max_attempts=9)
    enqueue(store, queue="q")

    assert claim(store, queues=["q"]) == []


def test_an_unknown_queue_is_refused_and_nothing_is_paused(store: Subject) -> None:
    with pytest.raises(UnknownQueue):
        pause(store, "default", "nope")

    [row] = store.do(ListQueues(["default"]))
    assert row.paused_at is None


def test_a_pause_leaves_an_audit_row(store: Subject) -> None:
    pause(store, "default")

    rows = store.do(ListAudit())
    assert ("ann", "deploy") in [(row.actor, row.reason) for row in rows]
