"""Events: what happened to a job, as rows that can be followed. Written only where a queue asks for them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from tenure.model.frozen import frozen
from tenure.model.ids import JobId


class EventKind(StrEnum):
    """Lifecycle events bear the past tense of their move; the rest come from handlers."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    STARTED = "started"
    COMPLETED = "completed"
    RETRIED = "retried"
    FAILED = "failed"
    DEAD = "dead"
    RELEASED = "released"
    SUSPENDED = "suspended"
    WOKEN = "woken"
    RECLAIMED = "reclaimed"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    REVIVED = "revived"
    EDITED = "edited"
    PROGRESS = "progress"
    LOG = "log"
    STDOUT = "stdout"
    STDERR = "stderr"
    CUSTOM = "custom"


@frozen
class NewEvent:
    """An event to append. `data` is JSON text."""

    kind: str
    data: str = "{}"
    job_id: JobId | None = None


@frozen
class Event:
    """An event as stored. `seq` rises; a follower asks for what lies above the last it saw."""

    seq: int
    at: datetime
    kind: str
    job_id: JobId | None
    queue: str | None
    data: Any
