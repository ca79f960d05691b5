"""Folding: what the ends of tasks mean for their workflows. The rules stand in store.workflows.

A move that ends or revives a job with a workflow_id notes it in `Transaction.tasks`; the writer then calls `fold` in
the same transaction, which goes as far as a page. What is longer is left as event rows for the next transaction, which
workers ask for (AdvanceWorkflows).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from tenure.errors import TenureError
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import NewJob
from tenure.model.workflow import WITH_WORKFLOW
from tenure.store.contract import Cancel, Enqueue, Revive
from tenure.store.sqlite import admin, enqueue
from tenure.store.sqlite.flow import NEVER
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump
from tenure.store.sqlite.workflow_judging import RETRIED, give_up, hear, judge
from tenure.store.sqlite.workflow_row import (
    COUNTS,
    add_tasks,
    cancel_jobs,
    end_durable,
    get_run,
    grow,
    move,
    put_events,
    refusal_of,
)
from tenure.store.workflows import PAGE_TASKS, Advanced, AdvanceWorkflows

PAGE: Final = 250
"""Tasks that one transaction cancels or retries."""
CANCELLED: Final = "Cancelled with its workflow."
UPSTREAM: Final = "A task that it needs did not succeed."
_SQL: Final = load("workflow_fold")


def fold(transaction: Transaction) -> None:
    """Fold the ends of tasks and their revivals, in the transaction that made them, up to a page."""
    put_events(transaction, [("look", workflow_id, job_id) for job_id, workflow_id in transaction.tasks.items()])
    advance_by(transaction)


def advance(transaction: Transaction, request: AdvanceWorkflows) -> Advanced:
    """See store.workflows.AdvanceWorkflows."""
    check_limit(request.limit)
    return advance_by(transaction, request.limit)


def advance_by(transaction: Transaction, limit: int = 500) -> Advanced:
    """Fold up to `limit` events. A workflow that cannot go on fails, and the others go on."""
    taken = sorted(transaction.all(_SQL["take_events"], {"limit": limit}))
    if taken and refusal_of(transaction, partial(_Fold(transaction).run, taken)) is not None:
        _fold_each(transaction, taken)
    transaction.tasks.clear()  # what a fold ends or revives, it counts itself
    more = bool(taken) and transaction.one(_SQL["has_events"]) is not None
    return Advanced(len(taken), more)


def _fold_each(transaction: Transaction, taken: Sequence[Row]) -> None:
    """Fold workflow by workflow, and fail those that cannot go on."""
    by_workflow: dict[str, list[Row]] = {}
    for row in taken:
        by_workflow.setdefault(row[2], []).append(row)
    for workflow_id, events in by_workflow.items():
        refusal = refusal_of(transaction, partial(_Fold(transaction).run, events))
        if refusal is not None:
            give_up(transaction, workflow_id, str(refusal))


class _Change(NamedTuple):
    """How a task's end is counted now."""

    job_id: JobId
    workflow_id: str
    was: str | None
    became: str | None
    parent: str | None


