"""What handlers write beside their outcome: events and effects. Fenced like every other write of a worker."""

from __future__ import annotations

from collections.abc import Sequence

from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token
from tenure.model.outcome import EffectRecord
from tenure.store.operating import AppendEvents, RecordEffect
from tenure.store.reading import Effect
from tenure.store.sqlite import rows
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction


def append_events(transaction: Transaction, request: AppendEvents) -> bool:
    """See store.operating.AppendEvents."""
    if not _is_held(transaction, request.job_id, request.token):
        return False
    append(transaction, request.job_id, request.events)
    return True


def record_effect(transaction: Transaction, request: RecordEffect) -> Effect | None:
    """See store.operating.RecordEffect."""
    if not _is_held(transaction, request.job_id, request.token):
        return None
    record(transaction, request.job_id, request.token, request.effect)
    place = (request.job_id, request.effect.step, request.effect.name)
    row = transaction.one(load("effect"), place)
    assert row is not None
    return rows.effect(row)


def append(transaction: Transaction, job_id: JobId, events: Sequence[NewEvent]) -> None:
    """Write events of a job that is known to be held."""
    for event in events:
        transaction.run(
            load("event_append"),
            {"now": transaction.now, "kind": event.kind, "job_id": event.job_id or job_id, "data": event.data},
        )


def record(transaction: Transaction, job_id: JobId, token: Token, effect: EffectRecord) -> None:
    """Write an effect of a job that is known to be held."""
    transaction.run(
        load("effect_record"),
        {
            "now": transaction.now,
            "job_id": job_id,
            "token": token,
            "step": effect.step,
            "name": effect.name,
            "state": effect.state,
            "key": effect.key,
            "args": effect.args,
            "result": effect.result,
            "error": effect.error,
        },
    )


def _is_held(transaction: Transaction, job_id: JobId, token: Token) -> bool:
    values = {"job_id": job_id, "token": token, "now": transaction.now}
    return transaction.one(load("held"), values) is not None
