"""A fetcher by itself, with a store that tests make up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tenure.model.ids import Token, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.store.contract import Claim, Exchange, Exchanged, Request, Store
from tenure.worker.claims import QueueGroups
from tenure.worker.config import WorkerConfig
from tenure.worker.execution import Held
from tenure.worker.fetcher import Fetcher
from tenure.worker.leases import Leases
from tenure.worker.log import NoLog, WorkerLog
from tenure.worker.settle import Outbox


class Claims:
    """A store that grants `jobs` jobs to the next claim and keeps all claims."""

    url = "postgresql://nowhere"

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.jobs = 0

    async def ado(self, request: Request[Any]) -> Exchanged:
        assert isinstance(request, Exchange)
        assert request.claim is not None
        self.claims.append(request.claim)
        await asyncio.sleep(0)
        jobs, self.jobs = self.jobs, 0
        return Exchanged({}, [grant() for _ in range(jobs)])


def grant(suspicion: int = 0) -> Grant:
    made = Grant(new_job_id(), "default", "work", Token(1), 1, 3, "{}", 0, WorkerId("w"), 0, 0, True, None)
    made.suspicion = suspicion
    return made


def no_grants(grants: list[Grant], sent: float) -> None:
    raise AssertionError(f"{len(grants)} grants at {sent}")


class NoHeartbeats:
    """Leases of which a test sets what heartbeats can carry."""

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.due = False

    def send_soon(self) -> None: ...

    def is_due(self) -> bool:
        return self.due


def fetcher(
    store: Claims,
    *,
    take: Callable[[list[Grant], float], None] = no_grants,
    leases: NoHeartbeats | None = None,
    **settings: Any,
) -> Fetcher:
    held: Held = {}
    log = WorkerLog(WorkerId("w"), NoLog())
    config = WorkerConfig(**{"poll_seconds": 3600.0, **settings})
    outbox = Outbox(held, log, lambda: None)
    groups = QueueGroups(WorkerId("w"), config, lambda _: ("work",))
    heartbeats = cast(Leases, leases or NoHeartbeats())
    return Fetcher(cast(Store, store), config, held, outbox, log, take, heartbeats, groups)
