"""The worker's log events. One is made only if its level is wanted; none ever holds a payload."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure.model.log_event import DEBUG, ERROR, INFO, NOTHING, WARNING, Emit, LogEvent
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

    def wants(self, level: int) -> bool:
        """Whether a log event of this level would be read. Asked once per batch, before any work for it is done."""
        return self._emit.level <= level

    def event(self, name: str, level: int, message: str | None = None, **fields: Any) -> None:
        """Something happened to the worker itself."""
        if self._emit.level <= level:
            self._emit(LogEvent(name, level, self._worker, message=message, fields=fields))

    def claimed(self, executions: Iterable[Execution]) -> None:
        if self._emit.level <= DEBUG:
            for execution in executions:
                self.job("claimed", DEBUG, execution)

    def started(self, execution: Execution) -> None:
        if self._emit.level <= DEBUG:
            self.job("started", DEBUG, execution)

    def completed(self, executions: Iterable[Execution]) -> None:
        for execution in executions:
            self.job("completed", INFO, execution, duration=execution.duration)

    def settled(self, execution: Execution, outcome: Outcome, answer: Settled) -> None:
        """An end other than a plain success, as the store took it in."""
        name = _name(outcome, answer)
        fields: dict[str, Any] = {}
        failure_class = getattr(outcome, "failure_class", None)
        if failure_class is not None:
            fields["class"] = str(failure_class)
        if answer.run_at_us is not None:
            fields["run_at_us"] = answer.run_at_us
        error = getattr(outcome, "error", None)
        message = error.split("\n", 1)[0][:500] if error else None
        if answer.lost:
            message = "the outcome was refused, because the lease had run out or passed to another worker"
        self.job(name, _LEVELS[name], execution, message, duration=execution.duration, **fields)

    def job(
        self,
        name: str,
        level: int,
        execution: Execution,
        message: str | None = None,
        duration: float | None = None,
        **fields: Any,
    ) -> None:
        """Something happened to a job."""
        if self._emit.level <= level:
            grant = execution.grant
            self._emit(
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
                )
            )


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
