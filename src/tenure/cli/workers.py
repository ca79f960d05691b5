"""`tenure workers`: who is at work."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Reason, Url, opened
from tenure.cli.screen import Cell, Grid, Screen, state
from tenure.observe.doctor import SILENT_SECONDS
from tenure.observe.liveness import drained

app = noun("workers", "List workers, and drain them.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The worker, as `tenure workers ls` names it.")]


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List workers, most recently seen first: what they serve, what they hold, who leads."""
    with opened(url) as tenure:
        found = tenure.workers.all()
        drains = drained(tenure.gates.all())
        now = tenure.now()
    rows = [
        (
            one.row.id,
            state("draining" if one.row.id in drains else "open"),
            Cell(one.last_seen_at, "red" if (now - one.last_seen_at).total_seconds() > SILENT_SECONDS else ""),
            one.held,
            one.row.concurrency,
            ", ".join(one.row.queues),
            one.is_leader,
            one.started_at,
            one.row.version,
        )
        for one in found
    ]
    Screen(as_json, now).show(
        {"workers": found},
        Grid(
            ("id", "is", "seen", "holds", "slots", "queues", "leads", "started", "version"),
            rows,
            right=frozenset({"holds", "slots"}),
            drop=("version", "started", "leads", "slots"),
            empty="No worker is running. Start one: tenure worker",
        ),
    )


@app.command("drain")
def drain(worker: Id, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Give a worker no more jobs. It ends what it holds and stays, until it is resumed or stops."""
    with opened(url, actor=actor) as tenure:
        tenure.workers.drain(worker, reason=reason)
    Screen(as_json).show({"changed": [worker]}, Grid(("worker", "is"), [(worker, state("draining"))]))


@app.command("resume")
def resume(worker: Id, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Give a worker that was drained jobs again."""
    with opened(url, actor=actor) as tenure:
        tenure.workers.resume(worker, reason=reason)
    Screen(as_json).show({"changed": [worker]}, Grid(("worker", "is"), [(worker, state("open"))]))
