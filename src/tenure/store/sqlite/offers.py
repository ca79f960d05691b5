"""Offers: what a sleeping worker would ask for, put where whoever enqueues can take it.

**Model.** A worker has a pipe with a name beside the file. Before it sleeps it writes an offer into the pipe: who it
is, and what it would claim. To take an offer is to read it. The kernel lets exactly one reader have it: one that
enqueues, which then grants a job to the worker (see `handover`), or the worker itself, which so withdraws it. Nothing
else has to be agreed upon, an offer costs no write to a disk and nobody is woken by it.

**An offer is taken under the file's write lock only.** So a worker that finds its offer gone asks the store, and
whatever was granted for it is committed by then, or never will be.

**Never to one who is not there:**

- *Dead.* Only its worker has the pipe open for writing. Once that process is gone a read finds the end of the pipe, and
  the pipe is removed.
- *Paused, or hung.* An offer says when it was made, by a clock that never jumps and counts sleep. It is good for
  `FRESH_SECONDS`. The worker makes it anew before that, on the event loop that would start the handler. So one that was
  stopped is given one job at most, and that within two seconds.
- *A short lease.* The worker reckons the lease from when it lay down to sleep. So it offers itself only while that
  leaves most of the lease.

An offer that was taken in vain (too old, or there was nothing to grant) is gone all the same. The worker is told so,
and claims as after any other wake-up.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import secrets
import stat
import termios
import threading
from functools import lru_cache
from pathlib import Path
from typing import Final

from tenure.model.clock import steady_now
from tenure.model.frozen import frozen
from tenure.model.ids import WorkerId
from tenure.store.contract import Claim
from tenure.store.sqlite.sockets import OFFER_SUFFIX, SUFFIX, Postman

FRESH_SECONDS: Final = 2.0
"""An offer older than this is not good any more."""
RENEW_SECONDS: Final = 1.0
"""After so long a worker makes its offer anew."""
LEASE_SHARE: Final = 4
"""A worker offers itself while it would know of the job before this part of the lease has passed."""
MOST_PIPES: Final = 8
"""In so many pipes an enqueue looks for an offer."""
NOTHING: Final = ""
"""The word of one who took an offer and has granted nothing."""
UNKNOWN: Final = "?"
"""The word of one who cannot say what was granted: the worker must ask."""

_LONGEST: Final = 4096
"""What is written to a pipe in one piece, and so read in one."""
_NO_BYTES: Final = bytes(4)
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_NOATIME", 0)
_WRITE: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_NOATIME", 0)


@frozen
class Taken:
    """An offer that was taken. `is_good`: its worker was there a moment ago."""

    nonce: int
    claim: Claim
    mailbox: str
    is_good: bool


class Offering:
    """A worker's side: its pipe, in which one offer stands or none. Thread-safe."""

    def __init__(self, mailbox: Path, queue: str) -> None:
        """Raises OSError where there can be no such pipe."""
        self.queue = queue
        self._lock = threading.Lock()
        stem = mailbox.name.removesuffix(SUFFIX)
        self._path = mailbox.with_name(f"{stem}.{_mark(queue)}.{next(_numbers)}{OFFER_SUFFIX}")
        new = mailbox.with_name(f"{self._path.name}-new")
        os.mkfifo(new, 0o600)
        try:
            self._pipe = os.open(new, _WRITE)
            new.rename(self._path)  # nobody sees it before it has a writer
        except OSError:
            new.unlink()
            raise

    def make(self, claim: Claim) -> int | None:
        """Let an offer stand; its nonce. None if that was not possible. The one before must be gone."""
        nonce = next(_nonces)
        terms = json.dumps((claim.worker, self.queue, claim.lease_seconds))
        text = f"{nonce} {steady_now()!r} {terms}".encode()
        if len(text) >= _LONGEST:
            return None
        with self._lock, contextlib.suppress(OSError):
            if self._pipe >= 0:
                os.write(self._pipe, text)
                return nonce
        return None

    def withdraw(self) -> bool:
        """Take the offer back. False if somebody else has taken it."""
        with self._lock, contextlib.suppress(BlockingIOError):
            return self._pipe < 0 or bool(os.read(self._pipe, _LONGEST))
        return False

    def close(self) -> None:
        """No more offers. Harmless when repeated."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        with self._lock:
            self.forget()

    def forget(self) -> None:
        """Let go of the pipe without removing its name: in a forked child it is the parent's."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)


