"""A cancelled await, at whatever point, leaves the store as usable as it was (B1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tenure.model.ids import WorkerId
from tenure.store.contract import Cancel, Claim, Enqueue, Exchange, Heartbeat, Reap, Request, Settle, Start, Wake
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListJobs
from tests.conformance.acts import new_job

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

ROUNDS = 60
AT_ONCE = 20
KEPT = 2
ASKING: dict[str, Callable[[], Request[object]]] = {
    "enqueue": lambda: Enqueue([new_job()]),
    "exchange": lambda: Exchange((), Claim(WorkerId("w"), ["default"], 5)),
    "settle": lambda: Settle([]),
    "heartbeat": lambda: Heartbeat([]),
    "start": lambda: Start([]),
    "wake": lambda: Wake([]),
    "cancel": lambda: Cancel([], actor="me", reason="test"),
    "reap": Reap,
    "list": ListJobs,
}


@pytest.mark.parametrize("name", ASKING)
async def test_cancelled_requests_hold_nothing(url: str, name: str) -> None:
    store = PostgresStore(url, pool_size=2)
    try:
        for turn in range(ROUNDS if name == "enqueue" else 5):
            tasks = [asyncio.ensure_future(store.ado(ASKING[name]())) for _ in range(AT_ONCE)]
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            for task in tasks[KEPT:]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        await asyncio.wait_for(store.ado(ASKING[name]()), 10)
        await asyncio.wait_for(store.ado(Enqueue([new_job()])), 10)
    finally:
        await store.aclose()
