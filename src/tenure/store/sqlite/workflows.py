"""Workflows in SQLite. The rules stand in store.workflows.

A move that ends or revives a job with a workflow_id notes it in `Transaction.tasks`; the writer then calls `fold` in
the same transaction, which goes as far as a page. What is longer is left as event rows for the next transaction, which
workers ask for (AdvanceWorkflows).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenure.errors import IllegalMove, InvalidArgument, KeyConflict, NotFound
from tenure.model.clock import from_us
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Enqueued, NewJob
from tenure.model.workflow import UNDO_KIND, UNDO_QUEUE, Answer, Graph, Node
from tenure.store import workflows as asked
from tenure.store.contract import Enqueue
from tenure.store.queries import Page
from tenure.store.sqlite import enqueue, flow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

NEVER: Final = 253_402_300_799_999_999
"""The last moment of the year 9999, where PostgreSQL says 'infinity'."""
RETRIED: Final = ("failed", "tolerated", "cancelled")
"""Outcomes that a retry undoes, in this order."""
UPSTREAM: Final = "A task that it needs did not succeed."
_SQL: Final = load("workflows")
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})
_COUNTS: Final = ("succeeded", "failed", "tolerated", "skipped", "cancelled")


# --- start and join ---------------------------------------------------------------------------------------------------


def start(transaction: Transaction, request: asked.StartWorkflow) -> asked.Started:
    """See store.workflows.StartWorkflow."""
    asked.check_start(request)
    new = request.workflow
    slot = None if new.key is None else f"{new.name}\x1f{new.key}"
    due_at = None if new.deadline_seconds is None else transaction.now + round(new.deadline_seconds * 1_000_000)
    values = {
        "id": new.id, "profile": new.profile, "name": new.name, "total": new.total, "policy": new.policy,
        "key": new.key, "slot": slot, "digest": new.digest, "due_at": due_at, "actor": new.actor,
        "tenant": new.tenant, "data": new.data, "now": transaction.now,
    }  # fmt: skip
    transaction.run(_SQL["insert_workflow"], values)
    if slot is not None:
        holder = transaction.one(_SQL["by_slot"], (slot,))
        assert holder is not None
        held_by, state, phase, digest = holder
        if digest != new.digest:
            raise KeyConflict(
                f"Key {new.key!r} of workflow {new.name!r} belongs to run {held_by}, which has another graph. Nothing "
                "was started. Use another key, or start the same graph."
            )
        if held_by != new.id:
            return asked.Started(held_by, state, duplicate=phase != "loading")
    row = transaction.one(_SQL["standing"], (new.id,))
    assert row is not None
    if row[3] == "loading":
        _load(transaction, request)
    if request.is_last and transaction.one(_SQL["begin"], {"id": new.id, "now": transaction.now}) is not None:
        _put(transaction, [("release", new.id)])
        _advance(transaction)
    row = transaction.one(_SQL["standing"], (new.id,))
    assert row is not None
    return asked.Started(new.id, row[2])


def _load(transaction: Transaction, request: asked.StartWorkflow) -> None:
    """One page of tasks and edges. Raises: InvalidArgument."""
    workflow_id = request.workflow.id
    names = dump([(task.job.id, task.name) for task in request.tasks])
    if (row := transaction.one(_SQL["name_taken"], {"workflow_id": workflow_id, "tasks": names})) is not None:
        raise InvalidArgument(
            f"Workflow {workflow_id}: two tasks are named {row[0]!r}. Nothing was started. Give each its own name."
        )
    jobs = [replace(task.job, run_at=from_us(NEVER), delay_seconds=None) for task in request.tasks]
    if jobs:
        enqueue.enqueue(transaction, Enqueue(jobs, request.create_queues))
        transaction.run(_SQL["block_jobs"], {"ids": dump([job.id for job in jobs]), "never": NEVER})
        rows = [
            (task.job.id, task.name, task.needs, task.depth, int(task.is_optional), task.fan_out, None, 0)
            for task in request.tasks
        ]
        transaction.run(_SQL["insert_tasks"], {"workflow_id": request.workflow.id, "tasks": dump(rows)})
    if request.edges:
        edges = dump(list(request.edges))
        for wrong, why in _WRONG_EDGES.items():
            if transaction.one(_SQL[wrong], {"workflow_id": workflow_id, "edges": edges}) is not None:
                raise InvalidArgument(f"Workflow {workflow_id}: {why}")
        transaction.run(_SQL["insert_edges"], {"edges": edges})
    if request.is_last and transaction.one(_SQL["is_complete"], (workflow_id,)) is None:
        raise InvalidArgument(
            f"Workflow {workflow_id} is to have {request.workflow.total} tasks, and others were sent. Nothing was "
            "started. Send every task before the last page."
        )


_WRONG_EDGES: Final = {
    "edge_astray": "an edge names a job that is no task of this workflow. Nothing was started. Send the tasks first.",
    "edge_back": "a task waits for one that is not before it by depth, so the graph may have a circle. Nothing was "
    "started. Give each task a greater depth than all that it waits for.",
}


def join(transaction: Transaction, request: asked.JoinWorkflow) -> list[Enqueued]:
    """See store.workflows.JoinWorkflow."""
    named = {job.workflow_id for job in request.jobs if job.workflow_id is not None}
    states: dict[str, str] = dict(transaction.all(_SQL["open_workflows"], {"ids": dump(sorted(named))}))
    for workflow_id, state in states.items():
        if state in _ENDED:
            raise IllegalMove(
                f"Workflow {workflow_id} is {state}, so no task can join it. Nothing was created. Start a new one, or "
                "create the task without `workflow_id`."
            )
    answers = enqueue.enqueue(transaction, Enqueue(request.jobs, request.create_queues))
    for job, answer in zip(request.jobs, answers, strict=True):
        if job.workflow_id in states and not answer.duplicate:
            row = (job.id, f"{job.kind}/{job.id}", 0, 0, 0, None, None, 1)
            values = {"workflow_id": job.workflow_id, "tasks": dump([row])}
            if transaction.run(_SQL["insert_tasks"], values).rowcount > 0:
                transaction.run(_SQL["grow"], {"id": job.workflow_id, "tasks": 1, "now": transaction.now})
    return answers


# --- what moves tell --------------------------------------------------------------------------------------------------


def fold(transaction: Transaction) -> None:
    """Fold the ends of tasks and their revivals, in the transaction that made them, up to a page."""
    _put(transaction, [("look", workflow_id, job_id) for job_id, workflow_id in transaction.tasks.items()])
    _advance(transaction)
    transaction.tasks.clear()  # what a retry revived is counted already


def advance(transaction: Transaction, request: asked.AdvanceWorkflows) -> asked.Advanced:
    """See store.workflows.AdvanceWorkflows."""
    check_limit(request.limit)
    return _advance(transaction, request.limit)


def _put(transaction: Transaction, events: Sequence[tuple[str | None, ...]]) -> None:
    """Event rows: kind, workflow, job, was, became, after; what is left out is empty."""
    rows = [(*event, *(None, None, None, "")[len(event) - 2 :]) for event in events]
    transaction.run(_SQL["put_events"], {"events": dump(rows)})


def _advance(transaction: Transaction, limit: int = 500) -> asked.Advanced:
    taken = sorted(transaction.all(_SQL["take_events"], {"limit": limit}))
    if taken:
        _Fold(transaction).run(taken)
    more = bool(taken) and transaction.one(_SQL["has_events"]) is not None
    return asked.Advanced(len(taken), more)


class _Change(NamedTuple):
    """How a task's end is counted now."""

    job_id: JobId
    workflow_id: str
    was: str | None
    became: str | None
    parent: str | None


