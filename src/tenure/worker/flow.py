"""What a durable handler asks for, carried to the store, or as frames from a handler in a process of its own.

Handlers know neither stores nor frames: they ask by values (`handler.steps`, `handler.children`). Every write carries
the job and the token of the grant, so a handler can only ever write to its own job.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from tenure.errors import HandlerError, LeaseLost, NotFound
from tenure.handler import memo
from tenure.handler.budgets import EndReservation, MakeReservation
from tenure.handler.children import AddChildren, ChildResult, ReadChildren, ReadGroup
from tenure.handler.context import Context
from tenure.handler.steps import ReadSteps, Record
from tenure.model.budget import Refusal
from tenure.model.job import NewJob
from tenure.model.memo import MemoTold
from tenure.model.step import Group, NewGroup, NewStep, Step
from tenure.store.budgets import ReserveBudget, Reserved, SettleBudget
from tenure.store.contract import Request, Store
from tenure.store.flow import FillGroup, GetGroup, ListChildren, ListSteps, RecordSteps
from tenure.store.memo import KeepMemo, TakeMemo

_QUESTIONS: dict[str, type[Any]] = {
    question.__name__: question
    for question in (
        *(Record, AddChildren, ReadChildren, ReadGroup, ReadSteps),
        *(MakeReservation, EndReservation, memo.TakeMemo, memo.KeepMemo),
    )
}


class Flow:
    """Answers what durable handlers ask for."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def answer(self, context: Context, question: Any) -> Any:
        """Carry it out and wait. Raises: LeaseLost, and nothing was changed."""
        return _read(context, question, self._store.do(_request(context, question)))

    async def aanswer(self, context: Context, question: Any) -> Any:
        """`answer` on the event loop."""
        return _read(context, question, await self._store.ado(_request(context, question)))


def _request(context: Context, question: Any) -> Request[Any]:
    match question:
        case Record(steps, jobs):
            return RecordSteps(context.id, context.token, steps, jobs)
        case AddChildren(group, at, total):
            return FillGroup(context.id, context.token, group, at, total)
        case ReadChildren(group_id, after, limit, states):
            return ListChildren(group_id, after, limit, states)
        case ReadGroup(group_id):
            return GetGroup(group_id)
        case ReadSteps(after, limit):
            return ListSteps(context.id, after, limit)
        case MakeReservation(key, amounts, is_once):
            return ReserveBudget(context.id, context.token, key, amounts, is_once)
        case EndReservation(key, used, is_unused, is_done, is_parked):
            return SettleBudget(context.id, context.token, key, used, is_unused, is_done, is_parked)
        case memo.TakeMemo(id_, name, key, tenant):
            return TakeMemo(context.id, context.token, id_, name, key, tenant)
        case memo.KeepMemo(id_, value, ttl_seconds):
            return KeepMemo(context.id, context.token, id_, value, ttl_seconds)
    raise HandlerError(f"A handler asked for {type(question).__name__}, which no worker knows.")


def _read(context: Context, question: Any, answer: Any) -> Any:
    match question:
        case Record() | AddChildren() | memo.TakeMemo() | memo.KeepMemo() if answer is None:
            raise LeaseLost(
                f"Job {context.id}: attempt {context.attempt} recorded nothing, because its lease has ended or the job "
                "was handed on. The newer attempt goes on from the steps that are recorded."
            )
        case ReadGroup(group_id) if answer is None:
            raise NotFound(f"Job {context.id}: its group {group_id} of children is not there any more.")
        case ReadChildren():
            return [_child(one) for one in answer]
    return answer


def _child(one: Any) -> ChildResult:
    told = {field.name: getattr(one, field.name) for field in fields(ChildResult)}
    return ChildResult(**{**told, "state": None if one.state is None else str(one.state)})


# --- as frames --------------------------------------------------------------------------------------------------------


def question_to_wire(question: Any) -> dict[str, Any]:
    """A question as plain data."""
    return {"ask": type(question).__name__, **to_wire(asdict(question))}


def question_from_wire(told: dict[str, Any]) -> Any:
    """The question again. Raises KeyError or TypeError for what is none."""
    kind = _QUESTIONS[told["ask"]]
    parts = {name: value for name, value in told.items() if name not in {"ask", "op"}}
    if "steps" in parts:
        parts["steps"] = tuple(NewStep(**step) for step in parts["steps"])
    if "jobs" in parts:
        parts["jobs"] = tuple(job_from_wire(job) for job in parts["jobs"])
    if "group" in parts:
        parts["group"] = group_from_wire(parts["group"])
    if "states" in parts:
        parts["states"] = tuple(parts["states"])
    return kind(**parts)


def answer_to_wire(answer: Any) -> Any:
    """An answer as plain data."""
    if answer is None or isinstance(answer, bool):
        return answer
    return [to_wire(asdict(one)) for one in answer] if isinstance(answer, list) else to_wire(asdict(answer))


def answer_from_wire(question: Any, told: Any) -> Any:
    """The answer to a question again."""
    match question:
        case Record() | ReadSteps():
            return [step_from_wire(one) for one in told]
        case ReadChildren():
            return [ChildResult(**one) for one in told]
        case EndReservation():
            return told
        case MakeReservation():
            refusal = None if told is None or told["refusal"] is None else Refusal(**told["refusal"])
            return None if told is None else Reserved(**{**told, "refusal": refusal})
        case memo.TakeMemo() | memo.KeepMemo():
            return MemoTold(**told)
    return Group(**_with_moments(told))


def step_from_wire(told: dict[str, Any]) -> Step:
    """A step again."""
    return Step(**_with_moments(told))


def group_from_wire(told: dict[str, Any]) -> NewGroup:
    """A group that is to be, again."""
    return NewGroup(**{**told, "jobs": tuple(job_from_wire(job) for job in told["jobs"])})


def job_from_wire(told: dict[str, Any]) -> NewJob:
    """A job that is to be, again."""
    return NewJob(**_with_moments(told))


def to_wire(value: Any) -> Any:
    """Plain data, with moments as text."""
    if isinstance(value, dict):
        return {key: to_wire(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _with_moments(told: dict[str, Any]) -> dict[str, Any]:
    moments = {name: datetime.fromisoformat(value) for name, value in told.items() if value and _is_moment(name)}
    return {**told, **moments}


def _is_moment(name: str) -> bool:
    return name.endswith("_at")
