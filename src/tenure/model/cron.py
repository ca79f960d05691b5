"""Ticks: the moments at which a schedule happens, by a cron expression or at a steady distance.

Cron expressions are read by cronsim, which follows Debian's cron: five fields with lists, ranges, steps, names (`mon`,
`jan`), `L` for the last day of a month and `5#2` for its second Friday. If both day fields are restricted, a day that
fits either counts. When clocks change, an expression that names its hours happens once for each time it names: a time
that the clock jumps over happens right after the jump, a time that comes twice the first time. An expression for every
hour follows real time, through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from tenure.errors import MissingExtra
from tenure.model.frozen import frozen

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAST_SECONDS = 1.0


class Ticks(Protocol):
    """When a schedule happens."""

    def ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The moments (UTC) strictly after `after`, in order."""
        ...

    @property
    def in_words(self) -> str:
        """When, as an English phrase."""
        ...


@frozen
class Cron:
    """A cron expression that was found to be right."""

    expression: str

    @classmethod
    def parse(cls, expression: str) -> Cron:
        """Raises: ValueError with what is wrong; MissingExtra, if cronsim is not installed."""
        text = _NICKNAMES.get(expression.strip().lower(), expression)
        if len(text.split()) != 5:
            raise ValueError(
                f"cron {expression!r}: expected 5 fields (minute hour day month weekday) or one of "
                f"{', '.join(sorted(_NICKNAMES))}, got {len(text.split())} fields"
            )
        try:
            from cronsim import CronSim, CronSimError
        except ModuleNotFoundError as exc:
            raise MissingExtra("cron", f"The cron expression {expression!r}") from exc
        try:
            next(CronSim(text, datetime(2024, 1, 1, tzinfo=UTC)))
        except CronSimError as exc:
            raise ValueError(f"cron {expression!r}: {str(exc).lower()}") from exc
        except StopIteration:
            raise ValueError(f"cron {expression!r} names a day that never comes") from None
        return cls(text)

    def ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The moments (UTC) strictly after `after`, in order."""
        from cronsim import CronSim

        last = after
        for local in CronSim(self.expression, after.astimezone(zone)):
            moment = local.astimezone(UTC)
            if moment > last:  # times that the clock jumped over all happen right after the jump, which is once
                last = moment
                yield moment

    @property
    def in_words(self) -> str:
        """`At 03:00 every day`."""
        from cronsim import CronSim

        return CronSim(self.expression, _EPOCH).explain()


@frozen
class Every:
    """At a steady distance, counted from 1970, so that every worker knows the same ticks. Needs no library."""

    seconds: float

    def __post_init__(self) -> None:
        """Raises: ValueError."""
        if not self.seconds >= LEAST_SECONDS:
            raise ValueError(f"every={self.seconds:g}: a schedule happens at most once a second")

    def ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:  # noqa: ARG002 - real time has no zone
        """The moments (UTC) strictly after `after`, in order."""
        step = timedelta(seconds=self.seconds)
        number = (after - _EPOCH) // step
        while True:
            number += 1
            yield _EPOCH + number * step

    @property
    def in_words(self) -> str:
        """`Every 90 s`."""
        return f"Every {self.seconds:g} s"
