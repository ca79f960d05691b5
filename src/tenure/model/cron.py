"""Cron expressions with time zones: minute, hour, day of month, month, day of week.

Lists, ranges, steps, names (`mon`, `jan`) and `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. If both day fields
are restricted, a day that fits either counts, as cron has it. Sunday is 0 or 7.

When clocks change: an expression that names its hours happens once for each time it names. A time that the clock jumps
over happens as much later as the clock jumped; a time that comes twice happens the first time. An expression for every
hour follows real time, through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo

from tenure.model.frozen import frozen

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_YEARS_AHEAD = 9  # 29 February may be eight years away
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@frozen
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first_name: int = 0


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS, 1),
    _Field("day of week", 0, 7, _WEEKDAYS, 0),
)


@frozen
class Cron:
    """A parsed expression."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Sunday is 0."""
    either_day: bool
    """Both day fields are restricted: a day that fits either counts."""

    @classmethod
    def parse(cls, expression: str) -> Cron:
        """Raises ValueError with the field that cannot be read."""
        text = _NICKNAMES.get(expression.strip().lower(), expression)
        parts = text.lower().split()
        if len(parts) != len(_FIELDS):
            raise ValueError(
                f"cron {expression!r}: expected 5 fields (minute hour day month weekday) or one of "
                f"{', '.join(sorted(_NICKNAMES))}, got {len(parts)} fields"
            )
        sets = [_parse_field(part, field, expression) for part, field in zip(parts, _FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = sets
        cron = cls(
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=frozenset(days),
            months=frozenset(months),
            weekdays=frozenset(day % 7 for day in weekdays),
            either_day=not parts[2].startswith("*") and not parts[4].startswith("*"),
        )
        if next(cron._naive_after(datetime(2024, 1, 1)), None) is None:  # noqa: DTZ001 - a local time without a zone
            raise ValueError(f"cron {expression!r} names a day that never comes")
        return cron

    def ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The moments (UTC) strictly after `after`, in order, for ever."""
        return self._real_ticks(after, zone) if len(self.hours) == 24 else self._wall_ticks(after, zone)

    def fits(self, day: date) -> bool:
        """Whether it happens on this day at all."""
        if day.month not in self.months:
            return False
        of_month = day.day in self.days
        of_week = day.isoweekday() % 7 in self.weekdays
        return (of_month or of_week) if self.either_day else (of_month and of_week)

    def _wall_ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """Named hours: walk the calendar on the wall and translate, so a change of clocks neither skips nor repeats."""
        last = after
        begin = after.astimezone(zone).replace(tzinfo=None) - _DAY  # the wall may have been set back since
        while True:
            for wall in self._naive_after(begin):
                moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
                if moment > last:
                    last = moment
                    yield moment
                begin = wall

    def _real_ticks(self, after: datetime, zone: tzinfo) -> Iterator[datetime]:
        """Every hour: walk real time, minute by minute of the hour, and look at the wall."""
        minutes = frozenset(self.minutes)
        moment = after.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        while True:
            wall = moment.astimezone(zone)
            if not self.fits(wall.date()):
                ahead = datetime(wall.year, wall.month, wall.day, tzinfo=zone) + _DAY - _MINUTE
                moment = max(moment, ahead.astimezone(UTC)) + _MINUTE
                continue
            if wall.minute in minutes:
                yield moment
            moment += _MINUTE

    def _naive_after(self, wall: datetime) -> Iterator[datetime]:
        """Times on the wall strictly after `wall`, for some years ahead."""
        day = wall.date()
        end = day.replace(year=day.year + _YEARS_AHEAD, day=min(day.day, 28))
        while day < end:
            if self.fits(day):
                for hour in self.hours:
                    for minute in self.minutes:
                        found = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - as above
                        if found > wall:
                            yield found
            day += _DAY


def _parse_field(text: str, field: _Field, expression: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        body, slash, step_text = part.partition("/")
        step = int(step_text) if step_text.isdecimal() else 0 if slash else 1
        low_text, dash, high_text = body.partition("-")
        if body == "*":
            low, high = field.low, min(field.high, 6) if field.name == "day of week" else field.high
        else:
            low = _number(low_text, field)
            high = _number(high_text, field) if dash else field.high if slash else low
        if step < 1 or not field.low <= low <= high <= field.high:
            raise ValueError(
                f"cron {expression!r}: the {field.name} {part!r} is not a list of numbers or ranges "
                f"between {field.low} and {field.high}"
            )
        found.update(range(low, high + 1, step))
    return found


def _number(text: str, field: _Field) -> int:
    if text in field.names:
        return field.names.index(text) + field.first_name
    return int(text) if text.isdecimal() and text.isascii() else -1
