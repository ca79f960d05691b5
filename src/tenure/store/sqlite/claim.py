"""Claim: due jobs granted under a lease.

Happy path, one queue without limits: one statement that looks whether anything expired or came due, and whether what is
known of policies and gates still holds (see `known`), one that picks and one that grants; for a few jobs, all of it in
one statement. What was picked comes back as one value, because each row costs a change of Python's lock, which the
event loop wants at the same time; it is taken apart after the commit (see `grants`). Several queues, filters and
concurrency limits are served by walking each queue's index in claim order and merging the walks: no queue is read
further than the claim needs, whatever its backlog. SQLite's single writer makes the limits exact.
"""

from __future__ import annotations

import heapq
import itertools
import json
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Final

from tenure.errors import GateClosed, InternalError, InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import Grant
from tenure.store.contract import Claim
from tenure.store.sqlite import expire, policies
from tenure.store.sqlite.grants import EXTRA_NAMES, Granted, Terms, in_order, make
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit

PROMOTE_LIMIT: Final = 5000
"""Jobs made claimable by one claim. More than a claim may ask for, so that one that waits long is never behind."""
REAP_LIMIT: Final = 1000

AT_ONCE_LIMIT: Final = 50
"""Jobs that are claimed by a single statement, a row each. More are handed over as one value."""

BACKLOG_JOBS: Final = 2000

_AT_ONCE: Final = load("claim_at_once")
_BACKLOG: Final = load("backlog")
_IN_VAIN: Final = load("claim_in_vain")
_FIRST: Final = load("claim_first")
_PICK: Final = load("claim_pick")
_CLAIM: Final = load("claim")
_NO_LIMITS: Final = [None] * 4
"""No limit and no closed gate in a row of claim_look.sql."""
_NO_EXTRAS: Final = (None,) * len(EXTRA_NAMES)


@frozen
class _Queue:
    """A queue that may be claimed from. `lease`: microseconds."""

    name: str
    starts: bool
    lease: int
    concurrency: int | None
    concurrency_per_key: int | None


def claim(transaction: Transaction, request: Claim) -> Granted:
    """See store.base.Claim."""
    check_limit(request.limit)
    queues = _look(transaction, request)
    again: list[Grant] = []
    if request.held is not None:
        again = _again(transaction, request, request.held)
    if len(again) < request.limit and queues:
        granted = _grant(transaction, request, queues, request.limit - len(again))
        granted.ready[:0] = again
        return granted
    return Granted(again)


def claim_at_once(
    connection: sqlite3.Connection, known: Known, request: Claim, now: int
) -> tuple[Granted, str | None] | None:
    """A few jobs from one queue without limits, by one statement that is its own transaction; see enqueue_at_once."""
    if not 0 < request.limit <= AT_ONCE_LIMIT or known.wants_events is not False:
        return None
    terms = known_terms(known, request, now)
    if terms is None:
        return None
    values = {**terms.values(now), "limit": request.limit, "stamp": known.stamp, "now": now}
    rows = connection.execute(_AT_ONCE, values).fetchall()
    if not rows:
        values = {"queue": terms.queue, "stamp": known.stamp, "now": now}
        is_vain = connection.execute(_IN_VAIN, values).fetchone() is not None
        return (Granted([]), None) if is_vain else None
    rows.sort(key=in_order)
    rest = [(row[2], row[9], *row[10:]) for row in rows if row[10:] != _NO_EXTRAS]
    return Granted(make((row[:10] for row in rows), rest, terms)), None


def has_backlog(transaction: Transaction, queues: Sequence[str]) -> bool:
    """Whether any of the queues holds more jobs than a worker has in its hands at a time."""
    return any(transaction.one(_BACKLOG, (queue, BACKLOG_JOBS)) is not None for queue in queues)


def known_terms(known: Known, request: Claim, now: int) -> Terms | None:
    """The terms of a claim from one queue, if they are known, and it is open and has no limits and the claim no
    wishes. For statements that tell what they have granted."""
    rows = known.claims.get(tuple(request.queues), ())
    if len(rows) != 1 or request.held is not None or request.kinds is not None or request.affinity is not None:
        return None
    asked, name, is_paused, starts, default, longest, *limits = rows[0]
    if name is None or is_paused or limits != _NO_LIMITS or request.limit < 0:
        return None
    try:
        lease = _lease(request, asked, default, longest)
    except InvalidArgument:  # by a policy that may have changed
        return None
    return Terms(name, request.worker, bool(starts), now + lease, is_new=False)


