"""Wake-ups from PostgreSQL: one connection that listens, in one thread, for all subscriptions of a store.

A notification is a hint. It may be lost (a reconnect, a full queue), so subscribers poll as well; and it may come too
often, so a wake-up must be cheap. A listener must never be deaf without knowing it: on a half-open socket nothing
arrives and nothing fails. Therefore the server is asked something regularly, and a connection whose answer does not
come is given up. After each reconnect everybody is woken once, because it is not known what was missed.

Channel `tenure`; the payload is a queue's name, or `cancel:` and a worker's id when a held job was asked to stop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from tenure.model.frozen import frozen
from tenure.store.postgres.pool import Connection, defaults

PING_SECONDS: Final = 10.0
"""How often the server is asked something."""
ANSWER_SECONDS: Final = 4.0
"""An answer is waited for so long: deafness is noticed within 15 s."""
_PAUSE_SECONDS: Final = (0.05, 5.0)
_log: Final = logging.getLogger("tenure.postgres")


class ListeningConnection(Connection):
    """A connection that sleeps until the server says something. By default psycopg looks up from waiting ten times a
    second, so that signals are noticed; a thread gets none, and ten times a second is most of what an idle worker
    costs."""

    reply_seconds = ANSWER_SECONDS

    def wait(self, gen: Any, interval: float = PING_SECONDS, timeout: float | None = None) -> Any:
        """As in psycopg, without looking up."""
        return super().wait(gen, max(interval, PING_SECONDS), timeout)


@frozen
class ListenerStats:
    """What a listener has seen since it was made."""

    connects: int
    notifications: int
    failures: int
    subscriptions: int


class QueueSubscription:
    """Keeps the contract of `tenure.store.contract.Subscription`."""

    def __init__(self, listener: Listener, queues: frozenset[str], wake: Callable[[], None]) -> None:
        self._listener = listener
        self.queues = queues
        self.wake = wake
        self.is_alive = listener.is_alive

    def close(self) -> None:
        """Be woken no more."""
        self._listener.remove(self)


class Listener:
    """The listening side of one store. Thread-safe; after a fork the child connects anew when it subscribes."""

    _subscriptions: tuple[QueueSubscription, ...]
    _thread: threading.Thread | None
    _connection: ListeningConnection | None

    def __init__(self, url: str, *, ping_seconds: float = PING_SECONDS, is_pooled: bool = False) -> None:
        self._url = url
        self._ping_seconds = ping_seconds
        self._is_pooled = is_pooled
        self._begin()

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> QueueSubscription:
        """Call `wake` when jobs may have arrived in `queues`."""
        if self._pid != os.getpid():
            self._begin()
        subscription = QueueSubscription(self, frozenset(queues), wake)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
            if self._thread is None and not self._is_pooled:
                self._closed = threading.Event()
                self._thread = threading.Thread(
                    target=self._listen, args=(self._closed,), name="tenure-listen", daemon=True
                )
                self._thread.start()
        return subscription

    def remove(self, subscription: QueueSubscription) -> None:
        """Forget a subscription. The connection stays: another subscriber is likely."""
        with self._lock:
            self._subscriptions = tuple(each for each in self._subscriptions if each is not subscription)

    def is_alive(self) -> bool:
        """Whether the server was heard within the last seconds, so that wake-ups are believed to arrive."""
        silent = time.monotonic() - self._heard_at
        return self._pid == os.getpid() and silent <= self._ping_seconds + ANSWER_SECONDS

    def stats(self) -> ListenerStats:
        """Counters since the listener was made."""
        return ListenerStats(self._connects, self._notifications, self._failures, len(self._subscriptions))

    def close(self) -> None:
        """End the connection and the thread. Harmless when repeated, or in a child after a fork. A thread that is just
        connecting ends by itself."""
        if self._pid != os.getpid():
            return
        with self._lock:
            thread, self._thread = self._thread, None
            connection = self._connection
            self._closed.set()
            if connection is not None:
                _hang_up(connection)
        if thread is not None and connection is not None and thread is not threading.current_thread():
            thread.join()
        self._heard_at = float("-inf")

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._subscriptions = ()
        self._thread = None
        self._connection = None
        self._closed = threading.Event()
        self._heard_at = float("-inf")
        self._connects = self._notifications = self._failures = 0

    def _listen(self, closed: threading.Event) -> None:
        """The thread: connect, listen, and connect again for as long as it takes."""
        least, most = _PAUSE_SECONDS
        pause = least
        while not closed.is_set():
            before = self._connects
            try:
                self._listen_once(closed)
            except (psycopg.Error, OSError) as exc:
                self._failures += 1
                _log.debug("The listening connection was lost: %s", type(exc).__name__)
            self._heard_at = float("-inf")
            pause = least if self._connects > before else min(most, pause * 2)
            closed.wait(pause * random.uniform(0.5, 1.0))

    def _listen_once(self, closed: threading.Event) -> None:
        settings = defaults(self._url) | {"application_name": "tenure listen"}
        connection = ListeningConnection.connect(self._url, autocommit=True, **settings)
        try:
            with self._lock:
                if closed.is_set():
                    return
                self._connection = connection
            connection.execute("LISTEN tenure")
            self._connects += 1
            self._hear(None)
            while not closed.is_set():
                for notification in connection.notifies(timeout=self._ping_seconds):
                    self._notifications += 1
                    self._hear(notification.payload)
                connection.execute("SELECT 1")
                self._heard_at = time.monotonic()
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                connection.pgconn.finish()

    def _hear(self, payload: str | None) -> None:
        """Wake the subscriptions that a notification concerns; None concerns all."""
        self._heard_at = time.monotonic()
        concerns_all = payload is None or payload.startswith("cancel:")
        for subscription in self._subscriptions:
            if concerns_all or payload in subscription.queues:
                try:
                    subscription.wake()
                except Exception:  # noqa: BLE001 - one subscriber must not make the others deaf
                    _log.exception("A subscriber failed when it was woken.")


def _hang_up(connection: ListeningConnection) -> None:
    """End a connection from another thread: the one that waits for it is told at once."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)