class _Standing(NamedTuple):
    """A row of `standing`."""

    id: str
    kind: str
    state: str
    phase: str
    total: int
    succeeded: int
    failed: int
    tolerated: int
    skipped: int
    cancelled: int
    policy: str
    is_judged: int
    round: int

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.tolerated + self.skipped + self.cancelled


class _Fold:
    """One bounded transaction's worth of folding: events in, counts, releases, skips and judgements out."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._budget = asked.PAGE_TASKS
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

    def run(self, events: Sequence[Row]) -> None:
        """Fold the events."""
        looks = [job_id for _, kind, _, job_id, _, _, _ in events if kind == "look"]
        if looks:
            self._budget -= len(looks)
            self._look(looks)
            self._judge()  # before anything is released by these ends
        releases: list[str] = []
        for _, kind, workflow_id, job_id, was, became, after in events:
            if kind == "look":
                continue
            if self._budget <= 0:
                self._put((kind, workflow_id, job_id, was, became, after))
                continue
            self._touched.setdefault(workflow_id)
            match kind:
                case "spread":
                    self._work.append((job_id, workflow_id, was, became, after))
                case "release":
                    releases.append(workflow_id)
                case "cancel":
                    self._cancel_page(workflow_id, was, after)
                case "retry":
                    self._retry_page(workflow_id, was, after)
                case "expand":
                    self._expand(job_id, workflow_id, int(after or 0))
        self._spread()
        for workflow_id in releases:
            self._release_ready(workflow_id)
        self._judge()
        for escalation_id, state, result, queue in self._asked:
            _hear(self._transaction, escalation_id, state, result, queue)

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
            values = {name: counts[name] for name in _COUNTS}
            before = self._standing(workflow_id)
            is_reopened = before.state in ("completed", "failed") and sum(values.values()) < 0
            self._transaction.run(_SQL["tally"], {**values, "id": workflow_id, "now": self._transaction.now})
            if is_reopened and before.phase != "retrying":
                # A task was revived on its own: the workflow has something to do again.
                _move(self._transaction, self._standing(workflow_id), "running", phase="forward", error=None)
        self._counts.clear()

    # --- edges

    def _spread(self) -> None:
        """Walk the edges of what changed, and of what changes by that, until done or out of budget."""
        while True:
            self._end_fan_outs()
            if not self._work:
                return
            if self._budget <= 0:
                for job_id, workflow_id, was, became, after in self._work:
                    self._put(("spread", workflow_id, job_id, was, became, after))
                self._work = []
                return
            work, self._work = self._work, []
            given = dump([(job_id, after) for job_id, _, _, _, after in work])
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
            enqueue.enqueue(self._transaction, Enqueue(made), is_gated=False)
            tasks = [
                (job.id, f"{name}/{after + place}", 0, depth + 1, 1, None, job_id, 1) for place, job in enumerate(made)
            ]
            self._transaction.run(_SQL["insert_tasks"], {"workflow_id": workflow_id, "tasks": dump(tasks)})
            values = {"id": workflow_id, "tasks": len(made), "now": self._transaction.now}
            self._transaction.run(_SQL["grow"], values)
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
            _end_durable(self._transaction, [ended])
            self._transaction.record("completed" if error is None else "failed", [job_id])
            rows = self._transaction.all(_SQL["look"], {"ids": dump([job_id])})
            self._apply([_Change(*row) for row in rows])

    # --- cancel and retry, page by page

    def _cancel_page(self, workflow_id: str, mode: str | None, after: str) -> None:
        """`all` with a workflow that failed or was cancelled; `blocked` with one that drains."""
        if self._phase(workflow_id) != ("stopped" if mode == "all" else "draining"):
            return  # it was set going again meanwhile
        limit = self._budget
        values = {"id": workflow_id, "after": after, "blocked": mode != "all", "limit": limit}
        rows = self._transaction.all(_SQL["open_tasks"], values)
        ids = [job_id for job_id, _, _ in rows]
        self._cancel_jobs(ids, "workflow", "Cancelled with its workflow.")
        if self._transaction.all(_SQL["stop_jobs"], {"ids": dump(ids), "now": self._transaction.now}):
            self._transaction.stops = True
        self._budget -= len(rows)
        # Also those whose jobs had ended by themselves, and that a retry has blocked again.
        self._apply([_Change(*row) for row in self._transaction.all(_SQL["look"], {"ids": dump(ids)})])
        if len(rows) == limit:
            self._put(("cancel", workflow_id, None, mode, None, ids[-1]))

    def _retry_page(self, workflow_id: str, outcome: str, after: str) -> None:
        if self._phase(workflow_id) != "retrying":
            return
        limit = min(self._budget, 250)
        values = {"id": workflow_id, "outcome": outcome, "after": after, "limit": limit}
        rows = self._transaction.all(_SQL["ended_tasks"], values)
        self._budget -= len(rows)
        changes = []
        for job_id, _, parent, is_released, is_fan_out, items, failure_class in rows:
            if outcome == "cancelled" and failure_class != "workflow":
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
            _move(self._transaction, self._standing(workflow_id), "running", phase="forward", error=None)
            self._phases[workflow_id] = "forward"
            self._put(("release", workflow_id))

    # --- inside

    def _put(self, event: tuple[str | None, ...]) -> None:
        _put(self._transaction, [event])

    def _phase(self, workflow_id: str) -> str:
        if workflow_id not in self._phases:
            self._phases[workflow_id] = self._standing(workflow_id).phase
        return self._phases[workflow_id]

    def _standing(self, workflow_id: str) -> _Standing:
        return _standing(self._transaction, workflow_id)

    def _cancel_jobs(self, ids: Sequence[JobId], failure_class: str, error: str) -> set[str]:
        values = {"ids": dump(ids), "class": failure_class, "error": error, "now": self._transaction.now}
        rows = self._transaction.all(_SQL["cancel_jobs"], values)
        done = {row[0] for row in rows}
        _end_durable(self._transaction, rows)
        self._transaction.record("cancelled", sorted(done))
        return done

    def _block_again(self, ids: Sequence[JobId]) -> None:
        values = {"ids": dump(ids), "never": NEVER, "now": self._transaction.now}
        self._transaction.run(_SQL["block_again"], values)


def _end_durable(transaction: Transaction, ended: list[Row]) -> None:
    """Jobs have ended, given as (id, whether it is durable)."""
    durable = [job_id for job_id, is_durable in ended if is_durable]
    if durable:
        flow.end_durable(transaction, durable)


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
    from tenure.store.contract import Revive
    from tenure.store.sqlite import admin

    reason = f"retry of workflow {workflow_id}"
    return admin.revive_one(transaction, Revive([job_id], "orchestrator", reason), job_id).state is not None


# --- judging ----------------------------------------------------------------------------------------------------------


def _standing(transaction: Transaction, workflow_id: str) -> _Standing:
    row = transaction.one(_SQL["standing"], (workflow_id,))
    if row is None:
        raise NotFound(f"There is no workflow {workflow_id}. `tenure workflows ls` lists them.")
    return _Standing(*row)


def _move(
    transaction: Transaction,
    standing: _Standing,
    state: str,
    *,
    phase: str,
    error: str | None = "",
    is_judged: bool | None = None,
    is_next_round: bool = False,
    policy: str | None = None,
) -> None:
    """Change a workflow's state. `error` "" keeps the one it has."""
    values = {
        "id": standing.id,
        "state": state,
        "phase": phase,
        "error": error,
        "keeps_error": error == "",
        "is_judged": standing.is_judged if is_judged is None else is_judged,
        "round": standing.round + is_next_round,
        "policy": standing.policy if policy is None else policy,
        "now": transaction.now,
    }
    transaction.run(_SQL["move"], values)


