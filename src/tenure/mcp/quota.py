"""How often one caller may call, and how many calls of one caller may wait at a time."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tenure.errors import TooManyCalls

CALLERS_MAX: Final = 10_000
WAITERS_MAX: Final = 16


class Quota:
    """Calls per minute of each caller. What was not used is kept, up to one minute's worth."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, caller_id: str) -> None:
        """Count one call. Raises: TooManyCalls."""
        now = time.monotonic()
        left, at = self._left.pop(caller_id, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - at) * self._per_minute / 60)
        is_over = left < 1
        self._left[caller_id] = (left if is_over else left - 1, now)
        while len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)
        if is_over:
            seconds = (1 - left) * 60 / self._per_minute
            raise TooManyCalls(
                f"This caller may make {self._per_minute} calls per minute, and they are used up. Nothing was "
                f"changed. Wait {seconds:.1f} s, and call less often."
            )


class Waiters:
    """Calls that wait for something."""

    def __init__(self, most: int = WAITERS_MAX) -> None:
        self._most = most
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def one(self, caller_id: str) -> Iterator[None]:
        """While one more call waits. Raises: TooManyCalls."""
        if self._waiting[caller_id] >= self._most:
            raise TooManyCalls(
                f"{self._most} calls of this caller wait already. Nothing was changed. Wait for one of them to end."
            )
        self._waiting[caller_id] += 1
        try:
            yield
        finally:
            self._waiting[caller_id] -= 1
            if not self._waiting[caller_id]:
                del self._waiting[caller_id]
