"""Jobs in PostgreSQL. Every request is one call of a function; what is decided is decided there."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from pydantic_core import from_json

from tenure.errors import InternalError, InvalidArgument, ReadOnly, StoreBusy, TenureError, TooWide
from tenure.model import failpoints
from tenure.model.clock import from_us
from tenure.model.job import Enqueued
from tenure.store.admin import InstalledProfile, InstallProfile
from tenure.store.browsing import look_seconds, within_look
from tenure.store.checks import CHECKED_APART, check_request
from tenure.store.contract import (
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
from tenure.store.postgres import (
    access,
    admin,
    approvals,
    browsing,
    budgets,
    codec,
    flow,
    gauges,
    limits,
    memo,
    memory,
    queries,
    streams,
    usage,
    workflows,
)
from tenure.store.postgres import migrate as migrations
from tenure.store.postgres.address import POOL_SIZE
from tenure.store.postgres.codec import Call
from tenure.store.postgres.errors import is_safe, translate
from tenure.store.postgres.listener import Listener
from tenure.store.postgres.marks import Marks
from tenure.store.postgres.moving import PostgresTables
from tenure.store.postgres.pool import REPLY_SECONDS, Pool
from tenure.store.postgres.sql import statement as statement_named
from tenure.store.summary import Inspect
from tenure.store.workflows import GetGraph

T = TypeVar("T")

_CALLS: dict[type[Any], Call] = {
    **codec.CALLS,
    **flow.CALLS,
    **queries.CALLS,
    **admin.CALLS,
    **memory.CALLS,
    **access.CALLS,
    **browsing.CALLS,
    **workflows.CALLS,
    **limits.CALLS,
    **memo.CALLS,
    **streams.CALLS,
    **approvals.CALLS,
    **budgets.CALLS,
    **usage.CALLS,
    **gauges.CALLS,
}
_TRIES = 6


class PostgresStore:
    """A store on PostgreSQL 14 or later. Thread-safe, loop-safe, fork-safe."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = POOL_SIZE,
        is_pooled: bool = False,
        wait_seconds: float = 30.0,
        reply_seconds: float = REPLY_SECONDS,
    ) -> None:
        self.url = url
        prepare_threshold = None if is_pooled else 5
        self._pool = Pool(url, pool_size, wait_seconds, prepare_threshold, reply_seconds)
        # Heartbeats have a connection and a thread of their own: however busy the rest is, leases are extended.
        self._heartbeats = Pool(url, 1, wait_seconds, prepare_threshold, reply_seconds)
        self._marks = Marks()
        self._is_pooled = is_pooled
        self._listener: Listener | None = None
        self._lock = threading.Lock()
        self._requests = self._statements = self._retries = 0

    def do(self, request: Request[T]) -> T:
        """Carry out a request and wait for the answer."""
        self._requests += 1
        if isinstance(request, Exchange):
            return cast(T, self._exchange(request))
        if isinstance(request, Claim):
            return cast(T, self._exchange(Exchange((), request)).grants)
        if type(request) not in CHECKED_APART:
            check_request(request)
        if isinstance(request, Measure):
            return cast(T, admin.measure(self.url, request))
        if isinstance(request, DropQueue):
            return cast(T, admin.drop_queue(self.url, request))
        if isinstance(request, GetGraph):
            return cast(T, workflows.get_graph(request, self.do, self._call))
        if isinstance(request, Inspect):
            return cast(T, queries.inspect(self.url, lambda: self._call("newest", None)))
        call = _CALLS.get(type(request))
        if call is None:
            raise InternalError(f"PostgreSQL does not know the request {type(request).__name__}. Please report this.")
        answer = self._call(call.function, call.encode(request), self._pool_for(request))
        if flow.leaves_events(request, answer):
            for _ in range(flow.SWEEPS):  # workers send their own sweeps; this caller is no worker
                if not self._call("sweep_flow", "{}")["more"]:
                    break
        return cast(T, call.decode(answer, request))

    async def ado(self, request: Request[T]) -> T:
        """Carry out a request without blocking the event loop: in a thread, which ends by itself when the await is
        cancelled."""
        executor = self._pool_for(request).executor()
        return await asyncio.get_running_loop().run_in_executor(executor, within_look(self.do), request)

    def enqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """Enqueue inside the caller's transaction."""
        from tenure.store import transactions

        answer = transactions.call_enqueue(connection, codec.encode_enqueue(request))
        return codec.decode_enqueue(answer, request)

    async def aenqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """The same on an async connection."""
        from tenure.store import transactions

        answer = await transactions.acall_enqueue(connection, codec.encode_enqueue(request))
        return codec.decode_enqueue(answer, request)

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> Subscription:
        """Be woken by notifications. One listening connection serves all subscriptions of this store."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener(self.url, is_pooled=self._is_pooled)
            return self._listener.subscribe(queues, wake)

    def migrate(self) -> list[str]:
        """Make the schema unless it is there."""
        return migrations.migrate(self.url)

    def migration_sql(self) -> str:
        """What `migrate` runs on an empty database."""
        return migrations.migration_sql()

    def schema_version(self) -> int:
        """The version of the schema in the database, 0 if there is none."""
        return migrations.schema_version(self.url)

    def install_profile(self, install: InstallProfile) -> InstalledProfile:
        """Run a profile's script and note it down."""
        return admin.install_profile(self.url, install)

    def tables(self) -> PostgresTables:
        """Whole tables, on connections of their own."""
        return PostgresTables(self.url)

    def now(self) -> datetime:
        """The server's clock, or the one a test has set."""
        return from_us(int(self._call("now_us", None)))

    def stats(self) -> StoreStats:
        """Counters since this object was made. Every statement is a transaction of its own."""
        return StoreStats(self._requests, self._statements, self._statements, self._retries)

    def close(self) -> None:
        """Let go of connections and threads."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._pool.close()
        self._heartbeats.close()

    async def aclose(self) -> None:
        """The same without blocking the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _pool_for(self, request: Request[Any]) -> Pool:
        return self._heartbeats if type(request) is Heartbeat else self._pool

    def _exchange(self, exchange: Exchange) -> Exchanged:
        """One try: a worker whose exchange failed asks again, with what it holds."""
        parts, marks = [], None
        if exchange.outcomes:
            parts.append(f'"outcomes":{codec.encode_outcomes(exchange.outcomes)}')
        if exchange.claim is not None:
            marks = self._marks.give(exchange.claim)
            parts.append(f'"claim":{codec.encode_claim(exchange.claim, marks.json)}')
        if not parts:
            return Exchanged({}, [])
        answer = self._call("exchange", f"{{{','.join(parts)}}}", tries=1)
        if marks is not None and exchange.claim is not None and answer.get("granted") is not None:
            self._marks.take(exchange.claim, answer["granted"], marks)
        return codec.decode_exchange(answer, exchange)

    def _call(self, function: str, argument: str | None, pool: Pool | None = None, tries: int = _TRIES) -> Any:
        """One call; repeated where the server says that nothing happened and another try may do."""
        # The name of the function comes from our own tables. As text: the answer is parsed once, here.
        place, values = ("", ()) if argument is None else ("%s::json", (argument,))
        statement = f"SELECT tenure.{function}({place})::text".encode()
        seconds = look_seconds()
        for attempt in range(1, tries + 1):
            with (pool or self._pool).connection() as connection:
                self._statements += 1
                try:
                    if seconds is not None:
                        return self._bounded(connection, statement, values, seconds)
                    row = connection.execute(statement, values).fetchone()
                    failpoints.point("after_commit_before_reply")
                    return None if row is None or row[0] is None else from_json(row[0])
                except UnicodeEncodeError as exc:
                    raise InvalidArgument(
                        "A text in the request holds half of a surrogate pair, which is no character. Nothing was "
                        "changed."
                    ) from exc
                except psycopg.Error as exc:
                    if seconds is not None and isinstance(exc, psycopg.errors.QueryCanceled):
                        raise TooWide(seconds) from exc
                    error = translate(exc, self.url)
                    if isinstance(error, ReadOnly):
                        # Its server became a standby. The next connection finds the primary, if the URL names several
                        # hosts and target_session_attrs=read-write; this one would be refused for ever.
                        connection.close()
                    if not _worth_another_try(error, attempt, tries):
                        raise error from (exc if is_safe(exc, self.url) else None)
                    self._retries += 1
            time.sleep(_pause(attempt))
        raise InternalError("unreachable: the last try either answers or raises")

    def _bounded(self, connection: Any, statement: bytes, values: tuple[Any, ...], seconds: float) -> Any:
        """The same with a bound on its time, which is gone with the transaction. See store.browsing.bounded_looks.

        Both statements are one message of the simple protocol, and so one transaction and one round trip: a page makes
        a dozen such reads, and beside many threads each of four round trips would wait for Python's lock."""
        with psycopg.ClientCursor(connection) as cursor:
            bound = statement_named("bound_look").rstrip(b"; \n")
            cursor.execute(bound + b"; " + statement, (f"{max(1, round(seconds * 1000))}ms", *values))
            cursor.nextset()
            row = cursor.fetchone()
        return None if row is None or row[0] is None else from_json(row[0])


def _worth_another_try(error: TenureError, attempt: int, tries: int) -> bool:
    """Deadlock, serialization, lock time-out: the server says nothing happened.
    A lost connection is left to the caller."""
    return type(error) is StoreBusy and attempt < tries


def _pause(attempt: int) -> float:
    return random.uniform(0.5, 1.0) * min(0.5, 0.005 * (1 << attempt))
