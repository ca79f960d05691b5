"""Options that many commands share, and how their words become values."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenure.errors import ConfigError, InvalidArgument, InvalidPayload, nearest
from tenure.model.duration import duration_seconds

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.cli.screen import Screen

DEFAULT_FILE = "jobs.db"
"""Used where no URL is given, no app names one, and this file is in the current folder."""


def duration(value: str | float) -> float:
    """Seconds from `90`, `90s`, `5m`, `1h30m`, `2d`. Raises: BadParameter."""
    if isinstance(value, int | float):
        return float(value)
    try:
        return duration_seconds(value)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from None


def moment(value: str) -> datetime:
    """A moment from ISO 8601, with its time zone. Raises: BadParameter."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is no moment. Write it as 2026-01-31T12:00:00Z.") from None
    if at.tzinfo is None:
        raise typer.BadParameter(
            f"{value!r} has no time zone, so it names no moment. Write {value}Z for UTC, or {value}+01:00."
        )
    return at


def json_value(what: str, given: str) -> Any:
    """JSON from the command line: the text itself, `@FILE`, or `-` for stdin. Raises: InvalidPayload."""
    if given == "-":
        given = sys.stdin.read()
    elif given.startswith("@"):
        try:
            given = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise InvalidArgument(f"The {what} could not be read from {given[1:]!r}: {exc}.") from exc
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as exc:
        as_text = f" A text has quotes of its own: '\"{given}\"'." if re.fullmatch(r"[\w.@-]+", given) else ""
        raise InvalidPayload(
            f"The {what} is not JSON: {exc}.{as_text} Quote it for your shell, as in '{{\"user_id\": 7}}', or use - "
            "for stdin."
        ) from exc


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="TENURE_URL",
        show_default=False,
        help=f"sqlite:///FILE or postgresql://…; the database of ./tasks.py, or ./{DEFAULT_FILE}, if left out.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, of a stable shape.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Actor = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="NAME",
        envvar="TENURE_ACTOR",
        show_default=False,
        help="The name for the audit; yours if left out.",
    ),
]

Reason = Annotated[str | None, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")]


def complete_queue(incomplete: str) -> list[str]:
    """For the shell's completion: the queues of the database at hand."""
    return _completed(incomplete, lambda app: [one.name for one in app.queues.all()])


def complete_kind(incomplete: str) -> list[str]:
    """For the shell's completion: the kinds of which there are jobs."""
    return _completed(incomplete, lambda app: [one.kind for one in app.queues.counts()])


def _completed(incomplete: str, read: Callable[[App], Iterable[str]]) -> list[str]:
    """Names that begin so. Says nothing where something is wrong: a shell that completes is no place for errors."""
    with suppress(Exception), opened(os.environ.get("TENURE_URL")) as app:
        return sorted({name for name in read(app) if name.startswith(incomplete)})
    return []


Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", metavar="NAME", help="Only this queue; may be repeated.", autocompletion=complete_queue
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--kind", "-k", metavar="KIND", help="Only this kind; may be repeated.", autocompletion=complete_kind),
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="How many at most.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="NEXT", help="Go on after a page: the `next` that it named.")
]
JobIdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
TokenArgument = Annotated[
    int, typer.Argument(metavar="TOKEN", help="The token that the claim gave out.", show_default=False)
]


@contextmanager
def opened(
    url: str | None, *, create: bool = False, actor: str | None = None, migrate: Literal["auto", "never"] = "auto"
) -> Iterator[App]:
    """An App on the database, closed at the end. Only commands that `create` make a file or a schema."""
    from tenure.app import App

    found = database_url(url)
    app = App(found, actor=actor or default_actor(), migrate=migrate if create or migrate == "never" else "existing")
    try:
        yield app
    finally:
        app.close()


def say_more(screen: Screen, following: str | None) -> None:
    """How to see the next page of a list, if there is one."""
    if following is not None:
        screen.note(f"There are more: --after {shlex.quote(following)}")


def say_unknown_queues(tenure: App, screen: Screen, given: Iterable[str] | None) -> None:
    """Name the queues that a filter named and the database does not have, where it found nothing."""
    names = list(given or ())
    known = {row.name for row in tenure.queues.all()} if names else set()
    for name in names:
        if name not in known:
            screen.note(f"There is no queue {name!r}.{nearest(name, known)}", "yellow")


def say_unknown_kinds(tenure: App, screen: Screen, given: Iterable[str] | None) -> None:
    """Offer the nearest kind that has live jobs for each that a filter named, where it found nothing."""
    from difflib import get_close_matches

    from tenure.model.state import ACTIVE

    names = list(given or ())
    known = {one.kind for one in tenure.queues.counts(state=sorted(ACTIVE))} if names else set()
    for name in names:
        if name not in known and (close := get_close_matches(name, known, n=1)):
            screen.note(f"No live job is of kind {name!r}. Did you mean {close[0]!r}?", "yellow")


def database_url(url: str | None) -> str:
    """The URL as given, or that of this folder's app, or that of the file jobs.db. Raises: ConfigError."""
    from tenure.cli.loading import declared_url

    found = url or declared_url()
    if found:
        return found
    if Path(DEFAULT_FILE).is_file():
        return f"sqlite:///{DEFAULT_FILE}"
    raise ConfigError(
        f"No database is named: this folder has no {DEFAULT_FILE}, and no tasks.py that says which. Run this in the "
        f"folder of your app, give --url sqlite:///{DEFAULT_FILE} or --url postgresql://…, or set TENURE_URL."
    )


def default_actor() -> str:
    """Who sits at this command line, as far as the system knows."""
    import getpass

    try:
        return f"{getpass.getuser()}@{os.uname().nodename}"
    except (OSError, KeyError):
        return f"uid {os.getuid()}@{os.uname().nodename}"
