"""What operators and leaders ask for. Each act leaves an audit row."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Final

from tenure.errors import IllegalMove, InvalidArgument
from tenure.model.clock import from_us
from tenure.store.admin import (
    AcquireLease,
    NamedLease,
    PauseQueues,
    ReleaseLease,
    SetGate,
    SetQueues,
    TriageDeadLetters,
)
from tenure.store.queries import Gate, ListQueues, QueueRow
from tenure.store.sqlite import policies, reading
from tenure.store.sqlite.moves import audit
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction

_GATE: Final = re.compile(r"(?:[^\s.:]+\.)?(?:master|worker|notify|heartbeat)|queue:\S.*")


def triage(transaction: Transaction, request: TriageDeadLetters) -> list[str]:
    """See store.operating.TriageDeadLetters."""
    changed = []
    values = {"triage": request.triage.value, "note": request.note, "actor": request.actor, "now": transaction.now}
    for letter in request.ids:
        if transaction.run(load("triage"), {**values, "id": letter}).rowcount > 0:
            changed.append(letter)
            audit(transaction, request.actor, "triage", letter, request.note, {"triage": request.triage.value})
    return changed


def set_queues(transaction: Transaction, request: SetQueues) -> list[QueueRow]:
    """See store.operating.SetQueues."""
    for name, policy in request.policies.items():
        if request.only_new:
            is_changed = policies.create(transaction, name, policy)
        else:
            _refuse_new_owner(transaction, name, policy.profile)
            transaction.run(load("queue_set"), {**policies.to_row(name, policy), "now": transaction.now})
            transaction.forget()
            is_changed = True
        if is_changed:
            audit(transaction, request.actor, "set_queue", name, None, asdict(policy))
    transaction.woken.update(request.policies)  # a raised limit may let waiting jobs go
    found = {row.name: row for row in reading.list_queues(transaction, ListQueues(tuple(request.policies)))}
    return [found[name] for name in request.policies]


def _refuse_new_owner(transaction: Transaction, name: str, profile: str) -> None:
    row = transaction.one(load("queue_profile"), (name,))
    if row is None or row[0] == profile:
        return
    live = transaction.one(load("queue_live"), (name,))
    if live is not None and live[1]:
        raise IllegalMove(
            f"Queue {name!r} belongs to profile {row[0]!r} and has jobs that have not ended, so it cannot pass to "
            f"{profile!r}. "
            f"Let it run empty first, or use another name. Nothing was changed."
        )


def pause_queues(transaction: Transaction, request: PauseQueues) -> list[str]:
    """See store.operating.PauseQueues."""
    changed = []
    for name in request.names:
        if transaction.one(load("queue_found"), (name,)) is None:
            raise policies.unknown(transaction, name)
        values = {"name": name, "paused": request.paused, "actor": request.actor, "now": transaction.now}
        if transaction.run(load("queue_pause"), values).rowcount > 0:
            changed.append(name)
            act = "pause_queue" if request.paused else "resume_queue"
            audit(transaction, request.actor, act, name, request.reason, {})
    transaction.forget()
    if not request.paused:
        transaction.woken.update(changed)
    return changed


def set_gate(transaction: Transaction, request: SetGate) -> Gate:
    """See store.operating.SetGate."""
    if not _GATE.fullmatch(request.name):
        raise InvalidArgument(
            f"name: {request.name!r} is no gate. Gates are master, worker, notify and heartbeat, the same with a "
            "profile "
            f"in front (substrate.master), and queue:NAME. Nothing was changed."
        )
    values = {"name": request.name, "is_open": request.is_open, "actor": request.actor, "now": transaction.now}
    transaction.run(load("gate_set"), values)
    transaction.forget()
    act = "open_gate" if request.is_open else "close_gate"
    audit(transaction, request.actor, act, request.name, request.reason, {})
    transaction.stops = transaction.stops or request.is_open  # whoever stood before it may go on
    return Gate(request.name, request.is_open, from_us(transaction.now), request.actor)


def acquire_lease(transaction: Transaction, request: AcquireLease) -> NamedLease:
    """See store.operating.AcquireLease."""
    if request.seconds <= 0:
        raise InvalidArgument(f"seconds: expected more than 0, got {request.seconds:g}. No lease was taken.")
    until = transaction.now + round(request.seconds * 1_000_000)
    values = {"name": request.name, "owner": request.owner, "now": transaction.now, "until": until}
    is_ours = transaction.run(load("lease_acquire"), values).rowcount > 0
    row = transaction.one(load("lease_read"), (request.name,))
    assert row is not None
    owner, term, held_until = row
    return NamedLease(request.name, owner, term, from_us(held_until), is_ours)


def release_lease(transaction: Transaction, request: ReleaseLease) -> bool:
    """See store.operating.ReleaseLease."""
    values = {"name": request.name, "owner": request.owner, "term": request.term, "now": transaction.now}
    return transaction.run(load("lease_release"), values).rowcount > 0
