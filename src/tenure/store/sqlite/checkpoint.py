"""Checkpoints: moving pages from the WAL into the database file, by one connection at a time.

SQLite before 3.51.3 has a rare race that can damage the file when several connections write and checkpoint at once.
So no connection of ours checkpoints by itself (`wal_autocheckpoint=0`): the writer does, between two transactions, when
enough was written, and only while it holds a lock file that all processes share. If another process holds it, that
one is at work and we go on.

A checkpoint is due when the pages written since the last one, as estimated, or the growth of the WAL file come to
PAGES. The estimate counts commits and rows, and each checkpoint corrects it by the true number. If the WAL is still
large after a checkpoint (readers, or other processes that wrote meanwhile, kept it from being used again from its
start), the next one waits a moment for them and truncates the file. A WAL of half of MAX_BYTES is urgent: the writer
waits for the checkpoint lock and for readers to leave before it writes on. That bounds the WAL at MAX_BYTES unless a
read transaction stays open for longer; then a warning names it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from tenure.store.sqlite.files import side_folder
from tenure.store.sqlite.statements import load

PAGES: Final = 1000
"""Some 4 MB, as SQLite has it by itself. The reserve has to hold the part of it that a full disk leaves to the WAL."""
PAGE_BYTES: Final = 4096
MAX_BYTES: Final = 64 * 1024 * 1024
"""The bound of the WAL file."""
TRUNCATE_PAGES: Final = 4 * PAGES
"""A WAL that holds more than this after a checkpoint is truncated, if its readers leave in time."""
TRUNCATE_PAUSE_SECONDS: Final = 1.0
"""After a truncation that failed because of readers: the pause until the next one."""
URGENT_BYTES: Final = MAX_BYTES // 2
"""From this size on the writer waits for a truncation instead of making the WAL larger."""
URGENT_PAUSE_SECONDS: Final = 30.0
"""After an urgent truncation that failed: a read transaction stays open, and writers must not wait for it each time."""
LOCK_SECONDS: Final = 2.0
"""How long an urgent checkpoint waits for one of another process."""
WARN_SECONDS: Final = 60.0
_PAGES_PER_COMMIT: Final = 3.5
_PAGES_PER_ROW: Final = 0.13
_WEIGHTS: Final = (0.5, 100.0)
"""Bounds of the correction."""

_SQL: Final = load("connection")
_log = logging.getLogger(__name__)


class Checkpointer:
    """Decides when, and takes the lock. Used by the writer thread only."""

    def __init__(self, path: Path) -> None:
        self.runs = 0
        self.wal_pages = 0
        """What the last checkpoint found in the WAL."""
        self._path = path
        self._wal = f"{path}-wal"
        self._estimate = 0.0
        self._uncorrected = 0.0
        self._weight = 3.0  # before the first true number: rather too early than too late
        self._changes = 0
        self._size = 0
        """Of the WAL file after the last checkpoint."""
        self._truncate_at = 0.0
        self._urgent_at = 0.0
        self._warn_at = 0.0
        self._lock: int | None = None

    def is_time(self, connection: sqlite3.Connection) -> bool:
        """Count a commit; whether enough was written since the last checkpoint."""
        changes = connection.total_changes
        made = changes - self._changes
        if made:
            pages = _PAGES_PER_COMMIT + _PAGES_PER_ROW * max(made, 0)  # a fresh connection counts from 0 again
            self._uncorrected += pages
            self._estimate += pages * self._weight
            self._changes = changes
        return self._estimate >= PAGES or self._wal_size() - self._size >= PAGES * PAGE_BYTES

    def run(self, connection: sqlite3.Connection) -> bool:
        """Move what can be moved without waiting. False if another process is at it."""
        self._estimate = PAGES * 0.75  # if it cannot be done now, try again soon, not at every commit
        is_urgent = self._wal_size() >= URGENT_BYTES
        if not self._take_lock(LOCK_SECONDS if is_urgent else 0.0):
            self._size = self._wal_size()
            return False
        try:
            _, pages, moved = connection.execute(_SQL["checkpoint"]).fetchone()
            if pages > TRUNCATE_PAGES or self._wal_size() > TRUNCATE_PAGES * PAGE_BYTES:
                self._truncate(connection, is_held=moved < pages, is_urgent=is_urgent)
        except sqlite3.Error as exc:  # nothing is lost: the WAL keeps it
            _log.warning("The checkpoint of %s failed and will be repeated: %s", self._path, exc)
            return False
        finally:
            self._drop_lock()
            self._size = self._wal_size()
        self.runs += 1
        self.wal_pages = pages
        if pages == moved:
            if self._uncorrected:
                least, most = _WEIGHTS
                self._weight = min(most, max(least, pages / self._uncorrected))
            self._estimate = self._uncorrected = 0.0
        return True

    def abandon(self) -> None:
        """In a forked child: the lock belongs to the parent."""
        self._lock = None
        self._estimate = self._uncorrected = 0.0
        self._changes = self._size = 0

    def close(self) -> None:
        """Let go of the lock file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _truncate(self, connection: sqlite3.Connection, *, is_held: bool, is_urgent: bool) -> None:
        """Wait a moment for readers and other writers, then cut the WAL to nothing. `is_held`: a checkpoint could not
        move all pages, which only a read transaction on an older state can cause."""
        now = time.monotonic()
        if now < (self._urgent_at if is_urgent else self._truncate_at):
            return
        connection.execute(_SQL["wait_long_for_readers" if is_urgent else "wait_for_readers"])
        try:
            is_busy, _, _ = connection.execute(_SQL["checkpoint_truncate"]).fetchone()
        finally:
            connection.execute(_SQL["wait_for_nothing"])
        if not is_busy:
            return
        self._truncate_at = now + TRUNCATE_PAUSE_SECONDS
        if is_urgent:
            self._urgent_at = now + URGENT_PAUSE_SECONDS
        size = self._wal_size()
        if size > MAX_BYTES and now >= self._warn_at:
            self._warn_at = now + WARN_SECONDS
            _log.warning(
                "The WAL of %s has grown to %d MB, because %s.",
                self._path,
                size >> 20,
                "a process keeps a read transaction open on it; `lsof` on the file lists its users"
                if is_held
                else "other processes read or write without a pause; the next checkpoint tries again",
            )

    def _wal_size(self) -> int:
        try:
            return os.stat(self._wal).st_size  # noqa: PTH116 - after every commit
        except OSError:
            return 0

    def _take_lock(self, patience: float) -> bool:
        """Whether the lock is ours now; waits up to `patience` seconds for another process."""
        deadline = time.monotonic() + patience
        while not self._try_lock():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def _try_lock(self) -> bool:
        try:
            if self._lock is None:
                folder = side_folder(self._path)
                if folder is None:
                    return True  # nowhere to put a lock; SQLite's own lock still lets one checkpoint run at a time
                self._lock = os.open(
                    folder / "checkpoint.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
                )
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _drop_lock(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
