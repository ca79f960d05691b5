"""Groups of children: created with a suspend or by pages, counted as they end, and the parent woken once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tenure.errors import IllegalMove, InvalidArgument, KeyConflict, UnknownQueue
from tenure.model.ids import JobId
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, Settled, Suspended
from tenure.model.state import State
from tenure.model.step import GROUP_PAGE, TIMEOUT, Group, NewGroup, NewStep, Step
from tenure.store.contract import Cancel, Exchange, Prune
from tenure.store.flow import FillGroup, GetGroup, ListChildren, ListSteps, SweepFlow
from tenure.store.queries import ListEvents
from tests.conformance.acts import (
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    fail,
    get,
    make_queue,
    new_job,
    revive,
    settle,
)
from tests.conformance.engines import SteeredClock


def children(count: int, **fields: Any) -> tuple[NewJob, ...]:
    return tuple(new_job("child", {"n": number}, queue="q", **fields) for number in range(count))


def parent(store: Subject) -> Grant:
    """A held job; its children go to the queue q."""
    make_queue(store, "q", max_attempts=1)
    enqueue(store)
    return claim_one(store)


def park(store: Subject, grant: Grant, *groups: NewGroup) -> Settled:
    return settle(store, Suspended(grant.id, grant.token, groups[0].step_key, groups=groups))


def group_of(store: Subject, group: NewGroup) -> Group:
    found = store.do(GetGroup(group.id))
    assert found is not None
    return found


def step_of(store: Subject, job_id: JobId, key: str = "parts") -> Step:
    return {step.key: step for step in store.do(ListSteps(job_id))}[key]


def run(store: Subject, good: int = 0, bad: int = 0) -> None:
    """Claim children and end them."""
    for number, grant in enumerate(claim(store, good + bad, queues=["q"])):
        if number < good:
            complete(store, grant, result=json.dumps(grant.payload["n"]))
        else:
            fail(store, grant)


def test_children_are_created_with_the_suspend_and_wake_their_parent_when_all_have_ended(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(3))

    assert park(store, grant, group).state == "waiting"

    made = group_of(store, group)
    assert (made.state, made.parent_id, made.total, made.made, made.ended) == ("open", grant.id, 3, 3, 0)
    assert {get(store, job.id).group_id for job in group.jobs} == {group.id}
    assert {get(store, job.id).parent_id for job in group.jobs} == {grant.id}
    run(store, good=2)
    assert get(store, grant.id).state is State.WAITING
    run(store, good=1)
    assert get(store, grant.id).state is State.QUEUED
    step = step_of(store, grant.id)
    assert (step.state, json.loads(step.value or "")) == (
        "done",
        {"group": group.id, "total": 3, "ended": 3, "failed": 0, "cancelled": 0},
    )
    assert [(child.position, child.result) for child in store.do(ListChildren(group.id))] == [(0, 0), (1, 1), (2, 2)]


def test_a_child_that_ends_while_its_parent_still_runs_is_counted(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(2))
    store.do(FillGroup(grant.id, grant.token, group, total=2))
    run(store, good=2)
    assert group_of(store, group).state == "done"

    answer = settle(
        store,
        Suspended(
            grant.id, grant.token, "parts", steps=(NewStep("parts", "group", "open", awaits=f"group:{group.id}"),)
        ),
    )

    assert answer.state == "queued"
    assert step_of(store, grant.id).state == "done"


def test_the_same_exchange_may_park_a_parent_and_end_other_children(store: Subject) -> None:
    first, group = parent(store), NewGroup("parts", children(1))
    park(store, first, group)
    enqueue(store)
    second, [child] = claim_one(store), claim(store, queues=["q"])

    answer = store.do(
        Exchange(
            [
                Completed(child.id, child.token),
                Suspended(second.id, second.token, "parts", groups=(NewGroup("parts", children(1)),)),
            ],
            None,
        )
    )
    while store.do(SweepFlow()).more:
        pass

    assert answer.settled[second.id, second.token].state == "waiting"
    assert (get(store, first.id).state, get(store, second.id).state) == (State.QUEUED, State.WAITING)


@pytest.mark.parametrize(
    ("rule", "good", "bad", "expected"),
    [
        ({}, 3, 1, "failed"),
        ({"tolerate": 1}, 3, 1, "done"),
        ({"tolerate": 1}, 2, 2, "failed"),
        ({"fail_fast": True}, 0, 1, "failed"),
        ({"fail_fast": True, "tolerate": 1}, 0, 1, "open"),
        ({"fail_fast": True, "tolerate": 1}, 0, 2, "failed"),
        ({}, 0, 3, "open"),
        ({"need": 1}, 1, 0, "done"),
        ({"need": 1}, 1, 3, "done"),
        ({"need": 2}, 1, 2, "open"),
        ({"need": 2}, 1, 3, "failed"),
        ({"need": 2, "fail_fast": True}, 0, 2, "open"),
        ({"need": 2, "fail_fast": True}, 0, 3, "failed"),
    ],
)
def test_when_a_group_of_four_is_over(store: Subject, rule: dict[str, Any], good: int, bad: int, expected: str) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(4), **rule)
    park(store, grant, group)

    run(store, good=good)
    run(store, bad=bad)

    assert group_of(store, group).state == expected
    assert get(store, grant.id).state is (State.WAITING if expected == "open" else State.QUEUED)
    assert step_of(store, grant.id).state == expected


def test_a_group_that_is_over_wakes_its_parent_once(store: Subject) -> None:
    grant = parent(store)
    park(store, grant, NewGroup("parts", children(3), need=1))
    run(store, good=1)
    again = claim_one(store)
    waits = NewStep("x", "signal", "open", awaits="signal:x")
    assert settle(store, Suspended(again.id, again.token, "x", steps=(waits,))).state == "waiting"

    run(store, good=2)

    assert get(store, grant.id).state is State.WAITING


def test_children_that_are_left_are_cancelled_where_the_group_says_so(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(4), need=1, cancel_rest=True)
    park(store, grant, group)
    [_, held] = claim(store, 2, queues=["q"])[:2]
    first = get(store, group.jobs[0].id)

    settle(store, Completed(first.id, first.token))
    drain(store)

    states = [child.state for child in store.do(ListChildren(group.id))]
    assert states == [State.SUCCEEDED, State.RUNNING, State.CANCELLED, State.CANCELLED]
    assert get(store, held.id).cancel_requested_at is not None
    assert group_of(store, group).cancelled == 2


def test_a_group_without_children_is_over_at_once(store: Subject) -> None:
    assert park(store, parent(store), NewGroup("parts", ())).state == "queued"


def test_a_group_whose_time_is_over_lets_its_children_go_on(store: Subject, clock: SteeredClock) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(1), due_seconds=30)
    park(store, grant, group)
    clock.advance(30)

    assert claim_one(store).id == grant.id

    step = step_of(store, grant.id)
    assert (step.state, step.error) == ("failed", TIMEOUT)
    assert len(claim(store, 5, queues=["q"])) == 1


def test_a_group_given_again_is_left_as_it_is(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(2))
    park(store, grant, group)
    run(store, good=1)
    store.do(Cancel([grant.id], "ops", "x", children=False))
    revive(store, grant.id)

    assert park(store, claim_one(store), NewGroup("parts", children(2))).state == "waiting"

    assert len(claim(store, 10, queues=["q"])) == 1, "no child was made twice"


# --- pages and windows


def test_a_large_group_is_made_by_pages_and_goes_on_where_it_was(store: Subject) -> None:
    grant = parent(store)
    jobs = children(10)
    group = NewGroup("parts", jobs[:4])
    page = FillGroup(grant.id, grant.token, group, at=0)
    for _ in range(2):
        made = store.do(page)
        assert made is not None
        assert (made.made, made.total) == (4, None)
    assert json.loads(step_of(store, grant.id).value or "") == {"group": group.id, "made": 4}
    run(store, good=4)
    assert group_of(store, group).state == "open", "it is not complete yet"
    fail(store, grant, retry_after_seconds=0)

    again = claim_one(store)
    [step] = again.steps
    cursor = json.loads(step.value or "")
    rest = NewGroup("parts", jobs[cursor["made"] :], id=cursor["group"])
    store.do(FillGroup(again.id, again.token, rest, at=cursor["made"], total=10))
    parked = Suspended(again.id, again.token, "parts", steps=(NewStep("parts", "group", "open", awaits=step.awaits),))
    assert settle(store, parked).state == "waiting"
    run(store, good=6)

    assert get(store, grant.id).state is State.QUEUED
    assert [child.job_id for child in store.do(ListChildren(group.id))] == [job.id for job in jobs]
    assert [child.position for child in store.do(ListChildren(group.id, after=7, limit=1))] == [8]


@pytest.mark.parametrize("is_repeat", [False, True], ids=["an empty page", "the first page again"])
def test_a_group_whose_children_have_ended_is_over_once_it_is_complete(store: Subject, is_repeat: bool) -> None:
    """PostgreSQL closed it in a later sweep; and never, if the page that told the total was the first one again."""
    grant = parent(store)
    first = NewGroup("parts", children(2))
    store.do(FillGroup(grant.id, grant.token, first))
    run(store, good=2)

    last = first if is_repeat else replace(first, jobs=())
    filled = store.do(FillGroup(grant.id, grant.token, last, 0 if is_repeat else 2, 2))

    assert filled is not None
    assert (filled.state, filled.total, filled.ended) == ("done", 2, 2)
    wait = NewStep("parts", "group", "open", awaits=f"group:{first.id}")
    assert settle(store, Suspended(grant.id, grant.token, "parts", steps=(wait,))).state == "queued"


def test_a_page_that_does_not_fit_is_refused(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(2))
    store.do(FillGroup(grant.id, grant.token, group))

    for bad in (
        FillGroup(grant.id, grant.token, NewGroup("parts", children(1), id=group.id), at=3),
        FillGroup(grant.id, grant.token, NewGroup("parts", children(2), id=group.id), at=1),
        FillGroup(grant.id, grant.token, NewGroup("parts", children(2), id=group.id), at=2, total=3),
        FillGroup(grant.id, grant.token, NewGroup("parts", children(1)), at=2),
        FillGroup(grant.id, grant.token, NewGroup("many", children(GROUP_PAGE + 1))),
        FillGroup(grant.id, grant.token, NewGroup("none", children(1), window=0)),
    ):
        with pytest.raises(InvalidArgument):
            store.do(bad)

    assert group_of(store, group).made == 2
    assert len(claim(store, 10, queues=["q"])) == 2


def test_a_page_by_a_lost_lease_creates_nothing(store: Subject, clock: SteeredClock) -> None:
    grant = parent(store)
    clock.advance(3600)

    assert store.do(FillGroup(grant.id, grant.token, NewGroup("parts", children(1)))) is None
    assert claim(store, 10, queues=["q"]) == []


def test_a_window_keeps_so_many_children_at_work(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(7), window=3)
    park(store, grant, group)

    seen: list[JobId] = []
    while found := claim(store, 10, queues=["q"]):
        assert len(found) <= 3
        seen += [child.id for child in found]
        for child in found[:2]:
            complete(store, child)
        if len(found) > 2:
            assert len(claim(store, 10, queues=["q"])) == min(2, 7 - len(seen))
            fresh = [job for job in (get(store, child.id) for child in group.jobs) if job.state is State.RUNNING]
            seen += [job.id for job in fresh if job.id not in seen]
            for job in fresh:
                settle(store, Completed(job.id, job.token))

    assert seen == [job.id for job in group.jobs]
    assert get(store, grant.id).state is State.QUEUED


def test_more_room_than_one_sweep_lets_go_is_filled_by_the_next(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(9), window=3)
    park(store, grant, group)
    held = claim(store, 3, queues=["q"])

    store.do(Exchange([Completed(child.id, child.token) for child in held], None))
    while store.do(SweepFlow(limit=1)).more:
        pass

    assert len(claim(store, 10, queues=["q"])) == 3


def test_one_sweep_lets_so_many_go_over_all_groups(store: Subject) -> None:
    """Each of them counted on its own, so a sweep of a thousand groups could let a million children go."""
    make_queue(store, "q", max_attempts=1)
    for _ in range(3):
        enqueue(store)
        park(store, claim_one(store), NewGroup("parts", children(16), window=8))
    held = claim(store, 24, queues=["q"])
    store.do(Exchange([Completed(child.id, child.token) for child in held], None))

    jobs = []
    while (swept := store.do(SweepFlow(limit=10))).more or swept.jobs:
        jobs.append(swept.jobs)

    assert all(number <= 10 for number in jobs)
    assert len(claim(store, 100, queues=["q"])) == 24


# --- cancel, revive, retention


def test_a_cancel_of_many_children_lets_none_of_them_go(store: Subject) -> None:
    """Pages of them made room for others, which were queued and could begin before the next page."""
    grant = parent(store)
    make_queue(store, "q", max_attempts=1, events=True)
    group = NewGroup("parts", children(600), window=5)
    park(store, grant, group)

    cancel(store, grant.id)
    drain(store)

    assert {get(store, child.id).state for child in group.jobs} == {State.CANCELLED}
    told = Counter(event.kind for event in store.do(ListEvents(limit=5000)) if event.job_id != grant.id)
    assert told == {"queued": 600, "cancelled": 600}


def test_a_cancel_reaches_the_children_and_theirs(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(2))
    park(store, grant, group)
    [middle] = claim(store, queues=["q"])
    park(store, middle, NewGroup("below", children(2)))
    detached = enqueue(store, queue="q", parent_id=grant.id)

    assert cancel(store, grant.id).answer == "cancelled"
    drain(store)

    assert {get(store, job.id).state for job in group.jobs} == {State.CANCELLED}
    assert [found.id for found in claim(store, 10, queues=["q"])] == [detached]


def test_a_cancel_of_the_parent_alone_leaves_its_children(store: Subject) -> None:
    grant = parent(store)
    park(store, grant, NewGroup("parts", children(2)))

    store.do(Cancel([grant.id], "ops", "only it", children=False))

    assert len(claim(store, 10, queues=["q"])) == 2


def test_a_job_that_was_asked_to_stop_gets_no_children(store: Subject) -> None:
    grant = parent(store)
    cancel(store, grant.id)

    with pytest.raises(IllegalMove):
        store.do(FillGroup(grant.id, grant.token, NewGroup("parts", children(1))))
    assert park(store, grant, NewGroup("parts", children(1))).state == "cancelled"
    assert claim(store, 10, queues=["q"]) == []


def test_a_child_that_is_revived_counts_anew(store: Subject) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(2))
    park(store, grant, group)
    run(store, bad=1)
    dead = next(child for child in store.do(ListChildren(group.id, states=["dead"])))
    assert dead.dead_letter_id is not None

    revive(store, dead.job_id)
    assert (group_of(store, group).ended, group_of(store, group).failed) == (0, 0)

    run(store, good=2)
    assert group_of(store, group).state == "done"


def test_children_are_kept_until_their_parent_has_ended(store: Subject, clock: SteeredClock) -> None:
    grant = parent(store)
    group = NewGroup("parts", children(2))
    park(store, grant, group)
    run(store, good=2)
    clock.advance(10)

    assert store.do(Prune(older_than_seconds=1)).cleaned == 0
    assert [child.result for child in store.do(ListChildren(group.id))] == [0, 1]

    complete(store, claim_one(store))
    clock.advance(10)
    assert store.do(Prune(older_than_seconds=1, delete_after_seconds=1)).deleted == 3
    assert (store.do(GetGroup(group.id)), store.do(ListSteps(grant.id))) == (None, [])


# --- bad input


def test_children_that_cannot_be_created_leave_the_parent_as_it_was(store: Subject) -> None:
    grant = parent(store)
    enqueue(store, kind="child", queue="q", key="taken")

    with pytest.raises(KeyConflict):
        park(store, grant, NewGroup("parts", children(1, key="taken")))
    with pytest.raises(UnknownQueue):
        park(store, grant, NewGroup("parts", (new_job("child", queue="nowhere"),)))

    assert get(store, grant.id).state is State.RUNNING
    assert store.do(ListSteps(grant.id)) == []


def drain(store: Subject) -> None:
    """Sweep until nothing is left to do."""
    while store.do(SweepFlow()).more:
        pass
