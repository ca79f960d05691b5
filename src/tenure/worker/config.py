"""The settings of a worker, read once at its start. Everything has a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Literal

from tenure.errors import ConfigError
from tenure.model.frozen import frozen
from tenure.model.policy import QueuePolicy

HEARTBEATS_PER_LEASE = 3
"""Two heartbeats may fail before a lease is in danger."""
CONCURRENCY = 10
MAX_IN_FLIGHT = 2
POLL_SECONDS = 1.0
GRACE_SECONDS = 20.0


@frozen
class WorkerConfig:
    """How a worker works. The defaults suit a few slow jobs as well as many small ones."""

    queues: Sequence[str] | Mapping[str, int] = ("default",)
    """Names, or names with weights: a queue of weight 3 is asked three times as often as one of weight 1."""
    strict: bool = False
    """Serve the queues in the order given, instead of merging them by priority."""
    kinds: Sequence[str] | None = None
    """Claim only these. None: every kind that has a handler here, and where the queue's policy says `reject` or
    `release` for unknown kinds, all kinds."""
    affinity: Sequence[str | None] | None = None
    concurrency: int = CONCURRENCY
    """How many handlers run at once."""
    queue_concurrency: Mapping[str, int] = field(default_factory=dict)
    """How many jobs of a queue this worker holds at once."""
    prefetch: int | Literal["auto"] = "auto"
    """How many jobs wait inside the worker beside those that run. `auto`: what it runs in about 100 ms by its measured
    rate, at most 200. Queues of tiny jobs may ask for more. Never more than a heartbeat carries within a third of the
    lease."""
    max_in_flight: int = MAX_IN_FLIGHT
    """Exchanges with the store in flight at once. Two keep the store at work while this process runs handlers."""
    lease_seconds: float | None = None
    """None: each queue's own."""
    heartbeat_seconds: float | None = None
    """None: a third of the lease."""
    poll_seconds: float = POLL_SECONDS
    grace_seconds: float = GRACE_SECONDS
    """How long running handlers may go on after a request to stop."""
    drain: bool = False
    """Stop when no job is due."""
    once: bool = False
    """Run one job, if one is due, and stop."""
    artifacts_dir: Path | None = None
    jobs_per_process: int = 1
    """How many isolated jobs a child process may run, one after the other, before a fresh one takes its place."""
    declare: Mapping[str, QueuePolicy] = field(default_factory=dict)
    """Policies of queues that may not exist yet."""
    maintain: bool = True
    """Take part in the election of a leader, which sweeps and enqueues scheduled jobs."""
    worker_timeout: float = 3_600.0
    """Seconds without a heartbeat after which the leader removes the row of a worker that holds nothing."""
    delete_after_seconds: float | None = 30 * 86_400.0
    """Delete the rows of jobs that ended longer ago than this, 30 days, once their queue's own retention has removed
    payload and result. None keeps them. Rows of jobs with a dead letter that is not closed always stay."""
    metric_seconds: float = 2_592_000.0
    """Remove counted minutes that lie further back than this: 30 days."""
    handle_signals: bool | None = None
    """Stop on SIGINT, SIGTERM and SIGHUP. None: only where the worker owns the process, as `run_worker` and `tenure
    worker` do; on the event loop of another program, such as a web server's, it leaves the signals alone."""

    def __post_init__(self) -> None:
        """Raises ConfigError for what cannot work."""
        self._check_names()
        for name in ("concurrency", "jobs_per_process"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` is {getattr(self, name)}, but a worker needs at least 1.")
        if self.prefetch != "auto" and not (_is_int(self.prefetch) and self.prefetch >= 0):
            raise ConfigError(f"`prefetch` is {self.prefetch!r}, but must be 'auto', 0 or a larger number.")
        if self.grace_seconds < 0:
            raise ConfigError("`grace_seconds` cannot be negative. Use 0 for none.")
        if not 1 <= self.max_in_flight <= 8:
            raise ConfigError(f"`max_in_flight` is {self.max_in_flight}, but between 1 and 8 may be in flight.")
        for name in ("poll_seconds", "lease_seconds", "heartbeat_seconds", "worker_timeout", "metric_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"`{name}` is {value:g}, but must be above 0.")
        if self.lease_seconds is not None:
            self.check_heartbeat(self.lease_seconds)

    @property
    def queue_names(self) -> tuple[str, ...]:
        return tuple(self.queues)

    def check_heartbeat(self, lease_seconds: float) -> None:
        """Raises ConfigError if heartbeats come too rarely for a lease: a single one that fails would lose it."""
        limit = lease_seconds / HEARTBEATS_PER_LEASE
        if self.heartbeat_seconds is not None and self.heartbeat_seconds > limit * 1.000001:
            raise ConfigError(
                f"A heartbeat every {self.heartbeat_seconds:g} s is too slow for a lease of {lease_seconds:g} s: "
                f"it must be at most a third, {limit:g} s. Lower `heartbeat_seconds`, or lengthen the lease."
            )

    def _check_names(self) -> None:
        if isinstance(self.queues, str) or not self.queues:
            raise ConfigError("A worker needs at least one queue: queues=['mail'] or {'mail': 3, 'bulk': 1}.")
        if len(set(self.queues)) != len(self.queues):
            raise ConfigError(f"A queue is named twice in {list(self.queues)}.")
        if isinstance(self.queues, Mapping) and any(weight < 1 for weight in self.queues.values()):
            raise ConfigError(f"Weights of queues must be 1 or more, got {dict(self.queues)}.")
        stray = set(self.queue_concurrency) - set(self.queues)
        if stray:
            raise ConfigError(f"`queue_concurrency` names queues that this worker does not serve: {sorted(stray)}.")
        if any(limit < 1 for limit in self.queue_concurrency.values()):
            raise ConfigError("`queue_concurrency` must be 1 or more; leave a queue out of `queues` to not serve it.")


def _is_int(value: object) -> bool:
    return isinstance(value, int)
