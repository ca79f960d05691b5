"""Batches that form by themselves: enqueues that arrive while others are on their way share the next round trip.

The first caller carries its own request at once and whatever else has gathered; no timer, no thread. If a shared
request is refused (a closed gate, a key conflict), each caller's own is sent by itself, so that everybody gets the
answer to what they asked.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tenure.errors import StoreUnavailable, TenureError
from tenure.model.job import Enqueued
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Enqueue

_MOST_JOBS = 1000
_IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class _Waiting:
    """One caller in line."""

    request: Enqueue
    ring: Callable[[], None]
    answer: list[Enqueued] | None = None
    error: BaseException | None = None
    leads: bool = False
    """It is this caller's turn to carry the next batch."""
    done: bool = field(default=False)


class Gather:
    """The line of enqueues in front of one store."""

    def __init__(
        self, send: Callable[[Enqueue], list[Enqueued]], asend: Callable[[Enqueue], Awaitable[list[Enqueued]]]
    ) -> None:
        self._send = send
        self._asend = asend
        self._lock = threading.Lock()
        self._line: list[_Waiting] = []
        self._in_flight = 0

    def enqueue(self, request: Enqueue) -> list[Enqueued]:
        """Enqueue together with whoever else wants to."""
        if self._may_go():
            try:
                return self._send(request)
            finally:
                self._pass_on()
        turn = threading.Event()
        me = _Waiting(request, turn.set)
        if not self._join(me):
            turn.wait()
        if me.leads:
            batch = self._take_batch(me)
            try:
                self._share(batch, lambda: self._send(_merge(batch)))
            finally:
                self._pass_on()
            for alone in _unanswered(batch):
                try:
                    alone.answer = self._send(alone.request)
                except TenureError as exc:
                    alone.error = exc
            _ring(batch, me)
        return _result(me)

    async def aenqueue(self, request: Enqueue) -> list[Enqueued]:
        """The same for a task."""
        if self._may_go():
            try:
                return await self._asend(request)
            finally:
                self._pass_on()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        me = _Waiting(request, lambda: _wake(loop, turn))
        if not self._join(me):
            await asyncio.shield(turn)
        if me.leads:
            batch = self._take_batch(me)
            try:
                merged = await self._asend(_merge(batch))
            except BaseException as exc:
                self._fail(batch, exc)
                if not isinstance(exc, TenureError):
                    _ring(batch, me)
                    raise
            else:
                _spread(batch, merged)
            finally:
                self._pass_on()
            for alone in _unanswered(batch):
                try:
                    alone.answer = await self._asend(alone.request)
                except TenureError as exc:
                    alone.error = exc
            _ring(batch, me)
        return _result(me)

    def _may_go(self) -> bool:
        """Whether there is room to go at once. Then nobody waits in line either, so there is nothing to carry along."""
        with self._lock:
            if self._in_flight < _IN_FLIGHT:
                self._in_flight += 1
                return True
            return False

    def _join(self, me: _Waiting) -> bool:
        """Stand in line; True if there is room to go at once."""
        with self._lock:
            self._line.append(me)
            if self._in_flight < _IN_FLIGHT:
                self._in_flight += 1
                me.leads = True
                return True
            return False

    def _take_batch(self, me: _Waiting) -> list[_Waiting]:
        """The caller itself and those in line that fit with it."""
        with self._lock:
            batch, jobs = [me], len(me.request.jobs)
            rest: list[_Waiting] = []
            for waiting in self._line:
                if waiting is me:
                    continue
                if waiting.leads or jobs + len(waiting.request.jobs) > _MOST_JOBS:
                    rest.append(waiting)
                else:
                    batch.append(waiting)
                    jobs += len(waiting.request.jobs)
            self._line = rest
            return batch

    def _share(self, batch: list[_Waiting], send: Callable[[], list[Enqueued]]) -> None:
        try:
            _spread(batch, send())
        except TenureError as exc:
            self._fail(batch, exc)
        except BaseException as exc:
            self._fail(batch, exc)
            _ring(batch, batch[0])
            raise

    def _fail(self, batch: list[_Waiting], exc: BaseException) -> None:
        """An error of the store is everybody's; a refusal is only that of whoever caused it."""
        if len(batch) == 1:
            batch[0].error = exc
        elif not isinstance(exc, TenureError) or isinstance(exc, StoreUnavailable):
            shared = (
                exc
                if isinstance(exc, TenureError)
                else StoreUnavailable(
                    "The caller that carried this enqueue was interrupted, so its outcome is unknown. Repeat it: it "
                    "is safe to repeat."
                )
            )
            for waiting in batch:
                waiting.error = shared

    def _pass_on(self) -> None:
        """Let the next in line lead."""
        with self._lock:
            for waiting in self._line:
                if not waiting.leads:
                    waiting.leads = True
                    waiting.ring()
                    return
            self._in_flight -= 1


def _merge(batch: list[_Waiting]) -> Enqueue:
    if len(batch) == 1:
        return batch[0].request
    create: dict[str, QueuePolicy] = {}
    for waiting in batch:
        create.update(waiting.request.create_queues)
    return Enqueue([job for waiting in batch for job in waiting.request.jobs], create)


def _spread(batch: list[_Waiting], answers: list[Enqueued]) -> None:
    at = 0
    for waiting in batch:
        count = len(waiting.request.jobs)
        waiting.answer = answers[at : at + count]
        at += count


def _unanswered(batch: list[_Waiting]) -> list[_Waiting]:
    return [waiting for waiting in batch if waiting.answer is None and waiting.error is None]


def _ring(batch: list[_Waiting], me: _Waiting) -> None:
    for waiting in batch:
        if waiting is not me:
            waiting.ring()


def _result(me: _Waiting) -> list[Enqueued]:
    if me.error is not None:
        raise me.error
    assert me.answer is not None
    return me.answer


def _wake(loop: asyncio.AbstractEventLoop, turn: asyncio.Future[None]) -> None:
    def set_it() -> None:
        if not turn.done():
            turn.set_result(None)

    loop.call_soon_threadsafe(set_it)
