"""Durable flow: conditions, who is woken by them, the ends of children, signals. `store.flow` is the specification.

One writer at a time: what makes a condition true looks at once who waits for it, and a job that parks looks at once
whether its conditions are met. Only what is too much for one transaction is left to SweepFlow, as an event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tenure.errors import IllegalMove, NotFound
from tenure.model.ids import JobId
from tenure.model.state import TERMINAL, State
from tenure.model.step import NewStep
from tenure.store.contract import Wake
from tenure.store.flow import Sent, Signal, check_signal
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, dump

WAKE_LIMIT: Final = 1000
"""Jobs that one transaction wakes by one condition."""

NEVER: Final = 253_402_300_799_999_999
"""The last moment of the year 9999, where PostgreSQL says 'infinity'."""

_SQL: Final = load("flow")
_GROUPS: Final = load("groups")
_APPROVALS: Final = load("approvals")


def wake(transaction: Transaction, request: Wake) -> list[JobId]:
    """See store.contract.Wake."""
    ids = list(request.job_ids)
    if ids:
        transaction.run(_SQL["wake_held"], {"ids": dump(ids)})
    if request.waiting_for is not None:
        ids += [row[0] for row in transaction.all(_SQL["waiting_for"], (request.waiting_for,))]
    return queue_waiting(transaction, ids)


def close_due_steps(transaction: Transaction, ids: Sequence[str]) -> None:
    """Close the open steps of these jobs whose time has come."""
    transaction.run(_SQL["steps_close_due"], {"ids": dump(list(ids)), "now": transaction.now})


def wake_on(transaction: Transaction, awaits: str, limit: int = WAKE_LIMIT) -> int:
    """A condition may be met: wake those who wait for it. Answers how many."""
    waiters = transaction.all(_SQL["waiters"], {"awaits": awaits, "limit": limit})
    woken = close_met(transaction, ((job_id, key, awaits) for job_id, key in waiters))
    if woken and len(waiters) == limit:
        put_event(transaction, "look", awaits)
    return len(queue_waiting(transaction, woken))


def wake_one(transaction: Transaction, job_id: JobId, awaits: str) -> None:
    """A condition may be met for this job alone."""
    waits = transaction.all(_SQL["waits_of"], {"awaits": awaits, "job_id": job_id})
    queue_waiting(transaction, close_met(transaction, ((job_id, key, awaits) for (key,) in waits)))


def close_met(transaction: Transaction, waits: Iterable[tuple[JobId, str, str]]) -> list[JobId]:
    """Close those of these steps (job, key, condition) whose condition is met. Answers the jobs that may go on.

    One signal ends a wait: what came for another step of the same job stays for its next wait.
    """
    met: dict[JobId, None] = {}
    for job_id, key, awaits in waits:
        is_enough = job_id in met and awaits.startswith("signal:")
        if not is_enough and close_if_met(transaction, job_id, key, awaits):
            met[job_id] = None
    return list(met)


def queue_waiting(transaction: Transaction, ids: Sequence[str]) -> list[JobId]:
    """Of these jobs those that wait are queued, with the place they had before; which."""
    if not ids:
        return []
    rows = transaction.all(_SQL["queue_waiting"], {"ids": dump(list(ids)), "now": transaction.now})
    transaction.woken.update(row[1] for row in rows)
    woken = sorted(JobId(row[0]) for row in rows)
    transaction.record("woken", woken)
    return woken


def put_event(
    transaction: Transaction,
    what: str,
    awaits: str | None = None,
    *,
    group_id: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Leave work for SweepFlow."""
    told = None if detail is None else json.dumps(detail)
    values = {"what": what, "awaits": awaits, "group_id": group_id, "detail": told}
    transaction.run(_SQL["event_put"], values)
    transaction.has_flow_events = True


def close_if_met(transaction: Transaction, job_id: JobId, key: str, awaits: str) -> bool:
    """Whether a step's condition is met; it is closed then."""
    kind, _, name = awaits.partition(":")
    found = CONDITIONS[kind](transaction, job_id, name) if kind in CONDITIONS else None
    if found is None:
        return False
    state, value = found
    values = {"job_id": job_id, "key": key, "state": state, "value": value, "now": transaction.now}
    transaction.run(_SQL["step_close"], values)
    return True


def _signal_condition(transaction: Transaction, job_id: JobId, key: str) -> tuple[str, str | None] | None:
    row = transaction.one(_SQL["signal_oldest"], {"key": key, "job_id": job_id, "now": transaction.now})
    if row is None:
        return None
    if row[1] == "queue":
        transaction.run(_SQL["signal_take"], {"id": row[0], "job_id": job_id})
    return "done", row[2]