def judge(transaction: Transaction, workflow_id: str) -> None:
    """Whether its counts breach a workflow's policy, or end it."""
    row = transaction.one(_SQL["standing"], (workflow_id,))
    if row is None:
        return
    standing = _Standing(*row)
    if standing.state not in ("running", "escalated") or standing.phase in ("loading", "retrying"):
        return
    is_breached = bool(standing.is_judged) and _is_reached(standing)
    if standing.state == "escalated":
        reason = transaction.one(_SQL["open_reason"], (workflow_id,))
        if not is_breached and reason is not None and reason[0] == "threshold":
            # Failed tasks were revived: the question has answered itself.
            _close_escalations(transaction, workflow_id)
            _go_forward(transaction, standing, error=None)
        return
    if is_breached and standing.phase == "forward":
        detail = f"{standing.failed:,} of {standing.total:,} tasks failed"
        breach(transaction, standing, "threshold", detail)
        standing = _standing(transaction, workflow_id)
        if standing.state != "running":
            return
    if standing.ended >= standing.total:
        _move(transaction, standing, "failed" if standing.phase == "draining" else "completed", phase=standing.phase)
        if standing.phase == "draining":
            _undo(transaction, standing)


def _is_reached(standing: _Standing) -> bool:
    fail = json.loads(standing.policy).get("fail") or {}
    if "count" in fail:
        return standing.failed >= int(fail["count"])
    if "ppm" not in fail or standing.failed == 0 or standing.ended < int(fail.get("at_least", 0)):
        return False
    return standing.failed * 1_000_000 >= int(fail["ppm"]) * standing.total


