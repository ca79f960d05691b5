"""Requests to JSON text and answers to values: the path of a job, and what all requests share.

JSON is put together by hand where payloads and results, which are JSON already, go in as they are.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from json.encoder import encode_basestring_ascii as quote
from operator import attrgetter
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

from tenure.errors import GateClosed, InvalidArgument
from tenure.model.clock import from_us, to_us
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.job import NEW_JOB_EXTRAS, Enqueued, Grant, NewJob
from tenure.model.outcome import (
    Beat,
    Completed,
    EffectRecord,
    Failed,
    Outcome,
    Rejected,
    Released,
    Settled,
    Stopped,
    Suspended,
)
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import ALONE_FROM
from tenure.model.step import NewGroup, NewStep, Step
from tenure.store.checks import check_backoff, check_number, is_uuid
from tenure.store.contract import (
    Cancel,
    Cancelled,
    Claim,
    Enqueue,
    Exchange,
    Exchanged,
    Heartbeat,
    Hold,
    Reap,
    Request,
    Settle,
    Start,
    Wake,
)
from tenure.store.flow import check_group, check_steps
from tenure.store.limits import check_outcome

_INT32: Final = 2**31
_UUIDS: Final = ("created_by_user_id", "requested_by_user_id", "workflow_id", "parent_id", "run_id")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EXTRAS: Final = tuple(name for name in NEW_JOB_EXTRAS if name != "backoff")
_rarely_set: Final = attrgetter(*NEW_JOB_EXTRAS)
_NOTHING_RARE: Final = (None,) * len(NEW_JOB_EXTRAS)

BACKOFF: Final = tuple(f.name for f in dataclasses.fields(Backoff))
POLICY: Final = tuple(f.name for f in dataclasses.fields(QueuePolicy) if f.name not in {"backoff", "forbidden_keys"})


@frozen
class Call:
    """A request as one `SELECT tenure.<function>(<json>)`."""

    function: str
    encode: Callable[[Any], str]
    """The request as JSON text, the function's only argument."""
    decode: Callable[[Any, Any], Any]
    """The parsed JSON answer and the request, to the result the request promises."""


def maybe_moment(us: int | None) -> datetime | None:
    """A moment from the wire, where there may be none."""
    return None if us is None else from_us(us)


def encode(request: Any) -> str:
    """A request as the JSON object of its fields."""
    return text({f.name: getattr(request, f.name) for f in dataclasses.fields(request)})


def text(value: Any) -> str:
    """A value as JSON text."""
    try:
        return to_json(value).decode()
    except PydanticSerializationError as exc:
        raise InvalidArgument(
            f"A text cannot be stored, because it is no Unicode: {exc}. Nothing was changed."
        ) from exc


def policy_columns(policy: QueuePolicy) -> dict[str, Any]:
    """A policy as the columns of its queue's row, the form that `set_queues` and `enqueue` take."""
    columns = {name: getattr(policy, name) for name in POLICY}
    columns |= {f"backoff_{name}": getattr(policy.backoff, name) for name in BACKOFF}
    columns["forbidden_keys"] = list(policy.forbidden_keys) or None
    return columns


def effect_json(effect: EffectRecord) -> str:
    """An effect as a JSON object, `args` and `result` verbatim. What is None is left out: a null would be a value."""
    parts = [f'"name":{text(effect.name)},"state":{text(effect.state)},"step":{text(effect.step)},"args":{effect.args}']
    if effect.result is not None:
        parts.append(f'"result":{effect.result}')
    if effect.error is not None:
        parts.append(f'"error":{text(effect.error)}')
    if effect.key is not None:
        parts.append(f'"key":{text(effect.key)}')
    if effect.approval is not None:
        parts.append(f'"approval":{text(effect.approval)}')
    return "{" + ",".join(parts) + "}"


def encode_enqueue(request: Enqueue) -> str:
    """The argument of tenure.enqueue: jobs grouped by queue and kind."""
    groups: dict[tuple[str, str], list[str]] = {}
    for job in request.jobs:
        groups.setdefault((job.queue, job.kind), []).append(_job_row(job))
    parts = [
        f'{{"queue":{quote(queue)},"kind":{quote(kind)},"jobs":[{",".join(rows)}]}}'
        for (queue, kind), rows in groups.items()
    ]
    create = _policies(request.create_queues) if request.create_queues else ""
    return f'{{"groups":[{",".join(parts)}]{create}}}'


def _policies(policies: Any) -> str:
    body = ",".join(f"{quote(name)}:{json.dumps(policy_columns(policy))}" for name, policy in policies.items())
    return f',"create":{{{body}}}'


