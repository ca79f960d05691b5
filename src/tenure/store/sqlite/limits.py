"""Limiters. See store.limits; what the numbers mean stands in model.limiter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from tenure.errors import NotFound, nearest
from tenure.model.clock import from_us
from tenure.model.ids import JobId
from tenure.model.limiter import Levels, Limiter, burst, check_block, check_key, keys_of, token_burst
from tenure.store.limits import (
    REASON_CHARS,
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
from tenure.store.sqlite.admin import audit
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, dump

PRUNE_US: Final = 86_400_000_000

_SQL: Final = load("limits")


class ClaimLimiters:
    """The limiters as one claim sees them: read when the first job with a limiter is met, written at its end."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._levels: dict[str, Levels] | None = None
        self._changed: set[str] = set()
        self.opens_at: int | None = None
        """When the next job of those that were held back may start, if any was."""

    def has_room(self, limiter: str | None) -> bool:
        """Whether one more job with these keys may start; if not, `opens_at` takes it in."""
        if limiter is None:
            return True
        found = [levels.room(self._transaction.now) for levels in self._of(limiter)]
        closed = [opens or self._transaction.now for room, opens in found if room is not None and room <= 0]
        if closed:
            opens = max(closed)
            self.opens_at = opens if self.opens_at is None else min(self.opens_at, opens)
        return not closed

    def take(self, limiter: str | None) -> None:
        """A job with these keys is granted."""
        for key in keys_of(limiter):
            levels = self._read().get(key)
            if levels is not None and levels.is_limiting:
                self._read()[key] = levels.taken(1, self._transaction.now)
                self._changed.add(key)

    def write(self) -> None:
        """Keep what was taken."""
        for key in sorted(self._changed):
            _put(self._transaction, key, self._read()[key])

    def _of(self, limiter: str) -> list[Levels]:
        return [levels for key in keys_of(limiter) if (levels := self._read().get(key)) is not None]

    def _read(self) -> dict[str, Levels]:
        if self._levels is None:
            self._levels = {row[0]: _levels(row) for row in self._transaction.all(_SQL["limiters"], {"keys": None})}
        return self._levels


def block(transaction: Transaction, key: str, seconds: float, reason: str | None) -> None:
    """A service refused: the key is closed for so long at least."""
    until = transaction.now + round(seconds * 1_000_000)
    levels = _find(transaction, key) or Levels(level_at=transaction.now)
    levels = replace(
        levels,
        blocked_until=max(levels.blocked_until or 0, until),
        strikes=levels.strikes + 1,
        probes=0,
        probes_left=0,
        probe_at=None,
    )
    _put(transaction, key, levels, reason)


def relieve(transaction: Transaction, successes: Iterable[tuple[str, int]]) -> None:
    """Jobs with these limiters, granted at these moments, have succeeded."""
    newest: dict[str, int] = {}
    for limiter, granted_at in successes:
        for key in keys_of(limiter):
            newest[key] = max(granted_at, newest.get(key, granted_at))
    is_relieved = False
    for key, granted_at in newest.items():
        values = {"key": key, "granted_at": granted_at, "now": transaction.now}
        is_relieved = transaction.run(_SQL["relieve"], values).rowcount > 0 or is_relieved
    if is_relieved:
        _wake(transaction)


def give_back(transaction: Transaction, limiter: str) -> None:
    """A job that was granted did not start after all."""
    for key in keys_of(limiter):
        levels = _find(transaction, key)
        if levels is not None and levels.is_limiting:
            _put(transaction, key, levels.taken(-1, transaction.now))


def prune(transaction: Transaction) -> None:
    """Forget keys that have no rates and were not blocked for a day."""
    transaction.run(_SQL["prune"], {"before": transaction.now - PRUNE_US})


# --- requests ---------------------------------------------------------------------------------------------------------


def set_limiter(transaction: Transaction, request: SetLimiter) -> Limiter:
    """See store.limits.SetLimiter."""
    check_limiter(request)
    now = transaction.now
    before = (_find(transaction, request.key) or Levels(level_at=now)).at(now)
    requests, tokens, each = before.requests, before.tokens, request.tokens_per_job
    if request.per_minute is not None:
        most = burst(request.per_minute)
        requests = most if before.per_minute is None else min(requests, most)
    if request.tokens_per_minute is not None:
        most = token_burst(request.tokens_per_minute)
        tokens = most if before.tokens_per_minute is None else min(tokens, most)
        if each is None:
            each = before.tokens_per_job or max(1.0, request.tokens_per_minute / 60)
    levels = replace(
        before,
        per_minute=request.per_minute,
        tokens_per_minute=request.tokens_per_minute,
        tokens_per_job=each,
        requests=requests,
        tokens=tokens,
    )
    _put(transaction, request.key, levels)
    rates = {"per_minute": request.per_minute, "tokens_per_minute": request.tokens_per_minute}
    _audit(transaction, request, "set_limiter", rates)
    _wake(transaction)
    return _shown(transaction, request.key)


