"""One file in one process: its writer, its readers and its wake-ups, shared by all stores that name it.

Forks. A SQLite connection must not be used, nor even closed, on the other side of a fork. Before a fork everything is
brought to rest, because a child that inherits a lock held by a thread which does not exist there would wait for ever;
after it the parent goes on, and the child forgets the parent's connections without closing them and opens its own
when first asked. A process that was forked behind Python's back is recognised by its pid.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import Final

from tenure.store.sqlite import files
from tenure.store.sqlite.connection import WatchedFile
from tenure.store.sqlite.notify import Hub
from tenure.store.sqlite.readers import Readers
from tenure.store.sqlite.reserve import Reserve
from tenure.store.sqlite.writer import Writer

FORK_WAIT_SECONDS: Final = 5.0

_mutex = threading.Lock()
_open: dict[Path, Database] = {}
_all: weakref.WeakSet[Database] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []
_paused: list[tuple[Database, bool, int, threading.Lock | None]] = []


class Database:
    """Shared by reference count: `acquire` and `release`."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self.path = path
        self.users = 0
        self.watched = watched = WatchedFile(path)
        self.hub = Hub(watched)
        self.writer = Writer(watched, busy_seconds, self.hub.tell)
        self.readers = Readers(watched)
        self.reserve = Reserve(path)
        self.pid = os.getpid()
        """In another process than this everything here is to be abandoned: it was forked, and no hook told us."""
        _all.add(self)

    def pause(self, seconds: float) -> tuple[bool, int, threading.Lock | None]:
        """Bring everything to rest; what `go_on` needs to end it."""
        return self.writer.pause(seconds), self.readers.pause(seconds), self.hub.pause(seconds)

    def go_on(self, has_paused: bool, slots: int, looking: threading.Lock | None) -> None:
        """The end of `pause`."""
        if has_paused:
            self.writer.go_on()
        self.readers.go_on(slots)
        if looking is not None:
            looking.release()

    def abandon(self) -> None:
        """In a forked child: start afresh, and keep the parent's connections from ever being closed here."""
        self.pid = os.getpid()
        left = [*self.writer.abandon(), *self.readers.abandon(), *self.hub.abandon()]
        _abandoned.extend(left)
        if left:
            import ctypes

            for connection in left:  # not even at exit
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def acquire(path: Path, busy_seconds: float) -> Database:
    """The database of this path in this process."""
    files.check(path)
    with _mutex:
        database = _open.get(path)
        if database is None:
            database = _open[path] = Database(path, busy_seconds)
        database.users += 1
        return database


def release(database: Database) -> None:
    """One user fewer; the last one closes it."""
    with _mutex:
        database.users -= 1
        if database.users > 0:
            return
        if _open.get(database.path) is database:
            del _open[database.path]
    if os.getpid() != database.pid:
        database.abandon()
    database.hub.close()
    database.readers.close()
    database.writer.close()


def _before_fork() -> None:
    _mutex.acquire(timeout=FORK_WAIT_SECONDS)
    _paused.extend((each, *each.pause(FORK_WAIT_SECONDS)) for each in list(_all))


def _after_in_parent() -> None:
    for database, has_paused, slots, looking in _paused:
        database.go_on(has_paused, slots, looking)
    _paused.clear()
    with contextlib.suppress(RuntimeError):
        _mutex.release()


def _after_in_child() -> None:
    global _mutex
    _mutex = threading.Lock()
    _paused.clear()
    for database in list(_all):
        database.abandon()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
