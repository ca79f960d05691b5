"""A hostile program: tries every way out that it knows and prints how each went, as one JSON object.

Arguments: names of attempts, a folder outside the sandbox as prepared by the test, TCP port, name of an abstract
socket, the worker's pid.
An attempt that raises was stopped; one that returns got out, and what it returns is the loot.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHOSEN = sys.argv[1].split(",")
OUTSIDE, PORT, ABSTRACT, WORKER = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

Attempt = Callable[[], object]
attempts: dict[str, Attempt] = {}


def attempt(function: Attempt) -> Attempt:
    attempts[function.__name__] = function
    return function


def call(numbers: tuple[int, int], *args: int | bytes | None) -> int:
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = int(libc.syscall(ctypes.c_long(numbers[COLUMN]), *words))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# Files.


@attempt
def write_ssh_key() -> object:
    return (OUTSIDE / "home/.ssh/authorized_keys").write_text("ssh-ed25519 evil")


@attempt
def write_root_ssh_key() -> object:
    folder = Path(pwd.getpwuid(0).pw_dir) / ".ssh"
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / "tenure-escape").write_text("evil")


@attempt
def read_database() -> object:
    return (OUTSIDE / "jobs.db").read_text()


@attempt
def list_outside() -> object:
    return [path.name for path in OUTSIDE.iterdir()]


@attempt
def read_through_a_link() -> object:
    link = Path("link")
    link.symlink_to(OUTSIDE / "jobs.db")
    return link.read_text()


@attempt
def hard_link_a_file_in() -> object:
    os.link(OUTSIDE / "jobs.db", "hard")
    return Path("hard").read_text()


@attempt
def write_to_the_system() -> object:
    return Path("/usr/tenure-escape").write_text("evil")


@attempt
def make_a_device() -> None:
    os.mknod("kmem", 0o20666, os.makedev(1, 2))


@attempt
def climb_out_by_a_handle() -> object:
    return call((304, 265), 3, b"\0" * 16, 0)


# Network and sockets.


@attempt
def connect_tcp() -> object:
    with socket.create_connection(("127.0.0.1", PORT), timeout=3) as sock:
        return sock.recv(16).decode()


@attempt
def listen_tcp() -> object:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()


@attempt
def send_udp() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"x", ("127.0.0.1", PORT))


@attempt
def connect_unix_socket() -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3)
        sock.connect(os.path.relpath(OUTSIDE / "pg.sock"))
        return sock.recv(16).decode()


@attempt
def connect_abstract_socket() -> object:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(3)
        sock.connect(f"\0{ABSTRACT}")
        return sock.recv(16).decode()


@attempt
def talk_netlink() -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close()


@attempt
def use_kernel_crypto() -> None:
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET, 0).close()


@attempt
def use_io_uring() -> object:
    return call((425, 425), 8, b"\0" * 120)


# Privileges and other processes.


@attempt
def mount_a_tmpfs() -> object:
    Path("mnt").mkdir(exist_ok=True)
    return call((165, 40), b"tmpfs", b"mnt", b"tmpfs", 0, None)


@attempt
def unmount() -> object:
    return call((166, 39), b"/usr", 2)


@attempt
def become_root_in_a_user_namespace() -> object:
    return call((272, 97), 0x10000000)


@attempt
def clone_into_a_user_namespace() -> None:
    if call((56, 220), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        os._exit(0)


@attempt
def clone3() -> object:
    return call((435, 435), b"\0" * 64, 64)


@attempt
def enter_the_workers_namespaces() -> object:
    fd = os.open(f"/proc/{WORKER}/ns/mnt", os.O_RDONLY)
    return call((308, 268), fd, 0)


@attempt
def change_root() -> None:
    os.chroot(".")


@attempt
def be_user_zero() -> None:
    if os.getuid() != 0:
        os.setuid(0)


@attempt
def gain_by_a_setuid_program() -> object:
    status = Path("/proc/self/status").read_text() if Path("/proc/self/status").exists() else "NoNewPrivs:\t1"
    if "NoNewPrivs:\t1" in status:
        raise PermissionError("no new privileges")
    return status


@attempt
def trace_the_worker() -> object:
    return call((101, 117), 16, WORKER, 0, 0)


@attempt
def trace_the_first_process() -> object:
    return call((101, 117), 16, 1, 0, 0)


@attempt
def trace_me() -> object:
    return call((101, 117), 0, 0, 0, 0)


@attempt
def read_the_workers_memory() -> object:
    return call((310, 270), WORKER, None, 0, None, 0, 0)


@attempt
def read_environments() -> object:
    """The worker's environment holds a canary; so may that of any process between it and us."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"canary-in-the-worker" in path.read_bytes():
                found.append(str(path))
        except OSError:
            continue
    if not found:
        raise PermissionError("no canary to be seen")
    return found


