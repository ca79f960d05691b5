"""`tenure move`: from one database to another."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tenure.cli.group import verbs
from tenure.cli.options import Json, Yes, default_actor, duration
from tenure.cli.screen import Facts, Grid, Screen, confirm, progress
from tenure.errors import OperatorError, UsageError
from tenure.model.frozen import frozen
from tenure.model.plural import counted
from tenure.move import mover

app = verbs()


@frozen
class MoveAnswer:
    """What `--json` answers: one of the two."""

    move: mover.Moved | None = None
    reopened: mover.Reopened | None = None


class LeaseChoice(StrEnum):
    """What happens to jobs that workers hold."""

    drain = "drain"
    carry = "carry"


Source = Annotated[str, typer.Argument(metavar="SRC", help="The URL of the database that has the jobs.")]
Destination = Annotated[
    str | None, typer.Argument(metavar="DST", help="The URL of an empty database. Its schema is made if need be.")
]
LeaseOption = Annotated[
    LeaseChoice,
    typer.Option(
        "--leases",
        metavar="drain|carry",
        help="Jobs that workers hold: wait until they have ended (drain), or take the leases along (carry).",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        parser=duration,
        metavar="DURATION",
        help="How long to wait for held jobs, with drain.",
        show_default="5m",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would be moved.")]
Reopen = Annotated[bool, typer.Option("--reopen", help="Give a move up: let SRC take writes again. DST is not needed.")]


@app.command()
def move(
    source: Source,
    destination: Destination = None,
    leases: LeaseOption = LeaseChoice.drain,
    wait: Wait = mover.WAIT_SECONDS,
    dry_run: DryRun = False,
    reopen: Reopen = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Move everything to another database, of either engine: SQLite to PostgreSQL, or back. Run it again if it is cut.

    The source takes no enqueues, claims or other writes from then on; every row is copied and compared by its hash.
    """
    screen = Screen(as_json)
    if reopen:
        _reopen(screen, source, destination, yes=yes)
        return
    if destination is None:
        raise UsageError("A move needs two URLs: `tenure move SRC DST`.")
    if dry_run:
        _show(screen, mover.look(source, destination), is_done=False)
        return
    doing = ""
    try:
        with progress("moving", mover.size(source)) as advance:

            def tell(what: str, by: int) -> None:
                nonlocal doing
                doing = what
                advance(by, what)

            done = mover.move(
                source, destination, leases=leases.value, wait_seconds=wait, actor=default_actor(), tell=tell
            )
    except (KeyboardInterrupt, OperatorError):
        if doing.startswith(("copying", "comparing")):
            screen.note(
                "The source takes no writes until the move is complete. Run the same command again: it goes on where "
                "it was. To give the move up: `tenure move --reopen SRC`."
            )
        raise
    _show(screen, done, is_done=True)


def _reopen(screen: Screen, source: str, destination: str | None, *, yes: bool) -> None:
    if destination is not None:
        raise UsageError("--reopen takes one URL, that of the source.")
    confirm(f"let {source.rpartition('@')[2]} take writes again, although it was moved or is being moved", yes=yes)
    line = mover.reopen(source, actor=default_actor())
    screen.show(MoveAnswer(reopened=line), Facts([("reopened", line.id), ("was moved to", line.moved_to)]))


def _show(screen: Screen, done: mover.Moved, *, is_done: bool) -> None:
    rows = [(one.table, one.rows, one.digest[:16]) for one in done.tables if one.rows]
    heads = ("table", "rows", "hash") if is_done else ("table", "rows")
    screen.show(MoveAnswer(done), Grid(heads, [row[: len(heads)] for row in rows], right=frozenset({"rows"})))
    if not is_done:
        held = counted(done.held, "job", "held")
        screen.note(f"{counted(done.rows, 'row')} would be moved, and {held} now. Nothing was changed.")
        return
    screen.note(f"{done.rows:,} rows were moved and are equal on both sides. {done.source} takes no more writes.")
    if done.held:
        screen.note(f"Leases that came along: {done.held:,}.")
    if done.profiles_missing:
        screen.note(f"Install these profiles there from their files: {', '.join(done.profiles_missing)}.")
