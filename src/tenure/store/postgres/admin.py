"""What operators, leaders and handlers do, as calls of PostgreSQL functions; installing profiles; measuring."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from tenure.errors import AccessDenied, IllegalMove, InvalidArgument, SchemaError
from tenure.model.clock import from_us, to_us
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token
from tenure.model.job import Enqueued
from tenure.model.outcome import Settled
from tenure.store.admin import (
    AcquireLease,
    AppendEvents,
    InstalledProfile,
    InstallProfile,
    NamedLease,
    PauseQueues,
    RecordEffect,
    ReleaseLease,
    RemoveQueues,
    RemoveWorkers,
    ResolveEffect,
    SetGate,
    SetQueues,
    TriageDeadLetters,
)
from tenure.store.checks import is_uuid
from tenure.store.contract import Clone, EditJob, Enqueue, Prune, Pruned, Request, Revive
from tenure.store.measuring import DropQueue, Measure
from tenure.store.postgres.codec import (
    Call,
    effect_json,
    encode,
    encode_enqueue,
    policy_columns,
    priority_number,
    text,
)
from tenure.store.postgres.errors import driver_errors, redact
from tenure.store.postgres.pool import connect_alone
from tenure.store.postgres.queries import to_effect, to_gate, to_job, to_policy, to_queue_row
from tenure.store.postgres.sql import statement
from tenure.store.queries import ListProfiles, ProfileRow
from tenure.store.schedules import (
    ListSchedules,
    PauseSchedules,
    RemoveSchedules,
    ScheduleRow,
    SetSchedules,
    TickSchedule,
)


def event_json(event: NewEvent) -> str:
    """An event as a JSON object. Its data is JSON text already and goes along verbatim."""
    return f'{{"kind":{text(event.kind)},"job_id":{text(event.job_id)},"data":{event.data}}}'


def _set_queues(request: SetQueues) -> str:
    policies = {name: policy_columns(policy) for name, policy in request.policies.items()}
    told = {"policies": policies, "actor": request.actor, "only_new": request.only_new, "reason": request.reason}
    return text(told)


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
    for new_id in request.job_ids.values() if isinstance(request, Clone) else ():
        if not is_uuid(new_id):
            raise InvalidArgument(f"id: {new_id!r} is not a UUID in its canonical form. Nothing was cloned.")
    asked: dict[str, Any] = {"job_ids": ids, "actor": request.actor, "reason": request.reason}
    if isinstance(request, Revive):
        asked |= {"from_step": request.from_step, "versions": dict(request.versions)}
    return text(asked)


def _edit_job(request: EditJob) -> str:
    who = {"job_id": request.job_id, "actor": request.actor, "reason": request.reason, "version": request.version}
    payload = "" if request.payload is None else f',"payload":{request.payload}'
    priority = "" if request.priority is None else f',"priority":{priority_number(request.priority)}'
    return f"{text(who)[:-1]}{payload}{priority}}}"


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


def _schedules(answer: Any, _: Any) -> list[ScheduleRow]:
    return [
        ScheduleRow(
            name,
            spec,
            from_us(last_tick),
            None if paused_at is None else from_us(paused_at),
            paused_by,
            from_us(created_at),
            from_us(updated_at),
        )
        for name, spec, last_tick, paused_at, paused_by, created_at, updated_at in answer
    ]


def _set_schedules(request: SetSchedules) -> str:
    specs = ",".join(f"{json.dumps(name)}:{spec}" for name, spec in request.specs.items())
    return f'{{"specs":{{{specs}}},"actor":{json.dumps(request.actor)},"reason":{json.dumps(request.reason)}}}'


def _tick_schedule(request: TickSchedule) -> str:
    jobs = f',"jobs":{encode_enqueue(Enqueue(request.jobs))}' if request.jobs else ""
    return f'{{"name":{json.dumps(request.name)},"after":{to_us(request.after)},"tick":{to_us(request.tick)}{jobs}}}'


def install_profile(url: str, asked: InstallProfile) -> InstalledProfile:
    """See store.base.Store.install_profile. The lock is that of migrations: a profile builds on their tables."""
    import psycopg

    profile = asked.profile
    request = {
        "name": profile.name,
        "title": profile.title,
        "policy": policy_columns(profile.policy),
        "words": dict(profile.words),
        "settings": dict(profile.settings),
        "shows": profile.shows,
        "checksum": asked.checksum,
        "queues": profile.queues,
        "closed": profile.closed_gates,
        "actor": asked.actor,
    }
    with driver_errors(url), connect_alone(url, "tenure profile install", autocommit=False) as connection:
        connection.execute(statement("lock"))
        connection.execute(statement("search_path"))
        row = connection.execute(statement("install_profile"), {"request": text(request)}).fetchone()
        assert row is not None
        try:
            connection.execute(statement("analyze_queues"))
            if asked.script:
                connection.execute(asked.script.encode())
        except psycopg.ProgrammingError as exc:
            if isinstance(exc, psycopg.errors.InsufficientPrivilege):
                raise
            raise SchemaError(
                f"The SQL of profile {profile.name!r} was refused: {redact(str(exc), url)}. Nothing was installed. "
                "Correct its .sql file; an existing view cannot lose or reorder columns, so drop it first in that case."
            ) from exc
    return InstalledProfile(**row[0])


def _to_profile(found: dict[str, Any]) -> ProfileRow:
    times = {name: from_us(found[name]) for name in ("installed_at", "updated_at")}
    return ProfileRow(**(found | times | {"policy": to_policy(found["policy"])}))


def measure(url: str, request: Measure) -> float:
    """See store.measuring.Measure."""
    asked = statement("commit" if request.what == "commit" else "round_trip")
    with driver_errors(url), connect_alone(url, "tenure bench") as connection:
        connection.execute(asked, prepare=False)
        done, begun = 0, time.perf_counter()
        while done < request.times and time.perf_counter() - begun < request.seconds:
            connection.execute(asked, prepare=False)
            done += 1
        return (time.perf_counter() - begun) / max(1, done)


def drop_queue(url: str, request: DropQueue) -> int:
    """See store.measuring.DropQueue."""
    asked = {"name": request.name, "kind": request.kind}
    with driver_errors(url), connect_alone(url, "tenure bench", autocommit=False) as connection:
        if not _value(connection.execute(statement("may_drop"))):
            raise AccessDenied(
                f"This login may not delete rows of Tenure's tables, so queue {request.name!r} could not be taken away "
                "again. Use the login that runs `tenure migrate`."
            )
        others = _value(connection.execute(statement("others"), asked))
        if others:
            raise IllegalMove(
                f"Queue {request.name!r} holds {others:,} jobs of other kinds than {request.kind!r}, so it stays."
            )
        if request.is_trial:
            return 0
        return int(_value(connection.execute(statement("drop_queue"), asked)))


def _value(cursor: Any) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row[0]


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    TriageDeadLetters: Call("triage_dead_letters", encode, lambda answer, _request: answer),
    SetQueues: Call("set_queues", _set_queues, lambda answer, _request: [to_queue_row(row) for row in answer]),
    PauseQueues: Call("pause_queues", encode, lambda answer, _request: answer),
    RemoveQueues: Call("remove_queues", encode, lambda answer, _request: answer),
    SetGate: Call("set_gate", encode, lambda answer, _request: to_gate(answer)),
    AcquireLease: Call(
        "acquire_lease", encode, lambda answer, _request: NamedLease(**(answer | {"until": from_us(answer["until"])}))
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
    EditJob: Call("edit_job", _edit_job, lambda answer, _request: to_job(answer)),
    Prune: Call("prune", encode, lambda answer, _request: Pruned(**answer)),
    ListSchedules: Call(
        "list_schedules", lambda r: "{}" if r.names is None else json.dumps({"names": list(r.names)}), _schedules
    ),
    SetSchedules: Call("set_schedules", _set_schedules, _schedules),
    TickSchedule: Call("tick_schedule", _tick_schedule, lambda answer, _: bool(answer)),
    PauseSchedules: Call(
        "pause_schedules",
        lambda r: json.dumps({"names": list(r.names), "paused": r.paused, "actor": r.actor, "reason": r.reason}),
        lambda answer, _: list(answer),
    ),
    RemoveSchedules: Call(
        "remove_schedules",
        lambda r: json.dumps({"names": list(r.names), "actor": r.actor}),
        lambda answer, _: list(answer),
    ),
    ListProfiles: Call("list_profiles", encode, lambda answer, _request: [_to_profile(row) for row in answer]),
}
