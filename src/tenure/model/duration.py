"""Durations as people write them: `90`, `90s`, `5m`, `1h30m`, `2d`."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")


def duration_seconds(text: str) -> float:
    """Seconds. Raises: ValueError, with what to write."""
    words = text.strip().lower()
    found = list(_PART.finditer(words))
    if not found or "".join(one.group() for one in found) != words or (len(found) > 1 and not all(o[2] for o in found)):
        raise ValueError(f"{text!r} is no duration. Write seconds, or 90s, 5m, 1h30m, 2d.")
    return sum(float(one[1]) * _UNITS[one[2] or "s"] for one in found)


def duration_text(seconds: float) -> str:
    """The same in words that `duration_seconds` reads back exactly: `90s`, `5m`, `1h30m`."""
    if seconds != int(seconds) or seconds <= 0:
        return f"{seconds:g}s" if float(f"{seconds:g}") == seconds else f"{seconds!r}s"
    parts, left = [], int(seconds)
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(_UNITS[unit]))
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)
