"""The door: a Store on one SQLite file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from tenure.errors import InternalError, StoreClosed, StoreUnavailable, TenureError
from tenure.model import failpoints
from tenure.model.clock import Clock, SystemClock, from_us
from tenure.model.job import Enqueued
from tenure.store.admin import InstalledProfile, InstallProfile
from tenure.store.contract import Armed, Claim, Enqueue, Exchange, Request, StoreStats, Subscription
from tenure.store.processors import processors
from tenure.store.sqlite import database, joined, migrate, place, profiles
from tenure.store.sqlite.acts import AT_ONCE, LATE, PREPARES, READS, WRITES, is_large
from tenure.store.sqlite.armed import UNDONE, ArmedClaim
from tenure.store.sqlite.claim import has_backlog, known_terms
from tenure.store.sqlite.errors import translate

if TYPE_CHECKING:
    import asyncio

    from tenure.store.sqlite.dictation import Dictation
    from tenure.store.sqlite.wake import Listening

T = TypeVar("T")

BUSY_SECONDS: Final = 30.0
"""How long a write waits for another process's lock before it gives up with StoreBusy."""


class SqliteStore:
    """Jobs in one SQLite file. Thread-safe; may be made before a fork and used after it.

    All stores of one process on the same file share one writer, so their requests share commits.
    `clock` is for tests; the machine's clock judges leases otherwise.
    """

    def __init__(self, url: str, clock: Clock | None = None, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.url = url
        self._clock = clock or SystemClock()
        self._path = place.path_of(url)
        self._busy_seconds = busy_seconds
        self._database = database.acquire(self._path, busy_seconds)
        self._requests = 0
        self._is_closed = False
        self._close_lock = threading.Lock()
        self._before = self._counted()

    def do(self, request: Request[T]) -> T:
        """See store.base.Store."""
        shared = self._shared()
        kind = type(request)
        act = WRITES.get(kind)
        if act is not None:
            admitted = shared.reserve.admit(request)
            try:
                prepare = PREPARES.get(kind)
                prepared = admitted if prepare is None else prepare(admitted)
                answer = shared.writer.call(act, prepared, self._clock, shared.at_once.get(kind))
            except StoreUnavailable as exc:
                if not shared.reserve.gives_way(request, exc):
                    raise
                admitted = shared.reserve.admit(request)
                answer = shared.writer.call(act, _prepared(admitted), self._clock)
            failpoints.point("after_commit_before_reply")
            if isinstance(answer, LATE):
                answer = answer.finish()
            if admitted is not request:
                answer = shared.reserve.explain(answer)
            done: T = answer  # `cast` would be one call more
            return done
        act = READS.get(kind)
        if act is None:
            return cast(T, self._measuring(shared, request))
        return cast(T, shared.readers.call(act, request, self._clock))

    async def ado(self, request: Request[T], *, may_block: bool = False) -> T:
        """See store.base.Store."""
        shared = self._shared()
        kind = type(request)
        act = WRITES.get(kind)
        if act is not None:
            admitted = shared.reserve.admit(request)
            prepared, at_once, large = _prepared(admitted), shared.at_once.get(kind), is_large(admitted)
            if large and shared.dictation is not None and admitted is request:
                dictated = await self._dictated(shared, prepared)
                if dictated is UNDONE:
                    at_once = None
                elif dictated is not None:
                    return cast(T, dictated)
            try:
                answer = await shared.writer.acall(
                    act, prepared, self._clock, at_once, may_block=may_block, is_large=large
                )
            except StoreUnavailable as exc:
                if not shared.reserve.gives_way(request, exc):
                    raise
                admitted = shared.reserve.admit(request)
                answer = await shared.writer.acall(act, _prepared(admitted), self._clock)
            failpoints.point("after_commit_before_reply")
            answer = answer.finish() if isinstance(answer, LATE) else answer
            return cast(T, answer if admitted is request else shared.reserve.explain(answer))
        act = READS.get(kind)
        if act is None:
            import asyncio

            return cast(T, await asyncio.to_thread(self._measuring, shared, request))
        return cast(T, await shared.readers.acall(act, request, self._clock))

    async def _dictated(self, shared: database.Database, prepared: Any) -> Any:
        """The answer to a large exchange that the worker's scribe carried out. None if it was not asked, UNDONE if the
        one statement did nothing."""
        import asyncio

        dictation = shared.dictation
        if dictation is None or dictation.loop is not asyncio.get_running_loop():
            return None
        answer = await dictation.exchange(shared.writer.handle.known, prepared, self._clock.now_us())
        if not isinstance(answer, LATE):
            return answer
        failpoints.point("after_commit_before_reply")
        return answer.finish()

    def enqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """See store.base.Store. The wake-up follows the commit within milliseconds; see `joined`."""
        from tenure.store import transactions

        shared = self._shared()
        shared.reserve.admit(request)
        try:
            answers = transactions.use_sqlite(connection, lambda raw: self._join(raw, request))
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._path) from exc
        shared.hub.tell_soon()
        return answers

    async def aenqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """See store.base.Store. Also for aiosqlite."""
        from tenure.store import transactions

        shared = self._shared()
        shared.reserve.admit(request)
        try:
            answers = await transactions.ause_sqlite(connection, lambda raw: self._join(raw, request))
        except (sqlite3.Error, OverflowError, UnicodeEncodeError) as exc:
            raise translate(exc, self._path) from exc
        shared.hub.tell_soon()
        return answers

    def _measuring(self, shared: database.Database, request: Any) -> Any:
        """What only `tenure bench` asks for; imported for it alone."""
        from tenure.store.measuring import DropQueue, Measure
        from tenure.store.sqlite import measuring

        if isinstance(request, Measure):
            return measuring.measure(self._path, request)
        if isinstance(request, DropQueue):
            return shared.writer.call(measuring.drop_queue, request, self._clock)
        raise _unknown(type(request))

    def _join(self, raw: sqlite3.Connection, request: Enqueue) -> list[Enqueued]:
        return joined.enqueue_on(raw, request, self._path, self._clock.now_us())

    def subscribe(
        self, queues: Sequence[str], wake: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None
    ) -> Subscription:
        """See store.base.Store."""
        shared = self._shared()
        return _Subscription(self, shared.hub.subscribe(queues, wake, loop), self._dictation(shared, queues, loop))

    def _dictation(
        self, shared: database.Database, queues: Sequence[str], loop: asyncio.AbstractEventLoop | None
    ) -> Dictation | None:
        """A line for a scribe, for the first worker on this file. Scribes go by the machine's clock."""
        if loop is None or shared.dictation is not None or type(self._clock) is not SystemClock or processors() < 2:
            return None
        from tenure.store.sqlite.dictation import Dictation

        shared.dictation = dictation = Dictation(self._path, self._busy_seconds, loop)
        with contextlib.suppress(TenureError):  # whatever is wrong, the first claim will tell
            if shared.readers.call(has_backlog, queues, self._clock):
                dictation.start_and_wait()
        return dictation

    def arm(self, listening: Listening, request: Exchange, leave: Callable[[], None]) -> Armed | None:
        """Let the next datagram for `listening` carry out a claim, or an enqueue answer it; see
        store.base.Subscription."""
        claim = request.claim
        if listening.loop is None or claim is None:
            return None
        if listening.armed is not None:
            listening.armed.disarm()
        listening.armed = armed = ArmedClaim(
            listening,
            leave,
            now=lambda: self._do_here(request),
            later=lambda: self.ado(request),
            again=lambda: self.ado(replace(request, claim=replace(claim, held=()))),
        )
        self._offer(listening, armed, claim)
        return armed

    def _offer(self, listening: Listening, armed: ArmedClaim, claim: Claim) -> None:
        """Let whoever enqueues in another process answer a claim, if it is one that a single statement can do."""
        shared = self._database
        known = shared.writer.handle.known
        terms = known_terms(known, claim, 0)
        if terms is None or known.wants_events is not False:
            return
        offering = shared.hub.offering(listening, terms.queue)
        if offering is not None:
            armed.offer(offering, claim, terms.lease_until / 1_000_000)

    def _do_here(self, request: Exchange) -> Any:
        """A claim on the loop's own thread; UNDONE if others are at work."""
        shared = self._shared()
        admitted = shared.reserve.admit(request)
        answer = shared.writer.call_here(WRITES[Exchange], _prepared(admitted), self._clock, AT_ONCE[Exchange])
        if answer is UNDONE:
            return UNDONE
        failpoints.point("after_commit_before_reply")
        return answer.finish() if isinstance(answer, LATE) else answer

    def end_dictation(self, dictation: Dictation) -> None:
        """The worker that it belongs to has ended."""
        if self._database.dictation is dictation:
            self._database.dictation = None
        dictation.close()

    def migrate(self) -> list[str]:
        """See store.base.Store."""
        return cast(list[str], self._shared().writer.call(migrate.migrate, None, self._clock))

    def migration_sql(self) -> str:
        """See store.base.Store."""
        return migrate.script()

    def schema_version(self) -> int:
        """See store.base.Store."""
        return cast(int, self._shared().readers.call(migrate.version, None, self._clock))

    def install_profile(self, install: InstallProfile) -> InstalledProfile:
        """See store.base.Store."""
        return cast(InstalledProfile, self._shared().writer.call(profiles.install, install, self._clock))

    def now(self) -> datetime:
        """See store.base.Store."""
        return from_us(self._clock.now_us())

    def stats(self) -> StoreStats:
        """See store.base.Store. The writer is shared: what other stores on this file did since counts too."""
        now = self._counted()
        transactions, statements, retries = (after - before for after, before in zip(now, self._before, strict=True))
        return StoreStats(self._requests, transactions, statements, retries)

    def close(self) -> None:
        """See store.base.Store."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
        database.release(self._database)

    async def aclose(self) -> None:
        """See store.base.Store."""
        import asyncio

        await asyncio.to_thread(self.close)

    def _shared(self) -> database.Database:
        if self._is_closed:
            raise StoreClosed
        self._requests += 1
        shared = self._database
        if os.getpid() != shared.pid:
            shared.abandon()
        return shared

    def _counted(self) -> tuple[int, int, int]:
        writer, readers = self._database.writer, self._database.readers
        return (
            writer.transactions + readers.transactions,
            writer.statements + readers.statements,
            writer.handle.retries,
        )


class _Subscription:
    """Keeps the contract of `tenure.store.contract.Subscription`."""

    def __init__(self, store: SqliteStore, listening: Listening, dictation: Dictation | None) -> None:
        self._store = store
        self._listening = listening
        self._dictation = dictation
        self.is_alive = listening.is_alive

    def close(self) -> None:
        """Listen no more, and let the scribe go."""
        self._listening.close()
        if self._dictation is not None:
            self._store.end_dictation(self._dictation)

    def arm(self, request: Exchange, leave: Callable[[], None]) -> Armed | None:
        """A claim, on the loop that listens."""
        return self._store.arm(self._listening, request, leave)


def _prepared(request: Any) -> Any:
    prepare = PREPARES.get(type(request))
    return request if prepare is None else prepare(request)


def _unknown(kind: type) -> InternalError:
    return InternalError(f"The SQLite store does not know the request {kind.__name__}. Please report it.")
