"""`tenure top`: a live screen of queues, workers and running jobs."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import text
from tenure.cli.group import verbs
from tenure.cli.options import Json, Url, duration, opened
from tenure.cli.screen import Cell, Grid, Screen, console, state
from tenure.errors import StoreUnavailable
from tenure.model.plural import counted
from tenure.observe.liveness import is_alive
from tenure.observe.stats import Glance, glance

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenure.cli.screen import Part

app = verbs()

WINDOW_SECONDS = 300.0


@app.command()
def top(
    interval: Annotated[
        float,
        typer.Option(
            "--interval", "-i", parser=duration, metavar="DURATION", help="How often to look.", show_default="1s"
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show queues, workers and the jobs they hold, again and again. Press q to leave."""
    with opened(url) as tenure:
        if once or as_json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            found = glance(tenure.store, window_seconds=WINDOW_SECONDS)
            Screen(as_json, found.summary.at).show(found, *parts(found))
            return
        from rich.live import Live

        with keyboard(), Live(console=console(), screen=True, auto_refresh=False) as live:
            while True:
                try:
                    live.update(drawing(glance(tenure.store, window_seconds=WINDOW_SECONDS)), refresh=True)
                except StoreUnavailable as exc:
                    live.update(_trouble(str(exc)), refresh=True)
                if pressed(interval):
                    return


def drawing(found: Glance) -> RenderableType:
    """The whole screen as Rich draws it."""
    from rich.console import Group
    from rich.text import Text

    screen = Screen(now=found.summary.at)
    backlog = found.summary.backlog
    head = Text.assemble(
        ("tenure top", "bold"),
        (f"  {found.summary.at:%H:%M:%S} UTC", "dim"),
        f"  {counted(len(found.workers), 'worker')}",
        (f"  {sum(one.held for one in backlog):,} held", "blue"),
        (f"  {sum(one.due for one in backlog):,} due", "cyan"),
        (f"  {sum(one.pending for one in found.failures):,} dead", "red" if found.failures else "dim"),
        ("  q leaves", "dim"),
    )
    closed = [gate.name for gate in found.gates if not gate.is_open]
    shut = [Text(f"Closed gates: {', '.join(map(text.safe, closed))}", style="bold red")] if closed else []
    below = [piece for part in parts(found) for piece in ("", screen.render(part))]
    return Group(head, *shut, *below)


def parts(found: Glance) -> list[Part]:
    """Queues, workers, what they hold, and what died."""
    summary, now = found.summary, found.summary.at
    policies = {one.name: one.policy for one in found.queues}
    return [
        _queues(found),
        Grid(
            ("worker", "seen", "holds", "slots", "queues", "leads"),
            [
                (
                    one.row.id,
                    Cell(one.last_seen_at, "" if is_alive(one, policies, now) else "bold red"),
                    one.held,
                    one.row.concurrency,
                    ", ".join(one.row.queues),
                    "leads" if one.is_leader else "",
                )
                for one in found.workers[:12]
            ],
            right=frozenset({"holds", "slots"}),
            drop=("slots", "leads"),
            title=f"Workers ({len(found.workers)})",
        ),
        Grid(
            ("job", "kind", "state", "attempt", "since", "lease_ends", "worker"),
            [
                (
                    job.id,
                    job.kind,
                    state(job.state.value),
                    f"{job.attempt}/{job.max_attempts}",
                    job.claimed_at,
                    Cell(job.lease_until, "" if _is_ahead(job.lease_until, now) else "bold red"),
                    job.lease_owner,
                )
                for job in found.held
            ],
            drop=("worker", "state", "attempt"),
            title="Held jobs",
        ),
        Grid(
            ("letters", "kind", "last", "error"),
            [(one.letters, one.kind, one.last_at, text.first_line(one.sample_error)) for one in found.failures],
            right=frozenset({"letters"}),
            wide="error",
            title="Dead letters" + (f"; {counted(summary.stuck_count, 'job', 'stuck')}" if summary.stuck_count else ""),
        ),
    ]


def _queues(found: Glance) -> Grid:
    waiting = {one.queue: one for one in found.summary.backlog}
    done: dict[str, int] = {}
    bad: dict[str, int] = {}
    for one in found.summary.ran:
        done[one.queue] = done.get(one.queue, 0) + one.succeeded
        bad[one.queue] = bad.get(one.queue, 0) + one.failed + one.dead
    rows = []
    for queue in found.queues:
        backlog = waiting.get(queue.name)
        rows.append(
            (
                queue.name,
                state("paused" if queue.paused_at else "open"),
                backlog.due if backlog else 0,
                backlog.delayed if backlog else 0,
                backlog.retrying if backlog else 0,
                backlog.held if backlog else 0,
                done.get(queue.name, 0),
                Cell(bad.get(queue.name, 0), "red" if bad.get(queue.name) else ""),
                backlog.oldest_due_at if backlog else None,
            )
        )
    columns = ("queue", "is", "due", "later", "retry", "held", "done_5m", "bad_5m", "oldest_due")
    return Grid(columns, rows, right=frozenset(columns[2:8]), drop=("later", "oldest_due"), title="Queues")


@contextmanager
def keyboard() -> Iterator[None]:
    """Single keys without Enter, unseen. The terminal is put back whatever happens."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed(seconds: float) -> bool:
    """Wait for a while; whether the wish to leave was typed meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            key = sys.stdin.read(1)
            if key in {"q", "Q", "\x1b", "\x04", ""}:
                return True
    return False


def _trouble(sentence: str) -> RenderableType:
    from rich.text import Text

    return Text(f"{text.safe_lines(sentence)}\n\nLooking again; q leaves.", style="red")


def _is_ahead(at: datetime | None, now: datetime) -> bool:
    return at is not None and at > now
