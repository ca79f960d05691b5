"""A worker's exchanges by themselves, with a store that tests make up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from tenure.model.ids import Token, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Beat
from tenure.store.contract import Exchange, Exchanged, Request, Store
from tenure.worker.ahead import Ahead
from tenure.worker.config import WorkerConfig
from tenure.worker.fetch import Exchanger
from tenure.worker.lease import Leases
from tenure.worker.report import Reporter, Silence
from tenure.worker.settle import Outbox
from tenure.worker.ticket import Held


class Fleet:
    """A store without jobs, where so many workers wait."""

    url = "postgresql://nowhere"

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.claims = 0
        self.jobs = 0

    async def ado(self, request: Request[Any], *, may_block: bool = False) -> Exchanged:
        assert isinstance(request, Exchange)
        assert request.claim is not None
        self.claims += 1
        await asyncio.sleep(0)
        jobs, self.jobs = self.jobs, 0
        return Exchanged({}, [grant() for _ in range(jobs)], waiting=0 if jobs else self.waiting)


def grant() -> Grant:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    return Grant(new_job_id(), "default", "work", Token(1), 1, 3, "{}", moment, WorkerId("w"), 0, 0, True, None)


def no_grants(grants: list[Grant], sent: float) -> None:
    raise AssertionError(f"{len(grants)} grants at {sent}")


class NoBeats:
    """Leases without anything to do."""

    def kick(self) -> None: ...

    def is_due_within(self, seconds: float) -> bool:
        return False

    def carried(self, beat: Beat, sent: float) -> None:
        raise AssertionError("no heartbeat was asked for")


def exchanger(
    fleet: Fleet,
    *,
    take: Callable[[list[Grant], float], None] = no_grants,
    leases: NoBeats | None = None,
    **settings: Any,
) -> Exchanger:
    held: Held = {}
    report = Reporter(WorkerId("w"), Silence())
    config = WorkerConfig(**{"poll_seconds": 3600.0, **settings})
    outbox, pulse = Outbox(held, report, lambda: None), cast(Leases, leases or NoBeats())
    made = Exchanger(cast(Store, fleet), WorkerId("w"), config, held, outbox, report, take, pulse)
    made.hears = lambda: True
    return made


def fetch_ahead(made: Exchanger, jobs: int) -> None:
    """So many, until long after the test: on a busy machine the next look at the rate may fall into it."""
    made.ahead = Ahead(jobs, asyncio.get_running_loop().time() + 3600.0)
    made.ahead.jobs = jobs


async def settle_down(fleet: Fleet) -> None:
    """Until the worker sleeps: nothing in its loop is ready any more."""
    seen = -1
    while seen != fleet.claims:
        seen = fleet.claims
        for _ in range(20):
            await asyncio.sleep(0)
