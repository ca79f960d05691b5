"""Reads: connections of their own, so that a look at the queue never waits for a write, nor a write for a look.

Reads are short: a read transaction that stays open keeps the WAL from being reused. So each request is one transaction,
all its rows are fetched before it ends, and lists have limits.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tenure.errors import TooWide
from tenure.model.clock import Clock
from tenure.store.browsing import look_seconds, within_look
from tenure.store.sqlite.connection import WatchedFile, open_reader
from tenure.store.sqlite.errors import is_broken, translate
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Act, Transaction

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MAX_READERS: Final = 4
LOOK_STEPS: Final = 50_000
"""Steps of SQLite's machine, about a millisecond, between looks at the clocks of a bounded read. Each look needs
Python's lock, and a read that needs it often waits long for it where many threads do."""
LOOK_PATIENCE: Final = 5.0
"""A bounded read may take so many times its bound by the wall clock."""

_SQL: Final = load("connection")


class Readers:
    """A few read connections, opened when needed. Thread-safe."""

    def __init__(self, watched: WatchedFile) -> None:
        self.transactions = 0
        self.statements = 0
        self._watched = watched
        self._path = watched.path
        self._reset()

    def _reset(self) -> None:
        self._free: list[tuple[sqlite3.Connection, tuple[int, int]]] = []
        self._mutex = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_READERS)
        self._pool: ThreadPoolExecutor | None = None

    def call(self, act: Act, request: Any, clock: Clock) -> Any:
        """Carry out a read."""
        seconds = look_seconds()
        with self._slots:
            try:
                return self._call(act, request, clock, seconds)
            except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
                if seconds is not None and getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                    raise TooWide(seconds) from exc
                raise translate(exc, self._path) from exc

    async def acall(self, act: Act, request: Any, clock: Clock) -> Any:
        """The same in a thread."""
        import asyncio  # late: a command that is over in a moment would wait for it

        with self._mutex:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(MAX_READERS, thread_name_prefix="tenure-sqlite-reader")
        return await asyncio.get_running_loop().run_in_executor(self._pool, within_look(self.call), act, request, clock)

    def _call(self, act: Act, request: Any, clock: Clock, seconds: float | None = None) -> Any:
        connection, identity = self._take()
        transaction = Transaction(connection, clock.now_us())
        if seconds is not None:
            connection.set_progress_handler(_beyond(seconds), LOOK_STEPS)
        try:
            connection.execute(_SQL["begin_read"])
            try:
                return act(transaction, request)
            finally:
                if seconds is not None:
                    connection.set_progress_handler(None, 0)
                if connection.in_transaction:
                    connection.execute(_SQL["rollback"])
        except BaseException as exc:
            if is_broken(exc) or not isinstance(exc, Exception):
                connection.close()
                identity = None
            raise
        finally:
            with self._mutex:
                self.transactions += 1
                self.statements += transaction.statements
                if identity is not None:
                    self._free.append((connection, identity))

    def _take(self) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
        """A connection to the file that stands under the name now."""
        seen = self._watched.now()
        stale: list[sqlite3.Connection] = []
        found = None
        with self._mutex:
            while self._free and found is None:
                connection, identity = self._free.pop()
                if identity == seen:
                    found = connection
                else:
                    stale.append(connection)
        for connection in stale:
            connection.close()
        if found is None:
            seen = self._watched.admit()
            found = open_reader(self._path)
        return found, seen

    def pause(self, seconds: float) -> int:
        """Wait until no read runs and keep it so until `go_on`, for a fork. How many slots were taken."""
        return sum(self._slots.acquire(timeout=seconds) for _ in range(MAX_READERS))

    def go_on(self, taken: int) -> None:
        """The end of `pause`."""
        for _ in range(taken):
            self._slots.release()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: forget what belongs to the parent; the connections are handed back unclosed."""
        left = [connection for connection, _ in self._free]
        self._reset()
        return left

    def close(self) -> None:
        """Let reads finish, then close."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        taken = self.pause(60.0)
        with self._mutex:
            free, self._free = self._free, []
        for connection, _ in free:
            connection.close()
        self.go_on(taken)


def _beyond(seconds: float) -> Callable[[], bool]:
    """Whether a read that begins now in this thread has gone beyond its bound.

    The bound is of the thread's own processor time: what a read waits for other threads, and for a busy machine, says
    nothing of how wide it is. A disk that keeps it waiting counts too, in the end.
    """
    worked, until = time.thread_time() + seconds, time.monotonic() + LOOK_PATIENCE * seconds
    return lambda: time.thread_time() > worked or time.monotonic() > until
