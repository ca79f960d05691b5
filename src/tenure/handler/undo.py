"""Compensation: what a durable job undoes before it ends badly.

`ctx.on_failure` arms an undo, which is on record before the step that it undoes begins. When an attempt would end the
job (a permanent error, no attempts left, a cancel), the attempt first records how the job ends, in the step
`$undoing`, and then calls what is armed, the newest first, each recorded as undone. The record of the end counts as
progress, so the undoing has attempts of its own.

A worker that dies meanwhile leaves `$undoing` behind. The next attempt runs the handler as a replay: recorded steps
answer, nothing new begins (ReplayEnded), and so the functions and arguments of the armed undos are known again. Then
the rest is undone, and the job gets the end that is recorded.
"""

from __future__ import annotations

import json
from typing import Any

from tenure.handler.steps import Asks, Call, Journal
from tenure.model.ids import JobId, Token
from tenure.model.outcome import Failed, FailureClass, Outcome, Rejected, Released, Stopped
from tenure.model.step import NewStep

UNDOING = "$undoing"


def compensate(journal: Journal, outcome: Outcome, attempts_left: bool) -> Asks[Outcome]:
    """Undo what is armed if this outcome ends the job badly. Answers the outcome to settle."""
    if journal.is_undoing:
        if isinstance(outcome, Released):  # the replay did not get to its end: the worker stops, or the store is away
            return outcome
        outcome = _recorded_end(journal, outcome.job_id, outcome.token)
    elif not _ends_badly(journal, outcome, attempts_left):
        return outcome
    if journal.has_armed:  # nothing else is recorded here: a record may count as progress, and attempts begin anew
        yield from journal.record()
    armed = [row for row in journal.rows.values() if row.kind == "undo" and row.state == "armed"]
    if not armed and not journal.is_undoing:
        return outcome
    if not journal.is_undoing:
        outcome = _final(outcome)
        yield from journal.record(NewStep(UNDOING, "step", "done", value=_end_text(outcome)))
        journal.is_undoing = True
    for row in sorted(armed, key=lambda one: one.ordinal, reverse=True):
        function = journal.undos.get(row.key)
        name = row.key.removeprefix("undo/")
        if function is None:
            return _failed(outcome, name, "the handler does not arm it any more")
        try:
            yield Call(row.key, function)
        except Exception as exc:  # noqa: BLE001 - whatever an undo raises makes it a person's case
            return _failed(outcome, name, f"{type(exc).__name__}: {exc}")
        yield from journal.record(NewStep(row.key, "undo", "undone"))
    return outcome


def _ends_badly(journal: Journal, outcome: Outcome, attempts_left: bool) -> bool:
    if isinstance(outcome, Rejected | Stopped):
        return True
    return isinstance(outcome, Failed) and not attempts_left and not journal.has_progressed


def _final(outcome: Outcome) -> Outcome:
    """The end as it is settled after the undoing, which has attempts of its own: an error is not retried then."""
    if isinstance(outcome, Failed):
        return Rejected(outcome.job_id, outcome.token, outcome.error, outcome.failure_class)
    return outcome


def _end_text(outcome: Outcome) -> str:
    told: dict[str, Any] = {"end": "cancelled" if isinstance(outcome, Stopped) else "failed"}
    told["error"] = getattr(outcome, "error", None)
    told["class"] = str(getattr(outcome, "failure_class", FailureClass.CANCELLED))
    return json.dumps(told)


def _recorded_end(journal: Journal, job_id: JobId, token: Token) -> Outcome:
    told = json.loads(journal.rows[UNDOING].value or "{}")
    if told["end"] == "cancelled":
        return Stopped(job_id, token, told["error"])
    return Rejected(job_id, token, told["error"] or "failed", FailureClass(told["class"]))


def _failed(outcome: Outcome, name: str, why: str) -> Outcome:
    before = (getattr(outcome, "error", None) or "cancelled").partition("\n")[0][:300]
    error = f"Undo {name!r} failed: {why[:1000]}. The job was being undone because it had ended: {before}"
    return Failed(outcome.job_id, outcome.token, error, FailureClass.COMPENSATION)
