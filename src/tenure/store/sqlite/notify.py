"""Wake-ups: a worker that waits for jobs learns of them at once.

Three ways, each behind the other:

1. *The same process*: after its commit the writer calls the subscribers itself.
2. *Other processes*: each process that listens binds a unix datagram socket in a folder beside the file (mode 0700);
   a commit that made jobs due sends one datagram to each socket there. The message names the queues. Sending never
   blocks and never fails the sender: a full buffer means that the receiver has its wake-up already, a refused datagram
   that its process died, and its socket is removed.
3. *Everything else* (a job enqueued in a caller's own transaction, another program, a lost datagram): the listener
   polls `PRAGMA data_version`, which tells of other connections' commits for the price of a look at shared memory, and
   asks whether there is something to claim only if it has changed.

A wake-up is a hint. Workers poll behind it, and the listener thread never raises.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import selectors
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from tenure.errors import StoreUnavailable
from tenure.store.sqlite import files
from tenure.store.sqlite.connection import WatchedFile, open_reader
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import dump

POLL_SECONDS: Final = 0.05
DEAF_SECONDS: Final = 10.0
"""A listener that has not looked for so long counts as dead."""

_SUFFIX: Final = ".sock"
_ALL: Final = b"*"
_QUEUES: Final = b"q"
_LONGEST_MESSAGE: Final = 4096
_MAX_MESSAGES: Final = 256
"""Datagrams read at once."""
_LONGEST_NAMES: Final = 1000
"""More names than this many bytes are sent as `_ALL`."""
_LONGEST_FOLDER: Final = 74
"""A socket's path may have 100 bytes on every system, and a name in the folder takes up to 26 of them."""
_FRESH_NS: Final = 50_000_000
"""A folder changed less long ago than this may change again without its time showing it."""

_SQL: Final = load("notify")
_log = logging.getLogger(__name__)


class Subscription:
    """Keeps the contract of `tenure.store.contract.Subscription`."""

    def __init__(self, hub: Hub, queues: Iterable[str], wake: Callable[[], None]) -> None:
        self.queues = frozenset(queues)
        self.wake = wake
        self._hub = hub

    def close(self) -> None:
        """End it. Closing twice is harmless."""
        self._hub.drop(self)

    def is_alive(self) -> bool:
        """Whether the listener has looked lately."""
        return self._hub.is_listening(self)


class Hub:
    """The subscribers of one file in this process, and the thread that listens for them."""

    def __init__(self, watched: WatchedFile) -> None:
        self._watched = watched
        self._lock = threading.Lock()
        self._subscribers: tuple[Subscription, ...] = ()
        self._sender = Sender(watched.path)
        self._listener: _Listener | None = None

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> Subscription:
        """Call `wake`, from any thread, when jobs may have arrived in these queues."""
        subscription = Subscription(self, queues, wake)
        with self._lock:
            self._subscribers = (*self._subscribers, subscription)
            if self._listener is None:
                self._listener = _Listener(self._watched, self)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        """End one subscription; the thread goes with the last."""
        with self._lock:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscription)
            stopped = None
            if not self._subscribers:
                stopped, self._listener = self._listener, None
        if stopped is not None:
            stopped.stop()

    def is_listening(self, subscription: Subscription) -> bool:
        """Whether this subscription is served."""
        listener = self._listener
        return listener is not None and subscription in self._subscribers and listener.is_alive()

    def tell(self, queues: Collection[str], stops: bool) -> None:
        """After a commit: wake the subscribers of these queues; all of them if a held job is asked to stop."""
        if self._subscribers:
            self.wake(None if stops else queues)
        names = b"\n".join(name.encode("utf-8", "surrogatepass") for name in queues)
        listener = self._listener
        own = None if listener is None else listener.mailbox.path
        self._sender.send(_ALL if stops or len(names) > _LONGEST_NAMES else _QUEUES + names, own)

    def wake(self, queues: Iterable[str] | None) -> None:
        """Wake the subscribers of these queues in this process; all of them for None."""
        for each in self._subscribers:
            if queues is None or not each.queues.isdisjoint(queues):
                try:
                    each.wake()
                except Exception:  # noqa: BLE001 - a subscriber's callback must not cost the writer its commit
                    _log.exception("A wake-up callback failed")

    def wanted(self) -> list[str]:
        """All queues that have a subscriber here."""
        return sorted({queue for each in self._subscribers for queue in each.queues})

    def pause(self, seconds: float) -> threading.Lock | None:
        """Wait until the listener does not look at the file, and keep it so until the lock is released, for a fork."""
        listener = self._listener
        return listener.looking if listener is not None and listener.looking.acquire(timeout=seconds) else None

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child: the thread did not come along, and the sockets are the parent's."""
        listener, self._listener = self._listener, None
        self._lock = threading.Lock()
        self._subscribers = ()
        self._sender = Sender(self._watched.path)
        return [] if listener is None else listener.abandon()

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            self._subscribers = ()
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop()
        self._sender.close()


