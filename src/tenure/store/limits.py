"""Limiters: keys of services outside that many jobs share.

**A refusal holds for all.** An outcome `Released` that names a limiter closes the key until the time that it gives, in
the transaction that gives the job back; no attempt is spent, and the job keeps its place. From then on no claim grants
a job that carries the key, before that time. Then it reopens slowly; see model.limiter. A success of a job that was
granted after the block ends the slow reopening.

**Others are not slowed.** Claimable jobs are listed by queue and limiter, so a claim finds the head of each list and
never walks the jobs of a key that is closed. Where no due job has a limiter, a claim costs what it cost without.

**Exact across claimers.** On PostgreSQL one claim at a time takes from a key that counts its starts; others pass over
its jobs meanwhile, as they do for a blocked key, and are told to come again at once. No claim waits for a key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.limiter import RATE_MAX, RATE_MIN, Limiter, check_block, check_key
from tenure.model.outcome import Outcome, Released
from tenure.store.contract import Request

REASON_CHARS = 500


@frozen
class SetLimiter(Request[Limiter]):
    """Create a limiter or replace its rates; None: that rate is not limited. A block goes on as it was. Audited.

    `tokens_per_job` is what a start reserves until jobs have reported what they use; by default the tokens of one
    second.

    Raises: InvalidArgument (a bad key; a rate below one a day, which would never let a job through).
    """

    key: str
    actor: str
    per_minute: float | None = None
    tokens_per_minute: float | None = None
    tokens_per_job: float | None = None
    reason: str | None = None


@frozen
class BlockLimiter(Request[Limiter]):
    """Close a key for `seconds`, as a refusal by the service does; a longer block stays. Audited.

    Raises: InvalidArgument (longer than BLOCK_SECONDS_MAX).
    """

    key: str
    seconds: float
    actor: str
    reason: str | None = None


@frozen
class ClearLimiter(Request[Limiter]):
    """End a block and the slow reopening behind it; workers are woken. Rates stay. Audited. Raises: NotFound."""

    key: str
    actor: str
    reason: str | None = None


@frozen
class RemoveLimiter(Request[bool]):
    """Forget a limiter, its rates and its block; jobs that carry the key are not held back. False: there was none.
    Audited."""

    key: str
    actor: str
    reason: str | None = None


@frozen
class ListLimiters(Request[list[Limiter]]):
    """The limiters that have rates or were blocked, by key. A key without either has no row and holds nothing back."""

    keys: tuple[str, ...] | None = None


@frozen
class LimitedJobs:
    """Jobs of one queue that are due and carry the same limiters: what these let start, and hold back."""

    queue: str
    limiter: str
    """The keys, sorted and joined by commas."""
    jobs: int
    """How many; at most the cap."""
    oldest_at: datetime
    """When the first of the counted ones came due."""
    first: Sequence[JobId]
    """The next ones to start, in their order."""


@frozen
class ListLimited(Request[list[LimitedJobs]]):
    """Due jobs that carry limiters, by queue and limiters; at most `limit` of these groups.

    Bounded whatever the database holds: a group is found by one look behind the one before, `cap` of its jobs are
    counted, and the first `sample` are named. Jobs that must run alone, and those that came due since a worker last
    claimed, are not among them.
    """

    limit: int = 50
    cap: int = 1_000
    sample: int = 3


@frozen
class UseTokens(Request[bool]):
    """Report the tokens that one job used of a key. False: the key has no limit of tokens, and nothing is counted.

    Raises: InvalidArgument (a negative number, or none).
    """

    key: str
    tokens: float


def check_limiter(request: SetLimiter) -> None:
    """Refuse rates that no limiter can have.

    Raises: InvalidArgument.
    """
    check_key(request.key)
    for name, lowest in (("per_minute", RATE_MIN), ("tokens_per_minute", 1.0), ("tokens_per_job", 1.0)):
        value = getattr(request, name)
        if value is not None and not lowest <= value <= RATE_MAX:
            raise InvalidArgument(
                f"Limiter {request.key!r}: {name} must be from {lowest:.6g} to {RATE_MAX:.0e}, not {value:g}; "
                "otherwise it would never let a job through. To hold all jobs of a queue back, pause the queue. "
                "Nothing was changed."
            )


def check_tokens(request: UseTokens) -> None:
    """Refuse a number of tokens that is none.

    Raises: InvalidArgument.
    """
    check_key(request.key)
    if not (math.isfinite(request.tokens) and 0 <= request.tokens <= RATE_MAX):
        raise InvalidArgument(f"Limiter {request.key!r}: {request.tokens} is no number of tokens. Nothing was counted.")


def check_outcome(outcome: Outcome) -> None:
    """Refuse an outcome that would block a key for ever.

    Raises: InvalidArgument.
    """
    if isinstance(outcome, Released) and outcome.limiter is not None:
        check_block(outcome.limiter, outcome.delay_seconds)
