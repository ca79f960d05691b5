"""How many jobs are fetched ahead of the runners: what is sure to start soon.

That follows the rate at which jobs end while there are any: what ends in three round trips, one batch that is run, one
that is settled while the next is claimed, and room to grow. Enough that no runner waits, and little enough to start at
once. A worker of four-hour jobs fetches none ahead; one of tiny jobs hundreds, after three exchanges.
"""

from __future__ import annotations

SURE_SECONDS = 0.1
"""A rate measured for this long is believed at once when it falls; a shorter one may be a hiccup."""
GROWTH = 16
"""So many times what has ended since the last look is fetched ahead at most: a few quick jobs prove little."""


class Ahead:
    """`jobs` is the number."""

    def __init__(self, most: int, now: float) -> None:
        self.jobs = 0
        self.ended = 0
        """Since the last look."""
        self.round_trip = 0.005
        """Seconds, smoothed."""
        self._most = most
        self._measured_at = now
        self._idle_since: float | None = now
        self._idle_seconds = 0.0
        """Of the time since the last look, those without a job, before `_idle_since`."""

    def run_dry(self, now: float) -> None:
        """There is no job left to run."""
        self._idle_since = now

    def go_on(self, now: float) -> None:
        """There are jobs to run."""
        if self._idle_since is not None:
            self._idle_seconds += now - max(self._idle_since, self._measured_at)
            self._idle_since = None

    def took(self, seconds: float) -> None:
        """A round trip was over."""
        self.round_trip += 0.2 * (seconds - self.round_trip)

    def adapt(self, now: float) -> None:
        """Look at the rate, once a round trip, or at once where jobs have ended and none are left. A short dip is not
        followed far: an exchange that finds no room to claim would be a commit for nothing."""
        passed = now - self._measured_at
        if passed < self.round_trip and (self._idle_since is None or not self.ended):
            return
        busy = passed - self._idle_seconds
        if self._idle_since is not None:
            busy -= now - max(self._idle_since, self._measured_at)
        fits = 3 * self.ended / max(busy, 1e-6) * self.round_trip
        target = int(min(fits, GROWTH * self.ended, self._most))
        self.jobs = target if passed > SURE_SECONDS else max(target, self.jobs * 7 // 8)
        self._measure_anew(now)

    def stop(self, now: float) -> None:
        """Fetch none ahead until the rate asks for it again."""
        self.jobs = 0
        self._measure_anew(now)

    def _measure_anew(self, now: float) -> None:
        self.ended, self._measured_at, self._idle_seconds = 0, now, 0.0
