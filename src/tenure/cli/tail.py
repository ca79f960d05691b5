"""`tenure tail`: events as they happen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import text
from tenure.cli.group import verbs
from tenure.cli.ids import full_id
from tenure.cli.job_parts import event_says
from tenure.cli.options import Json, Queues, Url, duration, opened, say_unknown_queues
from tenure.cli.screen import Screen, colours_on, console
from tenure.observe.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.app import App
    from tenure.model.event import Event

app = verbs()

STYLES = {
    "queued": "cyan",
    "claimed": "blue",
    "started": "blue",
    "completed": "green",
    "retried": "yellow",
    "reclaimed": "yellow",
    "failed": "red",
    "dead": "bold red",
    "stderr": "red",
}


@app.command()
def tail(
    queue: Queues = None,
    event: Annotated[
        list[str] | None, typer.Option("--event", "-e", metavar="KIND", help="Only such events; may be repeated.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="ID", help="Only of this job.")] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Begin with the oldest event, not with now.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print what is there and end.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", parser=duration, metavar="DURATION", help="How often to look.", show_default="0.25s"
        ),
    ] = 0.25,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Follow events as they happen; with --json one object a line. Only queues with events=true write them."""
    with opened(url) as tenure:
        screen = Screen(as_json)
        say_unknown_queues(tenure, screen, queue)
        _say_who_is_silent(tenure, queue, screen)
        after = 0 if all_ or once else None
        job_id = None if job is None else full_id(tenure, job)
        follower = Follower(tenure.store, after=after, job_id=job_id, queues=queue or (), kinds=event or ())
        lines = EventLines(screen)
        while True:
            found = follower.poll()
            lines.print(found.events)
            if found.more:
                continue
            if once:
                return
            time.sleep(interval)


class EventLines:
    """Prints events, one a line."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._colours = screen.is_terminal and colours_on(_stdout())

    def print(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._screen.as_json:
                self._screen.line(text.to_json(event))
                continue
            moment = f"{event.at:%H:%M:%S}.{event.at.microsecond // 1000:03d}"
            says = text.safe(event_says(event))
            words = [moment, f"{text.safe(event.kind):<16}", event.job_id or "-", text.safe(event.queue or "-"), says]
            if self._colours:
                self._draw(words, event.kind)
            else:
                self._screen.line(" ".join(words).rstrip())
        self._screen.flush()

    def _draw(self, words: list[str], kind: str) -> None:
        from rich.text import Text

        line = Text(words[0] + " ", style="dim")
        line.append(words[1] + " ", style=STYLES.get(kind, ""))
        line.append(f"{words[2]} {words[3]} ", style="dim")
        line.append(words[4])
        console().print(line, soft_wrap=True)


def _say_who_is_silent(tenure: App, queue: list[str] | None, screen: Screen) -> None:
    silent = [one.name for one in tenure.queues.all(queue) if not one.policy.events]
    if silent:
        named = ", ".join(silent[:5]) + (" …" if len(silent) > 5 else "")
        screen.note(f"Without lifecycle events: {named}. Switch them on with `tenure queues set NAME events=true`.")


def _stdout() -> object:
    import sys

    return sys.stdout
