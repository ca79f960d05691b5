"""All time limits in one heap with a single timer, instead of a timeout object per job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from tenure.handler.signals import Interrupt
from tenure.worker.execution import Execution

_SPARE = 64


class Deadlines:
    """Stops executions whose handlers run longer than they may. Lives on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interrupt: Callable[[Execution, Interrupt], object]) -> None:
        self._loop = loop
        self._interrupt = interrupt
        self._heap: list[tuple[float, int, Execution]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._compact_at = _SPARE

    def add(self, execution: Execution, seconds: float) -> None:
        """Stop the execution in `seconds`, unless it has ended by then."""
        if len(self._heap) >= self._compact_at:
            self._drop_ended()
        at = self._loop.time() + seconds
        heappush(self._heap, (at, next(self._order), execution))
        if self._heap[0][2] is execution:
            self._arm(at)

    def close(self) -> None:
        """Stop nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._heap.clear()

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].ended):
            execution = heappop(self._heap)[2]
            self._interrupt(execution, Interrupt.TIMEOUT)
        self._timer = None
        if self._heap:
            self._arm(self._heap[0][0])

    def _drop_ended(self) -> None:
        """Jobs that ended long before their limit must not pile up here."""
        self._heap = [entry for entry in self._heap if not entry[2].ended]
        heapify(self._heap)
        self._compact_at = 2 * len(self._heap) + _SPARE
