"""Claim: due jobs granted under a lease; and Exchange, a settle and a claim in one transaction.

Leases that ran out are taken back and jobs that came due are made claimable first. Then each queue's index is walked in
claim order, page by page, the walks are merged, and concurrency limits are applied on the way: no queue is read further
than the claim needs, whatever its backlog. The jobs of each limiter are a list of their own, walked only while it has
room. SQLite's single writer makes the limits exact.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tenure.errors import GateClosed, InternalError, InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import WORKER_ID, WORKER_ID_RULE, JobId
from tenure.model.job import Grant
from tenure.model.outcome import Settled
from tenure.store.contract import SOON_SECONDS, Claim, Exchange, Exchanged
from tenure.store.sqlite import admin, codec, flow, limits, settle, steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit, dump

PROMOTE_LIMIT: Final = 5000
"""Jobs made claimable by one claim. More than a claim may ask for, so that the backlog of due jobs is always caught
up with."""
REAP_LIMIT: Final = 1000
SOON_US: Final = int(SOON_SECONDS * 1_000_000)
PAGE_LEAST: Final = 100
"""Candidates read at once, where the first page was not enough."""

_SQL: Final = load("claim")
_BEFORE_ALL: Final = (-(2**63), -(2**63), "")

_Candidate = list[Any]
"""[rank, run_at, id, rowid, concurrency_key, limiter]; where a list begins, the first three of its first job alone."""
_List = tuple[str | None, _Candidate | None]
"""The jobs of one limiter, None for those without one, and where they begin, None if that was not looked at."""


@frozen
class _Queue:
    """A queue that may be claimed from. `lease`: microseconds."""

    name: str
    starts: bool
    lease: int
    concurrency: int | None
    concurrency_per_key: int | None
    is_limited: bool
    """Whether it has either of the two."""
    closed_kinds: str | None
    """Kinds whose gate is closed, as a JSON array; None if there are none."""


@frozen
class _Claimed:
    grants: list[Grant]
    comes_due: bool
    """A job of any queue comes due soon."""
    taken_back: list[Settled]
    opens_at: int | None = None
    """When the next job that a limiter held back may start, if any was."""


def claim(transaction: Transaction, request: Claim) -> list[Grant]:
    """See store.contract.Claim."""
    return _claim(transaction, request).grants


def _claim(transaction: Transaction, request: Claim) -> _Claimed:
    check_limit(request.limit)
    if not WORKER_ID.fullmatch(request.worker):
        raise InvalidArgument(WORKER_ID_RULE)
    queues = _look(transaction, request)
    comes_due, taken = _make_due(transaction, request.limit)
    again = [] if request.held is None else _again(transaction, request, request.held)
    limit = request.limit - len(again)
    if limit <= 0 or not queues:
        return _Claimed(again, comes_due, taken)
    granted, opens_at = _grant(transaction, request, queues, limit)
    return _Claimed(again + granted, comes_due, taken, opens_at)


def exchange(transaction: Transaction, request: Exchange) -> Exchanged:
    """See store.contract.Exchange: a settle and a claim in one transaction."""
    special = settle.settle_all(transaction, request.outcomes)
    settled = {(answer.job_id, answer.token): answer for answer in special.values()}
    if request.claim is None:
        return Exchanged(settled, [], has_flow_events=transaction.has_flow_events)
    try:
        claimed = _claim(transaction, request.claim)
    except GateClosed as exc:
        if not request.outcomes:
            raise
        return Exchanged(settled, [], exc, transaction.has_flow_events)
    due_in = None
    if len(claimed.grants) < request.claim.limit and (claimed.comes_due or claimed.opens_at is not None):
        due_in = _due_in(transaction, request.claim, claimed)
    return Exchanged(settled, claimed.grants, None, transaction.has_flow_events, due_in, claimed.taken_back)


def _due_in(transaction: Transaction, request: Claim, claimed: _Claimed) -> float | None:
    """In how many seconds the next job of the claimed queues comes due, or may start; None if it is not soon."""
    until = transaction.now + SOON_US
    moments = [] if claimed.opens_at is None or claimed.opens_at > until else [claimed.opens_at]
    if claimed.comes_due:
        values = {"queues": dump(list(request.queues)), "now": transaction.now, "until": until}
        ((due_at,),) = transaction.all(_SQL["next_due"], values)
        moments += [] if due_at is None else [due_at]
    return (min(moments) - transaction.now) / 1_000_000 if moments else None


def _look(transaction: Transaction, request: Claim) -> list[_Queue]:
    """Check every queue that is asked for; answers those that may give something."""
    values = {"queues": dump(list(dict.fromkeys(request.queues))), "worker": request.worker}
    rows = transaction.all(_SQL["look"], values)
    if not rows:
        raise InvalidArgument("queues: a claim must name at least one queue. Nothing was claimed.")
    usable: list[_Queue] = []
    refusals: list[GateClosed] = []
    for asked, name, is_paused, starts, lease, lease_max, limit, key_limit, gate, queue_gate, closed in rows:
        if name is None:
            raise admin.unknown_queue(transaction, asked)
        if gate is not None:
            raise GateClosed(gate, "claiming")
        given = lease if request.lease_seconds is None else _lease(request.lease_seconds, asked, lease_max)
        if queue_gate is not None:
            refusals.append(GateClosed(queue_gate, f"claiming from {name!r}"))
        elif not is_paused:
            closed_kinds = None if closed == "[]" else closed
            usable.append(_Queue(name, bool(starts), given, limit, key_limit, bool(limit or key_limit), closed_kinds))
    if len(refusals) == len(rows):
        raise refusals[0]
    return usable


def _lease(seconds: float, queue: str, lease_max: int) -> int:
    """The lease that a claim asks for, in microseconds."""
    if not 0 < seconds * 1_000_000 <= lease_max:
        raise InvalidArgument(
            f"lease_seconds: queue {queue!r} gives leases of more than 0 and at most {lease_max / 1e6:g} s, "
            f"got {seconds:g}. Nothing was claimed."
        )
    return round(seconds * 1_000_000)


def _make_due(transaction: Transaction, limit: int) -> tuple[bool, list[Settled]]:
    """Take back leases that ran out, and let jobs whose time has come into the claim's index; other workers are woken
    if there are more than this claim takes. Answers whether another one may come due soon, and what was taken back."""
    taken: list[Settled] = []
    ((expires_at, due_at),) = transaction.all(_SQL["first"])
    if expires_at is not None and expires_at <= transaction.now:
        taken = settle.take_back(transaction, REAP_LIMIT)
    if due_at is None or due_at > transaction.now:
        return due_at is not None and due_at <= transaction.now + SOON_US, taken
    values = {"now": transaction.now, "limit": PROMOTE_LIMIT}
    waiting = transaction.all(_SQL["waiting"], values)
    if durable := [row[0] for row in waiting if row[1]]:
        flow.close_due_steps(transaction, durable)
    rows = transaction.all(_SQL["promote"], values)
    if len(rows) > limit:
        transaction.woken.update(row[1] for row in rows)
    transaction.record("woken", (row[0] for row in waiting))
    return True, taken


def _again(transaction: Transaction, request: Claim, held: Sequence[JobId]) -> list[Grant]:
    """Jobs that the worker holds without knowing it, because an earlier reply was lost. `held`: those it knows of."""
    values = {
        "worker": request.worker,
        "now": transaction.now,
        "lease": None if request.lease_seconds is None else round(request.lease_seconds * 1_000_000),
        "held": dump(list(held)),
        "limit": request.limit,
    }
    return _read(transaction, [row[-1] for row in sorted(transaction.all(_SQL["again"], values))])


def _grant(
    transaction: Transaction, request: Claim, queues: Sequence[_Queue], limit: int
) -> tuple[list[Grant], int | None]:
    """Choose jobs and grant them. Answers also when the next job that a limiter held back may start, if any was."""
    names = dump([queue.name for queue in queues])
    ((may_hold_suspect, has_limited),) = transaction.all(_SQL["needs"], {"worker": request.worker, "queues": names})
    limiters = limits.ClaimLimiters(transaction) if may_hold_suspect or has_limited else None
    chosen: list[tuple[_Queue, _Candidate]] = []
    lists: dict[str, list[_List]] = {queue.name: [(None, None)] for queue in queues}
    if may_hold_suspect:
        chosen += _choose(transaction, request, queues, lists, _SQL["pick_suspect"], 1, chosen, limiters)
    if has_limited:
        for queue_name, head in transaction.all(_SQL["limited"], {"queues": names}):
            limiter, *begin = json.loads(head)
            if limiters is None or limiters.has_room(limiter):
                lists[queue_name].append((limiter, begin))
    left = limit - len(chosen)
    chosen += _choose(transaction, request, queues, lists, _SQL["pick"], left, chosen, limiters)
    opens_at = None if limiters is None else limiters.opens_at
    if not chosen:
        return [], opens_at
    if limiters is not None:
        limiters.write()
    # Queues with the same terms are granted by one statement.
    by_terms: dict[tuple[bool, int], list[int]] = {}
    for queue, candidate in chosen:
        by_terms.setdefault((queue.starts, queue.lease), []).append(candidate[3])
    for (starts, lease), rowids in by_terms.items():
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
    grants = _read(transaction, [candidate[3] for _, candidate in chosen])
    if transaction.keeps.events:
        transaction.record("claimed", (grant.id for grant in grants))
        transaction.record("started", (grant.id for grant in grants if grant.started))
    return grants, opens_at


def _choose(
    transaction: Transaction,
    request: Claim,
    queues: Sequence[_Queue],
    lists: Mapping[str, Sequence[_List]],
    pick: str,
    limit: int,
    before: Sequence[tuple[_Queue, _Candidate]],
    limiters: limits.ClaimLimiters | None,
) -> list[tuple[_Queue, _Candidate]]:
    """The first candidates of all queues together. `lists`: the lists that are looked at, by queue. `pick`: the
    statement that reads a page of one list. `before`: candidates that were chosen already and count against the
    limits. `limiters` None: no job that is due has one."""
    budgets = {queue.name: _Budget(transaction, queue) for queue in queues if queue.is_limited}
    for queue, candidate in before:
        if queue.is_limited:
            budgets[queue.name].spend(candidate[4])
    walks = []
    for queue in queues:
        parts = [
            _walk(transaction, request, queue, one, budgets.get(queue.name), pick, limit, limiters)
            for one in lists[queue.name]
        ]
        walks.append(parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_claim_order))
    is_in_order = request.strict or len(walks) == 1
    in_turn = itertools.chain.from_iterable(walks) if is_in_order else heapq.merge(*walks, key=_claim_order)
    chosen: list[tuple[_Queue, _Candidate]] = []
    if limit <= 0:
        return chosen
    for queue, candidate in in_turn:
        if len(candidate) == len(_BEFORE_ALL):
            continue
        budget, limiter = budgets.get(queue.name), candidate[5]
        if limiters is not None and not limiters.has_room(limiter):
            continue
        if budget is not None and not budget.spend(candidate[4]):
            continue
        if limiters is not None:
            limiters.take(limiter)
        chosen.append((queue, candidate))
        if len(chosen) == limit:
            break
    return chosen


def _claim_order(found: tuple[_Queue, _Candidate]) -> tuple[Any, ...]:
    return tuple(found[1][:3])


class _Budget:
    """How many more jobs of one queue may be held, in all and by concurrency key."""

    def __init__(self, transaction: Transaction, queue: _Queue) -> None:
        self._per_key = queue.concurrency_per_key
        self._room = queue.concurrency
        self._held: dict[str | None, int] = dict(transaction.all(_SQL["held_by_key"], {"queue": queue.name}))
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
        if self.is_spent():
            return False
        if key is not None and self._per_key is not None:
            if self._held.get(key, 0) >= self._per_key:
                return False
            self._held[key] = self._held.get(key, 0) + 1
        if self._room is not None:
            self._room -= 1
        return True


def _walk(
    transaction: Transaction,
    request: Claim,
    queue: _Queue,
    jobs: _List,
    budget: _Budget | None,
    pick: str,
    limit: int,
    limiters: limits.ClaimLimiters | None,
) -> Iterator[tuple[_Queue, _Candidate]]:
    """The candidates of one queue and limiter in claim order, as far as their limits go. `budget` None: the queue has
    none. What is taken counts when it is taken, not here: a merge looks one candidate ahead. So the place where the
    list begins comes first, if it is known: a list whose turn does not come is not read at all."""
    limiter, begin = jobs
    if begin is not None:
        yield queue, begin
    affinity = request.affinity
    values: dict[str, Any] = {
        "queue": queue.name,
        "limiter": limiter,
        "kinds": None if request.kinds is None else dump(list(request.kinds)),
        "closed_kinds": queue.closed_kinds,
        "affinity": None if affinity is None else dump([key for key in affinity if key is not None]),
        "affinity_none": affinity is not None and None in affinity,
    }
    after: Sequence[Any] = _BEFORE_ALL
    page = limit
    while (budget is None or not budget.is_spent()) and (limiters is None or limiters.has_room(limiter)):
        full = None if budget is None else budget.full_keys()
        values |= {"rank": after[0], "run_at": after[1], "id": after[2], "limit": page}
        values["full"] = None if full is None else dump(full)
        found = transaction.array(pick, values)
        for candidate in found:
            if (budget is not None and budget.is_spent()) or (limiters is not None and not limiters.has_room(limiter)):
                return
            yield queue, candidate
        if len(found) < page:
            return
        after, page = found[-1], max(limit, PAGE_LEAST)


def _read(transaction: Transaction, rowids: list[int]) -> list[Grant]:
    """The grants of these jobs, in this order."""
    if not rowids:
        return []
    rows = transaction.array(_SQL["granted"], {"rowids": dump(rowids)})
    grants = [
        Grant(
            id=job_id,
            queue=queue,
            kind=kind,
            token=token,
            attempt=attempt,
            max_attempts=max_attempts,
            payload_text=payload,
            lease_until_us=lease_until,
            worker=worker,
            priority=priority,
            crashes=crashes,
            started=state == "running",
            extras=None if extras is None else _extras(extras),
            suspicion=suspicion,
        )
        for (
            job_id, queue, kind, token, attempt, max_attempts, payload, lease_until, worker, priority, crashes,
            state, suspicion, extras, _,
        ) in rows
    ]  # fmt: skip
    if durable := [grant for grant, row in zip(grants, rows, strict=True) if row[-1] is not None]:
        found = steps.granted_steps(transaction, (grant.id for grant in durable))
        for grant in durable:
            grant.steps, grant.has_more_steps = found.get(grant.id, ((), False))
    return grants


def _extras(values: dict[str, Any]) -> dict[str, Any]:
    extras = {name: value for name, value in values.items() if value is not None}
    for name in ("progress", "backoff"):
        if name in extras:
            extras[name] = codec.readable(extras[name])
    return extras
