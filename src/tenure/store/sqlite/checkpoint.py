"""Checkpoints: moving what is in the WAL into the database file, by one connection at a time.

SQLite before 3.51.3 has a rare race that can damage the file when several connections write and checkpoint at once.
So no connection of ours checkpoints by itself (`wal_autocheckpoint=0`): the leader of a commit does, between two
transactions, when enough was written, and only while it holds a lock file that all processes share. If another
process holds it, that one is at work and we go on.

How much is in the WAL cannot be asked without a checkpoint, so it is estimated: a commit dirties some pages of every
index it touches, a row in a large commit shares its pages with others. Each checkpoint tells the true number, by which
the estimate is corrected: long payloads take more pages, and other processes write too. A WAL that readers keep from
shrinking is logged once it is large.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

from tenure.store.sqlite.place import side_folder
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.wal import grow

PAGES: Final = 1000
"""Pages in the WAL, as estimated, that make a checkpoint due: some 4 MB, as SQLite has it by itself. Twice as many
would win nothing more, and the reserve has to hold what a full disk leaves to the WAL."""
ALARM_PAGES: Final = 65_536
"""256 MB: somebody keeps a read transaction open."""
MANY_COMMITS: Final = 8
"""Whoever makes so many lets the WAL grow at once; see `wal`."""
_PAGES_PER_COMMIT: Final = 3.5
_PAGES_PER_ROW: Final = 0.13
_WEIGHTS: Final = (0.5, 100.0)
"""Bounds of the correction."""

_log = logging.getLogger(__name__)


class Checkpointer:
    """Decides when, and takes the lock. Used by whoever leads, so never by two threads at once."""

    def __init__(self, path: Path) -> None:
        self.runs = 0
        self.wal_pages = 0
        """What the last checkpoint found in the WAL."""
        self._path = path
        self._score = 0.0
        self._uncorrected = 0.0
        self._weight = 3.0  # before the first true number: rather too early than too late
        self._changes = 0
        self._commits = 0
        """On this connection, until the WAL has grown; then it stays above MANY_COMMITS."""
        self._lock: int | None = None

    def is_time(self, connection: sqlite3.Connection) -> bool:
        """Count a commit; whether enough was written since the last checkpoint."""
        changes = connection.total_changes
        made = changes - self._changes
        if made:
            pages = _PAGES_PER_COMMIT
            if made > 0:
                pages += _PAGES_PER_ROW * made
                self._commits += 1
            else:  # a fresh connection counts from 0 again
                self._commits = 1
            self._uncorrected += pages
            self._score += pages * self._weight
            self._changes = changes
        return self._score >= PAGES or self._commits == MANY_COMMITS

    def run(self, connection: sqlite3.Connection) -> bool:
        """Checkpoint what can be, without waiting for readers. False if another process is at it, or if it was time for
        something else only."""
        if self._commits == MANY_COMMITS:
            self._commits = MANY_COMMITS + 1 if grow(connection, self._path, PAGES) else 0
            if self._score < PAGES:
                return False
        self._score = PAGES * 0.75  # if it cannot be done now, try again soon, not at every commit
        if not self._take_lock():
            return False
        try:
            _, pages, moved = connection.execute(load("checkpoint")).fetchone()
        except sqlite3.Error as exc:  # nothing is lost: the WAL keeps it
            _log.warning("The checkpoint of %s failed and will be repeated: %s", self._path, exc)
            return False
        finally:
            self._drop_lock()
        self.runs += 1
        self.wal_pages = pages
        if pages == moved:
            if self._uncorrected:
                least, most = _WEIGHTS
                self._weight = min(most, max(least, pages / self._uncorrected))
            self._score = self._uncorrected = 0.0
        elif pages > ALARM_PAGES:
            _log.warning(
                "The WAL of %s has grown to %d pages, because somebody keeps a read transaction open on it.",
                self._path,
                pages,
            )
        return True

    def abandon(self) -> None:
        """In a forked child: the lock belongs to the parent."""
        self._lock = None
        self._score = self._uncorrected = 0.0
        self._changes = self._commits = 0

    def close(self) -> None:
        """Let go of the lock file."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _take_lock(self) -> bool:
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
