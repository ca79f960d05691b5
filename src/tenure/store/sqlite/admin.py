"""What people and leaders ask for: moves of single jobs, dead letters, queues, gates, named leases.

Each act of a person leaves an audit row."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from tenure.errors import IllegalMove, InvalidArgument, NotFound, Outdated, UnknownQueue, nearest
from tenure.model.clock import from_us
from tenure.model.ids import JobId, Token
from tenure.model.job import Enqueued
from tenure.model.outcome import Settled
from tenure.model.policy import QueuePolicy
from tenure.model.state import TERMINAL, State
from tenure.store.admin import (
    AcquireLease,
    NamedLease,
    PauseQueues,
    ReleaseLease,
    RemoveQueues,
    SetGate,
    SetQueues,
    TriageDeadLetters,
)
from tenure.store.checks import is_uuid
from tenure.store.contract import Cancel, Cancelled, Clone, Revive
from tenure.store.flow import ForgetSteps
from tenure.store.memory import EMBEDDING_QUEUE, EMBEDDING_SETTINGS
from tenure.store.queries import Gate, ListQueues, QueueRow
from tenure.store.sqlite import codec, flow, queries
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

NAMED_LEASE_MAX_SECONDS: Final = 366 * 86_400.0

_SQL: Final = load("admin")
_GROUPS: Final = load("groups")
_GATE: Final = re.compile(
    r"(?:[A-Za-z0-9_-]+\.)?(?:master|worker|notify|heartbeat)|(?:queue|kind|worker):(?=.*\S).{1,200}", re.DOTALL
)


def cancel(transaction: Transaction, request: Cancel, mark: str | None = None) -> list[Cancelled]:
    """See store.contract.Cancel. `mark`: the failure class of jobs that are not cancelled for their own sake."""
    ended: list[tuple[str, str]] = []
    answers = [_cancel(transaction, request, job_id, ended, mark) for job_id in request.job_ids]
    flow.tell_groups(transaction, ended)  # once all are: no room is made for one that is cancelled along
    return answers


def _cancel(
    transaction: Transaction, request: Cancel, job_id: JobId, ended: list[tuple[str, str]], mark: str | None
) -> Cancelled:
    """Cancel one. The end of a child is added to `ended`: its group, and how."""
    before = transaction.one(_SQL["job_state"], (job_id,))
    is_durable = before is not None and State(before[0]) not in TERMINAL and before[2] is not None
    if before is not None and is_durable and flow.is_undoing(transaction, job_id):
        # Nothing stops the undoing, and the end that the job is to have is on record.
        _cancelled(transaction, request, job_id, before[0], "cancel_requested")
        return Cancelled(job_id, "requested", before[0])
    if before is not None and before[0] != State.CANCELLED and before[3] is None:
        refuse_outdated(job_id, request.versions.get(job_id), before[1], before[4])
    if before is not None and is_durable and before[0] in ("queued", "waiting"):
        undoing = flow.undoing_step(transaction, job_id, "cancelled", mark or "cancelled", request.reason)
        if undoing is not None:
            flow.put_undoing(transaction, job_id, before[1], undoing)
            flow.queue_undo(transaction, job_id, mark)
            _cancelled(transaction, request, job_id, before[0], "cancel_requested")
            return Cancelled(job_id, "requested", before[0])
    row = transaction.one(_SQL["cancel"], {"now": transaction.now, "job_id": job_id, "mark": mark})
    if before is None or row is None:
        return Cancelled(job_id, "refused", None if before is None else before[0])
    is_ended = row[0] == "cancelled"
    if not is_ended:
        transaction.stops = True
    elif row[1] is not None:
        ended.append((row[1], "cancelled"))
    if is_ended and row[2] is not None:
        transaction.tasks[job_id] = row[2]
    if is_ended and before[2] is not None:
        flow.end_durable(transaction, [job_id])
    _cancelled(transaction, request, job_id, before[0], "cancelled" if is_ended else "cancel_requested")
    return Cancelled(job_id, "cancelled" if is_ended else "requested", row[0])


def _cancelled(transaction: Transaction, request: Cancel, job_id: JobId, state: str, event: str) -> None:
    """What follows a cancel: the event, the audit row, and the children."""
    transaction.record(event, [job_id])
    audit(transaction, request.actor, "cancel", job_id, request.reason, {"state": state})
    if request.children:
        detail = {"actor": request.actor, "reason": request.reason}
        for (group_id,) in transaction.all(_GROUPS["open_groups"], (job_id,)):
            flow.put_event(transaction, "cancel", group_id=group_id, detail=detail)


def refuse_outdated(job_id: JobId, version: str | None, token: int, updated_at: int) -> None:
    """Refuse a job that has changed since the caller read it, when its version was `version`; None: whatever it is."""
    if version is not None and version != f"{token}.{updated_at}":
        raise Outdated(f"Job {job_id} has changed since it was read, so nothing was changed. Read it again first.")


def revive(transaction: Transaction, request: Revive) -> list[Settled]:
    """See store.contract.Revive."""
    # In the order of ids, as PostgreSQL locks them: of two jobs with one key the first gets it.
    revived = {job_id: revive_one(transaction, request, job_id) for job_id in sorted(set(request.job_ids))}
    return [revived[job_id] for job_id in request.job_ids]


def revive_one(transaction: Transaction, request: Revive, job_id: JobId) -> Settled:
    """Revive one job."""
    row = transaction.one(_SQL["revive_look"], {"job_id": job_id})
    token, state, why, slot, updated_at = row or (0, None, "there is no such job", None, None)
    if row is not None:
        refuse_outdated(job_id, request.versions.get(job_id), token, updated_at)
    first = None
    if why is None and request.from_step is not None:
        first = flow.place_of_step(transaction, job_id, request.from_step)[1]
        why = f"it has no step {request.from_step}" if first is None else None
    values = {"now": transaction.now, "job_id": job_id, "slot": slot, "actor": request.actor, "reason": request.reason}
    if why is not None:
        detail = {"from": state, "to": state, "why": why}
        audit(transaction, request.actor, "revive", job_id, request.reason, detail)
        return Settled(job_id, Token(token), None)
    revived = transaction.one(_SQL["revive"], values)
    assert revived is not None
    transaction.run(_SQL["revive_letters"], values)
    transaction.woken.add(revived[0])
    if revived[2] is not None and flow.was_undone(transaction, job_id):
        first = 1
    if first is not None:
        flow.drop_steps(transaction, job_id, first)
    if revived[1] is not None:
        flow.tell_groups(transaction, [(revived[1], state)], -1)
    if revived[3] is not None:
        transaction.tasks[job_id] = revived[3]
    transaction.record("revived", [job_id])
    detail = {"from": state, "to": "queued", "why": None}
    audit(transaction, request.actor, "revive", job_id, request.reason, detail)
    return Settled(job_id, Token(token), "queued", transaction.now)


def clone(transaction: Transaction, request: Clone) -> list[Enqueued]:
    """See store.contract.Clone."""
    return [_clone(transaction, request, job_id, new_id) for job_id, new_id in request.job_ids.items()]


def _clone(transaction: Transaction, request: Clone, job_id: JobId, new_id: JobId) -> Enqueued:
    row = transaction.one(_SQL["clone_look"], (job_id,))
    if row is None:
        raise NotFound(f"There is no job {job_id}, so nothing was cloned. Look for it with `tenure jobs ls`.")
    state, is_pruned, queue, slot = row
    if State(state) not in TERMINAL:
        raise IllegalMove(f"Job {job_id} is {state}. Only a job that has ended can be cloned. Nothing was cloned.")
    if is_pruned:
        raise IllegalMove(f"The payload of job {job_id} was pruned, so it cannot be cloned. Enqueue a new job.")
    if not is_uuid(new_id):
        raise InvalidArgument(f"id: {new_id!r} is not a UUID in its canonical form. Nothing was cloned.")
    values = {"now": transaction.now, "job_id": job_id, "new_id": new_id, "slot": slot, "actor": request.actor}
    duplicate_of = None
    if transaction.run(_SQL["clone"], values).rowcount > 0:
        transaction.woken.add(queue)
        transaction.record("queued", [new_id])
    else:
        holder = transaction.one(_SQL["clone_holder"], values)
        assert holder is not None
        duplicate_of = None if holder[0] == new_id else JobId(holder[0])
    detail = {"clone": new_id, "duplicate_of": duplicate_of}
    audit(transaction, request.actor, "clone", job_id, request.reason, detail)
    return Enqueued(duplicate_of or new_id, duplicate=duplicate_of is not None)


def audit(
    transaction: Transaction, actor: str, act: str, subject: str, reason: str | None, detail: dict[str, Any]
) -> None:
    """Leave an audit row. An act without an actor is refused."""
    if not actor.strip():
        raise InvalidArgument(f"actor: it must say who does this; it is empty, so {act} was refused.")
    transaction.run(_SQL["audit_write"], (transaction.now, actor, act, subject, reason, json.dumps(detail)))


def triage(transaction: Transaction, request: TriageDeadLetters) -> list[str]:
    """See store.admin.TriageDeadLetters."""
    changed = []
    values = {
        "triage": request.triage.value,
        "note": request.note,
        "actor": request.actor,
        "owner": request.owner,
        "now": transaction.now,
    }
    for letter in request.ids:
        before = transaction.one(_SQL["triage_before"], (letter,))
        if before is None:
            continue
        transaction.run(_SQL["triage"], {**values, "id": letter})
        changed.append(letter)
        detail = {"job_id": before[0], "from": before[1], "to": request.triage.value}
        detail |= {} if request.owner is None else {"owner": request.owner}
        audit(transaction, request.actor, "triage", letter, request.note, detail)
    return changed


def set_queues(transaction: Transaction, request: SetQueues) -> list[QueueRow]:
    """See store.admin.SetQueues."""
    # The embedding queue first: one that keeps agent events would make it with another policy than the one given here.
    for name, policy in sorted(request.policies.items(), key=lambda item: item[0] != EMBEDDING_QUEUE):
        if not create_queue(transaction, name, policy, request.actor, request.reason) and not request.only_new:
            _set_policy(transaction, name, policy, request.actor, request.reason)
    transaction.woken.update(request.policies)  # a raised limit may let waiting jobs go
    found = {row.name: row for row in queries.list_queues(transaction, ListQueues(tuple(request.policies)))}
    return [found[name] for name in request.policies]


def _set_policy(transaction: Transaction, name: str, policy: QueuePolicy, actor: str, reason: str | None) -> None:
    _refuse_new_owner(transaction, name, policy.profile)
    transaction.run(_SQL["queue_set"], {**codec.policy_row(name, policy), "now": transaction.now})
    if policy.agent_events != "none":
        need_embedding_queue(transaction, actor)
    audit(transaction, actor, "set_queue", name, reason, codec.policy_detail(policy))


def _refuse_new_owner(transaction: Transaction, name: str, profile: str) -> None:
    row = transaction.one(_SQL["queue_profile"], (name,))
    if row is None or row[0] == profile:
        return
    ((is_live,),) = transaction.all(_SQL["queue_live"], (name,))
    if is_live:
        raise IllegalMove(
            f"Queue {name!r} belongs to profile {row[0]!r} and has jobs that have not ended, so it cannot pass to "
            f"{profile!r}. "
            f"Let it run empty first, or use another name. Nothing was changed."
        )


def pause_queues(transaction: Transaction, request: PauseQueues) -> list[str]:
    """See store.admin.PauseQueues."""
    changed = []
    for name in request.names:
        if transaction.one(_SQL["queue_found"], (name,)) is None:
            raise unknown_queue(transaction, name)
        values = {"name": name, "paused": request.paused, "actor": request.actor, "now": transaction.now}
        if transaction.run(_SQL["queue_pause"], values).rowcount > 0:
            changed.append(name)
            act = "pause_queue" if request.paused else "resume_queue"
            audit(transaction, request.actor, act, name, request.reason, {})
    if not request.paused:
        transaction.woken.update(changed)
    return changed


def remove_queues(transaction: Transaction, request: RemoveQueues) -> list[str]:
    """See store.admin.RemoveQueues."""
    removed = []
    for name in dict.fromkeys(request.names):
        row = transaction.one(_SQL["queue_used"], (name,))
        if name == "default" or (row is not None and row[0]):
            why = "every database has it" if name == "default" else "it still has jobs, live or ended"
            raise IllegalMove(
                f"Queue {name!r} cannot be removed: {why}. `tenure prune --delete-after` removes ended jobs. Nothing "
                "was changed."
            )
        if transaction.run(_SQL["queue_remove"], (name,)).rowcount > 0:
            removed.append(name)
            audit(transaction, request.actor, "remove_queue", name, request.reason, {})
    return removed


def set_gate(transaction: Transaction, request: SetGate) -> Gate:
    """See store.admin.SetGate."""
    if not _GATE.fullmatch(request.name):
        raise InvalidArgument(
            f"name: {request.name!r} is no gate. Gates are master, worker, notify and heartbeat, the same with a "
            "profile in front (substrate.master), queue:NAME, kind:NAME and worker:ID. Nothing was changed."
        )
    values = {"name": request.name, "is_open": request.is_open, "actor": request.actor, "now": transaction.now}
    transaction.run(_SQL["gate_set"], values)
    act = "open_gate" if request.is_open else "close_gate"
    audit(transaction, request.actor, act, request.name, request.reason, {})
    transaction.stops = transaction.stops or request.is_open  # workers that it held back may go on
    return Gate(request.name, request.is_open, from_us(transaction.now), request.actor)


def acquire_lease(transaction: Transaction, request: AcquireLease) -> NamedLease:
    """See store.admin.AcquireLease."""
    if not 0 < request.seconds <= NAMED_LEASE_MAX_SECONDS:
        raise InvalidArgument(
            f"seconds: expected more than 0 and at most a year, got {request.seconds:g}. No lease was taken."
        )
    if not request.name.strip() or not request.owner.strip():
        raise InvalidArgument("A named lease needs a name and an owner. No lease was taken.")
    until = transaction.now + round(request.seconds * 1_000_000)
    values = {"name": request.name, "owner": request.owner, "now": transaction.now, "until": until}
    is_ours = transaction.run(_SQL["lease_acquire"], values).rowcount > 0
    row = transaction.one(_SQL["lease_read"], (request.name,))
    assert row is not None
    owner, term, held_until = row
    return NamedLease(request.name, owner, term, from_us(held_until), is_ours)


def release_lease(transaction: Transaction, request: ReleaseLease) -> bool:
    """See store.admin.ReleaseLease."""
    values = {"name": request.name, "owner": request.owner, "term": request.term, "now": transaction.now}
    return transaction.run(_SQL["lease_release"], values).rowcount > 0


def create_queue(
    transaction: Transaction, name: str, policy: QueuePolicy, actor: str, reason: str | None = None
) -> bool:
    """Create a queue unless it is there; an unused one passes to the profile that the policy names. Whether the queue
    has this policy now."""
    if transaction.one(_SQL["queue_found"], (name,)) is not None:
        if policy.profile == "default" or not _is_unused(transaction, name):
            return False
        _set_policy(transaction, name, policy, actor, reason)
        return True
    transaction.run(_SQL["queue_create"], {**codec.policy_row(name, policy), "now": transaction.now})
    audit(transaction, actor, "create_queue", name, reason, codec.policy_detail(policy))
    if policy.agent_events != "none":
        need_embedding_queue(transaction, actor)
    return True


def _is_unused(transaction: Transaction, name: str) -> bool:
    """Whether a queue is as a worker's start makes it: the default policy, and no job, live or ended."""
    (row,) = queries.list_queues(transaction, ListQueues((name,)))
    used = transaction.one(_SQL["queue_used"], (name,))
    return name != "default" and row.policy == QueuePolicy() and used is not None and not used[0]


