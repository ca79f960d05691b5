"""What can be asked, as calls of PostgreSQL functions: requests to JSON arguments, JSON answers to rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic_core import PydanticSerializationError, from_json, to_json

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us
from tenure.model.event import Event
from tenure.model.ids import JobId, WorkerId
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import State
from tenure.store.contract import Request, WorkerRow
from tenure.store.postgres.call import Call
from tenure.store.queries import (
    Audit,
    Count,
    CountJobs,
    DeadLetterGroup,
    Effect,
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

T = TypeVar("T")

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_LATEST_US: Final = 253_402_300_800_000_000
"""The first microsecond that a datetime cannot hold. Moments from there on, 'infinity' too, are shown as the last."""

_BACKOFF: Final = tuple(f.name for f in dataclasses.fields(Backoff))
_POLICY: Final = tuple(f.name for f in dataclasses.fields(QueuePolicy) if f.name not in {"backoff", "forbidden_keys"})
_JOB_MOMENTS: Final = ("run_at", "created_at", "updated_at")
_JOB_MAYBE_MOMENTS: Final = (
    "lease_until",
    "cancel_requested_at",
    "claimed_at",
    "started_at",
    "finished_at",
    "cleaned_at",
)


def moment(us: int) -> datetime:
    """A moment from the wire."""
    return from_us(us) if us < _LATEST_US else _LATEST


def maybe_moment(us: int | None) -> datetime | None:
    """A moment from the wire, where there may be none."""
    return None if us is None else moment(us)


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


def to_job(row: dict[str, Any]) -> Job:
    """A job from its JSON object."""
    for name in _JOB_MOMENTS:
        row[name] = moment(row[name])
    for name in _JOB_MAYBE_MOMENTS:
        row[name] = maybe_moment(row[name])
    row["state"] = State(row["state"])
    return Job(**row)


def to_queue_row(row: dict[str, Any]) -> QueueRow:
    """A queue from its JSON object: the policy stands there in columns."""
    policy = QueuePolicy(
        **{name: row[name] for name in _POLICY},
        backoff=Backoff(**{name: row[f"backoff_{name}"] for name in _BACKOFF}),
        forbidden_keys=tuple(row["forbidden_keys"] or ()),
    )
    return QueueRow(
        name=row["name"],
        policy=policy,
        paused_at=maybe_moment(row["paused_at"]),
        paused_by=row["paused_by"],
        created_at=moment(row["created_at"]),
        updated_at=moment(row["updated_at"]),
    )


def policy_columns(policy: QueuePolicy) -> dict[str, Any]:
    """A policy as the columns of its queue's row, the form that `set_queues` and `enqueue` take."""
    columns = {name: getattr(policy, name) for name in _POLICY}
    columns |= {f"backoff_{name}": getattr(policy.backoff, name) for name in _BACKOFF}
    columns["forbidden_keys"] = list(policy.forbidden_keys) or None
    return columns


def to_gate(row: dict[str, Any]) -> Gate:
    """A gate from its JSON object."""
    return Gate(**(row | {"updated_at": maybe_moment(row["updated_at"])}))


def to_effect(row: dict[str, Any]) -> Effect:
    """An effect from its JSON object."""
    return Effect(**(row | {"intended_at": moment(row["intended_at"]), "updated_at": moment(row["updated_at"])}))


def _to_dead_letter(row: dict[str, Any]) -> DeadLetter:
    row["moved_at"] = moment(row["moved_at"])
    row["triaged_at"] = maybe_moment(row["triaged_at"])
    row["state"] = State(row["state"])
    return DeadLetter(**row)


def _to_attempt(row: dict[str, Any]) -> Attempt:
    row["ended_at"] = moment(row["ended_at"])
    for name in ("claimed_at", "run_at"):
        row[name] = maybe_moment(row[name])
    return Attempt(**row)


def _to_group(row: dict[str, Any]) -> DeadLetterGroup:
    return DeadLetterGroup(**(row | {"first_at": moment(row["first_at"]), "last_at": moment(row["last_at"])}))


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
        started_at=moment(row["started_at"]),
        last_seen_at=moment(row["last_seen_at"]),
        ticks=row["ticks"],
        wants_wake=row["wants_wake"],
        held=row["held"],
        is_leader=row["is_leader"],
        leader_until=maybe_moment(row["leader_until"]),
    )


def _to_count(row: dict[str, Any]) -> Count:
    return Count(**(row | {"oldest_at": maybe_moment(row["oldest_at"])}))


def _to_event(row: dict[str, Any]) -> Event:
    return Event(**(row | {"at": moment(row["at"])}))


def _to_audit(row: dict[str, Any]) -> Audit:
    return Audit(**(row | {"at": moment(row["at"])}))


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
    ListAudit: Call("list_audit", encode, _rows(_to_audit)),
    ListEffects: Call(
        "list_effects",
        _encode_place,
        _page(to_effect, lambda row: text([row["job_id"], row["step"], row["name"]])),
    ),
}
