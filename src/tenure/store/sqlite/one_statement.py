"""An exchange by one statement that is its own transaction: what is inserted into a view is carried out by its trigger.

Apart from what asks for it and from what is made of the answer, because two carry it out: the writer, and a scribe.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.errors import StoreUnavailable
from tenure.store.sqlite.errors import is_busy
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load

_AT_ONCE: Final = load("exchange_at_once")
_TOLD: Final = load("exchange_told")
_REST: Final = load("claim_rest")

Told = tuple[int, str, Sequence[tuple[Any, ...]]]
"""How many were granted, what exchange_told.sql tells of them, and rows of claim_rest.sql for those not whole."""


def set_up(connection: sqlite3.Connection, known: Known) -> None:
    """Make the view, once a connection."""
    if not known.has_exchange:
        connection.executescript(load("exchange_setup"))
        known.has_exchange = True


def carry_out(connection: sqlite3.Connection, values: Mapping[str, Any]) -> bool:
    """Whether it was done; if not, nothing was."""
    changes = connection.total_changes
    try:
        connection.execute(_AT_ONCE, values)
    except sqlite3.IntegrityError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise
        return False
    return connection.total_changes != changes


def tell(connection: sqlite3.Connection, worker: str) -> tuple[int, str, list[tuple[Any, ...]]]:
    """What was granted, read after the commit by what the statement left on this connection."""
    try:
        number, told, partial = connection.execute(_TOLD).fetchone()
        rest = connection.execute(_REST, {"ids": partial}).fetchall() if partial != "[]" else []
    except sqlite3.OperationalError as exc:
        if not is_busy(exc):
            raise
        # Whoever waits for a lock would do it all again, and these jobs would be held by nobody until their leases end.
        raise StoreUnavailable(
            f"The exchange was carried out, but what it granted to {worker} could not be read: {exc}. Repeat the call, "
            "and name what is held."
        ) from exc
    return number, told or "", rest
