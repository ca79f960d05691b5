"""Schedules: ticks by cron and time zone, missed ones by policy, each exactly once; and who leads."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tenure
from tenure.model.cron import Cron, Every
from tenure.model.policy import QueuePolicy
from tenure.model.schedule import LATE_SECONDS, Schedule, tick_job_id
from tenure.store.admin import AcquireLease, SetGate
from tenure.store.contract import Store
from tenure.store.queries import ListJobs, ListWorkers
from tenure.store.schedules import ListSchedules, PauseSchedules, SetSchedules, TickSchedule
from tenure.worker.config import WorkerConfig
from tenure.worker.leader import Leader
from tenure.worker.log import WorkerLog
from tests.waiting import until
from tests.worker.bed import Bed, EventLog

VIENNA = ZoneInfo("Europe/Vienna")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(cron: str, after: str, count: int, zone: ZoneInfo | None = None) -> list[str]:
    found = islice(Cron.parse(cron).ticks(at(after), zone or ZoneInfo("UTC")), count)
    return [tick.strftime("%Y-%m-%d %H:%M") for tick in found]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("*/15 * * * *", "2026-01-01T00:00:00", ["2026-01-01 00:15", "2026-01-01 00:30", "2026-01-01 00:45"]),
        ("*/15 * * * *", "2026-01-01T00:44:59", ["2026-01-01 00:45", "2026-01-01 01:00"]),
        ("0 3 * * *", "2026-01-01T03:00:00", ["2026-01-02 03:00", "2026-01-03 03:00"]),
        ("30 9-17/4 * * mon-fri", "2026-01-02T18:00:00", ["2026-01-05 09:30", "2026-01-05 13:30", "2026-01-05 17:30"]),
        ("0 0 1,15 * 5", "2026-01-01T00:00:00", ["2026-01-02 00:00", "2026-01-09 00:00", "2026-01-15 00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 12 * jan,JUL 0", "2026-01-26T00:00:00", ["2026-07-05 12:00"]),
        ("0 12 * * 7", "2026-01-01T00:00:00", ["2026-01-04 12:00"]),
        ("@monthly", "2026-01-01T00:00:00", ["2026-02-01 00:00"]),
        ("0 * 1 3 *", "2026-01-01T00:00:00", ["2026-03-01 00:00", "2026-03-01 01:00"]),
    ],
)
def test_ticks_of_an_expression(cron: str, after: str, expected: list[str]) -> None:
    assert ticks(cron, after, len(expected)) == expected


def test_a_time_that_the_clock_jumps_over_happens_right_after_the_jump() -> None:
    found = ticks("30 2 * * *", "2026-03-28T00:00:00", 3, VIENNA)  # clocks go from 2:00 to 3:00 on 29 March

    assert found == ["2026-03-28 01:30", "2026-03-29 01:00", "2026-03-30 00:30"]
    assert ticks("0,30 2 * * *", "2026-03-28T12:00:00", 2, VIENNA) == ["2026-03-29 01:00", "2026-03-30 00:00"]


def test_a_time_that_comes_twice_happens_once() -> None:
    found = ticks("30 2 * * *", "2026-10-24T00:00:00", 3, VIENNA)  # clocks go from 3:00 back to 2:00 on 25 October

    assert found == ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]


def test_every_half_hour_follows_real_time_through_a_change_of_clocks() -> None:
    spring = ticks("*/30 * * * *", "2026-03-29T00:15:00", 4, VIENNA)
    autumn = ticks("*/30 * * * *", "2026-10-25T00:15:00", 4, VIENNA)

    assert spring == ["2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30", "2026-03-29 02:00"]
    assert autumn == ["2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30", "2026-10-25 02:00"]


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("* * * *", "expected 5 fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 0 * *", "bad day-of-month"),
        ("* * * foo *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("", "expected 5 fields"),
    ],
)
def test_an_expression_that_cannot_be_is_refused_with_its_field(cron: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Schedule("s", cron, "k")


def test_every_needs_no_library_and_cron_says_which_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cron is an extra; `every=` works without it, and so does a worker that finds a cron schedule in the store."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    app = tenure.App("sqlite:///never-opened.db")

    steady = app.schedule("tidy", job="tidy", every=timedelta(minutes=5))
    with pytest.raises(tenure.MissingExtra, match=r"pip install 'tenure\[cron\]'"):
        app.schedule("nightly", "0 3 * * *", "report")
    with pytest.raises(ValueError, match=r"schedule 'nightly' cannot be read: .* needs the extra 'cron'"):
        Schedule.from_spec("nightly", '{"cron": "0 3 * * *", "kind": "k"}')

    assert steady.next_tick(at("2026-01-01T00:02:00")) == at("2026-01-01T00:05:00")
    assert steady.next_tick(at("2026-01-01T00:05:00")) == at("2026-01-01T00:10:00")
    assert Schedule.from_spec("tidy", steady.spec()) == steady


@pytest.mark.parametrize("spec", ["[" * 5000 + "]" * 5000, "9" * 5000, "[]", '{"cron": 1}', "null"])
def test_a_spec_that_cannot_be_read_is_a_value_error_whatever_it_is(spec: str) -> None:
    """The leader passes such a row over. One that is nested too deeply raised RecursionError and stopped all others."""
    with pytest.raises(ValueError, match=r"^schedule 'nightly' cannot be read"):
        Schedule.from_spec("nightly", spec)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "Give a cron expression, or `every`, and not both|needs a kind"),
        ({"cron": "@daily", "every": 60, "job": "k"}, "and not both"),
        ({"every": 0.5, "job": "k"}, "at most once a second"),
        ({"every": -1, "job": "k"}, "`every` is -1"),
    ],
)
def test_when_a_schedule_happens_is_said_once(given: dict[str, Any], why: str) -> None:
    with pytest.raises(tenure.InvalidArgument, match=why):
        tenure.App("sqlite:///never-opened.db").schedule("s", **given)


def test_a_time_zone_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="Mars/Olympus"):
        Schedule("s", "* * * * *", "k", tz="Mars/Olympus")


def test_a_schedule_reads_back_from_its_spec() -> None:
    schedule = Schedule("s", "0 3 * * *", "k", '{"a":1}', "q", "Europe/Vienna", "all", priority=5)

    assert Schedule.from_spec("s", schedule.spec()) == schedule


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", []), ("one", ["05:00"]), ("all", ["02:00", "03:00", "04:00", "05:00"])],
)
def test_missed_ticks_follow_the_policy(missed: str, expected: list[str]) -> None:
    schedule = Schedule("s", "0 * * * *", "k", missed=missed)  # type: ignore[arg-type]

    due = schedule.due(at("2026-01-01T01:00:00"), at("2026-01-01T05:30:00"))

    assert due is not None
    assert due[0] == at("2026-01-01T05:00:00")
    assert [tick.strftime("%H:%M") for tick in due[1]] == expected


@pytest.mark.parametrize("missed", ["skip", "one"])
@pytest.mark.parametrize("when", [{"cron": "* * * * *"}, {"cron": None, "every_seconds": 1.0}])
def test_ticks_that_are_not_made_up_for_are_not_counted_through(
    missed: str, when: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a year without a leader half a million ticks were walked on the event loop, one by one."""
    seen = 0

    def counted(self: Any, after: datetime, zone: Any) -> Iterator[datetime]:
        nonlocal seen
        for tick in walk(self, after, zone):
            seen += 1
            yield tick

    kind = Cron if when["cron"] else Every
    walk = kind.ticks
    monkeypatch.setattr(kind, "ticks", counted)
    schedule = Schedule("s", kind="k", missed=missed, **when)  # type: ignore[arg-type]

    due = schedule.due(at("2025-01-01T00:00:30"), at("2026-01-01T00:00:30"))

    assert due is not None
    assert due[0] == at("2026-01-01T00:00:00") if when["cron"] else at("2026-01-01T00:00:30")
    assert due[1][-1] == due[0]
    assert seen < 200


