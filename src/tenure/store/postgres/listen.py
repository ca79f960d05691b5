"""Wake-ups from PostgreSQL: one connection that listens, one thread that waits on it, many subscriptions.

A notification is a hint. It may be lost (a pooler in transaction mode, a reconnect, a full queue), so whoever
subscribes polls as well; and it may come too often, so a wake-up must be cheap. What must never happen is a listener
that is deaf without knowing it: on a half-open socket nothing ever arrives, and nothing ever fails. Therefore the
thread asks the server something every few seconds and gives up on a connection whose answer does not come. `is_alive`
tells what it knows, and after each reconnect everybody is woken once, because nobody can tell what was missed.

The thread speaks libpq without blocking, so that one deadline covers sending, waiting and reading alike.

Channel `tenure`; the payload is a queue's name, or `cancel:` and a worker's id when a held job was asked to stop.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGconn

PING_SECONDS: Final = 5.0
"""A silent connection is asked this often, and an answer is waited for as long: deafness is noticed within 10 s."""
BACKOFF_SECONDS: Final = (0.1, 15.0)

_SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "tenure listen",
}


@dataclass(frozen=True, slots=True)
class ListenerStats:
    """What a listener has seen since it was made."""

    connects: int
    notifications: int
    failures: int
    subscriptions: int


class Listener:
    """The listening side of one store. Thread-safe; after a fork the child connects anew when it subscribes."""

    _bell: tuple[int, int] | None
    _subscriptions: tuple[QueueSubscription, ...]
    _thread: threading.Thread | None

    def __init__(self, url: str, *, ping_seconds: float = PING_SECONDS) -> None:
        self._url = url
        self._ping_seconds = ping_seconds
        self._begin()

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> QueueSubscription:
        """Call `wake`, on the listener's thread, when jobs may have arrived in `queues`. The first starts it."""
        if self._pid != os.getpid():
            self._begin()
        subscription = QueueSubscription(self, frozenset(queues), wake)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
            is_listening = self._is_listening
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="tenure-listen", daemon=True)
                self._thread.start()
        if is_listening:
            subscription.wake()  # as everybody is when the listener has connected
        return subscription

    def is_alive(self) -> bool:
        """Whether the server answered within the last seconds, so that wake-ups are believed to arrive."""
        return (
            self._pid == os.getpid()
            and self._thread is not None
            and time.monotonic() - self._heard_at < 2.5 * self._ping_seconds
        )

    def stats(self) -> ListenerStats:
        """Counters since the listener was made."""
        return ListenerStats(self._connects, self._notifications, self._failures, len(self._subscriptions))

    def close(self) -> None:
        """End the thread and its connection. Harmless when repeated, or in a child after a fork."""
        if self._pid != os.getpid():
            return
        self._closing.set()
        with self._lock:
            thread, self._thread = self._thread, None
            if self._bell is not None:
                with contextlib.suppress(OSError):
                    os.write(self._bell[1], b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            bell, self._bell = self._bell, None
        for end in bell or ():
            os.close(end)

    def remove(self, subscription: QueueSubscription) -> None:
        """Forget a subscription. The connection stays: another subscriber is likely."""
        with self._lock:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._bell = os.pipe()
        self._subscriptions = ()
        self._thread = None
        self._is_listening = False
        self._heard_at = float("-inf")
        self._connects = self._notifications = self._failures = 0

    def _run(self) -> None:
        shortest, longest = BACKOFF_SECONDS
        pause = shortest
        while not self._closing.is_set():
            started_at = time.monotonic()
            try:
                with contextlib.closing(self._connect()) as connection:
                    self._connects += 1
                    self._serve(connection.pgconn)
            except Exception:  # noqa: BLE001 - whatever went wrong, the answer is to connect again
                self._failures += 1
            with self._lock:
                self._is_listening = False
            self._heard_at = float("-inf")
            if time.monotonic() - started_at > longest:
                pause = shortest
            # With jitter: after an outage the whole fleet comes back, but not at the same moment.
            self._closing.wait(pause * random.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    def _connect(self) -> Connection[tuple[Any, ...]]:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        # What the URL says wins over our settings.
        return psycopg.connect(make_conninfo("", **(_SETTINGS | conninfo_to_dict(self._url))), autocommit=True)

    def _serve(self, pgconn: PGconn) -> None:
        """Listen until the connection fails, a question stays unanswered, or the listener is closed."""
        pgconn.nonblocking = 1
        self._ask(pgconn, b"LISTEN tenure")
        with self._lock:
            self._is_listening = True
            missed = self._subscriptions
        for subscription in missed:
            subscription.wake()
        while not self._closing.is_set():
            self._deliver(pgconn)
            if not self._wait(pgconn, time.monotonic() + self._ping_seconds):
                self._ask(pgconn, b"SELECT 1")

    def _ask(self, pgconn: PGconn, command: bytes) -> None:
        """Send a command and read its answer, all within one deadline."""
        deadline = time.monotonic() + self._ping_seconds
        pgconn.send_query(command)
        while True:
            unsent = pgconn.flush()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    return
                if result.error_message:
                    raise ConnectionError(result.error_message.decode("utf-8", "replace"))
            if not self._wait(pgconn, deadline, to_write=bool(unsent)):
                raise TimeoutError(f"PostgreSQL gave no answer for {self._ping_seconds:g} s")
            if self._closing.is_set():
                return

    def _wait(self, pgconn: PGconn, deadline: float, *, to_write: bool = False) -> bool:
        """Wait for the socket or for `close`; False if neither came in time. Input is taken in."""
        assert self._bell is not None
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if to_write else 0))
        poll.register(self._bell[0], select.POLLIN)
        ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if ready.get(pgconn.socket, 0) & ~select.POLLOUT:
            pgconn.consume_input()
            self._heard_at = time.monotonic()
        return bool(ready)

    def _deliver(self, pgconn: PGconn) -> None:
        """Wake whoever asked for what has been notified, each at most once."""
        named: set[str] = set()
        while (note := pgconn.notifies()) is not None:
            self._notifications += 1
            named.add(note.extra.decode("utf-8", "replace"))
        if not named:
            return
        for_all = any(name.startswith("cancel:") for name in named)
        for subscription in self._subscriptions:
            if for_all or not named.isdisjoint(subscription.queues):
                subscription.wake()


class QueueSubscription:
    """One subscriber's wish to be woken. Keeps the contract of `tenure.store.base.Subscription`."""

    def __init__(self, listener: Listener, queues: frozenset[str], wake: Callable[[], None]) -> None:
        self.queues = queues
        self._listener = listener
        self._call = wake

    def wake(self) -> None:
        """Tell the subscriber. Its errors are its own: they must not make the others deaf."""
        with contextlib.suppress(Exception):
            self._call()

    def is_alive(self) -> bool:
        """Whether wake-ups are believed to arrive."""
        return self._listener.is_alive()

    def close(self) -> None:
        """End the subscription."""
        self._listener.remove(self)
