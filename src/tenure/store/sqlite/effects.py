"""What handlers write beside their outcome: events and effects. Fenced like every other write of a worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from tenure.errors import Forbidden, IllegalMove, InvalidArgument, NotFound
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token
from tenure.model.outcome import EffectRecord
from tenure.store.admin import AppendEvents, RecordEffect, ResolveEffect
from tenure.store.contract import Wake
from tenure.store.queries import Effect
from tenure.store.sqlite import admin, approvals, codec, flow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("effects")
_ADMIN: Final = load("admin")
_RESOLVED: Final = {"confirmed": "confirmed", "retry": "intended", "failed": "failed"}
"""What a person says → the state of the row."""


def append_events(transaction: Transaction, request: AppendEvents) -> bool:
    """See store.admin.AppendEvents."""
    if not _is_held(transaction, request.job_id, request.token):
        return False
    if any(event.job_id not in {None, request.job_id} for event in request.events):
        raise Forbidden(
            f"An event names another job than {request.job_id}, which is held. Nothing was written. "
            "Append events to the job that you hold."
        )
    append(transaction, request.job_id, request.events)
    return True


def record_effect(transaction: Transaction, request: RecordEffect) -> Effect | None:
    """See store.admin.RecordEffect."""
    if not _is_held(transaction, request.job_id, request.token):
        return None
    record(transaction, request.job_id, request.token, request.effect)
    place = (request.job_id, request.effect.step, request.effect.name)
    row = transaction.one(_SQL["effect"], place)
    assert row is not None
    return codec.effect(row)


def resolve_effect(transaction: Transaction, request: ResolveEffect) -> Effect:
    """See store.admin.ResolveEffect."""
    place = (request.job_id, request.step, request.name)
    state = _RESOLVED.get(request.outcome)
    if state is None:
        raise InvalidArgument(f"outcome: {request.outcome!r} is none of {', '.join(_RESOLVED)}. Nothing was changed.")
    row = transaction.one(_SQL["effect"], place)
    job = transaction.one(_ADMIN["job_state"], (request.job_id,))
    if row is None or job is None:
        raise NotFound(
            f"Job {request.job_id} has no effect {request.name!r} to resolve. `tenure jobs show` lists them."
        )
    if row[3] == "confirmed" and state != "confirmed":
        raise IllegalMove(f"Effect {request.name!r} of job {request.job_id} is confirmed, so it stays so.")
    if job[0] in ("leased", "running"):
        raise IllegalMove(f"Job {request.job_id} is held by a worker, which decides about {request.name!r} itself.")
    if row[3] != "confirmed":
        result = json.dumps({"given_up_by": request.actor}) if state == "failed" else request.result
        values = {"now": transaction.now, "state": state, "result": result, "error": request.note}
        transaction.run(_SQL["effect_resolve"], {**values, "job_id": place[0], "step": place[1], "name": place[2]})
        detail = {"step": request.step, "name": request.name, "outcome": request.outcome}
        admin.audit(transaction, request.actor, "resolve_effect", request.job_id, request.note, detail)
    flow.wake(transaction, Wake(waiting_for=":".join(("effect", *filter(None, place)))))
    row = transaction.one(_SQL["effect"], place)
    assert row is not None
    return codec.effect(row)


def append(transaction: Transaction, job_id: JobId, events: Sequence[NewEvent]) -> None:
    """Write events of a job that is known to be held."""
    for event in events:
        transaction.run(
            _SQL["event_append"],
            {"now": transaction.now, "kind": event.kind, "job_id": job_id, "data": event.data},
        )


def record(transaction: Transaction, job_id: JobId, token: Token, effect: EffectRecord) -> None:
    """Write an effect of a job that is known to be held."""
    if effect.approval is not None:
        approvals.use(transaction, job_id, effect.approval, effect.step, effect.name, effect.args)
    transaction.run(
        _SQL["effect_record"],
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
    return transaction.one(_SQL["held"], values) is not None
