"""Requests on their way through the writer, and how their answers get back: to a thread by a lock, to an event loop by
a future."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tenure.model.clock import Clock
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.transaction import Transaction

if TYPE_CHECKING:
    import asyncio

Act = Callable[[Transaction, Any], Any]
AtOnce = Callable[[sqlite3.Connection, Known, Any, int], tuple[Any, str | None] | None]
"""An act by one statement outside of a transaction: its answer and the queue to be woken, if any; None if nothing was
done."""


class Waiting:
    """Somebody's request on its way. `gate` is a lock that its caller waits on; `future` stands in for it on an
    event loop."""

    __slots__ = ("act", "answer", "clock", "error", "future", "gate", "is_done", "leads", "loop", "request")

    def __init__(self, act: Act, request: Any, clock: Clock) -> None:
        self.act = act
        self.request = request
        self.clock = clock
        self.gate: Any = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: asyncio.Future[Any] | None = None
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.leads = False


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
