"""One wheel for all time limits: a heap and a single timer, instead of a timeout object per job."""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heappush
from itertools import count

from tenure.handler.signals import Interrupt
from tenure.worker.ticket import Ticket

_SPARE = 64


class Deadlines:
    """Stops tickets whose handlers run longer than they may. Lives on the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Ticket]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._compact_at = _SPARE

    def add(self, ticket: Ticket, seconds: float) -> None:
        """Stop the ticket in `seconds`, unless it has ended by then."""
        if len(self._heap) >= self._compact_at:
            self._drop_ended()
        at = self._loop.time() + seconds
        heappush(self._heap, (at, next(self._order), ticket))
        if self._heap[0][2] is ticket:
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
            ticket = heappop(self._heap)[2]
            ticket.stop(Interrupt.TIMEOUT)
        self._timer = None
        if self._heap:
            self._arm(self._heap[0][0])

    def _drop_ended(self) -> None:
        """Jobs that ended long before their limit must not pile up here."""
        self._heap = [entry for entry in self._heap if not entry[2].ended]
        heapify(self._heap)
        self._compact_at = 2 * len(self._heap) + _SPARE
