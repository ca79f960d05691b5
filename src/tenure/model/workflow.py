"""A workflow as data: tasks, what each needs of others, and what to do when too many fail.

Building a graph writes nothing. `Workflow.plan` checks it whole (names, limits, cycles) and lays it out: who needs how
many others, and how deep each task lies. A store then carries it out; see store.workflows.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple, Protocol

from tenure.errors import InvalidArgument, nearest
from tenure.model.clock import from_us
from tenure.model.frozen import frozen

MAX_TASKS: Final = 1_000_000
MAX_EDGES: Final = 5_000_000
MAX_LEVELS: Final = 5
"""Levels of an escalation ladder."""
NAME_CHARS: Final = 200
CYCLE_SHOWN: Final = 6
THRESHOLD_MAX: Final = 999_999_999
"""Failed tasks that a threshold may name."""
DURATION_MAX: Final = timedelta(days=36_600)
"""A century. Moments beyond the year 9999 cannot be stored."""

OnBreach = Literal["fail", "drain", "continue", "escalate"]
ON_BREACH: Final[tuple[OnBreach, ...]] = ("fail", "drain", "continue", "escalate")
EdgeKind = Literal["ok", "ended"]
"""`ok`: the task before must succeed. `ended`: it must have ended, however."""


WITH_WORKFLOW: Final = "workflow"
"""The failure class of a task that was cancelled with its workflow. A retry of the workflow runs it again; a task that
a person cancelled alone stays cancelled."""


class Answer(StrEnum):
    """What may be answered to an escalation."""

    GO_ON = "go_on"
    RETRY_FAILED = "retry_failed"
    RAISE_THRESHOLD = "raise_threshold"
    FAIL = "fail"
    CANCEL = "cancel"


class WorkflowState(StrEnum):
    """Where a workflow stands. `waiting` is shown, not stored: it runs, and no task of it is queued or held."""

    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    ESCALATED = "escalated"
    CANCELLED = "cancelled"


ENDED_STATES: Final = frozenset({WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELLED})


@frozen
class FailureThreshold:
    """From how many failed tasks on a workflow counts as breached. Optional tasks never count.

    `count`: as soon as this many have failed; 1 is fail-fast. `share`: as soon as this part of *all* tasks has failed
    (of the total, not of those that ended so far), judged once `at_least` tasks have ended.
    """

    count: int | None = None
    share: float | None = None
    at_least: int = 0

    def __post_init__(self) -> None:
        if (self.count is None) == (self.share is None):
            raise InvalidArgument("A threshold takes either `count` or `share`, as in FailureThreshold(share=0.05).")
        if self.count is not None and not _is_whole(self.count, 1):
            raise InvalidArgument(
                f"threshold: `count` is a whole number from 1 to {THRESHOLD_MAX:,}, got {self.count!r}."
            )
        if self.share is not None and not (_is_number(self.share) and 0 < self.share <= 1):
            raise InvalidArgument(f"threshold: `share` must be above 0 and at most 1, got {self.share!r}.")
        if not _is_whole(self.at_least, 0):
            raise InvalidArgument(
                f"threshold: `at_least` is a whole number from 0 to {THRESHOLD_MAX:,}, got {self.at_least!r}."
            )

    def spec(self) -> dict[str, int]:
        """As the stores judge it: whole numbers, so that 7 % of 100 is exactly 7."""
        if self.count is not None:
            return {"count": self.count}
        assert self.share is not None
        return {"ppm": max(round(self.share * 1_000_000), 1), "at_least": self.at_least}


def is_threshold(given: Any) -> bool:
    """Whether a JSON value says a threshold as `FailureThreshold.spec` does. PostgreSQL's `is_threshold` is the same
    rule."""
    if not isinstance(given, dict):
        return False
    count, ppm, at_least = given.get("count"), given.get("ppm"), given.get("at_least")
    if (count is None) == (ppm is None) or not _is_whole(ppm if count is None else count, 1):
        return False
    return at_least is None or _is_whole(at_least, 0)


def is_reached(threshold: Mapping[str, Any] | None, *, failed: int, ended: int, total: int) -> bool:
    """Whether a workflow with these counts is breached. PostgreSQL's `is_breached` is the same rule."""
    said = threshold or {}
    if said.get("count") is not None:
        return failed >= int(said["count"])
    if said.get("ppm") is None or failed == 0 or ended < int(said.get("at_least") or 0):
        return False
    return failed * 1_000_000 >= int(said["ppm"]) * total


