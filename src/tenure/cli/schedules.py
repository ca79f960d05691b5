"""`tenure schedules`: jobs that come by the clock."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli import text
from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Reason, Url, duration, json_value, opened
from tenure.cli.screen import Grid, Screen, state
from tenure.errors import NotFound, UsageError, nearest

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.cli.answers import Schedule

EMPTY = (
    'There is no schedule yet. An app declares one with `app.schedule("nightly", "0 3 * * *", report)`; its workers '
    "bring it to the database when they start."
)

app = noun("schedules", "List, change, run and pause schedules.")

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="The schedules.", show_default=False)]


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List schedules with their last and next tick."""
    with opened(url) as tenure:
        rows = tenure.schedules.all()
        now = tenure.now()
    _show_all(Screen(as_json, now), [_shown(row, now) for row in rows])


def _show_all(screen: Screen, shown: list[Schedule]) -> None:
    told = [
        (
            one.name,
            state("paused" if one.paused_at else "open"),
            one.cron or f"every {text.seconds(one.every_seconds or 0.0)}",
            one.tz,
            one.kind,
            one.queue,
            one.last_tick,
            one.next_tick,
        )
        for one in shown
    ]
    columns = ("schedule", "is", "when", "zone", "kind", "queue", "last", "next")
    screen.show({"schedules": shown}, Grid(columns, told, drop=("queue", "zone", "last"), empty=EMPTY))


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(help="The schedule.", show_default=False)],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Enqueue a schedule's job once, now. Its own ticks go on as before."""
    with opened(url) as tenure:
        _known(tenure, [name])
        made = tenure.schedules.run(name)
    Screen(as_json).show({"jobs": [made]}, Grid(("id", "answer"), [(made.id, "queued")]))


@app.command("edit")
def edit(
    name: Annotated[str, typer.Argument(help="The schedule.", show_default=False)],
    cron: Annotated[str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, as in '0 3 * * *'.")] = None,
    every: Annotated[
        float | None, typer.Option("--every", parser=duration, metavar="DURATION", help="Instead of --cron: 90s, 5m.")
    ] = None,
    zone: Annotated[str | None, typer.Option("--zone", metavar="ZONE", help="As in Europe/Vienna.")] = None,
    missed: Annotated[
        str | None, typer.Option("--missed", metavar="RULE", help="Ticks without a worker: skip, one or all.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Where its jobs wait.")] = None,
    payload: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="What its jobs carry; @FILE or - for stdin.")
    ] = None,
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change when a schedule happens, or what it enqueues. What is left out stays.

    An app that declares it puts its own version back when a worker starts, so change the code too.
    """
    given = {"cron": cron, "every": every, "tz": zone, "missed": missed, "queue": queue}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if payload is not None:
        changes["payload"] = json_value("payload", payload)
    if not changes:
        raise UsageError("Nothing to change was named. Give --cron, --every, --zone, --missed, --queue or --payload.")
    with opened(url, actor=actor) as tenure:
        _known(tenure, [name])
        row = tenure.schedules.change(name, reason=reason, **changes)
        now = tenure.now()
    _show_all(Screen(as_json, now), [_shown(row, now)])


@app.command("rm")
def rm(names: Names, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Remove schedules; the jobs they made stay. An app that still declares one brings it back when a worker starts."""
    with opened(url, actor=actor) as tenure:
        _known(tenure, names)
        changed = tenure.schedules.remove(names)
    _show(names, changed, "removed", as_json)


@app.command("pause")
def pause(names: Names, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Let schedules make no jobs until they are resumed."""
    with opened(url, actor=actor) as tenure:
        _known(tenure, names)
        changed = tenure.schedules.pause(names, reason=reason)
    _show(names, changed, "paused", as_json)


@app.command("resume")
def resume(names: Names, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Let schedules go on from now; ticks of the pause are not made up for."""
    with opened(url, actor=actor) as tenure:
        _known(tenure, names)
        changed = tenure.schedules.resume(names, reason=reason)
    _show(names, changed, "open", as_json)


def _show(names: list[str], changed: list[str], now_is: str, as_json: bool) -> None:
    rows = [(name, state(now_is), name in changed) for name in names]
    Screen(as_json).show({"changed": changed}, Grid(("schedule", "is", "changed"), rows))


def _known(tenure: App, names: list[str]) -> None:
    known = [row.name for row in tenure.schedules.all()]
    for name in names:
        if name not in known:
            raise NotFound(f"There is no schedule {name!r}.{nearest(name, known)} See `tenure schedules ls`.")


def _shown(row: Any, now: datetime) -> Schedule:
    from tenure.cli.answers import Schedule

    spec = json.loads(row.spec)
    return Schedule(
        name=row.name,
        cron=spec.get("cron"),
        every_seconds=spec.get("every_seconds"),
        tz=str(spec.get("tz", "UTC")),
        kind=str(spec.get("kind")),
        queue=str(spec.get("queue", "default")),
        missed=str(spec.get("missed", "one")),
        payload=json.loads(spec.get("payload", "{}")),
        last_tick=row.last_tick,
        next_tick=_next(row, now),
        paused_at=row.paused_at,
        paused_by=row.paused_by,
    )


def _next(row: Any, now: datetime) -> datetime | None:
    """The next tick, unless it is paused or a newer version wrote what cannot be read."""
    from tenure.model.schedule import Schedule

    if row.paused_at is not None:
        return None
    try:
        return Schedule.from_spec(row.name, row.spec).next_tick(now)
    except ValueError:
        return None
