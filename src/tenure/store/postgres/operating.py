"""What operators, leaders and handlers do, as calls of PostgreSQL functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token
from tenure.model.job import Enqueued
from tenure.model.outcome import EffectRecord, Settled
from tenure.store.admin import (
    AcquireLease,
    AppendEvents,
    NamedLease,
    PauseQueues,
    RecordEffect,
    ReleaseLease,
    RemoveWorkers,
    ResolveEffect,
    SetGate,
    SetQueues,
    TriageDeadLetters,
)
from tenure.store.contract import Clone, Prune, Pruned, Request, Revive
from tenure.store.postgres.call import Call
from tenure.store.postgres.reading import encode, moment, policy_columns, text, to_effect, to_gate, to_queue_row


def event_json(event: NewEvent) -> str:
    """An event as a JSON object. Its data is JSON text already and goes along verbatim."""
    return f'{{"kind":{text(event.kind)},"job_id":{text(event.job_id)},"data":{event.data}}}'


def effect_json(effect: EffectRecord) -> str:
    """An effect as a JSON object, `args` and `result` verbatim. What is None is left out: a null would be a value."""
    parts = [f'"name":{text(effect.name)},"state":{text(effect.state)},"step":{text(effect.step)},"args":{effect.args}']
    if effect.result is not None:
        parts.append(f'"result":{effect.result}')
    if effect.error is not None:
        parts.append(f'"error":{text(effect.error)}')
    if effect.key is not None:
        parts.append(f'"key":{text(effect.key)}')
    return "{" + ",".join(parts) + "}"


def _set_queues(request: SetQueues) -> str:
    policies = {name: policy_columns(policy) for name, policy in request.policies.items()}
    return text({"policies": policies, "actor": request.actor, "only_new": request.only_new})


def _append_events(request: AppendEvents) -> str:
    events = ",".join(event_json(event) for event in request.events)
    return f'{{"job_id":{text(request.job_id)},"token":{request.token},"events":[{events}]}}'


def _record_effect(request: RecordEffect) -> str:
    return f'{{"job_id":{text(request.job_id)},"token":{request.token},"effect":{effect_json(request.effect)}}}'


def _resolve_effect(request: ResolveEffect) -> str:
    said = {"job_id": request.job_id, "step": request.step, "name": request.name, "outcome": request.outcome}
    who = {"actor": request.actor, "note": request.note}
    result = "" if request.result is None else f',"result":{request.result}'
    return f"{text(said | who)[:-1]}{result}}}"


def _act_on_jobs(request: Revive | Clone) -> str:
    ids = dict(request.job_ids) if isinstance(request, Clone) else list(request.job_ids)
    return text({"job_ids": ids, "actor": request.actor, "reason": request.reason})


def _revived(answer: list[list[Any]], request: Revive) -> list[Settled]:
    found = {row[0]: row for row in answer}
    return [
        Settled(job_id, Token(token), state, run_at_us)
        for job_id in request.job_ids
        for _, token, state, run_at_us in [found[job_id]]
    ]


def _cloned(answer: list[list[Any]], request: Clone) -> list[Enqueued]:
    found = {old_id: (new_id, holder) for old_id, new_id, holder in answer}
    return [
        Enqueued(JobId(holder or new_id), duplicate=holder is not None)
        for new_id, holder in (found[old_id] for old_id in request.job_ids)
    ]


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    TriageDeadLetters: Call("triage_dead_letters", encode, lambda answer, _request: answer),
    SetQueues: Call("set_queues", _set_queues, lambda answer, _request: [to_queue_row(row) for row in answer]),
    PauseQueues: Call("pause_queues", encode, lambda answer, _request: answer),
    SetGate: Call("set_gate", encode, lambda answer, _request: to_gate(answer)),
    AcquireLease: Call(
        "acquire_lease", encode, lambda answer, _request: NamedLease(**(answer | {"until": moment(answer["until"])}))
    ),
    ReleaseLease: Call("release_lease", encode, lambda answer, _request: answer),
    RemoveWorkers: Call("remove_workers", encode, lambda answer, _request: answer),
    AppendEvents: Call("append_events", _append_events, lambda answer, _request: answer),
    RecordEffect: Call(
        "record_effect", _record_effect, lambda answer, _request: None if answer is None else to_effect(answer)
    ),
    ResolveEffect: Call("resolve_effect", _resolve_effect, lambda answer, _request: to_effect(answer)),
    Revive: Call("revive", _act_on_jobs, _revived),
    Clone: Call("clone", _act_on_jobs, _cloned),
    Prune: Call("prune", encode, lambda answer, _request: Pruned(**answer)),
}
