"""The hand-over: an enqueue grants its job to a worker that waits, in the very transaction that makes it.

Otherwise a job that finds an idle worker costs two commits, one by whoever enqueues and one by the worker, and the
handler waits for both. A worker that sleeps in another process has offered itself (see `offers`). Then the enqueue is
a transaction in which the offer is taken and the job is made as one that was granted to this worker, with one sync.
After that one datagram, the *word*, brings the grant to the worker, which starts the handler.

**It is the worker's claim**, with the same looks at pauses, gates, limits, leases that ran out and jobs that came due.
Where another job may come first, the job is made as ever, the claim carried out, and everybody woken for what is left.

**Only where nothing else is asked for**: a single plain job, as for `enqueue_at_once`, from a process in which nobody
waits for such jobs himself. Without workers beside the file an enqueue pays nothing for all this, and with workers that
are busy one look at a pipe.

**When a part fails:**

- *Nothing to grant*: the enqueue stands, the worker is told that its offer was taken in vain, everybody is woken.
- *The transaction fails*: nothing was done. The worker is told, and asks.
- *Killed after the offer was taken*: the transaction is gone. *Killed after the commit*: the job is held by a worker
  that does not know. Either way the worker finds its offer gone, at its next poll at the latest, and asks the store.
- *The word cannot be sent*, because the worker died just now or does not read: the job is given back at once, its
  attempt refunded, and everybody is woken. Unless the worker has asked for it meanwhile: asking sets the lease anew,
  and then it is the worker's.
- *Giving back fails too*: the job is held until its lease runs out, as if its worker had died with it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from typing import TYPE_CHECKING, Final

from tenure.model import failpoints
from tenure.model.clock import from_us, to_us
from tenure.model.ids import Token
from tenure.model.job import Enqueued, Grant
from tenure.store.contract import Claim, Enqueue
from tenure.store.sqlite import enqueue
from tenure.store.sqlite.claim import claim_at_once, known_terms
from tenure.store.sqlite.ends import End, end
from tenure.store.sqlite.grants import pack
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.offers import NOTHING, UNKNOWN
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction

if TYPE_CHECKING:
    from tenure.store.sqlite.handle import Handle
    from tenure.store.sqlite.offers import Taken
    from tenure.store.sqlite.wake import Hub

_BEGIN: Final = load("begin")
_COMMIT: Final = load("commit")
_ROLLBACK: Final = load("rollback")
_INSERT: Final = load("enqueue_at_once")
_HAND_OVER: Final = load("hand_over")

_log = logging.getLogger(__name__)

Done = tuple[list[Enqueued], str | None]
"""The answers, and the queue to be woken, if any."""


class HandOver:
    """Enqueues by way of the offers of one file. Used by whoever leads only."""

    def __init__(self, hub: Hub, handle: Handle) -> None:
        self._hub = hub
        self._offers = hub.offers
        self._postman = hub.postman
        self._handle = handle

    def enqueue_at_once(self, connection: sqlite3.Connection, known: Known, request: Enqueue, now: int) -> Done | None:
        """The most frequent enqueue by one statement that is its own transaction, or by a hand-over. A job that was
        handed over needs no wake-up. None if nothing was done, and `enqueue.enqueue` has to."""
        values = enqueue.values_at_once(known, request, now)
        if values is None:
            return None
        queue = values[3]
        # Offers are as they were seen when somebody was last to be woken.
        if self._postman.offers and self._hub.only_others_wait(queue):
            name = self._offers.standing(queue)
            if name is not None:
                return self._hand_over(connection, known, values, name)
        if connection.execute(_INSERT, values).rowcount < 1:
            return None
        return [Enqueued(values[0])], queue

    def _hand_over(self, connection: sqlite3.Connection, known: Known, values: Row, name: str) -> Done | None:
        job_id, queue, now = values[0], values[3], values[8]
        taken: Taken | None = None
        connection.execute(_BEGIN)
        try:
            taken = self._offers.take(name, queue)
            is_made, grant = _make(connection, known, values, taken)
            failpoints.point("after_hand_over_before_commit")
            connection.execute(_COMMIT if is_made else _ROLLBACK)
        except BaseException:
            _roll_back(connection)
            self._say(taken, UNKNOWN)  # a commit that failed may have been one
            raise
        if taken is None or grant is None:
            self._say(taken, NOTHING)
            return ([Enqueued(job_id)], queue) if is_made else None
        failpoints.point("after_hand_over_before_word")
        is_told = self._hub.send_word(taken.mailbox, taken.nonce, pack(grant))
        if not is_told:
            self._give_back(connection, known, grant, now)
        return [Enqueued(job_id)], None if is_told and grant.id == job_id else queue

    def _say(self, taken: Taken | None, word: str) -> None:
        """Tell the worker what became of its offer, if not by a grant. Should it not hear, it finds its offer gone."""
        if taken is not None:
            self._hub.send_word(taken.mailbox, taken.nonce, word)

    def _give_back(self, connection: sqlite3.Connection, known: Known, grant: Grant, now: int) -> None:
        """Release what nobody was told of. The enqueue is committed, whatever becomes of this."""
        try:
            self._handle.when_free(lambda: connection.execute(_BEGIN))
            transaction = Transaction(connection, now, known)
            values = {
                "job_id": grant.id,
                "token": grant.token,
                "lease_until": to_us(grant.lease_until),
                "granted_at": now,
            }
            if transaction.one(load("hand_back"), values) is not None:
                why = "An enqueue handed it over to a worker that did not hear of it."
                end(transaction, End(grant.id, grant.token, "release", "shutdown", why))
            connection.execute(_COMMIT)
        except Exception:  # noqa: BLE001 - what the caller asked for was done
            _log.exception("A job that was handed over in vain could not be given back")
            _roll_back(connection)


def _make(connection: sqlite3.Connection, known: Known, values: Row, taken: Taken | None) -> tuple[bool, Grant | None]:
    """Inside the transaction: whether the job was made, and what was granted to the worker."""
    claim, now = (taken.claim, values[8]) if taken is not None and taken.is_good else (None, 0)
    if claim is not None and (grant := _make_granted(connection, known, values, claim)) is not None:
        return True, grant
    if connection.execute(_INSERT, values).rowcount < 1:
        return False, None
    claimed = None if claim is None else claim_at_once(connection, known, claim, now)
    return True, next(iter(claimed[0].finish()), None) if claimed is not None else None


def _make_granted(connection: sqlite3.Connection, known: Known, values: Row, claim: Claim) -> Grant | None:
    """Make the job as one that was granted, if no other comes before it."""
    job_id, payload, kind, queue, _, priority, _, max_attempts, now, _ = values
    queues = tuple(claim.queues)
    if queues not in known.claims:
        known.claims[queues] = connection.execute(load("claim_look"), {"queues": json.dumps(queues)}).fetchall()
    terms = known_terms(known, claim, now)
    if terms is None:
        return None
    granted = terms.values(now)
    more = granted["state"], granted["worker"], granted["lease_until"], granted["started_at"]
    if connection.execute(_HAND_OVER, (*values, *more)).rowcount < 1:
        return None
    until = from_us(terms.lease_until)
    return Grant(
        job_id, queue, kind, Token(1), 1, max_attempts, payload, until, claim.worker, priority, started=terms.started
    )


def _roll_back(connection: sqlite3.Connection) -> None:
    """Should it fail, whoever uses the connection next finds that out."""
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute(_ROLLBACK)
