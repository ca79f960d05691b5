"""What a URL says to us and not to libpq, which refuses parameters that it does not know."""

from __future__ import annotations

import re

from tenure.errors import ConfigError, nearest
from tenure.model.frozen import frozen

POOL_SIZE = 10
SETTINGS = ("tenure_pool", "tenure_pooler")
"""The parameters of a URL that are ours."""

_OURS = re.compile(r"(?<=[?&])(tenure_\w*)=([^&]*)(?:&|$)")


@frozen
class Address:
    """A URL, taken apart."""

    url: str
    """What is left for libpq."""
    pool_size: int
    """How many connections a process uses at most, beside those for heartbeats and for listening."""
    is_pooled: bool
    """Behind a pooler in transaction mode: no prepared statements, no LISTEN."""


def read_address(url: str) -> Address:
    """Take our parameters out of a URL. Raises: ConfigError."""
    given: dict[str, str] = {}
    for name, text in _OURS.findall(url):
        if name not in SETTINGS:
            raise ConfigError(
                f"The database URL has a parameter {name!r}, which does not exist.{nearest(name, SETTINGS)}"
            )
        given[name] = text
    return Address(
        _OURS.sub("", url).rstrip("?&") if given else url,
        _number("tenure_pool", given.get("tenure_pool", str(POOL_SIZE)), "1 or more connections", 1, 10_000),
        _number("tenure_pooler", given.get("tenure_pooler", "0"), "0 or 1", 0, 1) == 1,
    )


def _number(name: str, text: str, wanted: str, low: int, high: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ConfigError(f"The database URL says {name}={text}; it must be {wanted}.")
    return int(text)
