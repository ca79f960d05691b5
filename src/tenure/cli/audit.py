"""`tenure audit`: what people and programs with power did, and whether the record was changed since."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.group import noun
from tenure.cli.options import Json, Limit, Url, opened
from tenure.cli.screen import Facts, Grid, Passage, Screen
from tenure.errors import ConfigError

app = noun("audit", "List what was done with power, and verify that the record was not changed.")

_HEAD = re.compile(r"(\d+) ([0-9a-f]{64})")


@app.command("ls")
def ls(
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="NAME", help="Only this job, queue, gate, token …")
    ] = None,
    limit: Limit = 50,
    before: Annotated[
        int | None, typer.Option("--before", metavar="SEQ", min=1, help="Only older ones: the last `seq` shown.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List audit rows, newest first."""
    with opened(url) as tenure:
        found = tenure.access.audit(subject=subject, limit=limit, before=before)
        screen = Screen(as_json, tenure.now())
    rows = [(one.seq, one.at, one.actor, one.act, one.subject, one.reason) for one in found]
    columns = ("seq", "at", "actor", "act", "subject", "reason")
    grid = Grid(columns, rows, wide="reason", drop=("seq", "at"), empty="No act has left a row in the audit yet.")
    screen.show({"audit": found}, grid)


@app.command("seal")
def seal(url: Url = None, as_json: Json = False) -> None:
    """Add the rows that have no link yet to the chain. `tenure serve` does so each second."""
    with opened(url) as tenure:
        added = 0
        while True:
            sealed = tenure.access.seal()
            added += sealed.added
            if not sealed.more:
                break
        screen = Screen(as_json, tenure.now())
    screen.show(
        {"links": sealed.number, "head": sealed.hash, "added": added},
        Facts([("links", sealed.number), ("head", sealed.hash), ("added", added)]),
    )


@app.command("verify")
def verify(
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="Lines `NUMBER HASH` that were written down before."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Walk the chain over the audit and name each row that was changed, removed or moved. Exit code 1 if there is one.

    Keep the head that it prints elsewhere: with --heads, a chain that was cut short is found too.
    """
    known = _read_heads(heads)
    with opened(url) as tenure:
        found = tenure.access.verify_audit(heads=known)
        screen = Screen(as_json, tenure.now())
    told = {
        "links": found.links,
        "head": found.head,
        "unsealed": found.unsealed,
        "faults": list(found.faults),
        "is_sound": not found.faults,
    }
    facts = Facts([("links", found.links), ("head", found.head or None), ("without a link yet", found.unsealed)])
    faults = [Passage("\n".join(found.faults), "faults")] if found.faults else []
    screen.show(told, facts, *faults)
    if found.faults:
        raise typer.Exit(1)
    screen.note("Every sealed row is there, unchanged and in order.", "green")


def _read_heads(path: Path | None) -> dict[int, str]:
    if path is None:
        return {}
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"The heads could not be read from {path}: {exc}.") from exc
    found = {}
    for line in lines:
        match = _HEAD.search(line)
        if match is None:
            raise ConfigError(f"{path}: {line[:80]!r} is no head. A line holds a link's number and its hash.")
        found[int(match[1])] = match[2]
    return found
