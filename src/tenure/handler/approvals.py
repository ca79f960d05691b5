"""Approvals in a durable handler: ask a person, wait without a slot, and go on with what was decided.

The arguments are frozen by the first ask. A later attempt that asks about other arguments voids the approval, granted
or not, and asks anew; the third time the job fails. What was decided is bound to the hash of the arguments, and an
effect that is given the decision refuses any others.
"""

from __future__ import annotations

import json
from typing import Any

from tenure.errors import InvalidArgument
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.payload import encode
from tenure.handler.signals import NotApproved
from tenure.handler.steps import Asks, Journal, StepKey, step_key
from tenure.model.approval import ON_EXPIRY, VOID, VOIDS_MAX, Question, canonical, check_question, hash_of
from tenure.model.frozen import frozen
from tenure.model.ids import new_job_id
from tenure.model.policy import Limits
from tenure.model.step import NewStep, Step


@frozen
class Decision:
    """What people have decided. True if it was granted."""

    granted: bool
    by: tuple[str, ...]
    """Who approved, or who denied; empty if it expired."""
    note: str | None
    args: Any
    """The arguments that the decision is about, as they were shown."""
    id: str
    args_hash: str
    state: str
    """granted, denied, expired or used."""

    def __bool__(self) -> bool:
        return self.granted


@frozen
class ApprovalPlan:
    """An approval as a handler asks for it."""

    key: str
    question: Question


def plan_approval(
    name: str,
    args: Any,
    text: str,
    ask: Names | None,
    need: int,
    expires: Duration | None,
    on_expiry: str,
    key: StepKey | None,
    limits: Limits,
) -> ApprovalPlan:
    """Check and freeze what is asked. Raises: InvalidArgument, InvalidPayload."""
    place = f"approve/{step_key(name, key)}"
    question = Question(
        new_job_id(),
        name if key is None else f"{name}/{key}",
        canonical(json.loads(encode(args, limits, what=f"Approval {name!r}: its arguments"))),
        text and arguments.text("text", text),
        need,
        arguments.names("ask", ask),
        None if expires is None else arguments.seconds("expires", expires, positive=True),
        arguments.word("on_expiry", on_expiry, ON_EXPIRY),
    )
    check_question(f"Approval {name!r}", question)
    return ApprovalPlan(place, question)


def run_approval(journal: Journal, plan: ApprovalPlan) -> Asks[Decision]:
    """The decision about these very arguments; waits for it if there is none yet."""
    journal.enter_wait(plan.key)
    row = journal.closed(plan.key)
    if row is not None and row.state == "failed" and row.error == VOID:
        raise NotApproved(
            f"Approval {plan.question.name!r}: its arguments changed {VOIDS_MAX} times while it was asked about, so no "
            "answer can count. Let them come from the payload or from a step."
        )
    if row is not None:
        decision = read_decision(row)
        if decision.state == "used" or decision.args_hash == hash_of(plan.question.args):
            return decision
    step = NewStep(plan.key, "approval", "open", value=plan.question.to_json())
    return (yield from journal.wait(f"approval:{plan.question.name}", step))


def read_decision(row: Step) -> Decision:
    """The decision that a closed step holds."""
    told = json.loads(row.value or "{}")
    args = told.get("args")
    return Decision(
        bool(told.get("granted")),
        tuple(told.get("by") or ()),
        told.get("note"),
        None if args is None else json.loads(args),
        str(told.get("approval")),
        str(told.get("args_hash")),
        str(told.get("state")),
    )


def approved_args(name: str, args: Any, decision: Any, limits: Limits) -> Any:
    """The arguments of an effect that is bound to a decision. Raises: NotApproved, InvalidArgument."""
    if not isinstance(decision, Decision):
        raise InvalidArgument(
            f"Effect {name!r}: `approval` takes what `ctx.approve` returned, got {type(decision).__name__}."
        )
    if not decision.granted:
        raise NotApproved(f"Effect {name!r}: approval {decision.id} was not granted ({decision.state}).")
    if args is None:
        return decision.args
    given = canonical(json.loads(encode(args, limits, what=f"Effect {name!r}: its arguments")))
    if hash_of(given) != decision.args_hash:
        raise NotApproved(
            f"Effect {name!r}: its arguments are not those that approval {decision.id} was given for. Use the "
            "decision's own `args`."
        )
    return decision.args
