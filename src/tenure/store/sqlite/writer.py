"""The writer: all writes of this process to one file, several requests to a commit.

SQLite has one writer at a time, and with `synchronous=FULL` a commit costs a sync of the disk: far more than the
statements in it. So requests share commits. There is no timer and no fixed thread in the way:

- The first caller to come *leads*: it opens a transaction, carries out its own request and whatever else is pending,
  commits, and hands out the answers. A single caller therefore pays for no switch of threads at all, and where one
  statement does what it asks for, that statement is the transaction.
- Who comes while somebody leads is pending. When the leader is done, the first pending caller leads next, and takes
  everything along that has gathered meanwhile. Batches grow by themselves as the load does.
- Callers on an event loop must not block it. A thread, started when first needed, leads in their place; each loop is
  told of all its answers at once. A loop that has nothing else to do leads itself, which saves two changes of threads:
  only if nobody else leads, the file is not locked, and the last transaction for a loop was over in a moment. If it
  finds the file locked, its request goes to the thread, ahead of whatever came since.
- A large request has a commit of its own, and its loop gives way: once when it has asked, so that the thread can begin,
  and then every half millisecond, so that it can hand out the answer and begin the next. Python's lock would be given
  up after five milliseconds only, which is as long as a whole exchange takes.

What holds:

- *An answer is released only after its COMMIT.* If the COMMIT fails, everyone in it gets the error, and nobody an
  answer.
- *A request that fails takes nobody along.* One that fails before it changed anything (a closed gate, an unknown
  queue) is simply left out. One that fails halfway rolls the whole transaction back, and the batch runs again with a
  savepoint around each request; acts depend on nothing but the database, the request and the clock, so running them
  twice does no harm.
- *Leadership is never lost*: a leader that is interrupted (Ctrl-C) fails its batch and passes the lead on.
- *A connection in doubt is not used again*: see `handle`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from tenure.errors import StoreUnavailable
from tenure.model.clock import Clock
from tenure.store.sqlite import place
from tenure.store.sqlite.armed import UNDONE
from tenure.store.sqlite.checkpoint import Checkpointer
from tenure.store.sqlite.errors import is_broken, is_busy, translate
from tenure.store.sqlite.handle import Handle
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction
from tenure.store.sqlite.waiting import Act, AtOnce, Waiting, giving_way, release, take

MAX_BATCH: Final = 512
"""Requests in one commit."""
MOMENT_SECONDS: Final = 0.004
"""A loop leads itself only while transactions take less than this."""
GIVE_WAY_SECONDS: Final = 0.0005
"""How often a busy loop lets the thread have Python's lock while a large request of its own is carried out."""

_BEGIN: Final = load("begin")
_COMMIT: Final = load("commit")
_ROLLBACK: Final = load("rollback")