@pytest.mark.parametrize("seed", range(40))
def test_what_is_due_is_found_as_by_walking_all_ticks(seed: int) -> None:
    chance = random.Random(seed)
    cron = chance.choice(
        ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "0 0 29 2 *", "*/5 3 * * 1", "0 0 1 1 *", "@hourly"]
    )
    zone = chance.choice(["UTC", "Europe/Vienna", "America/New_York"])
    after = at("2024-10-26T00:00:00") + timedelta(seconds=chance.randrange(400 * 86_400))
    now = after + timedelta(seconds=chance.choice([1, 59, 60, 61, 3600, 86_400, 40 * 86_400]) + chance.randrange(100))
    for missed in ("skip", "one"):
        schedule = Schedule("s", cron, "k", tz=zone, missed=missed)
        walked = list(takewhile(lambda tick: tick <= now, Cron.parse(schedule.cron or "").ticks(after, ZoneInfo(zone))))
        in_time = [tick for tick in walked if tick >= now - timedelta(seconds=60)]
        expected = in_time if in_time or missed == "skip" else walked[-1:]

        assert schedule.due(after, now) == ((walked[-1], expected) if walked else None), (cron, zone, after, now)


@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_a_tick_in_time_always_runs(missed: str) -> None:
    schedule = Schedule("s", "0 * * * *", "k", missed=missed)  # type: ignore[arg-type]

    due = schedule.due(at("2026-01-01T04:00:00"), at("2026-01-01T05:00:02"))

    assert due == (at("2026-01-01T05:00:00"), [at("2026-01-01T05:00:00")])
    assert schedule.due(at("2026-01-01T05:00:00"), at("2026-01-01T05:00:02")) is None


