"""Limiters: a service outside that jobs share, and how many of them may start.

A job carries the keys of its limiters as one text, sorted and joined by commas. Three things hold a key back, and a job
starts only when all keys let it:

- **A block.** A refusal by the service (429) closes the key until the time that it named.
- **Slow reopening.** Behind a block 1 job is let through, in the next second 2, then 4 and so on, until one of them
  succeeds. A second in which no job was let through does not count.
- **Rates.** `per_minute` jobs: never more in any 60 seconds. `tokens_per_minute`: each start reserves what jobs of this
  key used on average, and what a job reports corrects it; so it holds on average, and one job may overdraw it.

The SQLite store reckons with this module; PostgreSQL's functions `limiter_room` and `limiter_taken` do the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen

BLOCK_SECONDS_MAX: Final = 86_400.0
"""The longest block: a day. A service that stays away for longer refuses again, and blocks again."""
KEY_CHARS: Final = 100
KEYS_MAX: Final = 8
"""Keys of one job."""
PROBES_MAX: Final = 1024
"""The most that is let through in one second of a slow reopening."""
PROBE_US: Final = 1_000_000
REQUEST_BURST_SECONDS: Final = 2.0
"""What `per_minute` gives within this time may be saved up while no job comes."""
TOKEN_BURST_SECONDS: Final = 10.0
TOKEN_DEBT_SECONDS: Final = 86_400.0
"""What jobs have used above the rate holds a key back for so long at most: like a block, it ends within a day."""
RATE_MIN: Final = 1 / 1440
"""One in a day: a limiter that never lets a job through is refused."""
RATE_MAX: Final = 1e9
_NEARLY: Final = 1e-6


@frozen
class Limiter:
    """A limiter as people see it."""

    key: str
    per_minute: float | None
    tokens_per_minute: float | None
    tokens_per_job: float | None
    """What a start reserves of the tokens: a running average of what jobs reported."""
    blocked_until: datetime | None
    """The end of the newest block. In the past once the key is open again."""
    strikes: int
    """Refusals since a job last succeeded."""
    reason: str | None
    """What the service said when it last refused."""
    room: int | None
    """How many jobs may start now; None: any number."""
    opens_at: datetime | None
    """When the next one may start; None: now."""
    updated_at: datetime


@frozen
class Levels:
    """The changing numbers of one limiter. Moments are microseconds."""

    per_minute: float | None = None
    tokens_per_minute: float | None = None
    tokens_per_job: float | None = None
    requests: float = 0.0
    """Starts that are saved up."""
    tokens: float = 0.0
    level_at: int = 0
    """When `requests` and `tokens` were reckoned."""
    blocked_until: int | None = None
    strikes: int = 0
    probes: int = 0
    """How many the newest second of a slow reopening lets through."""
    probes_left: int = 0
    probe_at: int | None = None
    """When that second began."""

    @property
    def is_limiting(self) -> bool:
        """Whether it may hold a job back, now or later."""
        return self.strikes > 0 or self.per_minute is not None or self.tokens_per_minute is not None

    def at(self, now: int) -> Levels:
        """The levels as they have risen until now."""
        passed = max(0, now - self.level_at) / 1_000_000
        requests, tokens = self.requests, self.tokens
        if self.per_minute is not None:
            requests = min(burst(self.per_minute), requests + passed * rate(self.per_minute))
        if self.tokens_per_minute is not None:
            tokens = min(token_burst(self.tokens_per_minute), tokens + passed * self.tokens_per_minute / 60)
        return replace(self, requests=requests, tokens=tokens, level_at=max(now, self.level_at))

    def room(self, now: int) -> tuple[int | None, int | None]:
        """How many jobs may start now, None for any number; and when the next may, None for now."""
        if self.blocked_until is not None and self.blocked_until > now:
            return 0, self.blocked_until
        if not self.is_limiting:
            return None, None
        rooms: list[int] = []
        opens: list[int] = []
        if self.strikes > 0:
            is_over = self.probe_at is None or now >= self.probe_at + PROBE_US
            rooms.append(next_probes(self.probes) if is_over else self.probes_left)
            if self.probe_at is not None:
                opens.append(self.probe_at + PROBE_US)
        risen = self.at(now)
        if self.per_minute is not None:
            rooms.append(max(0, math.floor(risen.requests + _NEARLY)))
            opens.append(now + math.ceil(1_000_000 * max(0.0, 1 - risen.requests) / rate(self.per_minute)))
        if self.tokens_per_minute is not None:
            each = max(1.0, self.tokens_per_job or 1.0)
            rooms.append(math.ceil(risen.tokens / each) if risen.tokens > _NEARLY else 0)
            opens.append(now + math.ceil(1_000_000 * max(0.0, 1 - risen.tokens) * 60 / self.tokens_per_minute))
        least = min(rooms)
        return least, None if least > 0 else max(opens)

    def taken(self, jobs: int, now: int) -> Levels:
        """The levels after `jobs` started; a negative number gives back what did not start after all."""
        levels = self.at(now)
        probes, left, probe_at = self.probes, self.probes_left, self.probe_at
        if self.strikes > 0:
            if jobs > 0 and (probe_at is None or now >= probe_at + PROBE_US):
                probes = left = next_probes(probes)
                probe_at = now
            left = min(probes, left - jobs)
        requests = levels.requests - jobs
        tokens = levels.tokens - jobs * max(1.0, self.tokens_per_job or 1.0)
        if self.per_minute is not None:
            requests = min(burst(self.per_minute), requests)
        if self.tokens_per_minute is not None:
            tokens = max(token_debt(self.tokens_per_minute), min(token_burst(self.tokens_per_minute), tokens))
        return replace(levels, requests=requests, tokens=tokens, probes=probes, probes_left=left, probe_at=probe_at)

    def used(self, tokens: float, now: int) -> Levels:
        """The levels after one job reported the tokens that it used."""
        before = max(1.0, self.tokens_per_job or 1.0)
        mean = before + (tokens - before) / 8
        levels = self.at(now)
        left = levels.tokens - (tokens - before)
        if self.tokens_per_minute is not None:
            left = max(token_debt(self.tokens_per_minute), left)
        return replace(levels, tokens=left, tokens_per_job=mean)


def burst(per_minute: float) -> float:
    """How many starts may be saved up."""
    return max(1.0, per_minute * REQUEST_BURST_SECONDS / 60)


def rate(per_minute: float) -> float:
    """Starts per second. With what may be saved up, 60 seconds never see more than `per_minute`, or one."""
    return (per_minute - burst(per_minute) + 1) / 60


def token_burst(tokens_per_minute: float) -> float:
    """How many tokens may be saved up."""
    return tokens_per_minute * TOKEN_BURST_SECONDS / 60


def token_debt(tokens_per_minute: float) -> float:
    """The least that a level of tokens falls to."""
    return -tokens_per_minute * TOKEN_DEBT_SECONDS / 60


def next_probes(before: int) -> int:
    """How many the next second of a slow reopening lets through."""
    return min(PROBES_MAX, max(1, 2 * before))


def check_key(key: str) -> str:
    """A key that a limiter can have. Raises: InvalidArgument."""
    if not key.strip() or len(key) > KEY_CHARS or "," in key or not key.isprintable():
        raise InvalidArgument(
            f"The key of a limiter is a printable text of 1 to {KEY_CHARS} characters without commas, not "
            f"{key[:KEY_CHARS]!r}. Nothing was changed."
        )
    return key


def joined(keys: str | Iterable[str]) -> str | None:
    """The keys of a job as one text, None if there are none. Raises: InvalidArgument."""
    given = keys.split(",") if isinstance(keys, str) else list(keys)
    found = sorted({check_key(key) for key in given})
    if len(found) > KEYS_MAX:
        raise InvalidArgument(f"A job has up to {KEYS_MAX} limiters, not {len(found)}. Nothing was changed.")
    return ",".join(found) or None


def keys_of(limiter: str | None) -> tuple[str, ...]:
    """The keys that a job carries."""
    return () if limiter is None else tuple(limiter.split(","))


def check_block(key: str, seconds: float) -> None:
    """Refuse a block that would never end. Raises: InvalidArgument."""
    check_key(key)
    if not 0 <= seconds <= BLOCK_SECONDS_MAX:
        raise InvalidArgument(
            f"Limiter {key!r} cannot be blocked for {seconds:g} s: a block ends within {BLOCK_SECONDS_MAX:,.0f} s (a "
            "day), so that no key stays closed for ever. Block it for that long; if the service refuses again then, "
            "that blocks it again. Nothing was changed."
        )
