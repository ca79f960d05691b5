"""`/ui/workflows`: how far each is; of one: why it is not done, its graph, its course, and all of it in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from tenure.errors import NotFound, UsageError
from tenure.model.frozen import frozen
from tenure.model.workflow import Answer as Reply
from tenure.model.workflow import Graph, Node, WorkflowState
from tenure.web.pages import same_as
from tenure.web.pages.changes import workflow_marker_of
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.graph import ENDED, NODES_MOST, bounded, draw, layers, worst
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted, first_line, span

PAGE: Final = 50
OUTLINE: Final = 300
COURSE: Final = 40
"""Rows of the course over time."""
REASONS: Final = 12
FOLDS: Final = 20
PARTS: Final = (
    ("succeeded", "succeeded", "succeeded"),
    ("tolerated", "tolerated", "retry"),
    ("failed", "failed", "dead"),
    ("skipped", "skipped", "cancelled"),
    ("cancelled", "cancelled", "cancelled"),
    ("open", "open", "rest"),
)
"""Count of the row, word, tone."""
ANSWERS: Final = {
    Reply.GO_ON: "Go on",
    Reply.RETRY_FAILED: "Retry what failed",
    Reply.FAIL: "Fail it",
    Reply.CANCEL: "Cancel it",
}
"""What can be answered here; a raised threshold needs its numbers, and is answered by the command line or the API."""
OVER: Final = frozenset({"completed", "failed", "cancelled"})


@frozen
class Part:
    """A share of the tasks, for the bar."""

    word: str
    tone: str
    count: int
    x: int


@frozen
class Line:
    """One workflow in the list."""

    row: Any
    parts: Sequence[Part]
    share: float


@frozen
class Reason:
    """Something that stands between a workflow and its end."""

    waits: str
    state: str
    evidence: str
    job_id: str | None = None


@frozen
class TaskBar:
    """One task over time."""

    name: str
    tone: str
    x: float
    width: float
    label: str
    label_x: float
    is_before: bool
    """Whether the label ends at `label_x` instead of starting there."""
    y: int


@frozen
class Course:
    """Tasks over time: a Gantt chart."""

    bars: Sequence[TaskBar]
    ticks: Sequence[tuple[float, str]]
    height: int
    left_out: int


@frozen
class Told:
    """One line of the outline."""

    state: str
    name: str
    job_id: str | None
    says: str


def workflows(visit: Visit) -> Answer:
    """The list."""
    state = visit.asked("state")
    name = visit.asked("name")
    after = visit.asked("after") or None
    if state and state not in set(WorkflowState):
        raise UsageError(f"There is no state {first_line(state, 40)!r} of workflows.")
    if after is not None and not is_job_id(after):
        raise UsageError("This link to further workflows is malformed. Start anew from the list.")
    page = visit.app.workflows.all(state=state or None, name=name or None, limit=PAGE, after=after)
    return Shown(
        "workflows.html",
        {
            "chosen": state,
            "keys": (("j k", "move"), ("Enter", "open")),
            "lines": [Line(row, list(parts(row)), _share(row)) for row in page.items],
            "name": name,
            "newest": visit.link("/workflows", state=state, name=name) if after else None,
            "now": visit.app.now(),
            "older": visit.link("/workflows", state=state, name=name, after=page.next) if page.next else None,
            "same": same_as.workflows(states=[state] if state else [], names=[name] if name else []),
            "states": [(one.value, visit.link("/workflows", state=one.value, name=name)) for one in WorkflowState],
            "topic": "all",
        },
    )


def parts(row: Any) -> Iterator[Part]:
    """How its tasks stand, as parts of a whole."""
    at = 0
    for name, word, tone in PARTS:
        count = row.counts[name]
        if count:
            yield Part(word, tone, count, at)
            at += count


def workflow(visit: Visit) -> Answer:
    """One workflow. An id that is only a label of jobs, as any job may carry one, leads to those."""
    try:
        row = _find(visit)
    except NotFound:
        label = visit.params["workflow_id"].lower()
        if is_job_id(label) and visit.app.jobs(workflow_id=label, limit=1).items:
            return Moved(visit.link("/jobs", q=f"workflow:{label}"))
        raise
    now = visit.app.now()
    graph = bounded(visit.app.workflows.graph(row.id, limit=NODES_MOST))
    asked = visit.app.workflows.escalations(row.id, state=None, limit=20)
    may_read = visit.viewer.may("read:payload")
    can = _can(row)
    return Shown(
        "workflow.html",
        {
            "answers": ANSWERS,
            "seen": workflow_marker_of(row),
            "asked": asked,
            "can": can,
            "course": course(graph, row, now),
            "drawing": draw(graph),
            "keys": (("j k", "task"), ("Enter", "open"), *_keys(visit, can)),
            "may_read": may_read,
            "now": now,
            "open_asked": [one for one in asked if one.state == "open"],
            "outline": list(outline(graph))[:OUTLINE],
            "parts": list(parts(row)),
            "reasons": [] if row.state in OVER else reasons(visit, row, asked, may_read=may_read),
            "row": row,
            "same": same_as.workflow(row.id),
            "section": "/workflows",
            "share": _share(row),
            "topic": f"workflow:{row.id}",
        },
    )


def reasons(visit: Visit, row: Any, asked: Sequence[Any], *, may_read: bool) -> list[Reason]:
    """Why it is not done: what is asked, what failed, what waits, what runs; each with what shows it."""
    told = [
        Reason(row.name, "waiting", f"{one.detail} Asked of {_whom(one)}", one.job_id)
        for one in asked
        if one.state == "open"
    ]
    failed = visit.app.workflows.tasks(row.id, outcome="failed", limit=REASONS).items
    for task in failed:
        error = first_line(task.last_error, 120) if may_read else ""
        after = f"after {counted(task.attempt, 'attempt')}"
        told.append(Reason(task.name, task.state, f"{after}{': ' + error if error else ''}", task.job_id))
    open_tasks = visit.app.workflows.tasks(row.id, outcome="open", limit=200).items
    waiting = [task.job_id for task in open_tasks if task.state == "waiting" and task.job_id][: REASONS // 2]
    awaited = {job.id: job.waiting_for for job in visit.app.get_many(waiting) if job is not None} if waiting else {}
    known = {"running": 0, "leased": 0, "waiting": 0, "queued": 0}
    for task in open_tasks:
        if task.state not in known or known[task.state] >= REASONS // 2:
            continue
        known[task.state] += 1
        evidence = {
            "running": f"runs, attempt {task.attempt}",
            "leased": f"is held, attempt {task.attempt}",
            "waiting": f"waits for {awaited.get(task.job_id) or 'something'}, and holds no slot",
            "queued": f"waits in queue {task.agent} for a worker",
        }[task.state]
        told.append(Reason(task.name, task.state, evidence, task.job_id))
    return told[: 2 * REASONS]


def _whom(asked: Any) -> str:
    if asked.person:
        return str(asked.person)
    target = asked.target if isinstance(asked.target, Mapping) else {}
    return str(target.get("agent") or target.get("queue") or "the next level")


def course(graph: Graph, row: Any, now: datetime) -> Course:
    """When each task ran, from the workflow's start to its end or to now."""
    begun = sorted((one for one in graph.nodes if one.started_at is not None), key=lambda one: one.started_at or now)
    first = min((one.started_at or now for one in begun), default=row.created_at)
    over = row.finished_at or now
    whole = max((over - first).total_seconds(), 1.0)

    def at(moment: datetime) -> float:
        return round(min(max(100 * (moment - first).total_seconds() / whole, 0.0), 100.0), 2)

    bars = []
    for place, node in enumerate(begun[:COURSE]):
        assert node.started_at is not None
        ends = node.ended_at or over
        state = worst(node.states) if node.states else node.state
        x = at(node.started_at)
        width = max(round(at(ends) - x, 2), 0.4)
        is_inside, is_before = width > 20, x + width > 80
        bars.append(
            TaskBar(
                name=node.name,
                tone=state,
                x=x,
                width=width,
                label=span((ends - node.started_at).total_seconds()),
                label_x=x if is_inside or is_before else round(x + width, 2),
                is_before=is_before and not is_inside,
                y=24 + 26 * place,
            )
        )
    ticks = [(20.0 * place, (first + (over - first) * place / 5).strftime("%H:%M:%S")) for place in range(5)]
    return Course(bars, ticks, 30 + 26 * len(bars), max(len(begun) - COURSE, 0))


