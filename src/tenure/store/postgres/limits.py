"""Limiters, as calls of PostgreSQL functions. See store.limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.errors import NotFound
from tenure.model.clock import from_us
from tenure.model.ids import JobId
from tenure.model.limiter import Limiter, check_block, check_key
from tenure.store.contract import Request
from tenure.store.limits import (
    BlockLimiter,
    ClearLimiter,
    LimitedJobs,
    ListLimited,
    ListLimiters,
    RemoveLimiter,
    SetLimiter,
    UseTokens,
    check_limiter,
    check_tokens,
)
from tenure.store.postgres.codec import Call, encode, maybe_moment


def _limiter(row: Sequence[Any]) -> Limiter:
    key, per_minute, tokens, each, blocked_until, strikes, reason, room, opens_at, updated_at = row
    return Limiter(
        key,
        _rate(per_minute),
        _rate(tokens),
        _rate(each),
        maybe_moment(blocked_until),
        strikes,
        reason,
        room,
        maybe_moment(opens_at),
        from_us(updated_at),
    )


def _rate(value: float | None) -> float | None:
    """JSON writes a rate without a fraction as a whole number; it is a float on both engines."""
    return None if value is None else float(value)


def _limited(row: Sequence[Any]) -> LimitedJobs:
    queue, limiter, jobs, oldest_at, first = row
    return LimitedJobs(queue, limiter, jobs, from_us(oldest_at), [JobId(one) for one in first])


def _set(request: SetLimiter) -> str:
    check_limiter(request)
    return encode(request)


def _block(request: BlockLimiter) -> str:
    check_block(request.key, request.seconds)
    return encode(request)


def _of_key(request: ClearLimiter | RemoveLimiter) -> str:
    check_key(request.key)
    return encode(request)


def _use(request: UseTokens) -> str:
    check_tokens(request)
    return encode(request)


def _cleared(answer: Any, request: ClearLimiter) -> Limiter:
    if answer is None:
        raise NotFound(
            f"There is no limiter {request.key!r}: it has no rates and was not blocked, so it holds nothing back. "
            "`tenure limits ls` lists them. Nothing was changed."
        )
    return _limiter(answer)


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    SetLimiter: Call("set_limiter", _set, lambda answer, _: _limiter(answer)),
    BlockLimiter: Call("block_limiter", _block, lambda answer, _: _limiter(answer)),
    ClearLimiter: Call("clear_limiter", _of_key, _cleared),
    RemoveLimiter: Call("remove_limiter", _of_key, lambda answer, _: bool(answer)),
    ListLimiters: Call("list_limiters", encode, lambda answer, _: [_limiter(row) for row in answer]),
    ListLimited: Call("list_limited", encode, lambda answer, _: [_limited(row) for row in answer]),
    UseTokens: Call("use_tokens", _use, lambda answer, _: bool(answer)),
}