def _is_whole(given: Any, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and least <= given <= THRESHOLD_MAX


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


@frozen
class Escalation:
    """One level of a ladder: an agent, a person or a queue that is asked what to do.

    An agent and a queue get a job of kind `task_type` with the facts; its result `{"answer": "go_on"}` is the answer.
    A person gets a row for the inbox. `after`: how long this level has before the next is asked; the last level's
    default is `fail`. `then_person` adds a level for a person behind this one.
    """

    agent: str | None = None
    person: str | None = None
    queue: str | None = None
    task_type: str | None = None
    after: timedelta | None = None
    then_person: str | None = None

    def __post_init__(self) -> None:
        named = [name for name in ("agent", "person", "queue") if getattr(self, name)]
        if len(named) != 1:
            raise InvalidArgument(
                "An escalation asks exactly one of `agent`, `person` and `queue`; "
                f"{' and '.join(named) if named else 'none'} was given."
            )
        for name in (self.target, self.task_type, self.then_person):
            if name is not None:
                _checked_name("escalation", name)
        if self.person is None and not self.task_type:
            raise InvalidArgument(f"An escalation to {named[0]} {self.target!r} needs the `task_type` of its job.")
        _check_duration("escalation: `after`", self.after)
        if self.then_person is not None and self.after is None:
            raise InvalidArgument("escalation: `then_person` needs `after`, which says when that person is asked.")

    @property
    def target(self) -> str:
        """Who is asked."""
        return self.agent or self.person or self.queue or ""

    @property
    def asks_queue(self) -> str | None:
        """The queue in which the question is put, None for a person."""
        return self.agent or self.queue

    def levels(self) -> Iterator[dict[str, Any]]:
        """As the stores keep it."""
        after = None if self.after is None else self.after.total_seconds()
        if self.person is not None:
            yield {"person": self.person, "after": after}
        else:
            to = "agent" if self.agent is not None else "queue"
            yield {"to": to, "queue": self.asks_queue, "kind": self.task_type, "after": after}
        if self.then_person is not None:
            yield {"person": self.then_person, "after": None}


class KindInQueue(Protocol):
    """What `@app.job` makes of a function, as far as a task needs it."""

    @property
    def kind(self) -> str: ...

    @property
    def queue(self) -> str: ...


class After(NamedTuple):
    """A task that must have ended before another, and how."""

    name: str
    kind: EdgeKind


@frozen
class Result:
    """A place in the result of a task: `task.result["pictures"]`."""

    task: str
    path: tuple[str | int, ...] = ()

    def __getitem__(self, key: str | int) -> Result:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise InvalidArgument(f"A place in a result is named by text or a number, got {key!r}.")
        return Result(self.task, (*self.path, key))


UNDO_KIND: Final = "tenure.undo_workflow"
UNDO_QUEUE: Final = "compensation"
"""A workflow with tasks to undo that fails or is cancelled puts one job of this kind there, in the same transaction."""


@dataclass(slots=True, eq=False)
class Task:
    """One task of a workflow, as `Workflow.task` made it. Name it in `after=` of others."""

    name: str
    agent: str
    task_type: str
    payload: Any
    after: tuple[After, ...] = ()
    is_optional: bool = False
    priority: int | None = None
    max_attempts: int | None = None
    over: Result | None = None
    """Of a fan-out: the list in another task's result."""
    tolerate: str | int = 0
    """Of a fan-out: how many of its items may fail, as a number or a share such as `10%`."""
    undo: str | None = None
    """The kind that undoes it, in the same agent's queue, where it succeeded and the workflow failed or was
    cancelled."""

    @property
    def ended(self) -> After:
        """This task in any end, for `after=`: succeeded, failed, dead, skipped or cancelled."""
        return After(self.name, "ended")

    @property
    def result(self) -> Result:
        """Its result, to fan out over: `over=task.result["pictures"]`."""
        return Result(self.name)

    def needs(self, *others: Task | After | str) -> Task:
        """Let it wait for more tasks than `after=` named."""
        self.after = (*self.after, *(_after(other) for other in others))
        return self

    def fan_out(self) -> dict[str, Any] | None:
        """As the stores keep it; None for a plain task."""
        if self.over is None:
            return None
        return {"of": self.over.task, "path": list(self.over.path), **_tolerated(self.name, self.tolerate)}


@frozen
class Plan:
    """A graph that was checked, laid out by number: task i is tasks[i]."""

    tasks: Sequence[Task]
    needs: array[int]
    """By task: how many others it needs."""
    depths: array[int]
    """By task: the longest way to it."""
    edges: Sequence[tuple[int, int, EdgeKind]]


Afters = Task | After | str | Iterable[Task | After | str]
"""Tasks that must have ended before another: one, or several."""


@dataclass(slots=True)
class Workflow:
    """A graph of tasks, built before it starts. See `task`, `each` and `app.workflows.start`.

    Args:
        name: What kind of workflow it is, as `onboard_supplier`.
        fail: When too much has failed; the first failure if left out.
        on_breach: `fail` cancels the rest; `drain` lets released tasks end first; `continue` goes on; `escalate` asks.
        escalate_to: One level or a ladder of at most five.
        deadline: From the start; a workflow that has not ended by then is treated as breached.
        profile: Under which profile's views it shows.
    """

    name: str
    fail: FailureThreshold = field(default_factory=lambda: FailureThreshold(count=1))
    on_breach: OnBreach = "fail"
    escalate_to: Escalation | Sequence[Escalation] = ()
    deadline: timedelta | None = None
    profile: str = "automechanica"
    tasks: dict[str, Task] = field(default_factory=dict)
    """By name, in the order in which they were added."""

    def __post_init__(self) -> None:
        _checked_name("A workflow", self.name)
        _checked_name("profile", self.profile)
        if self.on_breach not in ON_BREACH:
            raise InvalidArgument(f"on_breach is {self.on_breach!r}; it may be {', '.join(ON_BREACH)}.")
        if not isinstance(self.fail, FailureThreshold):
            raise InvalidArgument(f"`fail` is a FailureThreshold, got {self.fail!r}.")
        levels = self.ladder()
        if self.on_breach == "escalate" and not levels:
            raise InvalidArgument("on_breach='escalate' needs `escalate_to`, which says who is asked.")
        if len(levels) > MAX_LEVELS:
            raise InvalidArgument(f"escalate_to has {len(levels)} levels; at most {MAX_LEVELS} are taken.")
        if any(level["after"] is None for level in levels[:-1]):
            raise InvalidArgument("escalate_to: every level but the last needs `after`, or the next is never asked.")
        _check_duration("deadline", self.deadline)

    def task(
        self,
        name: str,
        job: KindInQueue | None = None,
        payload: Any = None,
        *,
        agent: str | None = None,
        task_type: str | None = None,
        after: Afters = (),
        optional: bool = False,
        priority: int | None = None,
        max_attempts: int | None = None,
        undo: str | None = None,
    ) -> Task:
        """Add a task. It is released when every task in `after` has succeeded, or ended where `.ended` is named.

        Args:
            job: The function that does it, as `@app.job` made it; its decorator says kind and queue.
            payload: What the function takes: any JSON value, an object of its arguments if there are several; an empty
                object if left out.
            agent: Instead of `job`: the queue in which it waits; for an AutoMechanica workflow the agent's name.
            task_type: Instead of `job`: the kind, which says which handler runs it.
            optional: Its failure counts towards no threshold.
            undo: The kind that undoes it if the workflow fails or is cancelled after it has succeeded. Needs a worker
                with `app.use(compensation())`.

        Raises: InvalidArgument for a name that is taken, and beyond a million tasks.
        """
        made = Task(
            name,
            *_queue_and_kind(name, job, agent, task_type),
            {} if payload is None else payload,
            _afters(after),
            optional,
            priority,
            max_attempts,
            undo=None if undo is None else _checked_name("undo", undo),
        )
        return self._add(made)

    def each(
        self,
        name: str,
        job: KindInQueue | None = None,
        *,
        over: Result,
        agent: str | None = None,
        task_type: str | None = None,
        payload: Mapping[str, Any] | None = None,
        after: Afters = (),
        tolerate: str | int = 0,
        optional: bool = False,
        priority: int | None = None,
        max_attempts: int | None = None,
        undo: str | None = None,
    ) -> Task:
        """Add a fan-out: one task for each item of a list in another task's result, which is known only later.

        Its items are tasks `name/0`, `name/1`, … whose payload is `payload` with `item` and `index` added. It ends when
        all items have, and fails if more than `tolerate` of them failed (a number, or a share such as `10%`). Items
        are judged by their fan-out alone: to the workflow's threshold a fan-out that failed is one failed task.
        """
        if not isinstance(over, Result):
            raise InvalidArgument(f"{name!r}: `over` is a place in a task's result, as task.result['pictures'].")
        _tolerated(name, tolerate)
        if payload is not None and not isinstance(payload, Mapping):
            raise InvalidArgument(f"{name!r}: the payload of a fan-out is an object, to which `item` is added.")
        made = Task(
            name,
            *_queue_and_kind(name, job, agent, task_type),
            dict(payload or {}),
            _afters(after),
            optional,
            priority,
            max_attempts,
            over,
            tolerate,
            None if undo is None else _checked_name("undo", undo),
        )
        if all(other.name != over.task for other in made.after):
            made.after = (*made.after, After(over.task, "ok"))
        return self._add(made)

    def ladder(self) -> list[dict[str, Any]]:
        """The levels of escalation, as the stores keep them."""
        given: Any = [self.escalate_to] if isinstance(self.escalate_to, Escalation) else self.escalate_to
        if not isinstance(given, Sequence) or not all(isinstance(one, Escalation) for one in given):
            raise InvalidArgument(f"`escalate_to` is an Escalation or a list of them, got {given!r}.")
        return [level for one in given for level in one.levels()]

    def policy(self) -> str:
        """What decides about its state, as JSON for the stores."""
        # The items of a fan-out are undone, not the fan-out: they stand under its name and a slash.
        undone = {
            task.name if task.over is None else f"{task.name}/": task.undo
            for task in self.tasks.values()
            if task.undo is not None
        }
        policy = {"fail": self.fail.spec(), "on_breach": self.on_breach, "ladder": self.ladder()}
        return json.dumps({**policy, "undo": undone} if undone else policy)

    def plan(self) -> Plan:
        """Check the whole graph and lay it out.

        Raises: InvalidArgument for an unknown name, a cycle, too many edges.
        """
        if not self.tasks:
            raise InvalidArgument(f"Workflow {self.name!r} has no tasks. Add some with `task(…)`.")
        tasks = list(self.tasks.values())
        number = {name: place for place, name in enumerate(self.tasks)}
        edges: list[tuple[int, int, EdgeKind]] = []
        needs = array("q", bytes(8 * len(tasks)))
        for place, task in enumerate(tasks):
            wanted: dict[int, EdgeKind] = {}
            for name, kind in task.after:
                before = number.get(name)
                if before is None:
                    raise InvalidArgument(
                        f"Task {task.name!r} is to run after {name!r}, which workflow {self.name!r} does not have."
                        f"{nearest(name, self.tasks)}"
                    )
                # Named twice, the stricter counts: success is an end too.
                wanted[before] = "ok" if "ok" in (kind, wanted.get(before)) else "ended"
            needs[place] = len(wanted)
            edges += [(before, place, kind) for before, kind in wanted.items()]
            if len(edges) > MAX_EDGES:
                raise InvalidArgument(
                    f"Workflow {self.name!r} has more than {MAX_EDGES:,} dependencies, which is the limit of one run. "
                    "Put a task in between that all wait for, or split the workflow. Nothing was written."
                )
        return Plan(tasks, needs, _depths(self.name, tasks, needs, edges), edges)

    def _add(self, task: Task) -> Task:
        if len(self.tasks) >= MAX_TASKS:
            raise InvalidArgument(
                f"Workflow {self.name!r} has {MAX_TASKS:,} tasks, which is the limit of one run. Split it into several "
                "workflows, or fan out with `each`. Nothing was written."
            )
        _checked_name("A task", task.name)
        if not isinstance(task.is_optional, bool):
            raise InvalidArgument(f"Task {task.name!r}: `optional` is True or False, got {task.is_optional!r}.")
        if task.name in self.tasks:
            raise InvalidArgument(
                f"Workflow {self.name!r} has a task {task.name!r} already. Give each a name of its own."
            )
        self.tasks[task.name] = task
        return task


def _queue_and_kind(name: str, job: Any, agent: str | None, task_type: str | None) -> tuple[str, str]:
    """In which queue a task waits, and which kind it is."""
    if job is None:
        if agent is None or task_type is None:
            raise InvalidArgument(
                f"Task {name!r} needs what does it: a function of `@app.job`, as in `flow.task({name!r}, resize)`, or "
                "both `agent=` and `task_type=`."
            )
        return _checked_name("agent", agent), _checked_name("task_type", task_type)
    if agent is not None or task_type is not None:
        raise InvalidArgument(
            f"Task {name!r} has a function that says kind and queue: leave out `agent` and `task_type`."
        )
    queue, kind = getattr(job, "queue", None), getattr(job, "kind", None)
    if not isinstance(queue, str) or not isinstance(kind, str):
        raise InvalidArgument(
            f"Task {name!r}: {job!r} is no function of `@app.job`. For a kind that another program handles give "
            "`agent=` (its queue) and `task_type=` (its kind)."
        )
    return queue, kind


def _afters(given: Any) -> tuple[After, ...]:
    if isinstance(given, Task | After | str):
        return (_after(given),)
    if not isinstance(given, Iterable):
        raise InvalidArgument(f"`after` takes tasks, their `.ended`, or names, got {given!r}.")
    return tuple(_after(other) for other in given)


def _after(given: Task | After | str) -> After:
    if isinstance(given, After):
        return given
    if isinstance(given, Task):
        return After(given.name, "ok")
    if isinstance(given, str):
        return After(given, "ok")
    raise InvalidArgument(f"`after` takes tasks, their `.ended`, or names, got {given!r}.")


def _checked_name(what: str, name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise InvalidArgument(f"{what} needs a name, got {name!r}.")
    if len(name) > NAME_CHARS:
        raise InvalidArgument(f"{what}: the name {name[:40]!r}… has {len(name)} characters; {NAME_CHARS} are taken.")
    if not name.isascii() and name != name.encode(errors="replace").decode():
        raise InvalidArgument(f"{what}: the name {name[:40]!r} contains a lone surrogate, which is not UTF-8.")
    return name


def _check_duration(what: str, given: Any) -> None:
    if given is not None and not (isinstance(given, timedelta) and timedelta() < given <= DURATION_MAX):
        raise InvalidArgument(f"{what} is a timedelta above 0 and of at most a hundred years, got {given!r}.")


def _tolerated(name: str, tolerate: str | int) -> dict[str, int]:
    """{"count": n} or {"ppm": p}."""
    if isinstance(tolerate, int) and _is_whole(tolerate, 0):
        return {"tolerate_count": tolerate}
    if isinstance(tolerate, str) and tolerate.endswith("%"):
        try:
            share = float(tolerate[:-1])
        except ValueError:
            share = -1.0
        if 0 <= share <= 100:
            return {"tolerate_ppm": round(share * 10_000)}
    raise InvalidArgument(f"{name!r}: `tolerate` is a number of items or a share such as '10%', got {tolerate!r}.")


def _depths(
    name: str, tasks: Sequence[Task], needs: Sequence[int], edges: Sequence[tuple[int, int, EdgeKind]]
) -> array[int]:
    """The longest way to each task, by Kahn's algorithm; refuses a cycle, naming tasks on it."""
    # Successors by a counting sort: two flat arrays instead of a list per task.
    first = array("q", bytes(8 * (len(tasks) + 1)))
    for before, _, _ in edges:
        first[before + 1] += 1
    for place in range(len(tasks)):
        first[place + 1] += first[place]
    free = array("q", first)
    successors = array("q", bytes(8 * len(edges)))
    for before, place, _ in edges:
        successors[free[before]] = place
        free[before] += 1
    left = array("q", needs)
    depths = array("q", bytes(8 * len(tasks)))
    ready = [place for place in range(len(tasks)) if left[place] == 0]
    done = 0
    while ready:
        before = ready.pop()
        done += 1
        for place in successors[first[before] : first[before + 1]]:
            depths[place] = max(depths[place], depths[before] + 1)
            left[place] -= 1
            if left[place] == 0:
                ready.append(place)
    if done < len(tasks):
        shown = " → ".join(repr(tasks[place].name) for place in _cycle(left, edges))
        raise InvalidArgument(
            f"The tasks of workflow {name!r} wait for each other in a circle: {shown}. Nothing was written."
        )
    return depths


def _cycle(left: Sequence[int], edges: Sequence[tuple[int, int, EdgeKind]]) -> list[int]:
    """Tasks that wait for each other, the first named again at the end; cut where there are many."""
    before = {place: other for other, place, _ in edges if left[place] and left[other]}
    seen: dict[int, int] = {}
    place = next(iter(before))
    while place not in seen:
        seen[place] = len(seen)
        place = before[place]
    cycle = [one for one, at in seen.items() if at >= seen[place]]
    cycle.reverse()
    return [*cycle[:CYCLE_SHOWN], cycle[0]]


# --- pictures ---------------------------------------------------------------------------------------------------------


@frozen
class Node:
    """A task in a picture; or many alike, where `tasks` is above 1."""

    id: str
    name: str
    agent: str
    task_type: str
    state: str
    depth: int
    attempt: int = 0
    tasks: int = 1
    is_optional: bool = False
    states: Mapping[str, int] = field(default_factory=dict)
    """Of many: how many are in which state."""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @classmethod
    def fold(cls, name: str, rows: Sequence[Sequence[Any]]) -> Node:
        """Tasks that are alike, given as [agent, type, depth, state, how many, first claim, last end in microseconds],
        as one node; its state is the one that most are in."""
        agent, task_type, depth = rows[0][:3]
        states: dict[str, int] = {row[3]: row[4] for row in rows}
        started = min((row[5] for row in rows if row[5] is not None), default=None)
        ended = max((row[6] for row in rows if row[6] is not None), default=None)
        shown = max(states, key=lambda state: states[state])
        times = (None if us is None else from_us(us) for us in (started, ended))
        return cls(name, name, agent, task_type, shown, depth, 0, sum(states.values()), False, states, *times)


@frozen
class Graph:
    """A workflow as a picture: nodes, edges (from, to, `ok` or `ended`), and how many tasks there are of each sort."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str, str]]
    counts: Mapping[str, int]
    is_folded: bool = False
    """There were more tasks than asked for: those of one agent, type and depth are one node."""

    def to_dot(self, name: str = "workflow") -> str:
        """For Graphviz."""
        short = self._short()
        lines = [f"digraph {json.dumps(name, ensure_ascii=False)} {{", "  rankdir=LR;", "  node [shape=box];"]
        for node in self.nodes:
            label = json.dumps("\n".join(_label(node)), ensure_ascii=False)
            colour = _COLOURS.get(node.state, "white")
            lines.append(f'  {short[node.id]} [label={label}, style=filled, fillcolor="{colour}"];')
        for before, after, kind in self.edges:
            style = "" if kind == "ok" else " [style=dashed]"
            lines.append(f"  {short[before]} -> {short[after]}{style};")
        return "\n".join([*lines, "}"])

    def to_mermaid(self) -> str:
        """For Markdown pages that draw Mermaid."""
        short = self._short()
        lines = ["graph LR"]
        for node in self.nodes:
            label = "<br/>".join(part.replace('"', "#quot;") for part in _label(node))
            lines.append(f'  {short[node.id]}["{label}"]')
        for before, after, kind in self.edges:
            lines.append(f"  {short[before]} {'-->' if kind == 'ok' else '-.->'} {short[after]}")
        return "\n".join(lines)

    def _short(self) -> dict[str, str]:
        return {node.id: f"t{place}" for place, node in enumerate(self.nodes)}


_COLOURS: Final = {
    "succeeded": "palegreen",
    "failed": "salmon",
    "dead": "salmon",
    "cancelled": "lightgrey",
    "skipped": "lightgrey",
    "running": "lightblue",
    "leased": "lightblue",
    "queued": "lightyellow",
}


def _label(node: Node) -> list[str]:
    if node.tasks == 1:
        return [node.name, f"{node.agent} · {node.state}"]
    shown = ", ".join(f"{count} {state}" for state, count in sorted(node.states.items()))
    return [f"{node.tasks:,} × {node.task_type}", node.agent, shown]
