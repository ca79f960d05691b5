"""Order: rank, then run_at, then id. Rank is priority seen from the side the queue sorts by."""

from __future__ import annotations

from datetime import timedelta

from tests.conformance.acts import Subject, claim, claim_one, enqueue, enqueue_many, fail, get, make_queue
from tests.conformance.engines import SteeredClock


def test_equal_jobs_are_first_in_first_out(store: Subject) -> None:
    ids = [enqueue(store) for _ in range(10)]

    assert [claim_one(store).id for _ in range(10)] == ids


def test_a_batch_is_first_in_first_out_within_itself(store: Subject) -> None:
    ids = enqueue_many(store, 200)

    assert [grant.id for grant in claim(store, 200)] == ids


def test_higher_priorities_go_first_where_the_queue_says_high(store: Subject) -> None:
    make_queue(store, priority_order="high")
    ids = {priority: enqueue(store, queue="q", priority=priority) for priority in (0, 5, -3, 2_000_000_000, 1)}

    granted = [grant.id for grant in claim(store, 10, queues=["q"])]

    assert granted == [ids[priority] for priority in (2_000_000_000, 5, 1, 0, -3)]


def test_lower_priorities_go_first_where_the_queue_says_low(store: Subject) -> None:
    make_queue(store, priority_order="low", priority_default=2)
    ids = {priority: enqueue(store, queue="q", priority=priority) for priority in (3, 0, 1)}
    ids[2] = enqueue(store, queue="q")

    granted = [grant.id for grant in claim(store, 10, queues=["q"])]

    assert granted == [ids[priority] for priority in (0, 1, 2, 3)]
    assert get(store, ids[2]).priority == 2


def test_priority_wins_over_age(store: Subject, clock: SteeredClock) -> None:
    old = enqueue(store, priority=1)
    clock.advance(10_000)
    urgent = enqueue(store, priority=2)

    assert [grant.id for grant in claim(store, 10)] == [urgent, old]


def test_among_equal_ranks_what_is_due_earlier_goes_first(store: Subject, clock: SteeredClock) -> None:
    later = enqueue(store, run_at=clock.now() + timedelta(seconds=20))
    earlier = enqueue(store, run_at=clock.now() + timedelta(seconds=10))
    clock.advance(30)

    assert [grant.id for grant in claim(store, 10)] == [earlier, later]


def test_a_retried_job_goes_behind_what_was_due_before_it(store: Subject, clock: SteeredClock) -> None:
    first = enqueue(store)
    fail(store, claim_one(store), retry_after_seconds=5)
    clock.advance(1)
    second = enqueue(store)
    clock.advance(10)

    assert [grant.id for grant in claim(store, 10)] == [second, first]


def test_with_aging_a_step_of_priority_is_worth_so_many_seconds_of_waiting(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, aging_seconds=10)
    patient = enqueue(store, queue="q", priority=0)
    clock.advance(15)
    urgent = enqueue(store, queue="q", priority=2)  # worth 20 s: still ahead of 15 s of waiting
    clock.advance(10)
    late = enqueue(store, queue="q", priority=2)  # 25 s after the first: behind it

    assert [grant.id for grant in claim(store, 10, queues=["q"])] == [urgent, patient, late]


def test_with_aging_and_low_order_the_same_holds_the_other_way_round(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, aging_seconds=10, priority_order="low", priority_default=2)
    patient = enqueue(store, queue="q", priority=3)
    clock.advance(15)
    urgent = enqueue(store, queue="q", priority=1)
    clock.advance(10)
    late = enqueue(store, queue="q", priority=1)

    assert [grant.id for grant in claim(store, 10, queues=["q"])] == [urgent, patient, late]


def test_a_new_policy_leaves_the_rank_of_jobs_that_are_there(store: Subject) -> None:
    make_queue(store, priority_order="high")
    first, second = enqueue(store, queue="q", priority=9), enqueue(store, queue="q", priority=1)

    make_queue(store, priority_order="low")

    assert [grant.id for grant in claim(store, 10, queues=["q"])] == [first, second]


def test_the_grant_tells_the_priority_that_was_given(store: Subject) -> None:
    make_queue(store, priority_order="low")
    enqueue(store, queue="q", priority=7)

    assert claim_one(store, queue="q").priority == 7
