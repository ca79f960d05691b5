"""An exchange by one statement that is its own transaction: what is inserted into a view is carried out by its trigger.

Apart from what asks for it and from what is made of the answer, because two carry it out: the writer, and a scribe.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.errors import StoreUnavailable
from tenure.store.sqlite.errors import is_busy
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load

_AT_ONCE: Final = load("exchange_at_once")
_PICKED: Final = load("exchange_picked")
_TOLD: Final = load("exchange_told")
_REST: Final = load("claim_rest")

_NO_VALUES: Final = dict.fromkeys(
    (
        *("stamp", "now", "plain", "plain_number", "token", "rich", "rich_number"),
        *("queue", "limit", "worker", "state", "started_at", "lease_until"),
    )
)

Told = tuple[int, str, Sequence[tuple[Any, ...]]]
"""How many were granted, what exchange_told.sql tells of them, and rows of claim_rest.sql for those not whole."""
NOTHING: Final[Told] = (0, "", ())


def set_up(connection: sqlite3.Connection, known: Known) -> None:
    """Make the view, once a connection."""
    if not known.has_exchange:
        connection.executescript(load("exchange_setup"))
        known.has_exchange = True


def practise(connection: sqlite3.Connection) -> None:
    """Have the statement compiled, which takes as long as to carry out a hundred jobs: an exchange that does nothing,
    for no stamp is NULL. Not if somebody else writes."""
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute(_AT_ONCE, _NO_VALUES)


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


def picked(connection: sqlite3.Connection) -> tuple[int, str]:
    """How many jobs the last exchange of this connection granted, and where they lie."""
    number, rowids = connection.execute(_PICKED).fetchone()
    return number, rowids


def tell(connection: sqlite3.Connection, rowids: str, worker: str, now: int) -> Told:
    """What was granted to the worker at this moment, read after the commit."""
    try:
        number, told, partial = connection.execute(_TOLD, {"rowids": rowids, "worker": worker, "now": now}).fetchone()
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
