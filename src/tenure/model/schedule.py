"""A schedule: a job to enqueue at every tick of a cron expression, or at a steady distance.

The leader of the workers carries it out.

Each tick has one job with an id made of the schedule's name and the tick: two leaders that both believe in themselves
ask for the same job, and the store has it once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import field, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from itertools import islice, takewhile
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from tenure.errors import MissingExtra
from tenure.model.clock import to_us
from tenure.model.cron import Cron, Every, Ticks
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import NewJob

Missed = Literal["skip", "one", "all"]

LATE_SECONDS = 60.0
"""A tick that is older than this when the leader comes to it was missed."""
CATCH_UP = 1000
"""No more ticks than this are made up for at once; the next look takes the rest."""
LOOK_BACK_DAYS = (0, 1, 32, 367, 100 * 366)
"""How far back the newest tick is looked for, step by step."""


@frozen
class Schedule:
    """When to enqueue what.

    `missed` says what becomes of ticks at which no leader was there: `skip` drops them, `one` makes up for them with a
    single job, `all` makes a job for each.
    """

    name: str
    cron: str | None
    """A cron expression; None if `every_seconds` says when."""
    kind: str
    payload: str = "{}"
    """JSON text."""
    queue: str = "default"
    tz: str = "UTC"
    missed: Missed = "one"
    priority: int | None = None
    max_attempts: int | None = None
    backoff: str | None = None
    every_seconds: float | None = None
    _ticks: Ticks = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError for a name, expression, time zone or policy that cannot be."""
        if not self.name.strip() or len(self.name) > 200:
            raise ValueError(f"schedule {self.name!r}: a name has 1 to 200 characters")
        if self.missed not in {"skip", "one", "all"}:
            raise ValueError(f"schedule {self.name!r}: missed={self.missed!r} is not one of skip, one, all")
        try:
            object.__setattr__(self, "_ticks", self._read_ticks())
            object.__setattr__(self, "_zone", _zone(self.tz))
        except ValueError as exc:
            raise ValueError(f"schedule {self.name!r}: {exc}") from exc

    def _read_ticks(self) -> Ticks:
        if (self.cron is None) == (self.every_seconds is None):
            raise ValueError("give a cron expression, or `every`, and not both")
        return Cron.parse(self.cron) if self.cron is not None else Every(self.every_seconds or 0.0)

    @property
    def says(self) -> str:
        """When it happens, for people."""
        return self.cron if self.cron is not None else f"every {self.every_seconds:g} s"

    @property
    def in_words(self) -> str:
        """The same as an English phrase: `At 03:00 every day`."""
        return self._ticks.in_words

    def spec(self) -> str:
        """JSON text that says all of it, for the store."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.init and one.name != "name"}
        if self.every_seconds is None:
            del told["every_seconds"]  # as versions before it wrote it
        return json.dumps(told, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_spec(cls, name: str, spec: str) -> Schedule:
        """Raises ValueError if a newer version, or another program, wrote what we cannot read."""
        try:
            return cls(name=name, **json.loads(spec))
        except (TypeError, ValueError, RecursionError, MissingExtra) as exc:
            raise ValueError(f"schedule {name!r} cannot be read: {exc}") from exc

    def next_tick(self, after: datetime) -> datetime:
        """The first tick after a moment."""
        return next(self._ticks.ticks(after, self._zone))

    def due(self, after: datetime, now: datetime) -> tuple[datetime, list[datetime]] | None:
        """The newest tick in (after, now] and the ticks to run, by the policy; None while there is no tick."""
        if self.missed == "all":
            ticks = list(islice(self._between(after, now), CATCH_UP))
            return (ticks[-1], ticks) if ticks else None
        # Only the newest ticks matter, so they are looked for backwards: after a year there are half a million.
        since = now - timedelta(seconds=LATE_SECONDS)
        ticks = []
        for days in LOOK_BACK_DAYS:
            start = max(after, since - timedelta(days=days, microseconds=1))
            ticks = list(self._between(start, now))
            if ticks or start == after:
                break
        if not ticks:
            return None
        in_time = [tick for tick in ticks if tick >= since]
        return ticks[-1], in_time if in_time or self.missed == "skip" else [ticks[-1]]

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks in (after, until]."""
        return takewhile(lambda tick: tick <= until, self._ticks.ticks(after, self._zone))

    def job(self, tick: datetime) -> NewJob:
        """The one job of a tick."""
        return NewJob(
            id=tick_job_id(self.name, tick),
            kind=self.kind,
            payload=self.payload,
            queue=self.queue,
            priority=self.priority,
            max_attempts=self.max_attempts,
            backoff=self.backoff,
            key=tick_key(self.name, tick),
            actor=f"schedule:{self.name}"[:200],
        )


def _zone(name: str) -> ZoneInfo:
    """The time zone of this name. Raises: ValueError, which offers the nearest name."""
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        close = get_close_matches(name, available_timezones(), n=1)
        hint = f"the nearest is {close[0]!r}" if close else "names are as in 'Europe/Berlin'"
        raise ValueError(f"there is no time zone {name!r}; {hint}") from None


def tick_key(name: str, tick: datetime) -> str:
    """The idempotency key of a tick's job."""
    return f"schedule:{name}:{tick:%Y-%m-%dT%H:%M:%SZ}"


def tick_job_id(name: str, tick: datetime) -> JobId:
    """A UUIDv7 with the time of the tick, the same in every process that makes it."""
    mark = hashlib.sha256(tick_key(name, tick).encode()).hexdigest()
    ms = f"{to_us(tick) // 1000:012x}"
    return JobId(f"{ms[:8]}-{ms[8:]}-7{mark[:3]}-{0x8000 | int(mark[3:7], 16) & 0x3FFF:04x}-{mark[7:19]}")
