"""When a worker offers to be handed a job, and how it makes sure that none is left with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tenure.errors import GateClosed, StoreUnavailable
from tenure.model.job import Grant
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Exchange, Exchanged, Request
from tenure.worker.fetch import FIRST, SHARE, Exchanger
from tests.waiting import until
from tests.worker.exchangers import Fleet, exchanger, grant, settle_down

pytestmark = pytest.mark.anyio


class Taking(Fleet):
    """A store that takes offers in, and answers the next claim as it is told to."""

    def __init__(self, waiting: int = 1, *, takes_in: bool = True) -> None:
        super().__init__(waiting)
        self.asked: list[Exchange] = []
        self.takes_in = takes_in
        self.next: Exchanged | Exception | None = None

    @property
    def claimed(self) -> list[Claim]:
        return [exchange.claim for exchange in self.asked if exchange.claim is not None]

    async def ado(self, request: Request[Any], *, may_block: bool = False) -> Exchanged:
        assert isinstance(request, Exchange)
        self.asked.append(request)
        self.claims += 1
        await asyncio.sleep(0)
        told, self.next = self.next, None
        if isinstance(told, Exception):
            raise told
        is_offered = self.takes_in and request.claim is not None and request.claim.offers
        return told or Exchanged({}, [], waiting=self.waiting, is_offered=is_offered)


@asynccontextmanager
async def asleep(fleet: Taking, **settings: Any) -> AsyncIterator[tuple[Exchanger, list[Grant]]]:
    """A worker that has the loop for itself and has looked twice: to be registered, and as one that waits."""
    taken: list[Grant] = []
    owns_loop = settings.pop("owns_loop", True)
    hears = settings.pop("hears", True)
    made = exchanger(
        fleet,
        take=lambda grants, _sent: taken.extend(grants),
        **{"concurrency": 10, "poll_seconds": 1.0, **settings},
    )
    made.owns_loop, made.hears = owns_loop, lambda: hears
    running = asyncio.create_task(made.run())
    await settle_down(fleet)
    made._look()
    await settle_down(fleet)
    try:
        yield made, taken
    finally:
        made.finish()
        async with asyncio.timeout(10):
            await running


async def test_a_worker_that_is_to_sleep_offers_and_says_so_with_its_next_claim() -> None:
    fleet = Taking()
    async with asleep(fleet) as (made, _):
        assert fleet.claimed[-1].offers
        made._look()
        await settle_down(fleet)

        assert (fleet.claimed[-1].offers, fleet.claimed[-1].offered) == (True, True)


@pytest.mark.parametrize(
    ("waiting", "settings"),
    [
        pytest.param(FIRST + 1, {}, id="many wait"),
        pytest.param(1, {"owns_loop": False}, id="others run on the loop"),
        pytest.param(1, {"hears": False}, id="nothing is heard"),
        pytest.param(1, {"poll_seconds": 5.0}, id="a poll is far off"),
        pytest.param(1, {"queues": ("default", "other")}, id="two queues"),
        pytest.param(1, {"queue_concurrency": {"default": 2}}, id="a limit"),
        pytest.param(1, {"kinds": ("work",)}, id="kinds"),
        pytest.param(1, {"affinity": ("a",)}, id="affinity"),
    ],
)
async def test_nothing_is_offered_where_a_claim_would_do_more_or_a_lost_word_cost_more(
    waiting: int, settings: dict[str, Any]
) -> None:
    fleet = Taking(waiting)
    async with asleep(fleet, **settings):
        assert not fleet.claimed[-1].offers


async def test_what_was_handed_over_unheard_is_taken_from_the_next_claim() -> None:
    fleet, job = Taking(), grant()
    async with asleep(fleet) as (made, taken):
        fleet.next = Exchanged({}, [job], age_seconds=0.5)
        made._look()
        await until(lambda: taken == [job])
        made.count_end("default")


@pytest.mark.parametrize("takes_in", [True, False])
async def test_the_exchange_that_settles_the_last_job_offers_where_that_counts(takes_in: bool) -> None:
    fleet, job = Taking(takes_in=takes_in), grant()
    async with asleep(fleet) as (made, taken):
        fleet.next = Exchanged({}, [job])
        made._look()
        await until(lambda: taken == [job])
        fleet.asked.clear()
        made.count_end("default")
        made._outbox.add(Completed(job.id, job.token))
        made.poke()
        await settle_down(fleet)

        [settling] = fleet.asked
        assert len(settling.outcomes) == 1
        claim = settling.claim
        assert (claim.limit, claim.offers, claim.offered) == (0, True, False) if claim else not takes_in


async def test_a_worker_that_never_rests_for_a_poll_learns_whether_its_offer_counts() -> None:
    fleet, jobs = Taking(), [grant(), grant()]
    fleet.next = Exchanged({}, jobs[:1])
    made = exchanger(fleet, take=lambda _grants, _sent: None, concurrency=10, poll_seconds=1.0)
    made.owns_loop = True
    running = asyncio.create_task(made.run())
    await settle_down(fleet)
    made.count_end("default")
    made._outbox.add(Completed(jobs[0].id, jobs[0].token))
    made.poke()
    await settle_down(fleet)
    made.finish()
    await running

    assert any(claim.offers for claim in fleet.claimed)


async def test_a_worker_that_fetches_much_ahead_asks_for_little_when_it_offers() -> None:
    fleet = Taking()
    async with asleep(fleet, concurrency=1000) as (made, _):
        assert fleet.claimed[-1].offers
        assert fleet.claimed[-1].limit <= SHARE
        made._look()
        await settle_down(fleet)
        assert fleet.claimed[-1].offered


async def test_nothing_flies_beside_a_claim_that_offers() -> None:
    fleet = Taking()
    async with asleep(fleet, concurrency=100) as (made, _):
        made._offer.stands, made._in_flight = True, 1
        made._lanes.wake()

        assert made._next() is None
        made._in_flight = 0


async def test_a_worker_that_stops_asks_once_more_and_takes_nothing_new() -> None:
    fleet = Taking()
    async with asleep(fleet) as (made, _):
        before = fleet.claims
        made.finish()
        await settle_down(fleet)

        assert fleet.claims == before + 1
        last = fleet.claimed[-1]
        assert (last.limit, last.offers, last.offered) == (0, False, True)


async def test_a_worker_that_stops_takes_what_was_handed_over() -> None:
    fleet, job = Taking(), grant()
    async with asleep(fleet) as (made, taken):
        fleet.next = Exchanged({}, [job], age_seconds=0.1)
        made.finish()
        await until(lambda: taken == [job])


@pytest.mark.parametrize("trouble", [StoreUnavailable("away"), GateClosed("worker", "claim")])
async def test_a_worker_that_stops_does_not_ask_for_ever(trouble: Exception) -> None:
    fleet = Taking()
    async with asleep(fleet) as (made, _):
        before = fleet.claims
        fleet.next = trouble
        made.finish()
        await settle_down(fleet)

        assert fleet.claims == before + 1


async def test_an_answer_that_is_lost_is_followed_by_a_claim_that_names_what_is_held() -> None:
    fleet = Taking()
    async with asleep(fleet) as (made, _):
        fleet.next = StoreUnavailable("cut")
        made._look()
        await until(lambda: any(claim.held is not None for claim in fleet.claimed))

        (again,) = (claim for claim in fleet.claimed if claim.held is not None)
        assert (again.held, again.offers, again.offered) == ([], False, False)


async def test_a_claim_that_a_gate_refuses_leaves_the_offer_as_it_was() -> None:
    fleet = Taking()
    async with asleep(fleet) as (made, _):
        fleet.next = GateClosed("worker", "claim")
        made._look()
        await settle_down(fleet)
        made._no_claim_until = 0.0
        made._look()
        await settle_down(fleet)

        assert fleet.claimed[-1].offered


async def test_a_lease_is_reckoned_from_the_grant_that_is_handed_out_again() -> None:
    since: list[float] = []
    fleet = Taking()
    made = exchanger(fleet, take=lambda _grants, sent: since.append(sent), concurrency=10)
    running = asyncio.create_task(made.run())
    await settle_down(fleet)
    for age in (0.0, 5.0):
        fleet.next = replace(Exchanged({}, [grant()]), age_seconds=age)
        made._look()
        await until(lambda: len(since) == (2 if age else 1))  # noqa: B023 - asked within this turn only
    made.finish()
    made.give_up()
    async with asyncio.timeout(10):
        await running

    assert since[1] - since[0] < -4.0
