"""How a handler may end apart from returning: exceptions that say what should become of the job.

    raise tenure.Permanent("the account is closed")   # never again: failed at once, with a dead letter
    raise tenure.RetryAfter(30, "429 from the API")   # an attempt is spent; the next one in 30 s, whatever the backoff
    raise tenure.Snooze(600, "not ready yet")         # no attempt is spent; again in ten minutes
    raise tenure.RateLimited(30, "429 from the API")  # the same, counted as a refusal by a busy service
    raise tenure.RateLimited(30, key="anthropic")     # and no job with that limiter starts for 30 s

Any other exception is a failed attempt, retried by the queue's backoff.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from tenure.model.frozen import frozen
from tenure.model.limiter import check_block
from tenure.model.step import NewGroup, NewStep


class HandlerEnd(Exception):
    """The root of the exceptions by which a handler chooses its end."""


class Permanent(HandlerEnd):
    """The job can never succeed. It ends as `failed` at once, whatever attempts are left."""


class NotApproved(Permanent):
    """An effect was given a decision that does not allow it, or the arguments that people were asked about changed
    again and again. Nothing was done; uncaught it ends the job as `failed`."""


class RetryAfter(HandlerEnd):
    """The attempt failed and the next one is due in `delay`, instead of when the backoff would have it."""

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        super().__init__(reason or f"asked to try again in {_seconds(delay):g} s")
        self.delay_seconds: float = _seconds(delay)


class Snooze(HandlerEnd):
    """Give the job back unspent; it is due again in `delay`."""

    def __init__(self, delay: float | timedelta = 0.0, reason: str = "") -> None:
        super().__init__(reason or f"asked to be run again in {_seconds(delay):g} s")
        self.delay_seconds: float = _seconds(delay)


class RateLimited(Snooze):
    """A service outside is too busy. No attempt is spent; the job is due again in `delay`, or when it said.

    `key` names a limiter: no job that carries it starts before `delay` is over, and then it reopens slowly. Without
    `key` that of the job counts, if it has exactly one. Raises: InvalidArgument (a key and more than a day).
    """

    def __init__(self, delay: float | timedelta = 0.0, reason: str = "", *, key: str | None = None) -> None:
        super().__init__(delay, reason)
        if key is not None:
            check_block(key, self.delay_seconds)
        self.key = key


@frozen
class Parking:
    """What a job waits for, and what is written together with its suspend."""

    waiting_for: str
    """For people: the first of the conditions, or the name of a sleep."""
    steps: tuple[NewStep, ...] = ()
    groups: tuple[NewGroup, ...] = ()


class Parked(BaseException):
    """Raised by a wait in a durable handler: the job gives its slot back until the wait is over. No attempt is spent.

    No Exception, so that `except Exception` lets it pass. Code that catches BaseException cannot stop it either: the
    worker suspends the job all the same.
    """

    def __init__(self, parking: Parking) -> None:
        super().__init__(f"waits for {parking.waiting_for}")
        self.parking = parking


class DeadlinePassed(Permanent):
    """A durable job was not done within the `deadline` of its handler."""


class ReplayEnded(BaseException):
    """While a job is undone: its handler has come to where the record ends. What it armed up to here is known."""


class Interrupt(StrEnum):
    """Why a worker asks a running handler to stop."""

    SHUTDOWN = "shutdown"
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    """A durable job was not done within the deadline of its handler."""
    LOST = "lost"
    """The store says that the lease has passed on."""
    FENCED = "fenced"
    """The worker could not extend the lease in time and stops before another worker may begin."""


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


# Tracebacks and stored errors name these as users import them.
for _signal in (Permanent, NotApproved, RetryAfter, Snooze, RateLimited):
    _signal.__module__ = "tenure"
