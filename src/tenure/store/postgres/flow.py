"""Durable flow, as calls of PostgreSQL functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tenure.model.ids import JobId
from tenure.model.state import State
from tenure.model.step import Group, Step
from tenure.store.approvals import DecideApproval
from tenure.store.budgets import RaiseBudgets, RemoveBudgets, SetBudgets, SettleBudget
from tenure.store.contract import Cancel, Enqueue, Request, Revive, Settle
from tenure.store.flow import (
    Child,
    FillGroup,
    ForgetSteps,
    GetGroup,
    ListChildren,
    ListSteps,
    RecordSteps,
    Sent,
    Signal,
    SweepFlow,
    Swept,
    check_signal,
    check_steps,
)
from tenure.store.memo import ForgetMemos, KeepMemo
from tenure.store.postgres.codec import (
    Call,
    encode,
    encode_enqueue,
    group_json,
    maybe_moment,
    step_json,
    text,
    to_step,
)

SWEEPS: Final = 20
"""Sweeps that follow a request at most; what is left then is the leader's."""


def leaves_events(request: Request[Any], answer: Any) -> bool:
    """Whether a request that is no worker's exchange has left events for the sweep."""
    match request:
        case Settle():
            return bool(answer.get("flow"))
        case Signal():
            return bool(answer["is_taken"])
        case SettleBudget():
            return bool(answer["flow"])
        case Cancel() | Revive() | FillGroup() | DecideApproval() | KeepMemo() | ForgetMemos():
            return True
        case SetBudgets() | RaiseBudgets() | RemoveBudgets():
            return True
        case _:
            return False


def _record_steps(request: RecordSteps) -> str:
    check_steps(request.steps)
    steps = ",".join(map(step_json, request.steps))
    jobs = f',"jobs":{encode_enqueue(Enqueue(request.jobs))}' if request.jobs else ""
    return f'{{"job_id":{text(request.job_id)},"token":{request.token},"steps":[{steps}]{jobs}}}'


def _steps(answer: Any, _: Any) -> list[Step] | None:
    return None if answer is None else [to_step(row) for row in answer]


def _fill_group(request: FillGroup) -> str:
    told = f'"job_id":{text(request.job_id)},"token":{request.token},"at":{request.at}'
    total = "" if request.total is None else f',"total":{request.total}'
    return f'{{{told}{total},"group":{group_json(request.group, request.job_id)}}}'


def _group(answer: Any, _: Any) -> Group | None:
    if answer is None:
        return None
    values = list(answer)
    values[14:] = map(maybe_moment, values[14:])
    return Group(*values)


def _children(answer: Any, _: Any) -> list[Child]:
    return [
        Child(position, JobId(job_id), kind, None if state is None else State(state), *rest)
        for position, job_id, kind, state, *rest in answer
    ]


def _signal(request: Signal) -> str:
    check_signal(request)
    said = {"id": request.id, "key": request.key, "actor": request.actor, "scope": request.scope}
    if request.to is not None:
        said["to"] = request.to
    return f'{text(said)[:-1]},"keep":{float(request.keep_seconds)!r},"value":{request.value}}}'


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    RecordSteps: Call("record_steps", _record_steps, _steps),
    ListSteps: Call("list_steps", encode, _steps),
    FillGroup: Call("fill_group", _fill_group, _group),
    ForgetSteps: Call("forget_steps", encode, lambda answer, _: list(answer)),
    GetGroup: Call("get_group", encode, _group),
    ListChildren: Call("list_children", encode, _children),
    Signal: Call("signal", _signal, lambda answer, request: Sent(request.id, answer["is_taken"])),
    SweepFlow: Call("sweep_flow", encode, lambda answer, _: Swept(answer["events"], answer["jobs"], answer["more"])),
}
