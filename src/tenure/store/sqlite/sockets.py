"""Datagrams between the processes of one machine that share a file.

Each process that listens binds a unix datagram socket in a folder beside the file (mode 0700); whoever commits
something worth waking for sends one datagram to each socket there. Sending never blocks and never fails the sender: a
full buffer means that the receiver has its wake-up already, a refused one that its process died, and its socket is
removed. Who listens is read from the folder, and the folder is read again only when it has changed. In the same folder
stand the pipes in which workers make offers (see `offers`), each named after the socket of its process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tenure.store.sqlite.place import side_folder

SUFFIX: Final = ".sock"
OFFER_SUFFIX: Final = ".offer"
LONGEST_MESSAGE: Final = 32_768
LONGEST_PATH: Final = 100
"""What every system takes for a socket's path, with some room."""
_LONGEST_NAME: Final = 30
_FRESH_NS: Final = 50_000_000
"""A folder changed less long ago than this may change again without its time showing it."""


class Mailbox:
    """This process's own socket. `path` is None if there is none: then only the poll wakes."""

    def __init__(self, database: Path) -> None:
        self.socket: socket.socket | None = None
        self.path: Path | None = None
        folder = side_folder(database)
        if folder is None or not hasattr(socket, "AF_UNIX"):
            return
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            with _address(path) as address:
                made.bind(address)
            made.setblocking(False)
        except OSError:
            made.close()
            return
        self.socket, self.path = made, path

    def receive(self) -> list[bytes]:
        """Everything that has arrived."""
        found: list[bytes] = []
        if self.socket is not None:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                while len(found) < 256:
                    found.append(self.socket.recv(LONGEST_MESSAGE))
        return found

    def close(self) -> None:
        """Take the socket away."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.forget()

    def forget(self) -> None:
        """Let go of the socket without removing its name: in a forked child it is the parent's."""
        if self.socket is not None:
            self.socket.close()
        self.socket = self.path = None


class Postman:
    """Sends to all mailboxes beside one file."""

    def __init__(self, database: Path) -> None:
        self._folder = database.with_name(f"{database.name}-tenure")
        self._folder_name = str(self._folder)
        self._is_short = len(os.fsencode(self._folder_name)) + _LONGEST_NAME < LONGEST_PATH
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._seen = 0
        self._is_settled = False
        self._look_at = 0.0
        self._names: list[str] = []
        self.offers: dict[str, list[str]] = {}
        """The pipes in which offers may stand, by the mark of their queue. Another dict whenever it is read anew."""

    def has_mailboxes(self) -> bool:
        """Whether anybody listens, we ourselves included. On the path of every enqueue, so the folder is looked at only
        once a millisecond; who began to listen since then claims for itself first."""
        now = time.monotonic()
        if now < self._look_at:
            return bool(self._names)
        self._look_at = now + 0.001
        try:
            changed = os.stat(self._folder_name).st_mtime_ns  # noqa: PTH116 - faster than Path.stat
        except OSError:
            self._names, self.offers = [], {}
            return False
        if changed != self._seen or not self._is_settled:
            with self._lock:
                self._is_settled = time.time_ns() - changed > _FRESH_NS
                self._seen = changed
                with contextlib.suppress(OSError):
                    names = os.listdir(self._folder)  # noqa: PTH208 - names are all that is asked for
                    self._names = [name for name in names if name.endswith(SUFFIX)]
                    self.offers = _by_mark(names)
        return bool(self._names)

    def send(self, message: bytes, own: Path | None) -> None:
        """Send to everybody but ourselves."""
        if not self.has_mailboxes():
            return
        with self._lock:
            for name in self._names:
                if own is None or name != own.name:
                    self._send(name, message)

    def deliver(self, name: str, message: bytes) -> bool:
        """Send to one mailbox; whether it is there to be read."""
        with self._lock:
            return self._send(name, message)

    def remove(self, name: str) -> None:
        """Remove what belonged to a process that died."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()

    def path(self, name: str) -> Path:
        """Where something stands in the folder."""
        return self._folder / name

    def forget(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, name: str, message: bytes) -> bool:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        try:
            if self._is_short:  # as it mostly is, in a hurry
                self._socket.sendto(message, f"{self._folder_name}/{name}")
            else:
                with _address(self._folder / name) as address:
                    self._socket.sendto(message, address)
        except OSError as exc:
            if exc.errno == errno.ECONNREFUSED:  # its process died
                self._bury(name)
            return False
        return True

    def _bury(self, name: str) -> None:
        """Remove a dead process's socket and its pipes."""
        stem = name.removesuffix(SUFFIX) + "."
        with contextlib.suppress(OSError):
            for each in self._folder.iterdir():
                if each.name.startswith(stem):
                    self.remove(each.name)


def _by_mark(names: Sequence[str]) -> dict[str, list[str]]:
    """Pipes by the mark of their queue: SOCKET.MARK.NUMBER.offer."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(OFFER_SUFFIX) and name.count(".") == 3:
            found.setdefault(name.split(".")[1], []).append(name)
    return found


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path, or where it is too long for a socket, the same place by way of an open folder."""
    text = str(path)
    if len(os.fsencode(text)) <= LONGEST_PATH:
        yield text
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
