"""Judging workflows: thresholds, what a breach does, and the ladder of escalation. Rules: store.workflows."""

from __future__ import annotations

import json
from typing import Any, Final

from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.workflow import ENDED_STATES, UNDO_KIND, UNDO_QUEUE, WITH_WORKFLOW, Answer, is_reached, is_threshold
from tenure.store.contract import Enqueue
from tenure.store.sqlite import admin, enqueue
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction
from tenure.store.sqlite.workflow_reading import find_escalation
from tenure.store.sqlite.workflow_row import COUNTS, Run, cancel_jobs, find_run, get_run, move, put_events, refusal_of
from tenure.store.workflows import EscalationRow

RETRIED: Final = ("failed", "tolerated", "cancelled")
"""Outcomes that a retry undoes, in this order."""
_SQL: Final = load("workflow_judging")


def judge(transaction: Transaction, workflow_id: str) -> None:
    """Whether its counts breach a workflow's policy, or end it."""
    run = find_run(transaction, workflow_id)
    if run is None or run.state not in ("running", "escalated") or run.phase in ("loading", "retrying"):
        return
    threshold = json.loads(run.policy).get("fail")
    is_breached = bool(run.is_judged) and is_reached(threshold, failed=run.failed, ended=run.ended, total=run.total)
    if run.state == "escalated":
        reason = transaction.one(_SQL["open_reason"], (workflow_id,))
        if not is_breached and reason is not None and reason[0] == "threshold":
            # Failed tasks were revived: the question has answered itself.
            close_escalations(transaction, workflow_id)
            _go_forward(transaction, run, error=None)
        return
    if is_breached and run.phase == "forward":
        detail = f"{run.failed:,} of {run.total:,} tasks failed"
        breach(transaction, run, "threshold", detail)
        run = get_run(transaction, workflow_id)
        if run.state != "running":
            return
    if run.ended >= run.total:
        move(transaction, run, "failed" if run.phase == "draining" else "completed", phase=run.phase)
        if run.phase == "draining":
            _undo(transaction, run)


def breach(transaction: Transaction, run: Run, reason: str, detail: str) -> None:
    """Too much failed, or it took too long: do what the policy says."""
    match json.loads(run.policy).get("on_breach", "fail"):
        case "continue":
            move(transaction, run, "running", phase=run.phase, error=detail, is_judged=False)
        case "drain":
            move(transaction, run, "running", phase="draining", error=detail, is_judged=False)
            put_events(transaction, [("cancel", run.id, None, "blocked", None, "")])
        case "escalate":
            move(transaction, run, "escalated", phase="held", error=detail)
            _escalate(transaction, run, reason, detail, 1)
        case _:
            stop(transaction, run, "failed", detail)


def stop(transaction: Transaction, run: Run, state: str, error: str) -> None:
    """End a workflow now; what is open is cancelled page by page."""
    close_escalations(transaction, run.id)
    move(transaction, run, state, phase="stopped", error=error)
    put_events(transaction, [("cancel", run.id, None, "all", None, "")])
    _undo(transaction, run)


def give_up(transaction: Transaction, workflow_id: str, why: str) -> None:
    """A workflow that cannot go on has failed: no other must wait for it."""
    run = find_run(transaction, workflow_id)
    if run is None or run.state in ENDED_STATES:
        return
    close_escalations(transaction, run.id)
    move(transaction, run, "failed", phase="stopped", error=f"It could not go on: {why}")
    put_events(transaction, [("cancel", run.id, None, "all", None, "")])


def _undo(transaction: Transaction, run: Run) -> None:
    """Let what succeeded be undone, where tasks say how."""
    if not json.loads(run.policy).get("undo"):
        return
    job = NewJob(
        id=new_job_id(),
        kind=UNDO_KIND,
        payload=json.dumps({"workflow_id": run.id}),
        queue=UNDO_QUEUE,
        actor="orchestrator",
    )
    enqueue.enqueue(transaction, Enqueue([job]), is_gated=False)


def _go_forward(transaction: Transaction, run: Run, **changes: Any) -> None:
    move(transaction, run, "running", phase="forward", is_next_round=True, **changes)
    put_events(transaction, [("release", run.id)])


def begin_retry(transaction: Transaction, run: Run) -> None:
    move(transaction, run, "running", phase="retrying", error=None, is_judged=True, is_next_round=True)
    put_events(transaction, [("retry", run.id, None, RETRIED[0], None, "")])