def need_embedding_queue(transaction: Transaction, actor: str) -> None:
    """Make the queue in which agent events are embedded, unless it is there."""
    if transaction.one(_SQL["queue_found"], (EMBEDDING_QUEUE,)) is not None:
        return
    row = codec.policy_row(EMBEDDING_QUEUE, replace(QueuePolicy(), **EMBEDDING_SETTINGS))
    transaction.run(_SQL["queue_create"], {**row, "now": transaction.now})
    audit(transaction, actor, "create_queue", EMBEDDING_QUEUE, None, EMBEDDING_SETTINGS)


def unknown_queue(transaction: Transaction, name: str) -> UnknownQueue:
    """The error for a queue that is not there."""
    known = [row[0] for row in transaction.all(_SQL["queue_names"])]
    return UnknownQueue(
        f"There is no queue {name!r} in this database, so nothing was changed.{nearest(name, known)} "
        f"Create it with `tenure queues set {name}`, or declare it in the app."
    )


def forget_steps(transaction: Transaction, request: ForgetSteps) -> list[str]:
    """See store.flow.ForgetSteps."""
    state, ordinal = flow.place_of_step(transaction, request.job_id, request.key)
    if ordinal is None:
        raise NotFound(f"There is no step {request.key!r} of a job {request.job_id}, so nothing was forgotten.")
    if state in ("leased", "running"):
        raise IllegalMove(
            f"Job {request.job_id} is held by a worker, which goes by its steps. Cancel it, or wait until it ends. "
            "Nothing was forgotten."
        )
    keys = flow.drop_steps(transaction, request.job_id, ordinal, 2**31 - 1 if request.and_later else ordinal)
    audit(transaction, request.actor, "forget_steps", request.job_id, request.reason, {"keys": keys})
    flow.queue_waiting(transaction, [request.job_id])
    return keys