def outline(graph: Graph) -> Iterator[tuple[int, Told]]:
    """The graph in words: layer by layer, each task with what it comes after."""
    layer_of = layers(graph.nodes, graph.edges)
    names = {node.id: node.name for node in graph.nodes}
    states = {node.id: node.state for node in graph.nodes}
    before: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for src, dst, kind in graph.edges:
        before[dst].append((src, kind))
    for node in sorted(graph.nodes, key=lambda one: (layer_of[one.id], one.name)):
        needs = before[node.id]
        shown = [f"{names[src]}{'' if kind == 'ok' else ' (any end)'}" for src, kind in needs[:4]]
        more = f" and {len(needs) - 4} more" if len(needs) > 4 else ""
        left = sum(1 for src, _ in needs if states[src] not in ENDED)
        yield layer_of[node.id], _told(node, shown, more, left)


def _told(node: Node, after: Sequence[str], more: str, left: int) -> Told:
    says = []
    if after:
        says.append(f"after {', '.join(after)}{more}")
    if node.tasks > 1:
        says.append(", ".join(f"{count:,} {state}" for state, count in sorted(node.states.items())))
    else:
        says.append(node.agent)
        if node.is_optional:
            says.append("optional")
        if node.state == "blocked" and left:
            says.append(f"needs {left} more")
        if node.started_at is not None and node.ended_at is not None:
            says.append(span((node.ended_at - node.started_at).total_seconds()))
        if node.attempt > 1:
            says.append(f"attempt {node.attempt}")
    state = worst(node.states) if node.states else node.state
    return Told(state, node.name, node.id if node.tasks == 1 else None, "; ".join(says))


