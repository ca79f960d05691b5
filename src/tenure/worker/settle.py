"""Outcomes on their way to the store.

They gather here while an exchange is in flight and leave with the next one. What could not be written comes back to
the front and is tried again until the store has taken it in or refused it by its token: nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tenure.errors import StoreUnavailable, TenureError
from tenure.model.ids import JobId, Token
from tenure.model.log_event import ERROR, INFO
from tenure.model.outcome import Failed, Outcome, Settled
from tenure.store.contract import Exchange, Store
from tenure.worker.end import clean
from tenure.worker.report import Reporter
from tenure.worker.ticket import Held, Ticket


class Outbox:
    """Outcomes that wait to be written. Lives on the event loop's thread."""

    def __init__(self, held: Held, report: Reporter, wake: Callable[[], None]) -> None:
        self._held = held
        self._report = report
        self._wake = wake
        self._waiting: list[Outcome] = []
        self._aside: dict[tuple[JobId, Token], Ticket] = {}
        """Tickets that have ended and whose jobs were granted anew before the store's answer came."""
        self.completed = 0
        self.not_completed = 0
        self.lost = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, outcome: Outcome) -> None:
        """Leave an outcome for the next exchange."""
        self._waiting.append(outcome)
        if len(self._waiting) == 1:
            self._wake()

    def take(self, limit: int) -> list[Outcome]:
        """Up to `limit` outcomes, oldest first."""
        if len(self._waiting) <= limit:
            taken, self._waiting = self._waiting, []
        else:
            taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return taken

    def set_aside(self, ticket: Ticket) -> None:
        """Its job has come back under a newer token, and what became of this one is still to be told."""
        self._aside[ticket.grant.id, ticket.grant.token] = ticket

    def put_back(self, outcomes: list[Outcome]) -> None:
        """They were not written, or nobody knows; repeating them is safe."""
        self._waiting[:0] = outcomes

    def settled(self, outcomes: Sequence[Outcome], answers: Mapping[tuple[JobId, Token], Settled]) -> None:
        """The store has answered: let go of the jobs and say what became of them."""
        if not answers and not self._report.wants(INFO):
            for outcome in outcomes:
                self._let_go(outcome)
            self.completed += len(outcomes)
            return
        well: list[Ticket] = []
        for outcome in outcomes:
            ticket = self._let_go(outcome)
            answer = answers.get((outcome.job_id, outcome.token))
            if answer is None:
                self.completed += 1
                if ticket is not None:
                    well.append(ticket)
                continue
            self.lost += answer.lost
            self.not_completed += not answer.lost
            if ticket is not None:
                self._report.settled(ticket, outcome, answer)
        if self._report.wants(INFO):
            self._report.completed(well)

    def forget(self, outcomes: Sequence[Outcome]) -> None:
        """Give up on outcomes that cannot be written. Their leases run out, and the jobs are taken back."""
        for outcome in outcomes:
            self._let_go(outcome)
        self.lost += len(outcomes)

    def _let_go(self, outcome: Outcome) -> Ticket | None:
        """The ticket of an outcome, no longer held. Its job may have come back meanwhile, under a newer token."""
        ticket = self._held.pop(outcome.job_id, None)
        if ticket is not None:
            if ticket.grant.token == outcome.token:
                return ticket
            self._held[outcome.job_id] = ticket
        return self._aside.pop((outcome.job_id, outcome.token), None)


async def settle_singly(store: Store, outbox: Outbox, outcomes: Sequence[Outcome], report: Reporter) -> None:
    """After a batch was refused as a whole: find out which outcome it was, so that it does not hold up the others.

    The culprit, such as a completion whose follow-up job is refused, becomes a failed attempt that says so.
    Raises StoreUnavailable; what was not settled until then is back in the outbox.
    """
    left = list(outcomes)
    while left:
        outcome = left[0]
        try:
            try:
                answer = await store.ado(Exchange([outcome], None))
            except StoreUnavailable:
                raise
            except TenureError as exc:
                report.say("outcome_refused", ERROR, str(exc), job=outcome.job_id, code=exc.code)
                left[0] = outcome = Failed(outcome.job_id, outcome.token, clean(f"{type(exc).__name__}: {exc}"))
                answer = await store.ado(Exchange([outcome], None))
        except StoreUnavailable:
            outbox.put_back(left)
            raise
        except TenureError as exc:
            report.say("outcome_dropped", ERROR, str(exc), job=outcome.job_id, code=exc.code)
            outbox.forget([left.pop(0)])
            continue
        left.pop(0)
        outbox.settled([outcome], answer.settled)
