"""`tenure apply`: the policies and schedules that an app's code states, brought over to the database."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli.group import verbs
from tenure.cli.loading import loaded
from tenure.cli.options import Json
from tenure.cli.screen import Facts, Grid, Screen
from tenure.cli.work import OwnUrl, Target

app = verbs()


@app.command()
def apply(
    target: Target = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if the database differs from the code.")
    ] = False,
    url: OwnUrl = None,
    as_json: Json = False,
) -> None:
    """Bring the policies and schedules of an app's code over to the database. Safe to repeat.

    A policy that is changed in code changes nothing by itself: operators may have set another on purpose. Jobs already
    there keep what they were given. Schedules that are not in the code are named, and stay.
    """
    with loaded(target, url, create=not check) as tenure:
        found = tenure.policies.differences() if check else tenure.policies.apply()
        strange = tenure.policies.strange_schedules()
    rows = [(one.queue, one.setting, str(one.in_database), str(one.in_code)) for one in found]
    screen = Screen(as_json)
    named = [Facts([("not in this code", ", ".join(strange))], title="Schedules")] if strange else []
    screen.show(
        {"differences": found, "applied": not check, "strange_schedules": strange},
        Grid(("queue", "setting", "database", "code"), rows, wide="code", empty="The database has what the code says."),
        *named,
    )
    if strange:
        screen.note("If they are of no other app, remove them with `tenure schedules rm NAME`.")
    if check and found:
        raise typer.Exit(1)
