"""What both engines refuse before they ask their databases: texts and numbers that one of them could not hold.

The requests on the path of a job are looked at by the engines themselves, field by field; most others go through
`check_request`, whatever they are made of.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, get_args

from tenure.errors import InvalidArgument
from tenure.model.policy import Backoff, BackoffShape
from tenure.store.contract import Claim, Enqueue, Exchange, Heartbeat, Settle, Start
from tenure.store.limits import BlockLimiter, ClearLimiter, RemoveLimiter, SetLimiter, UseTokens
from tenure.store.memo import KeepMemo, TakeMemo

CHECKED_APART: Final = frozenset(
    {Claim, Enqueue, Exchange, Heartbeat, Settle, Start}
    | {SetLimiter, BlockLimiter, ClearLimiter, RemoveLimiter, UseTokens, KeepMemo, TakeMemo}
)
"""Not looked at as a whole: requests on the path of a job, and those whose own rules say more."""
INT64: Final = 2**63
is_uuid = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
"""Whether a text is a UUID in its canonical form."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SHAPES: Final = get_args(BackoffShape)
_NUMBERS: Final = frozenset(field.name for field in fields(Backoff)) - {"shape"}


def check_request(request: object) -> None:
    """Refuse a request with a text that holds NUL or half of a surrogate pair, or with a number that is not finite or
    does not fit into 64 bits.

    Raises: InvalidArgument, with the path of the field.
    """
    _check(request, "")


def check_text(path: str, text: str) -> None:
    """Refuse a text that PostgreSQL cannot hold. Raises: InvalidArgument."""
    if "\0" in text:
        raise InvalidArgument(f"{path}: it must not hold a NUL character. Nothing was changed.")
    if not text.isascii() and _SURROGATE.search(text):
        raise InvalidArgument(f"{path}: it holds half of a surrogate pair, which is no character. Nothing was changed.")


def check_number(path: str, number: float | None) -> None:
    """Refuse what is no number: NaN and infinities. Raises: InvalidArgument."""
    if number is not None and not math.isfinite(number):
        raise InvalidArgument(f"{path}: {number} is no finite number. Nothing was changed.")


def check_backoff(text: str) -> None:
    """Refuse a job's own backoff that is none: JSON of some of the fields of a Backoff. Raises: InvalidArgument."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict) or not all(_is_backoff(name, value) for name, value in given.items()):
        raise InvalidArgument(
            f"backoff: it must be a JSON object with a shape ({', '.join(_SHAPES)}) and numbers ("
            f"{', '.join(sorted(_NUMBERS))}) that are finite and not negative. Nothing was enqueued."
        )


def _is_backoff(name: str, value: object) -> bool:
    if value is None:
        return name == "shape" or name in _NUMBERS
    if name == "shape":
        return value in _SHAPES
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return name in _NUMBERS and is_number and 0 <= value < math.inf  # type: ignore[operator]


def _check(value: Any, path: str) -> None:
    match value:
        case str() if not isinstance(value, Enum):
            check_text(path, value)
        case bool() | None:
            return
        case float():
            check_number(path, value)
        case int():
            if not -INT64 <= value < INT64:
                raise InvalidArgument(f"{path}: {value} does not fit into 64 bits. Nothing was changed.")
        case Mapping():
            for key, one in value.items():
                _check(key, path)
                _check(one, f"{path}[{key!r}]" if isinstance(key, str) and len(key) < 100 else path)
        case Collection() if not isinstance(value, bytes):
            for one in value:
                _check(one, path)
        case _ if is_dataclass(value):
            for field in fields(value):
                _check(getattr(value, field.name), f"{path}.{field.name}".lstrip("."))
