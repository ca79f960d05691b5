"""Requests on their way through the writer, and how their answers get back: to a thread by a lock, to an event loop by
a future."""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tenure.model.clock import Clock
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.transaction import Transaction

if TYPE_CHECKING:
    import asyncio

A_MOMENT: Final = 1e-6
"""Seconds; the system makes some 60 microseconds of it."""

Act = Callable[[Transaction, Any], Any]
AtOnce = Callable[[sqlite3.Connection, Known, Any, int], tuple[Any, str | None] | None]
"""An act by one statement outside of a transaction: its answer and the queue to be woken, if any; None if nothing was
done."""


class Waiting:
    """Somebody's request on its way. `gate` is a lock that its caller waits on; `future` stands in for it on an
    event loop."""

    __slots__ = (
        "act", "answer", "at_once", "clock", "error", "future", "gate", "is_done", "is_large", "leads", "loop",
        "request",
    )  # fmt: skip

    def __init__(
        self, act: Act, request: Any, clock: Clock, at_once: AtOnce | None = None, *, is_large: bool = False
    ) -> None:
        self.act = act
        self.request = request
        self.clock = clock
        self.at_once = at_once
        self.is_large = is_large
        self.gate: Any = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.leads = False


def take(pending: deque[Waiting], most: int) -> list[Waiting]:
    """Who shares the next commit: whoever waits, up to the first large request, which has one of its own."""
    batch: list[Waiting] = []
    while pending and len(batch) < most and not (batch and (batch[0].is_large or pending[0].is_large)):
        batch.append(pending.popleft())
    return batch


@contextmanager
def giving_way(loop: asyncio.AbstractEventLoop, seconds: float, *, now: bool) -> Iterator[None]:
    """Meanwhile the loop's thread sleeps for a moment every so many `seconds`, and `now`: just long enough for another
    thread to wake up and take Python's lock. Less and less often, should the answer be long in coming."""

    def give_way(pause: float) -> None:
        timers[0] = loop.call_later(pause, give_way, pause * 1.1)
        time.sleep(A_MOMENT)

    timers = [loop.call_later(seconds, give_way, seconds)]
    if now:
        time.sleep(A_MOMENT)
    try:
        yield
    finally:
        timers[0].cancel()


def release(batch: Sequence[Waiting]) -> None:
    """Hand out answers; each event loop is woken once."""
    loops: dict[asyncio.AbstractEventLoop, list[Waiting]] = {}
    for item in batch:
        if item.loop is not None:
            loops.setdefault(item.loop, []).append(item)
            item.loop = None
        elif item.gate is not None:
            gate, item.gate = item.gate, None
            if not item.leads:
                gate.release()
    for loop, items in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, items)
        except RuntimeError:  # the loop was closed meanwhile; nobody waits there any more
            continue


def _resolve(items: Sequence[Waiting]) -> None:
    """On the loop's own thread. A future that was cancelled has nobody left who waits."""
    for item in items:
        future = item.future
        assert future is not None
        if future.done():
            continue
        if item.error is not None:
            future.set_exception(item.error)
        else:
            future.set_result(item.answer)
