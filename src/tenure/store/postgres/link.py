"""One connection to PostgreSQL that carries one call at a time, for sync and for async callers alike.

A call is `SELECT tenure.f($1)`: text in, one JSON value out, prepared on first use, one commit of its own. Both doors
speak to libpq through psycopg's low level: send, wait for the socket, take the result. The sync door waits in
poll(2), which a signal can interrupt, and stays awake for a moment before it (see `awake`); the async door waits as a
reader of its event loop. No thread changes hands in either.

A call that is abandoned (cancelled await, time-out) leaves the connection in an unknown state, so the link is closed
for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

from tenure.errors import StoreUnavailable
from tenure.store.postgres.awake import PERMIT, Awake, Ready
from tenure.store.postgres.call import Argument, encoded, statement, value
from tenure.store.processors import processors

_IS_OPEN = int(pq.ConnStatus.OK)
_IS_IDLE = int(pq.TransactionStatus.IDLE)
"""As numbers: they are looked at twice a call, and to compare with an enumeration takes as long as the question."""

_KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "tenure",
}


class Link:
    """A connection. Not thread-safe: whoever took it from the pool uses it alone."""

    def __init__(self, url: str, reply_seconds: float, *, awake: bool = True) -> None:
        self._connection = psycopg.connect(url, autocommit=True, **_defaults(url))
        self._pgconn = self._connection.pgconn
        self._reply_seconds = reply_seconds
        self._prepared: dict[str, bytes] = {}
        self._reader = _poller(self._pgconn.socket, select.POLLIN)
        self._poll_first: Callable[[float], Ready] = self._reader.poll
        if awake and processors() > 1:
            self._poll_first = Awake(self._reader.poll, PERMIT).poll
        self._result: pq.abc.PGresult | None = None
        self.pid = os.getpid()
        self.backend_pid = self._pgconn.backend_pid
        self._pgconn.nonblocking = 1

    @property
    def usable(self) -> bool:
        """Whether another call can be sent."""
        return self._pgconn.status == _IS_OPEN and self._pgconn.transaction_status == _IS_IDLE

    def call(self, function: str, *arguments: Argument) -> bytes | None:
        """Run `tenure.function(*arguments)` and wait for its answer."""
        try:
            name = self._prepared.get(function)
            if name is None:
                name = function.encode()
                self._pgconn.send_prepare(name, statement(function, len(arguments)))
                value(self._wait())
                self._prepared[function] = name
            self._send(name, arguments)
            return value(self._wait())
        except BaseException:
            self._abandon()
            raise

    async def acall(self, function: str, *arguments: Argument, block_seconds: float = 0.0) -> bytes | None:
        """The same without blocking the event loop, or no longer than it is told it may: for an answer that comes
        within that time the loop need not be asked to watch the socket, which takes a tenth of a millisecond."""
        try:
            name = self._prepared.get(function)
            if name is None:
                name = function.encode()
                self._pgconn.send_prepare(name, statement(function, len(arguments)))
                value(await self._await())
                self._prepared[function] = name
            self._send(name, arguments)
            return value(self._wait_briefly(block_seconds) or await self._await())
        except BaseException:
            self._abandon()
            raise

    def close(self) -> None:
        """Say goodbye to the server."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()

    def disown(self) -> None:
        """After a fork: make sure this process never says anything on the parent's socket."""
        with contextlib.suppress(psycopg.Error, OSError), open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a bare fd is wanted
            os.dup2(nothing.fileno(), self._pgconn.socket)

    def _send(self, name: bytes, arguments: tuple[Argument, ...]) -> None:
        values, formats = encoded(arguments)
        self._pgconn.send_query_prepared(name, values or None, formats or None)

    def _wait(self) -> pq.abc.PGresult:
        left = self._reply_seconds
        deadline = time.monotonic() + left
        poll = self._poll_first
        if is_sending := bool(self._pgconn.flush()):
            poll = _poller(self._pgconn.socket, select.POLLIN | select.POLLOUT).poll
        while True:
            ready = poll(left * 1000)
            if ready and ready[0][1] & ~select.POLLOUT:
                self._pgconn.consume_input()
                if self._has_ended():
                    return self._take()
            is_sending = is_sending and bool(self._pgconn.flush())
            if not is_sending:
                poll = self._reader.poll
            left = deadline - time.monotonic()
            if left <= 0:
                raise _silent(self._reply_seconds)

    def _wait_briefly(self, seconds: float) -> pq.abc.PGresult | None:
        if not seconds or self._pgconn.flush():
            return None
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._reader.poll(left * 1000):
                self._pgconn.consume_input()
                if self._has_ended():
                    return self._take()
        return None

    async def _await(self) -> pq.abc.PGresult:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[pq.abc.PGresult] = loop.create_future()
        descriptor = self._pgconn.socket
        loop.add_reader(descriptor, self._on_readable, arrived)
        if self._pgconn.flush():
            loop.add_writer(descriptor, self._on_writable, loop, descriptor, arrived)
        alarm = loop.call_later(self._reply_seconds, _time_out, arrived, self._reply_seconds)
        try:
            return await arrived
        finally:
            alarm.cancel()
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)

    def _on_readable(self, arrived: asyncio.Future[pq.abc.PGresult]) -> None:
        if arrived.done():
            return
        try:
            self._pgconn.consume_input()
            if self._has_ended():
                arrived.set_result(self._take())
        except Exception as exc:  # noqa: BLE001 - whatever it is, the waiting caller must learn of it
            arrived.set_exception(exc)

    def _on_writable(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, arrived: asyncio.Future[pq.abc.PGresult]
    ) -> None:
        try:
            if not self._pgconn.flush():
                loop.remove_writer(descriptor)
        except Exception as exc:  # noqa: BLE001 - likewise
            loop.remove_writer(descriptor)
            if not arrived.done():
                arrived.set_exception(exc)

    def _has_ended(self) -> bool:
        """Take in what has arrived; whether the command is over.

        libpq ends a command with a null result, which comes with the server's ReadyForQuery and may arrive after the
        answer. To ask for it too early blocks inside libpq, and deadline, event loop and other threads with it.
        """
        while not self._pgconn.is_busy():
            result = self._pgconn.get_result()
            if result is None:
                return True
            self._result = result
        return False

    def _take(self) -> pq.abc.PGresult:
        """The one result of the call."""
        result, self._result = self._result, None
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        return result

    def _abandon(self) -> None:
        """Keep the link only if the server has answered and waits for the next call."""
        if not self.usable:
            self.close()


def _poller(descriptor: int, events: int) -> select.poll:
    poller = select.poll()
    poller.register(descriptor, events)
    return poller


def _defaults(url: str) -> dict[str, Any]:
    """Settings for a connection that notices a dead peer, unless the URL says otherwise."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return {name: value for name, value in _KEEPALIVE.items() if name not in given}


def _silent(seconds: float) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL gave no answer for {seconds:g} s, so it is not known whether the call took effect. "
        "Repeat it: every request is safe to repeat. Look for locks with `tenure doctor`."
    )


def _time_out(arrived: asyncio.Future[pq.abc.PGresult], seconds: float) -> None:
    if not arrived.done():
        arrived.set_exception(_silent(seconds))
