"""`tenure doctor`: is the installation sound?"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import typer

from tenure.cli.group import verbs
from tenure.cli.options import Json, Url, database_url, opened
from tenure.cli.screen import Facts, Grid, Screen, state
from tenure.errors import StoreUnavailable
from tenure.observe.doctor import Check, diagnosis, examine

app = verbs()


@app.command()
def doctor(
    url: Url = None,
    sandbox: bool = typer.Option(True, help="Try what this machine offers to fence in agents."),
    as_json: Json = False,
) -> None:
    """Check the installation, and say how to fix what is wrong. Exit 1 if something is, 5 if there is no database."""
    checks = [Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    unreachable = False
    try:
        # Never migrates: a schema that is behind is one of the things to be found.
        with opened(url, migrate="never") as tenure:
            checks += examine(tenure.store, database_url(url))
    except StoreUnavailable as exc:
        unreachable = True
        checks.append(Check("database", "wrong", str(exc)))
    if sandbox:
        checks += _sandbox()
    found = diagnosis(checks)
    rows = [(check.name, state(check.status), check.says) for check in checks]
    fixes = [(check.name, check.fix) for check in checks if check.fix]
    screen = Screen(as_json)
    screen.show(
        found,
        Grid(("check", "is", "finding"), rows, wide="finding"),
        *([Facts(fixes, title="To fix")] if fixes else []),
    )
    sys.stdout.flush()
    if unreachable:
        raise typer.Exit(StoreUnavailable.exit_code)
    if found.status == "wrong":
        raise typer.Exit(1)


def _sandbox() -> Iterator[Check]:
    from tenure.sandbox.policy import not_bounded, offers

    offer = offers()
    if offer.layers:
        yield Check("sandbox", "ok", f"offers {', '.join(sorted(offer.layers))}")
    for layer, why in sorted(offer.missing.items()):
        yield Check("sandbox", "warn", f"no {layer}: {why}")
    for limit in not_bounded(offer):
        yield Check("sandbox", "ok", limit)