@attempt
def read_the_workers_environ() -> object:
    return Path(f"/proc/{WORKER}/environ").read_text()


@attempt
def open_the_workers_files() -> object:
    return list(Path(f"/proc/{WORKER}/fd").iterdir())


@attempt
def open_the_parents_memory() -> None:
    os.close(os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR))


@attempt
def signal_the_worker() -> None:
    os.kill(WORKER, signal.SIGCONT)


@attempt
def kill_the_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    if os.getppid() == 1:
        raise PermissionError("the first process of a namespace is deaf to it")


@attempt
def use_keys() -> object:
    return call((250, 219), 0, -3, 1)


@attempt
def add_a_key() -> object:
    return call((248, 217), b"user", b"x", b"y", 1, -3)


@attempt
def load_a_kernel_program() -> object:
    return call((321, 280), 0, b"\0" * 64, 64)


@attempt
def watch_performance_events() -> object:
    return call((298, 241), b"\0" * 128, 0, -1, -1, 0)


@attempt
def handle_page_faults() -> object:
    return call((323, 282), 1)


@attempt
def load_another_kernel() -> object:
    return call((246, 104), 0, 0, None, 0)


@attempt
def set_the_clock() -> object:
    return call((227, 112), 0, b"\0" * 16)


@attempt
def type_into_the_terminal() -> object:
    return call((16, 29), 0, 0x5412, b"x")


# What a program may well do. These must work, or the walls are too narrow.

allowed: dict[str, Attempt] = {}


def may(function: Attempt) -> Attempt:
    allowed[function.__name__] = function
    return function


@may
def write_workspace() -> None:
    Path("made").mkdir()
    Path("made/here").write_text("x")
    Path("made").rename("moved")


@may
def read_system() -> object:
    return len(list(Path("/usr/bin").iterdir()))


@may
def run_programs() -> object:
    return subprocess.run(["/bin/sh", "-c", "exit 7"], check=False).returncode


@may
def use_devices() -> object:
    Path("/dev/null").write_text("x")
    with Path("/dev/urandom").open("rb") as file:
        return len(file.read(8))


@may
def use_an_event_loop() -> object:
    return asyncio.run(asyncio.sleep(0, 7))


@may
def use_threads() -> object:
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(len, ["a", "bb"]))


def use_own_unix_socket() -> object:
    """Neither an escape nor always allowed: the policy says."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("own.sock")
        server.listen()
        client.connect("own.sock")
        return client.getpeername()


def outcome(function: Attempt) -> dict[str, object]:
    try:
        return {"done": True, "loot": repr(function())[:200]}
    except (OSError, subprocess.SubprocessError) as exc:
        return {"done": False, "why": f"{type(exc).__name__}: {exc}"}


if __name__ == "__main__":
    chosen = {name: attempts[name] for name in CHOSEN} | {"use_own_unix_socket": use_own_unix_socket}
    report = {name: outcome(function) for name, function in {**chosen, **allowed}.items()}
    print(json.dumps(report))