def _job_row(job: NewJob) -> str:
    if not is_uuid(job.id):
        raise InvalidArgument(f"id: {job.id!r} is not a UUID in its canonical form. Nothing was enqueued.")
    row = f'{{"i":{quote(job.id)},"p":{job.payload}'
    if job.priority is not None:
        row += f',"r":{priority_number(job.priority)}'
    if job.key is not None:
        row += f',"k":{quote(job.key)}'
    if job.max_attempts is not None:
        row += f',"m":{_within("max_attempts", job.max_attempts, 1, _INT32 - 1)}'
    if job.delay_seconds is not None:
        row += f',"d":{_number(job.delay_seconds)}'
    elif job.run_at is not None:
        row += f',"a":{_moment(job.run_at)}'
    if _rarely_set(job) == _NOTHING_RARE:
        return row + "}"
    return f'{row},"x":{{{_extras(job)}}}}}'


def _extras(job: NewJob) -> str:
    for name in _UUIDS:
        value = getattr(job, name)
        if value is not None and not _UUID.fullmatch(value):
            raise InvalidArgument(f"{name} is {value!r}; it must be a UUID, such as {job.id}. Nothing was enqueued.")
    found = [f'"{name}":{quote(value)}' for name in _EXTRAS if (value := getattr(job, name)) is not None]
    if job.backoff is not None:
        check_backoff(job.backoff)
        found.append(f'"backoff":{job.backoff}')
    return ",".join(found)


def decode_enqueue(answer: Any, request: Enqueue) -> list[Enqueued]:
    """One answer per job, in order. A holder that the login may not know of is told as the id that was asked for."""
    if answer is None:
        return [Enqueued(job.id) for job in request.jobs]
    holders = {job_id: JobId(holder or job_id) for job_id, holder in answer["duplicates"]}
    return [
        Enqueued(holders[job.id], duplicate=True) if job.id in holders else Enqueued(job.id) for job in request.jobs
    ]


def encode_claim(claim: Claim, marks: str | None) -> str:
    """The claim part of an exchange. `marks` is what the last answer gave this caller, as JSON."""
    if claim.limit < 0:
        raise InvalidArgument(f"limit is {claim.limit}; a claim takes a number from 0 up.")
    queues = ",".join(quote(name) for name in claim.queues)
    text = f'{{"worker":{quote(claim.worker)},"queues":[{queues}],"limit":{claim.limit}'
    if claim.kinds is not None:
        text += f',"kinds":{json.dumps(list(claim.kinds))}'
    if claim.affinity is not None:
        text += f',"affinity":{json.dumps(list(claim.affinity))}'
    if claim.lease_seconds is not None:
        text += f',"lease":{_number(claim.lease_seconds)}'
    if claim.strict:
        text += ',"strict":true'
    if claim.held is not None:
        text += f',"held":{json.dumps(list(claim.held))}'
    if marks is not None:
        text += f',"marks":{marks}'
    return text + "}"


def decode_grants(granted: Any, claim: Claim) -> list[Grant]:
    """Grants in claim order: those granted again, a job that must run alone, new work. Lines are merged by rank,
    run_at, id; those of several queues are not, where the claim is strict."""
    worker = claim.worker
    grants: list[Grant] = []
    lines = granted["lines"]
    for queue, until, started, rows in lines:
        grants += [
            Grant(
                job_id,
                queue,
                kind,
                token,
                attempt,
                most,
                payload,
                until,
                worker,
                priority,
                crashes,
                started,
                extras,
                suspicion,
                () if flow is None else tuple(map(to_step, flow["steps"])),
                flow is not None and flow["more"],
            )
            for job_id, kind, token, attempt, most, payload, priority, crashes, _, _, extras, suspicion, flow in rows
        ]
    if len(lines) > 1:
        again = granted["again"]
        order = {name: place for place, name in enumerate(claim.queues)} if claim.strict else {}
        places = [
            (row[11] < ALONE_FROM, order.get(queue, 0), row[8], row[9], row[0])
            for queue, *_, rows in lines
            for row in rows
        ]
        return grants[:again] + [grants[at] for at in sorted(range(again, len(grants)), key=places.__getitem__)]
    return grants


def to_step(row: Sequence[Any]) -> Step:
    """A step from the wire."""
    values = list(row)
    values[9:] = map(maybe_moment, values[9:])
    return Step(*values)


def step_json(step: NewStep) -> str:
    """A step as a JSON object, its value verbatim."""
    fields = {"key": step.key, "kind": step.kind, "state": step.state, "error": step.error, "awaits": step.awaits}
    told = text({name: _clean(value) for name, value in fields.items() if value is not None})[:-1]
    if step.due_seconds is not None:
        told += f',"due":{_number(step.due_seconds)}'
    if step.value is not None:
        told += f',"value":{step.value}'
    return told + "}"


