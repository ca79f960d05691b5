"""Waiting awake for an answer that is due any moment.

A thread that sleeps until its answer comes leaves its processor to the next one, or to nobody: then the processor goes
to sleep as well. To wake it up, and to get the caller's code and data back into its caches, takes 60 to 80 µs on a
virtual machine, a sixth of what a single enqueue takes in all. So a thread that gets one answer after the other, each
within a millisecond, looks for the next one again and again instead, for a millisecond at most, and then sleeps.

What it takes meanwhile nobody else may miss, and it must pay:

- After each look it offers the processor to whoever waits for it, and Python's lock is free during the look.
- If it was away for long between two looks, somebody else computes: on this processor, or under Python's lock. Then it
  goes to sleep at once.
- If it is longer since the last answer than it usually is asleep, that counts against staying awake, as much as a
  quicker call counts for it. On a machine with little to spare, whoever answers may have had to make room, or the
  caller has to wait for its processor later, because it has had its share. So it is the whole way from answer to
  answer that is compared, and only callers who come again within a millisecond stay awake.
- When enough of this has come together, the next 32 calls of the process sleep. If it begins again soon after, they are
  twice as many, up to 1,024.
- Without any trouble 128 calls stay awake, then four times as many, up to 4,096. Between them 32 sleep, from which it
  is known what answers take asleep. So do the first of each connection.
- One thread of a process stays awake at a time, and none where there is only one processor: whoever is to answer
  needs it.

Nothing rests on it. Whatever goes wrong here, a thread sleeps until its answer comes, as it would without it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_BOUND_SECONDS = 0.001
"""How long a call stays awake at most, and within what time the answers of its connection must follow each other."""
_AWAY_SECONDS = 0.000_5
"""Two looks that lie further apart have somebody between them who computes: a slice of the processor, or of Python's
lock, is longer than this. By itself a look takes 1 to 3 µs. What lies between is left alone: it may be the
server's session itself, which runs on this very processor until the system has moved it to another."""
_QUICK, _SLOW, _IN_VAIN, _AWAY = -1, 1, 8, 24
"""How much trouble a call that stayed awake was."""
_TOO_MUCH = 64
_SHORTEST_PAUSE, _LONGEST_PAUSE = 32, 1024
"""Calls in a row that sleep."""
_SHORTEST_STAY, _LONGEST_STAY, _GROWTH = 128, 4096, 4
"""Calls in a row that stay awake, and how many times more of them each time."""
_SETTLING = 48
"""So many calls at the beginning of a stay are not held against it: some 40 are slow. The server's session shares the
processor of a caller who sleeps, and it seems to take that long until the system has put it onto another."""
_CALM_STAY = 512
"""Whoever stayed awake for so many calls without trouble has no more to do with what was before."""
_STEP = 1 / 16
"""How far an answer moves the estimate of what is usual: up if it took longer, down if not. So it comes to lie where
half of them take longer, whatever a few of them take."""

Ready = list[tuple[int, int]]
"""What poll(2) answers: descriptors and their events."""

_yield: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Permit:
    """Leave to stay awake, which one thread of a process has at a time. Thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew. After a fork: whoever held it is in the other process."""
        self._lock = threading.Lock()
        self._asleep = 0
        """How many calls are still to sleep."""
        self._awake = 0
        """How many calls stayed awake since the last pause."""
        self._trouble = 0
        self._pause, self._stay = _SHORTEST_PAUSE, _SHORTEST_STAY
        """How many calls sleep when it was too much trouble, and how many stay awake when it was not."""

    def take(self) -> bool:
        """Whether the caller may stay awake. If so, it must give the permit back."""
        if not self._lock.acquire(blocking=False):
            return False
        if not self._asleep:
            return True
        self._asleep -= 1
        self._lock.release()
        return False

    def give(self, trouble: int) -> None:
        """Hand it back, and say how much trouble it was."""
        self._awake += 1
        if trouble > _SLOW or self._awake > _SETTLING:
            self._trouble = max(0, self._trouble + trouble)
        if self._trouble >= _TOO_MUCH:
            self._asleep, self._awake, self._trouble = self._pause, 0, 0
            self._pause, self._stay = min(2 * self._pause, _LONGEST_PAUSE), _SHORTEST_STAY
        elif self._awake == self._stay:
            self._asleep, self._awake = _SHORTEST_PAUSE, 0
            self._pause = _SHORTEST_PAUSE if self._stay >= _CALM_STAY else self._pause
            self._stay = min(_GROWTH * self._stay, _LONGEST_STAY)
        self._lock.release()


class Awake:
    """The wait for the answers of one connection. Not thread-safe, as the connection is not.

    Args:
        poll: Waits for the connection's socket as `select.poll.poll` does, for so many milliseconds.
        permit: The process's.
    """

    def __init__(
        self,
        poll: Callable[[float], Ready],
        permit: Permit,
        *,
        clock: Callable[[], float] = time.monotonic,
        give_way: Callable[[], object] = _yield,
    ) -> None:
        self._poll = poll
        self._permit = permit
        self._clock = clock
        self._give_way = give_way
        self._usual = _BOUND_SECONDS
        """Seconds from answer to answer for one who sleeps: as many take longer as do not."""
        self._slept = 0
        """Calls that slept while that was within the bound."""
        self._answered_at = clock()

    def poll(self, milliseconds: float) -> Ready:
        """Wait for the first bytes of an answer as `poll` does: awake if that is promising, and then asleep."""
        if self._slept >= _SHORTEST_PAUSE and self._permit.take():
            begun = self._clock()
            ready = self._look(begun, begun + min(_BOUND_SECONDS, milliseconds / 1000))
            if not ready:
                ready = self._poll(max(0.0, milliseconds - 1000 * (self._clock() - begun)))
                self._answered_at = self._clock()
            return ready
        ready = self._poll(milliseconds)
        before, self._answered_at = self._answered_at, self._clock()
        self._usual *= 1 + _STEP if self._answered_at - before > self._usual else 1 - _STEP
        self._slept = self._slept + 1 if self._usual <= _BOUND_SECONDS else 0
        return ready

    def _look(self, seen: float, until: float) -> Ready:
        """Look until something is there, the time is over or somebody computes. Gives the permit back."""
        poll, clock, give_way = self._poll, self._clock, self._give_way
        trouble = _AWAY
        try:
            while True:
                ready = poll(0)
                now = clock()
                if now - seen > _AWAY_SECONDS:
                    self._answered_at = now
                    return ready
                if ready:
                    trouble = _SLOW if now - self._answered_at > self._usual else _QUICK
                    self._answered_at = now
                    return ready
                if now > until:
                    trouble = _IN_VAIN
                    return ready
                seen = now
                give_way()
        finally:
            self._permit.give(trouble)


PERMIT = Permit()
"""This process's."""

os.register_at_fork(after_in_child=PERMIT.reset)
