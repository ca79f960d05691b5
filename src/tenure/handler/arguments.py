"""Checks on what callers hand in. Each raises InvalidArgument with the argument's name and what would be right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from tenure.errors import InvalidArgument, nearest
from tenure.model.ids import JobId

Duration = float | int | timedelta
"""Seconds, or a timedelta."""

Names = str | Iterable[str]
"""One name or several."""

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1
NAME_BYTES = 200
TEXT_BYTES = 1024
SECONDS_MAX = 100 * 366 * 86_400.0
"""A century. Longer waits are mistakes, and moments beyond the year 9999 cannot be stored."""

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def name(argument: str, value: Any) -> str:
    """A name of a queue, kind, worker, gate or lease: short, printable, not blank at its ends."""
    found = text(argument, value, NAME_BYTES)
    if not found.isprintable() or found != found.strip():
        raise InvalidArgument(
            f"`{argument}` is {found!r}, but a name has no control characters and no blanks at its ends."
        )
    return found


def text(argument: str, value: Any, limit: int = TEXT_BYTES) -> str:
    """Text that both engines hold and index: not empty, no NUL, valid UTF-8, within the limit in bytes."""
    if not isinstance(value, str):
        raise InvalidArgument(f"`{argument}` must be text (str), got {_type_name(value)}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"`{argument}` contains a lone surrogate, which is not UTF-8.") from None
    if not size:
        raise InvalidArgument(f"`{argument}` is empty. Leave it out, or give it a value.")
    if size > limit:
        raise InvalidArgument(f"`{argument}` takes {size:,} bytes, and the limit is {limit:,}.")
    if "\0" in value:
        raise InvalidArgument(f"`{argument}` contains NUL (\\u0000), which PostgreSQL cannot hold.")
    return str.__str__(value)


def names(argument: str, value: Names | None) -> tuple[str, ...]:
    """One name or several, as a tuple; empty for None."""
    if value is None:
        return ()
    return tuple(name(argument, one) for one in several(argument, value))


def several(argument: str, value: Any) -> tuple[Any, ...]:
    """One text, or each of several values."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise InvalidArgument(f"`{argument}` must be one or several, got {_type_name(value)}.")
    return tuple(value)


def seconds(argument: str, value: Duration, *, positive: bool = False) -> float:
    """A duration in seconds: finite, not negative, at most a century."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"`{argument}` must be seconds (a number) or a timedelta, got {_type_name(value)}.")
    if not isfinite(value) or not 0 <= value <= SECONDS_MAX or (positive and value == 0):
        least = "more than 0" if positive else "0 or more"
        raise InvalidArgument(f"`{argument}` is {value!r}; it must be {least} seconds and at most a hundred years.")
    return float(value)


def moment(argument: str, value: Any) -> datetime:
    """An aware moment."""
    if not isinstance(value, datetime):
        raise InvalidArgument(f"`{argument}` must be a datetime, got {_type_name(value)}.")
    if value.utcoffset() is None:
        raise InvalidArgument(
            f"`{argument}` has no time zone, so it names no moment. Use `datetime.now(UTC)` or `.replace(tzinfo=…)`."
        )
    return value


def whole(argument: str, value: Any, least: int = INT32_MIN, most: int = INT32_MAX) -> int:
    """An integer within its range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"`{argument}` must be an integer, got {_type_name(value)}.")
    if not least <= value <= most:
        raise InvalidArgument(f"`{argument}` is {value}; it must lie between {least} and {most}.")
    return int(value)


def job_id(argument: str, value: Any) -> JobId:
    """A job's id in its canonical form."""
    return JobId(uuid_text(argument, value))


def uuid_text(argument: str, value: Any) -> str:
    """A UUID in its canonical form."""
    if isinstance(value, str) and _CANONICAL.fullmatch(value):
        return value
    from uuid import UUID  # late: seldom needed, and not cheap

    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str):
        with suppress(ValueError):
            return str(UUID(value))
    raise InvalidArgument(f"`{argument}` must be a UUID, got {_type_name(value)} {str(value)[:60]!r}.")


def one_of(argument: str, value: Names | None, known: Iterable[str]) -> tuple[str, ...]:
    """Words from a fixed set."""
    allowed = {str(word) for word in known}
    given = names(argument, value)
    for word in given:
        if word not in allowed:
            raise InvalidArgument(f"`{argument}`: there is no {word!r}.{nearest(word, allowed)}")
    return given


def word(argument: str, value: Any, known: Iterable[str]) -> str:
    """One word from a fixed set."""
    given = one_of(argument, value, known)
    if len(given) != 1:
        raise InvalidArgument(
            f"`{argument}` takes one of {', '.join(sorted(map(str, known)))}, got {len(given)} words."
        )
    return given[0]


def error_text(error: str | BaseException, limit: int) -> str:
    """What goes into a job's error: class and message first, since the fingerprint reads that line; then the trace.

    Cut in the middle to `limit` characters. What no engine could hold is replaced: an error must not be lost to it.
    """
    if isinstance(error, BaseException):
        import traceback  # late: a process that enqueues need not have it

        said = f"{type(error).__qualname__}: {error}"
        trace = "".join(traceback.format_exception(error)).rstrip() if error.__traceback__ is not None else ""
        error = f"{said}\n{trace}" if trace else said
    if not isinstance(error, str):
        raise InvalidArgument(f"`error` must be text (str) or an exception, got {_type_name(error)}.")
    error = error.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if not error.strip():
        return "failed without a message"
    if len(error) > limit:
        half = max(0, limit - 40) // 2
        error = f"{error[:half]}\n… {len(error) - 2 * half} characters …\n{error[len(error) - half :]}"
    return error


def _type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__
