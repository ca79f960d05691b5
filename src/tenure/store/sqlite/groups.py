"""Groups of children: created with their parent's suspend, or by pages before it. `store.flow` is the specification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tenure.errors import InvalidArgument, KeyConflict
from tenure.model.ids import JobId, Token
from tenure.model.step import Group, NewGroup, NewStep
from tenure.store.contract import Enqueue
from tenure.store.flow import Child, FillGroup, GetGroup, ListChildren, check_group
from tenure.store.sqlite import codec, enqueue, flow, steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit, dump

_SQL: Final = load("groups")


def fill_group(transaction: Transaction, request: FillGroup) -> Group | None:
    """See store.flow.FillGroup."""
    check_group(request.group)
    held = steps.held_job(transaction, request.job_id, request.token)
    if held is None:
        return None
    step_token, is_cancelled = held
    steps.refuse_cancelled_parent(request.job_id, is_cancelled)
    put(transaction, request.job_id, request.token, step_token, request.group, page=request)
    return get_group(transaction, GetGroup(request.group.id))


def get_group(transaction: Transaction, request: GetGroup) -> Group | None:
    """See store.flow.GetGroup."""
    row = transaction.one(_SQL["group"], (request.group_id,))
    return None if row is None else codec.group(row)


def list_children(transaction: Transaction, request: ListChildren) -> list[Child]:
    """See store.flow.ListChildren."""
    check_limit(request.limit)
    values = {
        "group_id": request.group_id,
        "after": request.after,
        "limit": request.limit,
        "states": dump(list(request.states)) if request.states else None,
    }
    return [codec.child(row) for row in transaction.all(_SQL["children"], values)]


def put(
    transaction: Transaction,
    job_id: JobId,
    token: Token,
    step_token: int | None,
    group: NewGroup,
    page: FillGroup | None = None,
) -> int | None:
    """Create the children, the group and its step; or, with `page`, a further page of them. The job is held.

    Without a page, a group whose step stands already is left as it is. Answers the job's new step_token.
    """
    at, total = (0, len(group.jobs)) if page is None else (page.at, page.total)
    is_new = not steps.found(transaction, job_id, [group.step_key])
    awaits = f"group:{group.id}"
    step = NewStep(group.step_key, "group", "open", awaits=awaits, due_seconds=group.due_seconds)
    step_token = steps.put_steps(transaction, job_id, token, step_token, [step])
    if page is None and not is_new:
        return step_token
    values: dict[str, Any] = {
        "id": group.id,
        "parent_id": job_id,
        "step_key": group.step_key,
        "need": group.need,
        "tolerate": group.tolerate,
        "fail_fast": group.fail_fast,
        "window_size": group.window,
        "cancel_rest": group.cancel_rest,
        "now": transaction.now,
    }
    if is_new:
        transaction.run(_SQL["group_insert"], values)
    row = transaction.one(_SQL["group_of_step"], values)
    if row is None:
        raise InvalidArgument(f"Job {job_id}: step {group.step_key!r} stands for another group. Nothing was created.")
    made, known_total, released = row
    count = len(group.jobs)
    if at + count <= made and (count or known_total is not None):
        count = 0  # a repeat
    elif at != made:
        raise InvalidArgument(
            f"Group {group.id}: {made} children were made, so the next page begins there, not at {at}. "
            "Nothing was created."
        )
    total = total if known_total is None else known_total
    made += count
    if total is not None and made > total:
        raise InvalidArgument(f"Group {group.id} was to have {total} children and has {made} now. Nothing was created.")
    if count:
        _create(transaction, job_id, group, at, released)
    values |= {"made": made, "total": total, "value": f'{{"group":"{group.id}","made":{made}}}'}
    transaction.run(_SQL["group_grow"], values)
    transaction.run(_SQL["group_cursor"], values)
    if made == total:
        flow.count_ends(transaction, {group.id: (0, 0, 0)})  # children may have ended before it was complete
    return step_token


def _create(transaction: Transaction, parent_id: JobId, group: NewGroup, at: int, released: int | None) -> None:
    jobs = [job if job.parent_id is not None else replace(job, parent_id=parent_id) for job in group.jobs]
    steps.refuse_other_queues(transaction, parent_id, jobs)
    answers = enqueue.enqueue(transaction, Enqueue(jobs), is_gated=False, group_id=group.id)
    if any(answer.duplicate for answer in answers):
        raise KeyConflict(
            f"A child of job {parent_id} has a key that another job holds. Nothing was created. Leave the key out, or "
            "make it the child's own."
        )
    ids = dump([job.id for job in jobs])
    transaction.run(_SQL["members_insert"], {"group_id": group.id, "at": at, "ids": ids})
    if released is not None and released < at + len(jobs):
        # Beyond the window: let go as others end.
        later = dump([job.id for job in jobs[max(released - at, 0) :]])
        transaction.run(_SQL["members_hold"], {"ids": later, "awaits": f"group:{group.id}", "never": flow.NEVER})
