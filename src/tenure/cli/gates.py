"""`tenure gates`: switches in the database that stop work everywhere at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Reason, Url, opened, say_unknown_kinds, say_unknown_queues
from tenure.cli.screen import Grid, Screen, state

if TYPE_CHECKING:
    from tenure import Gate

app = noun("gates", "List, open and close the switches that stop all work.")

Name = Annotated[
    str,
    typer.Argument(
        help="master, worker, notify, heartbeat, PROFILE.one-of-these, queue:NAME, kind:NAME or worker:ID.",
        show_default=False,
    ),
]


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List gates and how they stand. One that was never touched is open."""
    with opened(url) as tenure:
        found = tenure.gates.all()
        screen = Screen(as_json, tenure.now())
    _show(screen, found)


@app.command("open")
def open_(name: Name, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Allow what the gate guards."""
    with opened(url, actor=actor) as tenure:
        found = tenure.gates.open(name, reason=reason)
        screen = Screen(as_json, tenure.now())
    _show(screen, [found])


@app.command("close")
def close(name: Name, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Refuse what the gate guards, for every process at once. A caller that tries ends with exit code 7."""
    with opened(url, actor=actor) as tenure:
        found = tenure.gates.close(name, reason=reason)
        screen = Screen(as_json, tenure.now())
        sort, _, guarded = name.partition(":")
        if sort == "queue":
            say_unknown_queues(tenure, screen, [guarded])
        elif sort == "kind":
            say_unknown_kinds(tenure, screen, [guarded])
    _show(screen, [found])


def _show(screen: Screen, gates: list[Gate]) -> None:
    rows = [(one.name, state("open" if one.is_open else "closed"), one.updated_at, one.actor) for one in gates]
    screen.show({"gates": gates}, Grid(("gate", "is", "since", "by"), rows))
