"""Memos of a durable handler: a value that one job works out and others read. `store.memo` says what holds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tenure.handler.steps import Asks, Journal, StepPlan, read_value, step_text, tried
from tenure.model.frozen import frozen
from tenure.model.memo import MemoTold
from tenure.model.step import NewStep


@frozen
class TakeMemo:
    """Read a memo, or be the one to work it out. Answered by a MemoTold."""

    id: str
    name: str
    key: str
    tenant: str | None


@frozen
class KeepMemo:
    """Keep the value of a memo, as JSON text. Answered by a MemoTold with the value that stands."""

    id: str
    value: str
    ttl_seconds: float


@frozen
class MemoPlan:
    """A memo as a handler asks for it."""

    step: StepPlan
    id: str
    name: str
    key: str
    tenant: str | None
    ttl_seconds: float


def run_memo(journal: Journal, plan: MemoPlan) -> Asks[Any]:
    """The value of a memo: read, waited for, or worked out here. It is recorded as a step of this job too."""
    key = plan.step.key
    journal.enter_wait(key)
    row = journal.closed(key)
    if row is not None:
        return read_value(plan.step, row)
    journal.end_of_replay()
    told: MemoTold = yield TakeMemo(plan.id, plan.name, plan.key, plan.tenant)
    if told.state == "taken":
        waits = sum(one.startswith(f"{key}#") and journal.closed(one) is not None for one in journal.rows)
        wait = NewStep(f"{key}#{waits + 1}", "memo", "open", awaits=f"memo:{plan.id}")
        yield from journal.wait(f"memo:{plan.name}", wait)
    if told.state == "mine":
        value = yield from tried(plan.step)
        told = yield KeepMemo(plan.id, step_text(plan.step, value, journal.limits), plan.ttl_seconds)
    (row,) = yield from journal.record(NewStep(key, "memo", "done", value=told.value))
    return read_value(plan.step, row)


def payload_key(payload: Any) -> str:
    """The key of a memo for a whole payload: spelling does not count."""
    return hashlib.sha256(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