class _Listener:
    """The thread: waits for datagrams, and looks at the file in between."""

    def __init__(self, watched: WatchedFile, hub: Hub) -> None:
        self.mailbox = Mailbox(watched.path)
        self.looking = threading.Lock()
        """Held while the connection is in use."""
        self._watched = watched
        self._hub = hub
        self._stop_in, self._stop_out = socket.socketpair()
        self._is_stopping = False
        self._looked_at = time.monotonic()
        """When it looked at the file last."""
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._version: int | None = None
        self._thread = threading.Thread(target=self._run, name="tenure-sqlite-wake", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether it has looked lately."""
        return self._thread.is_alive() and time.monotonic() - self._looked_at < DEAF_SECONDS

    def stop(self) -> None:
        """End the thread."""
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._stop_in.send(b"s")
        if self._thread is not threading.current_thread():
            self._thread.join()

    def abandon(self) -> list[sqlite3.Connection]:
        """In a forked child."""
        self.mailbox.forget()
        self._stop_in.close()
        self._stop_out.close()
        return [] if self._connection is None else [self._connection]

    def _run(self) -> None:
        # No `select.select`: it takes no descriptor above 1,023, and a server may have thousands of them open.
        selector = selectors.DefaultSelector()
        try:
            selector.register(self._stop_out, selectors.EVENT_READ)
            if self.mailbox.socket is not None:
                selector.register(self.mailbox.socket, selectors.EVENT_READ)
            while not self._is_stopping:
                try:
                    self._listen(selector)
                except Exception:  # noqa: BLE001 - whatever came in, the next wake-up must still be heard
                    _log.exception("A wake-up could not be read")
                    time.sleep(POLL_SECONDS)
        finally:
            selector.close()
            self.mailbox.close()
            with self.looking:
                self._close_connection()
            self._stop_in.close()
            self._stop_out.close()

    def _listen(self, selector: selectors.BaseSelector) -> None:
        selector.select(max(0.0, self._looked_at + POLL_SECONDS - time.monotonic()))
        queues = self.mailbox.receive()
        if queues is None or queues:
            self._hub.wake(queues)
        if time.monotonic() >= self._looked_at + POLL_SECONDS:  # also where one datagram follows the other
            with self.looking:
                self._look()
            self._looked_at = time.monotonic()

    def _look(self) -> None:
        """Has another connection committed, and is there something to claim?"""
        try:
            connection = self._ready()
            version = connection.execute(_SQL["data_version"]).fetchone()[0]
            if version == self._version:
                return
            self._version = version
            values = {"queues": dump(self._hub.wanted())}
            found = [row[0] for row in connection.execute(_SQL["claimable"], values).fetchall()]
        except (sqlite3.Error, OSError, StoreUnavailable):  # not migrated yet, or gone: the next look tries again
            self._close_connection()
            return
        if found:
            self._hub.wake(found)

    def _ready(self) -> sqlite3.Connection:
        seen = self._watched.now()
        if self._connection is not None and seen != self._identity:
            self._close_connection()
        if self._connection is None:
            self._identity = self._watched.admit()
            self._connection = open_reader(self._watched.path)
            self._version = None
        return self._connection

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# --- sockets ----------------------------------------------------------------------------------------------------------


class Mailbox:
    """This process's own socket. `path` is None if there is none: then only the poll wakes."""

    def __init__(self, database: Path) -> None:
        self.socket: socket.socket | None = None
        self.path: Path | None = None
        folder = files.side_folder(database)
        if folder is None or not hasattr(socket, "AF_UNIX"):
            return
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            address, opened = _address(folder)
            try:
                made.bind(f"{address}/{path.name}")
            finally:
                _close(opened)
            made.setblocking(False)
        except OSError:
            made.close()
            return
        self.socket, self.path = made, path

    def receive(self) -> set[str] | None:
        """The queues that the datagrams name which have arrived; None for all queues, also where one cannot be read."""
        names: set[str] = set()
        is_for_all = False
        if self.socket is not None:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                for _ in range(_MAX_MESSAGES):
                    message = self.socket.recv(_LONGEST_MESSAGE)
                    try:
                        names.update(message.removeprefix(_QUEUES).decode("utf-8", "surrogatepass").split("\n"))
                    except UnicodeDecodeError:
                        is_for_all = True
                    is_for_all = is_for_all or not message.startswith(_QUEUES)
        return None if is_for_all else names

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


class Sender:
    """Sends to all mailboxes beside one file. Used by the writer thread only."""

    def __init__(self, database: Path) -> None:
        self._folder = files.side_folder_path(database)
        self._folder_name = str(self._folder)
        self._socket: socket.socket | None = None
        self._address = ""
        self._opened: int | None = None
        self._seen = 0
        self._is_settled = False
        self._names: list[str] = []

    def send(self, message: bytes, own: Path | None) -> None:
        """Send to all but ourselves."""
        names = [name for name in self._mailboxes() if own is None or name != own.name]
        if not names:
            return
        with contextlib.suppress(OSError):
            if self._socket is None:
                self._open()
            assert self._socket is not None
            for name in names:
                try:
                    self._socket.sendto(message, f"{self._address}/{name}")
                except OSError as exc:
                    if exc.errno == errno.ECONNREFUSED:  # its process died
                        with contextlib.suppress(OSError):
                            (self._folder / name).unlink()

    def _open(self) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        made.setblocking(False)
        try:
            self._address, self._opened = _address(self._folder)
        except OSError:
            made.close()
            raise
        self._socket = made

    def close(self) -> None:
        """Let go of the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        opened, self._opened = self._opened, None
        _close(opened)

    def _mailboxes(self) -> list[str]:
        """Who listens, read from the folder, and read again only when that has changed. A folder that another user
        could have filled is passed over."""
        try:
            found = os.lstat(self._folder_name)  # on the path of every enqueue, so no Path
        except OSError:
            return []
        if found.st_mtime_ns != self._seen or not self._is_settled:
            self._is_settled = time.time_ns() - found.st_mtime_ns > _FRESH_NS
            self._seen = found.st_mtime_ns
            self._names = []
            self.close()  # the open folder may be another than the one that is there now
            if files.is_private(found):
                with contextlib.suppress(OSError):
                    self._names = [each.name for each in self._folder.iterdir() if each.name.endswith(_SUFFIX)]
        return self._names


def _address(folder: Path) -> tuple[str, int | None]:
    """The folder as the beginning of a socket's address. Where its path is too long for one, it goes by way of the open
    folder, whose descriptor the caller closes after use."""
    if len(os.fsencode(folder)) <= _LONGEST_FOLDER:
        return str(folder), None
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{opened}", opened


def _close(opened: int | None) -> None:
    if opened is not None:
        os.close(opened)
