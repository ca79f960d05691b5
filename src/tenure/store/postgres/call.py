"""What one request needs on PostgreSQL: the function, its argument, and how to read its answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Argument = str | bytes | None
"""What a function is called with: text, or a value in PostgreSQL's binary form."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as one `SELECT tenure.<function>(<json>)`."""

    function: str
    encode: Callable[[Any], str]
    """The request as JSON text, the function's only argument."""
    decode: Callable[[Any, Any], Any]
    """The parsed JSON answer and the request, to the result the request promises."""
