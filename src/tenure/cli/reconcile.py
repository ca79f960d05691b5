"""`tenure reconcile`: is the world as the jobs left it?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import text
from tenure.cli.group import verbs
from tenure.cli.loading import DEFAULT_TARGET, loaded
from tenure.cli.options import Json, Url, duration, moment, opened
from tenure.cli.screen import Screen, progress
from tenure.effects.reconcile import Discrepancy
from tenure.errors import ConfigError
from tenure.model.frozen import frozen

if TYPE_CHECKING:
    from tenure.app import App

app = verbs()

COLUMNS = ("sort", "subject", "kind", "job_id", "expected", "found")


@frozen
class Reconciled:
    """What `--json` answers. It is written as it is found, so `discrepancies` comes first."""

    discrepancies: list[Discrepancy]
    checked: int


@app.command()
def reconcile(
    target: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="The app whose kinds and effects are checked, as in tasks:app."),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="FOLDER", help="Without an app: check files beneath this folder."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only what finished since then: 2h, 7d, or 2026-01-31T12:00:00Z."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Compare what succeeded with the world and list what differs. Nothing is fixed. Exit 1 if anything differs.

    Files exist with the recorded hash, or are gone; effects verify; AWS resources are as configured.
    """
    screen = Screen(as_json)
    checked = found = 0
    with _app(target, root, url) as tenure, progress("reconciling", _total(tenure)) as advance:

        def tell(by: int) -> None:
            nonlocal checked
            checked += by
            advance(by)

        for one in tenure.effects.reconcile(since=_since(since, tenure.now()), progress=tell):
            _show(screen, one, is_first=not found)
            found += 1
    if as_json:
        screen.line(f"""{'{"discrepancies":[' if not found else ""}],"checked":{checked}}}""")
    screen.note(f"{checked:,} records were compared; {_in_words(found)}.")
    if found:
        raise typer.Exit(1)


def _show(screen: Screen, one: Discrepancy, *, is_first: bool) -> None:
    """One discrepancy, as soon as it is known."""
    if screen.as_json:
        screen.line(('{"discrepancies":[' if is_first else ",") + text.to_json(one))
    elif screen.is_terminal:
        screen.line(f"{one.sort:<12} {text.safe(one.subject)}")
        screen.line(f"{'':<12} job {one.job_id} ({text.safe(one.kind)}): expected {text.safe(one.expected)},")
        screen.line(f"{'':<12} found {text.safe(one.found)}")
    else:
        if is_first:
            screen.line("\t".join(COLUMNS))
        screen.line("\t".join(text.safe(str(getattr(one, name))) for name in COLUMNS))
    screen.flush()


@contextmanager
def _app(target: str | None, root: Path | None, url: str | None) -> Iterator[App]:
    """The user's app; or, with --root, one that knows nothing but files."""
    from tenure.effects import files

    if root is not None:
        if target is not None:
            raise ConfigError("Give an app or --root, not both: the app knows its own roots.")
        if not root.is_dir():  # asked before there is anything to compare, which a misspelt folder would look like
            raise ConfigError(f"There is no folder {str(root)!r}. Name the one that the files are beneath.")
        with opened(url) as found:
            yield found.use(files(root=root))
        return
    if target is None and not Path(f"{DEFAULT_TARGET.partition(':')[0]}.py").is_file():
        raise ConfigError(
            "What is to be compared? Name an app, as in `tenure reconcile tasks:app`, or give --root DIR."
        )
    with loaded(target, url, create=False) as found:
        if not found.registry.checkers and not found.registry.verifiers:
            raise ConfigError(
                "The app has no kinds or effects that know how to compare themselves with the world. Take them in with "
                "`app.use(files(root=…))` and the like."
            )
        yield found


def _total(tenure: App) -> int | None:
    """How many jobs there are to compare; unknown where effects are verified as well."""
    if tenure.registry.verifiers:
        return None
    kinds = {kind for checker in tenure.registry.checkers for kind in checker.kinds}
    return sum(count.jobs for count in tenure.queues.counts(state="succeeded") if count.kind in kinds)


def _since(given: str | None, now: datetime) -> datetime | None:
    if given is None:
        return None
    try:
        return now - timedelta(seconds=duration(given))
    except typer.BadParameter:
        pass
    try:
        return moment(given)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{given!r} is neither a duration, as 2h or 7d, nor a moment, as 2026-01-31T12:00:00Z."
        ) from None


def _in_words(found: int) -> str:
    return "nothing differs" if not found else "1 differs" if found == 1 else f"{found:,} differ"
