"""What one request needs on PostgreSQL: the function, its argument, and how to read its answer; and how a call of a
function is put to libpq, whatever connection it takes."""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import pq

from tenure.model.frozen import frozen

_OK = frozenset({int(pq.ExecStatus.TUPLES_OK), int(pq.ExecStatus.COMMAND_OK)})

Argument = str | bytes | None
"""What a function is called with: text, or a value in PostgreSQL's binary form."""


@frozen
class Call:
    """A request as one `SELECT tenure.<function>(<json>)`."""

    function: str
    encode: Callable[[Any], str]
    """The request as JSON text, the function's only argument."""
    decode: Callable[[Any, Any], Any]
    """The parsed JSON answer and the request, to the result the request promises."""


def statement(function: str, arguments: int) -> bytes:
    """The call of one of our functions, to be prepared."""
    places = ", ".join(f"${n}" for n in range(1, arguments + 1))
    return f"SELECT tenure.{function}({places})".encode()  # names come from our own tables


def encoded(arguments: Sequence[Argument]) -> tuple[list[bytes | None], list[int]]:
    """The arguments' values and formats."""
    return (
        [argument.encode() if isinstance(argument, str) else argument for argument in arguments],
        [0 if isinstance(argument, str) else 1 for argument in arguments],
    )


def value(result: pq.abc.PGresult) -> bytes | None:
    """What the server answered. Raises its error."""
    if result.status in _OK:
        return result.get_value(0, 0) if result.ntuples else None
    raise psycopg.errors.error_from_result(result, encoding="utf-8")
