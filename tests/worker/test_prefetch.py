"""How many jobs a worker fetches ahead: as many as it can be expected to start at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.model.outcome import Completed
from tenure.store.contract import Exchange, Exchanged, Request
from tenure.worker.ahead import GROWTH, Ahead
from tenure.worker.flight import Flight
from tenure.worker.lanes import Ask
from tests.worker.exchangers import Fleet, exchanger, fetch_ahead, grant


def quick(ahead: Ahead, now: float, jobs: int, seconds: float) -> float:
    """Jobs come, end after so many seconds, and then there is nothing for a while; the time after it."""
    ahead.go_on(now)
    ahead.ended += jobs
    ahead.run_dry(now + seconds)
    return now + seconds + 1.0


def test_time_without_a_job_does_not_count_against_the_rate() -> None:
    ahead = Ahead(1000, 0.0)
    ahead.adapt(quick(ahead, 3600.0, 64, 0.010))

    assert ahead.jobs == pytest.approx(3 * 64 / 0.010 * ahead.round_trip, abs=1), "of an hour, 10 ms were work"


def test_no_more_is_fetched_ahead_than_was_asked_for() -> None:
    ahead = Ahead(50, 0.0)
    ahead.adapt(quick(ahead, 3600.0, 64, 0.010))

    assert ahead.jobs == 50


def test_a_few_quick_jobs_are_no_proof_for_hundreds() -> None:
    ahead = Ahead(1000, 0.0)
    ahead.adapt(quick(ahead, 0.0, 4, 1e-9))

    assert ahead.jobs == GROWTH * 4


def test_where_jobs_take_long_none_is_fetched_ahead() -> None:
    ahead = Ahead(1000, 0.0)
    ahead.adapt(quick(ahead, 0.0, 200, 0.001))
    assert ahead.jobs > 0
    ahead.go_on(2.0)
    ahead.ended += 1
    ahead.adapt(4.0)

    assert ahead.jobs == 0


def test_a_hiccup_is_not_followed_far() -> None:
    ahead = Ahead(1000, 0.0)
    ahead.adapt(now := quick(ahead, 0.0, 800, 0.010))
    assert ahead.jobs == 1000
    ahead.go_on(now)
    ahead.adapt(now + 2 * ahead.round_trip)

    assert ahead.jobs == 875


def test_who_has_run_dry_looks_at_the_rate_at_once() -> None:
    ahead = Ahead(1000, 0.0)
    ahead.go_on(0.0)
    ahead.ended += 10
    ahead.adapt(0.001)
    assert ahead.jobs == 0, "a round trip is not over, and jobs run"

    ahead.run_dry(0.001)
    ahead.adapt(0.001)
    assert ahead.jobs == 3 * 10 / 0.001 * 0.005

    ahead.adapt(0.002)
    assert ahead.jobs == 150, "nothing has ended since"


def test_who_has_to_give_jobs_back_begins_anew() -> None:
    ahead = Ahead(1000, 0.0)
    ahead.adapt(now := quick(ahead, 0.0, 800, 0.010))
    ahead.stop(now)
    ahead.go_on(now)
    ahead.adapt(now + 1.0)

    assert ahead.jobs == 0


@pytest.mark.anyio
async def test_each_of_two_exchanges_in_flight_takes_a_third() -> None:
    made = exchanger(Fleet(0), concurrency=10)
    fetch_ahead(made, 890)
    ended = [Completed(one.id, one.token) for one in (grant() for _ in range(400))]
    made._outbox._waiting[:] = ended
    outcomes, asked = made._next() or ([], None)
    assert asked is not None
    assert (len(outcomes), asked.limit) == (300, 300)

    made._depart(Flight(outcomes, asked, Exchange(outcomes, None)), wakes=0)
    made.unfinished = 451
    assert (len(made._outbox), made._free()) == (100, 149)
    assert made._next() is None, "too little for a second one, which would take more along in a moment"
    made.unfinished = 450
    outcomes, asked = made._next() or ([], None)
    assert asked is not None
    assert (len(outcomes), asked.limit) == (100, 150)


@pytest.mark.anyio
async def test_a_single_exchange_in_flight_takes_all() -> None:
    made = exchanger(Fleet(0), concurrency=10, exchanges=1)
    fetch_ahead(made, 890)
    _, asked = made._next() or ([], None)

    assert asked is not None
    assert asked.limit == 900


@pytest.mark.anyio
async def test_what_a_worker_gives_back_after_it_has_slowed_down_goes_in_few_exchanges() -> None:
    made = exchanger(Fleet(0), concurrency=4)
    made._outbox._waiting[:] = [Completed(one.id, one.token) for one in (grant() for _ in range(400))]
    taken = []
    while sent := made._next():
        taken.append(len(sent[0]))
        if not len(made._outbox):
            break

    assert taken == [200, 100, 50, 32, 18]


@pytest.mark.anyio
async def test_a_claim_that_left_before_a_job_was_settled_does_not_end_a_drain() -> None:
    """The settlement may have made a job due, a follow-up or a retry, after the claim had looked in vain."""
    go = asyncio.Event()

    class Slow(Fleet):
        async def ado(self, request: Request[Any], *, may_block: bool = False) -> Exchanged:
            assert isinstance(request, Exchange)
            if not request.outcomes:
                await go.wait()
            return Exchanged({}, [])

    made = exchanger(Slow(0), drain=True)
    ask = Ask(("default",), 5, True, tuple(made._lanes.lanes))
    looking = asyncio.create_task(made._exchange([], ask))
    await asyncio.sleep(0)
    await made._exchange([Completed(ended.id, ended.token) for ended in [grant()]], None)
    go.set()
    await looking
    assert not made._lanes.is_dry

    await made._exchange([], ask)
    assert made._lanes.is_dry
