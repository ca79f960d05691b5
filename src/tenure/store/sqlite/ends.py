"""How an attempt ends that was no success: an attempt row, the job's next state, and a dead letter where a person
is needed."""

from __future__ import annotations

from typing import Any, Final

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.outcome import Settled
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction

_ATTEMPT_END: Final = load("attempt_end")
_JOB_END: Final = load("job_end")

_EVENTS: Final = {
    "queued": "retried",
    "waiting": "suspended",
    "dead": "dead",
    "failed": "failed",
    "cancelled": "cancelled",
}
_STATE_BY_OUTCOME: Final = {"retried": "queued", "released": "queued", "suspended": "waiting"}


@frozen
class End:
    """One end. `move`: fail, reject, release, suspend, stop or expire."""

    job_id: JobId
    token: Token
    move: str
    failure_class: str | None = None
    error: str | None = None
    delay_seconds: float | None = None
    waiting_for: str | None = None
    is_gone: bool = False
    """Of an expiry: the worker is known to be gone, so it is a crash whatever its row says."""


def end(transaction: Transaction, how: End) -> Settled | None:
    """Carry out one end; None if the grant does not hold the job (any more)."""
    values: dict[str, Any] = {
        "now": transaction.now,
        "job_id": how.job_id,
        "token": how.token,
        "move": how.move,
        "failure_class": how.failure_class,
        "error": how.error,
        "delay": None if how.delay_seconds is None else round(max(how.delay_seconds, 0) * 1_000_000),
        "is_gone": how.is_gone,
        "waiting_for": how.waiting_for,
    }
    if transaction.run(_ATTEMPT_END, values).rowcount < 1:
        return None
    row = transaction.one(_JOB_END, values)
    assert row is not None
    state, run_at, queue = row
    if state in ("dead", "failed"):
        transaction.run(load("bury"), values)
    if state == "queued" and run_at <= transaction.now:
        transaction.woken.add(queue)
    transaction.record(_event(how.move, state), [how.job_id])
    return Settled(how.job_id, how.token, state, run_at if state == "queued" else None)


def answer_again(transaction: Transaction, job_id: JobId, token: Token, *, completed: bool) -> Settled:
    """The answer to an outcome that could not be taken in: as the first time if it was taken in then, else lost."""
    row = transaction.one(load("attempt_known"), {"job_id": job_id, "token": token, "now": transaction.now})
    if row is not None:
        state, is_newest, outcome, run_at, _ = row
        if completed and state == "succeeded" and is_newest:
            return Settled(job_id, token, state)
        if outcome is not None and outcome != "expired" and (not completed or outcome == "cancelled"):
            shown = _STATE_BY_OUTCOME.get(outcome, outcome)
            return Settled(job_id, token, shown, run_at if shown == "queued" else None)
    return Settled(job_id, token, None)


def _event(move: str, state: str) -> str:
    if state == "queued" and move == "expire":
        return "reclaimed"
    if state == "queued" and move == "release":
        return "released"
    return _EVENTS[state]
