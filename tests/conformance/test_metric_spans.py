"""Metrics against a computation by brute force over the same jobs: minutes, hours, days, buckets, classes."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenure.errors import InvalidArgument
from tenure.flow.metrics import Figures, read_figures
from tenure.model.buckets import bucket_of
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.outcome import FailureClass
from tenure.store.contract import Enqueue, Heartbeat, Prune, WorkerRow
from tenure.store.metrics import ListMetrics, ReadMetrics, Span
from tests.conformance.acts import NO_BACKOFF, Subject, cancel, claim, complete, fail, make_queue, new_job, reject
from tests.conformance.engines import START, SteeredClock
from tests.conformance.test_metrics import id_at, roll_up

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def figures(
    store: Subject,
    by: Any = "hour",
    since: datetime | None = None,
    until: datetime | None = None,
    queues: Sequence[str] = (),
    quantiles: Sequence[float] = (0.5, 0.95),
) -> list[Figures]:
    steps: Generator[Any, Any, list[Figures]] = read_figures(since, until, by, queues, quantiles)
    try:
        request = next(steps)
        while True:
            request = steps.send(store.do(request))
    except StopIteration as end:
        found: list[Figures] = end.value
        return found


class Ledger:
    """What a test did, written down beside the store."""

    def __init__(self) -> None:
        self.created: list[tuple[datetime, str]] = []
        self.completed: list[tuple[datetime, str, float, float, float]] = []
        self.failures: list[tuple[datetime, str, str]] = []

    def expected(self, length: timedelta) -> dict[tuple[datetime, str], dict[str, Any]]:
        found: dict[tuple[datetime, str], dict[str, Any]] = defaultdict(
            lambda: {
                "created": 0,
                "completed": 0,
                "attempts_failed": 0,
                "latency": 0.0,
                "classes": Counter(),
                "total": [],
            }
        )
        for at, queue in self.created:
            found[_floor(at, length), queue]["created"] += 1
        for at, queue, wait, run, total in self.completed:
            one = found[_floor(at, length), queue]
            one["completed"] += 1
            one["latency"] += total
            one["total"].append((wait, run, total))
        for at, queue, failure_class in self.failures:
            one = found[_floor(at, length), queue]
            one["attempts_failed"] += 1
            one["classes"][failure_class] += 1
        return dict(found)


def _floor(at: datetime, length: timedelta) -> datetime:
    return START + (at - START) // length * length


def happen(store: Subject, clock: SteeredClock, hours: int, seed: int = 3) -> Ledger:
    """Some hours of work in two queues, with ids of both sorts, failures, and jobs that take their time."""
    chance = random.Random(seed)
    ledger = Ledger()
    born: dict[str, datetime] = {}
    due: dict[str, datetime] = {}
    for _ in range(hours * 4):
        for queue in ("mail", "print"):
            count = chance.randrange(1, 4)
            ids = [JobId(str(uuid4())) if chance.random() < 0.4 else id_at(clock.now()) for _ in range(count)]
            store.do(Enqueue([new_job(job_id=one, queue=queue, max_attempts=3) for one in ids]))
            for one in ids:
                born[one] = due[one] = clock.now()
                ledger.created.append((clock.now(), queue))
        clock.advance(chance.uniform(0.001, 60))
        granted = clock.now()
        for grant in claim(store, chance.randrange(0, 8), queues=["mail", "print"], lease_seconds=3600):
            clock.advance(chance.lognormvariate(0, 2) % 100)
            if chance.random() < 0.3:
                failure_class = chance.choice([FailureClass.ERROR, FailureClass.TIMEOUT])
                fail(store, grant, "boom 17", failure_class)
                ledger.failures.append((clock.now(), grant.queue, failure_class.value))
                due[grant.id] = clock.now()
                continue
            complete(store, grant)
            now = clock.now()
            spent = ((granted - due[grant.id]), (now - granted), (now - born[grant.id]))
            wait, run, total = (one.total_seconds() for one in spent)
            ledger.completed.append((now, grant.queue, wait, run, total))
        clock.advance(max(0.0, 900 - (clock.now() - START).total_seconds() % 900))
        roll_up(store)
    clock.advance(180)
    roll_up(store)
    return ledger


def queues(store: Subject) -> None:
    for name in ("mail", "print"):
        make_queue(store, name, backoff=NO_BACKOFF, lease_max_seconds=7200.0)
    roll_up(store)


def test_figures_are_those_of_a_count_by_brute_force(store: Subject, clock: SteeredClock) -> None:
    queues(store)
    ledger = happen(store, clock, hours=26)

    for by, length in (("minute", timedelta(minutes=1)), ("hour", HOUR), ("day", DAY)):
        found = {
            (one.at, one.queue): one
            for one in figures(store, by)
            if one.created or one.completed or one.attempts_failed
        }
        expected = ledger.expected(length)
        assert found.keys() == expected.keys(), by
        for key, wanted in expected.items():
            compare(found[key], wanted, (by, key))


def compare(one: Figures, wanted: Mapping[str, Any], about: object) -> None:
    """Fails with `about` where a row of figures is not what was counted."""
    assert (one.created, one.completed, one.attempts_failed) == (
        wanted["created"],
        wanted["completed"],
        wanted["attempts_failed"],
    ), about
    assert one.classes == wanted["classes"], about
    ends = one.completed + one.attempts_failed
    assert one.error_rate == (pytest.approx(one.attempts_failed / ends) if ends else None), about
    assert one.latency_average == (
        pytest.approx(wanted["latency"] / one.completed, abs=1e-5) if one.completed else None
    ), about
    for place, shown in enumerate((one.wait, one.run, one.total)):
        values = sorted(triple[place] for triple in wanted["total"])
        for share, told in shown.items():
            exact = values[math.ceil(share * len(values)) - 1] if values else None
            assert told == (None if exact is None else pytest.approx(exact, rel=0.06, abs=2e-6)), about


def test_a_total_over_any_window_and_queues_is_the_merge_of_its_parts(store: Subject, clock: SteeredClock) -> None:
    queues(store)
    ledger = happen(store, clock, hours=30)
    since, until = START + 3 * HOUR, START + 27 * HOUR

    [total] = figures(store, "total", since, until, queues=["mail"], quantiles=(0.5, 0.9, 0.99))

    inside = [one for one in ledger.completed if since <= one[0] < until and one[1] == "mail"]
    assert total.completed == len(inside)
    assert total.created == sum(since <= at < until and queue == "mail" for at, queue in ledger.created)
    values = sorted(one[4] for one in inside)
    for share in (0.5, 0.9, 0.99):
        exact = values[math.ceil(share * len(values)) - 1]
        assert total.total[share] == pytest.approx(exact, rel=0.06)
    by_hour = figures(store, "hour", since, until, queues=["mail"])
    assert sum(one.completed for one in by_hour) == total.completed
    assert total.busy_seconds == pytest.approx(sum(one.busy_seconds for one in by_hour))


def test_both_engines_put_a_duration_into_the_bucket_of_the_model(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q", lease_max_seconds=86_400.0)
    roll_up(store)
    wanted: Counter[int] = Counter()
    for exponent in range(36):
        store.do(Enqueue([new_job(job_id=id_at(clock.now()), queue="q")]))
        [grant] = claim(store, queues=["q"], lease_seconds=80_000)
        seconds = max(1e-6, round(1.9**exponent / 1e6, 6))
        clock.advance(seconds)
        complete(store, grant)
        wanted[bucket_of(round(seconds * 1e6))] += 1
        clock.advance(1)
    clock.advance(180)
    roll_up(store)

    told: Counter[int] = Counter()
    for row in store.do(ReadMetrics("minute")).rows:
        told.update({int(part): number for what, part, number in row.parts if what == "run" for _ in range(1)})

    assert sum(told.values()) == 36
    assert {bucket: told[bucket] for bucket in told} == dict(wanted)


def test_jobs_whose_ids_tell_no_time_are_counted_once(store: Subject, clock: SteeredClock) -> None:
    roll_up(store)
    ms = id_at(clock.now())[:13]
    looks_like = JobId(f"{ms}-4000-8000-0123456789ab")  # a version 4 that lies where a UUIDv7 of this minute would
    ids = [JobId(str(uuid4())), JobId(str(UUID(int=0))), looks_like, id_at(clock.now())]
    store.do(Enqueue([new_job(job_id=one) for one in ids]))
    clock.advance(180)

    roll_up(store)

    assert [one.created for one in store.do(ListMetrics(60))] == [4]


def test_silence_is_not_booked_to_a_time_before_the_worker(store: Subject, clock: SteeredClock) -> None:
    roll_up(store)
    clock.advance(125)
    store.do(Heartbeat([], worker=WorkerRow(WorkerId("new"), "host", 1, queues=["default"])))
    clock.advance(5)
    roll_up(store)
    assert store.do(ListMetrics(60)) == []

    clock.advance(120)
    roll_up(store)
    assert [one.heartbeat_delay for one in store.do(ListMetrics(60))] == [pytest.approx(125.0)]
    assert [one.heartbeat_delay for one in store.do(ReadMetrics("minute")).rows] == [pytest.approx(125.0)]
    [row] = figures(store, "minute")
    assert row.silence[0.95] == pytest.approx(125.0, rel=0.05)


def test_an_agent_that_fails_twice_and_then_succeeds_has_an_error_rate(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q", backoff=NO_BACKOFF)
    roll_up(store)
    store.do(Enqueue([new_job(job_id=id_at(clock.now()), queue="q")]))
    for _ in range(2):
        [grant] = claim(store, queues=["q"])
        clock.advance(2)
        fail(store, grant)
    [grant] = claim(store, queues=["q"])
    clock.advance(6)
    complete(store, grant)
    store.do(Enqueue([new_job(job_id=id_at(clock.now()), queue="q") for _ in range(2)]))
    [grant] = claim(store, queues=["q"])
    reject(store, grant)
    [left] = claim(store, queues=["q"])
    cancel(store, left.id)
    clock.advance(180)

    roll_up(store)

    [row] = [one for one in store.do(ListMetrics(60)) if one.queue == "q"]
    assert (row.completed, row.failed, row.attempts_failed, row.error_rate) == (1, 1, 3, 0.75)
    assert row.latency_average == pytest.approx(10.0)  # the whole life: two failures included
    [told] = figures(store, "minute", queues=["q"])
    assert told.retried == 2
    assert told.busy_seconds == pytest.approx(10.0)


def test_more_rows_than_a_page_are_read_whole(store: Subject, clock: SteeredClock) -> None:
    names = [f"q{number}" for number in range(7)]
    for name in names:
        make_queue(store, name)
    roll_up(store)
    for _ in range(4):
        store.do(Enqueue([new_job(job_id=id_at(clock.now()), queue=name) for name in names]))
        clock.advance(60)
    clock.advance(120)
    roll_up(store)

    pages = [store.do(ListMetrics(60, limit=5))]
    while len(pages[-1]) == 5:
        last = pages[-1][-1]
        pages.append(store.do(ListMetrics(60, limit=5, after=(last.minute, last.queue))))
    assert [(one.minute, one.queue) for page in pages for one in page] == [
        (START + timedelta(minutes=minute), name) for minute in (3, 2, 1, 0) for name in names
    ]
    first = store.do(ReadMetrics("minute", limit=5))
    assert (len(first.rows), first.more) == (5, True)
    rest = store.do(ReadMetrics("minute", after=(first.rows[-1].at, first.rows[-1].queue), limit=100))
    assert len(rest.rows) == 23


def test_a_sum_over_queues_is_the_sum_of_their_rows(store: Subject, clock: SteeredClock) -> None:
    queues(store)
    happen(store, clock, hours=25)
    spans: tuple[Span, ...] = ("minute", "hour", "day")
    for span in spans:
        sums_are_true(store, span)


def sums_are_true(store: Subject, span: Span) -> None:
    rows = store.do(ReadMetrics(span, limit=10_000)).rows
    assert len({one.queue for one in rows}) > 1, span

    summed = store.do(ReadMetrics(span, limit=10_000, is_summed=True))
    some = store.do(ReadMetrics(span, queues=[rows[0].queue], limit=10_000, is_summed=True)).rows

    assert [one.at for one in summed.rows] == sorted({one.at for one in rows}), span
    for told in summed.rows:
        own = [one for one in rows if one.at == told.at]
        assert (told.queue, told.profile, told.parts) == ("", "", []), span
        for name in ("created", "completed", "failed", "attempts_failed", "retried", "expired", "cancelled"):
            assert getattr(told, name) == sum(getattr(one, name) for one in own), (span, name)
        assert told.latency_seconds == pytest.approx(sum(one.latency_seconds for one in own)), span
    assert sum(one.created for one in some) == sum(one.created for one in rows if one.queue == rows[0].queue), span
    first = store.do(ReadMetrics(span, limit=1, is_summed=True))
    rest = store.do(ReadMetrics(span, after=(first.rows[-1].at, ""), limit=10_000, is_summed=True))
    assert [*first.rows, *rest.rows] == summed.rows, span


def test_days_outlive_hours_and_hours_outlive_minutes(store: Subject, clock: SteeredClock) -> None:
    queues(store)
    happen(store, clock, hours=25)
    day = figures(store, "day", until=START + DAY)
    assert sum(one.completed for one in day) > 0

    clock.advance(100 * 86_400)
    while store.do(Prune()).more:
        pass

    assert store.do(ReadMetrics("minute")).rows == []
    assert store.do(ReadMetrics("hour", until=START + DAY)).rows == []
    assert figures(store, "day", until=START + DAY) == day


@pytest.mark.parametrize(("by", "quantiles"), [("week", (0.5,)), ("hour", (0.0,)), ("hour", (1.5,))])
def test_what_cannot_be_told_is_refused(store: Subject, by: str, quantiles: Sequence[float]) -> None:
    with pytest.raises(InvalidArgument):
        figures(store, by, quantiles=quantiles)
    with pytest.raises(InvalidArgument):
        store.do(ReadMetrics("week"))  # type: ignore[arg-type]


def test_ids_of_this_process_are_found_by_their_time() -> None:
    assert new_job_id()[14] == "7"
