"""Landlock: which files and ports a process may touch, as a rule of the kernel that it can't take back.

What is not granted is denied. Rights that an older kernel doesn't know are left out of the request, which is why
`abi()` is part of what a machine offers; a policy that needs them says so and fails closed.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from typing import Literal

from tenure.sandbox import linux

Right = Literal["list", "read", "write", "device"]

ABI_NETWORK = 4
ABI_SCOPES = 6

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK, _MAKE_SYM = (1 << bit for bit in range(6, 13))
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15

_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (
    _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
) | (_REFER | _TRUNCATE)
_GRANTS = {"list": _READ_DIR, "read": _READ, "write": _WRITE, "device": _READ_FILE | _WRITE_FILE}

_BIND_AND_CONNECT_TCP, _CONNECT_TCP = 0x3, 0x2
_ABSTRACT_SOCKETS_AND_SIGNALS = 0x3

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH, _RULE_NET_PORT = 1, 2


def abi() -> int:
    """The version of Landlock that this kernel offers here; 0 for none."""
    try:
        return linux.syscall("landlock_create_ruleset", None, 0, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def prepare(grants: Iterable[tuple[str, Right]], *, network: bool, ports: Iterable[int] | None = None) -> int:
    """A set of rules, as a file descriptor. Made while the caller may still open what it grants.

    Signals and abstract sockets will reach only processes inside the same bounds, where the kernel knows how.

    Args:
        network: Whether TCP may be used at all.
        ports: The only TCP ports that may be connected to, and none may be listened at; None leaves both free.
    """
    version = abi()
    handled = _handled(version)
    allowed = list(ports) if network and ports is not None else None
    if allowed is not None and version < ABI_NETWORK:
        raise OSError(f"ports are bounded by Landlock ABI {ABI_NETWORK}, this kernel has {version}")
    ruleset = _create(version, handled, network=network and allowed is None)
    for port in allowed or ():
        linux.syscall("landlock_add_rule", ruleset, _RULE_NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
    for path, right in grants:
        _grant(ruleset, path, _GRANTS[right] & handled)
    return ruleset


def enforce(ruleset: int) -> None:
    """Bind this process and its descendants to the rules, for good. Needs no_new_privs."""
    linux.syscall("landlock_restrict_self", ruleset, 0)


def _handled(version: int) -> int:
    known = (1 << 13) - 1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version >= since:
            known |= right
    return known


def _create(version: int, handled: int, *, network: bool) -> int:
    words = struct.pack("Q", handled)
    if version >= ABI_NETWORK:
        words += struct.pack("Q", 0 if network else _BIND_AND_CONNECT_TCP)
    if version >= ABI_SCOPES:
        words += struct.pack("Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = linux.syscall("landlock_create_ruleset", words, len(words), 0)
    os.set_inheritable(ruleset, False)
    return ruleset


def _grant(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _ON_FILES
        linux.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
