"""Datagrams read by the event loop that waits for them: the shortest way from one process to another's handler.

The thread that listens (see `wake`) would have to wake the loop in turn, at the price of two changes of threads. So a
loop reads the socket itself while all subscribers are on it; with two loops, or a subscriber without one, the thread
reads for all of them. Both may read at once while they take turns: a datagram reaches one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from tenure.store.sqlite.sockets import LONGEST_MESSAGE


class LoopReader:
    """Reads a socket on a loop's own thread and hands over what came. Owns its copy of the socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        shared: socket.socket,
        take: Callable[[list[bytes]], None],
        least_seconds: float,
    ) -> None:
        self.loop = loop
        self._least_seconds = least_seconds
        self._socket = shared.dup()
        self._take = take
        self._lock = threading.Lock()
        self._is_reading = False
        self._is_over = False
        self._kept: list[bytes] = []
        self._took_at = -1.0

    @property
    def is_reading(self) -> bool:
        """Whether the loop has begun to read, and may still do so."""
        return self._is_reading and not self.loop.is_closed()

    def start(self) -> None:
        """Begin, on the loop's thread. Not every kind of loop can."""
        with self._lock, contextlib.suppress(NotImplementedError):
            if not self._is_over:
                self.loop.add_reader(self._socket, self._read)
                self._is_reading = True

    def stop(self) -> None:
        """End, on any thread. Nothing is handed over any more once the loop had a turn."""
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if is_here or self.loop.is_closed():
            self._end()
            return
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # closed meanwhile
            self._end()

    def forget(self) -> None:
        """In a forked child: the loop's selector is shared with the parent, so it is left alone."""
        self._is_over, self._is_reading = True, False
        self._socket.close()

    def _end(self) -> None:
        with self._lock:
            self._is_over, self._is_reading = True, False
            self._kept.clear()
            if self._socket.fileno() >= 0:
                if not self.loop.is_closed():
                    with contextlib.suppress(NotImplementedError):
                        self.loop.remove_reader(self._socket)
                self._socket.close()

    def _read(self) -> None:
        try:
            message = self._socket.recv(LONGEST_MESSAGE)  # one: the loop calls again if there are more
        except (BlockingIOError, InterruptedError):  # the thread was faster
            return
        self._kept.append(message)
        if len(self._kept) > 1:
            return
        early = self._took_at + self._least_seconds - self.loop.time()
        if early > 0:  # in a flood, what comes meanwhile shares one wake-up
            self.loop.call_later(early, self._hand_over)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        messages, self._kept = self._kept, []
        if messages:
            self._took_at = self.loop.time()
            self._take(messages)