def _group_condition(transaction: Transaction, _: JobId, group_id: str) -> tuple[str, str | None] | None:
    row = transaction.one(_GROUPS["group"], (group_id,))
    if row is None or row[3] == "open":
        return None
    total, ended, failed, cancelled = row[4], row[6], row[7], row[8]
    value = f'{{"group":"{group_id}","total":{total},"ended":{ended},"failed":{failed},"cancelled":{cancelled}}}'
    return row[3], value


def _job_condition(transaction: Transaction, _: JobId, job_id: str) -> tuple[str, str | None] | None:
    return None if transaction.one(_SQL["is_open"], (job_id,)) is not None else ("done", None)


def watch_job(transaction: Transaction, job_id: str) -> None:
    """Let the end of a job tell those who wait for it."""
    transaction.run(_SQL["watch_job"], (job_id,))


def _approval_condition(transaction: Transaction, _: JobId, approval_id: str) -> tuple[str, str | None] | None:
    row = transaction.one(_APPROVALS["end_of"], (approval_id,))
    if row is None:
        return None
    state, args, args_hash, why, by, note = row
    told = {"approval": approval_id, "state": state, "granted": state in ("granted", "used"), "why": why}
    return "done", dump({**told, "by": json.loads(by), "note": note, "args": args, "args_hash": args_hash})


CONDITIONS: Final[dict[str, Callable[[Transaction, JobId, str], tuple[str, str | None] | None]]] = {
    "signal": _signal_condition,
    "group": _group_condition,
    "job": _job_condition,
    "approval": _approval_condition,
}
"""By the first word of a condition: the state and value with which a step ends whose condition is met, None while it is
not. `memo` adds its own. On PostgreSQL it is tenure.condition."""


# --- groups of children


def tell_groups(transaction: Transaction, ended: Iterable[tuple[str, str]], number: int = 1) -> None:
    """Children, given as (group, the state they ended in), have ended; or come back to life (-1)."""
    counts: dict[str, tuple[int, int, int]] = {}
    for group_id, state in ended:
        all_, failed, cancelled = counts.get(group_id, (0, 0, 0))
        is_failed, is_cancelled = state in ("dead", "failed"), state == "cancelled"
        counts[group_id] = (all_ + number, failed + number * is_failed, cancelled + number * is_cancelled)
    count_ends(transaction, counts)


def count_ends(transaction: Transaction, counts: Mapping[str, tuple[int, int, int]], limit: int = WAKE_LIMIT) -> int:
    """Count ends of children, by group; wake the parents of groups that are over, and let up to `limit` children go
    that wait for room. Answers how many jobs were queued."""
    jobs, left = 0, limit
    for group_id, (ended, failed, cancelled) in sorted(counts.items()):
        values = {"id": group_id, "ended": ended, "failed": failed, "cancelled": cancelled, "now": transaction.now}
        row = transaction.one(_GROUPS["group_count"], values)
        if row is None:
            continue
        group = _Group(*row)
        if group.state == "open" and group.is_over():
            transaction.run(_GROUPS["group_over"], {**values, "state": "done" if group.is_good() else "failed"})
            if group.cancel_rest and group.total is not None and group.ended < group.total:
                detail = {"actor": "tenure", "reason": "its group is over"}
                put_event(transaction, "cancel", group_id=group_id, detail=detail)
            jobs += wake_on(transaction, f"group:{group_id}")
        if group.window_size is None or group.released is None:
            continue
        wanted = group.ended + group.window_size
        if wanted > group.released:
            until = min(wanted, group.released + left)
            left -= until - group.released
            between = {"id": group_id, "first": group.released, "until": until}
            ids = [row[0] for row in transaction.all(_GROUPS["members_between"], between)]
            transaction.run(_GROUPS["group_release"], between)
            jobs += len(queue_waiting(transaction, ids))
            if until < wanted:
                put_event(transaction, "group", group_id=group_id)
    return jobs


class _Group(NamedTuple):
    """A row of `group_count`."""

    state: str
    total: int | None
    made: int
    ended: int
    failed: int
    cancelled: int
    need: int | None
    tolerate: int
    fail_fast: int
    window_size: int | None
    released: int | None
    cancel_rest: int

    def is_over(self) -> bool:
        if self.total is None or self.made != self.total:
            return False
        most = self.tolerate if self.need is None else self.total - self.need
        is_enough = self.need is not None and self._succeeded() >= self.need
        is_hopeless = bool(self.fail_fast) and self.failed + self.cancelled > most
        return self.ended >= self.total or is_enough or is_hopeless

    def is_good(self) -> bool:
        if self.need is not None:
            return self._succeeded() >= self.need
        return self.failed + self.cancelled <= self.tolerate

    def _succeeded(self) -> int:
        return self.ended - self.failed - self.cancelled


# --- signals


