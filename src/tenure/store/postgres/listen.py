"""Wake-ups from PostgreSQL: one connection that listens on an event loop, many subscriptions.

A notification is a hint. It may be lost (a pooler in transaction mode, a reconnect, a full queue), so whoever
subscribes polls as well; and it may come too often, so a wake-up must be cheap. What must never happen is a listener
that is deaf without knowing it: on a half-open socket nothing ever arrives, and nothing ever fails. Therefore the
server is asked something when it was silent for long, and a connection whose answer does not come is given up.
`is_alive` tells what is known, and after each reconnect everybody is woken once, because nobody can tell what was
missed.

**The shortest way** from the server to a worker is the worker's own event loop: it reads the socket and wakes the
worker in the same turn, without a change of threads. A subscriber without a loop is served by one in a thread.

**An idle worker's poll takes this connection** (`Ear.call`): its answer proves as much as the answer to a question, so
that of two round trips, each with two processes to wake, one is left. While it works, calls have links of their own,
and no notification waits behind them.

Channel `tenure`; the payload is a queue's name, or `cancel:` and a worker's id when a held job was asked to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.model.frozen import frozen
from tenure.store.postgres.call import Argument, encoded, statement, value

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

PING_SECONDS: Final = 10.5
"""A connection is asked after so long a silence: somewhat more than a poll at its rarest, which makes it needless."""
ANSWER_SECONDS: Final = 4.0
"""An answer is waited for so long: deafness is noticed within 15 s."""
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


@frozen
class ListenerStats:
    """What a listener has seen since it was made."""

    connects: int
    notifications: int
    failures: int
    subscriptions: int


class Listener:
    """The listening side of one store. Thread-safe; after a fork the child connects anew when it subscribes."""

    _ears: dict[asyncio.AbstractEventLoop, Ear]
    _thread: threading.Thread | None
    _thread_loop: asyncio.AbstractEventLoop | None

    def __init__(self, url: str, *, ping_seconds: float = PING_SECONDS, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._url = url
        self._ping_seconds = ping_seconds
        self._answer_seconds = answer_seconds
        self._begin()

    def subscribe(
        self, queues: Sequence[str], wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> QueueSubscription:
        """Call `wake` when jobs may have arrived in `queues`, on the loop given or else on the listener's thread."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            where = loop or self._own_loop()
            ear = self._ears.get(where)
            if ear is None or ear.is_closed:
                ear = self._ears[where] = Ear(self._url, self._ping_seconds, self._answer_seconds, where)
            subscription = QueueSubscription(self, ear, frozenset(queues), wake)
            ear.add(subscription)
        return subscription

    def free_ear(self, loop: asyncio.AbstractEventLoop) -> Ear | None:
        """The loop's own connection, if there is one and a call may be sent on it now."""
        ear = self._ears.get(loop)
        return ear if ear is not None and self._pid == os.getpid() and ear.is_free else None

    def is_alive(self) -> bool:
        """Whether the server answered within the last seconds, everywhere, so that wake-ups are believed to arrive."""
        ears = self._ears.values()
        return self._pid == os.getpid() and len(ears) > 0 and all(ear.is_alive() for ear in ears)

    def stats(self) -> ListenerStats:
        """Counters since the listener was made."""
        ears = list(self._ears.values())
        return ListenerStats(
            connects=sum(ear.connects for ear in ears),
            notifications=sum(ear.notifications for ear in ears),
            failures=sum(ear.failures for ear in ears),
            subscriptions=sum(len(ear.subscriptions) for ear in ears),
        )

    def close(self) -> None:
        """End the connections, and the thread. Harmless when repeated, or in a child after a fork."""
        if self._pid != os.getpid():
            return
        with self._lock:
            ears, self._ears = self._ears, {}
            thread, self._thread = self._thread, None
            loop, self._thread_loop = self._thread_loop, None
        for ear in ears.values():
            ear.close()
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def remove(self, subscription: QueueSubscription) -> None:
        """Forget a subscription. The thread's connection stays, because another subscriber is likely; that on a loop
        which somebody else runs goes with the last, because the loop may."""
        with self._lock:
            ear = subscription.ear
            ear.subscriptions = tuple(each for each in ear.subscriptions if each is not subscription)
            if not ear.subscriptions and ear.loop is not self._thread_loop:
                if self._ears.get(ear.loop) is ear:
                    del self._ears[ear.loop]
                ear.close()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ears = {}
        self._thread = None
        self._thread_loop = None

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the listener's thread."""
        if self._thread_loop is None:
            self._thread_loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._thread_loop,), name="tenure-listen", daemon=True
            )
            self._thread.start()
        return self._thread_loop


