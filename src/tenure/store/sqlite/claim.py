"""Claim: due jobs granted under a lease; and Exchange, a settle and a claim in one transaction.

Leases that ran out are taken back and jobs that came due are made claimable first. Then each queue's index is walked in
claim order, page by page, the walks are merged, and concurrency limits are applied on the way: no queue is read further
than the claim needs, whatever its backlog. SQLite's single writer makes the limits exact.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tenure.errors import GateClosed, InternalError, InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.job import Grant
from tenure.store.contract import Claim, Exchange, Exchanged
from tenure.store.sqlite import admin, codec, settle
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit, dump

PROMOTE_LIMIT: Final = 5000
"""Jobs made claimable by one claim. More than a claim may ask for, so that the backlog of due jobs is always caught
up with."""
REAP_LIMIT: Final = 1000
PAGE_LEAST: Final = 100
"""Candidates read at once, where the first page was not enough."""

_SQL: Final = load("claim")
_BEFORE_ALL: Final = (-(2**63), -(2**63), "")

_Candidate = list[Any]
"""[rank, run_at, id, rowid, concurrency_key]."""


@frozen
class _Queue:
    """A queue that may be claimed from. `lease`: microseconds."""

    name: str
    starts: bool
    lease: int
    concurrency: int | None
    concurrency_per_key: int | None


def claim(transaction: Transaction, request: Claim) -> list[Grant]:
    """See store.contract.Claim."""
    check_limit(request.limit)
    if not request.worker.strip():
        raise InvalidArgument("worker: a claim must name its worker, and the name is blank. Nothing was claimed.")
    queues = _look(transaction, request)
    _make_due(transaction, request.limit)
    again = _again(transaction, request)
    limit = request.limit - len(again)
    if limit <= 0 or not queues:
        return again
    return again + _grant(transaction, request, queues, limit)


def exchange(transaction: Transaction, request: Exchange) -> Exchanged:
    """See store.contract.Exchange: a settle and a claim in one transaction."""
    special = settle.settle_all(transaction, request.outcomes)
    settled = {(answer.job_id, answer.token): answer for answer in special.values()}
    if request.claim is None:
        return Exchanged(settled, [])
    try:
        return Exchanged(settled, claim(transaction, request.claim))
    except GateClosed as exc:
        if not request.outcomes:
            raise
        return Exchanged(settled, [], exc)


def _look(transaction: Transaction, request: Claim) -> list[_Queue]:
    """Check every queue that is asked for; answers those that may give something."""
    rows = transaction.all(_SQL["look"], {"queues": dump(list(dict.fromkeys(request.queues)))})
    if not rows:
        raise InvalidArgument("queues: a claim must name at least one queue. Nothing was claimed.")
    usable: list[_Queue] = []
    refusals: list[GateClosed] = []
    for asked, name, is_paused, starts, lease, lease_max, limit, key_limit, gate, queue_gate in rows:
        if name is None:
            raise admin.unknown_queue(transaction, asked)
        if gate is not None:
            raise GateClosed(gate, "claiming")
        given = _lease(request, asked, lease, lease_max)
        if queue_gate is not None:
            refusals.append(GateClosed(queue_gate, f"claiming from {name!r}"))
        elif not is_paused:
            usable.append(_Queue(name, bool(starts), given, limit, key_limit))
    if len(refusals) == len(rows):
        raise refusals[0]
    return usable


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


def _make_due(transaction: Transaction, limit: int) -> None:
    """Take back leases that ran out, and let jobs whose time has come into the claim's index; other workers are woken
    if there are more than this claim takes."""
    expires_at, due_at = transaction.one(_SQL["first"]) or (None, None)
    if expires_at is not None and expires_at <= transaction.now:
        settle.take_back(transaction, REAP_LIMIT)
    if due_at is None or due_at > transaction.now:
        return
    values = {"now": transaction.now, "limit": PROMOTE_LIMIT}
    waiting = [row[0] for row in transaction.all(_SQL["waiting"], values)]
    rows = transaction.all(_SQL["promote"], values)
    if len(rows) > limit:
        transaction.woken.update(row[1] for row in rows)
    transaction.record("woken", waiting)


def _again(transaction: Transaction, request: Claim) -> list[Grant]:
    """Jobs that the worker holds without knowing it, because an earlier reply was lost."""
    if request.held is None:
        return []
    values = {
        "worker": request.worker,
        "now": transaction.now,
        "lease": None if request.lease_seconds is None else round(request.lease_seconds * 1_000_000),
        "held": dump(list(request.held)),
        "limit": request.limit,
    }
    return _read(transaction, [row[0] for row in transaction.all(_SQL["again"], values)])


def _grant(transaction: Transaction, request: Claim, queues: Sequence[_Queue], limit: int) -> list[Grant]:
    chosen: list[tuple[_Queue, _Candidate]] = []
    may_hold_suspect = transaction.one(_SQL["may_hold_suspect"], {"worker": request.worker})
    if may_hold_suspect is not None and may_hold_suspect[0]:
        chosen += _choose(transaction, request, queues, _SQL["pick_suspect"], 1, chosen)
    chosen += _choose(transaction, request, queues, _SQL["pick"], limit - len(chosen), chosen)
    if not chosen:
        return []
    # Queues with the same terms are granted by one statement.
    by_terms: dict[tuple[bool, int], list[int]] = {}
    for queue, candidate in chosen:
        by_terms.setdefault((queue.starts, queue.lease), []).append(candidate[3])
    for (starts, lease), rowids in by_terms.items():
        _write(transaction, request, rowids, starts, lease)
    grants = _read(transaction, [candidate[3] for _, candidate in chosen])
    order = {candidate[2]: place for place, (_, candidate) in enumerate(chosen)}
    grants.sort(key=lambda grant: order[grant.id])
    if transaction.wants_events:
        transaction.record("claimed", (grant.id for grant in grants))
        transaction.record("started", (grant.id for grant in grants if grant.started))
    return grants


def _choose(
    transaction: Transaction,
    request: Claim,
    queues: Sequence[_Queue],
    pick: str,
    limit: int,
    before: Sequence[tuple[_Queue, _Candidate]],
) -> list[tuple[_Queue, _Candidate]]:
    """The first candidates of all queues together. `pick`: the statement that reads a page of one queue's. `before`:
    candidates that were chosen already and count against the limits."""
    budgets = {queue.name: _Budget(transaction, queue) for queue in queues}
    for queue, candidate in before:
        budgets[queue.name].spend(candidate[4])
    walks = [_walk(transaction, request, queue, budgets[queue.name], pick, limit) for queue in queues]
    in_turn = itertools.chain.from_iterable(walks) if request.strict else heapq.merge(*walks, key=_claim_order)
    return list(itertools.islice(in_turn, limit))


def _claim_order(found: tuple[_Queue, _Candidate]) -> tuple[Any, ...]:
    return tuple(found[1][:3])


class _Budget:
    """How many more jobs of one queue may be held, in all and by concurrency key."""

    def __init__(self, transaction: Transaction, queue: _Queue) -> None:
        self._per_key = queue.concurrency_per_key
        self._room = queue.concurrency
        self._held: dict[str | None, int] = {}
        if self._per_key is not None or self._room is not None:
            self._held = dict(transaction.all(_SQL["held_by_key"], {"queue": queue.name}))
        if self._room is not None:
            self._room -= sum(self._held.values())

    def is_spent(self) -> bool:
        return self._room is not None and self._room <= 0

    def full_keys(self) -> list[str] | None:
        """Concurrency keys that are used up; None if keys have no limit."""
        if self._per_key is None:
            return None
        return [key for key, held in self._held.items() if key is not None and held >= self._per_key]

    def spend(self, key: str | None) -> bool:
        """Whether one more job with this key may be held; it then counts."""
        if key is not None and self._per_key is not None:
            if self._held.get(key, 0) >= self._per_key:
                return False
            self._held[key] = self._held.get(key, 0) + 1
        if self._room is not None:
            self._room -= 1
        return True


def _walk(
    transaction: Transaction, request: Claim, queue: _Queue, budget: _Budget, pick: str, limit: int
) -> Iterator[tuple[_Queue, _Candidate]]:
    """One queue's candidates in claim order, as far as its limits go."""
    affinity = request.affinity
    values: dict[str, Any] = {
        "queue": queue.name,
        "kinds": None if request.kinds is None else dump(list(request.kinds)),
        "affinity": None if affinity is None else dump([key for key in affinity if key is not None]),
        "affinity_none": affinity is not None and None in affinity,
    }
    after: Sequence[Any] = _BEFORE_ALL
    page = limit
    while not budget.is_spent():
        full = budget.full_keys()
        values |= {"rank": after[0], "run_at": after[1], "id": after[2], "limit": page}
        values["full"] = None if full is None else dump(full)
        found = transaction.array(pick, values)
        for candidate in found:
            if budget.is_spent():
                return
            if budget.spend(candidate[4]):
                yield queue, candidate
        if len(found) < page:
            return
        after, page = found[-1], max(limit, PAGE_LEAST)


def _write(transaction: Transaction, request: Claim, rowids: list[int], starts: bool, lease: int) -> None:
    values = {
        "state": "running" if starts else "leased",
        "worker": request.worker,
        "lease_until": transaction.now + lease,
        "started_at": transaction.now if starts else None,
        "now": transaction.now,
        "rowids": dump(rowids),
    }
    granted = transaction.run(_SQL["grant"], values).rowcount
    if granted != len(rowids):
        raise InternalError(f"A claim picked {len(rowids)} jobs and could grant {granted}. Nothing was claimed.")


def _read(transaction: Transaction, rowids: list[int]) -> list[Grant]:
    if not rowids:
        return []
    rows = transaction.array(_SQL["granted"], {"rowids": dump(rowids)})
    rows.sort(key=lambda row: row[:3])
    return [codec.grant(row[2:]) for row in rows]
