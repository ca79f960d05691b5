"""Limiters from outside: `app.limits`."""

from __future__ import annotations

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import InvalidArgument
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.limiter import Limiter
from tenure.store.limits import (
    BlockLimiter,
    ClearLimiter,
    LimitedJobs,
    ListLimited,
    ListLimiters,
    RemoveLimiter,
    SetLimiter,
    UseTokens,
)


class Limits(Client):
    """Keys of services outside that jobs share, and how many of these jobs may start."""

    @operation
    def all(self, keys: Names | None = None) -> Steps[list[Limiter]]:
        """Limiters that have rates or were blocked, by key. A key without either holds nothing back."""
        chosen = None if keys is None else tuple(arguments.names("keys", keys))
        return (yield from ask(ListLimiters(chosen)))

    @operation
    def waiting(self, *, limit: int = 50) -> Steps[list[LimitedJobs]]:
        """Due jobs that carry limiters, by queue and limiters: how many, up to 1,000, since when, and which are next.

        A job starts when all of its keys let it; see `opens_at` of each in `all`.
        """
        return (yield from ask(ListLimited(arguments.whole("limit", limit, 1, 1_000))))

    @operation
    def set(
        self,
        key: str,
        *,
        per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        tokens_per_job: float | None = None,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Steps[Limiter]:
        """Set the rates of a key; one that is left out is not limited. A block goes on as it was.

        Args:
            per_minute: Never more jobs than this start in any 60 seconds.
            tokens_per_minute: As many tokens on average; handlers report what they used with `used`.
            tokens_per_job: What a start reserves until jobs have reported; by default the tokens of one second.

        Raises: InvalidArgument (a rate that would never let a job through).
        """
        request = SetLimiter(
            arguments.text("key", key),
            self._by(actor),
            _rate("per_minute", per_minute),
            _rate("tokens_per_minute", tokens_per_minute),
            _rate("tokens_per_job", tokens_per_job),
            reason,
        )
        return (yield from ask(request))

    @operation
    def block(
        self, key: str, seconds: Duration, *, actor: str | None = None, reason: str | None = None
    ) -> Steps[Limiter]:
        """Close a key for a while, up to a day, as a refusal by the service does: no job that carries it starts."""
        duration = arguments.seconds("seconds", seconds)
        return (yield from ask(BlockLimiter(arguments.text("key", key), duration, self._by(actor), reason)))

    @operation
    def clear(self, key: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Limiter]:
        """End a block and the slow reopening behind it; rates stay. Raises: NotFound."""
        return (yield from ask(ClearLimiter(arguments.text("key", key), self._by(actor), reason)))

    @operation
    def remove(self, key: str, *, actor: str | None = None, reason: str | None = None) -> Steps[bool]:
        """Forget a key with its rates and its block; jobs that carry it are not held back. False: there was none."""
        return (yield from ask(RemoveLimiter(arguments.text("key", key), self._by(actor), reason)))

    @operation
    def used(self, key: str, tokens: float) -> Steps[bool]:
        """Report the tokens that one job used. False: the key has no limit of tokens, and nothing is counted."""
        return (yield from ask(UseTokens(arguments.text("key", key), _number("tokens", tokens))))


class SyncLimits(Limits, SyncClient):
    """`app.limits`."""


class AsyncLimits(Limits, AsyncClient):
    """`app.aio.limits`."""


def _rate(argument: str, value: float | None) -> float | None:
    return None if value is None else _number(argument, value)


def _number(argument: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"`{argument}` must be a number, got {type(value).__name__}.")
    return float(value)
