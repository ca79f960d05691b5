"""Seccomp: system calls that a sandboxed process is refused with EPERM, as a filter of the kernel.

The list takes away what reaches past files and sockets: mounting, tracing, other processes' memory, keys, kernel
programs and modules, fresh namespaces (where an unprivileged process would be root again), and io_uring, whose
work the kernel does without asking this filter. `clone3` hides its flags from filters, so it answers ENOSYS and
the C library falls back to `clone`, whose flags are looked at. Calls for another machine (32 bit, x32) end the
process: their numbers mean other things.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from tenure.sandbox import linux

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10

_DENIED = {  # name: (x86_64, aarch64); None where the machine never had it
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
# Memory that belongs to no process: neither RLIMIT_DATA nor a sum over the processes sees it.
_UNCOUNTED_MEMORY = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mq_open": (240, 180),
    "shmget": (29, 194),
}
_LOOKED_AT = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_NEW_NAMESPACES = 0x7E020000  # all CLONE_NEW* that clone takes
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # put words into a terminal's mouth
_X32 = 0x40000000
# Landlock's ports hold for `connect` on a TCP socket: neither for MPTCP (262), nor for a `send` that connects.
_PROTOCOLS = (0, 6, 17)  # the family's own, TCP, UDP
_MSG_FASTOPEN = 0x20000000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2


def is_available() -> bool:
    """Whether this kernel takes filters and we know this machine's numbers."""
    try:
        linux.syscall("seccomp", _GET_ACTION_AVAIL, 0, struct.pack("I", _KILL_PROCESS))
    except OSError:
        return False
    return True


def install(families: Iterable[int], *, uncounted_memory: bool = True) -> None:
    """Filter this process and its descendants, for good. Needs no_new_privs.

    Args:
        families: Address families that `socket` may open; none means no network and no sockets of files.
            Pairs of connected AF_UNIX sockets are always allowed: they reach no other process.
        uncounted_memory: Whether memory that belongs to no process may be had; only a memory cgroup bounds it.
    """
    words = program(linux.machine(), tuple(families), uncounted_memory=uncounted_memory)
    code = ctypes.create_string_buffer(words, len(words))
    header = struct.pack("HP", len(words) // 8, ctypes.addressof(code))
    linux.syscall("seccomp", _SET_MODE_FILTER, 0, header)


def program(machine: str, families: tuple[int, ...], *, uncounted_memory: bool = True) -> bytes:
    """The filter as the kernel reads it: eight bytes a step."""
    column, arch = _ARCH[machine]
    looked_at = {name: numbers[column] for name, numbers in _LOOKED_AT.items()}
    steps = [
        _step(_LOAD, _AT_ARCH),
        _step(_JUMP_EQUAL, arch, 1, 0),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _AT_NUMBER),
        _step(_JUMP_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _KILL_PROCESS),
    ]
    denied = _DENIED if uncounted_memory else {**_DENIED, **_UNCOUNTED_MEMORY}
    for numbers in denied.values():
        if (number := numbers[column]) is not None:
            steps += _refuse(number, errno.EPERM)
    steps += _refuse(looked_at["clone3"], errno.ENOSYS)
    steps += _refuse_if(looked_at["clone"], 0, [_step(_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refusal()])
    for request in (_TIOCSTI, _TIOCLINUX):
        steps += _refuse_if(looked_at["ioctl"], 1, [_step(_JUMP_EQUAL, request, 0, 1), _refusal()])
    steps += _refuse_if(looked_at["socket"], 0, _unless_one_of(families))
    steps += _refuse_if(looked_at["socket"], 2, _unless_one_of(_PROTOCOLS, errno.EPROTONOSUPPORT))
    for name, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        connects = [_step(_JUMP_ANY_BIT, _MSG_FASTOPEN, 0, 1), _refusal(errno.EOPNOTSUPP)]
        steps += _refuse_if(looked_at[name], flags, connects)
    steps += _refuse_if(looked_at["socketpair"], 0, _unless_one_of((AF_UNIX,)))
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refusal(error: int = errno.EPERM) -> bytes:
    return _step(_RETURN, _ERRNO | error)


def _refuse(number: int, error: int) -> list[bytes]:
    return [_step(_JUMP_EQUAL, number, 0, 1), _refusal(error)]


def _refuse_if(number: int, argument: int, test: list[bytes]) -> list[bytes]:
    """For one call, load an argument's low half and run `test`; one that passes goes on with the number loaded."""
    inner = [_step(_LOAD, _AT_ARGUMENTS + 8 * argument), *test, _step(_LOAD, _AT_NUMBER)]
    return [_step(_JUMP_EQUAL, number, 0, len(inner)), *inner]


def _unless_one_of(values: tuple[int, ...], error: int = errno.EPERM) -> list[bytes]:
    checks = [_step(_JUMP_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [*checks, _refusal(error)]
