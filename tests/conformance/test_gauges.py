"""What monitors and autoscalers read: bounded counts that tell the truth, and counters that only rise."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from tenure.errors import InvalidArgument, UnknownQueue
from tenure.model.buckets import bucket_of
from tenure.model.outcome import Completed
from tenure.store.admin import PauseQueues, RemoveQueues
from tenure.store.contract import Enqueue, Prune, Settle
from tenure.store.gauges import KINDS_MAX, CountBacklog, ReadGauges, ReadTotals, Total
from tests.conformance.acts import NO_BACKOFF, Subject, cancel, claim, complete, fail, make_queue, new_job, reject
from tests.conformance.engines import START, SteeredClock
from tests.conformance.test_metrics import id_at, roll_up


def totals(store: Subject, queue: str = "q") -> dict[tuple[str, str], int]:
    return {(one.what, one.part): one.n for one in store.do(ReadTotals()) if one.queue == queue}


def test_an_empty_queue_has_no_backlog(store: Subject) -> None:
    load = store.do(CountBacklog("default"))

    assert (load.queue, load.ready, load.held, load.oldest_ready_at, load.is_paused) == ("default", 0, 0, None, False)
    assert load.backlog == 0


def test_ready_and_held_jobs_count_and_those_of_later_do_not(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q")
    make_queue(store, "other")
    store.do(Enqueue([new_job(queue="q") for _ in range(5)]))
    store.do(Enqueue([new_job(queue="q", delay_seconds=3600), new_job(queue="other")]))
    claim(store, queues=["q"], limit=2)
    clock.advance(10)

    load = store.do(CountBacklog("q"))

    assert (load.ready, load.held, load.backlog, load.oldest_ready_at) == (3, 2, 5, START)


def test_a_job_whose_time_came_while_no_worker_ran_is_ready(store: Subject, clock: SteeredClock) -> None:
    """With all workers scaled away no claim makes it claimable, and it must still call for one."""
    make_queue(store, "q")
    store.do(Enqueue([new_job(queue="q", delay_seconds=60), new_job(queue="default", delay_seconds=60)]))

    clock.advance(61)

    load = store.do(CountBacklog("q"))
    assert (load.ready, load.oldest_ready_at) == (1, START + timedelta(seconds=60))


def test_a_paused_queue_asks_for_no_more_workers_than_its_held_jobs(store: Subject) -> None:
    make_queue(store, "q")
    store.do(Enqueue([new_job(queue="q") for _ in range(4)]))
    claim(store, queues=["q"], limit=1)

    store.do(PauseQueues(["q"], paused=True, actor="test"))

    load = store.do(CountBacklog("q"))
    assert (load.ready, load.held, load.is_paused, load.backlog) == (3, 1, True, 1)


def test_counting_stops_at_the_cap_and_the_oldest_is_found_behind_it(store: Subject, clock: SteeredClock) -> None:
    """The oldest job has the lowest priority: it stands behind all that are counted."""
    make_queue(store, "q")
    store.do(Enqueue([new_job(queue="q", priority=0)]))
    clock.advance(100)
    store.do(Enqueue([new_job(queue="q", priority=number % 7 + 1) for number in range(50)]))

    load = store.do(CountBacklog("q", cap=10))

    assert (load.ready, load.oldest_ready_at) == (10, START)


@pytest.mark.parametrize("limiter", ["api", "zoo,zulu"])
def test_the_oldest_behind_the_cap_may_be_one_that_a_limiter_holds_back(
    store: Subject, clock: SteeredClock, limiter: str
) -> None:
    """Jobs with a limiter stand in lists of their own, which the look at the heads left out: the age was too young."""
    make_queue(store, "q")
    store.do(Enqueue([new_job(queue="q", limiter=limiter), new_job(queue="q", limiter=limiter, priority=1)]))
    clock.advance(100)
    store.do(Enqueue([new_job(queue="q", priority=number % 7) for number in range(50)]))
    store.do(Enqueue([new_job(queue="q", limiter=f"key{number}") for number in range(20)]))

    load = store.do(CountBacklog("q", cap=10))

    assert (load.ready, load.oldest_ready_at) == (10, START)


@pytest.mark.parametrize("cap", [0, -1, 1_000_001])
def test_a_cap_out_of_bounds_is_refused(store: Subject, cap: int) -> None:
    with pytest.raises(InvalidArgument, match="between 1 and 1000000"):
        store.do(CountBacklog("default", cap))
    with pytest.raises(InvalidArgument, match="between 1 and 1000000"):
        store.do(ReadGauges(cap))


def test_an_unknown_queue_is_refused_with_the_nearest_name(store: Subject) -> None:
    with pytest.raises(UnknownQueue, match=r"'defualt' does not exist.*default"):
        store.do(CountBacklog("defualt"))


def test_gauges_tell_of_every_queue_and_of_what_needs_a_look(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q", lease_seconds=30.0)
    store.do(Enqueue([new_job(queue="q"), new_job(queue="q"), new_job(queue="default", delay_seconds=3600)]))
    [dying, _held] = claim(store, queues=["q"], limit=2)
    reject(store, dying)
    clock.advance(31)

    told = store.do(ReadGauges())

    assert told.at == START + timedelta(seconds=31)
    assert [(one.queue, one.ready, one.held) for one in told.queues] == [("default", 0, 0), ("q", 0, 1)]
    assert (told.delayed, told.leases_run_out, dict(told.dead_letters)) == (1, 1, {"pending": 1})


def test_totals_count_ends_by_kind_and_durations_by_bucket(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q", backoff=NO_BACKOFF)
    roll_up(store)
    ids = [id_at(clock.now()) for _ in range(4)]
    store.do(Enqueue([new_job(kind=f"kind{place}", job_id=one, queue="q") for place, one in enumerate(ids)]))
    clock.advance(2)
    granted = {grant.id: grant for grant in claim(store, queues=["q"], limit=4)}
    clock.advance(3)
    complete(store, granted[ids[0]])
    reject(store, granted[ids[1]])
    fail(store, granted[ids[2]])
    cancel(store, ids[2])
    complete(store, granted[ids[3]])
    clock.advance(180)

    roll_up(store)

    run, wait = (str(bucket_of(seconds * 1e6)) for seconds in (3, 2))
    assert totals(store) == {
        ("created", ""): 4,
        ("retried", ""): 1,
        ("succeeded", "kind0"): 1,
        ("succeeded", "kind3"): 1,
        ("failed", "kind1"): 1,
        ("cancelled", "kind2"): 1,
        ("run", run): 2,
        ("wait", wait): 2,
        ("run_us", ""): 6_000_000,
        ("wait_us", ""): 4_000_000,
    }


def test_totals_only_rise_and_outlive_the_jobs_and_minutes_that_they_counted(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, "q")
    roll_up(store)
    seen = []
    for _ in range(3):
        store.do(Enqueue([new_job(job_id=id_at(clock.now()), queue="q")]))
        complete(store, *claim(store, queues=["q"]))
        clock.advance(180)
        roll_up(store)
        roll_up(store)  # counts nothing twice
        seen.append(totals(store)["succeeded", "work"])
    clock.advance(400 * 86_400)
    while store.do(Prune(delete_after_seconds=1)).more:
        pass
    roll_up(store)

    assert seen == [1, 2, 3]
    assert totals(store)["succeeded", "work"] == 3


def test_ten_thousand_kinds_have_no_more_counters_than_are_allowed(store: Subject, clock: SteeredClock) -> None:
    """A kind keeps the place that it got; those that came too late share one, and none is left out of the sum."""
    make_queue(store, "q")
    roll_up(store)
    early = [new_job(kind="early", job_id=id_at(clock.now()), queue="q") for _ in range(3)]
    store.do(Enqueue(early))
    for grant in claim(store, queues=["q"], limit=3):
        complete(store, grant)
    clock.advance(120)
    roll_up(store)
    for start in range(0, 10_000, 1000):
        store.do(
            Enqueue(
                [
                    new_job(kind=f"kind{number}", job_id=id_at(clock.now()), queue="q")
                    for number in range(start, start + 1000)
                ]
            )
        )
        grants = claim(store, queues=["q"], limit=1000)
        store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
    late = [new_job(kind="early", job_id=id_at(clock.now()), queue="q")]
    store.do(Enqueue(late))
    complete(store, *claim(store, queues=["q"]))
    clock.advance(180)
    roll_up(store)

    by_kind = Counter({part: n for (what, part), n in totals(store).items() if what == "succeeded"})
    assert len(by_kind) == KINDS_MAX + 1
    assert by_kind["early"] == 4
    assert by_kind[""] == 10_000 - (KINDS_MAX - 1)
    assert by_kind.total() == 10_004


def test_the_counters_of_a_queue_that_is_gone_are_not_told(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q")
    roll_up(store)
    store.do(Enqueue([new_job(job_id=id_at(clock.now()), queue="q")]))
    complete(store, *claim(store, queues=["q"]))
    clock.advance(180)
    roll_up(store)
    assert Total("q", "created", "", 1) in store.do(ReadTotals())
    clock.advance(86_400)
    while store.do(Prune(older_than_seconds=1, delete_after_seconds=1)).more:
        pass

    store.do(RemoveQueues(["q"], actor="test"))

    assert store.do(ReadTotals()) == []
