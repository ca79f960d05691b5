"""From a kind, a payload and options to a NewJob: the one place where an enqueue is checked before a store sees it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypedDict

from tenure.errors import InvalidArgument, nearest
from tenure.handler import arguments
from tenure.handler.arguments import INT32_MAX, Duration, Names
from tenure.handler.payload import encode
from tenure.handler.registry import Handler
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import NewJob
from tenure.model.limiter import joined
from tenure.model.policy import Backoff, Limits


class JobOptions(TypedDict, total=False):
    """What an enqueue may say beside kind and payload. The handler decides what is left out, then the queue does."""

    queue: str | None
    """Where it waits; the handler's queue if left out, `default` for kinds without a handler here."""
    key: str | None
    """Idempotency key: while a job holds it, another enqueue answers that job's id."""
    priority: int | None
    delay: Duration | None
    """Seconds or timedelta from the store's now."""
    run_at: datetime | None
    max_attempts: int | None
    backoff: Backoff | None
    affinity_key: str | None
    concurrency_key: str | None
    limits: Names | None
    """Keys of the limiters that it carries, instead of the handler's; an empty list for none."""
    source_ref: str | None
    target_ref: str | None
    payload_ref: str | None
    actor: str | None
    created_by_user_id: str | None
    requested_by_user_id: str | None
    tenant: str | None
    workflow_id: str | None
    parent_id: str | None
    run_id: str | None
    trace: str | None
    artifacts_path: str | None
    id: str | None
    """A UUID of the caller's own, so that a repeated enqueue finds its row."""


class ChildOptions(TypedDict, total=False):
    """What a spawn or a map may say of its children. They are known by their place, so they hold no key."""

    queue: str | None
    priority: int | None
    delay: Duration | None
    run_at: datetime | None
    max_attempts: int | None
    backoff: Backoff | None
    affinity_key: str | None
    concurrency_key: str | None
    limits: Names | None
    source_ref: str | None
    target_ref: str | None
    payload_ref: str | None
    actor: str | None
    tenant: str | None
    run_id: str | None
    trace: str | None


class _Missing:
    """Stands for a payload that was not given; None is a payload: JSON null."""

    def __repr__(self) -> str:
        return "{}"


MISSING: Any = _Missing()


def build_job(
    kind: str, payload: Any, options: Mapping[str, Any], handler: Handler | None, limits: Limits, default_queue: str
) -> NewJob:
    """A checked job with an id of its own. A kind with a handler has its payload validated.

    Raises: InvalidPayload, InvalidArgument.
    """
    (job,) = build_jobs(kind, (payload,), options, handler, limits, default_queue)
    return job


def build_jobs(
    kind: str,
    payloads: Iterable[Any],
    options: Mapping[str, Any],
    handler: Handler | None,
    limits: Limits,
    default_queue: str,
) -> Iterator[NewJob]:
    """The same for many payloads that share their options; those are checked once.

    Raises: InvalidPayload, InvalidArgument.
    """
    identity, fields = _terms(kind, options, handler, default_queue)
    key_of = concurrency_key_of = None
    absent: Any = {}
    to_text: Callable[[Any], str]
    if handler is None:
        to_text = functools.partial(encode, limits=limits, what=f"Kind {kind!r}: the payload")
    else:
        to_text, absent = handler.encode, handler.absent
        key_of = None if "key" in fields else handler.key_of
        concurrency_key_of = None if "concurrency_key" in fields else handler.concurrency_key_of
    for payload in payloads:
        body = to_text(absent if payload is MISSING else payload)
        if key_of is not None:
            fields["key"] = _shared_key(key_of(body), fields.get("tenant"))
        if concurrency_key_of is not None:
            fields["concurrency_key"] = concurrency_key_of(body)
        yield NewJob(identity or new_job_id(), kind, body, **fields)


def _terms(
    kind: str, options: Mapping[str, Any], handler: Handler | None, default_queue: str
) -> tuple[JobId | None, dict[str, Any]]:
    """What a job's options and its handler say of it: its id, if it was given one, and its columns."""
    if handler is None:
        arguments.name("kind", kind)
        fields: dict[str, Any] = {"queue": default_queue}
    else:
        fields = {"queue": handler.queue, "priority": handler.priority, "max_attempts": handler.max_attempts}
        if handler.backoff is not None:
            fields["backoff"] = handler.backoff
        if handler.limiter is not None:
            fields["limiter"] = handler.limiter
    identity: JobId | None = None
    for option, given in options.items():
        if given is None:
            continue
        check = _CHECKS.get(option)
        if check is None:
            raise InvalidArgument(f"There is no option {option!r} for a job.{nearest(option, _CHECKS)}")
        if option == "id":
            identity = check(option, given)
        else:
            fields[_COLUMNS.get(option, option)] = check(option, given)
    if "run_at" in fields and "delay_seconds" in fields:
        raise InvalidArgument("`delay` and `run_at` were both given. Give one: when from now, or when by the clock.")
    return identity, fields


def _shared_key(key: str, tenant: str | None) -> str:
    """A key that was made from the payload. No tenant is answered with another's job."""
    return key if tenant is None else f"{key}:{tenant}"


def backoff_json(argument: str, value: Any) -> str:
    """JSON of a Backoff, checked."""
    if not isinstance(value, Backoff):
        raise InvalidArgument(f"`{argument}` must be a tenure.Backoff, got {type(value).__name__}.")
    check_backoff(value)
    return json.dumps(asdict(value), separators=(",", ":"))


def check_backoff(value: Backoff) -> None:
    """Raise InvalidArgument unless the figures make sense."""
    arguments.one_of("backoff.shape", value.shape, ("none", "constant", "linear", "power", "exponential"))
    for field in ("base_seconds", "cap_seconds", "power", "factor", "jitter"):
        arguments.seconds(f"backoff.{field}", getattr(value, field))


def limiter_keys(argument: str, value: Any) -> str | None:
    """Keys of limiters as the text that a job carries; None for none."""
    return joined(arguments.names(argument, value))


def _max_attempts(argument: str, value: Any) -> int:
    return arguments.whole(argument, value, 1, INT32_MAX)


_COLUMNS: Mapping[str, str] = {"delay": "delay_seconds", "limits": "limiter"}
"""Options whose column has another name."""

_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "queue": arguments.name,
    "key": arguments.text,
    "priority": arguments.whole,
    "delay": arguments.seconds,
    "run_at": arguments.moment,
    "max_attempts": _max_attempts,
    "backoff": backoff_json,
    "affinity_key": arguments.text,
    "concurrency_key": arguments.text,
    "limits": limiter_keys,
    "source_ref": arguments.text,
    "target_ref": arguments.text,
    "payload_ref": arguments.text,
    "actor": arguments.text,
    "created_by_user_id": arguments.uuid_text,
    "requested_by_user_id": arguments.uuid_text,
    "tenant": arguments.text,
    "workflow_id": arguments.uuid_text,
    "parent_id": arguments.job_id,
    "run_id": arguments.uuid_text,
    "trace": arguments.text,
    "artifacts_path": arguments.text,
    "id": arguments.job_id,
}
