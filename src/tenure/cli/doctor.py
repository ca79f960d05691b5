"""`tenure doctor`: is the installation sound?"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from tenure.cli.group import verbs
from tenure.cli.moves import AppName
from tenure.cli.options import Json, Url, database_url, opened
from tenure.cli.screen import Facts, Grid, Screen, state
from tenure.errors import ConfigError, SchemaError, StoreUnavailable
from tenure.model.plural import counted
from tenure.observe.doctor import Check, diagnosis, examine

app = verbs()

Sandbox = Annotated[
    bool | None,
    typer.Option(
        "--sandbox/--no-sandbox",
        help="Say what the sandbox for agents does not bound, too; or try none of it.",
        show_default=False,
    ),
]


@app.command()
def doctor(
    app_name: AppName = None,
    url: Url = None,
    sandbox: Sandbox = None,
    as_json: Json = False,
) -> None:
    """Check the installation, and say how to fix what is wrong. Exit 1 if something is, 5 if there is no database."""
    checks = [Check("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    unreachable = False
    try:
        # Never migrates: a schema that is behind is one of the things to be found.
        with opened(url, migrate="never") as tenure:
            checks += examine(tenure.store, database_url(url))
        checks += _app(app_name, url)
    except StoreUnavailable as exc:
        unreachable = True
        checks.append(Check("database", "wrong", str(exc)))
    if sandbox is not False:
        checks += _sandbox(in_full=sandbox is True)
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


def _app(app_name: str | None, url: str | None) -> Iterator[Check]:
    """Whether the app of this folder can be loaded, and its policies are those of the database."""
    from tenure.cli.loading import default_target, loaded

    target = app_name or default_target()
    if target is None:
        return
    try:
        with loaded(target, database_url(url)) as tenure:
            found = tenure.policies.differences()
    except SchemaError:
        return
    except ConfigError as exc:
        yield Check("app", "wrong", str(exc).partition("\n")[0], f"tenure worker {target}  (shows the traceback)")
        return
    yield Check("app", "ok", f"{target} has {counted(len(tenure.registry), 'kind')}")
    for one in found:
        yield Check(
            "policy",
            "warn",
            f"queue {one.queue!r} has {one.setting}={one.in_database}, and the code says {one.in_code}",
            f"tenure apply {target}",
        )


def _sandbox(*, in_full: bool) -> Iterator[Check]:
    """What this machine offers to run coding agents in."""
    from tenure.sandbox.policy import not_bounded, offers

    offer = offers()
    if offer.layers:
        yield Check("sandbox", "ok", f"for agents: {', '.join(sorted(offer.layers))}")
    for layer, why in sorted(offer.missing.items()):
        yield Check("sandbox", "warn", f"no {layer}: {why}" if in_full else f"no {layer}; --sandbox says why")
    if in_full:
        for limit in not_bounded(offer):
            yield Check("sandbox", "ok", limit)