def block_limiter(transaction: Transaction, request: BlockLimiter) -> Limiter:
    """See store.limits.BlockLimiter."""
    check_block(request.key, request.seconds)
    block(transaction, request.key, request.seconds, request.reason)
    _audit(transaction, request, "block_limiter", {"seconds": request.seconds})
    return _shown(transaction, request.key)


def clear_limiter(transaction: Transaction, request: ClearLimiter) -> Limiter:
    """See store.limits.ClearLimiter."""
    levels = _find(transaction, check_key(request.key))
    if levels is None:
        known = [row[0] for row in transaction.all(_SQL["limiters"], {"keys": None})]
        raise NotFound(
            f"There is no limiter {request.key!r}: it has no rates and was not blocked, so it holds nothing "
            f"back.{nearest(request.key, known)} `tenure limits ls` lists them. Nothing was changed."
        )
    _put(
        transaction,
        request.key,
        replace(levels, blocked_until=None, strikes=0, probes=0, probes_left=0, probe_at=None),
    )
    _audit(transaction, request, "clear_limiter", {})
    _wake(transaction)
    return _shown(transaction, request.key)


def remove_limiter(transaction: Transaction, request: RemoveLimiter) -> bool:
    """See store.limits.RemoveLimiter."""
    if transaction.run(_SQL["remove"], (check_key(request.key),)).rowcount < 1:
        return False
    _audit(transaction, request, "remove_limiter", {})
    _wake(transaction)
    return True


def list_limiters(transaction: Transaction, request: ListLimiters) -> list[Limiter]:
    """See store.limits.ListLimiters."""
    keys = None if request.keys is None else dump(list(request.keys))
    return [_limiter(row, transaction.now) for row in transaction.all(_SQL["limiters"], {"keys": keys})]


def list_limited(transaction: Transaction, request: ListLimited) -> list[LimitedJobs]:
    """See store.limits.ListLimited."""
    found: list[LimitedJobs] = []
    for (queue,) in sorted(transaction.all(_SQL["held_back"])):
        limiter = ""
        while len(found) < request.limit:
            values = {"queue": queue, "limiter": limiter, "cap": request.cap, "sample": request.sample}
            (limiter,) = transaction.one(_SQL["next_limiter"], values) or (None,)
            if limiter is None:
                break
            values["limiter"] = limiter
            jobs, oldest_at = transaction.one(_SQL["limited"], values) or (0, 0)
            first = [JobId(row[0]) for row in transaction.all(_SQL["limited_first"], values)]
            found.append(LimitedJobs(queue, limiter, jobs, from_us(oldest_at), first))
    return found


def use_tokens(transaction: Transaction, request: UseTokens) -> bool:
    """See store.limits.UseTokens."""
    check_tokens(request)
    levels = _find(transaction, request.key)
    if levels is None or levels.tokens_per_minute is None:
        return False
    _put(transaction, request.key, levels.used(request.tokens, transaction.now))
    return True


def _audit(
    transaction: Transaction,
    request: SetLimiter | BlockLimiter | ClearLimiter | RemoveLimiter,
    act: str,
    detail: dict[str, Any],
) -> None:
    audit(transaction, request.actor, act, f"limiter:{request.key}", request.reason, detail)


def _wake(transaction: Transaction) -> None:
    """Workers of queues with jobs that a limiter may have held back look again."""
    transaction.woken.update(row[0] for row in transaction.all(_SQL["held_back"]))


def _shown(transaction: Transaction, key: str) -> Limiter:
    (found,) = list_limiters(transaction, ListLimiters((key,)))
    return found


def _find(transaction: Transaction, key: str) -> Levels | None:
    row = transaction.one(_SQL["limiters"], {"keys": dump([key])})
    return None if row is None else _levels(row)


def _put(transaction: Transaction, key: str, levels: Levels, reason: str | None = None) -> None:
    values = {"key": key, **asdict(levels), "now": transaction.now}
    values["reason"] = None if reason is None else reason[:REASON_CHARS]
    transaction.run(_SQL["put"], values)


def _levels(row: Row) -> Levels:
    return Levels(*row[1:12])


def _limiter(row: Row, now: int) -> Limiter:
    levels = _levels(row)
    room, opens_at = levels.room(now)
    return Limiter(
        key=row[0],
        per_minute=levels.per_minute,
        tokens_per_minute=levels.tokens_per_minute,
        tokens_per_job=levels.tokens_per_job,
        blocked_until=None if levels.blocked_until is None else from_us(levels.blocked_until),
        strikes=levels.strikes,
        reason=row[12],
        room=room,
        opens_at=None if opens_at is None else from_us(opens_at),
        updated_at=from_us(row[13]),
    )


WRITES: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {
    SetLimiter: set_limiter,
    BlockLimiter: block_limiter,
    ClearLimiter: clear_limiter,
    RemoveLimiter: remove_limiter,
    UseTokens: use_tokens,
}
READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {
    ListLimiters: list_limiters,
    ListLimited: list_limited,
}
