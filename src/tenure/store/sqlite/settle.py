"""Settle: a batch of ends, each guarded by its token."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tenure.model.frozen import frozen
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
from tenure.store.contract import Claim, Exchange, Settle
from tenure.store.sqlite import enqueue, ledger
from tenure.store.sqlite.ends import End, answer_again, end
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction

_COMPLETE: Final = load("complete")
_COMPLETE_PLAIN: Final = load("complete_plain")
_COMPLETE_BATCH: Final = load("complete_batch")
_dump = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


@frozen
class Sorted:
    """Outcomes made ready to be written, by whoever asks and before the writer's turn: see `grants` for why.

    `plain`: successes without a result under the most frequent token, as a JSON array of ids. `rich`: all others, as a
    JSON array. Both are at `places`. `others` are settled one by one.
    """

    outcomes: Sequence[Outcome]
    claim: Claim | None
    places: Sequence[int]
    token: int = 0
    plain: str | None = None
    plain_number: int = 0
    rich: str | None = None
    others: Sequence[int] = ()

    @property
    def rich_number(self) -> int:
        """How many ends are in `rich`."""
        return len(self.places) - self.plain_number


def sort(request: Exchange | Settle) -> Sorted:
    """Sort the outcomes of a request. Depends on nothing but the request."""
    outcomes = request.outcomes
    claim = request.claim if isinstance(request, Exchange) else None
    if len({outcome.job_id for outcome in outcomes}) < len(outcomes):
        # Of one job the first word counts: keep the order.
        return Sorted(outcomes, claim, (), others=range(len(outcomes)))
    places: list[int] = []
    others: list[int] = []
    plain: dict[int, list[str]] = {}
    rich: list[Row] = []
    for place, outcome in enumerate(outcomes):
        if type(outcome) is not Completed or outcome.jobs or outcome.events or outcome.effects:
            others.append(place)
            continue
        places.append(place)
        if outcome.result is None and outcome.result_summary is None and outcome.artifacts_path is None:
            plain.setdefault(outcome.token, []).append(outcome.job_id)
        else:
            rich.append((outcome.job_id, outcome.token, outcome.result, outcome.result_summary, outcome.artifacts_path))
    # Most jobs succeed at once, so that most of a batch has token 1.
    token = max(plain, key=lambda each: len(plain[each]), default=0)
    ids = plain.pop(token, [])
    rich += [(job_id, each, None, None, None) for each, job_ids in plain.items() for job_id in job_ids]
    return Sorted(
        outcomes, claim, places, token, _dump(ids) if ids else None, len(ids), _dump(rich) if rich else None, others
    )


def settle(transaction: Transaction, request: Sorted) -> list[Settled]:
    """See store.base.Settle."""
    special = settle_all(transaction, request)
    return [
        special.get(place) or Settled(outcome.job_id, outcome.token, "succeeded")
        for place, outcome in enumerate(request.outcomes)
    ]


def settle_all(transaction: Transaction, request: Sorted) -> dict[int, Settled]:
    """Settle all; answers, by place, for those that did not end as a plain success."""
    special: dict[int, Settled] = {}
    outcomes, places = request.outcomes, request.places
    for place in request.others:
        if (answer := _settle_one(transaction, outcomes[place])) is not None:
            special[place] = answer
    if places:
        if _write(transaction, request) < len(places):
            special.update(_sort_out(transaction, outcomes, places))
        if transaction.wants_events:
            transaction.record("completed", (outcomes[place].job_id for place in places if place not in special))
    return special


def _write(transaction: Transaction, request: Sorted) -> int:
    """Write successes; how many were taken in."""
    now = transaction.now
    written = 0
    if request.plain is not None:
        values = {"done": request.plain, "token": request.token, "now": now}
        written += transaction.run(_COMPLETE_PLAIN, values).rowcount
    if request.rich is not None:
        written += transaction.run(_COMPLETE_BATCH, {"done": request.rich, "now": now}).rowcount
    return written


def _sort_out(transaction: Transaction, outcomes: Sequence[Outcome], places: Sequence[int]) -> Mapping[int, Settled]:
    """Some successes were not taken in: a lost lease, a cancel, or a repeat of one that was taken in before."""
    found = {}
    for place in places:
        answer = _refused(transaction, outcomes[place])
        if answer.state != "succeeded":
            found[place] = answer
    return found


def _settle_one(transaction: Transaction, outcome: Outcome) -> Settled | None:
    """Settle one; None for a plain success."""
    if isinstance(outcome, Completed):
        return _complete(transaction, outcome)
    how = _ENDS[type(outcome)](outcome)
    return end(transaction, how) or answer_again(transaction, outcome.job_id, outcome.token, completed=False)


def _complete(transaction: Transaction, outcome: Completed) -> Settled | None:
    now = transaction.now
    values = (
        outcome.result, outcome.result_summary, outcome.artifacts_path, now, now, outcome.job_id, outcome.token, now,
    )  # fmt: skip
    if transaction.run(_COMPLETE, values).rowcount < 1:
        return _unless_succeeded(_refused(transaction, outcome))
    if outcome.jobs:
        enqueue.insert(transaction, outcome.jobs, is_gated=False)
    for effect in outcome.effects:
        ledger.record(transaction, outcome.job_id, outcome.token, effect)
    ledger.append(transaction, outcome.job_id, outcome.events)
    transaction.record("completed", [outcome.job_id])
    return None


def _unless_succeeded(answer: Settled) -> Settled | None:
    return None if answer.state == "succeeded" else answer


def _refused(transaction: Transaction, outcome: Outcome) -> Settled:
    """A success that matched no row: cancelled if that was asked for, else as the first time, else lost."""
    return end(transaction, End(outcome.job_id, outcome.token, "complete")) or answer_again(
        transaction, outcome.job_id, outcome.token, completed=True
    )


def _failed(outcome: Any) -> End:
    return End(
        outcome.job_id, outcome.token, "fail", outcome.failure_class.value, outcome.error, outcome.retry_after_seconds
    )


def _rejected(outcome: Any) -> End:
    return End(outcome.job_id, outcome.token, "reject", outcome.failure_class.value, outcome.error)


def _released(outcome: Any) -> End:
    why = outcome.failure_class or FailureClass.SHUTDOWN
    return End(outcome.job_id, outcome.token, "release", why.value, outcome.error, outcome.delay_seconds)


def _suspended(outcome: Any) -> End:
    return End(
        outcome.job_id,
        outcome.token,
        "suspend",
        "snoozed",
        delay_seconds=outcome.delay_seconds,
        waiting_for=outcome.waiting_for,
    )


def _stopped(outcome: Any) -> End:
    return End(outcome.job_id, outcome.token, "stop", "cancelled", outcome.error)


_ENDS: Final[Mapping[type, Callable[[Any], End]]] = {
    Failed: _failed,
    Rejected: _rejected,
    Released: _released,
    Suspended: _suspended,
    Stopped: _stopped,
}