class Writer:
    """Carries out acts in shared transactions. Thread-safe."""

    def __init__(
        self, watched: place.Watched, busy_seconds: float, after_commit: Callable[[Collection[str], bool], None]
    ) -> None:
        path = watched.path
        self.transactions = 0
        self.statements = 0
        self._path = path
        self.handle = Handle(watched, busy_seconds)
        self._after_commit = after_commit
        self._mutex = threading.Lock()
        self._pending: deque[Waiting] = deque()
        self._is_led = False
        self._took = 0.0
        """Seconds that the last transaction for an event loop took."""
        self._thread: threading.Thread | None = None
        self._thread_gate = threading.Semaphore(0)
        self._is_closing = False
        self._checkpointer = Checkpointer(path)

    def call(self, act: Act, request: Any, clock: Clock, at_once: AtOnce | None = None) -> Any:
        """Carry out an act and wait until it is committed. `at_once`: how a lone request may do without `act`."""
        with self._mutex:
            if self._is_led:
                item = Waiting(act, request, clock, at_once)
                item.gate = gate = threading.Lock()
                gate.acquire()
                self._pending.append(item)
            else:  # and so nobody is pending
                self._is_led = True
                item = None
        if item is None:
            return self._lead_alone(act, request, clock, at_once)
        try:
            gate.acquire()  # released when the answer is there, or when it is our turn to lead
        except BaseException:
            self._withdraw(item)
            raise
        if not item.is_done:
            self._lead()
        if item.error is not None:
            raise item.error
        return item.answer

    async def acall(
        self,
        act: Act,
        request: Any,
        clock: Clock,
        at_once: AtOnce | None = None,
        *,
        may_block: bool = False,
        is_large: bool = False,
    ) -> Any:
        """The same for a caller on an event loop, which goes on meanwhile. `may_block`: it has nothing else to do."""
        leads = may_block and self._takes_the_lead()
        if leads:
            answer = self._lead_for_a_moment(act, request, clock, at_once)
            if answer is not UNDONE:
                return answer
        import asyncio  # late: whoever is on a loop has it, and a command that is over in a moment never needs it

        item = Waiting(act, request, clock, at_once, is_large=is_large)
        item.loop = loop = asyncio.get_running_loop()
        item.future = future = loop.create_future()
        with self._mutex:
            if leads:
                self._pending.appendleft(item)
                starts = True
            else:
                self._pending.append(item)
                starts = not self._is_led
                self._is_led = True
        if starts:
            self._let_the_thread_lead()
        if not is_large:
            return await future
        with giving_way(loop, GIVE_WAY_SECONDS, now=starts):
            return await future

    def call_here(self, act: Act, request: Any, clock: Clock, at_once: AtOnce | None = None) -> Any:
        """Carry out an act here and now, on a loop that has nothing else to do. UNDONE if others are at work."""
        if not self._takes_the_lead():
            return UNDONE
        answer = self._lead_for_a_moment(act, request, clock, at_once)
        if answer is UNDONE:
            self._pass_on()
        return answer

    def pause(self, seconds: float) -> bool:
        """Wait until nobody leads and keep it so until `go_on`, for a fork. False if that took too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._mutex:
                if not self._is_led:
                    self._is_led = True
                    return True
            time.sleep(0.0005)
        return False

    def go_on(self) -> None:
        """The end of `pause`."""
        self._pass_on()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: forget everything that belongs to the parent. The connection is handed back unclosed."""
        self._mutex = threading.Lock()
        self._pending = deque()
        self._is_led = False
        self._thread = None
        self._thread_gate = threading.Semaphore(0)
        self._checkpointer.abandon()
        left = self.handle.abandon()
        return [] if left is None else [left]

    def close(self) -> None:
        """Finish what is pending, then let go of the thread and the connection. A later call opens them anew."""
        while not self.pause(1.0):
            pass
        try:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._is_closing = True
                self._thread_gate.release()
                if thread is not threading.current_thread():
                    thread.join()
                self._is_closing = False
            self.handle.drop()
            self._checkpointer.close()
        finally:
            self._pass_on()

    # --- leading ------------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        """Carry out one batch, then pass the lead on. Never raises what belongs to a request: that goes with its
        answer."""
        with self._mutex:
            batch = take(self._pending, MAX_BATCH)
        begun = time.monotonic()
        try:
            if batch:
                self._carry_out(batch)
            else:  # a loop has led, and left the checkpoint
                self._checkpointer.run(self.handle.ready())
        except BaseException as exc:
            self._give_up(batch, exc)
            if not isinstance(exc, Exception):
                raise
        finally:
            self._took = time.monotonic() - begun
            release(batch)
            self._pass_on()

    def _lead_alone(self, act: Act, request: Any, clock: Clock, at_once: AtOnce | None) -> Any:
        """One request, one transaction, without what a batch needs: for a caller that has the store to itself."""
        try:
            connection = self.handle.ready()
            answer = None
            if at_once is not None:
                try:
                    answer = self._do_at_once(connection, at_once, request, clock)
                except sqlite3.OperationalError as exc:
                    if not is_busy(exc):
                        raise
                    answer = self.handle.when_free(partial(self._do_at_once, connection, at_once, request, clock))
            if answer is None:
                self._begin(connection)
                answer = self._carry_out_alone(connection, act, request, clock)
            if self._checkpointer.is_time(connection):
                self._checkpointer.run(connection)
            return answer
        except BaseException as exc:  # noqa: BLE001 - raised again, as what the caller gets to see
            self._fail(exc)
        finally:
            self._pass_on()

    def _do_at_once(self, connection: sqlite3.Connection, at_once: AtOnce, request: Any, clock: Clock) -> Any:
        """The answer of a statement that is its own transaction; None if nothing was done."""
        done = at_once(connection, self.handle.known, request, clock.now_us())
        if done is None:
            return None
        answer, queue = done
        self.transactions += 1
        self.statements += 1
        if queue is not None:
            self._after_commit((queue,), False)
        return answer

    def _takes_the_lead(self) -> bool:
        """Whether a loop may lead itself now; if so, it does."""
        if self.handle.connection is None or self._took > MOMENT_SECONDS:
            return False
        with self._mutex:
            if self._is_led:
                return False
            self._is_led = True
            return True

    def _lead_for_a_moment(self, act: Act, request: Any, clock: Clock, at_once: AtOnce | None) -> Any:
        """The same on an event loop: waits for no lock, and leaves the checkpoint to the thread. Keeps the lead and
        answers UNDONE if another process writes."""
        begun = time.monotonic()
        keeps_lead = False
        try:
            connection = self.handle.ready()
            try:
                answer = None if at_once is None else self._do_at_once(connection, at_once, request, clock)
                if answer is None:
                    connection.execute(_BEGIN)
            except sqlite3.OperationalError as exc:
                if not is_busy(exc):
                    raise
                keeps_lead = True
                return UNDONE
            if answer is None:
                answer = self._carry_out_alone(connection, act, request, clock)
            if self._checkpointer.is_time(connection):
                self._start_thread()
                keeps_lead = True
                self._thread_gate.release()
            return answer
        except BaseException as exc:  # noqa: BLE001 - raised again, as what the caller gets to see
            self._fail(exc)
        finally:
            self._took = time.monotonic() - begun
            if not keeps_lead:
                self._pass_on()

    def _carry_out_alone(self, connection: sqlite3.Connection, act: Act, request: Any, clock: Clock) -> Any:
        transaction = Transaction(connection, clock.now_us(), self.handle.known)
        answer = act(transaction, request)
        if transaction.woken:
            transaction.quieten()
        connection.execute(_COMMIT)
        self._committed(transaction)
        return answer

    def _fail(self, exc: BaseException) -> NoReturn:
        """Undo what is open, and raise what the caller gets to see."""
        self.handle.undo(exc)
        made = translate(exc, self._path) if isinstance(exc, Exception) else exc
        if made is exc:
            raise exc
        raise made from exc

    def _carry_out(self, batch: Sequence[Waiting]) -> None:
        connection = self.handle.ready()
        if not self._was_done_at_once(connection, batch):
            self._carry_out_together(connection, batch)
        if self._checkpointer.is_time(connection):
            release(batch)
            self._checkpointer.run(connection)

    def _was_done_at_once(self, connection: sqlite3.Connection, batch: Sequence[Waiting]) -> bool:
        """Whether one statement did all that is asked for."""
        if len(batch) > 1 or (at_once := batch[0].at_once) is None:
            return False
        item = batch[0]
        item.answer = self.handle.when_free(lambda: self._do_at_once(connection, at_once, item.request, item.clock))
        item.is_done = item.answer is not None
        return item.is_done

    def _carry_out_together(self, connection: sqlite3.Connection, batch: Sequence[Waiting]) -> None:
        self._begin(connection)
        transaction = Transaction(connection, known=self.handle.known)
        if not self._run_plain(transaction, batch):
            connection.execute(_ROLLBACK)
            transaction.undo()
            if len(batch) > 1:
                self._begin(connection)
                self._run_guarded(transaction, batch)
        if transaction.woken:
            transaction.quieten()
        if connection.in_transaction:
            connection.execute(_COMMIT)
        for item in batch:
            item.is_done = True
        self._committed(transaction)

    def _committed(self, transaction: Transaction) -> None:
        self.transactions += 1
        self.statements += transaction.statements
        if transaction.woken or transaction.stops:
            self._after_commit(transaction.woken, transaction.stops)

    def _run_plain(self, transaction: Transaction, batch: Sequence[Waiting]) -> bool:
        """Without savepoints. False if a request failed after it had changed something, so that all must be undone."""
        connection = transaction.connection
        for item in batch:
            changes = connection.total_changes
            transaction.now = item.clock.now_us()
            try:
                item.answer = item.act(transaction, item.request)
            except Exception as exc:
                if is_broken(exc) or not connection.in_transaction:
                    raise
                item.error = translate(exc, self._path)
                # A change of the schema counts no rows, so a statement that SQLite itself refused undoes all.
                if connection.total_changes != changes or isinstance(exc, sqlite3.Error):
                    return False
        return True

    def _run_guarded(self, transaction: Transaction, batch: Sequence[Waiting]) -> None:
        connection = transaction.connection
        for item in batch:
            item.answer = item.error = None
            transaction.now = item.clock.now_us()
            connection.execute(load("savepoint"))
            try:
                item.answer = item.act(transaction, item.request)
            except Exception as exc:
                if is_broken(exc) or not connection.in_transaction:
                    raise
                item.error = translate(exc, self._path)
                connection.execute(load("savepoint_undo"))
                transaction.forget()
            connection.execute(load("savepoint_release"))

    def _give_up(self, batch: Sequence[Waiting], exc: BaseException) -> None:
        """Nothing of the batch is known to be committed: each gets an error of its own."""
        self.handle.undo(exc)
        for item in batch:
            if item.is_done:
                continue
            item.answer = None
            if isinstance(exc, Exception):
                item.error = translate(exc, self._path)
            else:
                item.error = StoreUnavailable(
                    f"The thread that wrote to {self._path} was interrupted; the outcome is unknown, so repeat "
                    "the call."
                )
            item.is_done = True

    def _begin(self, connection: sqlite3.Connection) -> None:
        """BEGIN IMMEDIATE: a lock that is only asked for at the first write fails at once, without waiting, when
        somebody else wrote in between."""
        self.handle.when_free(lambda: connection.execute(_BEGIN))

    def _pass_on(self) -> None:
        with self._mutex:
            if not self._pending:
                self._is_led = False
                return
            first = self._pending[0]
            if first.gate is not None:
                first.leads = True
                first.gate.release()
                return
        self._let_the_thread_lead()

    def _withdraw(self, item: Waiting) -> None:
        """The caller was interrupted while it waited."""
        with self._mutex:
            if item in self._pending:
                self._pending.remove(item)
            leads = item.leads and not item.is_done
        if leads:
            self._pass_on()

    # --- the thread for event loops -----------------------------------------------------------------------------------

    def _let_the_thread_lead(self) -> None:
        self._start_thread()
        self._thread_gate.release()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._lead_for_loops, name="tenure-sqlite-writer", daemon=True)
            self._thread.start()

    def _lead_for_loops(self) -> None:
        gate = self._thread_gate
        while True:
            gate.acquire()
            if self._is_closing:
                return
            self._lead()
