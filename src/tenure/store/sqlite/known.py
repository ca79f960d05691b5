"""What a writer has read of queues and gates, kept until somebody changes them.

Policies change rarely and are needed by every enqueue and claim. Triggers on both tables draw a new stamp at every
change, whoever makes it, so what was read under a stamp holds in every transaction that finds the same one. It is read
inside a write transaction, so nothing can change between the look and the commit; what a rolled back transaction read
is kept under a stamp that nobody will ever see.
"""

from __future__ import annotations

from typing import Any


class Known:
    """Used by whoever leads only, so never by two threads at once."""

    __slots__ = (
        "_company", "claims", "has_exchange", "has_quiet_gates", "has_waited", "queues", "stamp", "terms",
        "wants_events",
    )  # fmt: skip

    def __init__(self) -> None:
        self.has_exchange = False
        """Whether exchange_setup.sql was carried out on this connection."""
        self.has_waited = False
        """Whether another process held the file's lock since this was last asked for."""
        self._company = 0.0
        self.forget()

    def is_in_company(self) -> bool:
        """Whether most of the last large exchanges, this one included, had to wait for another process. Asked once by
        each of them."""
        self._company += (self.has_waited - self._company) / 4
        self.has_waited = False
        return self._company > 0.5

    def forget(self) -> None:
        """Queues or gates were changed here, or a change was rolled back."""
        self.stamp: int | None = None
        """Under which everything here was read."""
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

    def check(self, stamp: int | None) -> None:
        """`stamp`: the one that stands in this transaction; None if somebody has removed it, and so nothing is
        kept."""
        if stamp != self.stamp or stamp is None or len(self.terms) + len(self.claims) > 10_000:
            self.forget()
            self.stamp = stamp
