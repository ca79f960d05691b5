"""The one connection that writes: opened on the file that stands under its name, and given up when it is in doubt.

- A file that was replaced or taken away is noticed before each transaction, by its inode.
- After an I/O error the handle is not used again: it is closed, opened anew, and the file is checked first.
- Another process's lock is waited for, with pauses, for a bounded time.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from typing import Final, TypeVar

from tenure.errors import Corrupt, StoreUnavailable
from tenure.store.sqlite import place
from tenure.store.sqlite.connect import open_writer
from tenure.store.sqlite.errors import busy, is_broken, is_busy
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load

T = TypeVar("T")

PAUSE_SECONDS: Final = (0.0002, 0.005)
"""Shortest and longest pause between two tries to get another process's lock, before jitter."""
PATIENCE: Final = 0.1
"""A pause is this share of what was waited already, so that a lock is not left unused for much longer than it was
held."""

_ROLLBACK: Final = load("rollback")


class Handle:
    """Used by whoever leads only, so never by two threads at once."""

    def __init__(self, watched: place.Watched, busy_seconds: float) -> None:
        self.connection: sqlite3.Connection | None = None
        self.known = Known()
        self.must_check = False
        """Whether the file is checked before it is used again."""
        self.retries = 0
        self.path = watched.path
        self._watched = watched
        self._busy_seconds = busy_seconds
        self._identity: tuple[int, int] | None = None

    def ready(self) -> sqlite3.Connection:
        """The connection, opened if need be, on the file that stands under the name now."""
        connection = self.connection
        if connection is None:
            return self._open()
        if self._watched.now() != self._identity:
            self.drop()
            raise StoreUnavailable(
                f"{self.path} was replaced or taken away while it was open; nothing was written to the file that "
                "is there now. "
                f"Make sure that all workers use the same file, then repeat the call."
            )
        return connection

    def _open(self) -> sqlite3.Connection:
        seen = self._watched.admit()
        place.refuse_network(self.path.parent)
        self.connection = connection = open_writer(self.path, self._busy_seconds)
        self._identity = seen
        if self.must_check:
            self.check(connection)
            self.must_check = False
        return connection

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise Corrupt, and let go of the connection, if SQLite finds the file damaged."""
        found = [row[0] for row in connection.execute(load("quick_check"))]
        if found != ["ok"]:
            self.drop()
            raise Corrupt(
                f"{self.path} is damaged after an I/O error: {'; '.join(found[:3])}. Stop all workers and "
                "restore a backup."
            )

    def when_free(self, act: Callable[[], T]) -> T:
        """Do what needs the file's lock, waiting a bounded time for other processes."""
        try:
            return act()
        except sqlite3.OperationalError as exc:
            if not is_busy(exc):
                raise
        self.known.has_waited = True
        begun = time.monotonic()
        pause, longest = PAUSE_SECONDS
        while True:
            self.retries += 1
            time.sleep(random.uniform(pause / 2, pause))
            try:
                return act()
            except sqlite3.OperationalError as exc:
                if not is_busy(exc):
                    raise
                waited = time.monotonic() - begun
                pause = min(max(pause, PATIENCE * waited), longest)
                if waited > self._busy_seconds:
                    raise busy(self.path, f"(waited {self._busy_seconds:g} s)") from exc

    def undo(self, exc: BaseException) -> None:
        """Roll back what is open, and throw away a connection that is not to be trusted any more."""
        self.known.forget()
        if self.connection is None:
            return
        try:
            if self.connection.in_transaction:
                self.connection.execute(_ROLLBACK)
        except sqlite3.Error:
            self.must_check = True
        if is_broken(exc) or self.must_check or not isinstance(exc, Exception):
            self.must_check = self.must_check or is_broken(exc)
            self.drop()

    def drop(self) -> None:
        """Close the connection."""
        connection = self.abandon()
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error:
                self.must_check = True

    def abandon(self) -> sqlite3.Connection | None:
        """Forget the connection and hand it back unclosed; in a forked child it belongs to the parent."""
        connection, self.connection = self.connection, None
        self._identity = None
        self.known = Known()
        return connection