def breach(transaction: Transaction, standing: _Standing, reason: str, detail: str) -> None:
    """Too much failed, or it took too long: do what the policy says."""
    match json.loads(standing.policy).get("on_breach", "fail"):
        case "continue":
            _move(transaction, standing, "running", phase=standing.phase, error=detail, is_judged=False)
        case "drain":
            _move(transaction, standing, "running", phase="draining", error=detail, is_judged=False)
            _put(transaction, [("cancel", standing.id, None, "blocked", None, "")])
        case "escalate":
            _move(transaction, standing, "escalated", phase="held", error=detail)
            _escalate(transaction, standing, reason, detail, 1)
        case _:
            _stop(transaction, standing, "failed", detail)


def _stop(transaction: Transaction, standing: _Standing, state: str, error: str) -> None:
    """End a workflow now; what is open is cancelled page by page."""
    _close_escalations(transaction, standing.id)
    _move(transaction, standing, state, phase="stopped", error=error)
    _put(transaction, [("cancel", standing.id, None, "all", None, "")])
    _undo(transaction, standing)


def _undo(transaction: Transaction, standing: _Standing) -> None:
    """Let what succeeded be undone, where tasks say how."""
    if not json.loads(standing.policy).get("undo"):
        return
    job = NewJob(
        id=new_job_id(),
        kind=UNDO_KIND,
        payload=json.dumps({"workflow_id": standing.id}),
        queue=UNDO_QUEUE,
        actor="orchestrator",
    )
    enqueue.enqueue(transaction, Enqueue([job]), is_gated=False)