def _escalate(transaction: Transaction, run: Run, reason: str, detail: str, level: int) -> None:
    """Ask the level of the ladder. One row per round and level, however often it is tried."""
    ladder = json.loads(run.policy).get("ladder") or []
    target = ladder[level - 1]
    escalation_id, job_id = new_job_id(), None if "person" in target else new_job_id()
    due_at = None if target.get("after") is None else transaction.now + round(target["after"] * 1_000_000)
    values = {
        "id": escalation_id, "workflow_id": run.id, "round": run.round, "level": level, "reason": reason,
        "detail": detail, "target": json.dumps(target), "person": target.get("person"), "job_id": job_id,
        "due_at": due_at, "now": transaction.now,
    }  # fmt: skip
    if transaction.one(_SQL["insert_escalation"], values) is None or job_id is None:
        return
    facts = {
        "escalation_id": escalation_id,
        "workflow_id": run.id,
        "workflow": run.kind,
        "reason": reason,
        "detail": detail,
        "level": level,
        "counts": {name: getattr(run, name) for name in ("total", *COUNTS)},
        "answers": [answer.value for answer in Answer],
    }
    asking = NewJob(
        id=job_id,
        kind=target["kind"],
        payload=json.dumps(facts),
        queue=target["queue"],
        workflow_id=run.id,
        actor="orchestrator",
    )
    refusal = refusal_of(transaction, lambda: enqueue.enqueue(transaction, Enqueue([asking]), is_gated=False))
    if refusal is not None:
        pass_on(transaction, escalation_id, str(refusal))


def pass_on(transaction: Transaction, escalation_id: str, why: str | None = None) -> None:
    """A level did not answer, or cannot be asked: ask the next, or fail where there is none."""
    found = find_escalation(transaction, escalation_id)
    if found is None or found.state != "open":
        return
    _end_escalation(transaction, escalation_id, "passed", note=why)
    run = get_run(transaction, found.workflow_id)
    if run.state != "escalated":
        return
    if found.level < len(json.loads(run.policy).get("ladder") or []):
        _escalate(transaction, run, found.reason, found.detail, found.level + 1)
    else:
        stop(transaction, run, "failed", f"{found.detail}, and no one answered the escalation")


def hear(transaction: Transaction, escalation_id: str, state: str, result: str | None, queue: str) -> None:
    """The job that asked an agent or a queue has ended: its result is the answer. Without one the next level is
    asked."""
    told = json.loads(result) if state == "succeeded" and result is not None else None
    told = told if isinstance(told, dict) else {}
    said, threshold, note = told.get("answer"), told.get("threshold"), told.get("note")
    found = find_escalation(transaction, escalation_id)
    assert found is not None
    if said in list(Answer) and (said != Answer.RAISE_THRESHOLD or is_threshold(threshold)):
        apply_answer(transaction, found, said, queue, note if isinstance(note, str) else None, threshold)
    else:
        pass_on(transaction, escalation_id)


def apply_answer(
    transaction: Transaction, found: EscalationRow, answer: str, actor: str, note: str | None, threshold: Any
) -> None:
    """Do what was answered to an open escalation, by whom."""
    run = get_run(transaction, found.workflow_id)
    _end_escalation(transaction, found.id, "answered", answer, actor, note)
    detail = {"workflow_id": run.id, "answer": answer, "threshold": threshold}
    admin.audit(transaction, actor, "answer_escalation", found.id, note, detail)
    match answer:
        case Answer.GO_ON:
            _go_forward(transaction, run, is_judged=False)
        case Answer.RAISE_THRESHOLD:
            policy = {**json.loads(run.policy), "fail": threshold}
            _go_forward(transaction, run, policy=json.dumps(policy))
        case Answer.RETRY_FAILED:
            begin_retry(transaction, run)
        case Answer.FAIL:
            stop(transaction, run, "failed", f"{found.detail}; {actor} answered: fail")
        case Answer.CANCEL:
            stop(transaction, run, "cancelled", f"{actor} answered: cancel")


def _end_escalation(
    transaction: Transaction,
    escalation_id: str,
    state: str,
    answer: str | None = None,
    answered_by: str | None = None,
    note: str | None = None,
) -> None:
    values = {"id": escalation_id, "state": state, "answer": answer, "answered_by": answered_by, "note": note}
    transaction.one(_SQL["end_escalation"], {**values, "now": transaction.now})


def close_escalations(transaction: Transaction, workflow_id: str) -> None:
    rows = transaction.all(_SQL["close_escalations"], {"id": workflow_id, "now": transaction.now})
    jobs = [job_id for (job_id,) in rows if job_id is not None]
    if jobs:
        cancel_jobs(transaction, jobs, WITH_WORKFLOW, "The question is no longer open.")
