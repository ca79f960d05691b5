"""Identifiers. A job's id is a UUIDv7 made by the client, so that a repeated enqueue finds its own row.

Ids made in one process rise strictly: 48 bits of milliseconds, then a 26-bit counter that starts at a random
point each millisecond, then 48 random bits. First in, first out therefore holds within a process even inside one
millisecond.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, NewType

JobId = NewType("JobId", str)
"""A UUIDv7 in its canonical text form."""

Token = NewType("Token", int)
"""The fence: rises with every grant of a job, never falls, never repeats."""

WorkerId = NewType("WorkerId", str)
"""One process start: host-pid-random."""

_lock = threading.Lock()
_last_ms = 0
_counter = 0
_prefix = ""
"""The text of the millisecond."""
_stock: list[str] = []
"""Random digits, twelve at a time, 48 bits: asking the system for them costs more than making the rest of an id."""
_STOCK = 256


def new_job_id() -> JobId:
    """One new id, above every id this process made before."""
    global _last_ms, _counter, _prefix
    with _lock:
        if len(_stock) < 2:
            digits = os.urandom(6 * _STOCK).hex()
            _stock.extend([digits[i : i + 12] for i in range(0, 12 * _STOCK, 12)])
        now = time.time_ns() // 1_000_000
        if now > _last_ms:
            _last_ms, _prefix = now, _text(now)
            _counter = int(_stock.pop()[:6], 16)  # 24 random bits of 26
        _counter += 1
        if _counter >> 26:
            _last_ms, _counter, _prefix = _last_ms + 1, 0, _text(_last_ms + 1)
        # Twelve bits of the counter, the variant, fourteen bits, behind a one for the zeros' sake: `hex` is faster than
        # two numbers formatted.
        digits = hex(1 << 28 | _counter >> 14 << 16 | 0x8000 | _counter & 0x3FFF)
        made: Any = f"{_prefix}{digits[3:6]}-{digits[6:]}-{_stock.pop()}"
    job_id: JobId = made  # to call JobId would take as long as a tenth of all this
    return job_id


def new_job_ids(count: int) -> list[JobId]:
    """`count` new ids, each above the one before."""
    return [new_job_id() for _ in range(count)]


def _text(ms: int) -> str:
    digits = f"{ms:012x}"
    return f"{digits[:8]}-{digits[8:]}-7"


def new_worker_id() -> WorkerId:
    """An identity for this process start. The random part keeps a restarted process apart from its predecessor."""
    return WorkerId(f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}")


def _after_fork() -> None:
    """A child must not go on counting where its parent stands, nor from its stock."""
    global _last_ms, _lock
    _lock = threading.Lock()
    _last_ms = 0
    _stock.clear()


os.register_at_fork(after_in_child=_after_fork)
