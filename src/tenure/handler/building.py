"""From a kind, a payload and options to a NewJob: the one place where an enqueue is checked before a store sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypedDict

from tenure.errors import InvalidArgument, nearest
from tenure.handler import arguments
from tenure.handler.arguments import INT32_MAX, Duration
from tenure.handler.payload import encode
from tenure.handler.registry import Handler
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
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
    value = {} if payload is MISSING else payload
    if handler is None:
        arguments.name("kind", kind)
        fields: dict[str, Any] = {"queue": default_queue}
        body = encode(value, limits, what=f"Kind {kind!r}: the payload")
    else:
        fields = {"queue": handler.queue, "priority": handler.priority, "max_attempts": handler.max_attempts}
        if handler.backoff is not None:
            fields["backoff"] = handler.backoff
        body = handler.encode(value)
    identity = None
    for option, given in options.items():
        if given is None:
            continue
        check = _CHECKS.get(option)
        if check is None:
            raise InvalidArgument(f"There is no option {option!r} for a job.{nearest(option, _CHECKS)}")
        if option == "id":
            identity = check(option, given)
        else:
            fields["delay_seconds" if option == "delay" else option] = check(option, given)
    if "run_at" in fields and "delay_seconds" in fields:
        raise InvalidArgument("`delay` and `run_at` were both given. Give one: when from now, or when by the clock.")
    if handler is not None and handler.key_of is not None and "key" not in fields:
        shared = handler.key_of(body)
        fields["key"] = f"{shared}:{fields['tenant']}" if "tenant" in fields else shared  # no tenant sees another's run
    return NewJob(id=identity or new_job_id(), kind=kind, payload=body, **fields)


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


def _max_attempts(argument: str, value: Any) -> int:
    return arguments.whole(argument, value, 1, INT32_MAX)


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
