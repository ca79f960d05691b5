"""A pool of threads for sync handlers. Its threads do not keep the process alive: a handler that never returns must not
keep a worker from ending, which `concurrent.futures.ThreadPoolExecutor` would do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context as ContextVars
from queue import SimpleQueue

from tenure.model.outcome import Outcome
from tenure.worker.execution import Execution
from tenure.worker.outcomes import outcome_of


class ThreadCall:
    """One handler in a thread. It cannot be stopped from outside, only abandoned."""

    __slots__ = ("done", "execution", "has_returned", "is_abandoned")

    def __init__(self, execution: Execution, done: asyncio.Future[Outcome | None]) -> None:
        self.execution = execution
        self.done = done
        self.has_returned = False
        self.is_abandoned = False

    def cancel(self) -> None:
        """Its context was told to stop; more cannot be done."""


class Threads:
    """Starts threads as they are needed, up to its limit. Used from the event loop's thread."""

    def __init__(self, limit: int, run_one: Callable[[Execution], Outcome | None]) -> None:
        self._limit = limit
        self._run_one = run_one
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._returning = threading.Lock()
        self._threads = 0
        """Threads that take calls; abandoned ones do not count."""
        self._busy = 0

    async def run(self, execution: Execution) -> Outcome | None:
        """Run the handler in a thread and wait for its outcome. Raises RuntimeError if no thread can be started."""
        if self._busy >= self._threads and self._threads < self._limit:
            name = f"tenure-handler-{self._threads + 1}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._threads += 1
        call = execution.body = ThreadCall(execution, self._loop.create_future())
        self._busy += 1
        self._queue.put(call)
        try:
            return await call.done
        finally:
            execution.body = None
            self._busy -= 1

    def abandon(self, call: ThreadCall, outcome: Outcome | None) -> bool:
        """End the call without its handler, whose thread is replaced. False if the handler has just returned."""
        with self._returning:
            if call.has_returned:
                return False
            call.is_abandoned = True
        self._threads -= 1
        _set_unless_done(call.done, outcome)
        return True

    def close(self) -> None:
        """End idle threads. Busy ones end when their handler returns, or with the process."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            # A fresh set of context variables each time: nothing that a handler sets may reach the next one.
            try:
                outcome = ContextVars().run(self._run_one, call.execution)
            except BaseException as exc:  # noqa: BLE001 - a thread that ended here would take its slot along
                outcome = outcome_of(call.execution.grant, exc)
            with self._returning:
                call.has_returned = True
            if call.is_abandoned:
                return  # another thread has its place
            try:
                self._loop.call_soon_threadsafe(_set_unless_done, call.done, outcome)
            except RuntimeError:  # the loop has closed: the worker has stopped and released the job
                return


def _set_unless_done(done: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    if not done.done():
        done.set_result(outcome)
