"""Threads for sync handlers.

Handing one job to a thread and back costs more than a small job itself. Jobs whose kind has shown to be quick are
therefore handed over many at a time: one thread does the chunk, and one wake-up of the loop brings all the ends home.
A kind that is slow, or not known yet, goes alone, so it never waits behind a neighbour.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context as ContextVars
from queue import SimpleQueue
from time import perf_counter

from tenure.model.outcome import Outcome
from tenure.worker.ticket import Ticket

CHUNK_SECONDS = 0.004
"""How long a chunk is meant to take."""
CHUNK_JOBS = 512
OVERDUE_SECONDS = 0.05
"""A chunk that takes this long was misjudged: what it has not begun is taken back."""


class Chunk:
    """Jobs for one thread, done in order. The thread takes from the left; the loop may take back from the right."""

    __slots__ = ("done", "results", "tickets")

    def __init__(self, tickets: Iterable[Ticket], done: asyncio.Future[None]) -> None:
        self.tickets = deque(tickets)
        self.results: deque[tuple[Ticket, Outcome | None]] = deque()
        self.done = done


class Threads:
    """A pool that grows to its limit as it is needed. Its threads do not keep the process alive."""

    def __init__(self, limit: int, run_one: Callable[[Ticket], Outcome | None]) -> None:
        self._limit = limit
        self._run_one = run_one
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Chunk | None] = SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._seconds_per_job: dict[str, float] = {}

    def chunk_size(self, kind: str) -> int:
        """How many jobs of a kind may go to a thread together."""
        seconds = self._seconds_per_job.get(kind)
        return 1 if seconds is None else max(1, min(CHUNK_JOBS, int(CHUNK_SECONDS / max(seconds, 1e-6))))

    def start(self, tickets: list[Ticket]) -> Chunk:
        """Begin a chunk. Its `done` is set once the thread has nothing of it left."""
        chunk = Chunk(tickets, self._loop.create_future())
        self._busy += 1
        if self._busy > self._threads and self._threads < self._limit:
            self._threads += 1
            threading.Thread(target=self._work, name=f"tenure-handler-{self._threads}", daemon=True).start()
        self._queue.put(chunk)
        return chunk

    def learn(self, kind: str, seconds: float) -> None:
        """How long a job of a kind took. Slowness is believed at once, quickness only over time."""
        known = self._seconds_per_job.get(kind, seconds)
        self._seconds_per_job[kind] = seconds if seconds > 4 * known else known + 0.3 * (seconds - known)

    def close(self) -> None:
        """Let idle threads go. Busy ones go when they are done, or with the process."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _work(self) -> None:
        while (chunk := self._queue.get()) is not None:
            take, give = chunk.tickets.popleft, chunk.results.append
            while True:
                try:
                    ticket = take()
                except IndexError:
                    break
                began = perf_counter()
                # A fresh set of context variables each time: nothing a handler sets may reach the next one.
                outcome = ContextVars().run(self._run_one, ticket)
                ticket.duration = perf_counter() - began
                give((ticket, outcome))
            try:
                self._loop.call_soon_threadsafe(self._finished, chunk)
            except RuntimeError:  # the worker was stopped meanwhile and has given the job back
                return

    def _finished(self, chunk: Chunk) -> None:
        self._busy -= 1
        if not chunk.done.done():
            chunk.done.set_result(None)
