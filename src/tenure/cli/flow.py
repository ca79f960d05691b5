"""`tenure signal`: tell jobs that wait."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.group import verbs
from tenure.cli.ids import full_id
from tenure.cli.options import Actor, Json, Url, duration, json_value, opened
from tenure.cli.screen import Facts, Screen

app = verbs()

KEEP = "30d"


@app.command("signal")
def signal(
    key: Annotated[str, typer.Argument(help="What jobs wait for by `ctx.wait_for(KEY)`.", show_default=False)],
    value: Annotated[str, typer.Argument(help="JSON, @FILE, or - for stdin.")] = "null",
    to: Annotated[str | None, typer.Option("--to", metavar="ID", help="Only this job may take it.")] = None,
    queue: Annotated[
        bool, typer.Option("--queue", help="Keep all values in order, one for each wait; else the first value stays.")
    ] = False,
    keep: Annotated[
        float, typer.Option("--keep", parser=duration, metavar="DURATION", help="How long it waits for a job.")
    ] = KEEP,  # type: ignore[assignment]
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Tell the jobs that wait for a key, now or later. Exit 4 if another value was first."""
    with opened(url, actor=actor) as tenure:
        only = None if to is None else full_id(tenure, to)
        sent = tenure.signal(key, json_value("value", value), to=only, scope="queue" if queue else "once", keep=keep)
    screen = Screen(as_json)
    screen.show(
        {"id": sent.id, "key": key, "is_taken": sent.is_taken},
        Facts([("signal", key), ("id", sent.id), ("accepted", "yes" if sent.is_taken else "no")]),
    )
    if not sent.is_taken:
        screen.note(f"Another value was sent for {key!r} before, and stays. Nothing was changed.")
        raise typer.Exit(4)
