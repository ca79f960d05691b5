"""Random scripts of durable flow: steps, waits, children, signals, memos, undos and workflows.

As in `scripts`, a step is a whole request with ids and tokens in it. Both engines are swept until nothing is left to do
after each step, and leases that ran out are taken back before each claim: PostgreSQL wakes parents in a sweep of its
own where SQLite does it at once, and both must leave the same rows once that is done.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from tenure.flow.workflows import prepare, requests
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import NewJob
from tenure.model.memo import memo_id
from tenure.model.outcome import Completed, Failed, FailureClass, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.policy import Backoff, Limits, QueuePolicy
from tenure.model.step import NewGroup, NewStep
from tenure.model.workflow import Escalation, FailureThreshold, Workflow
from tenure.store.admin import SetQueues
from tenure.store.contract import Cancel, Claim, Enqueue, Heartbeat, Hold, Prune, Reap, Request, Revive, Settle, Wake
from tenure.store.flow import (
    FillGroup,
    ForgetSteps,
    GetGroup,
    ListChildren,
    ListSteps,
    RecordSteps,
    Signal,
    SweepFlow,
)
from tenure.store.memo import KeepMemo, TakeMemo
from tenure.store.workflows import CancelWorkflow, GetWorkflow, ListTasks, RetryWorkflow, TendWorkflows
from tests.conformance.scripts import Advance

T = TypeVar("T")
Step = Request[Any] | Advance

POLICIES = {
    "flow": QueuePolicy(events=True, max_attempts=2, backoff=Backoff("constant", 2.0, jitter=0.0), retain_seconds=40.0),
    "child": QueuePolicy(max_attempts=1, backoff=Backoff("none", jitter=0.0), retain_seconds=20.0),
    "A": QueuePolicy(max_attempts=1, backoff=Backoff("none", jitter=0.0), key_scope="none", profile="automechanica"),
    "B": QueuePolicy(max_attempts=2, backoff=Backoff("none", jitter=0.0), key_scope="none", profile="automechanica"),
}
QUEUES = tuple(POLICIES)
SIGNALS = ("paid", "go", "mail")
MEMOS = tuple((name, memo_id(None, name, "k")) for name in ("extract", "embed"))
WORKERS = (WorkerId("w1"), WorkerId("w2"))
VALUES = ("null", "1", '{"a": [1, 2.5, "é"]}', '"text"')


@frozen
class FlowJob:
    """The part of a job's row by which the writer chooses."""

    id: JobId
    queue: str
    state: str
    token: Token
    workflow_id: str | None

    @property
    def is_held(self) -> bool:
        return self.state in ("leased", "running")


@frozen
class FlowWorld:
    """What a store holds when the next step is written."""

    jobs: Sequence[FlowJob]
    steps: Sequence[tuple[JobId, str, str, str, str | None]]
    """Job, key, kind, state and condition."""
    groups: Sequence[tuple[str, JobId, str, int, int | None]]
    """Id, parent, step, made and total."""
    workflows: Sequence[str]


def read_world(file: sqlite3.Connection) -> FlowWorld:
    """What the SQLite file holds."""
    return FlowWorld(
        [
            FlowJob(*row)
            for row in file.execute("SELECT id, queue, state, token, workflow_id FROM tenure_job ORDER BY id")
        ],
        file.execute("SELECT job_id, key, kind, state, awaits FROM tenure_step ORDER BY 1, ordinal").fetchall(),
        file.execute("SELECT id, parent_id, step_key, made, total FROM tenure_job_group ORDER BY 1").fetchall(),
        [row[0] for row in file.execute("SELECT id FROM tenure_workflow ORDER BY 1")],
    )


