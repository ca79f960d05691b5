"""Settle: a batch of ends, each guarded by its token; and leases that ran out, which are one more way to end.

A success is one statement for all of a batch. Every other end reads the job's row, asks `model.state.end_rule` what it
does, and carries that out: one UPDATE, an attempt row and a dead letter where the rule says so.
"""

from __future__ import annotations

import json
import logging
import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tenure.model.fingerprint import fingerprint
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.limiter import keys_of
from tenure.model.outcome import (
    Completed,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Settled,
    Stopped,
    Suspended,
)
from tenure.model.policy import Backoff
from tenure.model.state import (
    BAD_ENDS,
    ISOLATE_FROM,
    QUARANTINE_CRASHES,
    QUARANTINE_JOBS,
    QUARANTINE_SECONDS,
    SUSPICION_MAX,
    TERMINAL,
    Move,
    Rule,
    State,
    end_rule,
    undo_first,
)
from tenure.model.step import OVERDUE
from tenure.model.workflow import WITH_WORKFLOW
from tenure.store.admin import SetGate
from tenure.store.checks import check_number
from tenure.store.contract import Enqueue, Reap, Settle
from tenure.store.limits import check_outcome
from tenure.store.sqlite import admin, effects, enqueue, flow, limits, parking, steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

NEVER: Final = 253_402_300_799_999_999
"""The last moment of the year 9999, where PostgreSQL says 'infinity'."""
ERROR_CHARS: Final = 16_384
EXPIRED: Final = "The lease ran out before the attempt ended: its worker crashed, hung, or lost the database."
QUARANTINE_REASON: Final = "Jobs of this kind keep crashing their workers, the last ones within ten minutes: {}."
CANCELLED_INSTEAD: Final = "Completed after a cancel was requested."

_SQL: Final = load("settle")
_CONNECTION: Final = load("connection")
_STATE_BY_OUTCOME: Final = {"retried": "queued", "released": "queued"}
_log = logging.getLogger(__name__)


def settle(transaction: Transaction, request: Settle) -> list[Settled]:
    """See store.contract.Settle."""
    special = settle_all(transaction, request.outcomes)
    return [
        special.get(place) or Settled(outcome.job_id, outcome.token, "succeeded")
        for place, outcome in enumerate(request.outcomes)
    ]


def reap(transaction: Transaction, request: Reap) -> list[Settled]:
    """See store.contract.Reap."""
    check_limit(request.limit)
    return take_back(transaction, request.limit)


# --- ends that workers report -----------------------------------------------------------------------------------------


def settle_all(transaction: Transaction, outcomes: Sequence[Outcome]) -> dict[int, Settled]:
    """Settle all; answers, by place, for those that did not end as a plain success."""
    special: dict[int, Settled] = {}
    plain: list[int] = []
    # Of one job the first outcome counts: with two for the same job, each is settled in its turn.
    is_mixed = len({outcome.job_id for outcome in outcomes}) < len(outcomes)
    for place, outcome in enumerate(outcomes):
        is_plain = isinstance(outcome, Completed) and not (outcome.jobs or outcome.events or outcome.effects)
        if is_plain and not is_mixed:
            plain.append(place)
        elif (answer := _settle_one(transaction, outcome)) is not None:
            special[place] = answer
    if plain:
        ended, told = _complete(transaction, [outcomes[place] for place in plain])
        if ended < len(plain):
            refused = ((place, _refused(transaction, outcomes[place])) for place in plain)
            special.update((place, answer) for place, answer in refused if answer is not None)
        if told:
            transaction.record("completed", told)
    return special


def _settle_one(transaction: Transaction, outcome: Outcome) -> Settled | None:
    """Settle one; None for a plain success."""
    if not isinstance(outcome, Completed):
        return _end(transaction, _reported(outcome)) or _on_record(transaction, outcome)
    ended, told = _complete(transaction, [outcome])
    if not ended:
        return _refused(transaction, outcome)
    if outcome.jobs:
        steps.refuse_other_queues(transaction, outcome.job_id, outcome.jobs)
        enqueue.enqueue(transaction, Enqueue(outcome.jobs), is_gated=False)
    for effect in outcome.effects:
        effects.record(transaction, outcome.job_id, outcome.token, effect)
    effects.append(transaction, outcome.job_id, outcome.events)
    transaction.record("completed", told)
    return None


