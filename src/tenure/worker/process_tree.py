"""Process trees: who descends from whom, and how to end all of them so that none slips away by forking."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 100


def descendants(root: int) -> list[int]:
    """Every living process below `root`, parents before children. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if after_name[0] != "Z":
            children.setdefault(int(after_name[1]), []).append(int(entry.parent.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found.extend(below)
        todo.extend(below)
    return found


def kill_descendants(root: int) -> None:
    """End all processes below `root`. They are stopped first, round by round, so that none forks out of sight."""
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = [pid for pid in descendants(root) if pid not in stopped]
        if not fresh:
            break
        for pid in fresh:
            _send(pid, signal.SIGSTOP)
        stopped.update(fresh)
    for pid in stopped:
        _send(pid, signal.SIGKILL)


def kill_tree(root: int) -> None:
    """End `root` and all below it."""
    _send(root, signal.SIGSTOP)
    kill_descendants(root)
    _send(root, signal.SIGKILL)


def adopt_orphans() -> None:
    """From now on, descendants whose parent dies become children of this process, not of init. Linux only."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(sig: signal.Signals, parent: int) -> None:
    """Be sent `sig` when the parent ends; leave at once if it has ended already. Linux only."""
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(1)


def reap_until_none(deadline_seconds: float) -> None:
    """Wait for all children of this process, which have been killed, up to a time."""
    until = time.monotonic() + deadline_seconds
    while time.monotonic() < until:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.005)
        except ChildProcessError:
            return


def _send(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, sig)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
