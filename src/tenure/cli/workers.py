"""`tenure workers`: who is at work."""

from __future__ import annotations

from tenure.cli.group import noun
from tenure.cli.options import Json, Url, opened
from tenure.cli.screen import Cell, Grid, Screen
from tenure.observe.doctor import SILENT_SECONDS

app = noun("workers", "List workers.")


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List workers, most recently seen first: what they serve, what they hold, who leads."""
    with opened(url) as tenure:
        found = tenure.workers.all()
        now = tenure.now()
    rows = [
        (
            one.row.id,
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
            ("id", "seen", "holds", "slots", "queues", "leads", "started", "version"),
            rows,
            right=frozenset({"holds", "slots"}),
            drop=("version", "started", "leads", "slots"),
        ),
    )
