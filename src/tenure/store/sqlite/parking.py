"""Parking: the suspend of a job on open steps and groups of children. `store.flow` is the specification."""

from __future__ import annotations

from typing import Final

from tenure.model.frozen import frozen
from tenure.model.outcome import Suspended
from tenure.store.flow import check_group, check_steps
from tenure.store.sqlite import budgets, flow, groups, steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("flow")


@frozen
class Parked:
    """What a suspend found: whether a condition is met, and else when the job is to be woken at the latest; or that the
    job was granted with its deadline over, so that it ends."""

    step_token: int | None
    is_met: bool
    due_at: int | None
    is_past_deadline: bool = False


def park(
    transaction: Transaction, outcome: Suspended, step_token: int | None, *, is_cancelled: bool, is_woken: bool
) -> Parked:
    """Write the steps of a suspend and look at their conditions. The job is known to be held. `is_woken`: it was woken
    while it was, so it does not wait."""
    check_steps(outcome.steps)
    job_id, token, now = outcome.job_id, outcome.token, transaction.now
    step_token = steps.put_steps(transaction, job_id, token, step_token, outcome.steps)
    if is_cancelled:
        return Parked(step_token, is_woken, due_at=None)
    if transaction.one(_SQL["is_past_deadline"], {"job_id": job_id}) is not None:
        return Parked(step_token, is_woken, due_at=None, is_past_deadline=True)
    for group in outcome.groups:
        check_group(group)
        step_token = groups.put(transaction, job_id, token, step_token, group)
    opened = [step.key for step in outcome.steps if step.state == "open"]
    opened += [group.step_key for group in outcome.groups]
    # A step that is given as open and stands closed was met before.
    is_met = any(step.state != "open" for step in steps.found(transaction, job_id, opened).values())
    transaction.run(_SQL["deadline_counts"], {"job_id": job_id, "token": token})
    dues: list[int] = []
    watched: list[str] = []
    for key, awaits, due_at in transaction.all(_SQL["steps_parked"], {"job_id": job_id, "token": token}):
        # One signal ends a wait; what else has come stays for the next one.
        is_enough = is_met and awaits is not None and awaits.startswith("signal:")
        is_due = due_at is not None and due_at <= now
        if (awaits and not is_enough and _close_if_met(transaction, outcome, key, awaits)) or is_due:
            is_met = True
        else:
            dues += [] if due_at is None else [due_at]
            watched += [awaits[4:]] if awaits is not None and awaits.startswith("job:") else []
    if is_met:
        flow.close_due_steps(transaction, [job_id])
    elif not is_woken:
        for other in watched:
            flow.watch_job(transaction, other)
    return Parked(step_token, is_met or is_woken, min(dues, default=None))


def _close_if_met(transaction: Transaction, outcome: Suspended, key: str, awaits: str) -> bool:
    if awaits.startswith("budget:"):
        return budgets.close_if_fits(transaction, outcome.job_id, outcome.token, key)
    return flow.close_if_met(transaction, outcome.job_id, key, awaits)
