"""Steps: what durable jobs have behind them. `store.flow` is the specification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tenure.errors import Forbidden, IllegalMove
from tenure.model.ids import JobId, Token
from tenure.model.job import NewJob
from tenure.model.step import GRANT_BYTES, NO_PROGRESS, NewStep, Step
from tenure.store.contract import Enqueue
from tenure.store.flow import ListSteps, RecordSteps, check_steps
from tenure.store.sqlite import approvals, codec, enqueue
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit, dump

ERROR_CHARS: Final = 16_384

_SQL: Final = load("flow")


def record_steps(transaction: Transaction, request: RecordSteps) -> list[Step] | None:
    """See store.flow.RecordSteps."""
    check_steps(request.steps)
    held = held_job(transaction, request.job_id, request.token)
    if held is None:
        return None
    step_token, is_cancelled = held
    keys = [step.key for step in request.steps]
    is_first = bool(keys) and not found(transaction, request.job_id, keys[:1])
    put_steps(transaction, request.job_id, request.token, step_token, request.steps)
    if request.jobs and is_first:
        refuse_cancelled_parent(request.job_id, is_cancelled)
        refuse_other_queues(transaction, request.job_id, request.jobs)
        enqueue.enqueue(transaction, Enqueue(request.jobs), is_gated=False)
    stand = found(transaction, request.job_id, keys)
    return [stand[key] for key in keys]


def list_steps(transaction: Transaction, request: ListSteps) -> list[Step]:
    """See store.flow.ListSteps."""
    check_limit(request.limit)
    values = {"job_id": request.job_id, "after": request.after, "limit": request.limit}
    return [codec.step(row) for row in transaction.all(_SQL["steps_list"], values)]


def granted_steps(transaction: Transaction, ids: Iterable[str]) -> dict[str, tuple[tuple[Step, ...], bool]]:
    """By job, what its grant carries of its steps, and whether there are more."""
    taken: dict[str, tuple[list[Step], int]] = {}
    for row in transaction.all(_SQL["steps_granted"], {"ids": dump(list(ids)), "now": transaction.now}):
        steps, size = taken.get(row[0], ([], 0))
        size += len((row[6] or "").encode())
        if size <= GRANT_BYTES:
            steps.append(codec.step(row))
        taken[row[0]] = (steps, size)
    return {job_id: (tuple(steps), size > GRANT_BYTES) for job_id, (steps, size) in taken.items()}


def put_steps(
    transaction: Transaction, job_id: JobId, token: Token, step_token: int | None, steps: Sequence[NewStep]
) -> int | None:
    """Record steps of a job that is known to be held; answers its new step_token."""
    before = step_token
    for step in steps:
        if step.kind == "approval" and step.state == "open":
            if approvals.ask(transaction, job_id, token, step):
                step_token = token
            continue
        values = {
            "now": transaction.now,
            "job_id": job_id,
            "token": token,
            "key": step.key,
            "kind": step.kind,
            "state": step.state,
            "value": step.value,
            "error": None if step.error is None else step.error[:ERROR_CHARS],
            "awaits": step.awaits,
            "due_at": _due_at(transaction, step),
            "ended_at": None if step.state in ("open", "armed") else transaction.now,
        }
        if not transaction.run(_SQL["step_insert"], values).rowcount:
            transaction.run(_SQL["step_move"], values)
        elif step.kind not in NO_PROGRESS:
            step_token = token
        elif step_token is None:
            step_token = 0
    if step_token != before:
        transaction.run(_SQL["note_steps"], {"job_id": job_id, "step_token": step_token})
    return step_token


def note_durable(transaction: Transaction, job_id: JobId) -> None:
    """A job that has recorded no step is durable all the same."""
    transaction.run(_SQL["note_steps"], {"job_id": job_id, "step_token": 0})


def _due_at(transaction: Transaction, step: NewStep) -> int | None:
    """When a step is due. A wait for a budget never is: a new window wakes only those who fit into it."""
    if step.due_seconds is None or step.kind == "budget":
        return None
    return transaction.now + round(step.due_seconds * 1_000_000)


def held_job(transaction: Transaction, job_id: JobId, token: Token) -> tuple[int | None, bool] | None:
    """Of a job that is held under this token its step_token, and whether it was asked to stop; None if the lease is
    lost."""
    row = transaction.one(_SQL["held_job"], {"job_id": job_id, "token": token, "now": transaction.now})
    return None if row is None else (row[0], bool(row[1]))


def found(transaction: Transaction, job_id: JobId, keys: Sequence[str]) -> dict[str, Step]:
    """The steps with these keys, by key."""
    rows = transaction.all(_SQL["steps_of"], {"job_id": job_id, "keys": dump(list(keys))})
    return {row[1]: codec.step(row) for row in rows}


def refuse_cancelled_parent(job_id: JobId, is_cancelled: bool) -> None:
    """A job that was asked to stop gets no children any more."""
    if is_cancelled:
        raise IllegalMove(f"Job {job_id} was asked to stop, so it gets no children any more. Nothing was created.")


def refuse_other_queues(transaction: Transaction, job_id: JobId, jobs: Sequence[NewJob]) -> None:
    """A job of a profile with the setting own_queue_only makes no work for other queues, neither when it ends nor as
    children. Specification 001, 10."""
    row = transaction.one(_SQL["own_queue"], (job_id,))
    other = None if row is None else next((job.queue for job in jobs if job.queue != row[0]), None)
    if row is not None and other is not None:
        raise Forbidden(
            f"Job {job_id} of {row[0]!r} may not create work for {other!r}. Work for other agents is created by the "
            "orchestrator. Nothing was changed."
        )
