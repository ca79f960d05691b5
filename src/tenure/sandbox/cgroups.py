"""Control groups, version 2, where this process may make them: memory and process counts of a whole tree.

Version 1 is not used: it is on its way out, has a tree for each controller and no way to kill a group in one stroke.
On machines that still have it the rlimits hold, and the init watches the tree's memory.

A group is named for the worker that made it, `tenure-<pid>-<random>`. A worker that is killed leaves it empty
behind, since its children die with it; the next one to come along removes it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tenure.model.frozen import frozen
from tenure.sandbox.rlimits import Limits

MEMORY, PIDS, KILL = "memory", "pids", "kill"

_FILES = {"memory.max": MEMORY, "pids.max": PIDS, "cgroup.kill": KILL}


@frozen
class Cgroup:
    """One group, made for one child process tree."""

    path: Path
    powers: frozenset[str]

    def limit(self, limits: Limits) -> None:
        """Set the bounds that this group has powers for."""
        if MEMORY in self.powers:
            (self.path / "memory.max").write_text(str(limits.memory_bytes))
            with suppress(OSError):  # both newer than memory.max itself
                (self.path / "memory.swap.max").write_text("0")
            with suppress(OSError):
                (self.path / "memory.oom.group").write_text("1")
        if PIDS in self.powers:
            (self.path / "pids.max").write_text(str(limits.processes + 2))  # our own two processes live there too

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed something here for want of memory."""
        try:
            events = (self.path / "memory.events").read_text().split()
        except OSError:
            return False
        counts: Mapping[str, str] = dict(zip(events[::2], events[1::2], strict=False))
        return int(counts.get("oom_kill", "0")) > 0

    def remove(self) -> None:
        """Kill whatever is left and remove the group. Idempotent."""
        if KILL in self.powers:
            with suppress(OSError):
                (self.path / "cgroup.kill").write_text("1")
        with suppress(OSError):  # a process that is still dying: the next worker's sweep removes it
            self.path.rmdir()


def powers(parent: Path | None = None) -> frozenset[str]:
    """What a group made here could do; empty where none can be made."""
    group = create(parent)
    if group is None:
        return frozenset()
    group.remove()
    return group.powers


def why_not(controllers: frozenset[str]) -> str:
    """Why no group here bounds memory and process counts, and what bounds them instead; for people."""
    lacking = [name for name in (MEMORY, PIDS) if name not in controllers]
    if not controllers:
        why = "no version 2 group may be made here"
    elif (taken := _taken_by_version_1(lacking)) != []:
        why = f"version 1 has taken the controllers {' and '.join(taken)}, and only version 2 is used"
    else:
        why = f"the groups that may be made here have no {' and no '.join(lacking)}"
    return f"{why}; rlimits bound each process and the count of them, and the tree's memory is watched instead"


def create(parent: Path | None = None) -> Cgroup | None:
    """Make a group beneath `parent`, by default beneath our own; None where that is not allowed."""
    made = [group for home in ([parent] if parent else _homes()) if (group := _create(home))]
    made.sort(key=lambda group: len(group.powers))  # a group with processes of its own passes few powers on
    for group in made[:-1]:
        group.remove()
    return made[-1] if made else None


def _create(home: Path) -> Cgroup | None:
    path = home / f"tenure-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        _sweep(home)
        _hand_down(home)
        path.mkdir()
    except OSError:
        return None
    if not os.access(path / "cgroup.procs", os.W_OK):
        path.rmdir()
        return None
    return Cgroup(path, frozenset(power for file, power in _FILES.items() if os.access(path / file, os.W_OK)))


def _hand_down(home: Path) -> None:
    """Let groups in here have the controllers that this one has. The kernel refuses where processes live in it."""
    with suppress(OSError):
        here = (home / "cgroup.controllers").read_text().split()
        passed_on = (home / "cgroup.subtree_control").read_text().split()
        for name in (MEMORY, PIDS):
            if name in here and name not in passed_on:
                with suppress(OSError):  # one by one: a write of both would fail for either
                    (home / "cgroup.subtree_control").write_text(f"+{name}")


def _homes() -> list[Path]:
    """Our own group, and the one above it, which systemd delegates to us when we run in a subgroup of it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mount = next(Path(words[4]) for words in mounts if words[words.index("-") + 1] == "cgroup2")
    except (OSError, StopIteration, ValueError):
        return []
    home = mount / own.lstrip("/")
    return [home] if home == mount else [home, home.parent]


def _taken_by_version_1(names: list[str]) -> list[str]:
    """Those that are bound to a hierarchy of version 1, which the kernel numbers; version 2 is number 0."""
    try:
        rows = [line.split() for line in Path("/proc/cgroups").read_text().splitlines()[1:]]
    except OSError:
        return []
    bound = {words[0] for words in rows if words[1] != "0"}
    return [name for name in names if name in bound]


def _sweep(home: Path) -> None:
    for left in home.glob("tenure-*-*"):
        pid = left.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with suppress(OSError):
                left.rmdir()