def signal(transaction: Transaction, request: Signal) -> Sent:
    """See store.flow.Signal."""
    check_signal(request)
    if request.to is not None:
        row = transaction.one(_SQL["signal_job"], (request.to,))
        if row is None:
            raise NotFound(
                f"There is no job {request.to}, so the signal {request.key!r} reaches nothing. Nothing was changed."
            )
        if State(row[0]) in TERMINAL:
            raise IllegalMove(
                f"Job {request.to} has ended as {row[0]}, so the signal {request.key!r} reaches nothing. "
                "Nothing was changed."
            )
    values: dict[str, Any] = {
        "id": request.id,
        "key": request.key,
        "scope": request.scope,
        "job_id": request.to,
        "value": request.value,
        "actor": request.actor,
        "now": transaction.now,
        "expires_at": transaction.now + round(request.keep_seconds * 1_000_000),
    }
    transaction.run(_SQL["signal_drop_old"], values)
    if not transaction.run(_SQL["signal_insert"], values).rowcount:
        return Sent(request.id, transaction.one(_SQL["signal_found"], (request.id,)) is not None)
    if request.to is None:
        wake_on(transaction, f"signal:{request.key}")
    else:
        wake_one(transaction, request.to, f"signal:{request.key}")
    return Sent(request.id, is_taken=True)


# --- steps that are forgotten, and jobs that are undone


def drop_steps(transaction: Transaction, job_id: JobId, first: int, last: int = 2**31 - 1) -> list[str]:
    """Remove steps of a job by their order, with the groups that they stand for. Answers their keys."""
    rows = transaction.all(_SQL["steps_drop"], {"job_id": job_id, "first": first, "last": last})
    keys = [row[1] for row in sorted(rows)]
    values = {"job_id": job_id, "keys": dump(keys)}
    transaction.run(_GROUPS["members_drop"], values)
    transaction.run(_GROUPS["groups_drop"], values)
    transaction.run(_APPROVALS["void_of_steps"], {**values, "now": transaction.now})
    return keys


def end_durable(transaction: Transaction, ids: Sequence[str]) -> None:
    """Durable jobs have ended, and their rows say so: what they still ask of people is void, the memos that they were
    to work out are for others, and those who wait for their end are woken."""
    transaction.run(_APPROVALS["void_of_jobs"], {"ids": dump(list(ids)), "now": transaction.now})
    left = WAKE_LIMIT
    for (awaits,) in transaction.all(_SQL["met_by_end"], {"ids": dump(list(ids))}):
        if left > 0:
            left -= wake_on(transaction, awaits, left)
        else:
            put_event(transaction, "look", awaits)


def place_of_step(transaction: Transaction, job_id: JobId, key: str) -> tuple[str | None, int | None]:
    """The state of a job, None if it is not there, and the order of one of its steps, None if it has no such step."""
    row = transaction.one(_SQL["step_place"], {"job_id": job_id, "key": key})
    return (None, None) if row is None else (row[0], row[1])


def was_undone(transaction: Transaction, job_id: JobId) -> bool:
    """Whether something of a job was undone, or was to be."""
    return transaction.one(_SQL["has_undone"], (job_id,)) is not None


def is_undoing(transaction: Transaction, job_id: JobId) -> bool:
    """Whether a job is being undone: the end that it is to have is on record."""
    return transaction.one(_SQL["is_undoing"], (job_id,)) is not None


def undoing_step(
    transaction: Transaction, job_id: JobId, state: str, failure_class: str | None, error: str | None
) -> NewStep | None:
    """The step `$undoing` for a job that would end badly and has something to undo first; None if it has nothing."""
    row = transaction.one(_SQL["has_armed"], {"job_id": job_id})
    if row is None or not row[0]:
        return None
    end = "cancelled" if state == "cancelled" else "failed"
    return NewStep("$undoing", value=json.dumps({"end": end, "error": error, "class": failure_class}))


def queue_undo(transaction: Transaction, job_id: JobId, mark: str | None) -> None:
    """Queue a job that no worker holds, to undo what it has done. `mark`: the failure class that it is to have."""
    row = transaction.one(_SQL["queue_undo"], {"job_id": job_id, "mark": mark, "now": transaction.now})
    assert row is not None
    transaction.woken.add(row[0])


def put_undoing(transaction: Transaction, job_id: JobId, token: int, step: NewStep) -> None:
    """Record the end that a job is to have once it is undone."""
    values = {
        "now": transaction.now,
        "job_id": job_id,
        "token": token,
        "key": step.key,
        "kind": step.kind,
        "state": step.state,
        "value": step.value,
        "error": None,
        "awaits": None,
        "due_at": None,
        "ended_at": transaction.now,
    }
    transaction.run(_SQL["step_insert"], values)
