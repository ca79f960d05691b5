"""A cancelled await leaves the outcome unknown, as a lost reply does, and leaves the store usable.

Each kind of request is cancelled at each of its await points, once before the awaited future has its result and once
right after it. Then the store must answer other requests at once, and the same request sent again must answer as it
would have the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from random import Random
from typing import Any, TypeVar

import psycopg
import pytest

from tenure.model.ids import WorkerId, new_job_id
from tenure.model.job import Enqueued, Grant, NewJob
from tenure.model.outcome import Completed, EffectRecord, Suspended
from tenure.model.policy import QueuePolicy
from tenure.store.admin import AcquireLease, AppendEvents, PauseQueues, RecordEffect, RemoveWorkers, SetGate, SetQueues
from tenure.store.contract import (
    Cancel,
    Claim,
    Enqueue,
    Exchange,
    Heartbeat,
    Hold,
    Prune,
    Reap,
    Request,
    Revive,
    Settle,
    Start,
    Store,
    Wake,
    WorkerRow,
)
from tenure.store.queries import CountJobs, GetJobs, ListAttempts, ListEffects, ListJobs, ListQueues, ListWorkers
from tests.conformance.acts import Subject
from tests.conformance.callers import AsyncPsycopg, AsyncSqlite

T = TypeVar("T")

LONG = os.environ.get("TENURE_LONG") == "1"
DEADLINE_SECONDS = 10.0
"""Within this time a store that is usable answers anything."""
MOST_AWAITS = 50
ROUNDS = 200 if LONG else 40

pytestmark = pytest.mark.timeout(90)

Check = Callable[[Any], Awaitable[None]]
Case = Callable[[Store], Coroutine[Any, Any, tuple[Request[Any], Check]]]
"""Prepares a store; answers the request to cancel, and what must hold for the answer to its repeat."""


# --- each kind of request: how to prepare it, and what its repeat must answer


async def _enqueue(store: Store) -> tuple[Request[Any], Check]:
    jobs = [NewJob(new_job_id(), "work"), NewJob(new_job_id(), "work", key=new_job_id())]

    async def check(answer: Any) -> None:
        assert answer == [Enqueued(job.id) for job in jobs]
        assert None not in await store.ado(GetJobs([job.id for job in jobs]))

    return Enqueue(jobs), check


async def _claim(store: Store) -> tuple[Request[Any], Check]:
    queue, [job_id] = await _queue_with(store, 1)

    async def check(answer: Any) -> None:
        assert [(grant.id, grant.token) for grant in answer] == [(job_id, 1)]

    return Claim(WorkerId(queue), [queue], held=[]), check


async def _settle(store: Store) -> tuple[Request[Any], Check]:
    grant = await _granted(store)
    follow_up = NewJob(new_job_id(), "next")
    effect = EffectRecord("mail", "confirmed")

    async def check(answer: Any) -> None:
        assert [settled.state for settled in answer] == ["succeeded"]
        assert None not in await store.ado(GetJobs([follow_up.id]))
        assert len(await store.ado(ListEffects(grant.id))) == 1

    return Settle([Completed(grant.id, grant.token, "1", jobs=(follow_up,), effects=(effect,))]), check


async def _exchange(store: Store) -> tuple[Request[Any], Check]:
    queue, [first, second] = await _queue_with(store, 2)
    [grant] = await store.ado(Claim(WorkerId(queue), [queue]))
    assert grant.id == first

    async def check(answer: Any) -> None:
        assert [(granted.id, granted.token) for granted in answer.grants] == [(second, 1)]
        [job] = await store.ado(GetJobs([first]))
        assert job is not None
        assert job.state == "succeeded"

    return Exchange([Completed(first, grant.token)], Claim(WorkerId(queue), [queue], held=[])), check


async def _heartbeat(store: Store) -> tuple[Request[Any], Check]:
    grant = await _granted(store)
    row = WorkerRow(grant.worker, "host", 1, queues=[grant.queue])

    async def check(answer: Any) -> None:
        assert (answer.lost, answer.cancel_requested) == (frozenset(), frozenset())
        [job] = await store.ado(GetJobs([grant.id]))
        assert job is not None
        assert job.progress == {"done": 1}

    return Heartbeat([Hold(grant.id, grant.token, '{"done": 1}')], worker=row), check


async def _start(store: Store) -> tuple[Request[Any], Check]:
    grant = await _granted(store, QueuePolicy(start_on_claim=False))

    async def check(answer: Any) -> None:
        assert [settled.state for settled in answer] == ["running"]

    return Start([Hold(grant.id, grant.token)]), check


async def _wake(store: Store) -> tuple[Request[Any], Check]:
    grant = await _granted(store)
    await store.ado(Settle([Suspended(grant.id, grant.token, "signal")]))
    return Wake([grant.id]), _state_check(store, grant, "queued")


async def _cancel(store: Store) -> tuple[Request[Any], Check]:
    _, [job_id] = await _queue_with(store, 1)

    async def check(answer: Any) -> None:
        [job] = await store.ado(GetJobs([job_id]))
        assert job is not None
        assert job.state == "cancelled"

    return Cancel([job_id], actor="ops", reason="not needed"), check


async def _revive(store: Store) -> tuple[Request[Any], Check]:
    grant = await _granted(store)
    await store.ado(Cancel([grant.id], actor="ops", reason="not needed"))
    await store.ado(Settle([Completed(grant.id, grant.token)]))
    return Revive([grant.id], actor="ops", reason="needed"), _state_check(store, grant, "queued")


async def _record_effect(store: Store) -> tuple[Request[Any], Check]:
    grant = await _granted(store)

    async def check(answer: Any) -> None:
        assert answer.state == "intended"

    return RecordEffect(grant.id, grant.token, EffectRecord("mail", "intended")), check


async def _set_queues(store: Store) -> tuple[Request[Any], Check]:
    name = f"q{new_job_id()}"

    async def check(answer: Any) -> None:
        assert [row.name for row in answer] == [name]
        assert len(await store.ado(ListQueues([name]))) == 1

    return SetQueues({name: QueuePolicy(max_attempts=7)}, actor="ops"), check


async def _pause(store: Store) -> tuple[Request[Any], Check]:
    queue, _ = await _queue_with(store, 1)

    async def check(answer: Any) -> None:
        [row] = await store.ado(ListQueues([queue]))
        assert row.paused_at is not None

    return PauseQueues([queue], paused=True, actor="ops"), check


async def _lease(store: Store) -> tuple[Request[Any], Check]:
    name = f"lease{new_job_id()}"

    async def check(answer: Any) -> None:
        assert (answer.acquired, answer.term) == (True, 1)

    return AcquireLease(name, "me"), check


def _state_check(store: Store, grant: Grant, state: str) -> Check:
    async def check(answer: Any) -> None:
        [job] = await store.ado(GetJobs([grant.id]))
        assert job is not None
        assert job.state == state

    return check


def _plain(request: Request[Any]) -> Case:
    """A request that needs no preparing, and whose repeat answers as it always does."""

    async def case(store: Store) -> tuple[Request[Any], Check]:
        expected = await store.ado(request)

        async def check(answer: Any) -> None:
            assert type(answer) is type(expected)

        return request, check

    return case


CASES: dict[str, Case] = {
    "enqueue": _enqueue,
    "claim": _claim,
    "settle": _settle,
    "exchange": _exchange,
    "heartbeat": _heartbeat,
    "start": _start,
    "wake": _wake,
    "cancel": _cancel,
    "revive": _revive,
    "record effect": _record_effect,
    "set queues": _set_queues,
    "pause queues": _pause,
    "acquire lease": _lease,
    "set gate": _plain(SetGate("notify", is_open=True, actor="ops")),
    "append events": _plain(AppendEvents(new_job_id(), 1, [])),  # type: ignore[arg-type]
    "remove workers": _plain(RemoveWorkers([WorkerId("none")])),
    "reap": _plain(Reap()),
    "prune": _plain(Prune()),
    "get jobs": _plain(GetJobs([new_job_id()])),
    "list jobs": _plain(ListJobs()),
    "list attempts": _plain(ListAttempts(new_job_id())),
    "list workers": _plain(ListWorkers()),
    "count jobs": _plain(CountJobs()),
}


@pytest.mark.parametrize("moment", ["before its result", "after its result"])
@pytest.mark.parametrize("name", CASES)
def test_a_request_cancelled_at_any_await_can_be_repeated_and_the_store_goes_on(
    store: Subject, name: str, moment: str
) -> None:
    async def cancel_at_each_await() -> None:
        for number in range(1, MOST_AWAITS):
            async with asyncio.timeout(3 * DEADLINE_SECONDS):
                request, check = await CASES[name](store.store)
                cancelled = _CancelledAt(store.store.ado(request), number, after=moment.startswith("after"))
                await asyncio.gather(asyncio.create_task(_run(cancelled)), return_exceptions=True)

                await check(await _within(store.store.ado(request), f"the repeat after await {number} was cancelled"))
                await _within(store.store.ado(CountJobs()), f"a read after await {number} was cancelled")
                _, [job_id] = await _queue_with(store.store, 1)
                assert None not in await store.store.ado(GetJobs([job_id]))
            if not cancelled.is_reached:
                assert number > 1, f"{name} never waits, so it was not cancelled"
                return
        pytest.fail(f"{name} still waits after {MOST_AWAITS} awaits")

    asyncio.run(_closing(store.store, cancel_at_each_await()))


@pytest.mark.parametrize("moment", ["before its result", "after its result"])
def test_an_enqueue_in_the_callers_transaction_can_be_cancelled_at_any_await(store: Subject, moment: str) -> None:
    """The caller rolls back and tries again on another connection; what it rolled back is not there."""

    async def cancel_at_each_await() -> None:
        for number in range(1, MOST_AWAITS):
            lost, kept = NewJob(new_job_id(), "work"), NewJob(new_job_id(), "work")
            async with asyncio.timeout(3 * DEADLINE_SECONDS):
                caller = await _caller(store)
                cancelled = _CancelledAt(
                    caller.enqueue(store.store, Enqueue([lost])), number, after=moment.startswith("after")
                )
                await asyncio.gather(asyncio.create_task(_run(cancelled)), return_exceptions=True)
                with contextlib.suppress(psycopg.OperationalError):  # a cancelled connection may be beyond use
                    await caller.rollback()
                await caller.close()

                caller = await _caller(store)
                assert await caller.enqueue(store.store, Enqueue([kept])) == [Enqueued(kept.id)]
                await caller.commit()
                await caller.close()
                found = await _within(
                    store.store.ado(GetJobs([lost.id, kept.id])), f"after await {number} was cancelled"
                )
                assert [job is not None for job in found] == [False, True]
            if not cancelled.is_reached:
                assert number > 1, "it never waits, so it was not cancelled"
                return

    asyncio.run(_closing(store.store, cancel_at_each_await()))


def test_enqueues_cancelled_in_a_crowd_leave_the_others_going(store: Subject) -> None:
    """B1: an enqueue that was cancelled while it stood in line must hand its place on."""
    random = Random(17)

    async def crowd() -> None:
        kept: list[NewJob] = []
        for number in range(ROUNDS):
            jobs = [NewJob(new_job_id(), "work") for _ in range(20)]
            tasks = [asyncio.create_task(store.store.ado(Enqueue([job]))) for job in jobs]
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            for task in random.sample(tasks, 18):
                task.cancel()
            answers = await _within(asyncio.gather(*tasks, return_exceptions=True), f"round {number}")
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            assert errors == [], f"round {number}: enqueues that were not cancelled failed"
            kept += [job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, list)]
        last = NewJob(new_job_id(), "work")
        assert await _within(store.store.ado(Enqueue([last])), "the next enqueue") == [Enqueued(last.id)]
        assert None not in await store.store.ado(GetJobs([job.id for job in [*kept, last]]))

    asyncio.run(_closing(store.store, crowd()))


# --- cancelling


class _CancelledAt:
    """Awaits a coroutine and cancels the running task when the coroutine waits for the n-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, *, after: bool) -> None:
        self.is_reached = False
        self._coroutine = coroutine
        self._number = number
        self._after = after

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        awaited, count = self._step(steps.__next__), 0
        while not isinstance(awaited, _Answer):
            count += 1
            if count == self._number:
                self._cancel(awaited)
            try:
                value = yield awaited
            except BaseException as exc:  # noqa: BLE001 - it belongs to the coroutine, which may go on
                awaited = self._step(partial(steps.throw, exc))
            else:
                awaited = self._step(partial(steps.send, value))
        return awaited.value

    def _step(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except StopIteration as stop:
            return _Answer(stop.value)

    def _cancel(self, awaited: Any) -> None:
        self.is_reached = True
        task = asyncio.current_task()
        assert task is not None
        if self._after and awaited is not None:
            # Called before the task is: the result is there, and the task is told that it is cancelled instead.
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()


class _Answer:
    def __init__(self, value: Any) -> None:
        self.value = value


async def _run(awaitable: _CancelledAt) -> Any:
    return await awaitable


async def _within(awaitable: Awaitable[T], told: str) -> T:
    try:
        return await asyncio.wait_for(awaitable, DEADLINE_SECONDS)
    except TimeoutError:
        pytest.fail(f"No answer within {DEADLINE_SECONDS} s: {told}.", pytrace=False)


async def _closing(store: Store, test: Coroutine[Any, Any, None]) -> None:
    """The loop ends with the test, so what the store keeps on it goes before."""
    try:
        await test
    finally:
        await asyncio.wait_for(store.aclose(), DEADLINE_SECONDS)


# --- preparing


async def _caller(store: Subject) -> AsyncSqlite | AsyncPsycopg:
    caller = AsyncSqlite() if store.engine == "sqlite" else AsyncPsycopg()
    await caller.open(store.store.url)
    return caller


async def _queue_with(store: Store, count: int, policy: QueuePolicy | None = None) -> tuple[str, list[Any]]:
    """A new queue and the ids of its jobs."""
    name = f"q{new_job_id()}"
    jobs = [NewJob(new_job_id(), "work", queue=name) for _ in range(count)]
    await _within(store.ado(Enqueue(jobs, {name: policy or QueuePolicy()})), "an enqueue")
    return name, [job.id for job in jobs]


async def _granted(store: Store, policy: QueuePolicy | None = None) -> Grant:
    """A held job in a queue of its own."""
    queue, _ = await _queue_with(store, 1, policy)
    [grant] = await store.ado(Claim(WorkerId(queue), [queue]))
    return grant
