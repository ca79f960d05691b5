"""The one way in which a test waits for what another thread or process does: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 120.0
"""Seconds; only a test that fails waits as long. Where a machine is far too busy, a process starts in half a minute."""


def wait_until(holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Ask until the answer is true, and give it; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds:g} s"
        time.sleep(0.01)
    return found


async def until(holds: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """The same on an event loop, which goes on meanwhile. What is asked may be a coroutine."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds:g} s"
        await asyncio.sleep(0.002)