class _Fold:
    """One bounded transaction's worth of folding: events in, counts, releases, skips and judgements out."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._budget = PAGE_TASKS
        """Edges and jobs that may still be touched; what is beyond it is put back as events."""
        self._counts: dict[str, Counter[str]] = {}
        self._touched: dict[str, None] = {}
        """Workflows to judge, in order."""
        self._work: list[tuple[JobId, str, str | None, str | None, str]] = []
        """Edges to walk: of which task, its workflow, was, became, behind which successor."""
        self._fans: dict[str, list[int]] = {}
        self._asked: list[Row] = []
        """Escalations whose jobs have ended."""
        self._phases: dict[str, str] = {}
        self._releases: list[str] = []
        """Workflows that go on, and so release what was held back."""

    def run(self, events: Sequence[Row]) -> None:
        """Fold the events."""
        looks = [job_id for _, kind, _, job_id, _, _, _ in events if kind == "look"]
        if looks:
            self._budget -= len(looks)
            self._look(looks)
            self._judge()  # before anything is released by these ends
        left = []
        for _, kind, workflow_id, job_id, was, became, after in events:
            if kind != "look" and self._budget > 0:
                self._touched.setdefault(workflow_id)
                self._take(kind, workflow_id, job_id, was, became, after)
            elif kind != "look":
                left.append((kind, workflow_id, job_id, was, became, after))
        put_events(self._transaction, left)
        self._spread()
        for workflow_id in self._releases:
            self._release_ready(workflow_id)
        self._judge()
        for escalation_id, state, result, queue in self._asked:
            hear(self._transaction, escalation_id, state, result, queue)
        if self._asked:
            advance_by(self._transaction)

    def _take(
        self, kind: str, workflow_id: str, job_id: JobId, was: str | None, became: str | None, after: str
    ) -> None:
        """Go on with what was too long for one transaction."""
        match kind:
            case "spread":
                self._work.append((job_id, workflow_id, was, became, after))
            case "release":
                self._releases.append(workflow_id)
            case "cancel":
                self._cancel_page(workflow_id, was, after)
            case "retry":
                self._retry_page(workflow_id, str(was), after)
            case "expand":
                self._expand(job_id, workflow_id, int(after or 0))

    def _judge(self) -> None:
        self._tally()
        for workflow_id in self._touched:
            judge(self._transaction, workflow_id)
        self._touched.clear()
        self._phases.clear()

    # --- counting

    def _look(self, job_ids: Sequence[JobId]) -> None:
        rows = self._transaction.all(_SQL["look"], {"ids": dump(job_ids)})
        self._apply([_Change(*row) for row in rows])
        if len(rows) < len(job_ids):
            self._asked = self._transaction.all(_SQL["asked_jobs"], {"ids": dump(job_ids)})

    def _apply(self, changes: Sequence[_Change]) -> None:
        """Count tasks otherwise than before, and walk their edges later."""
        if not changes:
            return
        given = [(change.job_id, change.became) for change in changes]
        self._transaction.run(_SQL["count"], {"changes": dump(given)})
        for change in changes:
            counts = self._counts.setdefault(change.workflow_id, Counter())
            if change.was is not None:
                counts[change.was] -= 1
            if change.became is not None:
                counts[change.became] += 1
            self._touched.setdefault(change.workflow_id)
            if change.parent is not None:
                item = self._fans.setdefault(change.parent, [0, 0])
                item[0] += (change.became is not None) - (change.was is not None)
                item[1] += _is_failure(change.became) - _is_failure(change.was)
            self._work.append((change.job_id, change.workflow_id, change.was, change.became, ""))

    def _tally(self) -> None:
        for workflow_id, counts in self._counts.items():
            values = {name: counts[name] for name in COUNTS}
            before = get_run(self._transaction, workflow_id)
            is_reopened = before.state in ("completed", "failed") and sum(values.values()) < 0
            self._transaction.run(_SQL["tally"], {**values, "id": workflow_id, "now": self._transaction.now})
            if is_reopened and before.phase != "retrying":
                # A task was revived on its own: the workflow has something to do again.
                move(self._transaction, get_run(self._transaction, workflow_id), "running", phase="forward", error=None)
        self._counts.clear()

    # --- edges

    def _spread(self) -> None:
        """Walk the edges of what changed, and of what changes by that, until done or out of budget."""
        while True:
            self._end_fan_outs()
            if not self._work:
                return
            work, self._work = self._work, []
            given = dump([(job_id, after) for job_id, _, _, _, after in work])
            if self._budget <= 0:
                places = self._transaction.all(_SQL["with_edges"], {"work": given})
                left = [work[place] for (place,) in places]
                put_events(
                    self._transaction,
                    [
                        ("spread", workflow_id, job_id, was, became, after)
                        for job_id, workflow_id, was, became, after in left
                    ],
                )
                return
            rows = self._transaction.all(_SQL["edges_of"], {"work": given, "limit": self._budget})
            if len(rows) == self._budget:
                place, last, _ = rows[-1]
                job_id, workflow_id, was, became, _ = work[place]
                self._work = [(job_id, workflow_id, was, became, last), *work[place + 1 :]]
            self._budget -= len(rows)
            meets: dict[str, list[int]] = {}
            for place, dst, kind in rows:
                _, _, was, became, _ = work[place]
                before, now = _weight(kind, was), _weight(kind, became)
                change = meets.setdefault(dst, [0, 0])
                change[0] += now[0] - before[0]
                change[1] += now[1] - before[1]
            self._meet([(dst, change[0], change[1]) for dst, change in meets.items() if change != [0, 0]])

    def _meet(self, changes: Sequence[tuple[str, int, int]]) -> None:
        """Edges of these tasks were met, broken or mended: release, skip, or let wait again."""
        if not changes:
            return
        ready, skipped, mended = [], [], []
        for row in sorted(self._transaction.all(_SQL["meet"], {"changes": dump(changes)})):
            job_id, workflow_id, needs, broken, is_released, outcome, is_fan_out, parent = row
            if outcome == "skipped" and broken <= 0:
                mended.append(_Change(job_id, workflow_id, "skipped", None, parent))
                if needs <= 0:
                    ready.append((job_id, workflow_id, is_fan_out))
            elif outcome is None and not is_released and broken > 0:
                skipped.append(_Change(job_id, workflow_id, None, "skipped", parent))
            elif outcome is None and not is_released and needs <= 0:
                ready.append((job_id, workflow_id, is_fan_out))
        if mended:
            self._block_again([change.job_id for change in mended])
            self._apply(mended)
        if skipped:
            done = self._cancel_jobs([change.job_id for change in skipped], "upstream", UPSTREAM)
            self._apply([change for change in skipped if change.job_id in done])
        self._release([one for one in ready if self._phase(one[1]) == "forward"])

    def _release(self, ready: Sequence[tuple[JobId, str, int]]) -> None:
        """Tasks that need nothing more: jobs are queued, fan-outs expanded."""
        if not ready:
            return
        self._transaction.run(_SQL["release_tasks"], {"ids": dump([job_id for job_id, _, _ in ready])})
        plain = [job_id for job_id, _, is_fan_out in ready if not is_fan_out]
        if plain:
            values = {"ids": dump(plain), "now": self._transaction.now}
            rows = self._transaction.all(_SQL["release_jobs"], values)
            self._transaction.woken.update(queue for _, queue in rows)
            self._transaction.record("woken", sorted(job_id for job_id, _ in rows))
        for job_id, workflow_id, is_fan_out in ready:
            if is_fan_out:
                self._put(("expand", workflow_id, job_id, None, None, "0"))

    def _release_ready(self, workflow_id: str) -> None:
        """A page of what was held back: at the start, and when a workflow goes on."""
        if self._phase(workflow_id) != "forward":
            return
        # An edge that is still to be walked may tell that a task is not ready after all.
        if self._budget <= 0 or self._transaction.one(_SQL["has_spread"], (workflow_id,)) is not None:
            self._put(("release", workflow_id))
            return
        limit = self._budget
        rows = self._transaction.all(_SQL["ready"], {"id": workflow_id, "limit": limit})
        self._budget -= len(rows)
        self._release([(job_id, workflow_id, is_fan_out) for job_id, is_fan_out in rows])
        if len(rows) == limit:
            self._put(("release", workflow_id))

    # --- fan-outs

    def _expand(self, job_id: JobId, workflow_id: str, after: int) -> None:
        """A page of a fan-out's items."""
        row = self._transaction.one(_SQL["expansion"], (job_id,))
        if row is None or row[3] is not None:
            return
        name, depth, _, _, _, fan_out, queue, kind, payload, priority, max_attempts, tenant, actor, result = row[1:]
        if after == 0 and self._phase(workflow_id) != "forward":
            self._transaction.run(_SQL["hold_task"], (job_id,))
            return
        spec = json.loads(fan_out)
        items = _at(result, spec["path"])
        if not isinstance(items, list):
            path = "".join(f"[{part!r}]" for part in spec["path"])
            error = f"The result of the task it fans out over has no list at result{path}."
            self._end_fan_out(job_id, error=error, result=None)
            return
        page = items[after : after + self._budget]
        made = [
            NewJob(
                id=new_job_id(),
                kind=kind,
                payload=json.dumps({**json.loads(payload), "item": item, "index": after + place}),
                queue=queue,
                priority=priority,
                max_attempts=max_attempts,
                tenant=tenant,
                actor=actor,
                workflow_id=workflow_id,
                parent_id=job_id,
            )
            for place, item in enumerate(page)
        ]
        if made:
            try:
                enqueue.enqueue(self._transaction, Enqueue(made), is_gated=False)
            except TenureError as exc:  # what a queue takes is looked at before anything is written
                if after:
                    raise  # items of earlier pages are at work
                self._end_fan_out(job_id, error=str(exc), result=None)
                return
            tasks = [
                (job.id, f"{name}/{after + place}", 0, depth + 1, 1, None, job_id, 1) for place, job in enumerate(made)
            ]
            add_tasks(self._transaction, workflow_id, tasks)
            grow(self._transaction, workflow_id, len(made))
        done = after + len(made)
        self._budget -= len(made)
        self._transaction.run(_SQL["made_items"], {"job_id": job_id, "items": len(items), "made": done})
        if done < len(items):
            self._put(("expand", workflow_id, job_id, None, None, str(done)))
        else:
            self._fans.setdefault(job_id, [0, 0])

    def _end_fan_outs(self) -> None:
        """Fan-outs whose items ended or were revived: ended when all have, open again when one is."""
        if not self._fans:
            return
        fans, self._fans = self._fans, {}
        changes = [(job_id, *change) for job_id, change in fans.items()]
        self._transaction.all(_SQL["item_ended"], {"changes": dump(changes)})
        for row in self._transaction.all(_SQL["fan_outs"], {"ids": dump(list(fans))}):
            job_id, workflow_id, outcome, items, made, ended, failed, _, fan_out = row
            if items is None:
                continue
            is_over = made == items and ended >= items
            if is_over and outcome is None:
                spec = json.loads(fan_out)
                error = None
                if _is_beyond(failed, items, spec):
                    error = f"{failed} of {items} items did not succeed, more than it tolerates."
                result = json.dumps({"items": items, "failed": failed})
                self._end_fan_out(job_id, error=error, result=result)
            elif not is_over and outcome in ("succeeded", "failed", "tolerated"):
                self._block_again([job_id])
                self._apply([_Change(job_id, workflow_id, outcome, None, None)])

    def _end_fan_out(self, job_id: JobId, *, error: str | None, result: str | None) -> None:
        values = {
            "id": job_id,
            "state": "succeeded" if error is None else "failed",
            "result": result,
            "class": None if error is None else "items",
            "error": error,
            "now": self._transaction.now,
        }
        if (ended := self._transaction.one(_SQL["end_fan_out"], values)) is not None:
            end_durable(self._transaction, [ended])
            self._transaction.record("completed" if error is None else "failed", [job_id])
            rows = self._transaction.all(_SQL["look"], {"ids": dump([job_id])})
            self._apply([_Change(*row) for row in rows])

    # --- cancel and retry, page by page

    def _cancel_page(self, workflow_id: str, mode: str | None, after: str) -> None:
        """`all` with a workflow that failed or was cancelled; `blocked` with one that drains."""
        if self._phase(workflow_id) != ("stopped" if mode == "all" else "draining"):
            return  # it was set going again meanwhile
        limit = min(self._budget, PAGE)
        page = self._transaction.all(_SQL["open_tasks"], {"id": workflow_id, "after": after, "limit": limit})
        rows = [(job_id, is_durable) for job_id, is_released, is_durable in page if mode == "all" or not is_released]
        ids: list[JobId] = [job_id for job_id, _ in rows]
        # Jobs with steps may have children, and something to undo first.
        if durable := [job_id for job_id, is_durable in rows if is_durable]:
            admin.cancel(self._transaction, Cancel(durable, "orchestrator", CANCELLED), WITH_WORKFLOW)
        plain = [job_id for job_id, is_durable in rows if not is_durable]
        self._cancel_jobs(plain, WITH_WORKFLOW, CANCELLED)
        values = {"ids": dump(plain), "mark": WITH_WORKFLOW, "now": self._transaction.now}
        if self._transaction.all(_SQL["stop_jobs"], values):
            self._transaction.stops = True
        self._budget -= len(page)
        # Also those whose jobs had ended by themselves, and that a retry has blocked again.
        self._apply([_Change(*row) for row in self._transaction.all(_SQL["look"], {"ids": dump(ids)})])
        if len(page) == limit:
            self._put(("cancel", workflow_id, None, mode, None, page[-1][0]))

    def _retry_page(self, workflow_id: str, outcome: str, after: str) -> None:
        if self._phase(workflow_id) != "retrying":
            return
        limit = min(self._budget, PAGE)
        values = {"id": workflow_id, "outcome": outcome, "after": after, "limit": limit}
        rows = self._transaction.all(_SQL["ended_tasks"], values)
        self._budget -= len(rows)
        changes = []
        for job_id, _, parent, is_released, is_fan_out, items, failure_class in rows:
            if outcome == "cancelled" and failure_class != WITH_WORKFLOW:
                continue  # a person cancelled this task alone
            if is_fan_out and items is not None and outcome != "cancelled":
                continue  # it follows its items
            if is_fan_out or not is_released:
                self._block_again([job_id])
                if is_fan_out and is_released and items is None:
                    self._put(("expand", workflow_id, job_id, None, None, "0"))
            elif not _revive(self._transaction, job_id, workflow_id):
                continue
            changes.append(_Change(job_id, workflow_id, outcome, None, parent))
        self._apply(changes)
        if len(rows) == limit:
            self._put(("retry", workflow_id, None, outcome, None, rows[-1][0]))
        elif (following := RETRIED.index(outcome) + 1) < len(RETRIED):
            self._put(("retry", workflow_id, None, RETRIED[following], None, ""))
        else:
            move(self._transaction, get_run(self._transaction, workflow_id), "running", phase="forward", error=None)
            self._phases[workflow_id] = "forward"
            self._put(("release", workflow_id))

    # --- inside

    def _put(self, event: tuple[str | None, ...]) -> None:
        put_events(self._transaction, [event])

    def _phase(self, workflow_id: str) -> str:
        if workflow_id not in self._phases:
            self._phases[workflow_id] = get_run(self._transaction, workflow_id).phase
        return self._phases[workflow_id]

    def _cancel_jobs(self, ids: Sequence[JobId], failure_class: str, error: str) -> set[str]:
        return set(cancel_jobs(self._transaction, ids, failure_class, error))

    def _block_again(self, ids: Sequence[JobId]) -> None:
        values = {"ids": dump(ids), "never": NEVER, "now": self._transaction.now}
        self._transaction.run(_SQL["block_again"], values)


def _weight(kind: str, outcome: str | None) -> tuple[int, int]:
    """What an edge adds to `needs` and `broken` of the task behind it, by how the task before it ended."""
    if outcome is None:
        return 1, 0
    if outcome == "succeeded" or kind == "ended":
        return 0, 0
    return 1, 1


def _is_failure(outcome: str | None) -> bool:
    return outcome not in (None, "succeeded")


def _is_beyond(failed: int, items: int, spec: Mapping[str, Any]) -> bool:
    """Whether more items failed than a fan-out tolerates."""
    if "tolerate_ppm" in spec:
        return failed * 1_000_000 > int(spec["tolerate_ppm"]) * items
    return failed > int(spec.get("tolerate_count", 0))


def _at(result: str | None, path: Sequence[str | int]) -> Any:
    """What stands at a place in a result; None if there is nothing."""
    found: Any = None if result is None else json.loads(result)
    for part in path:
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            return None
    return found


def _revive(transaction: Transaction, job_id: JobId, workflow_id: str) -> bool:
    reason = f"retry of workflow {workflow_id}"
    return admin.revive_one(transaction, Revive([job_id], "orchestrator", reason), job_id).state is not None
