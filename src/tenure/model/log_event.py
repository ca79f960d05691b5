"""A notice: what happened in a worker, as fields rather than as a sentence. Nothing of a payload is ever among them.

Whoever runs a worker hands it an `Emit`. `level` lets the worker skip the making of notices that nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Protocol

from tenure.model.frozen import frozen

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
NOTHING = 100
"""A level that no notice reaches."""


@frozen
class Notice:
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


class Emit(Protocol):
    """Takes notices. Called from several threads; must neither block for long nor raise."""

    @property
    def level(self) -> int:
        """Notices below this level are not wanted, and not made."""
        ...

    def __call__(self, notice: Notice) -> None: ...
