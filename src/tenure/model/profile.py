"""A profile: one specification's vocabulary as data. Its views are SQL files; the engine knows none by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tenure.model.frozen import frozen
from tenure.model.policy import QueuePolicy

STAGES = (
    "due",
    "later",
    "retry",
    "waiting",
    "leased",
    "running",
    "succeeded",
    "failed",
    "dead",
    "cancelled",
    "cleaned",
)
"""What a profile has a word for: the states, with `queued` told apart by what it waits for, and `cleaned`.

due: claimable now; later: delayed; retry: queued again after a failed attempt. A profile without a word for `cleaned`
shows such a job by the state in which it ended.
"""


@frozen
class Profile:
    """A vocabulary: how queues of this kind behave, and what things are called."""

    name: str
    title: str
    policy: QueuePolicy
    words: Mapping[str, str]
    """Stage → status word."""
    specification: str | None = None
    queues: tuple[str, ...] = ()
    """Queues that installing it creates."""
    closed_gates: tuple[str, ...] = ()
    """Gates that installing it closes, of master, worker, notify and heartbeat."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What operators may tune beside the policy, with the values it starts with."""
    shows: tuple[str, ...] = ()
    """Its views and functions."""
