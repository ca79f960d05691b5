"""Claim: due jobs granted under a lease.

Happy path, one queue without limits: one statement that looks whether anything expired or came due, and one that
grants; policies and gates are known (see `known`). Several queues, filters and concurrency limits are served by
walking each queue's index in claim order and merging the walks: no queue is read further than the claim needs,
whatever its backlog. SQLite's single writer makes the limits exact.
"""

from __future__ import annotations

import heapq
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from tenure.errors import GateClosed, InvalidArgument
from tenure.model.clock import from_us
from tenure.model.ids import JobId
from tenure.model.job import NEW_JOB_EXTRAS, Grant
from tenure.store.base import Claim
from tenure.store.sqlite import expire, policies
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit

PROMOTE_LIMIT: Final = 5000
"""Jobs made claimable by one claim. More than a claim may ask for, so that one that waits long is never behind."""
REAP_LIMIT: Final = 1000

_FIRST: Final = load("claim_first")
_CLAIM: Final = load("claim")
_in_order = itemgetter(0, 1, 2)
_EXTRA_NAMES: Final = ("key", "progress", *NEW_JOB_EXTRAS)
_NO_EXTRAS: Final = (None,) * len(_EXTRA_NAMES)


@dataclass(frozen=True, slots=True)
class _Queue:
    """A queue that may be claimed from. `lease`: microseconds."""

    name: str
    starts: bool
    lease: int
    concurrency: int | None
    concurrency_per_key: int | None


def claim(transaction: Transaction, request: Claim) -> list[Grant]:
    """See store.base.Claim."""
    check_limit(request.limit)
    queues = _look(transaction, request)
    grants: list[Grant] = []
    if request.held is not None:
        grants = _again(transaction, request, request.held)
    if len(grants) < request.limit and queues:
        grants += _grant(transaction, request, queues, request.limit - len(grants))
    return grants


def _look(transaction: Transaction, request: Claim) -> list[_Queue]:
    """Check every queue, take back and promote what is due, and answer those queues that may give something."""
    asked = tuple(dict.fromkeys(request.queues))
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
    expires_at, due_at = transaction.one(_FIRST) or (None, None)
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
    rows.sort(key=_in_order)
    return [grant for row in rows for grant in _grants([row[:-1]], request.worker, row[-1])]


def _grant(transaction: Transaction, request: Claim, queues: Sequence[_Queue], limit: int) -> list[Grant]:
    first = queues[0]
    is_plain = request.kinds is None and request.affinity is None
    if len(queues) == 1 and is_plain and first.concurrency is None and first.concurrency_per_key is None:
        rows = transaction.all(
            _CLAIM, {**_lease_values(transaction, request, first), "queue": first.name, "limit": limit}
        )
        rows.sort(key=_in_order)
        grants = _grants(rows, request.worker, transaction.now + first.lease)
    else:
        grants = _grant_chosen(transaction, request, queues, limit)
    if grants:
        ids = [grant.id for grant in grants]
        transaction.record("claimed", ids)
        transaction.record("started", (grant.id for grant in grants if grant.started))
    return grants


def _grant_chosen(transaction: Transaction, request: Claim, queues: Sequence[_Queue], limit: int) -> list[Grant]:
    cursors = [_cursor(transaction, request, queue) for queue in queues]
    try:
        chosen = list(itertools.islice(_choose(transaction, request, queues, cursors), limit))
    finally:
        for cursor in cursors:  # an unfinished walk would keep the snapshot open beyond the commit
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
        rows = transaction.all(
            load("claim_chosen"), {**_lease_values(transaction, request, queue), "rowids": json.dumps(rowids)}
        )
        grants.update((grant.id, grant) for grant in _grants(rows, request.worker, transaction.now + queue.lease))
    return [grants[row[2]] for row in chosen]


def _lease_values(transaction: Transaction, request: Claim, queue: _Queue) -> dict[str, Any]:
    return {
        "worker": request.worker,
        "now": transaction.now,
        "state": "running" if queue.starts else "leased",
        "started_at": transaction.now if queue.starts else None,
        "lease_until": transaction.now + queue.lease,
    }


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


def _choose(
    transaction: Transaction, request: Claim, queues: Sequence[_Queue], cursors: Sequence[Iterable[Row]]
) -> Iterator[Row]:
    """Candidates in the order in which they are to be granted, read only as far as they are taken."""
    walks = [_within_limits(transaction, queue, cursor) for queue, cursor in zip(queues, cursors, strict=True)]
    return itertools.chain.from_iterable(walks) if request.strict else heapq.merge(*walks, key=_in_order)


def _within_limits(transaction: Transaction, queue: _Queue, walk: Iterable[Row]) -> Iterator[Row]:
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


def _grants(rows: Iterable[Row], worker: Any, lease_until: int) -> list[Grant]:
    until = from_us(lease_until)
    grants = []
    for row in rows:
        _, run_at, job_id, queue, kind, token, attempt, most, payload, priority, crashes, state, created_at = row[:13]
        extras: dict[str, Any] = {"created_at": from_us(created_at), "run_at": from_us(run_at)}
        if row[13:] != _NO_EXTRAS:
            _add_extras(extras, row[13:])
        started = state == "running"
        grants.append(
            Grant(
                job_id, queue, kind, token, attempt, most, payload, until, worker, priority, crashes, started, extras,
            )
        )  # fmt: skip
    return grants


def _add_extras(extras: dict[str, Any], values: Row) -> None:
    extras.update((name, value) for name, value in zip(_EXTRA_NAMES, values, strict=True) if value is not None)
    for name in ("progress", "backoff"):
        if name in extras:
            extras[name] = json.loads(extras[name])