class Ear:
    """One listening connection on one event loop."""

    def __init__(self, url: str, ping_seconds: float, answer_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.subscriptions: tuple[QueueSubscription, ...] = ()
        self.is_closed = False
        self.connects = self.notifications = self.failures = 0
        self._url = url
        self._ping_seconds = ping_seconds
        self._answer_seconds = answer_seconds
        self._is_listening = False
        self._heard_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._pgconn: PGconn | None = None
        self._prepared: dict[str, bytes] = {}
        self._poller = select.poll()
        self._result: PGresult | None = None
        self._answered: asyncio.Future[PGresult | None] | None = None
        """There while the server owes an answer; then its last result."""
        self._silence: asyncio.Future[None] | None = None
        """Done when it is time to ask."""
        self._alarm: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._call(self._start)

    def add(self, subscription: QueueSubscription) -> None:
        """Serve one more; it is woken at once, as everybody is when the connection is made."""
        self.subscriptions = (*self.subscriptions, subscription)
        if self._is_listening:
            self._call(subscription.wake)

    def is_alive(self) -> bool:
        """Whether the server answered within the last seconds."""
        return not self.is_closed and time.monotonic() - self._heard_at < self._ping_seconds + self._answer_seconds

    @property
    def is_free(self) -> bool:
        """Whether a call may be sent: it listens, and the server owes no answer."""
        return self._is_listening and self._answered is None and not self.is_closed

    async def call(
        self, function: str, arguments: Sequence[Argument], reply_seconds: float, block_seconds: float
    ) -> bytes | None:
        """Run `tenure.function(*arguments)`, as a link does. Only while it `is_free`, and on its own loop.

        The loop is kept for `block_seconds` at most. A call that is abandoned takes the connection with it.

        Raises: psycopg.Error.
        """
        pgconn = self._pgconn
        assert pgconn is not None
        try:
            name = self._prepared.get(function)
            if name is None:
                name = function.encode()
                words = statement(function, len(arguments))
                value(await self._ask(functools.partial(pgconn.send_prepare, name, words), reply_seconds))
                self._prepared[function] = name
            send = functools.partial(pgconn.send_query_prepared, name, *encoded(arguments))
            return value(await self._ask(send, reply_seconds, block_seconds))
        except OSError as exc:
            raise psycopg.OperationalError(str(exc)) from exc

    def close(self) -> None:
        """End the connection. From any thread."""
        self.is_closed = True
        self._call(self._stop)

    def _call(self, act: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and everything on it gone
            self.loop.call_soon_threadsafe(act)

    def _start(self) -> None:
        if not self.is_closed:
            self._task = self.loop.create_task(self._run(), name="tenure-listen")

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        shortest, longest = BACKOFF_SECONDS
        pause = shortest
        while not self.is_closed:
            started_at = time.monotonic()
            try:
                connection = await self._connect()
                try:
                    self.connects += 1
                    await self._serve(connection.pgconn)
                finally:
                    connection.pgconn.finish()
            except Exception:  # noqa: BLE001 - whatever went wrong, the answer is to connect again
                self.failures += 1
            finally:
                self._is_listening = False
                self._heard_at = float("-inf")
            if time.monotonic() - started_at > longest:
                pause = shortest
            # With jitter: after an outage the whole fleet comes back, but not at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        # What the URL says wins over our settings.
        info = make_conninfo("", **(_SETTINGS | conninfo_to_dict(self._url)))
        return await psycopg.AsyncConnection.connect(info, autocommit=True)

    async def _serve(self, pgconn: PGconn) -> None:
        """Listen until the connection fails or a question stays unanswered."""
        self._pgconn, self._prepared, self._result, self._failure = pgconn, {}, None, None
        descriptor = pgconn.socket
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLIN)
        pgconn.nonblocking = 1
        self.loop.add_reader(descriptor, self._hear, pgconn, descriptor)
        try:
            # With patience: until it listens nobody believes that it does, and a fleet that starts makes a busy server.
            patience = self._ping_seconds + self._answer_seconds
            value(await self._ask(lambda: pgconn.send_query(b"LISTEN tenure"), patience))
            self._is_listening = True
            for subscription in self.subscriptions:
                subscription.wake()
            while True:
                await self._until_silent()
                if self._answered is None:
                    value(await self._ask(lambda: pgconn.send_query(b"SELECT 1"), self._answer_seconds))
        finally:
            self.loop.remove_reader(descriptor)
            self._break(ConnectionError("the connection that listens was closed"))

    async def _ask(self, send: Callable[[], None], seconds: float, block_seconds: float = 0.0) -> PGresult:
        """Send something and wait for its answer. What goes wrong breaks the connection.

        Sent first: whatever else there is to do is done while the server works.
        """
        assert self._pgconn is not None
        alarm: asyncio.TimerHandle | None = None
        try:
            send()
            if self._pgconn.flush():
                raise ConnectionError("PostgreSQL has not taken in what was sent before")
            answered: asyncio.Future[PGresult | None] = self.loop.create_future()
            self._answered = answered
            self._arm(self._ping_seconds)
            if block_seconds:
                self._hear_within(block_seconds, answered)
            if not answered.done():
                late = TimeoutError(f"PostgreSQL gave no answer for {seconds:g} s")
                alarm = self.loop.call_later(seconds, self._break, late)
            result = await answered
            if result is None:
                raise ConnectionError("PostgreSQL ended the connection")
            return result
        except BaseException as exc:
            self._break(exc if isinstance(exc, Exception) else ConnectionError("a call was abandoned"))
            raise
        finally:
            self._answered = None
            if alarm is not None:
                alarm.cancel()

    def _hear_within(self, seconds: float, answered: asyncio.Future[PGresult | None]) -> None:
        """Read on the loop's own thread: for an answer that comes at once the loop need not be asked to wait."""
        assert self._pgconn is not None
        descriptor = self._pgconn.socket
        until = time.monotonic() + seconds
        while not answered.done() and (left := until - time.monotonic()) > 0:
            if self._poller.poll(left * 1000):
                self._hear(self._pgconn, descriptor)

    async def _until_silent(self) -> None:
        """Until nothing was heard for so long that it is time to ask. Raises what broke the connection."""
        if self._failure is not None:
            raise self._failure
        self._silence = self.loop.create_future()
        self._arm(self._ping_seconds - (time.monotonic() - self._heard_at))
        await self._silence

    def _arm(self, seconds: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_later(max(0.0, seconds), self._tick)

    def _tick(self) -> None:
        self._alarm = None
        left = self._ping_seconds - (time.monotonic() - self._heard_at)
        if self._answered is not None:
            left = max(left, self._answer_seconds)  # a call is on its way, which asks as well
        if left > 0:
            self._arm(left)
        elif self._silence is not None and not self._silence.done():
            self._silence.set_result(None)

    def _break(self, failure: Exception) -> None:
        """Give the connection up: whoever waits for something on it learns why."""
        self._failure = self._failure or failure
        self._is_listening = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for waiting in (self._answered, self._silence):
            if waiting is not None and not waiting.done():
                waiting.set_exception(failure)
                waiting.exception()  # nobody need be there to take it

    def _hear(self, pgconn: PGconn, descriptor: int) -> None:
        """The socket has something: take it in, and wake whoever it is for in this very turn of the loop."""
        try:
            pgconn.consume_input()
            self._heard_at = time.monotonic()
            while self._answered is not None and not self._answered.done() and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    self._answered.set_result(self._result)
                    self._result = None
                else:
                    self._result = result
            self._deliver(pgconn)  # last: what follows an answer is taken in only after it
        except Exception as exc:  # noqa: BLE001 - the connection is given up and made anew
            self.loop.remove_reader(descriptor)  # a lost connection does not know its socket any more
            self._break(exc)

    def _deliver(self, pgconn: PGconn) -> None:
        """Wake whoever asked for what has been notified, each at most once."""
        named: set[str] = set()
        for_all = False
        while (note := pgconn.notifies()) is not None:
            self.notifications += 1
            name = note.extra.decode("utf-8", "replace")
            for_all = for_all or name.startswith("cancel:")
            named.add(name)
        if not named:
            return
        for subscription in self.subscriptions:
            if for_all or not named.isdisjoint(subscription.queues):
                subscription.wake()


class QueueSubscription:
    """One subscriber's wish to be woken. Keeps the contract of `tenure.store.base.Subscription`."""

    def __init__(self, listener: Listener, ear: Ear, queues: frozenset[str], wake: Callable[[], None]) -> None:
        self.queues = queues
        self.ear = ear
        self._listener = listener
        self._call = wake

    def wake(self) -> None:
        """Tell the subscriber. Its errors are its own: they must not make the others deaf."""
        try:  # noqa: SIM105 - on the way to every handler, and `suppress` takes three calls
            self._call()
        except Exception:  # noqa: BLE001, S110
            pass

    def is_alive(self) -> bool:
        """Whether wake-ups are believed to arrive."""
        return self.ear.is_alive()

    def close(self) -> None:
        """End the subscription."""
        self._listener.remove(self)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """The listener's thread: run its loop until it is stopped, then see its tasks end."""
    try:
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
    finally:
        loop.close()
