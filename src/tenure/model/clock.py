"""Time as a value that is handed in. The store's clock judges leases; tests set it by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = -62_135_596_800_000_000
_LAST_US = 253_402_300_799_999_999


class Clock(Protocol):
    """Where a store that has no clock of its own (SQLite) takes the time from."""

    def now_us(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1000


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, at: datetime | None = None) -> None:
        self._us = to_us(at or datetime(2026, 1, 1, tzinfo=UTC))
        self._lock = threading.Lock()

    def now_us(self) -> int:
        return self._us

    def now(self) -> datetime:
        return from_us(self._us)

    def advance(self, seconds: float) -> None:
        """Move by `seconds`, which may be negative: clocks do jump back."""
        with self._lock:
            self._us += round(seconds * 1_000_000)


def to_us(at: datetime) -> int:
    """Microseconds since 1970 of an aware moment, exact."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_us(us: int) -> datetime:
    """The aware UTC moment, exact. Stores hold moments that no datetime can: those are shown as the last or first one,
    so that one row never hides the others."""
    return _EPOCH + timedelta(microseconds=min(max(us, _FIRST_US), _LAST_US))


def _steady_clock() -> Callable[[], float]:
    """A clock that never jumps and also counts the time a machine is suspended, where there is one. All processes of a
    machine read the same."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return time.monotonic
    return lambda: time.clock_gettime(clock)


steady_now = _steady_clock()
