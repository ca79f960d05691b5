"""The offer of an idle worker: an enqueue may hand the next job over to it, and need not wake it to claim one.

Offered with a claim that then finds nothing. As long as the offer may stand, or may have been taken up, the next claim
says so, and the store gives out what was handed over, whether the word of it has arrived or not. A worker that stops
asks once more for that reason. So no job is held for a worker that does not know of it for longer than a poll.
"""

from __future__ import annotations

from tenure.store.contract import Claim, Exchanged
from tenure.worker.config import WorkerConfig

POLL_SECONDS = 2.0
"""Who polls more seldom does not offer: a word may get lost, and the lease runs."""


class Offer:
    """What the store was last offered."""

    def __init__(self, config: WorkerConfig) -> None:
        self.stands = False
        """A job may be handed over, or may have been."""
        self.counts = True
        """The store has taken the last one in, or was not asked yet, so it is worth a claim that does nothing else."""
        filters = config.kinds is not None or config.affinity is not None
        self._is_possible = not (config.once or config.drain or filters or len(config.queue_names) > 1)

    def is_wise(self, poll_seconds: float) -> bool:
        """Whether to make one, for a worker that would sleep and be woken."""
        return self._is_possible and poll_seconds <= POLL_SECONDS

    def sent(self, claim: Claim | None) -> None:
        """A claim is about to be sent."""
        self.stands = self.stands or (claim is not None and claim.offers)

    def answered(self, claim: Claim, arrived: Exchanged) -> None:
        """A claim was carried out."""
        self.stands = arrived.is_offered
        if claim.offers and not arrived.grants:
            self.counts = arrived.is_offered

    def refused(self, claim: Claim, *, is_asked_again: bool) -> None:
        """A claim was not carried out. Whether another one follows that says the same."""
        self.stands = claim.offered and is_asked_again
