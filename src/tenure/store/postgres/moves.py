"""The moves of a job on the wire: requests to JSON text, answers to values.

Hot path: JSON is put together by hand where payloads and results, which are JSON already, go in as they are.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Sequence
from datetime import datetime
from json.encoder import encode_basestring_ascii as quote
from operator import attrgetter
from typing import Any

from tenure.errors import GateClosed, InvalidArgument
from tenure.model.clock import from_us, to_us
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import NEW_JOB_EXTRAS, Enqueued, Grant, NewJob
from tenure.model.outcome import (
    Beat,
    Completed,
    Failed,
    Outcome,
    Rejected,
    Released,
    Settled,
    Stopped,
    Suspended,
)
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
    Settle,
    Start,
    Wake,
)
from tenure.store.postgres.call import Argument, Call
from tenure.store.postgres.marks import LARGE
from tenure.store.postgres.operating import effect_json
from tenure.store.postgres.reading import policy_columns

_INT32 = 2**31
_UUIDS = ("created_by_user_id", "requested_by_user_id", "workflow_id", "parent_id", "run_id")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_is_uuid = _UUID.fullmatch
_UUID_LIST = re.compile(rf"(?:{_UUID.pattern},)*{_UUID.pattern}")
_rarely_set = attrgetter(*NEW_JOB_EXTRAS)
_NOTHING_RARE = (None,) * len(NEW_JOB_EXTRAS)
_SEEN_BESIDE = ("key", "delay_seconds", "run_at")
_beside_payload = attrgetter("queue", "kind", *_SEEN_BESIDE, *NEW_JOB_EXTRAS)
_NOTHING_SET = (None,) * (len(_SEEN_BESIDE) + len(NEW_JOB_EXTRAS))
_ARRAY = struct.Struct("!iiIii").pack
"""The head of a binary array: dimensions, whether it has nulls, type, length, first index."""
_LENGTH = struct.Struct("!i").pack
_UUID_OID = 2950
_JSON_OID = 114
_EXTRAS = tuple(name for name in NEW_JOB_EXTRAS if name != "backoff")


def enqueue_call(request: Enqueue) -> tuple[str, tuple[Argument, ...]]:
    """The function and its arguments. Jobs of one queue and kind have doors of their own, plain ones the quickest."""
    jobs = request.jobs
    if request.create_queues or not jobs:
        return "enqueue", (encode_enqueue(request),)
    queue, kind = jobs[0].queue, jobs[0].kind
    if not (queue + kind).isprintable():  # an argument of its own would end at a NUL; inside JSON it is refused
        return "enqueue", (encode_enqueue(request),)
    plain = (queue, kind, *_NOTHING_SET)
    if len(jobs) == 1:
        if _beside_payload(jobs[0]) == plain:
            return "enqueue_one", (queue, kind, *_one_plain(jobs[0]), "true")
    elif all(_beside_payload(job) == plain for job in jobs):
        arguments = _many_plain(jobs)
        if arguments is not None:
            return "enqueue_plain", (queue, kind, *arguments)
    groups = _grouped(jobs)
    if len(groups) > 1:
        return "enqueue", (_enqueue_json(groups, request, None),)
    [rows] = groups.values()
    return "enqueue_group", (queue, kind, str(len(rows)), f"[{','.join(rows)}]")


def _one_plain(job: NewJob) -> tuple[Argument, ...]:
    priority, most = job.priority, job.max_attempts
    return (
        job.id,
        job.payload.encode(),  # the binary form of json is its text, with whatever is in it
        None if priority is None else str(_within("priority", priority, -_INT32, _INT32 - 1)),
        None if most is None else str(_within("max_attempts", most, 1, _INT32 - 1)),
    )


def _many_plain(jobs: Sequence[NewJob]) -> tuple[Argument, ...] | None:
    """Ids, payloads, priorities and numbers of attempts as arrays, the long ones binary. None if an id is no UUID."""
    ids = ",".join([job.id for job in jobs])
    if not _UUID_LIST.fullmatch(ids):
        return None
    count = len(jobs)
    uuids = bytes.fromhex(f"00000010{ids.replace(',', '00000010').replace('-', '')}")
    pieces = [_ARRAY(1, 0, _JSON_OID, count, 1)]
    for job in jobs:
        payload = job.payload.encode()
        pieces += (_LENGTH(len(payload)), payload)
    return (
        _ARRAY(1, 0, _UUID_OID, count, 1) + uuids,
        b"".join(pieces),
        _integers("priority", [job.priority for job in jobs], -_INT32),
        _integers("max_attempts", [job.max_attempts for job in jobs], 1),
    )


def _integers(name: str, values: list[int | None], low: int) -> str | None:
    """An array of integers with gaps, as text; None if nothing is in it."""
    if values.count(None) == len(values):
        return None
    return f"{{{','.join('NULL' if n is None else str(_within(name, n, low, _INT32 - 1)) for n in values)}}}"


def encode_enqueue(request: Enqueue, notify: str | None = None) -> str:
    """The argument of tenure.enqueue: jobs grouped by queue and kind."""
    return _enqueue_json(_grouped(request.jobs), request, notify)


def _grouped(jobs: Sequence[NewJob]) -> dict[tuple[str, str], list[str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        rows = groups.get((job.queue, job.kind))
        if rows is None:
            rows = groups[job.queue, job.kind] = []
        rows.append(_job_row(job))
    return groups


def _enqueue_json(groups: dict[tuple[str, str], list[str]], request: Enqueue, notify: str | None) -> str:
    parts = [
        f'{{"queue":{quote(queue)},"kind":{quote(kind)},"jobs":[{",".join(rows)}]}}'
        for (queue, kind), rows in groups.items()
    ]
    create = _policies(request.create_queues) if request.create_queues else ""
    always = f',"notify":{quote(notify)}' if notify else ""
    return f'{{"groups":[{",".join(parts)}]{create}{always}}}'


def _policies(policies: Any) -> str:
    body = ",".join(f"{quote(name)}:{json.dumps(policy_columns(policy))}" for name, policy in policies.items())
    return f',"create":{{{body}}}'


def _job_row(job: NewJob) -> str:
    row = f'{{"i":{quote(job.id)},"p":{job.payload}'
    if job.priority is not None:
        row += f',"r":{_within("priority", job.priority, -_INT32, _INT32 - 1)}'
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
        found.append(f'"backoff":{job.backoff}')
    return ",".join(found)


def decode_enqueue(answer: Any, request: Enqueue) -> list[Enqueued]:
    """One answer per job, in order."""
    if answer is None:
        return [Enqueued(job.id) for job in request.jobs]
    found = answer["duplicates"] if isinstance(answer, dict) else answer
    holders = {job_id: JobId(holder) for job_id, holder in found}
    return [
        Enqueued(holders[job.id], duplicate=True) if job.id in holders else Enqueued(job.id) for job in request.jobs
    ]


def is_few(claim: Claim) -> bool:
    """Whether `claim_few` may carry it out."""
    return (
        0 <= claim.limit < LARGE
        and len(claim.queues) == 1
        and claim.kinds is None
        and claim.affinity is None
        and claim.held is None
    )


def encode_few(claim: Claim, times: tuple[int | None, int | None] | None) -> tuple[Argument, ...]:
    """The arguments of `claim_few`. `times` are the marks that the last answer gave this caller."""
    expired, due = times or (None, None)
    return (
        _clean(claim.worker),
        _clean(claim.queues[0]),
        str(claim.limit),
        None if claim.lease_seconds is None else _number(claim.lease_seconds),
        None if expired is None else str(expired),
        None if due is None else str(due),
        None if claim.wants_wake is None else str(claim.wants_wake),
        "true" if claim.beats else "false",
        "false",
        "true" if claim.offers else "false",
        "true" if claim.offered else "false",
    )


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
    if claim.wants_wake is not None:
        text += f',"wake":{"true" if claim.wants_wake else "false"}'
    if claim.beats:
        text += ',"beat":true'
    if claim.offers:
        text += ',"offers":true'
    if claim.offered:
        text += ',"offered":true'
    if marks is not None:
        text += f',"marks":{marks}'
    return text + "}"


def decode_grants(granted: Any, worker: WorkerId, *, strict: bool = False) -> list[Grant]:
    """Grants in claim order. Lines of several queues are merged by rank, run_at, id, unless strict."""
    grants: list[Grant] = []
    lines = granted["lines"]
    for queue, until, started, rows in lines:
        lease_until = from_us(until)
        grants += [
            Grant(
                job_id,
                queue,
                kind,
                token,
                attempt,
                most,
                payload,
                lease_until,
                worker,
                priority,
                crashes,
                started,
                extras,
            )
            for job_id, kind, token, attempt, most, payload, priority, crashes, _, _, extras in rows
        ]
    if len(lines) > 1 and not strict:
        places = [(row[8], row[9], row[0]) for *_, rows in lines for row in rows]
        return [grants[at] for at in sorted(range(len(grants)), key=places.__getitem__)]
    return grants


def encode_outcomes(outcomes: Iterable[Outcome]) -> str:
    """The outcomes part of an exchange: plain completions apart from everything else."""
    ids: list[str] = []
    tokens: list[str] = []
    done: list[str] = []
    rest: list[str] = []
    for outcome in outcomes:
        if type(outcome) is not Completed or outcome.jobs or outcome.events or outcome.effects:
            rest.append(_rest_row(outcome))
        elif outcome.result is outcome.result_summary is outcome.artifacts_path is None and _is_uuid(outcome.job_id):
            ids.append(outcome.job_id)
            tokens.append(str(outcome.token))
        else:
            done.append(f"{{{_completion(outcome)}}}")
    parts = []
    if ids:  # arrays in text: the server reads them in a fraction of the time that so many objects take
        parts.append(f'"ids":"{{{",".join(ids)}}}","tokens":"{{{",".join(tokens)}}}"')
    if done:
        parts.append(f'"done":[{",".join(done)}]')
    if rest:
        parts.append(f'"rest":[{",".join(rest)}]')
    return f"{{{','.join(parts)}}}"


def _completion(outcome: Completed) -> str:
    text = f'"i":{quote(outcome.job_id)},"t":{outcome.token}'
    if outcome.result is not None:
        text += f',"r":{outcome.result}'
    if outcome.result_summary is not None:
        text += f',"s":{quote(outcome.result_summary)}'
    if outcome.artifacts_path is not None:
        text += f',"a":{quote(outcome.artifacts_path)}'
    return text


def _rest_row(outcome: Outcome) -> str:
    fields: dict[str, Any] = {"i": outcome.job_id, "t": outcome.token}
    match outcome:
        case Completed():
            return _full_completion(outcome)
        case Failed():
            fields |= {"o": "fail", "e": outcome.error, "c": outcome.failure_class, "d": outcome.retry_after_seconds}
        case Rejected():
            fields |= {"o": "reject", "e": outcome.error, "c": outcome.failure_class}
        case Released():
            fields |= {
                "o": "release",
                "e": outcome.error,
                "c": outcome.failure_class or "shutdown",
                "d": outcome.delay_seconds,
            }
        case Suspended():
            fields |= {"o": "suspend", "c": "suspended", "w": outcome.waiting_for, "d": outcome.delay_seconds}
        case Stopped():
            fields |= {"o": "stop", "e": outcome.error, "c": "cancelled"}
    return json.dumps({name: _clean(value) for name, value in fields.items() if value is not None})


def _full_completion(outcome: Completed) -> str:
    text = f'{{{_completion(outcome)},"o":"complete"'
    if outcome.jobs:
        text += f',"jobs":{encode_enqueue(Enqueue(outcome.jobs))}'
    if outcome.events:
        text += f',"events":[{",".join(f"[{quote(event.kind)},{event.data}]" for event in outcome.events)}]'
    if outcome.effects:
        text += f',"effects":[{",".join(map(effect_json, outcome.effects))}]'
    return text + "}"


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
    if refused is not None:
        return Exchanged(settled, [], GateClosed(refused["gate"], refused["act"]))
    granted = answer.get("granted")
    if granted is None or request.claim is None:
        return Exchanged(settled, [])
    claim = request.claim
    grants = decode_grants(granted, claim.worker, strict=claim.strict)
    news = granted.get("news")
    beat = None if news is None else Beat(queues=news["queues"], led_seconds=news["led"])
    return Exchanged(
        settled,
        grants,
        waiting=granted.get("waiting") or 0,
        is_shared=granted.get("shared"),
        beat=beat,
        is_offered=granted.get("offered") or False,
        age_seconds=max(0.0, granted.get("age") or 0.0),
    )


def decode_taken(answer: Any, claim: Claim) -> Exchanged:
    """A job that was handed over. If it is not there any more the offer may stand yet, and the next claim tells."""
    grants = decode_grants(answer, claim.worker)
    is_there = bool(grants)
    return Exchanged(
        {}, grants, is_handed_over=is_there, is_offered=not is_there, age_seconds=max(0.0, answer["age"] or 0.0)
    )


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
        text += '},"news":true'
    return text + "}"


def _decode_beat(answer: Any, request: Heartbeat) -> Beat:  # noqa: ARG001 - as all that decode
    news = answer.get("news") or {}
    return Beat(frozenset(answer["lost"]), frozenset(answer["cancel"]), news.get("queues"), news.get("led"))


def _decode_started(answer: Any, request: Start) -> list[Settled]:
    lost = set(answer)
    return [Settled(h.job_id, h.token, None if h.job_id in lost else "running") for h in request.holds]


def _decode_cancelled(answer: Any, request: Cancel) -> list[Cancelled]:
    found = {job_id: Cancelled(JobId(job_id), word, state) for job_id, word, state in answer}
    return [found[job_id.lower()] for job_id in request.job_ids]


def _encode_wake(request: Wake) -> str:
    if request.waiting_for is not None:
        return json.dumps({"job_ids": list(request.job_ids), "waiting_for": request.waiting_for})
    return json.dumps({"job_ids": list(request.job_ids)})


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


CALLS: dict[type[Any], Call] = {
    Settle: Call("exchange", lambda request: f'{{"outcomes":{encode_outcomes(request.outcomes)}}}', decode_settle),
    Heartbeat: Call(
        "heartbeat",
        _encode_heartbeat,
        _decode_beat,
    ),
    Start: Call("start", lambda request: f"{{{_encode_holds(request.holds)}}}", _decode_started),
    Cancel: Call(
        "cancel",
        lambda r: json.dumps({"job_ids": list(r.job_ids), "actor": r.actor, "reason": r.reason}),
        _decode_cancelled,
    ),
    Wake: Call("wake", _encode_wake, lambda answer, _: [JobId(job_id) for job_id in answer]),
    Reap: Call(
        "reap",
        lambda request: f'{{"limit":{_within("limit", request.limit, 0, _INT32 - 1)}}}',
        lambda answer, _: [Settled(JobId(job_id), Token(token), state) for job_id, token, state in answer],
    ),
}
