"""Handlers that ask people: in tasks, threads and processes of their own, with real workers that also die."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.errors import Forbidden
from tenure.handler.context import Context
from tenure.handler.registry import Mode
from tenure.model.approval import VOIDS_MAX, Approval
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.store.admin import RemoveWorkers
from tenure.store.approvals import DecideApproval, ListApprovals
from tests.waiting import until
from tests.worker.bed import AT_ONCE, Bed
from tests.worker.children import crew as handlers
from tests.worker.crews import crew

pytestmark = pytest.mark.anyio


def pending(bed: Bed, job_id: JobId) -> list[Approval]:
    return bed.store.do(ListApprovals(("pending",), job_id=job_id)).items


def states(bed: Bed, job_id: JobId) -> list[str]:
    """Oldest first."""
    return [one.state for one in reversed(bed.store.do(ListApprovals(job_id=job_id)).items)]


async def answer(bed: Bed, job_id: JobId, choice: str = "approve", voter: str = "maria") -> Approval:
    """Answer what a job asks, once it asks."""
    await until(lambda: bed.job(job_id).state == "waiting" and pending(bed, job_id))
    [one] = pending(bed, job_id)
    return await asyncio.to_thread(bed.store.do, DecideApproval(one.id, voter, choice, one.args_hash, "as agreed"))


async def ended(bed: Bed, job_id: JobId) -> Any:
    await until(lambda: bed.job(job_id).finished_at is not None)
    return bed.job(job_id)


@pytest.mark.parametrize("mode", ["async", "thread"])
@pytest.mark.parametrize("choice", ["approve", "deny"])
async def test_a_handler_goes_on_with_what_was_decided(bed: Bed, mode: Mode, choice: str) -> None:
    def told(ok: tenure.Decision) -> dict[str, Any]:
        return {"granted": ok.granted, "is": bool(ok), "by": ok.by, "note": ok.note, "args": ok.args}

    async def order(ctx: Context) -> Any:
        return told(await ctx.approve("refund", args={"eur": 120}, text="Pay it back?", ask="maria"))

    def sync_order(ctx: Context) -> Any:
        return told(ctx.approve("refund", args={"eur": 120}, text="Pay it back?", ask="maria"))

    job_id = bed.enqueue(bed.handle(order if mode == "async" else sync_order, is_durable=True))
    async with bed.working():
        await answer(bed, job_id, choice)
        job = await ended(bed, job_id)

    is_granted = choice == "approve"
    assert job.result == {
        "granted": is_granted, "is": is_granted, "by": ["maria"], "note": "as agreed", "args": {"eur": 120},
    }  # fmt: skip
    assert bed.attempts(job_id) == []


async def test_the_job_says_what_it_waits_for(bed: Bed) -> None:
    async def order(ctx: Context) -> None:
        await ctx.approve("refund", args=None, key=7)

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        await until(lambda: bed.job(job_id).state == "waiting")

    assert bed.job(job_id).waiting_for == "approval:refund/7"
    assert pending(bed, job_id)[0].name == "refund/7"


async def test_an_effect_uses_the_approval_once_and_takes_its_arguments(bed: Bed) -> None:
    paid: list[Any] = []

    def tried(ctx: Context) -> Any:
        ok = ctx.approve("refund", args={"eur": 120, "order": 7})
        ctx.effect("refund", do=lambda call: paid.append(call.args), keyed=True, approval=ok)
        if len(bed.attempts(ctx.id)) == 0:
            raise ValueError("it fails after the effect")
        again = ctx.approve("refund", args={"eur": 120, "order": 7}, key="again")
        return [ok.state, again.state]

    bed.queue(AT_ONCE)
    job_id = bed.enqueue(bed.handle(tried, is_durable=True))
    async with bed.working():
        await answer(bed, job_id)
        await until(lambda: states(bed, job_id) == ["used", "pending"])
        await answer(bed, job_id)
        job = await ended(bed, job_id)

    assert paid == [{"eur": 120, "order": 7}]
    assert job.result == ["granted", "granted"], "the decision reads as it was made"
    assert states(bed, job_id) == ["used", "granted"]


async def test_an_effect_with_other_arguments_fails_the_job_and_is_not_done(bed: Bed) -> None:
    paid: list[Any] = []

    async def order(ctx: Context) -> None:
        ok = await ctx.approve("refund", args={"eur": 120})
        await ctx.effect("refund", {"eur": 1200}, do=lambda call: paid.append(call.args), keyed=True, approval=ok)

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        await answer(bed, job_id)
        job = await ended(bed, job_id)

    assert (job.state, paid, states(bed, job_id)) == ("failed", [], ["granted"])
    assert "not those that approval" in job.last_error


@pytest.mark.parametrize("case", ["denied", "second effect"])
async def test_an_effect_without_a_grant_of_its_own_is_not_done(bed: Bed, case: str) -> None:
    paid: list[Any] = []

    def order(ctx: Context) -> None:
        ok = ctx.approve("refund", args={"eur": 120})
        ctx.effect("refund", do=lambda call: paid.append(call.name), keyed=True, approval=ok)
        ctx.effect("refund-twice", do=lambda call: paid.append(call.name), keyed=True, approval=ok)

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        await answer(bed, job_id, "deny" if case == "denied" else "approve")
        job = await ended(bed, job_id)

    assert job.state == "failed"
    assert paid == ([] if case == "denied" else ["refund"])
    assert ("was not granted" if case == "denied" else "another effect has used it") in job.last_error


async def test_changed_arguments_void_the_approval_and_are_asked_about(bed: Bed) -> None:
    amounts = iter([120, 1200, 1200])

    async def order(ctx: Context) -> Any:
        ok = await ctx.approve("refund", args={"eur": next(amounts)})
        return ok.args

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        first = await answer(bed, job_id)
        await until(lambda: states(bed, job_id) == ["void", "pending"])
        await answer(bed, job_id)
        job = await ended(bed, job_id)

    assert (first.args, job.result) == ({"eur": 120}, {"eur": 1200})


async def test_arguments_that_change_with_every_attempt_end_the_job(bed: Bed) -> None:
    runs: list[int] = []

    async def order(ctx: Context) -> None:
        runs.append(len(runs))
        await ctx.approve("refund", args={"eur": len(runs)})

    def asked(times: int) -> bool:
        return len(states(bed, job_id)) == times

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    async with bed.working():
        for n in range(VOIDS_MAX):
            await until(partial(asked, n + 1))
            await answer(bed, job_id)
        job = await ended(bed, job_id)

    assert (job.state, states(bed, job_id)) == ("failed", ["void"] * VOIDS_MAX)
    assert "its arguments changed 3 times" in job.last_error
    assert len(bed.letters(job_id)) == 1


async def test_a_process_of_its_own_asks_too_and_dies_without_paying_twice(bed: Bed, tmp_path: Path) -> None:
    bed.queue(AT_ONCE)
    file = tmp_path / "notes"
    bed.registry.add(handlers.registry["ask_refund"])
    job_id = bed.enqueue("ask_refund", json.dumps({"file": str(file), "die": True}))
    async with bed.working():
        await answer(bed, job_id)
        job = await ended(bed, job_id)

    assert job.result == ["paid", None, "maria"]
    notes = [line.split()[0] for line in file.read_text().splitlines()]
    assert notes == ["asks", "asks", "asks", "paid"], "asked; decided and killed; paid"
    assert states(bed, job_id) == ["used"]


async def test_a_worker_killed_after_the_ask_and_after_the_answer_loses_neither(
    bed: Bed, url: str, tmp_path: Path
) -> None:
    file, until_file = tmp_path / "notes", tmp_path / "go"
    payload = json.dumps({"file": str(file), "until": str(until_file)})
    job_id = bed.enqueue("ask_and_hold", payload)
    with crew(url, tmp_path, "first") as one:
        await until(lambda: bed.job(job_id).state == "waiting")
        one.process.kill()
    with crew(url, tmp_path, "second") as two:
        await answer(bed, job_id)
        await until(lambda: file.exists() and file.read_text())
        two.process.kill()
        two.process.wait()
    bed.store.do(RemoveWorkers([WorkerId(str(bed.job(job_id).lease_owner))]))
    until_file.touch()
    with crew(url, tmp_path, "third"):
        job = await ended(bed, job_id)

    assert job.result == ["maria"]
    assert states(bed, job_id) == ["granted"]
    assert file.read_text().splitlines() == ["decided maria"] * 2


async def test_bad_input_is_refused_before_anything_is_asked(bed: Bed) -> None:
    said: list[str] = []

    def order(ctx: Context) -> None:
        for bad in (
            {"args": {1, 2}, "need": 0},
            {"args": {}, "need": 0},
            {"args": {}, "expires": -1},
            {"args": {}, "on_expiry": "grant"},
            {"args": {}, "on_expiry": "maybe"},
            {"args": "x" * 70_000},
            {"args": float("nan")},
            {"args": {}, "ask": [""]},
        ):
            try:
                ctx.approve("refund", **bad)
            except tenure.UsageError as exc:
                said.append(str(exc))

    job_id = bed.enqueue(bed.handle(order, is_durable=True))
    await bed.drain()

    assert len(said) == 8
    assert bed.job(job_id).state == "succeeded"
    assert bed.store.do(ListApprovals()).items == []


async def test_who_had_a_job_done_may_not_answer_what_its_children_ask(bed: Bed) -> None:
    """Children did not take over who had their parent done, so the requester could answer what a child asked."""

    async def asks(ctx: Context) -> bool:
        return bool(await ctx.approve("refund", args={"eur": 120}))

    async def plans(ctx: Context) -> Any:
        ctx.enqueue(later, {})
        return await ctx.gather(ctx.spawn("child", asking))

    asking, later = (bed.handle(asks, kind=kind, is_durable=True) for kind in ("asking", "later"))
    person = new_job_id()
    parent = bed.enqueue(bed.handle(plans, is_durable=True), actor="ann", requested_by_user_id=person)
    async with bed.working():
        for kind in (asking, later):
            one = await asked(bed, kind)
            assert (one.actor, one.requested_by) == ("ann", person)
            for voter in ("ann", person):
                with pytest.raises(Forbidden, match="another person has to answer"):
                    await asyncio.to_thread(bed.store.do, DecideApproval(one.id, voter, "approve", one.args_hash))
            await asyncio.to_thread(bed.store.do, DecideApproval(one.id, "bob", "approve", one.args_hash))
        await ended(bed, parent)


async def asked(bed: Bed, kind: str) -> Approval:
    """What a job of this kind asks, once it does."""
    found: list[Approval] = []

    def look() -> bool:
        found[:] = [one for one in bed.store.do(ListApprovals(("pending",))).items if one.kind == kind]
        return bool(found)

    await until(look)
    return found[0]
