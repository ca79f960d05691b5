"""Reservations of handlers: async, sync, isolated and durable; parked, failed, escalated; settled whatever happens."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from tenure.errors import HandlerError, InvalidArgument
from tenure.handler.budgets import BudgetEmpty
from tenure.handler.context import Context
from tenure.model.budget import Budget, NewBudget
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.state import State
from tenure.store.budgets import ListBudgets, RaiseBudgets, SetBudgets
from tenure.store.flow import Signal, SweepFlow
from tenure.store.queries import ListEvents
from tests.waiting import wait_until
from tests.worker.bed import Bed
from tests.worker.children import crew as handlers
from tests.worker.crews import Crew, words

pytestmark = pytest.mark.anyio
CREWS = 5
SLOTS = 10
KILLS = 6


def set_budget(bed: Bed, scope: str = "all", on_empty: str = "park", per: str = "total", **limits: int) -> None:
    budgets = [NewBudget(scope, unit, limit, per, on_empty) for unit, limit in limits.items()]
    bed.store.do(SetBudgets(budgets, "ops"))


def raise_by(bed: Bed, **amounts: int) -> None:
    bed.store.do(RaiseBudgets("all", "total", amounts, "ops"))


def budget(bed: Bed, unit: str = "usd") -> Budget:
    return next(one for one in bed.store.do(ListBudgets()) if one.unit == unit)


def counts(bed: Bed, unit: str = "usd") -> tuple[int, int]:
    found = budget(bed, unit)
    return found.used, found.reserved


def wait_for_the_sessions_of_the_killed(url: str) -> None:
    """A PostgreSQL session outlives its client until it has carried out what the client had sent."""
    if url.startswith("postgres"):
        with psycopg.connect(url, autocommit=True) as connection:
            question = "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'crew'"
            wait_until(lambda: (connection.execute(question).fetchone() or (False,))[0], 60)


async def test_an_async_handler_reserves_and_says_what_it_used(bed: Bed) -> None:
    seen: list[tuple[int, int]] = []

    async def work(ctx: Context) -> None:
        async with ctx.reserve(usd="0.40", tokens=1000) as reservation:
            seen.append(counts(bed))
            reservation.used(usd=Decimal("0.05"), tokens=300)
            reservation.used(usd="0.0000001", tokens=100)

    set_budget(bed, usd=1_000_000, tokens=5000, calls=7)
    job_id = bed.enqueue(bed.handle(work))
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED
    assert seen == [(0, 400_000)]
    assert counts(bed) == (50_001, 0), "what is spent is rounded up"
    assert counts(bed, "tokens") == (400, 0)
    assert counts(bed, "calls") == (1, 0)


async def test_a_sync_handler_does_so_too_and_seconds_are_measured(bed: Bed) -> None:
    def work(ctx: Context) -> None:
        with ctx.reserve(usd=1, seconds=50):
            pass
        with ctx.reserve(usd_micro=5) as reservation:
            reservation.release()

    set_budget(bed, usd=5_000_000, seconds=100_000_000, calls=9)
    bed.enqueue(bed.handle(work))
    await bed.drain()

    assert counts(bed) == (1_000_000, 0), "what is not told counts as reserved, what is released does not"
    assert 0 < budget(bed, "seconds").used < 50_000_000
    assert counts(bed, "calls") == (1, 0)


@pytest.mark.parametrize("kind", ["spend_out", "aspend_out"])
async def test_an_isolated_handler_does_so_too(bed: Bed, kind: str) -> None:
    bed.registry = handlers.registry
    set_budget(bed, usd=100_000, tokens=5000)
    job_id = bed.enqueue(kind)
    await bed.drain()
    assert (bed.job(job_id).state, bed.job(job_id).waiting_for) == (State.WAITING, "budget:all:usd:total")

    raise_by(bed, usd=300_000)
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED
    assert counts(bed) == (100_000, 0)
    assert counts(bed, "tokens") == (400, 0)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_job_waits_for_an_empty_budget_and_goes_on_when_it_is_raised(bed: Bed, is_durable: bool) -> None:
    attempts: list[int] = []

    async def work(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        async with ctx.reserve(usd="0.40") as reservation:
            reservation.used(usd="0.40")
        return "done"

    set_budget(bed, usd=0)
    job_id = bed.enqueue(bed.handle(work, is_durable=is_durable))
    await bed.drain()
    job = bed.job(job_id)
    assert (job.state, job.waiting_for, job.attempt) == (State.WAITING, "budget:all:usd:total", 0)
    assert bed.attempts(job_id) == []
    assert budget(bed).waiting == 1

    raise_by(bed, usd=399_999)
    await bed.drain()
    assert bed.job(job_id).state is State.WAITING
    raise_by(bed, usd=1)
    assert counts(bed) == (0, 400_000), "it is reserved for the job before it runs"
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED
    assert attempts == [1, 1]
    assert counts(bed) == (400_000, 0)


async def test_a_budget_may_fail_a_job_instead(bed: Bed) -> None:
    caught: list[str] = []

    async def work(payload: dict[str, Any], ctx: Context) -> None:
        try:
            async with ctx.reserve(usd="0.40"):
                raise AssertionError("not reached")
        except BudgetEmpty as exc:
            caught.append(exc.refusal.scope)
            if not payload:
                raise

    set_budget(bed, on_empty="fail", usd=5)
    kind = bed.handle(work)
    failed, went_on = bed.enqueue(kind), bed.enqueue(kind, '{"go": "on"}')
    await bed.drain()

    assert bed.job(failed).state is State.FAILED
    assert bed.job(went_on).state is State.SUCCEEDED
    [letter] = bed.letters(failed)
    assert "tenure budgets raise all --usd AMOUNT --per total" in letter.final_error
    assert caught == ["all", "all"]


async def test_a_budget_may_wait_for_a_person(bed: Bed) -> None:
    async def work(ctx: Context) -> None:
        async with ctx.reserve(usd="0.40"):
            pass

    set_budget(bed, on_empty="escalate", per="hour", usd=400_000)
    kind = bed.handle(work)
    first, second = bed.enqueue(kind), bed.enqueue(kind)
    await bed.drain()

    waits = next(one for one in (first, second) if bed.job(one).state is State.WAITING)
    assert bed.job(waits).run_at.year > 9000, "the end of the window does not wake it"
    [event] = [one for one in bed.store.do(ListEvents(job_id=waits)) if one.kind == "escalation"]
    assert event.data["budget"] == "budget:all:usd:hour"


async def test_a_handler_that_raises_has_spent_what_it_reserved_unless_it_said_otherwise(bed: Bed) -> None:
    async def work(payload: dict[str, Any], ctx: Context) -> None:
        async with ctx.reserve(usd_micro=10) as reservation:
            if payload["says"] is not None:
                reservation.used(usd_micro=payload["says"])
            raise RuntimeError("boom")

    set_budget(bed, usd=1000)
    kind = bed.handle(work)
    bed.enqueue(kind, '{"says": null}', max_attempts=1)
    await bed.drain()
    assert counts(bed) == (10, 0)
    bed.enqueue(kind, '{"says": 3}', max_attempts=2)
    await bed.drain()
    assert counts(bed) == (16, 0)


async def test_a_durable_handler_pays_once_for_what_stands_outside_its_steps(bed: Bed) -> None:
    runs: list[str] = []

    def work(ctx: Context) -> None:
        runs.append("body")
        with ctx.reserve(usd_micro=10) as reservation:
            cost = ctx.step("ask", lambda: 7)
            reservation.used(usd_micro=cost)
        ctx.wait_for("go")
        with ctx.reserve(usd_micro=10) as reservation:
            reservation.used(usd_micro=1)

    set_budget(bed, usd=1000)
    job_id = bed.enqueue(bed.handle(work, is_durable=True))
    await bed.drain()
    assert counts(bed) == (7, 0)
    bed.store.do(Signal("go"))
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED
    assert runs == ["body", "body"]
    assert counts(bed) == (8, 0)


async def test_a_step_that_does_not_fit_runs_again_and_is_paid_once(bed: Bed) -> None:
    runs: list[str] = []

    async def work(ctx: Context) -> Any:
        async def ask(name: str) -> int:
            runs.append(name)
            async with ctx.reserve(usd_micro=10) as reservation:
                reservation.used(usd_micro=6)
            return 6

        return await ctx.step("one", ask, "one") + await ctx.step("two", ask, "two")

    set_budget(bed, usd=15)
    job_id = bed.enqueue(bed.handle(work, is_durable=True))
    await bed.drain()
    assert bed.job(job_id).state is State.WAITING
    assert counts(bed) == (6, 0)
    raise_by(bed, usd=1)
    await bed.drain()

    assert bed.job(job_id).result == 12
    assert runs == ["one", "two", "two"]
    assert counts(bed) == (12, 0)


async def test_a_reservation_used_the_wrong_way_is_refused(bed: Bed) -> None:
    said: list[str] = []

    async def work(ctx: Context) -> None:
        wrong: list[dict[str, Any]] = [{"usd": 0.4}, {"usd": "a lot"}, {"usd": "-1"}, {"usd": 1, "usd_micro": 1}]
        for amounts in wrong:
            with pytest.raises(InvalidArgument) as refused:
                ctx.reserve(**amounts)
            said.append(str(refused.value))
        with pytest.raises(HandlerError, match="async with"), ctx.reserve(usd=1):
            pass
        reservation = ctx.reserve(usd=1)
        async with reservation:
            pass
        with pytest.raises(HandlerError, match="once"):
            await reservation.__aenter__()

    job_id = bed.enqueue(bed.handle(work))
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED, bed.job(job_id).last_error
    assert 'usd="0.40"' in said[0]
    assert "usd_micro=400000" in said[0]


@pytest.mark.timeout(300)
def test_fifty_slots_in_killed_processes_never_exceed_a_budget(bed: Bed, url: str, tmp_path: Path) -> None:
    """What is noted as spent, by processes that are killed at any point, is counted by the budget and within it."""
    limit, chance = 900, Random(7)
    notes = tmp_path / "notes"
    set_budget(bed, usd=limit)
    bed.enqueue_many(
        [NewJob(id=new_job_id(), kind="spend_some", payload=json.dumps({"file": str(notes)})) for _ in range(600)]
    )
    started: list[Crew] = []

    def start() -> Crew:
        settings = {"lease_seconds": 30.0, "concurrency": SLOTS}
        address = f"{url}?application_name=crew" if url.startswith("postgres") else url
        started.append(Crew(address, tmp_path / f"crew-{len(started)}.log", settings))
        return started[-1]

    def spent() -> list[int]:
        return [int(line[1]) for line in words(notes, "spent") if len(line) == 2]

    try:
        team = [start() for _ in range(CREWS)]
        for _ in range(KILLS):
            before = len(spent())
            wait_until(lambda: len(spent()) >= before + 8 or budget(bed).waiting > 0, 60)  # noqa: B023 - called at once
            victim = chance.randrange(CREWS)
            team[victim].end()
            team[victim] = start()
            used, reserved = counts(bed)
            assert used + reserved <= limit
        wait_until(lambda: budget(bed).waiting > 0, 60)
    finally:
        for each in started:
            each.end()
        wait_for_the_sessions_of_the_killed(url)

    used, reserved = counts(bed)
    assert sum(spent()) <= used + reserved <= limit
    while bed.store.do(SweepFlow()).more:
        pass
    used_after, reserved_after = counts(bed)
    assert used_after == used, "the leases have not ended, so nothing is counted as lost yet"
    assert used + reserved <= used_after + reserved_after <= limit, "one that waited and fits is woken with its amount"


async def test_steps_whose_keys_begin_alike_reserve_each_for_itself(bed: Bed) -> None:
    """Of a step's key 100 characters stood in that of its reservation: the second step's was taken for the first's."""

    async def work(ctx: Context) -> None:
        async def call() -> None:
            async with ctx.reserve(usd=1) as reservation:
                reservation.used(usd=1)

        for number in range(3):
            await ctx.step("fetch", call, key=f"https://example.org/{'x' * 120}/{number}")

    set_budget(bed, usd=5_000_000)
    job_id = bed.enqueue(bed.handle(work, is_durable=True))
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED, bed.job(job_id).last_error
    assert [one.error for one in bed.attempts(job_id)] == []
    assert counts(bed) == (3_000_000, 0)


async def test_what_is_spent_behind_a_wait_inside_a_reservation_of_unknown_cost_is_counted(bed: Bed) -> None:
    """The wait settled it as paid, with nothing, and what was spent behind it was neither reserved nor counted."""
    seen: list[tuple[int, int]] = []

    async def work(ctx: Context) -> None:
        async with ctx.reserve(tokens=10) as reservation:
            await ctx.wait_for("go")
            seen.append(counts(bed))
            reservation.used(usd="0.30", tokens=4)

    set_budget(bed, usd=1_000_000, tokens=100)
    job_id = bed.enqueue(bed.handle(work, is_durable=True))
    await bed.drain()
    assert counts(bed) == (0, 0), "a job that waits holds nothing back"
    bed.store.do(Signal("go"))
    await bed.drain()

    assert bed.job(job_id).state is State.SUCCEEDED, bed.job(job_id).last_error
    assert seen == [(0, 1_000_000)]
    assert counts(bed) == (300_000, 0)
    assert counts(bed, "tokens") == (10, 0), "what was named is paid once, when the job first waits"