def _go_forward(transaction: Transaction, standing: _Standing, **changes: Any) -> None:
    _move(transaction, standing, "running", phase="forward", is_next_round=True, **changes)
    _put(transaction, [("release", standing.id)])


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
        standing = _standing(transaction, workflow_id)
        if standing.state == "running":
            breach(transaction, standing, "deadline", "the deadline has passed")
    unanswered = transaction.all(_SQL["unanswered"], values)
    for (escalation_id,) in unanswered:
        _pass_on(transaction, escalation_id)
    if late or unanswered:
        _advance(transaction)
    return len(late) + len(unanswered)


# --- escalations ------------------------------------------------------------------------------------------------------


def _escalate(transaction: Transaction, standing: _Standing, reason: str, detail: str, level: int) -> None:
    """Ask the level of the ladder. One row per round and level, however often it is tried."""
    ladder = json.loads(standing.policy).get("ladder") or []
    target = ladder[level - 1]
    escalation_id, job_id = new_job_id(), None if "person" in target else new_job_id()
    due_at = None if target.get("after") is None else transaction.now + round(target["after"] * 1_000_000)
    values = {
        "id": escalation_id, "workflow_id": standing.id, "round": standing.round, "level": level, "reason": reason,
        "detail": detail, "target": json.dumps(target), "person": target.get("person"), "job_id": job_id,
        "due_at": due_at, "now": transaction.now,
    }  # fmt: skip
    if transaction.one(_SQL["insert_escalation"], values) is None or job_id is None:
        return
    facts = {
        "escalation_id": escalation_id,
        "workflow_id": standing.id,
        "workflow": standing.kind,
        "reason": reason,
        "detail": detail,
        "level": level,
        "counts": {name: getattr(standing, name) for name in ("total", *_COUNTS)},
        "answers": [answer.value for answer in Answer],
    }
    asking = NewJob(
        id=job_id,
        kind=target["kind"],
        payload=json.dumps(facts),
        queue=target["queue"],
        workflow_id=standing.id,
        actor="orchestrator",
    )
    enqueue.enqueue(transaction, Enqueue([asking]), is_gated=False)


