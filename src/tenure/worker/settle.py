"""Outcomes on their way to the store.

They gather here while an exchange is in flight and leave with the next one. What could not be written comes back to
the front and is tried again until the store has taken it in or refused it by its token: nothing is forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tenure.errors import StoreUnavailable
from tenure.handler.observers import ObserveSettle, tell
from tenure.model.clock import steady_now
from tenure.model.ids import JobId, Token
from tenure.model.log_event import ERROR, INFO
from tenure.model.outcome import Completed, Failed, Outcome, Settled
from tenure.model.redact import clean
from tenure.store.contract import Exchange, Store
from tenure.worker.execution import Execution, Held
from tenure.worker.log import WorkerLog, code_of


class Outbox:
    """Outcomes that wait to be written. Lives on the event loop's thread.

    Args:
        let_go: called after jobs are no longer held.
    """

    def __init__(self, held: Held, log: WorkerLog, let_go: Callable[[], None]) -> None:
        self.tasks_ended: Callable[[], None] = lambda: None
        """Called after jobs of workflows have ended: what follows from that may be due."""
        self.observers: Sequence[ObserveSettle] = ()
        """Told of all ends that the store has taken in."""
        self._held = held
        self._log = log
        self._after_let_go = let_go
        self.waiting: list[Outcome] = []
        """Outcomes for the next exchange, oldest first."""
        self._aside: dict[tuple[JobId, Token], Execution] = {}
        """Executions that have ended and whose jobs were granted anew before the store's answer came."""
        self.completed = 0
        self.not_completed = 0
        self.lost = 0

    def take(self, limit: int) -> list[Outcome]:
        """Up to `limit` outcomes, oldest first."""
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    def set_aside(self, execution: Execution) -> None:
        """Its job has come back under a newer token, and what became of this one is still to be told."""
        self._aside[execution.grant.id, execution.grant.token] = execution

    def put_back(self, outcomes: list[Outcome]) -> None:
        """They were not written, or it is not known; repeating them is safe."""
        self.waiting[:0] = outcomes

    def settled(self, outcomes: Sequence[Outcome], answers: Mapping[tuple[JobId, Token], Settled], sent: float) -> None:
        """The store has answered: let go of the jobs and say what became of them. `sent`: when the request left, by the
        steady clock."""
        has_tasks = False
        executions = [self._let_go(outcome) for outcome in outcomes]
        if self.observers:
            now = time.time_ns()
            pairs = zip(executions, outcomes, strict=True)
            ends = [(execution.grant, outcome) for execution, outcome in pairs if execution is not None]
            tell(self.observers, ends, now - int((steady_now() - sent) * 1e9), now)
        for execution, outcome in zip(executions, outcomes, strict=True):
            if execution is not None and execution.grant.extras is not None:
                has_tasks = has_tasks or "workflow_id" in execution.grant.extras
            answer = answers.get((outcome.job_id, outcome.token)) if answers else None
            if answer is None:
                self.completed += 1
                if execution is not None:
                    self._log.job("completed", INFO, execution, duration=execution.duration)
                if isinstance(outcome, Completed) and outcome.jobs:
                    self._log.queued(outcome.jobs)
                continue
            self.lost += answer.lost
            self.not_completed += not answer.lost
            if execution is not None:
                self._log.settled(execution, outcome, answer)
        self._after_let_go()
        if has_tasks:
            self.tasks_ended()

    def forget(self, outcomes: Sequence[Outcome]) -> None:
        """Give up on outcomes that cannot be written. Their leases run out, and the jobs are taken back."""
        for outcome in outcomes:
            self._let_go(outcome)
        self.lost += len(outcomes)
        self._after_let_go()

    def _let_go(self, outcome: Outcome) -> Execution | None:
        """The execution of an outcome, no longer held. Its job may have come back meanwhile, under a newer token."""
        execution = self._held.pop(outcome.job_id, None)
        if execution is not None:
            if execution.grant.token == outcome.token:
                return execution
            self._held[outcome.job_id] = execution
        return self._aside.pop((outcome.job_id, outcome.token), None)


async def settle_singly(store: Store, outbox: Outbox, outcomes: Sequence[Outcome], log: WorkerLog) -> None:
    """After a batch was refused as a whole: settle one by one, so that one bad outcome does not hold up the others.

    An outcome that is refused alone, such as a completion whose follow-up job is refused, becomes a failed attempt that
    says so. Raises StoreUnavailable; outcomes that were not settled until then are back in the outbox.
    """
    left = list(outcomes)
    while left:
        outcome, sent = left[0], steady_now()
        try:
            try:
                answer = await store.ado(Exchange([outcome], None))
            except StoreUnavailable:
                raise
            except Exception as exc:  # noqa: BLE001 - whatever the store or its driver raises is about this outcome
                log.event("outcome_refused", ERROR, str(exc), job=outcome.job_id, code=code_of(exc))
                left[0] = outcome = Failed(outcome.job_id, outcome.token, clean(f"{type(exc).__name__}: {exc}"))
                answer = await store.ado(Exchange([outcome], None))
        except StoreUnavailable:
            outbox.put_back(left)
            raise
        except Exception as exc:  # noqa: BLE001 - its lease runs out, and the job is taken back
            log.event("outcome_dropped", ERROR, str(exc), job=outcome.job_id, code=code_of(exc))
            outbox.forget([left.pop(0)])
            continue
        left.pop(0)
        outbox.settled([outcome], answer.settled, sent)