def _look(transaction: Transaction, request: Claim) -> list[_Queue]:
    """Check every queue, take back and promote what is due, and answer those queues that may give something."""
    asked = tuple(dict.fromkeys(request.queues))
    expires_at, due_at, stamp = transaction.one(_FIRST) or (None, None, None)
    transaction.check(stamp)
    usable: list[_Queue] = []
    refusal: GateClosed | None = None
    is_refused = True
    for queue, name, is_paused, starts, default, longest, limit, key_limit, gate, queue_gate in _policies(
        transaction, asked
    ):
        if name is None:
            raise policies.unknown(transaction, queue)
        if gate is not None:
            raise GateClosed(gate, "claiming")
        lease = _lease(request, queue, default, longest)
        if queue_gate is not None:
            refusal = refusal or GateClosed(queue_gate, f"claiming from {name!r}")
            continue
        is_refused = False
        if not is_paused:
            usable.append(_Queue(name, bool(starts), lease, limit, key_limit))
    if refusal is not None and is_refused:
        raise refusal
    if expires_at is not None and expires_at <= transaction.now:
        expire.take_back(transaction, REAP_LIMIT)
    if due_at is not None and due_at <= transaction.now:
        promote(transaction, request.limit)
    return usable


def _policies(transaction: Transaction, queues: tuple[str, ...]) -> list[Row]:
    known = transaction.known.claims
    rows = known.get(queues)
    if rows is None:
        rows = known[queues] = transaction.all(load("claim_look"), {"queues": json.dumps(queues)})
    if not rows:
        raise InvalidArgument("queues: a claim must name at least one queue. Nothing was claimed.")
    return rows


def promote(transaction: Transaction, limit: int) -> None:
    """Let jobs whose time has come into the claim's index; others are woken if there are more than this claim takes."""
    values = {"now": transaction.now, "limit": PROMOTE_LIMIT}
    waiting = [row[0] for row in transaction.all(load("claim_waiting"), values)]
    rows = transaction.all(load("claim_promote"), values)
    if len(rows) > limit:
        transaction.woken.update(row[1] for row in rows)
    transaction.record("woken", waiting)


def _lease(request: Claim, queue: str, lease: int, lease_max: int) -> int:
    if request.lease_seconds is None:
        return lease
    asked = round(request.lease_seconds * 1_000_000)
    if not 0 < asked <= lease_max:
        raise InvalidArgument(
            f"lease_seconds: queue {queue!r} gives leases of more than 0 and at most {lease_max / 1e6:g} s, "
            f"got {request.lease_seconds:g}. Nothing was claimed."
        )
    return asked


def _again(transaction: Transaction, request: Claim, held: Sequence[JobId]) -> list[Grant]:
    lease = None if request.lease_seconds is None else round(request.lease_seconds * 1_000_000)
    rows = transaction.all(
        load("claim_again"),
        {
            "worker": request.worker,
            "now": transaction.now,
            "lease": lease,
            "held": json.dumps(list(held)),
            "limit": request.limit,
        },
    )
    found: list[tuple[Row, Grant]] = []
    for rowid, state, lease_until in rows:
        for queue, told in _read(transaction, [rowid]).items():
            terms = Terms(queue, request.worker, state == "running", lease_until, is_new=False)
            found += zip(told, make(told, _rest(transaction, told), terms), strict=True)
    found.sort(key=lambda pair: in_order(pair[0]))
    return [grant for _, grant in found]


def _grant(transaction: Transaction, request: Claim, queues: Sequence[_Queue], limit: int) -> Granted:
    first = queues[0]
    is_plain = request.kinds is None and request.affinity is None
    if len(queues) == 1 and is_plain and first.concurrency is None and first.concurrency_per_key is None:
        granted = _grant_first(transaction, request, first, limit)
    else:
        granted = Granted(_grant_chosen(transaction, request, queues, limit))
    if transaction.wants_events:
        granted = Granted(granted.finish())
        transaction.record("claimed", (grant.id for grant in granted.ready))
        transaction.record("started", (grant.id for grant in granted.ready if grant.started))
    return granted


def _grant_first(transaction: Transaction, request: Claim, queue: _Queue, limit: int) -> Granted:
    picked = transaction.one(_PICK, {"queue": queue.name, "limit": limit})
    assert picked is not None
    number, rowids, told, partial = picked
    if not number:
        return Granted([])
    rest = transaction.all(load("claim_rest"), {"ids": partial}) if partial != "[]" else []
    _write(transaction, request, queue, rowids, number)
    return Granted([], told, rest, _terms(transaction, request, queue))


