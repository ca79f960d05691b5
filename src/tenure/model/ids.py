"""Identifiers. A job's id is a UUIDv7 made by the client, so that a repeated enqueue finds its own row.

Ids made in one process rise strictly: 48 bits of milliseconds, then a 26-bit counter that starts at a random
point each millisecond, then 48 random bits. First in, first out therefore holds within a process even inside one
millisecond.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Final, NewType

JobId = NewType("JobId", str)
"""A UUIDv7 in its canonical text form."""

Token = NewType("Token", int)
"""The fence: rises with every grant of a job, never falls, never repeats."""

WorkerId = NewType("WorkerId", str)
"""One process start: host-pid-random."""

WORKER_ID: Final = re.compile(r"(?=.*\S).{1,500}", re.DOTALL)
"""A worker's name. It has a bound, because PostgreSQL notifies by name that a held job is cancelled."""

WORKER_ID_RULE: Final = (
    "A worker needs a name of 1 to 500 characters that is not blank, and unique per process. Nothing was changed."
)

_PREFIX = re.compile(r"[0-9a-f]+(?:-[0-9a-f]*)*")

_lock = threading.Lock()
_last_ms = 0
_counter = 0


def new_job_id() -> JobId:
    """One new id, above every id this process made before."""
    global _last_ms, _counter
    with _lock:
        now = time.time_ns() // 1_000_000
        if now > _last_ms:
            _last_ms, _counter = now, int.from_bytes(os.urandom(3), "big")  # 24 bits of 26: leaves room to count
        else:
            _counter += 1
            if _counter >> 26:
                _last_ms, _counter = _last_ms + 1, 0
        ms, counter = _last_ms, _counter
    tail = int.from_bytes(os.urandom(6), "big")
    number = ms << 80 | 0x7 << 76 | counter >> 14 << 64 | 0b10 << 62 | (counter & 0x3FFF) << 48 | tail
    digits = f"{number:032x}"
    return JobId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


def new_job_ids(count: int) -> list[JobId]:
    """`count` new ids, each above the one before."""
    return [new_job_id() for _ in range(count)]


def id_prefix(text: str) -> tuple[str, str] | None:
    """Of the beginning of an id, as people type it or copy it with an ellipsis: its digits, and the first id beyond
    all that begin so. None, if no id begins so."""
    typed = text.strip().lower().removesuffix("…")
    digits = typed.replace("-", "")
    if not _PREFIX.fullmatch(typed) or len(digits) > 32:
        return None
    above = f"{min(int(digits.ljust(32, 'f'), 16) + 1, 2**128 - 1):032x}"
    return digits, "-".join((above[:8], above[8:12], above[12:16], above[16:20], above[20:]))


def new_worker_id() -> WorkerId:
    """An identity for this process start. The random part keeps a restarted process apart from its predecessor."""
    return WorkerId(f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}")


def _after_fork() -> None:
    """A child must not go on counting where its parent stands."""
    global _last_ms, _lock
    _lock = threading.Lock()
    _last_ms = 0


os.register_at_fork(after_in_child=_after_fork)
