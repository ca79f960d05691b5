"""Doors of the kernel that Python 3.11 has no name for, each a function that raises OSError.

The numbers of system calls below 424 differ by machine; a machine that is not in the table answers ENOSYS,
just as an old kernel would, so callers need one fallback and not two.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

OPENAT2 = "openat2"
RENAMEAT2 = "renameat2"

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RENAME_NOREPLACE = 1

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_CAPABILITY_VERSION_3 = 0x20080522

_MACHINES = {
    "x86_64": {"capset": 126, "pivot_root": 155, "renameat2": 316, "seccomp": 317},
    "aarch64": {"capset": 91, "pivot_root": 41, "renameat2": 276, "seccomp": 277},
}
_SHARED = {  # the same on every machine since 5.1
    "openat2": 437,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}

_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """The name of this machine in our tables, or an empty string where we have none."""
    name = platform.machine() if sys.platform == "linux" and struct.calcsize("P") == 8 else ""
    return name if name in _MACHINES else ""


def syscall(name: str, *args: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """One system call by name; -1 becomes OSError."""
    number = (_MACHINES.get(machine(), {}) | _SHARED).get(name) if machine() else None
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    return _checked(_libc.syscall(ctypes.c_long(number), *words), name)


def openat2(name: str, flags: int, mode: int, resolve: int, *, dir_fd: int) -> int:
    """Open with the kernel's own rules about how the path may be resolved."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return syscall(OPENAT2, dir_fd, os.fsencode(name), how, len(how))


def rename_noreplace(src: str, dst: str, *, dir_fd: int) -> None:
    """Rename inside one folder, or FileExistsError: the check and the move are one step of the kernel."""
    syscall(RENAMEAT2, dir_fd, os.fsencode(src), dir_fd, os.fsencode(dst), RENAME_NOREPLACE)


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process."""
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for fresh ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount, bind or change the propagation of a mount."""
    words = [os.fsencode(text) if text else None for text in (source, target, kind)]
    done = _libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) if data else None)
    _checked(done, f"mount {target}")


def mount_setattr(target: str, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount, and to all below it when `recursive`."""
    words = struct.pack("QQQQ", attributes, 0, 0, 0)
    path = os.fsencode(target)
    syscall("mount_setattr", _AT_FDCWD, path, _AT_RECURSIVE if recursive else 0, words, len(words))


def unmount(target: str) -> None:
    """Take a mount out of sight; it ends when its last user does."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root of this mount namespace and put the old root at `old`."""
    syscall("pivot_root", os.fsencode(new), os.fsencode(old))


def drop_capabilities() -> None:
    """Give up every capability for good, also those that a later exec could win back."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:  # past the last one, or not ours to drop: then it is not ours to win back either
            break
    zero = ctypes.c_ulong(0)
    _libc.prctl(PR_CAP_AMBIENT, ctypes.c_ulong(PR_CAP_AMBIENT_CLEAR_ALL), zero, zero, zero)
    syscall("capset", struct.pack("Ii", _CAPABILITY_VERSION_3, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0))


def _checked(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
