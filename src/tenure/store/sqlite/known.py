"""What a writer has read of queues and gates, kept until somebody changes them.

Policies change rarely and are needed by every enqueue. `PRAGMA data_version` tells, for a fraction of the price of
reading them again, whether any other connection has committed since; our own changes and rollbacks call `forget`. It
is asked after BEGIN IMMEDIATE, so nothing can change between the question and the commit.
"""

from __future__ import annotations

from typing import Any


class Known:
    """Used inside a write transaction only, so never by two threads at once."""

    __slots__ = ("_version", "claims", "has_quiet_gates", "queues", "terms", "wants_events")

    def __init__(self) -> None:
        self._version: int | None = None
        self.forget()

    def forget(self) -> None:
        """Queues or gates were changed here, or a change was rolled back."""
        self.terms: dict[tuple[str, str, int | None, int | None], tuple[Any, ...]] = {}
        """Of enqueue_terms.sql, by queue, kind, priority and max_attempts."""
        self.claims: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        """Of claim_look.sql, by the queues asked for."""
        self.queues: set[str] = set()
        """Queues that are known to be there."""
        self.wants_events: bool | None = None
        """Whether any queue keeps lifecycle events."""
        self.has_quiet_gates: bool | None = None
        """Whether any notify gate is closed."""

    def check(self, version: int) -> None:
        """`version`: what data_version says in this transaction."""
        if version != self._version or len(self.terms) + len(self.claims) > 10_000:
            self.forget()
            self._version = version
