"""Connections to PostgreSQL: a `psycopg_pool.ConnectionPool`, made fork-safe, with errors of ours.

psycopg_pool connects in the background, so its callers learn of a failure only as a time-out. The pool here asks the
server itself in two places: before the first connection, and when none came within a second though connecting failed.
The caller then gets the server's own reason.

No reply is awaited for ever: TCP keepalives and `tcp_user_timeout` find a dead network, `Connection.wait` a server that
is alive but frozen. Async requests run in threads: a cancelled await leaves the request to end by itself.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from tenure.errors import StoreBusy, StoreClosed
from tenure.store.postgres.errors import driver_errors

REPLY_SECONDS = 60.0
"""How long a server may take to answer one statement."""

_RETRY_SECONDS = 1.0
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "tenure",
}
_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_inherited: list[object] = []
"""Pools of the parent process: kept, so that nothing closes their connections."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for a reply no longer than `reply_seconds`. The pool closes one that did not answer."""

    reply_seconds = REPLY_SECONDS

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As in psycopg, with a bound."""
        return super().wait(gen, interval, self.reply_seconds if timeout is None else timeout)


class Pool:
    """Connections for one URL. Thread-safe."""

    _opened: ConnectionPool[Connection] | None
    _executor: ThreadPoolExecutor | None

    def __init__(
        self,
        url: str,
        size: int,
        wait_seconds: float,
        prepare_threshold: int | None,
        reply_seconds: float = REPLY_SECONDS,
    ) -> None:
        self._url = url
        self._size = size
        self._wait_seconds = wait_seconds
        self._prepare_threshold = prepare_threshold
        self._reply_seconds = reply_seconds
        self._closed = False
        self._begin()
        _pools.add(self)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the caller alone; waits for one if all are taken."""
        pid, pool = os.getpid(), self._opened or self._open()
        connection = self._get(pool)
        try:
            yield connection
        finally:
            if pid == os.getpid():
                pool.putconn(connection)

    def executor(self) -> ThreadPoolExecutor:
        """The threads of async callers: one per connection."""
        with self._lock:
            if self._closed:
                raise StoreClosed
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._size, thread_name_prefix="tenure-postgres")
            return self._executor

    def close(self) -> None:
        """Close all connections. Async requests in flight finish first; a sync request's connection is closed when the
        request ends."""
        with self._lock:
            self._closed = True
            opened, executor = self._opened, self._executor
        if executor is not None:
            executor.shutdown(wait=True)
        if opened is not None:
            opened.close()

    def forget(self) -> None:
        """In a child after a fork: leave the parent's connections and threads alone."""
        if self._opened is not None:
            _inherited.append(self._opened)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._opened = None
        self._executor = None

    def _open(self) -> ConnectionPool[Connection]:
        with self._opening:
            if self._closed:
                raise StoreClosed
            if self._opened is None:
                self._ask()
                self._opened = ConnectionPool(
                    self._url,
                    connection_class=Connection,
                    kwargs=self._settings(),
                    configure=self._configure,
                    min_size=0,
                    max_size=self._size,
                    reconnect_timeout=_RETRY_SECONDS,
                    num_workers=1,
                    open=True,
                )
            return self._opened

    def _get(self, pool: ConnectionPool[Connection]) -> Connection:
        deadline = time.monotonic() + self._wait_seconds
        while True:
            failures = pool.get_stats().get("connections_errors", 0)
            left = deadline - time.monotonic()
            try:
                return pool.getconn(timeout=min(_RETRY_SECONDS, left))
            except PoolClosed:
                raise StoreClosed from None
            except PoolTimeout:
                is_late = left <= _RETRY_SECONDS
                if is_late or pool.get_stats().get("connections_errors", 0) > failures:
                    self._ask()
                if is_late:
                    raise self._crowded() from None

    def _settings(self) -> dict[str, Any]:
        return defaults(self._url) | {"autocommit": True, "prepare_threshold": self._prepare_threshold}

    def _configure(self, connection: Connection) -> None:
        connection.reply_seconds = self._reply_seconds

    def _ask(self) -> None:
        """Connect once outside the pool, to raise the server's own reason if it refuses."""
        with driver_errors(self._url):
            psycopg.connect(self._url, **self._settings()).close()

    def _crowded(self) -> StoreBusy:
        return StoreBusy(
            f"All {self._size} connections of this process were in use for {self._wait_seconds:g} s. Nothing was "
            "changed. Repeat the call, or give the store a larger pool (`?tenure_pool=…` in the URL)."
        )


def connect_alone(url: str, application_name: str, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection outside of the pool, for what is done once. It may take its time, but notices a dead peer; it
    prepares nothing, because a pooler in transaction mode would not keep it."""
    settings: dict[str, Any] = {"application_name": application_name, "prepare_threshold": None}
    return psycopg.connect(url, autocommit=autocommit, **(defaults(url) | settings))


def defaults(url: str) -> dict[str, Any]:
    """Settings for a connection that notices a dead peer, unless the URL says otherwise."""
    given = conninfo_to_dict(url)
    return {name: value for name, value in _DEFAULTS.items() if name not in given}


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)
