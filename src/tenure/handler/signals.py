"""How a handler may end apart from returning: exceptions that say what should become of the job.

    raise tenure.Permanent("the account is closed")   # never again: failed at once, with a dead letter
    raise tenure.RetryAfter(30, "429 from the API")   # an attempt is spent; the next one in 30 s, whatever the backoff
    raise tenure.Snooze(600, "not ready yet")         # no attempt is spent; again in ten minutes
    raise tenure.RateLimited(30, "429 from the API")  # the same, counted as a refusal by somebody who is busy

Any other exception is a failed attempt, retried by the queue's backoff.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum


class HandlerEnd(Exception):
    """The root of the exceptions by which a handler chooses its end."""


class Permanent(HandlerEnd):
    """The job can never succeed. It ends as `failed` at once, whatever attempts are left."""


class RetryAfter(HandlerEnd):
    """The attempt failed and the next one is due in `delay`, instead of when the backoff would have it."""

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        super().__init__(reason or f"asked to try again in {_seconds(delay):g} s")
        self.delay_seconds = _seconds(delay)


class Snooze(HandlerEnd):
    """Give the job back unspent; it is due again in `delay`."""

    def __init__(self, delay: float | timedelta = 0.0, reason: str = "") -> None:
        super().__init__(reason or f"asked to be run again in {_seconds(delay):g} s")
        self.delay_seconds = _seconds(delay)


class RateLimited(Snooze):
    """Somebody outside is too busy. No attempt is spent; the job is due again in `delay`, or when they said."""


class Suspend(HandlerEnd):
    """Wait without holding a slot until somebody wakes the job, or `delay` passes. No attempt is spent."""

    def __init__(self, waiting_for: str, delay: float | timedelta | None = None) -> None:
        super().__init__(f"waits for {waiting_for}")
        self.waiting_for = waiting_for
        self.delay_seconds = None if delay is None else _seconds(delay)


class Interrupt(StrEnum):
    """Why a worker asks a running handler to stop."""

    SHUTDOWN = "shutdown"
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    LOST = "lost"
    """The store says that the lease has passed on."""
    FENCED = "fenced"
    """The worker could not extend the lease in time and stops before somebody else may begin."""


class Interrupted(BaseException):
    """Raised by `ctx.check()` in a handler that is to stop. No Exception, so that `except Exception` lets it pass."""

    def __init__(self, why: Interrupt) -> None:
        super().__init__(f"the handler was asked to stop: {why}")
        self.why = why


def _seconds(delay: float | timedelta) -> float:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0.0 <= seconds < float("inf"):
        raise ValueError(f"a delay must be a finite number of seconds and not negative, got {delay!r}")
    return seconds
