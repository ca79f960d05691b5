"""The hash of a row, the same on both engines; and the sum of hashes, which does not depend on their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

from tenure.store.moving import Row

MODULUS: Final = 1 << 256


def row_hash(row: Row, loose: Sequence[int] = ()) -> int:
    """The hash of one row. `loose`: the places of JSON text that is compared by value."""
    if loose:
        made = list(row)
        for place in loose:
            if made[place] is not None:
                made[place] = _value(made[place])
        row = tuple(made)
    return int.from_bytes(sha256(repr(row).encode("utf-8", "surrogatepass")).digest(), "big")


def plus(total: int, one: int) -> int:
    """The sum with one more hash."""
    return (total + one) % MODULUS


def _value(text: str) -> str:
    """JSON text in one form: PostgreSQL's `jsonb` keeps neither spaces, nor the order of keys, nor 1e2."""
    return repr(_plain(json.loads(text, parse_int=Decimal, parse_float=Decimal)))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return sorted((key, _plain(inner)) for key, inner in value.items())
        case list():
            return [_plain(inner) for inner in value]
        case Decimal():
            return f"{value.normalize():f}"
    return value
