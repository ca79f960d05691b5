"""A flight: one exchange on its way to the store and back."""

from __future__ import annotations

from tenure.model.outcome import Outcome
from tenure.store.contract import Armed, Exchange, Exchanged
from tenure.worker.lanes import Ask


class Flight:
    """What is on its way, and when it left."""

    __slots__ = ("armed", "armed_steady", "ask", "outcomes", "request", "sent", "sent_steady", "wakes")

    def __init__(self, outcomes: list[Outcome], ask: Ask | None, request: Exchange) -> None:
        self.outcomes = outcomes
        self.ask = ask
        self.request = request
        self.armed: Armed | None = None
        """Where its answer is to be had, if a wake-up sent it."""
        self.armed_steady = 0.0
        """Since when a wake-up may send it, by the clock that counts sleep."""
        self.sent = self.sent_steady = 0.0
        """When it left, by the loop's clock and by the one that counts sleep."""
        self.wakes = 0
        """The wake-ups until it left. If another has come since, a job may have arrived after it looked."""

    def granted_since(self, arrived: Exchanged) -> float:
        """From when leases are to be reckoned, by the clock that counts sleep."""
        since = self.sent_steady - arrived.age_seconds
        return min(since, self.armed_steady) if arrived.is_handed_over else since
