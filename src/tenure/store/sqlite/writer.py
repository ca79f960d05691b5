"""The writer: one thread per process and file that carries out all writes, several requests to a commit.

SQLite has one writer at a time, and with `synchronous=FULL` a commit costs a sync of the disk: far more than the
statements in it. So requests share commits: everything that is queued while a commit is in flight shares the next
`BEGIN IMMEDIATE … COMMIT`. Batches grow by themselves as the load does; there is no timer.

- *An answer is given only after its COMMIT.* If a write, a sync or the COMMIT fails, every request of the batch gets
  the error, and the connection is opened anew from disk (see `connection`).
- *A request that is refused hurts no other*: each runs under a savepoint.
- *Heartbeats go first*: a lease must not run out because claims stand before its heartbeat in the queue.
- *A caller that gives up* (Ctrl-C, a cancelled await) before its request began takes it back; later its outcome is
  unknown, as with a lost reply. The writer goes on either way.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final

from tenure.errors import StoreUnavailable
from tenure.model.clock import Clock
from tenure.store.sqlite.checkpoint import Checkpointer
from tenure.store.sqlite.connection import WatchedFile, WriterConnection
from tenure.store.sqlite.errors import is_broken, translate
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Act, Transaction, dump
from tenure.store.sqlite.workflow_fold import fold

MAX_BATCH: Final = 256
"""Requests that share one commit."""
BATCH_SECONDS: Final = 0.1
"""A batch that has taken this long is committed; the rest of the queue shares the next commit."""

_SQL: Final = load("connection")
_NOTIFY: Final = load("notify")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    """A request in the queue. Answer and refusal are kept back until the commit."""

    act: Act
    request: Any
    clock: Clock
    is_urgent: bool
    future: Future[Any] = field(default_factory=Future)
    """Cancelled if the caller took the request back before it began."""
    answer: Any = None
    refusal: Exception | None = None


class Writer:
    """All writes of this process to one file. Thread-safe."""

    def __init__(
        self, watched: WatchedFile, busy_seconds: float, after_commit: Callable[[Collection[str], bool], None]
    ) -> None:
        self.transactions = 0
        self.statements = 0
        self.writing = WriterConnection(watched, busy_seconds)
        self._path = watched.path
        self._after_commit = after_commit
        self._checkpointer = Checkpointer(watched.path)
        self._reset()

    def _reset(self) -> None:
        self._queue: SimpleQueue[_Pending | None] = SimpleQueue()
        """What callers hand to the thread; a None only wakes it."""
        self._pending: list[_Pending | None] = []
        """What the thread has taken from the queue and not begun. No other thread uses it."""
        self._is_closing = False
        self._working = threading.Lock()
        """Held by the thread while it carries out a batch, and by `pause`."""
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, act: Act, request: Any, clock: Clock, *, is_urgent: bool = False) -> Future[Any]:
        """Queue an act. The future has its answer once it is committed; cancelling it takes back an act that has not
        begun."""
        item = _Pending(act, request, clock, is_urgent)
        self._queue.put(item)
        if self._thread is None:  # asked after the put, see `_run`
            with self._starting:
                if self._thread is None:
                    self._is_closing = False
                    name = "tenure-sqlite-writer"
                    thread = threading.Thread(target=self._run, args=(self._queue,), name=name, daemon=True)
                    thread.start()
                    self._thread = thread
        return item.future

    def pause(self, seconds: float) -> bool:
        """Wait until no batch is carried out and keep it so until `go_on`, for a fork. False if that took too long."""
        return self._working.acquire(timeout=seconds)

    def go_on(self) -> None:
        """The end of `pause`."""
        self._working.release()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: forget everything that belongs to the parent. The connection is handed back unclosed."""
        self._reset()
        self._checkpointer.abandon()
        left = self.writing.abandon()
        return [] if left is None else [left]

    def close(self) -> None:
        """Finish what is queued, then end the thread and close the connection. A later call opens them anew."""
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._is_closing = True
                self._queue.put(None)
                thread.join()
        with self._working:
            self.writing.drop()
            self._checkpointer.close()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, queue: SimpleQueue[_Pending | None]) -> None:
        """Carry out what comes into the queue, until `close`. `abandon` gives the next thread another queue."""
        # In this order: a request that comes after the queue was seen empty comes after `close`: it starts a thread.
        while not self._is_closing or self._pending or not queue.empty():
            if not self._pending:
                self._pending.append(queue.get())
            with self._working:
                while not queue.empty():
                    self._pending.append(queue.get())
                batch = sorted(filter(None, self._pending), key=lambda item: not item.is_urgent)  # heartbeats first
                self._pending = [*batch[MAX_BATCH:]]
                if batch:
                    self._carry_out(batch[:MAX_BATCH])

    def _carry_out(self, batch: list[_Pending]) -> None:
        """One transaction. Whatever fails, every request of the batch gets an answer or an error."""
        begun: list[_Pending] = []
        try:
            connection = self.writing.begin()
            woken, stops = self._run_all(connection, batch, begun)
            connection.execute(_SQL["commit"])
        except BaseException as exc:  # noqa: BLE001 - the thread outlives it, and every caller learns of it
            self.writing.undo(exc)
            begun += [item for item in batch if item.future.set_running_or_notify_cancel()]
            for item in begun:
                item.future.set_exception(self._shown(exc))
            return
        self.transactions += 1
        if woken or stops:
            try:
                self._after_commit(woken, stops)
            except Exception:  # noqa: BLE001 - a wake-up is a hint; without this thread nothing would be written any more
                _log.exception("The wake-ups after a commit to %s failed", self._path)
        for item in begun:
            if item.refusal is None:
                item.future.set_result(item.answer)
            else:
                item.future.set_exception(item.refusal)
        try:
            if self._checkpointer.is_time(connection):
                self._checkpointer.run(connection)
        except Exception as exc:  # noqa: BLE001 - the commit stands, and the WAL keeps what was not moved
            _log.exception("The checkpoint of %s failed", self._path)
            self.writing.undo(exc)

    def _run_all(
        self, connection: sqlite3.Connection, batch: list[_Pending], begun: list[_Pending]
    ) -> tuple[set[str], bool]:
        """Each request under a savepoint; what is begun goes from `batch` to `begun`. Answers the queues to wake, and
        whether a held job is asked to stop. Requests for which the batch has become too long go back into the queue."""
        woken: set[str] = set()
        stops = False
        until = time.monotonic() + BATCH_SECONDS
        batch.reverse()
        while batch:
            if begun and time.monotonic() > until:
                self._pending = [*reversed(batch), *self._pending]
                batch.clear()
                break
            item = batch.pop()
            if not item.future.set_running_or_notify_cancel():
                continue  # its caller took it back
            begun.append(item)
            transaction = Transaction(connection, item.clock.now_us())
            connection.execute(_SQL["savepoint"])
            try:
                item.answer = item.act(transaction, item.request)
                if transaction.tasks:
                    fold(transaction)
                woken |= transaction.woken
                stops = stops or transaction.stops
            except Exception as exc:
                if is_broken(exc) or not connection.in_transaction:
                    raise
                item.refusal = translate(exc, self._path)
                connection.execute(_SQL["savepoint_undo"])
            connection.execute(_SQL["savepoint_release"])
            self.statements += transaction.statements
        if woken:
            quiet = connection.execute(_NOTIFY["notify_gates"], {"queues": dump(list(woken))}).fetchall()
            woken -= {row[0] for row in quiet}
        return woken, stops

    def _shown(self, exc: BaseException) -> Exception:
        """What a caller gets to see; an error object of its own for each."""
        if isinstance(exc, Exception):
            return translate(exc, self._path)
        return StoreUnavailable(
            f"The thread that wrote to {self._path} was interrupted; the outcome is unknown, so repeat the call."
        )