def _grant_chosen(transaction: Transaction, request: Claim, queues: Sequence[_Queue], limit: int) -> list[Grant]:
    cursors = [_cursor(transaction, request, queue) for queue in queues]
    walks = [_within_limits(transaction, queue, cursor) for queue, cursor in zip(queues, cursors, strict=True)]
    try:
        in_turn = itertools.chain.from_iterable(walks) if request.strict else heapq.merge(*walks, key=in_order)
        chosen = list(itertools.islice(in_turn, limit))  # read only as far as they are taken
    finally:
        for walk in walks:
            walk.close()
        for cursor in cursors:  # an unfinished one would keep the snapshot open beyond the commit
            cursor.close()
    by_queue: dict[str, list[int]] = {}
    for row in chosen:
        by_queue.setdefault(row[4], []).append(row[3])
    # Queues with the same terms are granted by one statement.
    terms: dict[tuple[bool, int], tuple[_Queue, list[int]]] = {}
    for queue in queues:
        if queue.name in by_queue:
            terms.setdefault((queue.starts, queue.lease), (queue, []))[1].extend(by_queue[queue.name])
    grants: dict[str, Grant] = {}
    for queue, rowids in terms.values():
        told = _read(transaction, rowids)
        rest = {name: _rest(transaction, rows) for name, rows in told.items()}
        _write(transaction, request, queue, json.dumps(rowids), len(rowids))
        for name, rows in told.items():
            made = make(rows, rest[name], replace(_terms(transaction, request, queue), queue=name))
            grants.update((grant.id, grant) for grant in made)
    return [grants[row[2]] for row in chosen]


def _read(transaction: Transaction, rowids: Sequence[int]) -> dict[str, list[Row]]:
    """What claim_read.sql tells of jobs, by their queue."""
    told: dict[str, list[Row]] = {}
    for *row, queue in transaction.all(load("claim_read"), {"rowids": json.dumps(rowids)}):
        told.setdefault(queue, []).append(tuple(row))
    return told


def _rest(transaction: Transaction, rows: Iterable[Row]) -> list[Row]:
    return transaction.all(load("claim_rest"), {"ids": json.dumps([row[2] for row in rows])})


def _write(transaction: Transaction, request: Claim, queue: _Queue, rowids: str, number: int) -> None:
    """Grant the jobs of these rowids (a JSON array)."""
    values = {**_terms(transaction, request, queue).values(transaction.now), "rowids": rowids, "now": transaction.now}
    granted = transaction.run(_CLAIM, values).rowcount
    if granted != number:
        raise InternalError(f"A claim picked {number} jobs and could grant {granted}. Nothing was claimed.")


def _terms(transaction: Transaction, request: Claim, queue: _Queue) -> Terms:
    return Terms(queue.name, request.worker, queue.starts, transaction.now + queue.lease)


def _cursor(transaction: Transaction, request: Claim, queue: _Queue) -> sqlite3.Cursor:
    """One queue's candidates in claim order."""
    if request.kinds is None and request.affinity is None and queue.concurrency_per_key is None:
        return transaction.run(load("claim_candidates"), {"queue": queue.name})
    affinity = request.affinity
    return transaction.run(
        load("claim_candidates_filtered"),
        {
            "queue": queue.name,
            "kinds": None if request.kinds is None else json.dumps(list(request.kinds)),
            "affinity": None if affinity is None else json.dumps([key for key in affinity if key is not None]),
            "affinity_none": affinity is not None and None in affinity,
        },
    )


def _within_limits(transaction: Transaction, queue: _Queue, walk: Iterable[Row]) -> Generator[Row, None, None]:
    """One queue's candidates, as far as its limits go."""
    if queue.concurrency is None and queue.concurrency_per_key is None:
        yield from walk
        return
    held: dict[str | None, int] = dict(transaction.all(load("claim_held"), {"queue": queue.name}))
    room = None if queue.concurrency is None else queue.concurrency - sum(held.values())
    for row in walk:
        if room is not None and room <= 0:
            return
        key = row[5]
        if key is not None and queue.concurrency_per_key is not None:
            if held.get(key, 0) >= queue.concurrency_per_key:
                continue
            held[key] = held.get(key, 0) + 1
        if room is not None:
            room -= 1
        yield row
