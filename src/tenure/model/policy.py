"""Policies as data: how a queue retries, leases, orders, deduplicates, guards and keeps its jobs.

Policies belong to the queue and are stored as columns of its row, because the rules that read them live in SQL.
The formula of the delay stands here in Python only so that tests and docs can state it; the stores compute it
themselves.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from tenure.model.frozen import frozen

BackoffShape = Literal["none", "constant", "linear", "power", "exponential"]
PriorityOrder = Literal["high", "low"]
KeyScope = Literal["none", "active", "window", "forever"]
KeySpace = Literal["kind", "global"]
KeyConflictRule = Literal["error", "tolerate"]
ReviveRule = Literal["revive", "clone"]
UnknownKindRule = Literal["leave", "reject", "release"]
AgentEventsRule = Literal["none", "completed", "ends"]


@frozen
class Backoff:
    """How long a failed job waits before its next attempt: min(cap, base × f(n)), then jitter on top.

    f(n) for the n-th attempt: none 0, constant 1, linear n, power n**power, exponential factor**(n-1).
    Jitter only lengthens: a delay is never shorter than the formula says.
    """

    shape: BackoffShape = "exponential"
    base_seconds: float = 5.0
    power: float = 2.0
    factor: float = 2.0
    cap_seconds: float = 3600.0
    jitter: float = 0.1

    def delay_seconds(self, attempt: int) -> float:
        """The delay after attempt `attempt` (counted from 1), without jitter."""
        match self.shape:
            case "none":
                grown = 0.0
            case "constant":
                grown = 1.0
            case "linear":
                grown = float(attempt)
            case "power":
                grown = float(attempt) ** self.power
            case "exponential":
                grown = self.factor ** min(attempt - 1, 60)
        return min(self.cap_seconds, self.base_seconds * grown)


@frozen
class QueuePolicy:
    """Everything a queue decides for its jobs. A job may override priority, max_attempts and backoff."""

    profile: str = "default"
    priority_order: PriorityOrder = "high"
    priority_default: int = 0
    aging_seconds: float | None = None
    """If set, one step of priority is worth this many seconds of waiting, so nothing starves."""
    start_on_claim: bool = True
    max_attempts: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    lease_seconds: float = 60.0
    lease_max_seconds: float = 86_400.0
    key_scope: KeyScope = "active"
    key_space: KeySpace = "kind"
    key_required: bool = False
    key_window_seconds: float = 86_400.0
    key_conflict: KeyConflictRule = "error"
    revive: ReviveRule = "revive"
    on_unknown_kind: UnknownKindRule = "leave"
    forbidden_keys: tuple[str, ...] = ()
    concurrency: int | None = None
    """How many jobs of the queue may be held at once, over all workers."""
    concurrency_per_key: int | None = None
    """How many jobs with one concurrency key may be held at once, over all workers."""
    retain_seconds: float | None = 7 * 86_400.0
    """How long a finished job keeps its payload and result; None keeps them for ever."""
    events: bool = False
    """Write a lifecycle event row for every move, for `tail` and streams. Off: the happy path writes none."""
    agent_events: AgentEventsRule = "none"
    """Write an agent event and an embedding job with the end of a job, for agents to remember: `completed` for
    successes, `ends` for failures and deaths too."""


@frozen
class Limits:
    """What an enqueue may carry."""

    payload_bytes: int = 1024 * 1024
    payload_depth: int = 64
    error_chars: int = 16_384
