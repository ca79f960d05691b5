"""Text that is safe to show. Job data comes from strangers; a terminal obeys what it is sent.

Control characters, escape sequences, line separators and the marks that reorder or hide text are shown by their
number instead. In JSON they become the escape that JSON has for them, so the value stays what it was.
"""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from typing import Any

from tenure.model.plain import iso, plain
from tenure.model.visible import UNSAFE, visible, visible_lines

__all__ = [
    "ago",
    "first_line",
    "iso",
    "plain",
    "safe",
    "safe_lines",
    "safe_piece",
    "seconds",
    "size",
    "to_json",
    "wrapped",
]

_UNSAFE_IN_JSON = re.compile(UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
"""Raw line feeds are ours: inside strings JSON has escaped them already."""

LEAST_WIDTH = 20
"""On a narrower terminal the words are left to it."""


def safe(text: str) -> str:
    """One line, harmless on any terminal."""
    return visible(text)


def safe_lines(text: str) -> str:
    """The same for text of several lines, such as a traceback: its line feeds stay."""
    return visible_lines(text)


def safe_piece(text: str) -> str:
    """The same for a piece of a stream, which another may follow: the line feed at its end stays too."""
    return visible_lines(text) + ("\n" if text.endswith("\n") else "")


def wrapped(text: str, stream: Any) -> str:
    """Text with its lines broken between words where the stream is a terminal; indented lines, as in a traceback, and
    text for files and pipes stay as they are."""
    if not stream.isatty():
        return text
    try:
        width = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return text
    import textwrap

    return "\n".join(
        line
        if len(line) <= width or line[:1].isspace()
        else textwrap.fill(line, max(width, LEAST_WIDTH), break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON of any answer. Moments are ISO 8601 in UTC, records are objects with all their fields."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent, separators=separators)
    return _UNSAFE_IN_JSON.sub(_json_escape, text)


def seconds(value: float) -> str:
    """A duration for people: `320ms`, `4.2s`, `3m 12s`, `5h 2m`, `9d 4h`."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 0.9995:
        return f"{sign}{value * 1000:.0f}ms"
    if value < 9.95:
        return f"{sign}{value:.1f}s"
    whole = round(value)
    for unit, size, next_unit, next_size in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{sign}{whole // size}{unit}" + (f" {rest}{next_unit}" if rest else "")
    return f"{sign}{whole}s"


def size(value: int) -> str:
    """A number of bytes for people."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def ago(at: datetime, now: datetime) -> str:
    """How far a moment is from now: `12s ago`, `in 3m`."""
    away = (now - at).total_seconds()
    return f"in {seconds(-away)}" if away < -0.0005 else f"{seconds(max(away, 0.0))} ago"


def first_line(text: str | None, width: int = 200) -> str:
    """The first line of an error, cut."""
    line = (text or "").split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
