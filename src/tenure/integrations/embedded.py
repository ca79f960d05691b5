"""A worker inside another program's event loop, such as a web server's.

Async handlers share the loop with the server, and with what the server opened on it; sync ones run in threads, and
heartbeats have a thread of their own. Signals stay with the server: when it ends, the worker is told to stop, finishes
or gives back what it holds, and only then the server's own end goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.worker import LogTo, Queues, WorkerSettings
    from tenure.worker.worker import Worker

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0

_log = logging.getLogger("tenure.integrations")


@asynccontextmanager
async def embedded_worker(
    app: App,
    queues: Queues | None = None,
    *,
    concurrency: int = 10,
    emit: LogTo | None = None,
    **settings: Unpack[WorkerSettings],
) -> AsyncIterator[None]:
    """Run a worker on this event loop for as long as the block lasts. It takes jobs when the block begins.

    Takes what `App.worker` takes. A worker that ends by an error later on is logged and started again.

    Raises: ConfigError, HandlerError, StoreUnavailable and others, if it cannot start.
    """
    settings.setdefault("handle_signals", False)

    def make() -> Worker:
        return app.worker(queues, concurrency=concurrency, emit=emit, **settings)

    running = _Running(make, await asyncio.to_thread(make))
    task = asyncio.create_task(running.run(), name="tenure-embedded-worker")
    try:
        await _until_ready(running, task)
        yield
    finally:
        running.stop()
        await task


async def _until_ready(running: _Running, task: asyncio.Task[None]) -> None:
    """Return once the worker takes jobs. Raises what kept it from starting."""
    ready = asyncio.create_task(running.worker.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if task.done():
        task.result()


class _Running:
    """Keeps a worker running until it is stopped."""

    def __init__(self, make: Callable[[], Worker], first: Worker) -> None:
        self._make = make
        self._first = first
        self._stopping = asyncio.Event()
        self.worker = first

    def stop(self) -> None:
        self._stopping.set()
        self.worker.stop()

    async def run(self) -> None:
        """Run worker after worker. Raises what kept the first one from starting; a later one is tried again."""
        pause, is_over = FIRST_PAUSE_SECONDS, False
        while not self._stopping.is_set():
            try:
                if is_over:
                    self.worker = await asyncio.to_thread(self._make)
                    if self._stopping.is_set():
                        return
                await self.worker.run()
                return
            except Exception:
                if not self._first.ready.is_set():
                    raise
                if self._stopping.is_set():
                    _log.exception("The embedded worker ended by an error while it was told to stop.")
                    return
                _log.exception("The embedded worker ended by an error; another one starts in %.0f s.", pause)
            is_over = True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
