"""A log event: what happened in a worker, as fields rather than as a sentence. Never holds any part of a payload.

The caller hands the worker an `Emit`. Its `level` lets the worker skip making log events that would be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Protocol

from tenure.model.frozen import frozen

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
NOTHING = 100
"""A level that no log event reaches."""


@frozen
class LogEvent:
    """One thing that happened. `name` is the past tense of a move, or says what the worker did."""

    name: str
    level: int
    worker: str = ""
    job: str | None = None
    kind: str | None = None
    queue: str | None = None
    attempt: int | None = None
    duration: float | None = None
    """Seconds the handler took."""
    message: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    traceback: str | None = None
    """Where the handler's own code raised, in several lines."""


class Emit(Protocol):
    """Takes log events. Called from several threads; must neither block for long nor raise."""

    @property
    def level(self) -> int:
        """Log events below this level are not wanted, and not made."""
        ...

    def __call__(self, event: LogEvent, /) -> None: ...
