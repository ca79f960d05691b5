"""From a kind, a payload and options to a NewJob: the one place where an enqueue is checked before a store sees it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
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
    return JobBuilder(kind, options, handler, limits, default_queue).build(payload)


class JobBuilder:
    """Builds jobs of one kind that share their options, which are checked once, here.

    Raises: InvalidArgument.
    """

    def __init__(
        self, kind: str, options: Mapping[str, Any], handler: Handler | None, limits: Limits, default_queue: str
    ) -> None:
        self._kind = kind
        self._id: JobId | None = None
        self._key_of = self._concurrency_key_of = None
        self._absent: Any = {}
        self._to_text: Callable[[Any], str]
        self._fields: dict[str, Any] = {"queue": default_queue}
        if handler is None:
            arguments.name("kind", kind)
            self._to_text = functools.partial(encode, limits=limits, what=f"Kind {kind!r}: the payload")
        else:
            self._to_text, self._absent = handler.encode, handler.absent
            self._fields = {"queue": handler.queue, "priority": handler.priority, "max_attempts": handler.max_attempts}
            if handler.backoff is not None:
                self._fields["backoff"] = handler.backoff
            if handler.limiter is not None:
                self._fields["limiter"] = handler.limiter
        self._take(options)
        if handler is not None:
            self._key_of = None if "key" in self._fields else handler.key_of
            self._concurrency_key_of = None if "concurrency_key" in self._fields else handler.concurrency_key_of

    def build(self, payload: Any) -> NewJob:
        """A checked job with an id of its own. Raises: InvalidPayload, InvalidArgument."""
        body = self._to_text(self._absent if payload is MISSING else payload)
        fields = self._fields
        if self._key_of is not None or self._concurrency_key_of is not None:
            fields = {**fields, **self._keys(body)}
        return NewJob(self._id or new_job_id(), self._kind, body, **fields)

    def _take(self, options: Mapping[str, Any]) -> None:
        """What the options say, over what the handler says."""
        fields = self._fields
        for option, given in options.items():
            if given is None:
                continue
            check = _CHECKS.get(option)
            if check is None:
                raise InvalidArgument(f"There is no option {option!r} for a job.{nearest(option, _CHECKS)}")
            if option == "id":
                self._id = check(option, given)
            else:
                fields[_COLUMNS.get(option, option)] = check(option, given)
        if "run_at" in fields and "delay_seconds" in fields:
            raise InvalidArgument(
                "`delay` and `run_at` were both given. Give one: when from now, or when by the clock."
            )

    def _keys(self, body: str) -> dict[str, str]:
        """The keys that the handler makes from the payload. Tenants share no idempotency key made so: no tenant is
        answered with another's job."""
        keys: dict[str, str] = {}
        if self._key_of is not None:
            key, tenant = self._key_of(body), self._fields.get("tenant")
            keys["key"] = key if tenant is None else f"{key}:{tenant}"
        if self._concurrency_key_of is not None:
            keys["concurrency_key"] = self._concurrency_key_of(body)
        return keys


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
