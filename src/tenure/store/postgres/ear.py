"""An ear: one connection to PostgreSQL that listens on one event loop.

**The shortest way** from the server to a worker is the worker's own event loop: it reads the socket and wakes the
worker in the same turn, without a change of threads.

**An idle worker's poll takes this connection** (`Ear.call`): its answer proves as much as the answer to a question, so
that of two round trips, each with two processes to wake, one is left. While it works, calls have links of their own,
and no notification waits behind them.

**The claim that follows a wake-up is sent by the wake-up** (`ArmedCall`). What a sleeping worker will ask for is known
before it sleeps, and lies ready here. So the server is at work while the worker wakes up, which takes Python half as
long as the claim takes the server, because code that has slept must come back into the processor's caches.

**A job that an enqueue has handed over needs no claim.** The notification names the worker and the job. If the worker
has a call lying ready, the job is read in its stead; otherwise the worker is woken, and its next claim gives the job
out.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import re
import select
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.store.postgres.call import Argument, encoded, statement, value

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

BACKOFF_SECONDS: Final = (0.1, 15.0)
CLAIM: Final = "claim_few"
STAND_BY: Final = "stand_by"
TAKE_OVER: Final = "take_over"

_HANDED_OVER: Final = re.compile(r"granted:(.+):([0-9a-f-]{36})")
"""Worker and job."""

_SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "tenure listen",
}


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
        self._is_called = False
        self._heard_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._pgconn: PGconn | None = None
        self._prepared: dict[str, bytes] = {}
        self._stands_by_for: set[Argument] = set()
        self._poller = select.poll()
        self._result: PGresult | None = None
        self._answered: asyncio.Future[PGresult] | None = None
        """There while the server owes an answer."""
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
        """Whether a call may be sent: it listens, nobody is at a call, and the server owes no answer."""
        return self._is_listening and not self._is_called and self._answered is None and not self.is_closed

    async def call(
        self, function: str, arguments: Sequence[Argument], reply_seconds: float, block_seconds: float
    ) -> bytes | None:
        """Run `tenure.function(*arguments)`, as a link does. Only while it `is_free`, and on its own loop.

        The loop is kept for `block_seconds` at most. A call that is abandoned takes the connection with it.

        Raises: psycopg.Error.
        """
        pgconn = self._pgconn
        assert pgconn is not None
        self._is_called = True
        try:
            if function == CLAIM and arguments[0] not in self._stands_by_for:
                await self._stand_by(pgconn, arguments[0], reply_seconds)
            return await self._call_on(pgconn, function, arguments, reply_seconds, block_seconds)
        finally:
            self._is_called = False

    async def _stand_by(self, pgconn: PGconn, worker: Argument, reply_seconds: float) -> None:
        """Whoever claims here may be handed a job from now on, and what it then takes is prepared."""
        await self._call_on(pgconn, STAND_BY, (worker,), reply_seconds, 0.0)
        await self._prepare(pgconn, TAKE_OVER, 2, reply_seconds)
        self._stands_by_for.add(worker)

    async def _call_on(
        self,
        pgconn: PGconn,
        function: str,
        arguments: Sequence[Argument],
        reply_seconds: float,
        block_seconds: float,
    ) -> bytes | None:
        await self._prepare(pgconn, function, len(arguments), reply_seconds)
        send = functools.partial(pgconn.send_query_prepared, self._prepared[function], *encoded(arguments))
        return await self.answer(self._send(send), reply_seconds, block_seconds)

    async def _prepare(self, pgconn: PGconn, function: str, arguments: int, reply_seconds: float) -> None:
        if function not in self._prepared:
            name = function.encode()
            prepared = self._send(functools.partial(pgconn.send_prepare, name, statement(function, arguments)))
            await self.answer(prepared, reply_seconds, 0.0)
            self._prepared[function] = name

    def prepared_call(self, function: str, arguments: Sequence[Argument]) -> Callable[[], None] | None:
        """Such a call, ready to be sent; None if it was not called on this connection before."""
        name = self._prepared.get(function)
        if name is None or self._pgconn is None:
            return None
        return functools.partial(self._pgconn.send_query_prepared, name, *encoded(arguments))

    async def answer(
        self, answered: asyncio.Future[PGresult], reply_seconds: float, block_seconds: float
    ) -> bytes | None:
        """Wait for the answer to a call that was sent; see `call`."""
        try:
            return await self._receive(answered, reply_seconds, block_seconds)
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
        self._stands_by_for = set()
        for subscription in self.subscriptions:
            subscription.armed = None  # it was for the connection before
        descriptor = pgconn.socket
        self._poller = select.poll()
        self._poller.register(descriptor, select.POLLIN)
        pgconn.nonblocking = 1
        self.loop.add_reader(descriptor, self._hear, pgconn, descriptor)
        try:
            # With patience: until it listens nobody believes that it does, and a fleet that starts makes a busy server.
            patience = self._ping_seconds + self._answer_seconds
            await self._ask(lambda: pgconn.send_query(b"LISTEN tenure"), patience)
            self._is_listening = True
            for subscription in self.subscriptions:
                subscription.wake()
            while True:
                await self._until_silent()
                if self.is_free:
                    await self._ask(lambda: pgconn.send_query(b"SELECT 1"), self._answer_seconds)
        finally:
            self.loop.remove_reader(descriptor)
            self._break(ConnectionError("the connection that listens was closed"))

    async def _ask(self, send: Callable[[], None], seconds: float) -> bytes | None:
        """Send something and wait for its answer. Raises the server's error; any other breaks the connection."""
        return await self._receive(self._send(send), seconds, 0.0)

    def _send(self, send: Callable[[], None]) -> asyncio.Future[PGresult]:
        """Send something. Its answer is still to come, or whatever goes wrong until then.

        Sent first: whatever else there is to do is done while the server works.
        """
        assert self._pgconn is not None
        failure: Exception | None = None
        try:
            send()
            if self._pgconn.flush():
                failure = ConnectionError("PostgreSQL has not taken in what was sent before")
        except Exception as exc:  # noqa: BLE001 - whoever waits for the answer learns of it
            failure = exc
        answered: asyncio.Future[PGresult] = self.loop.create_future()
        self._answered = answered
        self._set_alarm(self._ping_seconds)
        if failure is not None:
            self._break(failure)
        return answered

    async def _receive(self, answered: asyncio.Future[PGresult], seconds: float, block_seconds: float) -> bytes | None:
        """Wait for the answer to what was sent. An answer that is not waited for to its end breaks the connection."""
        alarm: asyncio.TimerHandle | None = None
        try:
            if block_seconds:
                self._hear_within(block_seconds, answered)
            if not answered.done():
                late = TimeoutError(f"PostgreSQL gave no answer for {seconds:g} s")
                alarm = self.loop.call_later(seconds, self._break, late)
            return value(await answered)
        finally:
            if self._answered is answered:
                self._break(ConnectionError("a call was abandoned"))
            if alarm is not None:
                alarm.cancel()

    def _hear_within(self, seconds: float, answered: asyncio.Future[PGresult]) -> None:
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
        self._set_alarm(self._ping_seconds - (time.monotonic() - self._heard_at))
        await self._silence

    def _set_alarm(self, seconds: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.loop.call_later(max(0.0, seconds), self._tick)

    def _tick(self) -> None:
        self._alarm = None
        left = self._ping_seconds - (time.monotonic() - self._heard_at)
        if self._answered is not None:
            left = max(left, self._answer_seconds)  # a call is on its way, which asks as well
        if left > 0:
            self._set_alarm(left)
        elif self._silence is not None and not self._silence.done():
            self._silence.set_result(None)

    def _break(self, failure: Exception) -> None:
        """Give the connection up: whoever waits for something on it learns why."""
        self._failure = self._failure or failure
        self._is_listening = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        answered, self._answered = self._answered, None
        for waiting in (answered, self._silence):
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
                if result is not None:
                    self._result = result
                elif self._result is None:
                    raise ConnectionError("PostgreSQL ended the connection")
                else:
                    answered, self._answered = self._answered, None
                    answered.set_result(self._result)
                    self._result = None
            self._deliver(pgconn)  # last: what follows an answer is taken in only after it
        except Exception as exc:  # noqa: BLE001 - the connection is given up and made anew
            self.loop.remove_reader(descriptor)  # a lost connection does not know its socket any more
            self._break(exc)

    def _deliver(self, pgconn: PGconn) -> None:
        """Wake whoever asked for what has been notified, each at most once."""
        named: set[str] = set()
        for_all = False
        handed: dict[str | None, str] = {}
        while (note := pgconn.notifies()) is not None:
            self.notifications += 1
            name = note.extra.decode("utf-8", "replace")
            for_all = for_all or name.startswith("cancel:")
            named.add(name)
            if match := _HANDED_OVER.fullmatch(name):
                handed[match[1]] = match[2]
        if not named:
            return
        for subscription in self.subscriptions:
            if job := handed.get(subscription.worker):
                if subscription.armed is not None and self.is_free:
                    self._take_over(subscription.armed, job)
                subscription.wake()  # by itself: if the queue is named too, there is more to look for
            is_named = not named.isdisjoint(subscription.queues)
            if is_named and subscription.armed is not None and self.is_free:
                self._send_armed(subscription.armed)
            if is_named or for_all:
                subscription.wake()

    def _send_armed(self, armed: ArmedCall) -> None:
        armed.disarm()
        armed.leave()
        armed.answered = self._send(armed.send)

    def _take_over(self, armed: ArmedCall, job: str) -> None:
        """Read what was handed over, instead of the call that lies ready."""
        send = self.prepared_call(TAKE_OVER, (armed.worker, job))
        if send is not None:
            armed.send, armed.is_handed_over = send, True
            self._send_armed(armed)


class ArmedCall:
    """A call that the next notification for its subscriber sends, in the very turn of the loop that hears it."""

    def __init__(
        self, subscription: QueueSubscription, worker: str, send: Callable[[], None], leave: Callable[[], None]
    ) -> None:
        self.worker = worker
        self.send = send
        self.leave = leave
        self.is_handed_over = False
        """A job was read in its stead, which an enqueue had handed over."""
        self.answered: asyncio.Future[PGresult] | None = None
        """There once it was sent."""
        self._subscription = subscription

    def disarm(self) -> bool:
        """Send it no more. False if it was."""
        if self._subscription.armed is self:
            self._subscription.armed = None
        return self.answered is None

    async def answer(self, reply_seconds: float, block_seconds: float) -> bytes | None:
        """What the server says to it, once it was sent. As for Ear.call."""
        assert self.answered is not None
        return await self._subscription.ear.answer(self.answered, reply_seconds, block_seconds)


class QueueSubscription:
    """One subscriber's wish to be woken."""

    def __init__(
        self, ear: Ear, queues: frozenset[str], wake: Callable[[], None], remove: Callable[[QueueSubscription], None]
    ) -> None:
        self.queues = queues
        self.ear = ear
        self.armed: ArmedCall | None = None
        self.worker: str | None = None
        """Whose calls lie ready here, once one did."""
        self._call = wake
        self._remove = remove

    def arm(
        self, function: str, arguments: Sequence[Argument], worker: str, leave: Callable[[], None]
    ) -> ArmedCall | None:
        """Let the next wake-up send a worker's call, if the function was called on this connection before.
        `leave` is told first."""
        self.worker = worker
        send = self.ear.prepared_call(function, arguments)
        self.armed = None if send is None else ArmedCall(self, worker, send, leave)
        return self.armed

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
        self._remove(self)
