"""Connections: opened one way, set one way; and the one that writes.

The writing connection stands on the file that has its name now, and is given up when it is in doubt:

- A file that was replaced or taken away is noticed before each transaction, by its inode.
- After a failed write, sync or COMMIT the connection is not used again. It is opened anew from disk, the file is
  checked, and everything in the WAL is moved into the database file and synced, before anything is answered: what a
  failed COMMIT left in the system's memory could be read back although it never reached the disk, and the repeat of a
  request would be told that it had been done.
- Another process's lock is waited for, with pauses, for a bounded time.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tenure.errors import ConfigError, Corrupt, StoreUnavailable
from tenure.store.sqlite import files
from tenure.store.sqlite.errors import busy, is_broken, is_busy
from tenure.store.sqlite.statements import load

OLDEST: Final = (3, 38, 0)
"""The operator ->> ; STRICT tables, RETURNING and UPDATE FROM are older."""
READER_WAIT_SECONDS: Final = 5.0
"""Only recovery after a crash makes a reader wait."""
PAUSE_SECONDS: Final = (0.0002, 0.005)
"""Shortest and longest pause between two tries to get another process's lock, before jitter."""
PATIENCE: Final = 0.1
"""A pause is this share of the wait so far, so that a lock is not left unused for much longer than it was held."""

_SQL: Final = load("connection")