class FlowWriter:
    """Writes one script of durable flow, and counts what its steps do."""

    def __init__(self, seed: int) -> None:
        self.requested: Counter[str] = Counter()
        self._random = Random(seed)
        self._made = 0
        self._next: deque[Step] = deque([SetQueues(POLICIES, actor="script")])

    def write(self, world: FlowWorld) -> Step:
        """The next step, given what the store holds now."""
        step = self._next.popleft() if self._next else self._choose(world)
        self.requested[type(step).__name__] += 1
        for outcome in step.outcomes if isinstance(step, Settle) else ():
            self.requested[type(outcome).__name__] += 1
        return step

    def missing(self) -> list[str]:
        """What no step has done yet."""
        return [name for name in WANTED if name not in self.requested]

    def _choose(self, world: FlowWorld) -> Step:
        while True:
            [write] = self._random.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
            step = write(self, world)
            if step is not None:
                return step

    # --- plain moves

    def _enqueue(self, world: FlowWorld) -> Step | None:
        open_jobs = [job for job in world.jobs if job.state not in ("succeeded", "failed", "dead", "cancelled")]
        if len(open_jobs) > 25:
            return None
        return Enqueue([self._job("flow") for _ in range(self._pick((1, 1, 2)))])

    def _claim(self, world: FlowWorld) -> Step:
        queues = self._pick((list(QUEUES), ["flow"], ["child"], ["A", "B"]))
        self._next.append(Claim(self._pick(WORKERS), queues, limit=self._pick((1, 2, 5))))
        return Reap()

    def _settle(self, world: FlowWorld) -> Step | None:
        # One by one: of several in a batch, which sees the other's end is not promised.
        held = self._held(world)
        return self._maybe_twice(Settle([self._end(world, self._pick(held))]), 0.2) if held else None

    def _end(self, world: FlowWorld, job: FlowJob) -> Outcome:
        job_id, token = job.id, self._token(job)
        if job.queue == "flow" and self._chance(0.45):
            return self._suspended(world, job, token)
        if job.queue == "child" and self._chance(0.5):
            return Completed(job_id, token, result="1")
        match self._pick(("complete", "complete", "complete", "fail", "reject", "release", "stop", "crash")):
            case "complete":
                return Completed(job_id, token, result=self._pick((None, *VALUES)))
            case "fail":
                return Failed(job_id, token, "boom")
            case "crash":
                return Failed(job_id, token, "gone", FailureClass.CRASH)
            case "reject":
                return Rejected(job_id, token, "no use")
            case "release":
                return Released(job_id, token, self._pick((0.0, 3.0)), self._pick((None, FailureClass.SHUTDOWN)))
            case _:
                return Stopped(job_id, token)

    def _heartbeat(self, world: FlowWorld) -> Step | None:
        held = self._held(world)
        return Heartbeat([Hold(job.id, self._token(job)) for job in held]) if held else None

    def _advance(self, world: FlowWorld) -> Step:
        return Advance(self._pick((0.5, 1.0, 4.0, 12.0, 30.0, 70.0)))

    def _cancel(self, world: FlowWorld) -> Step | None:
        parents = [parent for _, parent, *_ in world.groups]
        chosen = parents if parents and self._chance(0.5) else [job.id for job in world.jobs]
        if not chosen:
            return None
        step = Cancel([self._pick(chosen)], "ops", "not needed", children=self._chance(0.8))
        return self._maybe_twice(step, 0.3)

    def _revive(self, world: FlowWorld) -> Step | None:
        ended = [job.id for job in world.jobs if job.state in ("failed", "dead", "cancelled")]
        if not ended:
            return None
        job_id = self._pick(ended)
        keys = [key for owner, key, *_ in world.steps if owner == job_id]
        return Revive([job_id], "ops", "repaired", from_step=self._pick(keys) if keys and self._chance(0.5) else None)

    def _wake(self, world: FlowWorld) -> Step | None:
        jobs = [job.id for job in world.jobs if job.state in ("waiting", "running", "leased")]
        return Wake([self._pick(jobs)]) if jobs else None

    def _prune(self, world: FlowWorld) -> Step:
        return Prune(older_than_seconds=self._pick((None, 0.0, 25.0)), delete_after_seconds=self._pick((None, 45.0)))

    # --- steps, waits and children

    def _record(self, world: FlowWorld) -> Step | None:
        held = self._held(world, "flow")
        if not held:
            return None
        job = self._pick(held)
        steps = [self._new_step() for _ in range(self._pick((1, 1, 2, 3)))]
        is_named = {step.key: step for step in steps}
        jobs = (self._job("child"),) if self._chance(0.15) else ()
        return self._maybe_twice(RecordSteps(job.id, self._token(job), tuple(is_named.values()), jobs), 0.2)

    def _new_step(self) -> NewStep:
        number = self._random.randrange(4)
        match self._pick(("step", "step", "step", "failed", "mark", "undo", "undone", "deadline")):
            case "step":
                return NewStep(f"step/{number}", value=self._pick((None, *VALUES)))
            case "failed":
                return NewStep(f"step/{number}", "step", "failed", error="no luck")
            case "mark":
                return NewStep(f"$mark/{number}", "mark", value="true")
            case "undo":
                return NewStep(f"undo/{number}", "undo", "armed")
            case "undone":
                return NewStep(f"undo/{number}", "undo", "undone")
            case _:
                return NewStep("$deadline", "sleep", "open", due_seconds=60.0)

    def _suspended(self, world: FlowWorld, job: FlowJob, token: Token) -> Suspended:
        steps: dict[str, NewStep] = {}
        groups: tuple[NewGroup, ...] = ()
        for _ in range(self._pick((1, 1, 2))):
            match self._pick(("sleep", "signal", "signal", "group", "group", "memo", "job", "again", "step")):
                case "sleep":
                    key = f"nap/{self._random.randrange(3)}"
                    steps[key] = NewStep(key, "sleep", "open", due_seconds=self._pick((0.0, 3.0, 20.0)))
                case "signal":
                    signal = self._pick(SIGNALS)
                    key = f"wait/{signal}/{self._random.randrange(3)}"
                    due = self._pick((None, None, 10.0))
                    steps[key] = NewStep(key, "signal", "open", awaits=f"signal:{signal}", due_seconds=due)
                case "memo":
                    name, identity = self._pick(MEMOS)
                    key = f"{name}/k#{self._random.randrange(3)}"
                    steps[key] = NewStep(key, "memo", "open", awaits=f"memo:{identity}")
                case "job":
                    other = self._pick(world.jobs).id
                    steps[f"job/{other}"] = NewStep(f"job/{other}", "job", "open", awaits=f"job:{other}")
                case "again":
                    mine = [step for step in world.steps if step[0] == job.id and step[3] == "open" and step[4]]
                    for _, key, kind, _, awaits in mine[:1]:
                        steps[key] = NewStep(key, kind, "open", awaits=awaits)
                case "step":
                    steps["step/0"] = NewStep("step/0", value="7")
                case _:
                    groups = (self._group(),)
        return Suspended(job.id, token, "script", self._pick((None, None, 15.0)), tuple(steps.values()), groups)

    def _group(self, count: int | None = None) -> NewGroup:
        jobs = tuple(self._job("child") for _ in range(self._pick((0, 1, 2, 4)) if count is None else count))
        return NewGroup(
            f"group/{self._random.randrange(4)}",
            jobs,
            need=self._pick((None, None, None, 1)) if jobs else None,
            tolerate=self._pick((0, 0, 1)),
            fail_fast=self._chance(0.4),
            window=self._pick((None, None, 1, 2)),
            due_seconds=self._pick((None, None, 25.0)),
            cancel_rest=self._chance(0.4),
            id=self._new_id(),
        )

    def _fill(self, world: FlowWorld) -> Step | None:
        held = {job.id: job for job in self._held(world, "flow")}
        if not held:
            return None
        growing = [group for group in world.groups if group[1] in held and group[4] is None]
        if growing and self._chance(0.8):
            group_id, parent, key, made, _ = self._pick(growing)
            page = NewGroup(key, tuple(self._job("child") for _ in range(2)), id=group_id)
            at = made + self._pick((0, 0, 0, 1, -1))
            total = self._pick((None, at + 2))
            return self._maybe_twice(FillGroup(parent, self._token(held[parent]), page, max(at, 0), total), 0.3)
        job = self._pick(list(held.values()))
        return self._maybe_twice(
            FillGroup(job.id, self._token(job), self._group(2), 0, self._pick((None, None, 2))), 0.3
        )

    def _signal(self, world: FlowWorld) -> Step:
        flows = [job.id for job in world.jobs if job.queue == "flow"]
        step = Signal(
            self._pick(SIGNALS),
            self._pick(VALUES),
            "script",
            self._pick(("once", "queue", "queue")),
            self._pick(flows) if flows and self._chance(0.3) else None,
            self._pick((5.0, 1000.0)),
            id=self._new_id(),
        )
        return self._maybe_twice(step, 0.2)

    def _forget(self, world: FlowWorld) -> Step | None:
        if not world.steps:
            return None
        job_id, key, *_ = self._pick(world.steps)
        return ForgetSteps(job_id, key, "ops", "again", and_later=self._chance(0.3))

    def _memo(self, world: FlowWorld) -> Step | None:
        held = self._held(world, "flow")
        if not held:
            return None
        job, (name, identity) = self._pick(held), self._pick(MEMOS)
        if self._chance(0.6):
            return TakeMemo(job.id, self._token(job), identity, name, "k")
        return KeepMemo(job.id, self._token(job), identity, self._pick(VALUES), self._pick((5.0, 500.0)))

    def _sweep(self, world: FlowWorld) -> Step:
        return SweepFlow(by_time=True)

    # --- workflows

    def _start(self, world: FlowWorld) -> Step | None:
        if len(world.workflows) > 4:
            return None
        prepared = prepare(
            self._graph(), lambda _: None, Limits(), key=self._pick((None, "k")), actor="script", tenant=None
        )
        pages = list(requests(prepared, self._new_id(), {}))
        self._next.extend(pages[1:])
        return self._maybe_twice(pages[0], 0.2)

    def _graph(self) -> Workflow:
        flow = Workflow(
            "small",
            fail=self._pick(
                (FailureThreshold(count=1), FailureThreshold(count=2), FailureThreshold(share=0.3, at_least=2))
            ),
            on_breach=self._pick(("fail", "drain", "continue", "escalate")),
            escalate_to=Escalation(person="ops"),
        )
        first = flow.task("first", agent="A", task_type="t", payload={"n": 1})
        second = flow.task("second", agent="B", task_type="t", after=[first], optional=self._chance(0.3))
        flow.task("third", agent="A", task_type="t", after=[first])
        flow.task("last", agent="B", task_type="t", after=[second if self._chance(0.5) else second.ended, first])
        return flow

    def _stop_or_retry(self, world: FlowWorld) -> Step | None:
        if not world.workflows:
            return None
        workflow_id = self._pick(world.workflows)
        if self._chance(0.4):
            return CancelWorkflow(workflow_id, "ops", "not needed")
        return RetryWorkflow(workflow_id, "ops", "repaired")

    def _tend(self, world: FlowWorld) -> Step:
        return TendWorkflows()

    def _read(self, world: FlowWorld) -> Step | None:
        reads: list[Step] = [ListSteps(job.id) for job in self._random.sample(world.jobs, min(len(world.jobs), 1))]
        reads += [GetGroup(group[0]) for group in world.groups[-1:]]
        reads += [ListChildren(group[0]) for group in world.groups[-1:]]
        reads += [GetWorkflow(one) for one in world.workflows[-1:]]
        reads += [ListTasks(one) for one in world.workflows[-1:]]
        return self._pick(reads) if reads else None

    # --- choosing

    def _job(self, queue: str) -> NewJob:
        return NewJob(self._new_id(), "work", '{"n": 1}', queue)

    def _held(self, world: FlowWorld, queue: str | None = None) -> list[FlowJob]:
        return [job for job in world.jobs if job.is_held and queue in (None, job.queue)]

    def _token(self, job: FlowJob) -> Token:
        return Token(max(0, job.token + self._pick((0,) * 12 + (-1, 1))))

    def _maybe_twice(self, step: Step, probability: float) -> Step:
        if self._chance(probability):
            self._next.append(step)
        return step

    def _pick(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _new_id(self) -> JobId:
        self._made += 1
        return JobId(f"019b0000-{self._made:04x}-7000-8000-{self._made:012x}")


_WEIGHTS: dict[Callable[[FlowWriter, FlowWorld], Step | None], int] = {
    FlowWriter._enqueue: 10,
    FlowWriter._claim: 22,
    FlowWriter._settle: 26,
    FlowWriter._record: 12,
    FlowWriter._fill: 4,
    FlowWriter._signal: 8,
    FlowWriter._memo: 6,
    FlowWriter._forget: 3,
    FlowWriter._cancel: 4,
    FlowWriter._revive: 4,
    FlowWriter._wake: 1,
    FlowWriter._heartbeat: 3,
    FlowWriter._advance: 8,
    FlowWriter._sweep: 2,
    FlowWriter._start: 3,
    FlowWriter._stop_or_retry: 1,
    FlowWriter._tend: 1,
    FlowWriter._read: 3,
    FlowWriter._prune: 1,
}
WANTED = tuple(
    one.__name__ for one in (RecordSteps, Suspended, FillGroup, Signal, TakeMemo, KeepMemo, ForgetSteps, Cancel, Revive)
)
