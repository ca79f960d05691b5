"""Reads, as calls of PostgreSQL functions: requests to JSON arguments, JSON answers to rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic_core import from_json

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us, to_us
from tenure.model.event import Event
from tenure.model.ids import JobId, WorkerId
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import State
from tenure.store.contract import Pruned, Request, WorkerRow
from tenure.store.metrics import CountedSpans, ListMetrics, Metric, ReadMetrics, RolledUp, RollUp, SpanCounts
from tenure.store.postgres import migrate as migrations
from tenure.store.postgres.codec import BACKOFF, POLICY, Call, encode, maybe_moment, text
from tenure.store.postgres.errors import driver_errors
from tenure.store.postgres.pool import connect_alone
from tenure.store.postgres.sql import statement
from tenure.store.queries import (
    Audit,
    Count,
    CountJobs,
    DeadLetterGroup,
    Effect,
    Followed,
    FollowEvents,
    Gate,
    GetJobs,
    GroupDeadLetters,
    ListAttempts,
    ListAudit,
    ListDeadLetters,
    ListEffects,
    ListEvents,
    ListGates,
    ListJobs,
    ListQueues,
    ListWorkers,
    Page,
    QueueRow,
    WorkerSeen,
)
from tenure.store.summary import (
    Backlog,
    Inspection,
    LastMove,
    Prunable,
    PruneLag,
    Ran,
    Repeated,
    Standing,
    Stood,
    Stuck,
    Summary,
    Summed,
)

T = TypeVar("T")

_JOB_MOMENTS: Final = ("run_at", "created_at", "updated_at")
_JOB_MAYBE_MOMENTS: Final = (
    "lease_until",
    "cancel_requested_at",
    "claimed_at",
    "started_at",
    "finished_at",
    "cleaned_at",
)


def to_job(row: dict[str, Any]) -> Job:
    """A job from its JSON object."""
    for name in _JOB_MOMENTS:
        row[name] = from_us(row[name])
    for name in _JOB_MAYBE_MOMENTS:
        row[name] = maybe_moment(row[name])
    row["state"] = State(row["state"])
    return Job(**row)


def to_queue_row(row: dict[str, Any]) -> QueueRow:
    """A queue from its JSON object: the policy stands there in columns."""
    return QueueRow(
        name=row["name"],
        policy=to_policy(row),
        paused_at=maybe_moment(row["paused_at"]),
        paused_by=row["paused_by"],
        created_at=from_us(row["created_at"]),
        updated_at=from_us(row["updated_at"]),
    )


def to_policy(row: dict[str, Any]) -> QueuePolicy:
    """A policy from the columns that hold it."""
    return QueuePolicy(
        **{name: row[name] for name in POLICY},
        backoff=Backoff(**{name: row[f"backoff_{name}"] for name in BACKOFF}),
        forbidden_keys=tuple(row["forbidden_keys"] or ()),
    )


def to_gate(row: dict[str, Any]) -> Gate:
    """A gate from its JSON object."""
    return Gate(**(row | {"updated_at": maybe_moment(row["updated_at"])}))


def to_effect(row: dict[str, Any]) -> Effect:
    """An effect from its JSON object."""
    return Effect(**(row | {"intended_at": from_us(row["intended_at"]), "updated_at": from_us(row["updated_at"])}))


def _to_dead_letter(row: dict[str, Any]) -> DeadLetter:
    row["moved_at"] = from_us(row["moved_at"])
    row["triaged_at"] = maybe_moment(row["triaged_at"])
    row["state"] = State(row["state"])
    return DeadLetter(**row)


def _to_attempt(row: dict[str, Any]) -> Attempt:
    row["ended_at"] = from_us(row["ended_at"])
    for name in ("claimed_at", "run_at"):
        row[name] = maybe_moment(row[name])
    return Attempt(**row)


def _to_group(row: dict[str, Any]) -> DeadLetterGroup:
    return DeadLetterGroup(**(row | {"first_at": from_us(row["first_at"]), "last_at": from_us(row["last_at"])}))


def _to_worker(row: dict[str, Any]) -> WorkerSeen:
    return WorkerSeen(
        row=WorkerRow(
            id=WorkerId(row["id"]),
            hostname=row["hostname"],
            pid=row["pid"],
            queues=tuple(row["queues"]),
            kinds=tuple(row["kinds"]),
            concurrency=row["concurrency"],
            version=row["version"],
            profile_kind=row["executor_kind"],
            status=row["status"],
            current_job_id=row["current_job_id"],
            info=text(row["info"]),
        ),
        started_at=from_us(row["started_at"]),
        last_seen_at=from_us(row["last_seen_at"]),
        ticks=row["ticks"],
        held=row["held"],
        is_leader=row["is_leader"],
        leader_until=maybe_moment(row["leader_until"]),
    )


def _to_count(row: dict[str, Any]) -> Count:
    return Count(**(row | {"oldest_at": maybe_moment(row["oldest_at"])}))


def _to_event(row: dict[str, Any]) -> Event:
    return Event(**(row | {"at": from_us(row["at"])}))


def _to_audit(row: dict[str, Any]) -> Audit:
    return Audit(**(row | {"at": from_us(row["at"])}))


def _get_jobs(answer: list[dict[str, Any]], request: GetJobs) -> list[Job | None]:
    found = {row["id"]: row for row in answer}
    # A job asked for twice is answered twice, each time as a value of its own.
    return [to_job(dict(found[key])) if (key := job_id.lower()) in found else None for job_id in request.job_ids]


def _rows(to_row: Callable[[dict[str, Any]], T]) -> Callable[[list[dict[str, Any]], Any], list[T]]:
    return lambda answer, _request: [to_row(row) for row in answer]


def _page(
    to_row: Callable[[dict[str, Any]], T], mark: Callable[[dict[str, Any]], str]
) -> Callable[[list[dict[str, Any]], Any], Page[T]]:
    """A page from one row more than it holds: that row only tells that the list goes on."""

    def decode(answer: list[dict[str, Any]], request: Any) -> Page[T]:
        rows = answer[: request.limit]
        after = mark(rows[-1]) if len(answer) > request.limit else None
        return Page([to_row(row) for row in rows], after)

    return decode


def _encode_place(request: Any) -> str:
    """The same as `encode`, for lists whose place is itself a JSON list."""
    fields = {f.name: getattr(request, f.name) for f in dataclasses.fields(request)}
    if request.after is not None:
        try:
            fields["after"] = from_json(request.after)
        except ValueError:
            raise InvalidArgument(f"after={request.after!r} is no place in this list. Pass `next` of a page.") from None
    return text(fields)


def _summed(answer: Any, request: Summary) -> Summed:
    return Summed(
        at=from_us(answer["at"]),
        window_seconds=request.window_seconds if answer["is_whole"] else (answer["at"] - answer["since"]) / 1e6,
        is_whole=answer["is_whole"],
        ran=[Ran(*_timed(row)) for row in answer["ran"]],
        stuck_count=answer["stuck_count"],
        stuck=[Stuck(*_timed(row)) for row in answer["stuck"]],
        backlog=[Backlog(*_timed(row)) for row in answer["backlog"]],
        repeated=[Repeated(*row) for row in answer["repeated"]],
    )


def _timed(row: list[Any]) -> list[Any]:
    """A row whose last column is a moment."""
    return [*row[:-1], None if row[-1] is None else from_us(row[-1])]


def _stood(answer: Any, _: Standing) -> Stood | None:
    return None if answer is None else Stood(**{**answer, "at": from_us(answer["at"])})


def _rolled_up(answer: Any, _: RollUp) -> RolledUp:
    return RolledUp(None if answer["until"] is None else from_us(answer["until"]), answer["rows"], answer["more"])


def _at_queue(after: tuple[datetime, str] | None) -> list[Any] | None:
    return None if after is None else [to_us(after[0]), after[1]]


def _encode_read_metrics(request: ReadMetrics) -> str:
    told: dict[str, Any] = {
        "span": request.span,
        "since": None if request.since is None else to_us(request.since),
        "until": None if request.until is None else to_us(request.until),
        "queues": list(request.queues),
        "limit": request.limit,
        "after": _at_queue(request.after),
        "is_summed": request.is_summed,
    }
    return text(told)


def _counted_spans(answer: dict[str, Any], request: ReadMetrics) -> CountedSpans:
    rows = [
        SpanCounts(*(from_us(row[0]), *row[1:13], [(what, part, number) for what, part, number in row[13]]))
        for row in answer["rows"]
    ]
    marks = (maybe_moment(answer[name]) for name in ("counted_until", "hour_until", "day_until"))
    return CountedSpans(rows, len(rows) == request.limit, *marks)


def inspect(url: str, newest: Callable[[], Any]) -> Inspection:
    """What the server says about itself. `newest` asks our own schema, and is called only if it is there."""
    version = migrations.schema_version(url)
    with driver_errors(url), connect_alone(url, "tenure") as connection:
        row = connection.execute(statement("inspect")).fetchone()
    assert row is not None
    facts = row[0] | (newest() if version >= migrations.newest() else {"newest_created_at": None, "last_event": 0})
    created, moved = facts["newest_created_at"], facts.get("last_move")
    facts |= {"at": from_us(facts["at"]), "newest_created_at": None if created is None else from_us(created)}
    facts["last_move"] = LastMove(**moved) if moved else None
    return Inspection(engine="postgresql", schema_version=version, schema_wanted=migrations.newest(), **facts)


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    GetJobs: Call("get_jobs", lambda request: text({"job_ids": list(request.job_ids)}), _get_jobs),
    ListJobs: Call("list_jobs", encode, _page(to_job, lambda row: JobId(row["id"]))),
    CountJobs: Call("count_jobs", encode, _rows(_to_count)),
    ListAttempts: Call("list_attempts", encode, _rows(_to_attempt)),
    ListDeadLetters: Call(
        "list_dead_letters", _encode_place, _page(_to_dead_letter, lambda row: text([row["moved_at"], row["id"]]))
    ),
    GroupDeadLetters: Call("group_dead_letters", encode, _rows(_to_group)),
    ListQueues: Call("list_queues", encode, _rows(to_queue_row)),
    ListGates: Call("list_gates", encode, _rows(to_gate)),
    ListWorkers: Call("list_workers", encode, _rows(_to_worker)),
    ListEvents: Call("list_events", encode, _rows(_to_event)),
    FollowEvents: Call(
        "follow_events",
        encode,
        lambda answer, _: Followed(**(answer | {"events": [_to_event(row) for row in answer["events"]]})),
    ),
    ListAudit: Call("list_audit", encode, _rows(_to_audit)),
    ListEffects: Call(
        "list_effects",
        _encode_place,
        _page(to_effect, lambda row: text([row["job_id"], row["step"], row["name"]])),
    ),
    Summary: Call(
        "summary",
        encode,
        _summed,
    ),
    RollUp: Call("roll_up", lambda r: json.dumps({"minutes": r.minutes}), _rolled_up),
    ListMetrics: Call(
        "list_metrics",
        lambda r: json.dumps(
            {"minutes": r.minutes, "queues": list(r.queues), "limit": r.limit, "after": _at_queue(r.after)}
        ),
        lambda answer, _: [Metric(from_us(row[0]), *row[1:]) for row in answer],
    ),
    ReadMetrics: Call("read_metrics", _encode_read_metrics, _counted_spans),
    Standing: Call("standing", lambda r: json.dumps({"job_id": r.job_id, "cap": r.cap}), _stood),
    PruneLag: Call("prune_lag", encode, lambda answer, _: float(answer)),
    Prunable: Call("prunable", lambda r: json.dumps(asdict(r.prune)), lambda answer, _: Pruned(**answer)),
}