def _pass_on(transaction: Transaction, escalation_id: str) -> None:
    """A level did not answer: ask the next, or fail where there is none."""
    row = transaction.one(_SQL["escalation"], (escalation_id,))
    if row is None or row[8] != "open":
        return
    workflow_id, level, reason, detail = row[1], row[4], row[5], row[6]
    _end_escalation(transaction, escalation_id, "passed")
    standing = _standing(transaction, workflow_id)
    if standing.state != "escalated":
        return
    if level < len(json.loads(standing.policy).get("ladder") or []):
        _escalate(transaction, standing, reason, detail, level + 1)
    else:
        _stop(transaction, standing, "failed", f"{detail}, and no one answered the escalation")


def _hear(transaction: Transaction, escalation_id: str, state: str, result: str | None, queue: str) -> None:
    """The job that asked an agent or a queue has ended: its result is the answer. Without one the next level is
    asked."""
    said = _at(result, ["answer"]) if state == "succeeded" else None
    threshold = _at(result, ["threshold"]) if state == "succeeded" else None
    if said in {answer.value for answer in Answer} and (said != Answer.RAISE_THRESHOLD or _is_threshold(threshold)):
        said_note = _at(result, ["note"])
        given = None if threshold is None else json.dumps(threshold)
        request = asked.AnswerEscalation(
            escalation_id, said, queue, said_note if isinstance(said_note, str) else None, given
        )
        answer_escalation(transaction, request)
    else:
        _pass_on(transaction, escalation_id)


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


def _close_escalations(transaction: Transaction, workflow_id: str) -> None:
    rows = transaction.all(_SQL["close_escalations"], {"id": workflow_id, "now": transaction.now})
    jobs = [job_id for (job_id,) in rows if job_id is not None]
    if jobs:
        values = {"ids": dump(jobs), "class": "workflow", "error": "The question is no longer open."}
        _end_durable(transaction, transaction.all(_SQL["cancel_jobs"], {**values, "now": transaction.now}))


def answer_escalation(transaction: Transaction, request: asked.AnswerEscalation) -> asked.EscalationRow:
    """See store.workflows.AnswerEscalation."""
    from tenure.store.sqlite import admin

    if request.answer not in {answer.value for answer in Answer}:
        raise InvalidArgument(f"answer is {request.answer!r}; it may be {', '.join(Answer)}. Nothing was changed.")
    threshold = None if request.threshold is None else json.loads(request.threshold)
    if request.answer == Answer.RAISE_THRESHOLD and not _is_threshold(threshold):
        raise InvalidArgument("raise_threshold needs the new `threshold`: a count or a share. Nothing was changed.")
    row = transaction.one(_SQL["escalation"], (request.id,))
    if row is None:
        raise NotFound(f"There is no escalation {request.id}. `tenure workflows show` lists those of a workflow.")
    if row[8] == "answered" and row[14] == request.answer:
        return _escalation(row)
    if row[8] != "open":
        said = f"was answered with {row[14]!r} by {row[15]}" if row[8] == "answered" else f"is {row[8]}"
        raise IllegalMove(f"Escalation {request.id} {said}, so this answer came too late. Nothing was changed.")
    standing = _standing(transaction, row[1])
    _end_escalation(transaction, request.id, "answered", request.answer, request.actor, request.note)
    detail = {"workflow_id": standing.id, "answer": request.answer, "threshold": threshold}
    admin.audit(transaction, request.actor, "answer_escalation", request.id, request.note, detail)
    match request.answer:
        case Answer.GO_ON:
            _go_forward(transaction, standing, is_judged=False)
        case Answer.RAISE_THRESHOLD:
            policy = {**json.loads(standing.policy), "fail": threshold}
            _go_forward(transaction, standing, policy=json.dumps(policy))
        case Answer.RETRY_FAILED:
            _begin_retry(transaction, standing)
        case Answer.FAIL:
            _stop(transaction, standing, "failed", f"{row[6]}; {request.actor} answered: fail")
        case Answer.CANCEL:
            _stop(transaction, standing, "cancelled", f"{request.actor} answered: cancel")
    _advance(transaction)
    row = transaction.one(_SQL["escalation"], (request.id,))
    assert row is not None
    return _escalation(row)