class Offers:
    """The other side: the pipes of all workers beside one file. Thread-safe."""

    def __init__(self, postman: Postman) -> None:
        self._postman = postman
        self._lock = threading.Lock()
        self._pipes: dict[str, int] = {}
        """By name, open for reading; -1 if it is no pipe of ours."""
        self._listed: dict[str, list[str]] = {}

    def standing(self, queue: str) -> str | None:
        """The name of a pipe in which an offer for this queue seems to stand."""
        listed = self._postman.offers
        if not listed and not self._pipes:
            return None
        with self._lock:
            if listed is not self._listed:
                self._let_go(listed)
            for name in listed.get(_mark(queue), ())[:MOST_PIPES]:
                pipe = self._pipes.get(name)
                if pipe is None:
                    pipe = self._pipes[name] = _open(self._postman.path(name))
                if pipe >= 0 and _holds_something(pipe):
                    return name
        return None

    def take(self, name: str, queue: str) -> Taken | None:
        """Take an offer. None if it was gone."""
        with self._lock:
            pipe = self._pipes.get(name, -1)
            text = _read(pipe)
            if not text:
                return None
            is_there = _read(pipe) is None
        if not is_there:
            self._postman.remove(name)
        try:
            nonce, made_at, terms = text.decode().split(" ", 2)
            claim, age = _claim(terms), steady_now() - float(made_at)
            is_good = is_there and 0 <= age < FRESH_SECONDS and claim.queues[0] == queue
            return Taken(int(nonce), claim, name.partition(".")[0] + SUFFIX, is_good)
        except (ValueError, TypeError):  # no offer of ours
            return None

    def forget(self) -> None:
        """In a forked child."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Let go of all pipes."""
        with self._lock:
            self._let_go({})

    def _let_go(self, listed: dict[str, list[str]]) -> None:
        """Close the pipes that are not listed any more."""
        self._listed = listed
        names = {name for each in listed.values() for name in each}
        for name in self._pipes.keys() - names:
            if (pipe := self._pipes.pop(name)) >= 0:
                os.close(pipe)


_nonces = itertools.count(secrets.randbits(60))
_numbers = itertools.count(1)


@lru_cache(1024)
def _mark(queue: str) -> str:
    """A queue's name as part of a file's name. Should two be alike, what is taken by mistake is taken in vain."""
    return hashlib.blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@lru_cache(256)
def _claim(terms: str) -> Claim:
    """The claim in an offer: for one job, whatever the worker has room for."""
    worker, queue, lease_seconds = json.loads(terms)
    return Claim(WorkerId(worker), (queue,), lease_seconds=lease_seconds)


def _open(path: Path) -> int:
    """A pipe of ours, and nothing else that somebody has put or linked there; -1 if it is none."""
    try:
        pipe = os.open(path, _READ)
    except OSError:
        return -1
    found = os.fstat(pipe)
    if stat.S_ISFIFO(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return pipe
    os.close(pipe)
    return -1


def _holds_something(pipe: int) -> bool:
    return fcntl.ioctl(pipe, termios.FIONREAD, _NO_BYTES) != _NO_BYTES


def _read(pipe: int) -> bytes | None:
    """What stands in a pipe; empty if nobody can write to it any more, None if somebody can and has not."""
    try:
        return os.read(pipe, _LONGEST) if pipe >= 0 else b""
    except BlockingIOError:
        return None
