"""How many jobs a worker fetches beside those that it runs.

`auto` is what the worker ran in 100 ms at its last measured rate, at most 200: enough that no runner waits for a round
trip, few enough that each starts at once. A worker of four-hour jobs fetches none ahead.
"""

from __future__ import annotations

from typing import Literal

AUTO_SECONDS = 0.1
AUTO_LIMIT = 200
WINDOW_SECONDS = 0.1
"""The rate is measured over at least this much time in which there were jobs to run."""


class Prefetch:
    """`jobs` is the number. Lives on the event loop's thread."""

    def __init__(self, setting: int | Literal["auto"]) -> None:
        self._is_auto = setting == "auto"
        self.jobs = 0 if setting == "auto" else setting
        self._ended = 0
        self._busy_seconds = 0.0
        self._busy_since: float | None = None

    def start(self, now: float) -> None:
        """There are jobs to run."""
        if self._busy_since is None:
            self._busy_since = now

    def end(self, now: float, *, is_idle: bool) -> None:
        """A job has ended. `is_idle`: it was the last one that the worker held."""
        self._ended += 1
        if is_idle and self._busy_since is not None:
            self._busy_seconds += now - self._busy_since
            self._busy_since = None

    def measure(self, now: float) -> None:
        """Set `jobs` by the rate since the last measurement, once the window is long enough."""
        if not self._is_auto:
            return
        busy = self._busy_seconds + (0.0 if self._busy_since is None else now - self._busy_since)
        if busy >= WINDOW_SECONDS:
            self.jobs = min(AUTO_LIMIT, int(self._ended / busy * AUTO_SECONDS))
            self._begin_window(now)

    def reset(self, now: float) -> None:
        """Fetch none ahead until the next measurement: jobs that were fetched had to wait and were given back."""
        if self._is_auto:
            self.jobs = 0
            self._begin_window(now)

    def _begin_window(self, now: float) -> None:
        self._ended, self._busy_seconds = 0, 0.0
        if self._busy_since is not None:
            self._busy_since = now
