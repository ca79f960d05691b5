"""Connections to PostgreSQL that threads share, and threads in which async callers use them.

Bounded; the connection used last is handed out first. A connection is opened by the caller that needs it, so that a
server that is down or a login that is refused is reported at once and in the server's own words; psycopg_pool opens
connections in the background and would answer with a time-out. An async request runs in a thread of the pool's own:
whoever awaits it may be cancelled at any point, and the request ends by itself.

After a fork the child starts with no connections and no threads, and never touches the sockets that it inherited.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from tenure.errors import StoreBusy, StoreClosed
from tenure.store.postgres.errors import driver_errors

Connection = psycopg.Connection[tuple[Any, ...]]

_KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "tenure",
}
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_inherited: list[Connection] = []
"""Connections of the parent process: kept, so that nothing closes them."""


class Pool:
    """Connections for one URL. Thread-safe."""

    _executor: ThreadPoolExecutor | None

    def __init__(self, url: str, size: int, wait_seconds: float, prepare_threshold: int | None) -> None:
        self._url = url
        self._size = size
        self._wait_seconds = wait_seconds
        self._prepare_threshold = prepare_threshold
        self._idle: list[Connection] = []
        self._closed = False
        self._begin()
        _pools.add(self)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of one's own; waits for one if all are taken."""
        free = self._free
        if self._closed:
            raise StoreClosed
        if not free.acquire(timeout=self._wait_seconds):
            raise self._crowded()
        try:
            connection = self._take()
            try:
                yield connection
            finally:
                self._give(connection)
        finally:
            free.release()

    def executor(self) -> ThreadPoolExecutor:
        """The threads of async callers: one per connection."""
        with self._lock:
            if self._closed:
                raise StoreClosed
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._size, thread_name_prefix="tenure-postgres")
            return self._executor

    def close(self) -> None:
        """Close what is idle. Requests in flight finish first; their connections are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True)
        for connection in idle:
            connection.close()

    def forget(self) -> None:
        """In a child after a fork: leave the parent's connections and threads alone."""
        _inherited.extend(self._idle)
        self._idle = []
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(self._size)
        self._executor = None

    def _take(self) -> Connection:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed:
                    return connection
        with driver_errors(self._url):
            return psycopg.connect(
                self._url, autocommit=True, prepare_threshold=self._prepare_threshold, **defaults(self._url)
            )

    def _give(self, connection: Connection) -> None:
        if self._pid != os.getpid():
            return
        is_usable = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if is_usable and not self._closed:
                self._idle.append(connection)
                return
        with suppress(psycopg.Error):
            connection.close()

    def _crowded(self) -> StoreBusy:
        return StoreBusy(
            f"All {self._size} connections of this process were in use for {self._wait_seconds:g} s. Nothing was "
            "changed. Repeat the call, or give the store a larger pool (`?tenure_pool=…` in the URL)."
        )


def defaults(url: str) -> dict[str, Any]:
    """Settings for a connection that notices a dead peer, unless the URL says otherwise."""
    given = conninfo_to_dict(url)
    return {name: value for name, value in _KEEPALIVE.items() if name not in given}


def _each(act: Callable[[Pool], None]) -> None:
    for pool in list(_pools):
        act(pool)


os.register_at_fork(after_in_child=lambda: _each(Pool.forget))