@pytest.mark.parametrize(("seconds", "runs"), [(LATE_SECONDS, True), (LATE_SECONDS + 1, False)])
def test_a_tick_is_missed_once_it_is_later_than_the_bound(seconds: float, runs: bool) -> None:
    tick = at("2026-01-01T05:00:00")

    due = Schedule("s", "0 * * * *", "k", missed="skip").due(
        at("2026-01-01T04:00:00"), tick + timedelta(seconds=seconds)
    )

    assert due == (tick, [tick] if runs else [])


def test_a_tick_has_one_id_whoever_makes_it() -> None:
    tick = at("2026-01-01T05:00:00")

    assert tick_job_id("s", tick) == tick_job_id("s", tick)
    assert tick_job_id("s", tick) != tick_job_id("t", tick)
    assert tick_job_id("s", tick)[14] == "7"


def believer(store: Store, schedules: list[Schedule], name: str, log: EventLog | None = None) -> Leader:
    from tenure.model.ids import WorkerId

    async def nothing() -> None: ...

    return Leader(store, WorkerId(name), WorkerConfig(), schedules, WorkerLog(name, log or EventLog()), nothing)


def declared(bed: Bed, schedule: Schedule) -> datetime:
    """Declare a schedule; answers the moment from which on its ticks count."""
    (row,) = bed.store.do(SetSchedules({schedule.name: schedule.spec()}, "test"))
    return row.last_tick


@pytest.mark.anyio
async def test_two_that_both_believe_to_lead_make_one_job_per_tick(bed: Bed) -> None:
    schedule = Schedule("often", "* * * * *", "tick", missed="all")
    last = declared(bed, schedule)
    believers = [believer(bed.store, [schedule], name) for name in ("one", "two")]
    for each in believers:
        await each.read_schedules()
        each._offset += timedelta(minutes=5)  # five minutes later, by a clock that both of them read

    await asyncio.gather(*(each.tick_schedules() for each in believers))
    for each in believers:
        await each.read_schedules()
        await each.tick_schedules()

    jobs = bed.store.do(ListJobs(kinds=["tick"])).items
    (row,) = bed.store.do(ListSchedules())
    made = {job.key for job in jobs}
    assert len(jobs) == len(made) == round((row.last_tick - last.replace(second=0, microsecond=0)).total_seconds() / 60)
    assert len(jobs) in {5, 6}


@pytest.mark.anyio
async def test_a_tick_is_not_repeated_after_its_job_has_ended_and_freed_its_key(bed: Bed) -> None:
    async def tick() -> None: ...

    schedule = Schedule("s", "* * * * *", bed.handle(tick))
    last = declared(bed, schedule)
    first = schedule.next_tick(last)
    assert bed.store.do(TickSchedule("s", last, first, [schedule.job(first)])) is True
    await bed.drain()

    assert bed.store.do(TickSchedule("s", last, first, [schedule.job(first)])) is False

    assert len(bed.store.do(ListJobs(kinds=["tick"])).items) == 1


