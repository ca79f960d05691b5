"""Schedules: the store reads no cron; it decides that each tick happens once."""

from __future__ import annotations

import json
from typing import Final

from tenure.model.clock import from_us, to_us
from tenure.store.contract import Enqueue
from tenure.store.schedules import (
    ListSchedules,
    PauseSchedules,
    RemoveSchedules,
    ScheduleRow,
    SetSchedules,
    TickSchedule,
)
from tenure.store.sqlite import enqueue
from tenure.store.sqlite.admin import audit
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("admin")


def list_schedules(transaction: Transaction, request: ListSchedules) -> list[ScheduleRow]:
    """See store.schedules.ListSchedules."""
    names = None if request.names is None else json.dumps(list(request.names))
    return [
        ScheduleRow(
            name,
            spec,
            from_us(last_tick),
            moment(paused_at),
            paused_by,
            from_us(created_at),
            from_us(updated_at),
        )
        for name, spec, last_tick, paused_at, paused_by, created_at, updated_at in transaction.all(
            _SQL["schedules"], {"names": names}
        )
    ]


def set_schedules(transaction: Transaction, request: SetSchedules) -> list[ScheduleRow]:
    """See store.schedules.SetSchedules."""
    for name, spec in request.specs.items():
        values = {"name": name, "spec": spec, "now": transaction.now}
        if transaction.run(_SQL["schedule_set"], values).rowcount > 0:
            audit(transaction, request.actor, "set_schedule", name, request.reason, json.loads(spec))
    return list_schedules(transaction, ListSchedules(tuple(request.specs)))


def tick_schedule(transaction: Transaction, request: TickSchedule) -> bool:
    """See store.schedules.TickSchedule."""
    values = {
        "name": request.name,
        "after": to_us(request.after),
        "tick": to_us(request.tick),
        "now": transaction.now,
    }
    if transaction.run(_SQL["schedule_tick"], values).rowcount < 1:
        return False
    enqueue.enqueue(transaction, Enqueue(request.jobs), tolerates=True)
    return True


def pause_schedules(transaction: Transaction, request: PauseSchedules) -> list[str]:
    """See store.schedules.PauseSchedules."""
    changed = []
    for name in request.names:
        values = {"name": name, "paused": request.paused, "actor": request.actor, "now": transaction.now}
        if transaction.run(_SQL["schedule_pause"], values).rowcount > 0:
            changed.append(name)
            act = "pause_schedule" if request.paused else "resume_schedule"
            audit(transaction, request.actor, act, name, request.reason, {})
    return changed


def remove_schedules(transaction: Transaction, request: RemoveSchedules) -> list[str]:
    """See store.schedules.RemoveSchedules."""
    gone = []
    for name in request.names:
        if transaction.run(_SQL["schedule_remove"], (name,)).rowcount > 0:
            gone.append(name)
            audit(transaction, request.actor, "remove_schedule", name, None, {})
    return gone