def _complete(transaction: Transaction, outcomes: Iterable[Any]) -> tuple[int, list[str]]:
    """Write successes; how many were taken in, and which of them are to be told of by events."""
    done = [(each.job_id, each.token, each.result, each.result_summary, each.artifacts_path) for each in outcomes]
    values = {"done": dump(done), "now": transaction.now}
    followed = transaction.array(_SQL["followed"], values)
    ended = transaction.run(_SQL["complete"], values).rowcount
    transaction.tasks.update(row[:2] for row in followed if row[1] is not None)
    if durable := [row[0] for row in followed if row[2] is not None]:
        flow.end_durable(transaction, durable)
    if limited := [(row[3], row[4]) for row in followed if row[3] is not None]:
        limits.relieve(transaction, limited)
    if children := Counter(row[5] for row in followed if row[5] is not None):
        flow.count_ends(transaction, {group_id: (count, 0, 0) for group_id, count in children.items()})
    return ended, [row[0] for row in followed if row[6]]


def _refused(transaction: Transaction, outcome: Outcome) -> Settled | None:
    """A success that matched no row: cancelled if a cancel was requested, else as the first time, else lost. None if it
    did succeed, now or then."""
    answer = _on_record(transaction, outcome)
    if answer.state is None:
        end = _End(outcome.job_id, outcome.token, Move.COMPLETE, "cancelled", CANCELLED_INSTEAD)
        answer = _end(transaction, end) or answer
    return None if answer.state == "succeeded" else answer


@frozen
class _End:
    """One end that is no success."""

    job_id: JobId
    token: Token
    move: Move
    failure_class: str | None
    error: str | None = None
    delay_seconds: float | None = None
    waiting_for: str | None = None
    is_alone: bool = True
    is_vanished: bool = True
    suspended: Suspended | None = None
    """Of a suspend on steps: the whole outcome."""
    limiter: str | None = None
    """Of a release: the key that is blocked for the delay."""


def _reported(outcome: Outcome) -> _End:
    job_id, token = outcome.job_id, outcome.token
    match outcome:
        case Failed():
            check_number("retry_after_seconds", outcome.retry_after_seconds)
            failure_class = outcome.failure_class.value
            return _End(job_id, token, Move.RETRY, failure_class, outcome.error, outcome.retry_after_seconds)
        case Rejected():
            return _End(job_id, token, Move.REJECT, outcome.failure_class.value, outcome.error)
        case Released():
            given = None if outcome.failure_class is None else outcome.failure_class.value
            check_outcome(outcome)
            check_number("delay_seconds", outcome.delay_seconds)
            delay, key = outcome.delay_seconds, outcome.limiter
            return _End(job_id, token, Move.RELEASE, given, outcome.error, delay, limiter=key)
        case Suspended():
            check_number("delay_seconds", outcome.delay_seconds)
            return _End(
                job_id,
                token,
                Move.SUSPEND,
                None,
                delay_seconds=outcome.delay_seconds,
                waiting_for=outcome.waiting_for,
                suspended=outcome if outcome.steps or outcome.groups else None,
            )
        case Stopped():
            return _End(job_id, token, Move.CANCEL, "cancelled", outcome.error)
        case _:
            raise TypeError(f"{type(outcome).__name__} is no outcome")


def _on_record(transaction: Transaction, outcome: Outcome) -> Settled:
    """The answer to an outcome that could not be taken in: as the first time if it was taken in then, else lost."""
    job_id, token = outcome.job_id, outcome.token
    row = transaction.one(_SQL["on_record"], {"job_id": job_id, "token": token})
    if row is None or token < 1:  # there is no grant 0: a job that was never claimed was never let go
        return Settled(job_id, token, None)
    state, is_newest, run_at, ended, next_run_at = row
    is_completed = isinstance(outcome, Completed)
    if ended is not None:
        if ended == "expired" or (is_completed and ended != "cancelled"):
            return Settled(job_id, token, None)
        shown = _STATE_BY_OUTCOME.get(ended, ended)
        return Settled(job_id, token, shown, next_run_at if shown == "queued" else None)
    if is_newest and is_completed and state == "succeeded":
        return Settled(job_id, token, state)
    leaves_no_row = isinstance(outcome, Suspended) or (isinstance(outcome, Released) and outcome.failure_class is None)
    if is_newest and leaves_no_row and state in ("queued", "waiting", "cancelled"):
        return Settled(job_id, token, state, run_at if state == "queued" else None)
    return Settled(job_id, token, None)


