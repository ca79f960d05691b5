"""Workflows: list them, look at one with its graph and its tasks, cancel and retry it, answer what it asks."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import Path, Query, Response
from pydantic import Field

from tenure.model.workflow import Answer as Reply
from tenure.model.workflow import FailureThreshold
from tenure.web.api.shapes import (
    Answer,
    Cursor,
    Here,
    JsonAnswer,
    Limit,
    Names,
    Reason,
    Strict,
    Unmasked,
    Who,
    all_shown,
    next_cursor,
    paged,
    plain,
    shown,
)
from tenure.web.problems import not_found
from tenure.web.routes import Route

GRAPH_NODES: Final = 2_000
"""A graph of more tasks is answered folded: those of one agent, type and depth are one node."""
FOLDS: Final = 20
"""How often what an act left to do is folded before the answer. Workers fold the rest."""
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
Id = Annotated[str, Path(max_length=100, description="The workflow's id.")]


class WorkflowReason(Strict):
    """Why; it goes into the audit."""

    reason: Reason


class ThresholdBody(Strict):
    """From how many failed tasks on it is breached: `count`, or `share` of all once `at_least` have ended."""

    count: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    at_least: Annotated[int, Field(ge=0, le=10_000_000)] = 0


class EscalationAnswer(Strict):
    """What shall become of the workflow, and why. `raise_threshold` needs the new `threshold`."""

    answer: Reply
    threshold: ThresholdBody | None = None
    note: Annotated[str, Field(max_length=2000)] | None = None


class WorkflowList(Answer):
    """Workflows, newest first."""

    items: list[dict[str, Any]]
    next: str | None = None


class WorkflowShown(Answer):
    """One workflow with its counts; `graph` has nodes and edges, `escalations` what was asked about it."""

    item: dict[str, Any]


class TaskList(Answer):
    """Tasks in the order of their ids."""

    items: list[dict[str, Any]]
    next: str | None = None


async def list_workflows(
    who: Who, site: Here, unmasked: Unmasked, state: Names = None, name: Names = None, limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:  # fmt: skip
    """List workflows, newest first, with how far each is."""
    chosen, after = await paged(site, who, "workflows", cursor, {"state": state, "name": name})
    page = await who.app.aio.workflows.all(**chosen, limit=limit, after=after)
    following = await next_cursor(site, who, "workflows", chosen, page.next)
    items = [{**shown(row, unmasked=unmasked), "counts": row.counts} for row in page.items]
    return JsonAnswer({"items": items, "next": following})


async def get_workflow(
    who: Who,
    id: Id,  # noqa: A002  the word of the path
    unmasked: Unmasked,
    graph: Annotated[int, Query(ge=0, le=GRAPH_NODES, description="Fold above so many tasks; 0: no graph.")] = 300,
) -> Response:
    """Show one workflow: its counts, its graph, and what was asked about it."""
    flow = _valid(id)
    row = await who.app.aio.workflows.get(flow)
    told = {**shown(row, unmasked=unmasked), "counts": row.counts}
    told["graph"] = plain(await who.app.aio.workflows.graph(flow, limit=graph)) if graph else None
    told["escalations"] = all_shown(await who.app.aio.workflows.escalations(flow, state=None), unmasked=unmasked)
    return JsonAnswer({"item": told})


async def list_tasks(
    who: Who,
    site: Here,
    id: Id,  # noqa: A002
    unmasked: Unmasked,
    outcome: Names = None,
    name: Names = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the tasks of a workflow with their states; `outcome` is an end, or `open`."""
    flow = _valid(id)
    await who.app.aio.workflows.get(flow)
    purpose = f"tasks {flow}"
    chosen, after = await paged(site, who, purpose, cursor, {"outcome": outcome, "name": name})
    page = await who.app.aio.workflows.tasks(flow, **chosen, limit=limit, after=after)
    following = await next_cursor(site, who, purpose, chosen, page.next)
    return JsonAnswer({"items": all_shown(page.items, unmasked=unmasked), "next": following})


async def cancel_workflow(who: Who, id: Id, body: WorkflowReason) -> Response:  # noqa: A002
    """Cancel a workflow: nothing more is released, what waits is cancelled, what is held is asked to stop."""
    await who.app.aio.workflows.cancel(_valid(id), actor=who.name, reason=body.reason)
    return await _moved(who, id)


async def retry_workflow(who: Who, id: Id, body: WorkflowReason) -> Response:  # noqa: A002
    """Run what failed again, with all its attempts, and what was skipped or cancelled because of it."""
    await who.app.aio.workflows.retry(_valid(id), actor=who.name, reason=body.reason)
    return await _moved(who, id)


async def answer_escalation(who: Who, id: Id, body: EscalationAnswer) -> Response:  # noqa: A002
    """Answer a question about a workflow: go on, retry what failed, fail it or cancel it."""
    told = body.threshold
    threshold = None if told is None else FailureThreshold(told.count, told.share, told.at_least)
    row = await who.app.aio.workflows.answer(
        _valid(id), body.answer, threshold=threshold, note=body.note, actor=who.name
    )
    await who.app.aio.workflows.advance(rounds=FOLDS)
    return JsonAnswer({"item": shown(row, unmasked=False)})


async def _moved(who: Who, flow: str) -> Response:
    await who.app.aio.workflows.advance(rounds=FOLDS)
    row = await who.app.aio.workflows.get(flow)
    return JsonAnswer({"item": {**shown(row, unmasked=False), "counts": row.counts}})


def _valid(flow: str) -> str:
    """A malformed id is as unknown as any other."""
    if not _ID.fullmatch(flow):
        raise not_found()
    return flow.lower()


_V: Final = "/api/v1/workflows"
ROUTES: Final = (
    Route("GET", _V, "read:meta", None, list_workflows, "workflows", answers=WorkflowList),
    Route("GET", _V + "/{id}", "read:meta", None, get_workflow, "workflows", answers=WorkflowShown),
    Route("GET", _V + "/{id}/tasks", "read:meta", None, list_tasks, "workflows", answers=TaskList),
    Route(
        "POST", _V + "/{id}/cancel", "operate", "cancel_workflow", cancel_workflow, "workflows", answers=WorkflowShown,
        others=(409,),
    ),
    Route(
        "POST", _V + "/{id}/retry", "operate", "retry_workflow", retry_workflow, "workflows", answers=WorkflowShown,
        others=(409,),
    ),
    Route(
        "POST", "/api/v1/escalations/{id}/answer", "operate", "answer_escalation", answer_escalation, "workflows",
        answers=WorkflowShown, others=(409,),
    ),
)  # fmt: skip
