"""Records in terms of JSON: objects with all their fields, moments as ISO 8601 in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any


def plain(value: Any) -> Any:
    """The value in terms of JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime):
        return iso(value)
    if is_dataclass(value):
        told = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        shown = getattr(value, "shown_state", None)
        return told if shown is None else {**told, "shown_state": shown}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(one) for one in value)
    return [plain(one) for one in value]


def iso(at: datetime) -> str:
    """`2026-01-31T12:00:00.000000Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