# --- leases that ran out ----------------------------------------------------------------------------------------------


def take_back(transaction: Transaction, limit: int) -> list[Settled]:
    """Take back up to `limit` jobs whose lease ran out."""
    return _expire(transaction, transaction.all(_SQL["expired"], {"now": transaction.now, "limit": limit}))


def take_back_from(transaction: Transaction, worker: str) -> list[Settled]:
    """Take back all that a worker holds, because it is gone."""
    return take_back_held(transaction, transaction.all(_SQL["held_by"], {"worker": worker}))


def take_back_held(transaction: Transaction, rows: list[Row]) -> list[Settled]:
    """Take back jobs, given as (id, token, worker, lease_until), because their workers are gone."""
    return _expire(transaction, rows, is_gone=True)


def _expire(transaction: Transaction, rows: list[Row], *, is_gone: bool = False) -> list[Settled]:
    """Take back jobs, given as (id, token, worker, lease_until). A row that cannot be taken back is skipped."""
    workers = dump(list({row[2] for row in rows}))
    holders = {row[0]: row for row in transaction.all(_SQL["holders"], {"workers": workers})}
    settled, vanished = [], set()
    for job_id, token, worker, lease_until in rows:
        _, jobs, seen_at = holders[worker]
        # Seen after the lease ran out: its worker lives, only this lease was not kept.
        is_vanished = is_gone or seen_at is None or seen_at < lease_until
        if is_vanished:
            vanished.add(worker)
        answer = _expire_one(transaction, job_id, token, is_only_one=jobs == 1, is_vanished=is_vanished)
        if answer is not None:
            settled.append(answer)
    for worker, jobs, _ in holders.values():
        if jobs > 1:
            values = {"worker": worker, "is_vanished": worker in vanished, "now": transaction.now}
            transaction.run(_SQL["mark_beside"], values)
    return settled


def _expire_one(
    transaction: Transaction, job_id: JobId, token: Token, *, is_only_one: bool, is_vanished: bool
) -> Settled | None:
    transaction.run(_CONNECTION["row_savepoint"])
    try:
        held = _held(transaction, job_id, token, is_expiry=True)
        if held is None:
            return None
        end = _End(
            job_id,
            token,
            Move.EXPIRE,
            (FailureClass.CRASH if is_vanished else FailureClass.LEASE_LOST).value,
            EXPIRED,
            is_alone=held.suspicion >= SUSPICION_MAX or (is_only_one and not held.is_beside),
            is_vanished=is_vanished,
        )
        return _carry_out(transaction, end, held)
    except sqlite3.IntegrityError:
        _log.exception("Job %s could not be taken back from a worker whose lease ran out; it is skipped", job_id)
        transaction.run(_CONNECTION["row_undo"])
        return None
    finally:
        transaction.run(_CONNECTION["row_release"])


# --- carrying out a rule ----------------------------------------------------------------------------------------------


class _Held(NamedTuple):
    """A row of `held`."""

    attempt: int
    max_attempts: int
    crashes: int
    suspicion: int
    is_beside: int
    run_at: int
    lease_owner: str
    lease_until: int
    claimed_at: int | None
    cancel_requested: int
    last_error: str | None
    failure_class: str | None
    dedup_slot: str | None
    queue: str
    workflow_id: str | None
    own_backoff: str | None
    wake_token: int | None
    step_token: int | None
    group_id: str | None
    limiter: str | None
    shape: Any
    base_seconds: float
    power: float
    factor: float
    cap_seconds: float
    jitter: float