def test_a_tick_whose_key_is_taken_leaves_out_that_job_alone(bed: Bed) -> None:
    """On PostgreSQL all jobs of the ticks that were made up for were left out with it."""
    schedule = Schedule("s", "* * * * *", "tick", missed="all")
    last = declared(bed, schedule)
    ticks = list(islice(Cron.parse("* * * * *").ticks(last, ZoneInfo("UTC")), 3))
    jobs = [schedule.job(tick) for tick in ticks]
    taken = bed.enqueue("tick", '{"by": "hand"}', key=jobs[1].key)

    assert bed.store.do(TickSchedule("s", last, ticks[-1], jobs)) is True

    assert {job.id for job in bed.store.do(ListJobs(kinds=["tick"])).items} == {jobs[0].id, taken, jobs[2].id}


@pytest.mark.anyio
async def test_a_paused_schedule_makes_nothing(bed: Bed) -> None:
    schedule = Schedule("s", "* * * * *", "tick")
    declared(bed, schedule)
    bed.store.do(PauseSchedules(["s"], paused=True, actor="ops"))
    leader = believer(bed.store, [schedule], "one")
    await leader.read_schedules()
    leader._offset += timedelta(minutes=5)

    assert await leader.tick_schedules() is None
    assert bed.store.do(ListJobs(kinds=["tick"])).items == []


@pytest.mark.anyio
async def test_a_schedule_whose_job_is_refused_holds_up_no_other(bed: Bed) -> None:
    """Its queue does not exist, or its gate is closed: the schedules behind it in the list never happened."""
    for name, queue in (("a", "gone"), ("b", "shut"), ("c", "default")):
        declared(bed, Schedule(name, "* * * * *", "tick", queue=queue))
    bed.queue(QueuePolicy(), "shut")
    bed.store.do(SetGate("queue:shut", is_open=False, actor="ops"))
    log = EventLog()
    leader = believer(bed.store, [], "one", log)
    await leader.read_schedules()
    leader._offset += timedelta(minutes=1)

    await leader.tick_schedules()

    assert {job.queue for job in bed.store.do(ListJobs(kinds=["tick"])).items} == {"default"}
    failed = [event for event in log.events if event.name == "schedule_failed"]
    assert [event.fields["schedule"] for event in failed] == ["a", "b"]
    assert [event.fields["code"] for event in failed] == ["unknown_queue", "gate_closed"]

    bed.store.do(SetGate("queue:shut", is_open=True, actor="ops"))
    await leader.tick_schedules()
    assert log.names().count("schedule_failed") == 2, "what failed is tried again after the next look"
    await leader.read_schedules()
    leader._offset += timedelta(minutes=1)
    await leader.tick_schedules()
    assert {job.queue for job in bed.store.do(ListJobs(kinds=["tick"])).items} == {"default", "shut"}


@pytest.mark.anyio
async def test_a_worker_declares_its_schedules_and_one_of_two_leads(bed: Bed) -> None:
    async def tick() -> None: ...

    schedule = Schedule("s", "0 3 * * *", bed.handle(tick), tz="Europe/Vienna")
    async with (
        bed.working(maintain=True, schedules=[schedule]) as one,
        bed.working(maintain=True, schedules=[schedule]) as two,
    ):
        await until(lambda: one.stats().is_leader or two.stats().is_leader)
        await until(lambda: len(bed.store.do(ListWorkers())) == 2)
        assert not (one.stats().is_leader and two.stats().is_leader)
        assert [row.name for row in bed.store.do(ListSchedules())] == ["s"]
        shown = [seen.row.id for seen in bed.store.do(ListWorkers()) if seen.is_leader]
        assert shown == [one.id if one.stats().is_leader else two.id]

    free = bed.store.do(AcquireLease("leader", "somebody else"))
    assert free.acquired, "a leader that leaves gives its lease back"
