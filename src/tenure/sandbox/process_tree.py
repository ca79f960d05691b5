"""All processes that descend from a init, however they forked: to signal, count, weigh and end them."""

from __future__ import annotations

import os
import signal
import stat
import time
from contextlib import suppress
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_INODE_BYTES = 1024  # an empty file takes room too, and time to count


class Namespace:
    """The tree of processes, when the init is the first of a PID namespace: everybody but itself."""

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(-1, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)  # and our own exit does it again, by the kernel's hand

    def pids(self) -> list[int]:
        return [pid for pid in _all_pids() if pid != 1]


class Descendants:
    """The tree of processes, when the init is a subreaper: all of its descendants."""

    def signal(self, number: int) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kill until none is left. Stopped first, so that none forks while the others are being killed."""
        while True:
            self.signal(signal.SIGSTOP)
            self.signal(signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.005)

    def pids(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for pid in _all_pids():
            children.setdefault(_parent_of(pid), []).append(pid)
        found, look_at = [], [os.getpid()]
        while look_at:
            below = children.get(look_at.pop(), [])
            found += below
            look_at += below
        return found


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names, not paths


def _parent_of(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def memory_of(pids: list[int], limit: int) -> int:
    """What the tree uses. Counted cheaply, pages shared after a fork several times; fairly only if that is too much."""
    roughly = sum(_resident(pid) for pid in pids)
    return roughly if roughly <= limit else sum(_proportional(pid) for pid in pids)


def disk_of(folders: list[str], pids: list[int], limit: int) -> int:
    """Bytes on disk beneath the folders, and of deleted files that the processes hold open. Stops above `limit`.

    A folder that cannot be read counts as too much: it could hold anything.
    """
    used, seen, waiting = _deleted_but_open(pids), set[tuple[int, int]](), list(folders)
    while waiting and used <= limit:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
                            if (found.st_dev, found.st_ino) in seen:
                                continue
                            seen.add((found.st_dev, found.st_ino))
                        used += found.st_blocks * 512 + _INODE_BYTES
                        if stat.S_ISDIR(found.st_mode):
                            waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return limit + 1
    return used


def _deleted_but_open(pids: list[int]) -> int:
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - names, not paths
                with suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116 - a number, not a path
                    if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                        files[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(files.values())


def _resident(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/statm").open("rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/smaps_rollup").open("rb") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:"))
    except OSError:
        return 0
