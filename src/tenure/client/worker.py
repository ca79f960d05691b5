"""Workers of a client: from its handlers, queues and schedules to a Worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tenure.client.state import ClientState
from tenure.errors import ConfigError, nearest
from tenure.handler import arguments
from tenure.handler.arguments import Names

if TYPE_CHECKING:
    from tenure.model.log_event import Emit
    from tenure.worker.worker import Worker

Queues = Names | Mapping[str, int]
"""Names of queues, or their weights by name."""


def make_worker(
    state: ClientState, queues: Queues | None, concurrency: int, emit: Emit | None, settings: dict[str, Any]
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
    return Worker(state.open_store(), state.registry, config, emit=emit, schedules=schedules, limits=state.limits)