def _is_threshold(given: Any) -> bool:
    if not isinstance(given, dict):
        return False
    numbers = [given[name] for name in ("count", "ppm") if name in given]
    return len(numbers) == 1 and isinstance(numbers[0], int) and not isinstance(numbers[0], bool) and numbers[0] > 0


def cancel(transaction: Transaction, request: asked.CancelWorkflow) -> asked.WorkflowRow:
    """See store.workflows.CancelWorkflow."""
    from tenure.store.sqlite import admin

    standing = _standing(transaction, request.id)
    if standing.state in ("completed", "failed"):
        raise IllegalMove(f"Workflow {request.id} is {standing.state}, so there is nothing to cancel.")
    if standing.state != "cancelled":
        admin.audit(
            transaction, request.actor, "cancel_workflow", request.id, request.reason, {"state": standing.state}
        )
        _stop(transaction, standing, "cancelled", f"cancelled by {request.actor}: {request.reason}")
        _advance(transaction)
    return _read(transaction, request.id)


def retry(transaction: Transaction, request: asked.RetryWorkflow) -> asked.WorkflowRow:
    """See store.workflows.RetryWorkflow."""
    from tenure.store.sqlite import admin

    standing = _standing(transaction, request.id)
    if standing.state == "cancelled" or standing.phase in ("loading", "retrying"):
        why = "was cancelled" if standing.state == "cancelled" else f"is {standing.phase}"
        raise IllegalMove(f"Workflow {request.id} {why}, so it cannot be retried. Nothing was changed.")
    if standing.state == "failed" and json.loads(standing.policy).get("undo"):
        raise IllegalMove(
            f"Workflow {request.id} failed and what had succeeded is undone, so it cannot be retried. Start it anew. "
            "Nothing was changed."
        )
    if standing.state in ("running", "completed") and not (standing.failed or standing.tolerated or standing.cancelled):
        raise IllegalMove(
            f"No task of workflow {request.id} has failed, so there is nothing to retry. Nothing was changed."
        )
    admin.audit(transaction, request.actor, "retry_workflow", request.id, request.reason, {"state": standing.state})
    _close_escalations(transaction, request.id)
    _begin_retry(transaction, standing)
    _advance(transaction)
    return _read(transaction, request.id)


def _begin_retry(transaction: Transaction, standing: _Standing) -> None:
    _move(transaction, standing, "running", phase="retrying", error=None, is_judged=True, is_next_round=True)
    _put(transaction, [("retry", standing.id, None, RETRIED[0], None, "")])


# --- questions --------------------------------------------------------------------------------------------------------


def get_workflow(transaction: Transaction, request: asked.GetWorkflow) -> asked.WorkflowRow | None:
    """See store.workflows.GetWorkflow."""
    return next(iter(_list(transaction, request.id, asked.ListWorkflows(limit=1))), None)


def list_workflows(transaction: Transaction, request: asked.ListWorkflows) -> Page[asked.WorkflowRow]:
    """See store.workflows.ListWorkflows."""
    check_limit(request.limit)
    rows = list(_list(transaction, None, request))
    return Page(rows, rows[-1].id if rows and len(rows) == request.limit else None)


