"""A claim whose await is cancelled: the store carries it out, and what it takes goes back at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tenure
from tenure.store.contract import Claim

WAIT_SECONDS = 30.0


def test_a_cancelled_claim_gives_back_what_it_takes(app: tenure.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was kept until it ran out, and an attempt was spent. Staged: the store has granted the job, and the
    await is cancelled before the answer comes."""
    job_id = app.enqueue("k").id
    carry_out = app.store.ado

    async def claims() -> None:
        granted, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: Any) -> Any:
            answer = await carry_out(request)
            if isinstance(request, Claim):
                granted.set()
                await go_on.wait()
            return answer

        monkeypatch.setattr(app.store, "ado", slow)
        claiming = asyncio.create_task(app.aio.claim(kinds=["k"], lease_seconds=3000))
        await granted.wait()
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert (await app.aio.get(job_id)).state == "running"
        go_on.set()
        async with asyncio.timeout(WAIT_SECONDS):
            while (await app.aio.get(job_id)).state != "queued":  # noqa: ASYNC110  it has no event to wait for
                await asyncio.sleep(0.01)

    asyncio.run(claims())

    job = app.get(job_id)
    assert (job.state, job.attempt, job.crashes) == ("queued", 0, 0)
    assert app.attempts(job_id) == []
