"""Workers of a client: from its handlers, queues and schedules to a Worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from tenure.client.state import ClientState
from tenure.errors import ConfigError, nearest
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.model.log_event import INFO, Emit, LogEvent
from tenure.model.policy import QueuePolicy

if TYPE_CHECKING:
    from tenure.worker.worker import Worker

Queues = Names | Mapping[str, int]
"""Names of queues, or their weights by name."""


LogTo = Emit | Callable[[LogEvent], None]
"""Where log events go: a function that takes one, with or without a `level` below which it wants none."""


class WorkerSettings(TypedDict, total=False):
    """Settings of a worker beside its queues and its concurrency. Each may be left out."""

    strict: bool
    kinds: Sequence[str] | None
    affinity: Sequence[str | None] | None
    queue_concurrency: Mapping[str, int]
    prefetch: int | Literal["auto"]
    max_in_flight: int
    lease_seconds: float | None
    heartbeat_seconds: float | None
    poll_seconds: float
    grace_seconds: float
    drain: bool
    once: bool
    artifacts_dir: Path | None
    jobs_per_process: int
    declare: Mapping[str, QueuePolicy]
    maintain: bool
    worker_timeout: float
    delete_after_seconds: float | None
    metric_seconds: float
    handle_signals: bool | None


class _FunctionLog:
    """A plain function that takes log events: from INFO on."""

    level = INFO

    def __init__(self, function: Callable[[LogEvent], None]) -> None:
        self._function = function

    def __call__(self, event: LogEvent) -> None:
        self._function(event)


def log_to(emit: LogTo | None) -> Emit:
    """What a worker logs by: the caller's own, or the logger `tenure.worker` of the standard library."""
    if emit is None:
        from tenure.observe.log import StandardLog

        return StandardLog()
    if hasattr(emit, "level"):
        return emit
    if not callable(emit):
        raise ConfigError(f"`emit` must be a function that takes a tenure.LogEvent, got {type(emit).__name__}.")
    return _FunctionLog(emit)


def make_worker(
    state: ClientState, queues: Queues | None, concurrency: int, emit: LogTo | None, settings: WorkerSettings
) -> Worker:
    """A worker on the client's store that runs its handlers. Raises: ConfigError, HandlerError."""
    from tenure.worker.worker import Worker, WorkerConfig

    known = {field.name for field in fields(WorkerConfig)}
    for setting in settings:
        if setting not in known:
            raise ConfigError(f"A worker has no setting {setting!r}.{nearest(setting, known)}")
    if not isinstance(queues, Mapping):
        queues = arguments.names("queues", queues) or state.own_queues()
    settings.setdefault("declare", state.declared)
    config = WorkerConfig(queues=queues, concurrency=concurrency, **settings)
    schedules = tuple(state.declared_schedules.values())
    return Worker(
        state.open_store(), state.registry, config, emit=log_to(emit), schedules=schedules, limits=state.limits
    )
