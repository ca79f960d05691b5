"""Records from JSON, checked field by field against their annotations: a file from outside proves nothing.

A field that the class does not have is passed over, so that a later version may add some. The error names the place,
as in `$.attempts[3].ended_at: expected a moment, got 7`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tenure.errors import InvalidArgument

T = TypeVar("T")


def read_record(cls: type[T], value: Any, place: str = "$") -> T:
    """A record of this class. Raises: InvalidArgument."""
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    hints = _hints(cls)  # type: ignore[arg-type]  # classes are hashable
    given: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]  # a dataclass, as every caller knows
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{place}.{field.name}")
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InvalidArgument(f"{place}.{field.name}: is missing")
    return cls(**given)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(hint: Any, value: Any, place: str) -> Any:
    hint = getattr(hint, "__supertype__", hint)  # a NewType, such as JobId
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _read(_not_none(hint), value, place)
    if origin is Literal:
        if value not in get_args(hint):
            raise _wrong(place, f"one of {', '.join(map(str, get_args(hint)))}", value)
        return value
    if origin is list:
        return _read_list(get_args(hint)[0], value, place)
    if origin is tuple:  # tuple[T, ...]
        return tuple(_read_list(get_args(hint)[0], value, place))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _read_mapping(get_args(hint)[1], value, place)
    if is_dataclass(hint):
        return read_record(hint, value, place)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _read_enum(hint, value, place)
    if hint is datetime:
        return _read_moment(value, place)
    return _read_simple(hint, value, place)


def _not_none(hint: Any) -> Any:
    (wanted,) = (one for one in get_args(hint) if one is not types.NoneType)
    return wanted


def _read_list(hint: Any, value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(place, "a list", value)
    return [_read(hint, one, f"{place}[{number}]") for number, one in enumerate(value)]


def _read_mapping(hint: Any, value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    return {key: _read(hint, one, f"{place}.{key}") for key, one in value.items()}


def _read_enum(hint: type[Enum], value: Any, place: str) -> Enum:
    try:
        return hint(value)
    except ValueError:
        raise _wrong(place, f"one of {', '.join(str(one.value) for one in hint)}", value) from None


def _read_moment(value: Any, place: str) -> datetime:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _wrong(place, "a moment", value) from None
    if at.tzinfo is None:
        raise _wrong(place, "a moment with its time zone", value)
    return at


def _read_simple(hint: Any, value: Any, place: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    right = {
        str: isinstance(value, str),
        int: is_number and isinstance(value, int),
        float: is_number,
        bool: isinstance(value, bool),
    }
    if hint not in right:
        raise TypeError(f"{place} is annotated with {hint}, which cannot be read from JSON.")
    if not right[hint]:
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise _wrong(place, names[hint], value)
    return value


def _wrong(place: str, wanted: str, value: Any) -> InvalidArgument:
    found = "a list" if isinstance(value, list) else "an object" if isinstance(value, dict) else repr(value)[:60]
    return InvalidArgument(f"{place}: expected {wanted}, got {found}")
