"""Wake-ups from PostgreSQL: one connection that listens on an event loop, many subscriptions.

A notification is a hint. It may be lost (a pooler in transaction mode, a reconnect, a full queue), so whoever
subscribes polls as well; and it may come too often, so a wake-up must be cheap. What must never happen is a listener
that is deaf without knowing it: on a half-open socket nothing ever arrives, and nothing ever fails. Therefore the
server is asked something when it was silent for long, and a connection whose answer does not come is given up.
`is_alive` tells what is known, and after each reconnect everybody is woken once, because nobody can tell what was
missed.

Each event loop on which somebody listens has a connection of its own (see `ear`); a subscriber without a loop is
served by one in a thread.

Channel `tenure`; the payload is a queue's name, `cancel:` and a worker's id when a held job was asked to stop, or
`granted:`, a worker's id, `:` and a job's when an enqueue has handed a job over to that worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from tenure.model.frozen import frozen
from tenure.store.postgres.ear import Ear, QueueSubscription

PING_SECONDS: Final = 10.5
"""A connection is asked after so long a silence: somewhat more than a poll at its rarest, which makes it needless."""
ANSWER_SECONDS: Final = 4.0
"""An answer is waited for so long: deafness is noticed within 15 s."""


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
            subscription = QueueSubscription(ear, frozenset(queues), wake, self._remove)
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

    def _remove(self, subscription: QueueSubscription) -> None:
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
