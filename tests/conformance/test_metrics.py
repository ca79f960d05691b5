"""Minutes counted once: RollUp and ListMetrics. The same figures on both engines, whoever counts and how often."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest

from tenure.errors import InvalidArgument
from tenure.model.clock import to_us
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.store.admin import RemoveWorkers, SetGate
from tenure.store.contract import Enqueue, Heartbeat, Prune, WorkerRow
from tenure.store.metrics import COUNTED_MOST, ListMetrics, Metric, RolledUp, RollUp
from tenure.store.summary import Prunable
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    claim_one,
    complete,
    fail,
    make_queue,
    new_job,
    reject,
    revive,
)
from tests.conformance.engines import START, SteeredClock

MINUTE = timedelta(minutes=1)
DAY = 86_400.0


def put(
    store: Subject, clock: SteeredClock, queue: str = "default", count: int = 1, max_attempts: int = 3
) -> list[JobId]:
    """Jobs with ids that a client's clock in step with the store's would have made."""
    jobs = [new_job(job_id=id_at(clock.now()), queue=queue, max_attempts=max_attempts) for _ in range(count)]
    return [answer.id for answer in store.do(Enqueue(jobs))]


def id_at(moment: datetime) -> JobId:
    ms = f"{to_us(moment) // 1000:012x}"
    return JobId(f"{ms[:8]}-{ms[8:]}{new_job_id()[13:]}")


def roll_up(store: Subject) -> RolledUp:
    """Count all that is over. A transaction of somebody else on the same server may hold it up for a moment."""
    deadline = time.monotonic() + 20
    rows = 0
    while True:
        rolled = store.do(RollUp())
        rows += rolled.rows
        if not rolled.more:
            return RolledUp(rolled.until, rows, more=False)
        assert time.monotonic() < deadline, f"still to count beyond {rolled.until}"


def metrics(store: Subject, minutes: int = 60) -> list[Metric]:
    return store.do(ListMetrics(minutes))


def test_a_minute_that_is_over_is_counted_by_queue(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "mail", backoff=NO_BACKOFF)
    put(store, clock, "mail", 3, max_attempts=1)
    clock.advance(10)
    complete(store, claim_one(store, queue="mail"))
    clock.advance(10)
    complete(store, claim_one(store, queue="mail"))
    fail(store, claim_one(store, queue="mail"))
    put(store, clock, "default", 2)
    clock.advance(50)
    reject(store, claim_one(store))

    clock.advance(120)
    rolled = roll_up(store)

    assert rolled.until == START + 2 * MINUTE
    found = {(one.minute - START, one.queue): one for one in metrics(store)}
    assert sorted(found) == [(0 * MINUTE, "default"), (0 * MINUTE, "mail"), (MINUTE, "default")]
    mail = found[0 * MINUTE, "mail"]
    assert (mail.created, mail.completed, mail.failed, mail.profile) == (3, 2, 1, "default")
    assert mail.latency_average == pytest.approx(15.0)
    assert mail.error_rate == pytest.approx(1 / 3)
    first, second = found[0 * MINUTE, "default"], found[MINUTE, "default"]
    assert (first.created, first.completed, first.failed, first.error_rate, first.latency_average) == (
        2,
        0,
        0,
        None,
        None,
    )
    assert (second.created, second.completed, second.failed, second.error_rate) == (0, 0, 1, 1.0)


def test_a_count_ends_where_much_happened(store: Subject, clock: SteeredClock) -> None:
    """An hour of 2,000,000 jobs was one transaction: for 35 s SQLite wrote nothing else, no heartbeat either."""
    roll_up(store)
    for created in (COUNTED_MOST // 2 + 1, COUNTED_MOST // 2, 1, COUNTED_MOST + 1, 1):
        put(store, clock, count=created)
        clock.advance(60)
    clock.advance(60)

    ends: list[datetime] = []
    while not ends or ends[-1] < START + 5 * MINUTE:
        rolled = store.do(RollUp())
        if rolled.rows and rolled.until is not None:
            ends.append(rolled.until)

    assert [(end - START) // MINUTE for end in ends] == [1, 3, 4, 5]
    assert [one.created for one in metrics(store)] == [1, 5001, 1, 2500, 2501]


def test_a_minute_that_is_not_over_waits(store: Subject, clock: SteeredClock) -> None:
    roll_up(store)
    put(store, clock)

    clock.advance(119)
    roll_up(store)
    assert metrics(store) == []

    clock.advance(1)
    roll_up(store)
    assert [(one.minute, one.created) for one in metrics(store)] == [(START, 1)]


def test_counting_again_changes_nothing(store: Subject, clock: SteeredClock) -> None:
    put(store, clock, count=5)
    complete(store, claim_one(store))
    clock.advance(120)
    roll_up(store)
    before = metrics(store)

    again = roll_up(store)

    assert again.rows == 0
    assert metrics(store) == before
    assert [(one.created, one.completed) for one in before] == [(5, 1)]


def test_minutes_that_nobody_counted_for_hours_are_counted_in_parts(store: Subject, clock: SteeredClock) -> None:
    roll_up(store)
    for _ in range(4):
        put(store, clock)
        clock.advance(3600)

    parts = 0
    while store.do(RollUp(minutes=60)).more:
        parts += 1
        assert parts < 1000

    assert parts >= 3
    assert [(one.minute - START, one.created) for one in metrics(store, 300)] == [
        (timedelta(hours=hour), 1) for hour in (3, 2, 1, 0)
    ]


def test_a_first_count_begins_an_hour_back_and_a_late_one_thirty_days(store: Subject, clock: SteeredClock) -> None:
    put(store, clock)
    clock.advance(2 * 3600)
    put(store, clock)
    clock.advance(300)
    roll_up(store)
    assert [one.minute - START for one in metrics(store, 300)] == [timedelta(hours=2)]

    clock.advance(40 * DAY)
    until = store.do(RollUp(minutes=1)).until
    assert until is not None
    assert until - (clock.now() - timedelta(days=30)) in (-MINUTE, 0 * MINUTE)  # SQLite has counted the first already


def test_a_death_counts_though_the_job_was_revived_before_anybody_counted(store: Subject, clock: SteeredClock) -> None:
    [job_id] = put(store, clock, max_attempts=1)
    fail(store, claim_one(store))
    revive(store, job_id)
    clock.advance(60)
    complete(store, claim_one(store))
    clock.advance(180)

    roll_up(store)

    assert [(one.minute - START, one.failed, one.completed) for one in metrics(store)] == [
        (MINUTE, 0, 1),
        (0 * MINUTE, 1, 0),
    ]


def test_a_completed_job_counts_though_it_was_cleaned_before_anybody_counted(
    store: Subject, clock: SteeredClock
) -> None:
    put(store, clock)
    complete(store, claim_one(store))
    clock.advance(1)
    assert store.do(Prune(older_than_seconds=0)).cleaned == 1
    clock.advance(120)

    roll_up(store)

    assert [(one.created, one.completed) for one in metrics(store)] == [(1, 1)]


@pytest.mark.parametrize(("apart", "counted"), [(-50.0, True), (50.0, True), (-3600.0, False), (3600.0, False)])
def test_a_client_whose_clock_is_far_off_is_not_counted_among_the_created(
    store: Subject, clock: SteeredClock, apart: float, counted: bool
) -> None:
    roll_up(store)
    store.do(Enqueue([new_job(job_id=id_at(clock.now() + timedelta(seconds=apart)))]))
    complete(store, claim_one(store))
    clock.advance(120)

    roll_up(store)

    assert [(one.created, one.completed) for one in metrics(store)] == [(int(counted), 1)]


def test_the_longest_silence_of_a_queues_workers_is_told_of_the_newest_minute_only(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, "mail")
    roll_up(store)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("quiet"), "host", 1, queues=["mail", "default"])))
    clock.advance(100)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("lively"), "host", 2, queues=["default"])))
    clock.advance(90)

    roll_up(store)

    found = {(one.minute - START, one.queue): one.heartbeat_delay for one in metrics(store)}
    assert found == {(MINUTE, "default"): pytest.approx(190.0), (MINUTE, "mail"): pytest.approx(190.0)}

    store.do(RemoveWorkers(ids=[WorkerId("quiet")]))
    clock.advance(60)
    roll_up(store)
    assert {(one.minute - START, one.queue): one.heartbeat_delay for one in metrics(store, 2)} == {
        (2 * MINUTE, "default"): pytest.approx(150.0)
    }


def test_queues_and_the_span_narrow_what_is_listed(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "mail")
    roll_up(store)
    for _ in range(3):
        put(store, clock)
        put(store, clock, "mail")
        clock.advance(60)
    clock.advance(60)
    roll_up(store)

    assert [one.queue for one in store.do(ListMetrics(60, queues=["mail"]))] == ["mail"] * 3
    assert [(one.minute - START, one.queue) for one in store.do(ListMetrics(2))] == [
        (2 * MINUTE, "default"),
        (2 * MINUTE, "mail"),
    ]
    assert len(store.do(ListMetrics(60, limit=1))) == 1


def test_old_minutes_go_with_prune(store: Subject, clock: SteeredClock) -> None:
    put(store, clock)
    clock.advance(120)
    roll_up(store)
    clock.advance(31 * DAY)
    assert store.do(Prunable(Prune(metric_seconds=40 * DAY))).metrics == 0
    assert store.do(Prune(metric_seconds=40 * DAY)).metrics == 0
    assert store.do(Prunable(Prune())).metrics == 1

    assert store.do(Prune()).metrics == 1

    assert metrics(store, 60 * 1440) == []


def test_prune_takes_old_minutes_in_bounded_parts(store: Subject, clock: SteeredClock) -> None:
    roll_up(store)
    for _ in range(3):
        put(store, clock)
        clock.advance(60)
    clock.advance(60)
    roll_up(store)
    clock.advance(31 * DAY)

    assert (store.do(Prune(limit=2)).metrics, store.do(Prune(limit=2)).metrics) == (2, 1)


def test_counting_goes_on_behind_closed_gates(store: Subject, clock: SteeredClock) -> None:
    put(store, clock)
    store.do(SetGate("master", is_open=False, actor="ops"))
    clock.advance(120)

    roll_up(store)

    assert len(metrics(store)) == 1


@pytest.mark.parametrize("minutes", [0, -1, 1441])
def test_a_span_out_of_bounds_is_refused(store: Subject, minutes: int) -> None:
    with pytest.raises(InvalidArgument, match="minutes"):
        store.do(RollUp(minutes=minutes))


def test_a_job_that_commits_late_is_not_lost_to_its_minute(store: Subject, clock: SteeredClock) -> None:
    if store.engine != "postgres":
        pytest.skip("SQLite has one writer at a time: while it writes, nobody counts")
    roll_up(store)
    mark = clock.now() - MINUTE
    with psycopg.connect(store.store.url) as late:
        store.store.enqueue_on(late, Enqueue([new_job(job_id=id_at(clock.now()))]))
        clock.advance(300)
        held = [store.do(RollUp()) for _ in range(3)]
        late.commit()
    assert [(one.until, one.more) for one in held] == [(mark, True)] * 3

    roll_up(store)

    assert [(one.minute, one.created) for one in metrics(store)] == [(START, 1)]


def test_many_that_count_at_once_count_each_minute_once(store: Subject, clock: SteeredClock) -> None:
    roll_up(store)
    for _ in range(5):
        put(store, clock, count=2)
        clock.advance(60)
    clock.advance(60)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: store.store.do(RollUp(minutes=1)), range(40)))
    rows = sum(one.rows for one in answers) + roll_up(store).rows

    assert rows == 5
    assert [one.created for one in metrics(store)] == [2] * 5