def _held(transaction: Transaction, job_id: JobId, token: Token, *, is_expiry: bool = False) -> _Held | None:
    values = {"job_id": job_id, "token": token, "now": transaction.now, "is_expiry": is_expiry}
    row = transaction.one(_SQL["held"], values)
    return None if row is None else _Held(*row)


def _end(transaction: Transaction, end: _End) -> Settled | None:
    """Carry out one end; None if the grant does not hold the job (any more)."""
    held = _held(transaction, end.job_id, end.token)
    if held is None or (end.move is Move.COMPLETE and not held.cancel_requested):
        return None
    return _carry_out(transaction, end, held)


def _carry_out(transaction: Transaction, end: _End, held: _Held) -> Settled:
    # Woken while a worker held it: the wake-up counts for the suspend that follows.
    is_woken = held.wake_token == end.token
    parked = parking.Parked(held.step_token, is_woken, due_at=None)
    if end.suspended is not None:
        is_cancelled = bool(held.cancel_requested)
        parked = parking.park(transaction, end.suspended, held.step_token, is_cancelled=is_cancelled, is_woken=is_woken)
        if parked.is_past_deadline:
            end = _End(end.job_id, end.token, Move.REJECT, FailureClass.DEADLINE.value, OVERDUE)
    # Attempts are counted per stretch: where this grant has recorded a new step, its attempt counts as the first.
    is_progress = parked.step_token == end.token
    held = held._replace(attempt=1, crashes=0) if is_progress else held
    rule = end_rule(
        end.move,
        cancel_requested=bool(held.cancel_requested),
        is_met=parked.is_met,
        attempts_left=held.attempt < held.max_attempts,
        is_crash=end.failure_class == FailureClass.CRASH,
        is_alone=end.is_alone,
        is_vanished=end.is_vanished,
        has_class=end.failure_class is not None,
    )
    failure_class = _class_of(rule, end, held)
    if parked.step_token is not None and rule.to in BAD_ENDS:
        undoing = flow.undoing_step(transaction, end.job_id, rule.to.value, failure_class, end.error)
        if undoing is not None:
            flow.put_undoing(transaction, end.job_id, end.token, undoing)
            rule = undo_first(rule)
    now, to = transaction.now, rule.to
    end = _limited(transaction, end, held)
    run_at = _run_at(rule, end, held, now)
    if to is State.WAITING and parked.due_at is not None:
        run_at = min(run_at, parked.due_at)
    error = None if end.error is None else end.error[:ERROR_CHARS]
    is_failure = rule.attempt_row in ("retried", "dead", "failed", "expired")
    values: dict[str, Any] = {
        "now": now,
        "job_id": end.job_id,
        "token": end.token,
        "state": to.value,
        "attempt": 0 if rule.resets else max(held.attempt + rule.attempt, 0),
        "crashes": rule.crashes + (0 if rule.resets else held.crashes),
        "forgets_cancel": rule.resets,
        "suspicion": _suspicion(rule, held.suspicion),
        "run_at": run_at,
        "place_at": held.run_at if to is State.WAITING else None,
        "is_due": to is not State.WAITING and run_at <= now,
        "waiting_for": end.waiting_for if to is State.WAITING else None,
        "last_error": error if rule.records_error and error is not None else held.last_error,
        "job_class": failure_class if rule.records_error else held.failure_class,
        "dedup_slot": None if rule.frees_key and (held.dedup_slot or "").startswith("a") else held.dedup_slot,
        "finished_at": now if to in TERMINAL else None,
        "number": held.attempt,
        "worker": held.lease_owner,
        "claimed_at": held.claimed_at,
        "outcome": rule.attempt_row,
        "failure_class": failure_class,
        "error": error,
        "fingerprint": fingerprint(failure_class or "", error) if is_failure else None,
        "next_run_at": run_at if to is State.QUEUED else None,
        "final_error": (error or "").strip(" ") or failure_class,
        "moved_by": held.lease_owner.strip() or "tenure",
    }
    transaction.run(_SQL["end"], values)
    if rule.attempt_row is not None:
        transaction.run(_SQL["attempt"], values)
    if rule.dead_letter:
        transaction.run(_SQL["bury"], values)
    if rule.crashes and values["crashes"] >= QUARANTINE_CRASHES:
        _consider_quarantine(transaction, end.job_id)
    if to in TERMINAL:
        _tell_end(transaction, end.job_id, held, to, is_durable=parked.step_token is not None)
    if to is State.QUEUED and run_at <= now:
        transaction.woken.add(held.queue)
    if rule.event is not None:
        transaction.record(rule.event, [end.job_id])
    return Settled(end.job_id, end.token, to.value, run_at if to is State.QUEUED else None)