def open_writer(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A connection that may write. WAL is a property of the file: the first connection sets it."""
    _refuse_old_library()
    connection = _connect(path)
    try:
        deadline = time.monotonic() + busy_seconds
        while True:
            try:
                connection.execute(_SQL["wal"])
                connection.executescript(_SQL["settings"])
                break
            except sqlite3.OperationalError as exc:
                if not is_busy(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.01))
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection for short reads. It cannot write, and never waits for the writer."""
    connection = _connect(path, READER_WAIT_SECONDS)
    try:
        connection.executescript(_SQL["settings"])
        connection.execute(_SQL["read_only"])
    except BaseException:
        connection.close()
        raise
    return connection


class WatchedFile:
    """The file under its name: whether it is still the one that was opened, and whether its WAL belongs to it.

    A file put in the place of another would find the other's -wal beside it, and SQLite would play that into it. So the
    WAL that was in use is remembered, and a new file is not opened while that one still lies there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = str(path)
        self._wal_name = f"{path}-wal"
        self._opened: tuple[int, int] | None = None
        self._wal: tuple[int, int] | None = None

    def now(self) -> tuple[int, int] | None:
        """Which file stands there now."""
        if self._wal is None and self._opened is not None:
            self._wal = _identity(self._wal_name)
        try:
            seen = os.stat(self._name)  # noqa: PTH116 - on the path of every write, and so in place
        except OSError:
            return None
        return seen.st_dev, seen.st_ino

    def is_awaited(self) -> bool:
        """Whether there is no file yet, and there never was one here."""
        return self.now() is None and self._opened is None

    def admit(self) -> tuple[int, int]:
        """Which file a new connection will open. Raises StoreUnavailable if it must not."""
        seen = self.now()
        if seen is None and self._opened is None:
            raise files.not_there(self.path)
        if seen is None:
            raise StoreUnavailable(f"{self.path} is gone. Restore it, or create a new queue with `tenure migrate`.")
        if seen != self._opened:
            files.refuse_foreign(self.path)
            if self._wal is not None and _identity(self._wal_name) == self._wal:
                name = self.path.name
                raise StoreUnavailable(
                    f"{self.path} was replaced, but {name}-wal still belongs to the file that was there before and "
                    f"would damage this one. Stop all processes that use it, then remove {name}-wal and {name}-shm."
                )
            self._opened, self._wal = seen, None
        return seen


class WriterConnection:
    """The one connection of this process that writes. Used by the writer thread only."""

    def __init__(self, watched: WatchedFile, busy_seconds: float) -> None:
        self.connection: sqlite3.Connection | None = None
        self.must_check = False
        """Whether the file is checked, and its WAL moved and synced, before it is used again."""
        self.retries = 0
        self.path = watched.path
        self._watched = watched
        self._busy_seconds = busy_seconds
        self._identity: tuple[int, int] | None = None

    def begin(self) -> sqlite3.Connection:
        """The connection, inside a transaction: opened if need be, on the file that stands under the name now. Waits a
        bounded time for other processes."""
        if self.connection is not None and self._watched.now() != self._identity:
            self.drop()
            raise StoreUnavailable(
                f"{self.path} was replaced or taken away while it was open; nothing was written to the file that is "
                "there now. Make sure that all workers use the same file, then repeat the call."
            )
        connection = self.connection or self._open()
        begun = time.monotonic()
        pause, longest = PAUSE_SECONDS
        while True:
            try:
                connection.execute(_SQL["begin_write"])
                return connection
            except sqlite3.OperationalError as exc:
                if not is_busy(exc):
                    raise
                waited = time.monotonic() - begun
                if waited > self._busy_seconds:
                    raise busy(self.path, f"(waited {self._busy_seconds:g} s)") from exc
            pause = min(max(pause, PATIENCE * waited), longest)
            self.retries += 1
            time.sleep(random.uniform(pause / 2, pause))

    def _open(self) -> sqlite3.Connection:
        seen = self._watched.admit()
        files.refuse_network(self.path.parent)
        connection = open_writer(self.path, self._busy_seconds)
        self.connection, self._identity = connection, seen
        try:
            self._sync_wal()
            if self.must_check:
                self.check(connection)
                self._move_wal(connection)
                self.must_check = False
        except BaseException:
            self.drop()
            raise
        return connection

    def _sync_wal(self) -> None:
        """Commits that a killed process wrote and did not sync can be read already; they must be durable before a
        repeat of their request is told that it was done."""
        try:
            wal = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.fsync(wal)
        except OSError as exc:
            self.must_check = True
            raise StoreUnavailable(
                f"{self.path}-wal could not be synced ({exc.strerror}), so nothing was changed. Look at the disk."
            ) from exc
        finally:
            os.close(wal)

    def _move_wal(self, connection: sqlite3.Connection) -> None:
        """Write everything in the WAL to the database file and sync that. A sync that failed once may say yes the
        second time without having written anything, so only a fresh write proves that the disk has it."""
        _, pages, moved = connection.execute(_SQL["checkpoint"]).fetchone()
        if pages != moved:
            raise StoreUnavailable(
                f"After an I/O error the WAL of {self.path} could not be moved into the file yet, because a read "
                "transaction is open on it. Nothing was changed; repeat the call."
            )

    def check(self, connection: sqlite3.Connection) -> None:
        """Raise Corrupt if SQLite finds the file damaged."""
        found = [row[0] for row in connection.execute(_SQL["quick_check"])]
        if found != ["ok"]:
            raise Corrupt(
                f"{self.path} is damaged after an I/O error: {'; '.join(found[:3])}. Stop all workers and "
                "restore a backup."
            )

    def undo(self, exc: BaseException) -> None:
        """Roll back what is open, and throw away a connection that is not to be trusted any more."""
        if self.connection is None:
            return
        try:
            if self.connection.in_transaction:
                self.connection.execute(_SQL["rollback"])
        except sqlite3.Error:
            self.must_check = True
        self.must_check = self.must_check or is_broken(exc)
        if self.must_check or not isinstance(exc, Exception):
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
        return connection


def _identity(path: Path | str) -> tuple[int, int] | None:
    """Which file stands under this name now; None if there is none."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - a path or its text
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _connect(path: Path, wait_seconds: float = 0.0) -> sqlite3.Connection:
    # mode=rw: a file that was taken away must not come back empty.
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def _refuse_old_library() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigError(
            f"This Python brings SQLite {sqlite3.sqlite_version}; Tenure needs {'.'.join(map(str, OLDEST))} or newer. "
            f"Use a newer Python or a newer libsqlite3."
        )
