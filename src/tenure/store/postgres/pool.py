"""A pool of links that threads and event loops share.

Bounded; the link used last is handed out first, so that idle ones can be let go. Whoever finds none free waits in line:
a thread on a lock, a task on a future of its own loop. After a fork the child starts with an empty pool and never
touches the sockets it inherited.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from tenure.errors import StoreBusy, StoreClosed
from tenure.store.postgres.link import Link

_disowned: list[Link] = []
"""Links inherited over a fork: kept, so that nothing closes them."""
_pid = os.getpid()
"""This process. Noted, because to ask the kernel twice a call can take longer than all the rest of the pool's work."""


class Pool:
    """Links for one URL."""

    def __init__(self, connect: Callable[[], Link], size: int, wait_seconds: float) -> None:
        self._connect = connect
        self._size = size
        self._wait_seconds = wait_seconds
        self._pid = _pid
        self._lock = threading.Lock()
        self._idle: deque[tuple[float, Link]] = deque()
        self._open_count = 0
        self._closed = False
        self._line: deque[tuple[threading.Event, Callable[[], None]]] = deque()
        self._ready: dict[threading.Event, Link | None] = {}

    def take(self) -> Link:
        """A link of one's own; waits for one if all are taken."""
        self._check_fork()
        idle = self._take_idle()
        if idle is not None:
            return idle
        handed = self._reserve(lambda: None)
        if isinstance(handed, threading.Event):
            handed.wait(self._wait_seconds)
            return self._claim_turn(handed)
        return handed if isinstance(handed, Link) else self._open()

    async def atake(self) -> Link:
        """The same for a task."""
        self._check_fork()
        idle = self._take_idle()
        if idle is not None:
            return idle
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()

        def ring() -> None:
            loop.call_soon_threadsafe(_ring, turn)

        handed = self._reserve(ring)
        if isinstance(handed, threading.Event):
            try:
                await asyncio.wait_for(turn, self._wait_seconds)
            except TimeoutError:
                return self._claim_turn(handed)
            except BaseException:
                self._leave_line(handed)
                raise
            return self._claim_turn(handed)
        if isinstance(handed, Link):
            return handed
        opening = loop.run_in_executor(None, self._open)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._give_unused)
            raise

    def give(self, link: Link) -> None:
        """Hand a link back. A broken one is dropped and its place is free."""
        if link.pid != _pid:
            return
        usable = link.usable and not self._closed
        with self._lock:
            if usable:
                self._idle.append((time.monotonic(), link))
            else:
                self._open_count -= 1
            self._call_next()
        if not usable:
            link.close()

    def _give_unused(self, opening: asyncio.Future[Link]) -> None:
        """A link that was opened for a task which no longer wants it."""
        if not opening.cancelled() and opening.exception() is None:
            self.give(opening.result())

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._check_fork()
        with self._lock:
            self._closed = True
            idle, self._idle = list(self._idle), deque()
            self._open_count -= len(idle)
        for _, link in idle:
            link.close()

    def _check_fork(self) -> None:
        if self._pid != _pid:
            for _, link in self._idle:
                link.disown()
                _disowned.append(link)
            self.__init__(self._connect, self._size, self._wait_seconds)  # type: ignore[misc]

    def _take_idle(self) -> Link | None:
        with self._lock:
            return self._pop_idle()

    def _pop_idle(self) -> Link | None:
        """Under the lock: a link that nobody uses. Broken ones are dropped, and their places are free."""
        while self._idle:
            _, link = self._idle.pop()
            if link.usable:
                return link
            self._open_count -= 1
        return None

    def _reserve(self, ring: Callable[[], None]) -> Link | threading.Event | None:
        """An idle link, None for leave to open one, or a place in the line."""
        with self._lock:
            if self._closed:
                raise StoreClosed
            link = self._pop_idle()
            if link is not None:
                return link
            if self._open_count < self._size:
                self._open_count += 1
                return None
            turn = threading.Event()
            self._line.append((turn, ring))
            return turn

    def _call_next(self) -> None:
        """Under the lock: give the next in line a link, or leave to open one."""
        while self._line and (self._idle or self._open_count < self._size):
            turn, ring = self._line.popleft()
            if self._idle:
                self._ready[turn] = self._idle.pop()[1]
            else:
                self._open_count += 1
                self._ready[turn] = None
            turn.set()
            ring()

    def _claim_turn(self, turn: threading.Event) -> Link:
        with self._lock:
            if turn not in self._ready:
                self._line = deque(waiting for waiting in self._line if waiting[0] is not turn)
                raise self._crowded()
            link = self._ready.pop(turn)
        return link if link is not None else self._open()

    def _leave_line(self, turn: threading.Event) -> None:
        """A task that waits no longer: pass on what it may have been given."""
        with self._lock:
            self._line = deque(waiting for waiting in self._line if waiting[0] is not turn)
            link = self._ready.pop(turn, None) if turn in self._ready else None
            if link is not None:
                self._idle.append((time.monotonic(), link))
            elif turn.is_set():
                self._open_count -= 1
            self._call_next()

    def _open(self) -> Link:
        try:
            return self._connect()
        except BaseException:
            with self._lock:
                self._open_count -= 1
                self._call_next()
            raise

    def _crowded(self) -> StoreBusy:
        return StoreBusy(
            f"All {self._size} connections of this process were in use for {self._wait_seconds:g} s. Nothing was "
            f"changed. "
            "Repeat the call, or give the store a larger pool (`?tenure_pool=…` in the URL)."
        )


def _ring(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


def _after_fork() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_after_fork)
