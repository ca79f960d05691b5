"""How many jobs a worker fetches ahead: what it runs in a moment, and what its heartbeats can carry."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tenure.errors import ConfigError
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed, Failed, Settled
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.contract import Exchange, Exchanged, Heartbeat, Request
from tenure.worker.claims import AUTO_LIMIT, Prefetch
from tenure.worker.config import WorkerConfig
from tests.waiting import until
from tests.worker.bed import Bed
from tests.worker.fetchers import Claims, NoHeartbeats, fetcher, grant


def run_jobs(prefetch: Prefetch, now: float, jobs: int, seconds: float) -> float:
    """Jobs come, have all ended after so many seconds, and then there is nothing for a while; the time after it."""
    prefetch.start(now)
    prefetch.ended += jobs
    prefetch.stop(now + seconds)
    return now + seconds + 10.0


def test_auto_is_what_runs_in_a_tenth_of_a_second() -> None:
    prefetch = Prefetch("auto")
    assert prefetch.jobs == 0
    prefetch.measure(run_jobs(prefetch, 3600.0, 100, 0.2))

    assert prefetch.jobs == 50, "time without a job does not count against the rate"


def test_auto_is_bounded() -> None:
    prefetch = Prefetch("auto")
    prefetch.measure(run_jobs(prefetch, 0.0, 100_000, 1.0))

    assert prefetch.jobs == AUTO_LIMIT


def test_where_jobs_take_long_none_is_fetched_ahead() -> None:
    prefetch = Prefetch("auto")
    now = run_jobs(prefetch, 0.0, 1000, 1.0)
    prefetch.measure(now)
    prefetch.measure(run_jobs(prefetch, now, 1, 60.0))

    assert prefetch.jobs == 0


def test_jobs_that_had_to_be_given_back_reset_it() -> None:
    prefetch = Prefetch("auto")
    now = run_jobs(prefetch, 0.0, 1000, 1.0)
    prefetch.measure(now)
    prefetch.reset(now)

    assert prefetch.jobs == 0


def test_a_number_stays_what_it_is() -> None:
    prefetch = Prefetch(500)
    prefetch.measure(run_jobs(prefetch, 0.0, 10, 1.0))
    prefetch.reset(100.0)

    assert prefetch.jobs == 500


@pytest.mark.parametrize("setting", [-1, "much", 1.5, None])
def test_settings_that_are_no_number_are_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match="prefetch"):
        WorkerConfig(prefetch=setting)


@pytest.mark.anyio
async def test_a_claim_asks_for_the_free_slots_and_the_prefetch() -> None:
    _, ask = fetcher(Claims(), concurrency=10, prefetch=90)._next() or ([], None)

    assert ask is not None
    assert ask.claim.limit == 100


@pytest.mark.anyio
async def test_no_more_is_held_than_a_heartbeat_can_carry() -> None:
    heartbeats = NoHeartbeats()
    made = fetcher(Claims(), concurrency=10, prefetch=500, leases=heartbeats)
    heartbeats.capacity = 60
    assert made._free() == 60
    heartbeats.capacity = 3
    assert made._free() == 10, "never less than the worker runs at once"


@pytest.mark.anyio
async def test_a_heartbeat_that_is_due_goes_before_a_claim() -> None:
    heartbeats = NoHeartbeats()
    made = fetcher(Claims(), leases=heartbeats)
    heartbeats.due = True
    assert made._next() is None
    made._outbox.waiting.append(Completed((one := grant()).id, one.token))
    outcomes, ask = made._next() or ([], None)
    assert (len(outcomes), ask) == (1, None), "outcomes do not wait"


@pytest.mark.anyio
async def test_a_second_exchange_goes_out_only_with_a_fair_share() -> None:
    made = fetcher(Claims(), concurrency=10, prefetch=20)
    ended = [Completed(one.id, one.token) for one in (grant() for _ in range(10))]
    made._in_flight.append(made._ask())
    for outcome in ended[:9]:
        made._outbox.waiting.append(outcome)
    assert made._next() is None
    made._outbox.waiting.append(ended[9])
    outcomes, _ = made._next() or ([], None)
    assert len(outcomes) == 10


@pytest.mark.anyio
@pytest.mark.parametrize("news", ["settled", "settled in a drain", "swept in a drain"])
async def test_a_claim_that_left_before_the_news_does_not_say_that_there_is_no_job(news: str) -> None:
    """What was settled or swept may have made a job due, a follow-up, a retry or a parent that waited, after the claim
    had found nothing. A worker then slept until its poll, and a drain ended."""
    go = asyncio.Event()

    class Slow(Claims):
        async def ado(self, request: Request[Any]) -> Exchanged:
            assert isinstance(request, Exchange)
            if not request.outcomes:
                await go.wait()
            settled = [Settled(one.job_id, one.token, "queued") for one in request.outcomes]
            return Exchanged({(one.job_id, one.token): one for one in settled}, [])

    made = fetcher(Slow(), drain="drain" in news)
    looking = asyncio.create_task(made._exchange([], made._ask()))
    await asyncio.sleep(0)
    if news == "swept in a drain":
        made._flow._done()
    else:
        failed = grant()
        await made._exchange([Failed(failed.id, failed.token, "not yet")], None)
    go.set()
    await looking
    assert not made._groups.is_empty

    await made._exchange([], made._ask())
    assert made._groups.is_empty


class SlowHeartbeats:
    """A real store whose heartbeats take as long as on a starved machine: 10 ms for each job held."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def do(self, request: Any) -> Any:
        if isinstance(request, Heartbeat):
            self.most = max(self.most, len(request.holds))
            time.sleep(0.01 * len(request.holds))
        return self._store.do(request)


@pytest.mark.anyio
async def test_slow_heartbeats_under_a_short_lease_lose_no_job(bed: Bed) -> None:
    """B16: a worker that holds more than its heartbeats can carry loses healthy jobs."""
    bed.queue(QueuePolicy(lease_seconds=6.0, max_attempts=1, backoff=Backoff(shape="none")))

    async def work() -> None:
        await asyncio.sleep(0.005)

    kind = bed.handle(work)
    jobs = [NewJob(id=new_job_id(), kind=kind) for _ in range(1500)]
    bed.enqueue_many(jobs)
    store = SlowHeartbeats(bed.store)
    bed.store = store
    async with bed.working(concurrency=5, prefetch=1000) as worker:
        await until(lambda: worker.stats().completed == 1500)

    assert worker.stats().lost == 0
