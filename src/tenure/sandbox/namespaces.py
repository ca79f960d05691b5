"""Namespaces: a sandboxed process sees its own processes, its own small tree of files and no network.

Two roads lead there. An ordinary user makes a user namespace first and is master of the others inside it. Root
needs none for the others; the process is then handed to an unprivileged user, and only there gets a user namespace
of its own, so that RLIMIT_NPROC counts this sandbox alone (for root itself the kernel doesn't enforce it).

The tree is built on a fresh tmpfs: the folders that may be read, read-only; the workspace and artifacts under the
paths they have outside; a /proc that knows only the sandbox; four harmless devices; a /tmp of limited size. The old
tree is then detached. What is not in it has no name: databases, sockets and home folders included.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from tenure.sandbox import linux

DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108 - they are private to the sandbox

_NEW_CGROUP = 0x02000000
_ALL = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | _NEW_CGROUP
_OLD, _NEW = Path("/old"), Path("/new")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}


def enter(*, network: bool) -> None:
    """Leave for fresh namespaces. The next child is the first process of the new PID namespace."""
    flags = _ALL if network else _ALL | linux.CLONE_NEWNET
    if os.geteuid() == 0:
        linux.unshare(flags)
    else:
        _own_user_namespace(flags)
    socket.sethostname("sandbox")


def build_tree(
    readable: Iterable[str], writable: Iterable[str], links: Mapping[str, str], *, scratch_bytes: int
) -> bool:
    """Replace the tree of files by the small one. Answers whether a fresh /proc could be mounted.

    Paths must be resolved, for a link among them would be followed in the wrong tree; `links` are made anew.
    """
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    base = next(path for path in ("/tmp", "/var", "/usr") if Path(path).is_dir())  # noqa: S108 - covered by a tmpfs
    linux.mount("tmpfs", base, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m")
    os.chdir(base)
    for name in (_NEW.name, _OLD.name):
        Path(name).mkdir(0o755)
    linux.pivot_root(".", _OLD.name)
    os.chdir("/")
    linux.mount(str(_NEW), str(_NEW), flags=linux.MS_BIND)
    has_proc = _furnish(readable, writable, scratch_bytes)
    for path, target in {**_LINKS, **links}.items():
        _link(_NEW / path.lstrip("/"), target)
    os.chdir(_NEW)
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")
    linux.mount_setattr("/", linux.MOUNT_ATTR_RDONLY, recursive=False)
    return has_proc


def become(user: int, *, own_namespace: bool) -> None:
    """Stop being root: take on an unprivileged user for good. Called as anybody else, do nothing."""
    if os.geteuid() != 0:
        return
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if own_namespace:
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # else /proc/self would belong to root, and the map could not be written
        _own_user_namespace(0)


def _own_user_namespace(flags: int) -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | flags)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _furnish(readable: Iterable[str], writable: Iterable[str], scratch_bytes: int) -> bool:
    plan = [(path, "read") for path in readable] + [(path, "write") for path in writable]
    plan += [(path, "device") for path in DEVICES if (_OLD / path.lstrip("/")).exists()]
    plan += [(path, "scratch") for path in SCRATCH] + [("/proc", "proc")]
    has_proc = False
    for path, sort in sorted(plan, key=lambda entry: (entry[0].count("/"), entry)):
        if sort == "scratch":
            _mount_fresh(path, "tmpfs", f"mode=1777,size={scratch_bytes},nr_inodes=100k")
        elif sort == "proc":
            has_proc = _mount_proc()
        else:
            _bind(path.lstrip("/"), sort)
    return has_proc


def _mount_proc() -> bool:
    try:
        _mount_fresh("/proc", "proc", "")
    except OSError:  # a container that hides parts of its own /proc may not show a whole one: go without
        return False
    return True


def _mount_fresh(path: str, kind: str, options: str) -> None:
    target = _NEW / path.lstrip("/")
    target.mkdir(0o755, parents=True, exist_ok=True)
    flags = linux.MS_NOSUID | linux.MS_NODEV | (linux.MS_NOEXEC if kind == "proc" else 0)
    linux.mount(kind, str(target), kind, flags, options)


def _bind(path: str, sort: str) -> None:
    source, target = _OLD / path, _NEW / path
    if source.is_dir():
        target.mkdir(0o755, parents=True, exist_ok=True)
    else:
        target.parent.mkdir(0o755, parents=True, exist_ok=True)
        if not target.exists():
            target.touch(0o644)
    linux.mount(str(source), str(target), flags=linux.MS_BIND | linux.MS_REC)
    attributes = linux.MOUNT_ATTR_NOSUID
    if sort != "device":
        attributes |= linux.MOUNT_ATTR_NODEV
    if sort == "read":
        attributes |= linux.MOUNT_ATTR_RDONLY
    linux.mount_setattr(str(target), attributes, recursive=True)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    if not path.is_symlink() and not path.exists():
        path.symlink_to(target)
