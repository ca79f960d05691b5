"""Schedules on the wire."""

from __future__ import annotations

import json
from typing import Any

from tenure.model.clock import from_us, to_us
from tenure.store.contract import Enqueue
from tenure.store.postgres.call import Call
from tenure.store.postgres.moves import encode_enqueue
from tenure.store.schedules import (
    ListSchedules,
    PauseSchedules,
    RemoveSchedules,
    ScheduleRow,
    SetSchedules,
    TickSchedule,
)


def _rows(answer: Any, _: Any) -> list[ScheduleRow]:
    return [
        ScheduleRow(
            name,
            spec,
            from_us(last_tick),
            None if paused_at is None else from_us(paused_at),
            paused_by,
            from_us(created_at),
            from_us(updated_at),
        )
        for name, spec, last_tick, paused_at, paused_by, created_at, updated_at in answer
    ]


def _set(request: SetSchedules) -> str:
    specs = ",".join(f"{json.dumps(name)}:{spec}" for name, spec in request.specs.items())
    return f'{{"specs":{{{specs}}},"actor":{json.dumps(request.actor)}}}'


def _tick(request: TickSchedule) -> str:
    jobs = f',"jobs":{encode_enqueue(Enqueue(request.jobs))}' if request.jobs else ""
    return f'{{"name":{json.dumps(request.name)},"after":{to_us(request.after)},"tick":{to_us(request.tick)}{jobs}}}'


CALLS: dict[type[Any], Call] = {
    ListSchedules: Call(
        "list_schedules", lambda r: "{}" if r.names is None else json.dumps({"names": list(r.names)}), _rows
    ),
    SetSchedules: Call("set_schedules", _set, _rows),
    TickSchedule: Call("tick_schedule", _tick, lambda answer, _: bool(answer)),
    PauseSchedules: Call(
        "pause_schedules",
        lambda r: json.dumps({"names": list(r.names), "paused": r.paused, "actor": r.actor, "reason": r.reason}),
        lambda answer, _: list(answer),
    ),
    RemoveSchedules: Call(
        "remove_schedules",
        lambda r: json.dumps({"names": list(r.names), "actor": r.actor}),
        lambda answer, _: list(answer),
    ),
}
