"""What a handler said with `ctx.progress`: any JSON value, usually 0.0 to 1.0, or that with a message."""

from __future__ import annotations

from typing import Any


def read_progress(progress: Any) -> tuple[float | None, str]:
    """The share that is done, 0.0 to 1.0, if it was told as a number; and what was said in words, "" if nothing was."""
    value, message = progress, ""
    if isinstance(value, dict):
        message = str(value.get("message") or "")
        value = value.get("value")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value), message
    return None, message or ("" if value is None else str(value))
