"""Jobs in PostgreSQL. Every request is one call of a function; what is decided is decided there."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from pydantic_core import from_json

from tenure.errors import InternalError, StoreBusy, TenureError
from tenure.model import failpoints
from tenure.model.clock import from_us
from tenure.model.job import Enqueued
from tenure.store.admin import InstalledProfile, InstallProfile
from tenure.store.contract import (
    Armed,
    Claim,
    Enqueue,
    Exchange,
    Exchanged,
    Heartbeat,
    Request,
    StoreStats,
    Subscription,
)
from tenure.store.measuring import DropQueue, Measure
from tenure.store.postgres import migrate as migrations
from tenure.store.postgres import moves, operating, profiles, reading, scheduling, summary
from tenure.store.postgres.address import POOL_SIZE
from tenure.store.postgres.call import Argument, Call
from tenure.store.postgres.ear import ArmedCall, Ear, QueueSubscription
from tenure.store.postgres.errors import driver_errors, is_safe, translate
from tenure.store.postgres.gather import Gather
from tenure.store.postgres.link import Link
from tenure.store.postgres.listen import Listener
from tenure.store.postgres.marks import Marks
from tenure.store.postgres.pool import Pool
from tenure.store.summary import Inspect

T = TypeVar("T")

_CALLS: dict[type[Any], Call] = {
    **moves.CALLS,
    **reading.CALLS,
    **operating.CALLS,
    **scheduling.CALLS,
    **summary.CALLS,
    **profiles.CALLS,
}
_APART = (Inspect, Measure, DropQueue)
"""Answered on a connection of their own, with the rights of whoever opened the store."""
_Calling = tuple[str, tuple[Argument, ...]]
_FEW = "claim_few"
_BLOCK_SECONDS = 0.005
"""How long an event loop that has nothing else to do is kept for an answer."""
_TRIES = 6


class PostgresStore:
    """A store on PostgreSQL 14 or later. Thread-safe, loop-safe, fork-safe."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        awake: bool = True,
        reply_seconds: float = 60.0,
        wait_seconds: float = 30.0,
    ) -> None:
        self.url = url
        self._awake = awake
        self._reply_seconds = reply_seconds
        self._pool = Pool(self._connect, pool_size, wait_seconds)
        # Heartbeats have a connection of their own: however busy the rest is, leases are extended.
        self._pulse = Pool(self._connect, 1, wait_seconds)
        self._marks = Marks()
        self._gather = Gather(self._enqueue_now, self._aenqueue_now)
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        self._requests = self._statements = self._retries = 0

    def do(self, request: Request[T]) -> T:
        """Carry out a request and wait for the answer."""
        self._requests += 1
        if type(request) is Enqueue:
            return cast(T, self._gather.enqueue(request))
        if isinstance(request, (Exchange, Claim)):
            return cast(T, self._exchange(request))
        if type(request) in _APART:
            return cast(T, self._apart(request))
        call = _call_for(request)
        pool = self._pulse if type(request) is Heartbeat else self._pool
        answer = self._run(call.function, (call.encode(request),), pool)
        return cast(T, call.decode(answer, request))

    async def ado(self, request: Request[T], *, may_block: bool = False) -> T:
        """Carry out a request without blocking the event loop."""
        self._requests += 1
        if type(request) is Enqueue:
            return cast(T, await self._gather.aenqueue(request))
        if isinstance(request, (Exchange, Claim)):
            return cast(T, await self._aexchange(request, _BLOCK_SECONDS if may_block else 0.0))
        if type(request) in _APART:
            return cast(T, await asyncio.get_running_loop().run_in_executor(None, self.do, cast(Any, request)))
        call = _call_for(request)
        pool = self._pulse if type(request) is Heartbeat else self._pool
        answer = await self._arun(call.function, (call.encode(request),), pool)
        return cast(T, call.decode(answer, request))

    def enqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """Enqueue inside the caller's transaction."""
        from tenure.store import transactions

        answer = transactions.call_enqueue(connection, moves.encode_enqueue(request, notify="always"))
        return moves.decode_enqueue(answer, request)

    async def aenqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """The same on an async connection."""
        from tenure.store import transactions

        answer = await transactions.acall_enqueue(connection, moves.encode_enqueue(request, notify="always"))
        return moves.decode_enqueue(answer, request)

    def subscribe(
        self, queues: Sequence[str], wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> Subscription:
        """Be woken by notifications. One listening connection serves all subscriptions of this store."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener(self.url)
            return _Subscription(self, self._listener.subscribe(queues, wake, loop))

    def migrate(self) -> list[str]:
        """Bring the schema up to this version."""
        return migrations.migrate(self.url)

    def migration_sql(self) -> str:
        """What `migrate` runs on an empty database."""
        return migrations.migration_sql()

    def schema_version(self) -> int:
        """The newest migration in the database, 0 if there is none."""
        return migrations.schema_version(self.url)

    def install_profile(self, install: InstallProfile) -> InstalledProfile:
        """Run a profile's script and note it down."""
        return profiles.install(self.url, install)

    def now(self) -> datetime:
        """The server's clock, or the one a test has set."""
        return from_us(int(self._run("now_us", (), self._pool)))

    def stats(self) -> StoreStats:
        """Counters since this object was made. Every statement is a transaction of its own."""
        return StoreStats(self._requests, self._statements, self._statements, self._retries)

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._pool.close()
        self._pulse.close()

    async def aclose(self) -> None:
        """The same; closing sockets does not block for long, but the listener's thread is joined elsewhere."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _apart(self, request: Any) -> Any:
        from tenure.store.postgres import measuring

        if isinstance(request, Measure):
            return measuring.measure(self.url, request)
        if isinstance(request, DropQueue):
            return measuring.drop_queue(self.url, request)
        return summary.inspect(self.url, lambda: self._run("newest", (), self._pool))

    def _connect(self) -> Link:
        with driver_errors(self.url):
            return Link(self.url, self._reply_seconds, awake=self._awake)

    def _refuse(self, exc: psycopg.Error, attempt: int, tries: int) -> None:
        """Raise what `exc` means, unless another try may do."""
        error = translate(exc, self.url)
        if not _worth_another_try(error, attempt, tries):
            raise error from (exc if is_safe(exc, self.url) else None)
        self._retries += 1

    def _run(self, function: str, arguments: tuple[Argument, ...], pool: Pool, tries: int = _TRIES) -> Any:
        """One call; repeated where the server says that nothing happened and another try may do."""
        for attempt in range(1, tries + 1):
            link = pool.take()
            self._statements += 1
            try:
                answer = link.call(function, *arguments)
                failpoints.point("after_commit_before_reply")
                return None if answer is None else from_json(answer)
            except psycopg.Error as exc:
                self._refuse(exc, attempt, tries)
            finally:
                pool.give(link)
            time.sleep(_pause(attempt))
        raise InternalError("unreachable: the last try either answers or raises")

    async def _arun(
        self,
        function: str,
        arguments: tuple[Argument, ...],
        pool: Pool,
        tries: int = _TRIES,
        block_seconds: float = 0.0,
    ) -> Any:
        for attempt in range(1, tries + 1):
            link = await pool.atake()
            self._statements += 1
            try:
                answer = await link.acall(function, *arguments, block_seconds=block_seconds)
                failpoints.point("after_commit_before_reply")
                return None if answer is None else from_json(answer)
            except psycopg.Error as exc:
                self._refuse(exc, attempt, tries)
            finally:
                pool.give(link)
            await asyncio.sleep(_pause(attempt))
        raise InternalError("unreachable: the last try either answers or raises")

    def _free_ear(self) -> Ear | None:
        """The connection on which this loop listens: an idle worker's poll goes there, see `listen`."""
        listener = self._listener
        return None if listener is None else listener.free_ear(asyncio.get_running_loop())

    async def _acall_on(self, ear: Ear, function: str, arguments: tuple[Argument, ...], block_seconds: float) -> Any:
        return await self._heard(ear.call(function, arguments, self._reply_seconds, block_seconds))

    async def _heard(self, answering: Awaitable[bytes | None]) -> Any:
        self._statements += 1
        try:
            answer = await answering
        except psycopg.Error as exc:
            self._refuse(exc, 1, 1)
            raise
        failpoints.point("after_commit_before_reply")
        return None if answer is None else from_json(answer)

    def arm(self, line: QueueSubscription, request: Exchange, leave: Callable[[], None]) -> Armed | None:
        """Let the next wake-up on `line` send a claim; see store.base.Subscription."""
        _, call, full = self._prepare(request)
        claim = request.claim
        if call is None or claim is None:
            return None
        armed = line.arm(*call, claim.worker, leave)
        if armed is None:
            return None

        def decode(answer: Any) -> Exchanged:
            if armed.is_handed_over:
                return moves.decode_taken(answer, claim)
            return cast(Exchanged, self._finish(request, request, call, answer, full=full))

        return _Armed(armed, self._hear_armed, decode)

    async def _hear_armed(self, armed: ArmedCall) -> Any:
        self._requests += 1
        return await self._heard(armed.answer(self._reply_seconds, _BLOCK_SECONDS))

    def _enqueue_now(self, request: Enqueue) -> list[Enqueued]:
        function, arguments = moves.enqueue_call(request)
        return moves.decode_enqueue(self._run(function, arguments, self._pool), request)

    async def _aenqueue_now(self, request: Enqueue) -> list[Enqueued]:
        function, arguments = moves.enqueue_call(request)
        return moves.decode_enqueue(await self._arun(function, arguments, self._pool), request)

    def _exchange(self, request: Exchange | Claim) -> Any:
        exchange, call, full = self._prepare(request)
        if call is None:
            return self._empty(request)
        return self._finish(request, exchange, call, self._run(*call, self._pool, tries=1), full=full)

    async def _aexchange(self, request: Exchange | Claim, block_seconds: float) -> Any:
        exchange, call, full = self._prepare(request)
        if call is None:
            return self._empty(request)
        ear = self._free_ear() if block_seconds else None
        if ear is not None:
            answer = await self._acall_on(ear, *call, block_seconds)
        else:
            answer = await self._arun(*call, self._pool, tries=1, block_seconds=block_seconds)
        return self._finish(request, exchange, call, answer, full=full)

    def _prepare(self, request: Exchange | Claim) -> tuple[Exchange, _Calling | None, bool]:
        """The function to call with its arguments, None if there is nothing to do; and whether it looks everywhere."""
        exchange = request if isinstance(request, Exchange) else Exchange((), request)
        claim = exchange.claim
        if claim is not None and not exchange.outcomes and moves.is_few(claim):
            times = self._marks.give_times(claim)
            return exchange, (_FEW, moves.encode_few(claim, times)), times is None
        parts, full = [], True
        if exchange.outcomes:
            parts.append(f'"outcomes":{moves.encode_outcomes(exchange.outcomes)}')
        if claim is not None:
            marks = self._marks.give(claim)
            full = marks is None
            parts.append(f'"claim":{moves.encode_claim(claim, marks)}')
        return exchange, ("exchange", (f"{{{','.join(parts)}}}",)) if parts else None, full

    def _finish(self, request: Exchange | Claim, exchange: Exchange, call: _Calling, answer: Any, *, full: bool) -> Any:
        if call[0] is _FEW:
            answer = {"granted": answer}
        granted = answer.get("granted")
        if granted is not None and exchange.claim is not None:
            self._marks.take(exchange.claim, granted, full=full)
        exchanged = moves.decode_exchange(answer, exchange)
        return exchanged if isinstance(request, Exchange) else exchanged.grants

    def _empty(self, request: Exchange | Claim) -> Any:
        return Exchanged({}, []) if isinstance(request, Exchange) else []


class _Subscription:
    """Keeps the contract of `tenure.store.contract.Subscription`."""

    def __init__(self, store: PostgresStore, line: QueueSubscription) -> None:
        self._store = store
        self._line = line

    def close(self) -> None:
        self._line.close()

    def is_alive(self) -> bool:
        return self._line.is_alive()

    def arm(self, request: Exchange, leave: Callable[[], None]) -> Armed | None:
        """A claim of a few jobs, once its statement is prepared on the connection that listens: by the first poll."""
        return self._store.arm(self._line, request, leave)


class _Armed:
    """Keeps the contract of `tenure.store.contract.Armed`."""

    def __init__(
        self, call: ArmedCall, hear: Callable[[ArmedCall], Awaitable[Any]], decode: Callable[[Any], Exchanged]
    ) -> None:
        self._call = call
        self._hear = hear
        self._decode = decode

    def disarm(self) -> bool:
        return self._call.disarm()

    async def answer(self) -> Exchanged:
        return self._decode(await self._hear(self._call))


def _call_for(request: Request[Any]) -> Call:
    call = _CALLS.get(type(request))
    if call is None:
        raise InternalError(f"PostgreSQL does not know the request {type(request).__name__}. Please report this.")
    return call


def _worth_another_try(error: TenureError, attempt: int, tries: int) -> bool:
    """Deadlock, serialization, lock time-out: the server says nothing happened.
    A lost connection is left to the caller."""
    return type(error) is StoreBusy and attempt < tries


def _pause(attempt: int) -> float:
    return random.uniform(0.5, 1.0) * min(0.5, 0.005 * (1 << attempt))
