"""For libraries that enqueue by coroutines: one event loop kept over single calls, with the moments taken inside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

Send = Callable[[int], Awaitable[object]]
"""Enqueue job `i` through a door that is open."""

Door = Callable[[str], AbstractAsyncContextManager[Send]]
"""Open a connection to a store and give a `Send`."""


def send_each(door: Door, url: str, jobs: int) -> float:
    """Send the jobs one after another; gives the seconds of the calls."""

    async def run() -> float:
        async with door(url) as send:
            begun = time.monotonic_ns()
            for i in range(jobs):
                await send(i)
            return (time.monotonic_ns() - begun) / 1e9

    return asyncio.run(run())


@contextmanager
def sender(door: Door, url: str) -> Iterator[Callable[[int], tuple[int, int]]]:
    """Keep the door open and send single jobs."""
    with asyncio.Runner() as runner:
        opening = door(url)
        send = runner.run(_open(opening))

        async def once(i: int) -> tuple[int, int]:
            called = time.monotonic_ns()
            await send(i)
            return called, time.monotonic_ns()

        yield lambda i: runner.run(once(i))
        runner.run(_close(opening))


async def _open(opening: AbstractAsyncContextManager[Send]) -> Send:
    return await opening.__aenter__()


async def _close(opening: AbstractAsyncContextManager[Send]) -> None:
    await opening.__aexit__(None, None, None)
