"""Wake-ups: who waits for jobs learns of them at once.

Three ways, each behind the other:

1. *The same process*: after its commit the writer calls the subscribers itself.
2. *Other processes*: one datagram to each that listens (see `sockets`). The message names the queues. The event
   loop that waits reads it itself if it can (see `looped`), the listener thread otherwise. A job that was granted to a
   worker in the enqueue's own transaction (see `handover`) goes to that worker alone, and the message is the grant.
3. *Anybody else* (a job enqueued in a caller's own transaction, another program, a lost datagram): the listener polls
   `PRAGMA data_version`, which tells of other connections' commits for the price of a look at shared memory, and asks
   whether there is something to claim only if it has changed. Every 50 ms; but an enqueue in a caller's transaction
   announces itself, because its commit is out of our sight, and then the poll runs each millisecond for a while.

A wake-up is a hint. Whoever waits polls behind it, and the listener thread never raises.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tenure.errors import StoreUnavailable
from tenure.store.sqlite import place
from tenure.store.sqlite.connect import open_reader
from tenure.store.sqlite.offers import UNKNOWN, Offering, Offers
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.sockets import LONGEST_MESSAGE, Mailbox, Postman

if TYPE_CHECKING:
    import asyncio

    from tenure.store.sqlite.armed import ArmedClaim
    from tenure.store.sqlite.looped import LoopReader

POLL_SECONDS: Final = 0.05
LEAST_SECONDS: Final = 0.001
"""Datagrams closer together than this share one wake-up."""
SOON_SECONDS: Final = ((0.2, 0.001), (2.0, 0.005))
"""After an announcement: for so long, poll so often."""
DEAF_SECONDS: Final = 10.0

_SOON: Final = b"s"
_ALL: Final = b"*"
_QUEUES: Final = b"q"
_WORD: Final = b"g"
_LONGEST: Final = 1000
_LONGEST_WORD: Final = LONGEST_MESSAGE - 64

_log = logging.getLogger(__name__)


class Listening:
    """A live wake-up."""

    def __init__(
        self, hub: Hub, queues: Iterable[str], wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.queues = frozenset(queues)
        self.loop = loop
        self.wake_here = wake
        """On the thread of its loop, if it has one."""
        self.wake = wake if loop is None else _on_loop(loop, wake)
        self.armed: ArmedClaim | None = None
        """What the next datagram carries out, before it wakes."""
        self.offered: ArmedClaim | None = None
        """What was last offered to other processes."""
        self.offering: Offering | None = None
        self._hub = hub

    def close(self) -> None:
        """End it. Closing twice is harmless."""
        self.armed = self.offered = None
        self._hub.drop(self)
        self.offer_no_more()

    def offer_no_more(self) -> None:
        """Take away the pipe."""
        offering, self.offering = self.offering, None
        if offering is not None:
            offering.close()

    def is_alive(self) -> bool:
        """Whether the listener has looked lately."""
        return self._hub.is_listening(self)


class Hub:
    """The subscribers of one file in this process, and the thread that listens for them."""

    def __init__(self, watched: place.Watched) -> None:
        self._watched = watched
        self._lock = threading.Lock()
        self._subscribers: tuple[Listening, ...] = ()
        self.postman = Postman(watched.path)
        self.offers = Offers(self.postman)
        self._listener: _Listener | None = None

    def subscribe(
        self, queues: Sequence[str], wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> Listening:
        """Call `wake` when jobs may have arrived in these queues; on the thread of `loop`, if there is one."""
        listening = Listening(self, queues, wake, loop)
        with self._lock:
            self._subscribers = (*self._subscribers, listening)
            if self._listener is None:
                self._listener = _Listener(self._watched, self)
            self._listener.let_read(self._only_loop())
        return listening

    def drop(self, listening: Listening) -> None:
        """End one subscription; the thread goes with the last."""
        with self._lock:
            self._subscribers = tuple(each for each in self._subscribers if each is not listening)
            stopped = self._listener if not self._subscribers else None
            if stopped is not None:
                self._listener = None
            elif self._listener is not None:
                self._listener.let_read(self._only_loop())
        if stopped is not None:
            stopped.stop()

    def is_listening(self, listening: Listening) -> bool:
        """Whether this subscription is served."""
        listener = self._listener
        return listener is not None and listening in self._subscribers and listener.is_alive()

    def tell(self, queues: Collection[str], stops: bool) -> None:
        """After a commit: wake whoever waits for jobs in these queues; everybody if a held job is asked to stop."""
        if self._subscribers:
            self.wake(None if stops else queues)
        if self.postman.has_mailboxes():
            names = b"\n".join(name.encode("utf-8", "surrogatepass") for name in queues)
            self._send(_ALL if stops or len(names) > _LONGEST else _QUEUES + names)

    def only_others_wait(self, queue: str) -> bool:
        """Whether other processes listen, and nobody here waits for jobs in this queue."""
        return not any(queue in each.queues for each in self._subscribers) and self.postman.has_mailboxes()

    def send_word(self, mailbox: str, nonce: int, text: str) -> bool:
        """Answer an offer; whether the answer will be read. Where it is too long, the worker is told to ask."""
        head = b"%s%d\n" % (_WORD, nonce)
        told = text.encode("utf-8", "surrogatepass")
        return self.postman.deliver(mailbox, head + (told if len(told) < _LONGEST_WORD else UNKNOWN.encode()))

    def hand(self, word: bytes, here: asyncio.AbstractEventLoop | None) -> None:
        """Give an answer to whoever made the offer and still waits for it."""
        head, _, text = word[1:].decode("utf-8", "surrogatepass").partition("\n")
        for each in self._subscribers:
            armed = each.offered
            if armed is None or each.loop is None or str(armed.nonce) != head:
                continue
            try:
                if each.loop is here:
                    armed.hand(int(head), text)
                else:
                    each.loop.call_soon_threadsafe(armed.hand, int(head), text)
            except Exception:  # noqa: BLE001 - the worker asks for it, then
                _log.exception("A job that was handed over could not be taken in")

    def offering(self, listening: Listening, queue: str) -> Offering | None:
        """Where the offers of a subscription stand. None where its loop could not read the answer."""
        with self._lock:
            listener, found = self._listener, listening.offering
            if found is None and listener is not None and listening in self._subscribers:
                mailbox = listener.mailbox.path
                if mailbox is not None and listener.is_read_by(listening.loop):
                    with contextlib.suppress(OSError):
                        found = listening.offering = Offering(mailbox, queue)
        return found if found is not None and found.queue == queue else None

    def tell_soon(self) -> None:
        """A transaction that is not ours has jobs in it, and will be committed or not."""
        listener = self._listener
        if listener is not None:
            listener.expect_soon()
        self._send(_SOON)

    def _only_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that all subscribers are on; None if there is no such. On a closed loop nobody listens any more."""
        loops = {each.loop for each in self._subscribers if each.loop is None or not each.loop.is_closed()}
        return loops.pop() if len(loops) == 1 else None

    def wake(self, queues: Iterable[str] | None, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Wake the subscribers of these queues in this process; all of them for None. `here`: the loop whose thread
        this is."""
        for each in self._subscribers:
            if queues is None or not each.queues.isdisjoint(queues):
                try:
                    if here is not None and each.loop is here:
                        if queues is not None and each.armed is not None:
                            each.armed.carry_out()
                        each.wake_here()
                    else:
                        each.wake()
                except Exception:  # noqa: BLE001 - somebody else's callback must not cost the writer its commit
                    _log.exception("A wake-up callback failed")

    def wanted(self) -> list[str]:
        """All queues that somebody here waits for."""
        return sorted({queue for each in self._subscribers for queue in each.queues})

    def _send(self, message: bytes) -> None:
        listener = self._listener
        self.postman.send(message, None if listener is None else listener.mailbox.path)

    def pause(self, seconds: float) -> threading.Lock | None:
        """Wait until the listener does not look at the file, and keep it so until the lock is released, for a fork."""
        listener = self._listener
        return listener.looking if listener is not None and listener.looking.acquire(timeout=seconds) else None

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: the thread did not come along, and the sockets are the parent's."""
        listener, self._listener = self._listener, None
        self._lock = threading.Lock()
        subscribers, self._subscribers = self._subscribers, ()
        for each in subscribers:
            if each.offering is not None:
                each.offering.forget()
        self.offers.forget()
        self.postman.forget()
        return [] if listener is None else listener.abandon()

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            subscribers, self._subscribers = self._subscribers, ()
            listener, self._listener = self._listener, None
        for each in subscribers:
            each.offer_no_more()
        if listener is not None:
            listener.stop()
        self.offers.close()
        self.postman.close()


class _Listener:
    """The thread: waits for datagrams, and looks at the file in between."""

    def __init__(self, watched: place.Watched, hub: Hub) -> None:
        self.mailbox = Mailbox(watched.path)
        self.looking = threading.Lock()
        """Held while the connection is in use."""
        self._watched = watched
        self._hub = hub
        self._reader: LoopReader | None = None
        self._control_out, self._control_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._control_lock = threading.Lock()
        self._is_stopping = False
        self._is_over = False
        self._soon_at = -1e9
        self._looked_at = time.monotonic()
        self._woke_at = 0.0
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._version: int | None = None
        self._thread = threading.Thread(target=self._run, name="tenure-sqlite-wake", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it has looked lately."""
        return self._thread.is_alive() and time.monotonic() - self._looked_at < DEAF_SECONDS

    def is_read_by(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether this loop reads the socket."""
        reader = self._reader
        return reader is not None and reader.loop is loop and reader.is_reading

    def let_read(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Let this loop read the socket; None: the thread. Under the hub's lock."""
        before = self._reader
        if before is not None and before.loop is loop:
            return
        self._reader = None
        if before is not None:
            before.stop()
            self._nudge()  # the thread reads again
        if loop is not None and self.mailbox.socket is not None:
            from tenure.store.sqlite.looped import LoopReader  # whoever is on a loop has loaded asyncio

            reader = LoopReader(loop, self.mailbox.socket, lambda messages: self._take(messages, loop), LEAST_SECONDS)
            try:
                loop.call_soon_threadsafe(self._hand_to, reader)
            except RuntimeError:  # closed meanwhile
                reader.stop()
                return
            self._reader = reader

    def _hand_to(self, reader: LoopReader) -> None:
        """On the loop's thread: from now on it reads, and the thread only polls."""
        reader.start()
        self._nudge()

    def expect_soon(self) -> None:
        """Poll more often for a while."""
        self._soon_at = time.monotonic()
        self._nudge()

    def stop(self) -> None:
        """End the thread."""
        self.let_read(None)
        self._is_stopping = True
        self._nudge()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child."""
        if self._reader is not None:
            self._reader.forget()
        self.mailbox.forget()
        os.close(self._control_in)
        os.close(self._control_out)
        return [] if self._connection is None else [self._connection]

    def _nudge(self) -> None:
        with self._control_lock, contextlib.suppress(BlockingIOError):
            if not self._is_over:
                os.write(self._control_in, b"n")

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self.mailbox.close()
            self._close_connection()
            with self._control_lock:
                self._is_over = True
                os.close(self._control_in)
                os.close(self._control_out)

    def _turn(self) -> None:
        waiting = select.poll()
        waiting.register(self._control_out, select.POLLIN)
        reader = self._reader
        is_ours = reader is None or not reader.is_reading
        if is_ours and self.mailbox.socket is not None:
            waiting.register(self.mailbox.socket, select.POLLIN)
        ready = waiting.poll(self._pause() * 1000)
        self._looked_at = time.monotonic()
        if any(handle == self._control_out for handle, _ in ready):
            with contextlib.suppress(BlockingIOError):
                os.read(self._control_out, 4096)
        if ready and is_ours and (messages := self.mailbox.receive()):
            self._take(messages)
        if not ready or self._looked_at - self._soon_at < SOON_SECONDS[-1][0]:
            with self.looking:
                self._look()

    def _pause(self) -> float:
        since = time.monotonic() - self._soon_at
        return next((pause for until, pause in SOON_SECONDS if since < until), POLL_SECONDS)

    def _take(self, messages: list[bytes], here: asyncio.AbstractEventLoop | None = None) -> None:
        """What datagrams say, on the thread or on that loop's."""
        if here is not None and len(messages) == 1 and messages[0].startswith(_QUEUES):  # as it often is, in a hurry
            self._hub.wake(messages[0][1:].decode("utf-8", "surrogatepass").split("\n"), here)
            return
        messages = self._hand(messages, here)
        if not messages:
            return
        if any(message == _SOON for message in messages):
            if here is None:
                self._soon_at = self._looked_at
            else:
                self.expect_soon()
        if any(message != _SOON for message in messages):
            self._deliver(messages, here)

    def _hand(self, messages: list[bytes], here: asyncio.AbstractEventLoop | None) -> list[bytes]:
        """Give answers to offers to whom they belong; what else there is."""
        for message in messages:
            if message.startswith(_WORD):
                self._hub.hand(message, here)
        return [message for message in messages if not message.startswith(_WORD)]

    def _deliver(self, messages: list[bytes], here: asyncio.AbstractEventLoop | None) -> None:
        """Wake for what the datagrams name. In a flood, what came meanwhile shares one wake-up."""
        if here is None:
            early = LEAST_SECONDS - (time.monotonic() - self._woke_at)
            if early > 0:
                time.sleep(early)
                messages += self._hand(self.mailbox.receive(), here)
            self._woke_at = time.monotonic()
        if any(message.startswith(_ALL) for message in messages):
            self._hub.wake(None, here)
            return
        names = {name for message in messages if message.startswith(_QUEUES) for name in message[1:].split(b"\n")}
        self._hub.wake({name.decode("utf-8", "surrogatepass") for name in names}, here)

    def _look(self) -> None:
        """Has somebody else committed, and is there something to claim?"""
        try:
            connection = self._ready()
            version = connection.execute(load("data_version")).fetchone()[0]
            if version == self._version:
                return
            self._version = version
            values = {"queues": json.dumps(self._hub.wanted())}
            found = [row[0] for row in connection.execute(load("claimable"), values).fetchall()]
        except (sqlite3.Error, OSError, StoreUnavailable):  # not migrated yet, or gone: the next look tries again
            self._close_connection()
            return
        if found:
            self._hub.wake(found)

    def _ready(self) -> sqlite3.Connection:
        seen = self._watched.now()
        if self._connection is not None and seen != self._identity:
            self._close_connection()
        if self._connection is None:
            self._identity = self._watched.admit()
            self._connection = open_reader(self._watched.path)
            self._version = None
        return self._connection

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _on_loop(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> Callable[[], None]:
    """`wake` as a call from any thread. Once the loop is closed nobody is left to wake."""

    def call() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake)

    return call
