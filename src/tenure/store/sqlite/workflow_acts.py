"""What people and time do to workflows: cancel, retry, answers to escalations, deadlines. Rules: store.workflows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Final

from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.model.workflow import Answer, is_threshold
from tenure.store import workflows as asked
from tenure.store.sqlite import admin
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit
from tenure.store.sqlite.workflow_fold import advance_by
from tenure.store.sqlite.workflow_judging import (
    apply_answer,
    begin_retry,
    breach,
    close_escalations,
    give_up,
    pass_on,
    stop,
)
from tenure.store.sqlite.workflow_reading import find_escalation, read_workflow
from tenure.store.sqlite.workflow_row import get_run, refusal_of

_SQL: Final = load("workflow_acts")


def are_due(transaction: Transaction, _request: asked.AreWorkflowsDue) -> bool:
    """See store.workflows.AreWorkflowsDue."""
    row = transaction.one(_SQL["are_due"], {"now": transaction.now})
    assert row is not None
    return bool(row[0])


def tend(transaction: Transaction, request: asked.TendWorkflows) -> int:
    """See store.workflows.TendWorkflows."""
    check_limit(request.limit)
    values = {"now": transaction.now, "limit": request.limit}
    late = transaction.all(_SQL["late"], values)
    for (workflow_id,) in late:
        transaction.run(_SQL["clear_deadline"], (workflow_id,))
        run = get_run(transaction, workflow_id)
        _or_give_up(transaction, workflow_id, partial(breach, transaction, run, "deadline", "the deadline has passed"))
    unanswered = transaction.all(_SQL["unanswered"], values)
    for escalation_id, workflow_id in unanswered:
        _or_give_up(transaction, workflow_id, partial(pass_on, transaction, escalation_id))
    if late or unanswered:
        advance_by(transaction)
    return len(late) + len(unanswered)


def _or_give_up(transaction: Transaction, workflow_id: str, act: Callable[[], None]) -> None:
    refusal = refusal_of(transaction, act)
    if refusal is not None:
        give_up(transaction, workflow_id, str(refusal))


def answer_escalation(transaction: Transaction, request: asked.AnswerEscalation) -> asked.EscalationRow:
    """See store.workflows.AnswerEscalation."""
    if request.answer not in list(Answer):
        raise InvalidArgument(f"answer is {request.answer!r}; it may be {', '.join(Answer)}. Nothing was changed.")
    threshold = None if request.threshold is None else json.loads(request.threshold)
    if request.answer == Answer.RAISE_THRESHOLD and not is_threshold(threshold):
        raise InvalidArgument("raise_threshold needs the new `threshold`: a count or a share. Nothing was changed.")
    found = find_escalation(transaction, request.id)
    if found is None:
        raise NotFound(f"There is no escalation {request.id}. `tenure workflows show` lists those of a workflow.")
    if found.state == "answered" and found.answer == request.answer:
        return found
    if found.state != "open":
        said = (
            f"was answered with {found.answer!r} by {found.answered_by}"
            if found.state == "answered"
            else f"is {found.state}"
        )
        raise IllegalMove(f"Escalation {request.id} {said}, so this answer came too late. Nothing was changed.")
    apply_answer(transaction, found, request.answer, request.actor, request.note, threshold)
    advance_by(transaction)
    answered = find_escalation(transaction, request.id)
    assert answered is not None
    return answered


def cancel(transaction: Transaction, request: asked.CancelWorkflow) -> asked.WorkflowRow:
    """See store.workflows.CancelWorkflow."""
    run = get_run(transaction, request.id)
    if run.state in ("completed", "failed"):
        raise IllegalMove(f"Workflow {request.id} is {run.state}, so there is nothing to cancel.")
    if run.state != "cancelled":
        admin.audit(transaction, request.actor, "cancel_workflow", request.id, request.reason, {"state": run.state})
        stop(transaction, run, "cancelled", f"cancelled by {request.actor}: {request.reason}")
        advance_by(transaction)
    return read_workflow(transaction, request.id)


def retry(transaction: Transaction, request: asked.RetryWorkflow) -> asked.WorkflowRow:
    """See store.workflows.RetryWorkflow."""
    run = get_run(transaction, request.id)
    if run.state == "cancelled" or run.phase in ("loading", "retrying"):
        why = "was cancelled" if run.state == "cancelled" else f"is {run.phase}"
        raise IllegalMove(f"Workflow {request.id} {why}, so it cannot be retried. Nothing was changed.")
    if run.state == "failed" and json.loads(run.policy).get("undo"):
        raise IllegalMove(
            f"Workflow {request.id} failed and what had succeeded is undone, so it cannot be retried. Start it anew. "
            "Nothing was changed."
        )
    if run.state in ("running", "completed") and not (run.failed or run.tolerated or run.cancelled):
        raise IllegalMove(
            f"No task of workflow {request.id} has failed, so there is nothing to retry. Nothing was changed."
        )
    admin.audit(transaction, request.actor, "retry_workflow", request.id, request.reason, {"state": run.state})
    close_escalations(transaction, request.id)
    begin_retry(transaction, run)
    advance_by(transaction)
    return read_workflow(transaction, request.id)