def _read(transaction: Transaction, workflow_id: str) -> asked.WorkflowRow:
    return next(_list(transaction, workflow_id, asked.ListWorkflows(limit=1)))


def _list(
    transaction: Transaction, workflow_id: str | None, request: asked.ListWorkflows
) -> Iterator[asked.WorkflowRow]:
    values = {
        "id": workflow_id,
        "names": dump(list(request.names)),
        "states": dump(list(request.states)),
        "after": request.after,
        "limit": request.limit,
    }
    for row in transaction.all(_SQL["list_workflows"], values):
        times = from_us(row[12]), from_us(row[13]), _moment(row[14]), _moment(row[15])
        policy, data = json.loads(row[10]), json.loads(row[20])
        told: Row = (*row[:10], policy, row[11], *times, *row[16:20], data)
        yield asked.WorkflowRow(*told)


def list_tasks(transaction: Transaction, request: asked.ListTasks) -> Page[asked.TaskRow]:
    """See store.workflows.ListTasks."""
    check_limit(request.limit)
    rows = list(_tasks(transaction, request))
    return Page(rows, rows[-1].job_id if rows and len(rows) == request.limit else None)


def _tasks(transaction: Transaction, request: asked.ListTasks) -> Iterator[asked.TaskRow]:
    values = {
        "id": request.id,
        "after": request.after,
        "names": dump(list(request.names)),
        "outcomes": dump(list(request.outcomes)),
        "limit": request.limit,
    }
    for row in transaction.all(_SQL["list_tasks"], values):
        result = None if row[13] is None else json.loads(row[13])
        times = _moment(row[10]), _moment(row[11])
        told: Row = (*row[:8], bool(row[8]), row[9], *times, row[12], result)
        yield asked.TaskRow(*told)


def get_graph(transaction: Transaction, request: asked.GetGraph) -> Graph | None:
    """See store.workflows.GetGraph."""
    check_limit(request.limit)
    found = get_workflow(transaction, asked.GetWorkflow(request.id))
    if found is None:
        return None
    if found.total > request.limit:
        return _folded(transaction, request.id, found.counts)
    tasks = list(_tasks(transaction, asked.ListTasks(request.id, limit=request.limit)))
    nodes = [
        Node(
            task.job_id, task.name, task.agent, task.task_type, task.state, task.depth, task.attempt, 1,
            task.is_optional, {}, task.claimed_at, task.finished_at,
        )
        for task in tasks
    ]  # fmt: skip
    edges = transaction.all(_SQL["edges"], {"id": request.id})
    return Graph(nodes, [(src, dst, kind) for src, dst, kind in edges], found.counts)


def _folded(transaction: Transaction, workflow_id: str, counts: Mapping[str, int]) -> Graph:
    groups: dict[str, list[Row]] = {}
    for row in transaction.all(_SQL["folded_nodes"], {"id": workflow_id}):
        groups.setdefault(f"{row[0]}/{row[1]}/{row[2]}", []).append(row)
    nodes = [Node.fold(name, rows) for name, rows in groups.items()]
    edges = [
        (f"{row[0]}/{row[1]}/{row[2]}", f"{row[3]}/{row[4]}/{row[5]}", row[6])
        for row in transaction.all(_SQL["folded_edges"], {"id": workflow_id})
    ]
    return Graph(nodes, edges, counts, is_folded=True)


def list_escalations(transaction: Transaction, request: asked.ListEscalations) -> list[asked.EscalationRow]:
    """See store.workflows.ListEscalations."""
    check_limit(request.limit)
    values = {
        "workflow_id": request.workflow_id,
        "person": request.person,
        "states": dump(list(request.states)),
        "limit": request.limit,
    }
    return [_escalation(row) for row in transaction.all(_SQL["list_escalations"], values)]


def _escalation(row: Row) -> asked.EscalationRow:
    times = from_us(row[9]), _moment(row[10]), _moment(row[11])
    values: Row = (*row[:7], json.loads(row[7]), row[8], *times, *row[12:])
    return asked.EscalationRow(*values)


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)
