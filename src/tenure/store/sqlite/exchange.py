"""Exchange: a settle and a claim in one transaction; for a busy worker by one statement.

While the writer carries out an exchange the event loop runs handlers, and both want Python's lock. `sqlite3` lets go of
it during a statement, but comes back only when the loop sleeps or five milliseconds have passed. An exchange of six
statements therefore hardly overlapped with the handlers at all; one statement does all of it, the sync of the disk
included, beside them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, Final

from tenure.errors import GateClosed
from tenure.store.sqlite.claim import AT_ONCE_LIMIT, claim, claim_at_once, known_terms
from tenure.store.sqlite.grants import Granted, LateExchanged, Terms
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.one_statement import NOTHING, Told, carry_out, picked, set_up, tell
from tenure.store.sqlite.settle import Sorted, settle_all
from tenure.store.sqlite.transaction import Transaction

_NO_CLAIM: Final[Mapping[str, Any]] = dict.fromkeys(("queue", "worker", "state", "started_at", "lease_until")) | {
    "limit": 0
}


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
    claim = request.claim
    if claim is not None and not request.outcomes:
        done = claim_at_once(connection, known, claim, now)
        if done is not None:
            return LateExchanged({}, done[0]), None
    asked = values_at_once(known, request, now)
    if asked is None:
        return None
    values, terms = asked
    set_up(connection, known)
    if not carry_out(connection, values):
        return None
    number, rowids = picked(connection)
    told = tell(connection, rowids, terms.worker, now) if number and terms is not None else NOTHING
    is_large = claim is not None and claim.limit > AT_ONCE_LIMIT
    return answer_with(terms, told, is_shared=known.is_in_company() if is_large else None), None


def values_at_once(known: Known, request: Sorted, now: int) -> tuple[dict[str, Any], Terms | None] | None:
    """What exchange_at_once.sql is given, and the terms of what it grants. None if it is no such exchange. The stamp is
    read before what was read under it."""
    stamp = known.stamp
    if request.others or stamp is None or known.wants_events is not False:
        return None
    claim, terms = request.claim, None
    claimed: Mapping[str, Any] = _NO_CLAIM
    if claim is not None:
        terms = known_terms(known, claim, now)
        if terms is None:
            return None
        claimed = {**terms.values(now), "limit": claim.limit}
    return {
        "plain": request.plain,
        "plain_number": request.plain_number,
        "token": request.token,
        "rich": request.rich,
        "rich_number": request.rich_number,
        **claimed,
        "now": now,
        "stamp": stamp,
    }, terms


def answer_with(terms: Terms | None, told: Told, *, is_shared: bool | None) -> LateExchanged:
    """The answer to an exchange that was carried out, with what was told of its grants.

    `is_shared`: two workers on one file wait for each other anyway, and then one large exchange in flight does better
    than two small.
    """
    number, text, rest = told
    granted = Granted([], text, rest, terms) if number else Granted([])
    return LateExchanged({}, granted, is_shared=is_shared)
