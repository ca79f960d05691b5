"""`tenure workflows`: graphs of tasks, and what is asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.group import noun
from tenure.cli.ids import full_workflow_id, short_ids
from tenure.cli.options import Actor, After, Json, Limit, Url, opened, say_more
from tenure.cli.screen import Facts, Grid, Screen, state
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure import EscalationRow, WorkflowRow
    from tenure.model.workflow import FailureThreshold

EMPTY = "There is no such workflow. An app starts one with `app.workflows.start(tenure.Workflow(…))`."

app = noun("workflows", "List, show, cancel and retry workflows; answer their escalations.")

WorkflowId = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")]
States = Annotated[
    list[str] | None,
    typer.Option("--state", "-s", metavar="STATE", help="Only in this state; may be repeated."),
]
TypeNames = Annotated[
    list[str] | None, typer.Option("--name", metavar="NAME", help="Only of this name; may be repeated.")
]


@app.command("ls")
def ls(
    states: States = None,
    name: TypeNames = None,
    limit: Limit = 50,
    after: After = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List workflows, newest first, with how far they are."""
    with opened(url) as tenure:
        page = tenure.workflows.all(state=states, name=name, limit=limit, after=after)
        screen = Screen(as_json, tenure.now())
    ids: list[str] = [one.id for one in page]
    rows = [
        (shown, one.name, state(one.state), one.total, one.succeeded, one.failed, one.counts["open"], one.created_at)
        for shown, one in zip(short_ids(ids) if screen.is_narrow else ids, page, strict=True)
    ]
    columns = ("id", "workflow", "state", "tasks", "succeeded", "failed", "open", "started")
    numbers = frozenset({"tasks", "succeeded", "failed", "open"})
    screen.show(
        {"workflows": page.items, "next": page.next},
        Grid(columns, rows, numbers, drop=("started", "open", "succeeded"), empty=EMPTY),
    )
    say_more(screen, page.next)


@app.command("show")
def show(
    given: WorkflowId,
    dot: Annotated[bool, typer.Option("--dot", help="The graph for Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="The graph for Mermaid.")] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", min=1, max=100_000, help="Fold the graph above so many tasks."),
    ] = 2_000,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a workflow: its state, its tasks, what is asked about it."""
    if dot + mermaid + as_json > 1:
        raise UsageError("Give one of --dot, --mermaid and --json.")
    with opened(url) as tenure:
        workflow_id = full_workflow_id(tenure, given)
        found = tenure.workflows.get(workflow_id)
        graph = tenure.workflows.graph(workflow_id, limit=limit)
        asked = tenure.workflows.escalations(workflow_id, state=None)
        now = tenure.now()
    screen = Screen(as_json, now)
    if dot or mermaid:
        screen.line(graph.to_dot(found.name) if dot else graph.to_mermaid())
        return
    if graph.is_folded:
        columns: tuple[str, ...] = ("agent", "type", "depth", "tasks", "states")
        rows: list[tuple[object, ...]] = [
            (node.agent, node.task_type, node.depth, node.tasks, _counted(node.states)) for node in graph.nodes
        ]
    else:
        columns = ("task", "agent", "type", "state", "attempt", "job")
        rows = [
            (node.name, node.agent, node.task_type, state(node.state), node.attempt, node.id) for node in graph.nodes
        ]
    grid = Grid(columns, rows, frozenset({"depth", "tasks", "attempt"}), title="tasks", drop=("job", "attempt"))
    answer = {"workflow": found, "counts": found.counts, "graph": graph, "escalations": asked}
    screen.show(answer, _facts(found), grid, *([_escalations(asked)] if asked else []))


@app.command("cancel")
def cancel(
    given: WorkflowId,
    reason: Reason = "cancelled by hand",
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Cancel a workflow: nothing more is released, and what is open is cancelled or asked to stop."""
    with opened(url, actor=actor) as tenure:
        workflow_id = full_workflow_id(tenure, given)
        tenure.workflows.cancel(workflow_id, reason=reason)
        tenure.workflows.advance()
        found = tenure.workflows.get(workflow_id)
    Screen(as_json).show({"workflow": found, "counts": found.counts}, _facts(found))


@app.command("retry")
def retry(
    given: WorkflowId,
    reason: Reason = "retried by hand",
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Run what failed again, and what was skipped or cancelled because of it."""
    with opened(url, actor=actor) as tenure:
        workflow_id = full_workflow_id(tenure, given)
        tenure.workflows.retry(workflow_id, reason=reason)
        tenure.workflows.advance()
        found = tenure.workflows.get(workflow_id)
    Screen(as_json).show({"workflow": found, "counts": found.counts}, _facts(found))


@app.command("escalations")
def escalations(
    person: Annotated[
        str | None, typer.Option("--person", metavar="NAME", help="Only those put to this person.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are answered.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List what is asked about workflows, oldest first."""
    with opened(url) as tenure:
        found = tenure.workflows.escalations(person=person, state=None if every else "open")
        now = tenure.now()
    Screen(as_json, now).show({"escalations": found}, _escalations(found))


@app.command("answer")
def answer(
    escalation_id: Annotated[str, typer.Argument(metavar="ID", help="The escalation's id.", show_default=False)],
    said: Annotated[
        str,
        typer.Argument(
            metavar="ANSWER", help="go_on, retry_failed, raise_threshold, fail or cancel.", show_default=False
        ),
    ],
    count: Annotated[int | None, typer.Option("--count", metavar="N", help="The new threshold, as a number.")] = None,
    share: Annotated[
        float | None, typer.Option("--share", metavar="PART", help="The new threshold, as a part of all: 0.1.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.")] = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Answer an escalation."""
    with opened(url, actor=actor) as tenure:
        done = tenure.workflows.answer(escalation_id, said, threshold=_threshold(count, share), note=note)
        tenure.workflows.advance()
        found = tenure.workflows.get(done.workflow_id)
    Screen(as_json).show({"escalation": done, "workflow": found}, _facts(found))


def _threshold(count: int | None, share: float | None) -> FailureThreshold | None:
    from tenure.model.workflow import FailureThreshold

    return None if count is None and share is None else FailureThreshold(count, share)


def _facts(found: WorkflowRow) -> Facts:
    counts = ", ".join(f"{count:,} {name}" for name, count in found.counts.items() if count and name != "total")
    return Facts(
        [
            ("workflow", found.id),
            ("name", found.name),
            ("state", state(found.state)),
            ("phase", None if found.phase == "forward" else found.phase),
            ("tasks", f"{found.total:,}: {counts}"),
            ("key", found.key),
            ("started", found.created_at),
            ("deadline", found.due_at),
            ("ended", found.finished_at),
            ("why", found.error),
        ]
    )


def _escalations(found: list[EscalationRow]) -> Grid:
    rows = [
        (
            one.id,
            one.workflow,
            one.level,
            one.person or str(one.target.get("queue")),
            one.detail,
            state(one.state),
            one.answer,
            one.due_at,
        )
        for one in found
    ]
    columns = ("id", "workflow", "level", "asked", "why", "state", "answer", "until")
    return Grid(columns, rows, frozenset({"level"}), wide="why", title="escalations", drop=("until", "level"))


def _counted(states: object) -> str:
    assert isinstance(states, dict)
    return ", ".join(f"{count:,} {name}" for name, count in sorted(states.items()))