# --- acts ---


def confirm(visit: Visit) -> Answer:
    """The question before a workflow is cancelled or retried."""
    row, act = _find(visit), visit.params["act"]
    if act not in {"cancel", "retry"} or not _can(row)[act]:
        raise UsageError(f"A workflow that is {row.state} cannot be asked to {first_line(act, 20)}.")
    same = same_as.workflow_act(act, row.id)
    return Shown("workflow_confirm.html", {"act": act, "row": row, "same": same, "section": "/workflows"})


def act(visit: Visit) -> Answer:
    """Cancel a workflow, retry what failed in it, or answer what is asked about it."""
    row, verb = _find(visit), visit.params["act"]
    who = visit.viewer.name
    if verb not in {"cancel", "retry", "answer"}:
        raise NotFound(f"There is no act {first_line(verb, 40)!r} of a workflow.")
    reason = visit.reason()
    here = visit.link(f"/workflows/{row.id}")
    visit.pulse.forget()
    if verb == "cancel":
        visit.app.workflows.cancel(row.id, actor=who, reason=reason)
        said = "Cancelled: nothing more is released, and what is held is asked to stop."
    elif verb == "retry":
        visit.app.workflows.retry(row.id, actor=who, reason=reason)
        said = "What failed runs again, with all its attempts."
    else:
        answer = visit.given("answer")
        if answer not in ANSWERS:
            raise UsageError("What shall become of it? Choose one of the answers. Nothing was changed.")
        visit.app.workflows.answer(visit.given("escalation"), answer, note=reason, actor=who)
        said = f"Answered: {ANSWERS[Reply(answer)].lower()}."
    visit.app.workflows.advance(rounds=FOLDS)
    return Moved(here, said)


def _can(row: Any) -> Mapping[str, bool]:
    return {
        "cancel": row.state not in {"completed", "failed", "cancelled"},
        "retry": row.state != "cancelled" and row.phase != "retrying" and bool(row.failed or row.tolerated),
    }


def _keys(visit: Visit, can: Mapping[str, bool]) -> list[tuple[str, str]]:
    """The keys of acts that the page offers."""
    return [(act[0], act) for act, is_there in can.items() if is_there and visit.viewer.may("operate")]


def _share(row: Any) -> float:
    return round(100.0 * row.ended / row.total, 1) if row.total else 0.0


def _find(visit: Visit) -> Any:
    flow = visit.params["workflow_id"].lower()
    if not is_job_id(flow):
        raise NotFound(f"There is no workflow {first_line(flow, 60)!r}.")
    return visit.app.workflows.get(flow)
