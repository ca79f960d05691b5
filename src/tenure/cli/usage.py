"""`tenure usage`: what agents' model calls took."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenure.cli.group import verbs
from tenure.cli.options import Json, Kinds, Limit, Queues, Url, duration, opened
from tenure.cli.screen import Grid, Screen
from tenure.model.budget import show_amount

app = verbs()

EMPTY = "No model call is recorded. Durable runs of pydantic-ai and the OpenAI Agents SDK record them."


@app.command()
def usage(
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="agent (the job's queue), kind or job.")] = "agent",
    since: Annotated[
        float | None,
        typer.Option(
            "--since", parser=duration, metavar="DURATION", help="Only jobs made in this last stretch, as 1d."
        ),
    ] = None,
    queue: Queues = None,
    kind: Kinds = None,
    limit: Limit = 100,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add up tokens and cost of the model calls that agents recorded as steps, the most tokens first."""
    asked: Any = by  # refused by the app, if it is none of the three
    with opened(url) as tenure:
        found = tenure.budgets.usage(since, by=asked, queues=queue, kinds=kind, limit=limit)
    screen = Screen(as_json)
    rows = [
        (one.name, one.jobs, one.calls, one.input_tokens, one.output_tokens, show_amount("usd", one.usd_micro))
        for one in found.rows
    ]
    columns = (by, "jobs", "calls", "input tokens", "output tokens", "cost")
    screen.show(found, Grid(columns, rows, right=frozenset(columns[1:]), empty=EMPTY))
    if found.is_cut:
        screen.note("There are more steps than one sum reads, so older jobs are missing. Choose a shorter --since.")
