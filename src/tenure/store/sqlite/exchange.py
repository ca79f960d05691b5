"""Exchange: a settle and a claim in one transaction; for a busy worker by one statement.

While the writer carries out an exchange the event loop runs handlers, and both want Python's lock. `sqlite3` lets go of
it during a statement, but comes back only when the loop sleeps or five milliseconds have passed. An exchange of six
statements therefore hardly overlapped with the handlers at all; one statement does all of it, the sync of the disk
included, beside them.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from tenure.errors import GateClosed, StoreUnavailable
from tenure.store.sqlite.claim import AT_ONCE_LIMIT, claim, claim_at_once, known_terms
from tenure.store.sqlite.errors import is_busy
from tenure.store.sqlite.grants import Granted, LateExchanged, Terms
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.settle import Sorted, settle_all
from tenure.store.sqlite.transaction import Transaction

_AT_ONCE: Final = load("exchange_at_once")
_TOLD: Final = load("exchange_told")
_REST: Final = load("claim_rest")
_NO_CLAIM: Final = dict.fromkeys(("queue", "worker", "state", "started_at", "lease_until")) | {"limit": 0}


def exchange(transaction: Transaction, request: Sorted) -> LateExchanged:
    """See store.base.Exchange."""
    settled = {(answer.job_id, answer.token): answer for answer in settle_all(transaction, request).values()}
    if request.claim is None:
        return LateExchanged(settled, Granted([]))
    try:
        return LateExchanged(settled, claim(transaction, request.claim))
    except GateClosed as exc:
        if not request.outcomes:
            raise
        return LateExchanged(settled, Granted([]), exc)


def exchange_at_once(
    connection: sqlite3.Connection, known: Known, request: Sorted, now: int
) -> tuple[LateExchanged, str | None] | None:
    """Plain successes, and a claim from one queue without limits; see enqueue_at_once."""
    if request.others or known.stamp is None or known.wants_events is not False:
        return None
    claim, terms = request.claim, None
    if claim is not None:
        if not request.outcomes and (done := claim_at_once(connection, known, claim, now)) is not None:
            return LateExchanged({}, done[0]), None
        terms = known_terms(known, claim, now)
        if terms is None:
            return None
    if not known.has_exchange:
        connection.executescript(load("exchange_setup"))
        known.has_exchange = True
    claimed = _NO_CLAIM if claim is None or terms is None else {**terms.values(now), "limit": claim.limit}
    if not _write(connection, {**_ends(request), **claimed, "now": now, "stamp": known.stamp}):
        return None
    if claim is None or terms is None:
        return LateExchanged({}, Granted([])), None
    # Two workers on one file wait for each other anyway: then one large exchange in flight does better than two small.
    is_shared = known.is_in_company() if claim.limit > AT_ONCE_LIMIT else None
    return LateExchanged({}, _told(connection, terms), is_shared=is_shared), None


def _ends(request: Sorted) -> dict[str, Any]:
    return {
        "plain": request.plain,
        "plain_number": request.plain_number,
        "token": request.token,
        "rich": request.rich,
        "rich_number": request.rich_number,
    }


def _write(connection: sqlite3.Connection, values: dict[str, Any]) -> bool:
    """Whether it was done; if not, nothing was."""
    changes = connection.total_changes
    try:
        connection.execute(_AT_ONCE, values)
    except sqlite3.IntegrityError as exc:
        if exc.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise
        return False
    return connection.total_changes != changes


def _told(connection: sqlite3.Connection, terms: Terms) -> Granted:
    """What was granted, read after the commit from what the statement left on this connection."""
    try:
        number, told, partial = connection.execute(_TOLD).fetchone()
        if not number:
            return Granted([])
        rest = connection.execute(_REST, {"ids": partial}).fetchall() if partial != "[]" else []
    except sqlite3.OperationalError as exc:
        if not is_busy(exc):
            raise
        # Whoever waits for a lock would do it all again, and these jobs would be held by nobody until their leases end.
        raise StoreUnavailable(
            f"The exchange was carried out, but what it granted to {terms.worker} could not be read: {exc}. Repeat the "
            "call, and name what is held."
        ) from exc
    return Granted([], told, rest, terms)