def _class_of(rule: Rule, end: _End, held: _Held) -> str | None:
    if rule.to is not State.CANCELLED:
        return end.failure_class
    # Cancelled with its workflow, where that marked it.
    return WITH_WORKFLOW if held.failure_class == WITH_WORKFLOW else FailureClass.CANCELLED.value


def _tell_end(transaction: Transaction, job_id: JobId, held: _Held, to: State, *, is_durable: bool) -> None:
    """What the end of a job means for its group, its approvals and its workflow."""
    if held.group_id is not None:
        flow.tell_groups(transaction, [(held.group_id, to.value)])
    if is_durable:
        flow.end_durable(transaction, [job_id])
    if held.workflow_id is not None:
        transaction.tasks[job_id] = held.workflow_id


def _consider_quarantine(transaction: Transaction, job_id: JobId) -> None:
    """A job has crashed again by its own doing: close the gate of its kind, if that was one job too many."""
    values = {
        "job_id": job_id,
        "since": transaction.now - round(QUARANTINE_SECONDS * 1_000_000),
        "crashes": QUARANTINE_CRASHES,
        "jobs": QUARANTINE_JOBS,
    }
    crashed = transaction.all(_SQL["crashed"], values)
    if len(crashed) >= QUARANTINE_JOBS:
        reason = QUARANTINE_REASON.format(", ".join(row[1] for row in crashed))
        admin.set_gate(transaction, SetGate(f"kind:{crashed[0][0]}", False, "tenure", reason))


def _limited(transaction: Transaction, end: _End, held: _Held) -> _End:
    """What an end means for limiters: a refusal blocks the key, a job that did not start gives back what it took."""
    if end.limiter is not None:
        limits.block(transaction, end.limiter, end.delay_seconds or 0.0, end.error)
        if end.limiter in keys_of(held.limiter):  # the block alone holds it back, and it keeps its place
            return replace(end, delay_seconds=None)
    elif end.move is Move.RELEASE and end.failure_class is None and held.limiter is not None:
        limits.give_back(transaction, held.limiter)
    return end


def _suspicion(rule: Rule, before: int) -> int:
    match rule.suspicion:
        case "clear":
            return 0
        case "raise":
            return before + 1
        case "isolate":
            return max(before, ISOLATE_FROM)
        case "keep":
            return before


def _run_at(rule: Rule, end: _End, held: _Held, now: int) -> int:
    delay = None if end.delay_seconds is None else round(max(end.delay_seconds, 0) * 1_000_000)
    match rule.run_at:
        case "backoff":
            return now + (_backoff_us(held) if delay is None else delay)
        case "delay":
            return now + (delay or 0)
        case "delay_or_keep":
            return now + delay if delay else held.run_at
        case "delay_or_never":
            return NEVER if delay is None else now + delay
        case "now":
            return now
        case "keep" | "place":
            return held.run_at


def _backoff_us(held: _Held) -> int:
    """By the job's own backoff, where it names one, else by its queue's. Jitter only lengthens."""
    own = json.loads(held.own_backoff) if held.own_backoff else {}
    backoff = Backoff(
        shape=own.get("shape") or held.shape,
        **{
            name: getattr(held, name) if own.get(name) is None else float(own[name])
            for name in ("base_seconds", "power", "factor", "cap_seconds", "jitter")
        },
    )
    try:
        delay = backoff.delay_seconds(held.attempt)
    except OverflowError:
        delay = backoff.cap_seconds
    return int(1_000_000 * delay * (1 + backoff.jitter * random.random()))
