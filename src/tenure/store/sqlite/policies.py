"""Queue policies between their dataclass and their row."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Final

from tenure.errors import UnknownQueue, nearest
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction

_BACKOFF: Final = tuple(field.name for field in fields(Backoff))
_PLAIN: Final = tuple(field.name for field in fields(QueuePolicy) if field.name not in {"backoff", "forbidden_keys"})
_BOOLEANS: Final = frozenset({"start_on_claim", "key_required", "events"})


def to_row(name: str, policy: QueuePolicy) -> dict[str, Any]:
    """The columns that hold a policy."""
    row: dict[str, Any] = {"name": name}
    for field in _PLAIN:
        value = getattr(policy, field)
        row[field] = int(value) if isinstance(value, bool) else value
    for field in _BACKOFF:
        row[f"backoff_{field}"] = getattr(policy.backoff, field)
    row["forbidden_keys"] = json.dumps(list(policy.forbidden_keys)) if policy.forbidden_keys else None
    return row


def from_row(row: dict[str, Any]) -> QueuePolicy:
    """The policy that the columns hold."""
    plain: dict[str, Any] = {field: bool(row[field]) if field in _BOOLEANS else row[field] for field in _PLAIN}
    return QueuePolicy(
        **plain,
        backoff=Backoff(**{field: row[f"backoff_{field}"] for field in _BACKOFF}),
        forbidden_keys=tuple(json.loads(row["forbidden_keys"])) if row["forbidden_keys"] else (),
    )


def create(transaction: Transaction, name: str, policy: QueuePolicy) -> bool:
    """Create a queue unless it is there. Whether it was created."""
    made = transaction.run(load("queue_create"), {**to_row(name, policy), "now": transaction.now}).rowcount > 0
    if made:
        transaction.forget()
    return made


def unknown(transaction: Transaction, name: str) -> UnknownQueue:
    """The error for a queue that is not there."""
    known = [row[0] for row in transaction.all(load("queue_names"))]
    return UnknownQueue(
        f"There is no queue {name!r} in this database, so nothing was changed.{nearest(name, known)} "
        f"Create it with `tenure queues set {name}`, or declare it in the app."
    )
