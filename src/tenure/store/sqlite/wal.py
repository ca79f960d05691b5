"""The file in which SQLite keeps what was committed last, let grow to its usual size at once.

After a checkpoint the WAL is overwritten from its start, and to sync what was overwritten takes half as long as to sync
a file that has grown: the filesystem has nothing to write down but the data. So whoever commits more than a few times
puts zeros behind the end of the file, as far as the next checkpoint will let it grow anyway.

To SQLite zeros are what frames of an earlier time are: nothing, for their checksums are wrong. Nobody else writes
meanwhile, because the file's write lock is held; and SQLite has no locks on this very file that closing it would lose.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path
from typing import Final

from tenure.store.sqlite.errors import is_busy
from tenure.store.sqlite.queries import load

ROOM_BYTES: Final = 64 * 1024 * 1024
"""So much must be free on the disk: whoever is short of space is not helped by speed."""
_FRAME_HEAD: Final = 24


def grow(connection: sqlite3.Connection, database: Path, pages: int) -> bool:
    """Let the WAL grow to so many pages. False if another process writes just now; whatever else stands in the way is
    no reason to try again."""
    try:
        connection.execute(load("begin"))
    except sqlite3.OperationalError as exc:
        return not is_busy(exc)
    try:
        (page_size,) = connection.execute(load("page_size")).fetchone()
        with contextlib.suppress(OSError):
            _append_zeros(f"{database}-wal", pages * (page_size + _FRAME_HEAD))
    finally:
        connection.execute(load("rollback"))
    return True


def _append_zeros(name: str, size: int) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found, disk = os.fstat(file), os.fstatvfs(file)
        missing = size - found.st_size
        if missing > 0 and stat.S_ISREG(found.st_mode) and disk.f_bavail * disk.f_frsize > ROOM_BYTES:
            os.pwrite(file, bytes(missing), found.st_size)
            os.fsync(file)
    finally:
        os.close(file)
