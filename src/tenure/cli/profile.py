"""`tenure profile`: the vocabularies that the database can speak."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Url, opened
from tenure.cli.screen import Facts, Grid, Screen, state
from tenure.errors import ConfigError, SchemaError, StoreUnavailable
from tenure.model.policy import Backoff

if TYPE_CHECKING:
    from tenure.model.profile import Profile

app = noun("profile", "List, show and install profiles: another queue's words over the same jobs.")

Sql = Annotated[
    str | None,
    typer.Option("--sql", metavar="ENGINE", help="Print what `install` runs on postgres or on sqlite."),
]
Name = Annotated[
    str, typer.Argument(help="A profile that comes with Tenure, or a .toml file of your own.", show_default=False)
]


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List profiles: those that come with Tenure, and what is installed in the database, if one is named."""
    from tenure.app import App

    installed: dict[str, Any] = {}
    now = None
    try:
        with opened(url) as tenure:
            installed = {row.name: row for row in tenure.profiles.installed()}
            now = tenure.now()
    except (ConfigError, StoreUnavailable, SchemaError):
        if url:  # a database that is named must be there; without one the list is of what comes with Tenure
            raise
    known = {one.name: one for one in App().profiles.known()}
    found = [_seen(name, known.get(name), installed.get(name)) for name in sorted(known | installed)]
    rows = [
        (
            one["name"],
            state("installed" if one["installed_at"] else "not installed"),
            one["title"],
            ", ".join(one["queues"]),
            ", ".join(view for view in one["shows"] if not view.startswith("fn_")),
        )
        for one in found
    ]
    columns = ("profile", "is", "title", "queues", "shows")
    Screen(as_json, now).show({"profiles": found}, Grid(columns, rows, wide="shows", drop=("queues", "title")))


@app.command("show")
def show(name: Name, sql: Sql = None, as_json: Json = False) -> None:
    """Show a profile: its words, how its queues behave, its gates, views and functions; or its SQL."""
    from tenure.app import App

    found = App().profiles.read(name)
    if sql is not None:
        Screen().line(App().profiles.script(name, sql))
        return
    policy = {field.name: getattr(found.policy, field.name) for field in fields(found.policy)}
    closed = [f"{found.name}.{gate}" for gate in found.closed_gates]
    answer = {
        "name": found.name,
        "title": found.title,
        "specification": found.specification,
        "queues": list(found.queues),
        "closed_gates": closed,
        "words": dict(found.words),
        "settings": dict(found.settings),
        "shows": list(found.shows),
        "policy": found.policy,
    }
    told = [
        ("profile", found.name),
        ("title", found.title),
        ("specification", found.specification),
        ("queues", ", ".join(found.queues)),
        ("closed at install", ", ".join(closed)),
        ("shows", ", ".join(found.shows)),
        *((f"{stage} is", word) for stage, word in found.words.items()),
        *((key, _told(value)) for key, value in policy.items() if key != "profile"),
        *found.settings.items(),
    ]
    Screen(as_json).show({"profile": answer}, Facts([(key, value) for key, value in told if value not in ("", None)]))


@app.command("install")
def install(name: Name, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Make a profile's views, functions, queues and closed gates in the database. Repeat it after an upgrade."""
    from tenure.app import App

    profile = App().profiles.read(name)
    with opened(url, create=True, actor=actor) as tenure:
        made = tenure.profiles.install(name)
    answer = {
        "name": profile.name,
        "is_new": made.is_new,
        "queues": list(made.queues),
        "adopted": list(made.adopted),
        "gates": list(made.gates),
    }
    rows = [
        ("profile", profile.name),
        ("was", "installed" if made.is_new else "brought up to date"),
        ("new queues", ", ".join(made.queues)),
        ("adopted queues", ", ".join(made.adopted)),
        ("closed gates", ", ".join(made.gates)),
        ("shows", ", ".join(_shown(profile, name, tenure.url))),
    ]
    Screen(as_json).show({"installed": answer}, Facts([(key, value) for key, value in rows if value]))


def _shown(profile: Profile, source: str, url: str) -> list[str]:
    """What the database has since: SQLite has views of flat names, and no functions."""
    from tenure.app import App

    if not url.startswith("sqlite"):
        return list(profile.shows)
    script = App().profiles.script(source, "sqlite")
    flat = [f"{profile.name}_{name}" for name in profile.shows]
    return [name for name in flat if f"VIEW {name}" in script or f"VIEW IF NOT EXISTS {name}" in script]


def _seen(name: str, known: Profile | None, installed: Any) -> dict[str, Any]:
    source: Any = installed or known
    return {
        "name": name,
        "title": source.title,
        "specification": None if known is None else known.specification,
        "queues": list(source.queues),
        "shows": list(source.shows),
        "installed_at": None if installed is None else installed.installed_at,
        "installed_by": None if installed is None else installed.actor,
    }


def _told(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, Backoff):
        return ", ".join(f"{field.name} {getattr(value, field.name)}" for field in fields(value))
    return value