def group_json(group: NewGroup, parent_id: JobId) -> str:
    """A group as a JSON object, with its jobs as tenure.enqueue takes them."""
    check_group(group)
    jobs = [job if job.parent_id is not None else replace(job, parent_id=parent_id) for job in group.jobs]
    told: dict[str, Any] = {"id": group.id, "step_key": group.step_key, "ids": [job.id for job in jobs]}
    told |= {"need": group.need, "tolerate": group.tolerate, "fail_fast": group.fail_fast}
    told |= {"window": group.window, "due": group.due_seconds, "cancel_rest": group.cancel_rest}
    known = {name: value for name, value in told.items() if value is not None}
    return f'{text(known)[:-1]},"jobs":{encode_enqueue(Enqueue(jobs))}}}'


def encode_outcomes(outcomes: Iterable[Outcome]) -> str:
    """The outcomes part of an exchange: completions apart from everything else."""
    done: list[str] = []
    rest: list[str] = []
    for outcome in outcomes:
        if type(outcome) is Completed:
            done.append(_completion(outcome))
        else:
            rest.append(_rest_row(outcome))
    parts = []
    if done:
        parts.append(f'"done":[{",".join(done)}]')
    if rest:
        parts.append(f'"rest":[{",".join(rest)}]')
    return f"{{{','.join(parts)}}}"


def _completion(outcome: Completed) -> str:
    text = f'{{"i":{quote(outcome.job_id)},"t":{outcome.token}'
    if outcome.result is not None:
        text += f',"r":{outcome.result}'
    if outcome.result_summary is not None:
        text += f',"s":{quote(outcome.result_summary)}'
    if outcome.artifacts_path is not None:
        text += f',"a":{quote(outcome.artifacts_path)}'
    if outcome.jobs:
        text += f',"jobs":{encode_enqueue(Enqueue(outcome.jobs))}'
    if outcome.events:
        text += f',"events":[{",".join(f"[{quote(event.kind)},{event.data}]" for event in outcome.events)}]'
    if outcome.effects:
        text += f',"effects":[{",".join(map(effect_json, outcome.effects))}]'
    return text + "}"


def _rest_row(outcome: Outcome) -> str:
    fields: dict[str, Any] = {"i": outcome.job_id, "t": outcome.token}
    match outcome:
        case Failed():
            check_number("retry_after_seconds", outcome.retry_after_seconds)
            fields |= {"o": "fail", "e": outcome.error, "c": outcome.failure_class, "d": outcome.retry_after_seconds}
        case Rejected():
            fields |= {"o": "reject", "e": outcome.error, "c": outcome.failure_class}
        case Released():
            check_outcome(outcome)
            check_number("delay_seconds", outcome.delay_seconds)
            fields |= {"o": "release", "e": outcome.error, "c": outcome.failure_class, "d": outcome.delay_seconds}
            fields["l"] = outcome.limiter
        case Suspended():
            check_number("delay_seconds", outcome.delay_seconds)
            fields |= {"o": "suspend", "c": "suspended", "w": outcome.waiting_for, "d": outcome.delay_seconds}
        case Stopped():
            fields |= {"o": "stop", "e": outcome.error, "c": "cancelled"}
    row = json.dumps({name: _clean(value) for name, value in fields.items() if value is not None})
    if isinstance(outcome, Suspended) and outcome.steps:
        check_steps(outcome.steps)
        row = f'{row[:-1]},"steps":[{",".join(map(step_json, outcome.steps))}]}}'
    if isinstance(outcome, Suspended) and outcome.groups:
        groups = ",".join(group_json(group, outcome.job_id) for group in outcome.groups)
        row = f'{row[:-1]},"groups":[{groups}]}}'
    return row


def decode_settled(answer: Any) -> dict[tuple[JobId, Token], Settled]:
    """What did not end as a plain success, by grant."""
    return {(job_id, token): Settled(job_id, token, state, run_at) for job_id, token, state, run_at in answer or ()}


def decode_settle(answer: Any, request: Settle) -> list[Settled]:
    """One answer per outcome, in order."""
    odd = decode_settled(answer["settled"])
    return [
        odd.get((outcome.job_id, outcome.token)) or Settled(outcome.job_id, outcome.token, "succeeded")
        for outcome in request.outcomes
    ]


def decode_exchange(answer: Any, request: Exchange) -> Exchanged:
    """What was settled, what was granted, or why nothing was."""
    told = answer.get("settled")
    settled = decode_settled(told) if told else {}
    refused = answer.get("refused")
    flow = answer.get("flow", False)
    if refused is not None:
        return Exchanged(settled, [], GateClosed(refused["gate"], refused["act"]), flow)
    granted = answer.get("granted")
    if granted is None or request.claim is None:
        return Exchanged(settled, [], has_flow_events=flow)
    claim = request.claim
    grants = decode_grants(granted, claim)
    taken = granted.get("taken")
    taken_back = tuple(decode_settled(taken).values()) if taken else ()
    return Exchanged(settled, grants, None, flow, granted.get("due_in"), taken_back)


