"""What workers tell the observer, in memory that both map: who is ready, how many handlers ran, when each job started.

The observer must not disturb what it measures: asking the store «are you done?» all the time costs the store. So every
worker counts its handler starts here, at the price of a few stores to memory, and the store is asked only at the end.
All moments are CLOCK_MONOTONIC in nanoseconds, which all processes of one machine share (Node's hrtime is the same).

Words of 64 bits, little-endian: 0 is the go flag; worker `k` owns three words from 8 + 8·k (ready, first start,
count); the first start of job `i` is at 128 + i. `node/tally.mjs` writes the same layout.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path

GO = 0
FIRST_SLOT = 8
SLOT_WORDS = 8
READY, FIRST, COUNT = 0, 1, 2
MAX_WORKERS = 15
STARTS = 128


class Tally:
    """The shared words, seen by the observer (slot -1) or by one worker."""

    def __init__(self, path: Path, jobs: int, *, slot: int = -1) -> None:
        self.path = path
        self.jobs = jobs
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._own = FIRST_SLOT + SLOT_WORDS * slot

    @classmethod
    def create(cls, path: Path, jobs: int) -> Tally:
        """Make an empty tally for `jobs` jobs."""
        with path.open("wb") as file:
            file.truncate(8 * (STARTS + jobs))
        return cls(path, jobs)

    def ready_and_wait(self) -> None:
        """Say that this worker is about to claim, and wait until all others are."""
        self._words[self._own + READY] = 1
        while not self._words[GO]:
            time.sleep(0.0005)

    def started(self, i: int) -> bool:
        """Note that job `i`'s handler starts; true if it is the job's first start. Handlers share one thread.

        Counted last: a worker that is killed in between has not counted a start that is not there.
        """
        now = time.monotonic_ns()
        words, own = self._words, self._own
        if not words[own + FIRST]:
            words[own + FIRST] = now
        is_first = not words[STARTS + i]
        if is_first:
            words[STARTS + i] = now
        words[own + COUNT] += 1
        return is_first

    def let_go(self, workers: int) -> bool:
        """Let the workers go if all of them are ready."""
        if all(self._words[FIRST_SLOT + SLOT_WORDS * k + READY] for k in range(workers)):
            self._words[GO] = 1
            return True
        return False

    def count(self) -> int:
        """Give the number of handler starts so far, over all workers."""
        return sum(self._words[FIRST_SLOT + SLOT_WORDS * k + COUNT] for k in range(MAX_WORKERS))

    def first(self) -> int:
        """Give the moment of the very first handler start, 0 before it."""
        firsts = (self._words[FIRST_SLOT + SLOT_WORDS * k + FIRST] for k in range(MAX_WORKERS))
        return min((moment for moment in firsts if moment), default=0)

    def start_of(self, i: int) -> int:
        """Give the moment at which job `i` was first started, 0 before it."""
        return self._words[STARTS + i]

    def starts(self) -> Iterator[tuple[int, int]]:
        """Give (job, moment of its first start) for every job that was started."""
        return ((i, moment) for i, moment in enumerate(self._words[STARTS:]) if moment)
