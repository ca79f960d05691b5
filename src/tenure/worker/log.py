"""The worker's log events. One is made only if its level is wanted; none ever holds a payload."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from tenure.errors import TenureError
from tenure.model.job import NewJob
from tenure.model.log_event import ERROR, INFO, NOTHING, WARNING, Emit, LogEvent
from tenure.model.outcome import Completed, Failed, Outcome, Rejected, Released, Settled, Stopped, Suspended
from tenure.worker.execution import Execution

_LEVELS = {
    "retried": WARNING,
    "failed": ERROR,
    "dead": ERROR,
    "released": INFO,
    "suspended": INFO,
    "cancelled": INFO,
    "lease_lost": WARNING,
}
_log = logging.getLogger(__name__)


class NoLog:
    """Discards every log event."""

    level = NOTHING

    def __call__(self, event: LogEvent) -> None:  # noqa: ARG002 - that is the point
        return


class WorkerLog:
    """Writes what happens to the worker and its jobs as log events."""

    def __init__(self, worker: str, emit: Emit) -> None:
        self._worker = worker
        self._emit = emit

    def event(self, name: str, level: int, message: str | None = None, **fields: Any) -> None:
        """Something happened to the worker itself."""
        if self._emit.level <= level:
            self._tell(LogEvent(name, level, self._worker, message=message, fields=fields))

    def queued(self, jobs: Iterable[NewJob]) -> None:
        """Jobs that this worker has put into a queue."""
        if self._emit.level <= INFO:
            for job in jobs:
                self._tell(LogEvent("queued", INFO, self._worker, job.id, job.kind, job.queue))

    def taken_back(self, taken: Iterable[Settled]) -> None:
        """Jobs whose leases had run out, as they stand since this worker took them back."""
        for one in taken:
            if one.state in {"dead", "cancelled"}:
                message = "its lease ran out, and no attempt is left" if one.state == "dead" else None
                self.event(one.state, _LEVELS[one.state], message, job=one.job_id, token=one.token)
            else:
                self.event("reclaimed", WARNING, job=one.job_id, token=one.token, state=one.state)

    def settled(self, execution: Execution, outcome: Outcome, answer: Settled) -> None:
        """An end other than a plain success, as the store took it in."""
        name = _name(outcome, answer)
        fields: dict[str, Any] = {}
        failure_class = getattr(outcome, "failure_class", None)
        if failure_class is not None:
            fields["class"] = str(failure_class)
        if answer.run_at_us is not None:
            fields["run_at_us"] = answer.run_at_us
        headline, _, trace = (getattr(outcome, "error", None) or "").partition("\n")
        message = headline[:500] or None
        if answer.lost:
            message = "the outcome was refused, because the lease had run out or passed to another worker"
        self.job(name, _LEVELS[name], execution, message, execution.duration, trace or None, **fields)

    def job(
        self,
        name: str,
        level: int,
        execution: Execution,
        message: str | None = None,
        duration: float | None = None,
        traceback: str | None = None,
        **fields: Any,
    ) -> None:
        """Something happened to a job."""
        if self._emit.level <= level:
            grant = execution.grant
            self._tell(
                LogEvent(
                    name,
                    level,
                    self._worker,
                    grant.id,
                    grant.kind,
                    grant.queue,
                    grant.attempt,
                    None if duration is None else round(duration, 6),
                    message,
                    {"token": grant.token, **fields},
                    traceback,
                )
            )

    def _tell(self, event: LogEvent) -> None:
        """Hand an event to the program. What its function raises must cost no heartbeat and no outcome."""
        try:
            self._emit(event)
        except Exception:  # noqa: BLE001 - it is the program's own function, and may raise anything
            _log.exception("The log event %r could not be handed over", event.name)


def code_of(exc: BaseException) -> str:
    """By what an event names an error: our code, or the class of any other."""
    return exc.code if isinstance(exc, TenureError) else type(exc).__name__


def _name(outcome: Outcome, answer: Settled) -> str:
    if answer.lost:
        return "lease_lost"
    if answer.state == "cancelled":
        return "cancelled"
    match outcome:
        case Failed():
            return "dead" if answer.state == "dead" else "retried"
        case Rejected():
            return "failed"
        case Released():
            return "released"
        case Suspended():
            return "suspended"
        case Stopped() | Completed():
            return "cancelled"