def _encode_holds(holds: Sequence[Hold]) -> str:
    rows = []
    for hold in holds:
        row = f'{{"i":{quote(hold.job_id)},"t":{hold.token}'
        if hold.progress is not None:
            row += f',"p":{hold.progress}'
        if not hold.started:
            row += ',"s":false'
        rows.append(row + "}")
    return f'"holds":[{",".join(rows)}]'


def _encode_heartbeat(request: Heartbeat) -> str:
    text = f"{{{_encode_holds(request.holds)}"
    if request.lease_seconds is not None:
        text += f',"lease":{_number(request.lease_seconds)}'
    row = request.worker
    if row is not None:
        text += f',"worker":{{"id":{quote(row.id)},"hostname":{quote(row.hostname)},"pid":{row.pid}'
        text += f',"queues":{json.dumps(list(row.queues))},"kinds":{json.dumps(list(row.kinds))}'
        text += f',"concurrency":{row.concurrency},"version":{quote(row.version)}'
        text += f',"executor_kind":{quote(row.profile_kind)},"status":{quote(row.status)},"info":{row.info}'
        if row.current_job_id is not None:
            text += f',"current_job_id":{quote(row.current_job_id)}'
        text += "}"
    return text + "}"


def _decode_beat(answer: Any, request: Heartbeat) -> Beat:  # noqa: ARG001 - as all that decode
    return Beat(frozenset(answer["lost"]), frozenset(answer["cancel"]), frozenset(answer["overdue"]))


def _decode_started(answer: Any, request: Start) -> list[Settled]:
    lost = set(answer)
    return [Settled(h.job_id, h.token, None if h.job_id in lost else "running") for h in request.holds]


def _encode_cancel(request: Cancel) -> str:
    asked = {"job_ids": list(request.job_ids), "actor": request.actor, "reason": request.reason}
    versions = {job_id.lower(): version for job_id, version in request.versions.items()}
    return json.dumps({**asked, "children": request.children, "versions": versions})


def _decode_cancelled(answer: Any, request: Cancel) -> list[Cancelled]:
    found = {job_id: Cancelled(JobId(job_id), word, state) for job_id, word, state in answer}
    return [found.get(job_id.lower()) or Cancelled(job_id, "refused", None) for job_id in request.job_ids]


def _encode_wake(request: Wake) -> str:
    if request.waiting_for is not None:
        return json.dumps({"job_ids": list(request.job_ids), "waiting_for": request.waiting_for})
    return json.dumps({"job_ids": list(request.job_ids)})


def priority_number(priority: int) -> int:
    """A priority that fits into its column."""
    return _within("priority", priority, -_INT32, _INT32 - 1)


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}; it must be from {low} to {high}.")
    return int(value)


def _number(value: float) -> str:
    """A finite number as JSON; the store's SQL knows no NaN."""
    text = repr(float(value))
    if text in ("nan", "inf", "-inf"):
        raise InvalidArgument(f"A duration is {text}; it must be a finite number of seconds.")
    return text


def _moment(at: datetime) -> int:
    if at.tzinfo is None:
        raise InvalidArgument(
            f"run_at is {at.isoformat()} without a time zone. Give an aware moment, such as datetime.now(UTC)."
        )
    return to_us(at)


def _clean(value: Any) -> Any:
    """Text as PostgreSQL can hold it: an error message may carry NUL or half a surrogate pair."""
    if isinstance(value, str):
        return value.replace("\0", "\\0").encode("utf-8", "replace").decode()
    return value


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    Enqueue: Call("enqueue", encode_enqueue, decode_enqueue),
    Settle: Call("exchange", lambda request: f'{{"outcomes":{encode_outcomes(request.outcomes)}}}', decode_settle),
    Heartbeat: Call(
        "heartbeat",
        _encode_heartbeat,
        _decode_beat,
    ),
    Start: Call("start", lambda request: f"{{{_encode_holds(request.holds)}}}", _decode_started),
    Cancel: Call("cancel", _encode_cancel, _decode_cancelled),
    Wake: Call("wake", _encode_wake, lambda answer, _: [JobId(job_id) for job_id in answer]),
    Reap: Call(
        "reap",
        lambda request: f'{{"limit":{_within("limit", request.limit, 0, _INT32 - 1)}}}',
        lambda answer, _: [Settled(JobId(job_id), Token(token), state, at) for job_id, token, state, at in answer],
    ),
}
