"""`tenure queues`: policies, and who may take work."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli import text
from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Reason, Url, opened
from tenure.cli.screen import Facts, Grid, Screen, state
from tenure.errors import UnknownQueue, UsageError, nearest
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.policy_words import read_settings

if TYPE_CHECKING:
    from tenure import QueueRow
    from tenure.app import App

app = noun("queues", "List, change, pause, resume and remove queues.")

Names = Annotated[list[str], typer.Argument(metavar="NAME", help="The queues.", show_default=False)]


@app.command("ls")
def ls(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Only these.", show_default=False)] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List queues with their policies and what waits in them."""
    with opened(url) as tenure:
        found = tenure.queues.all(names)
        if unknown := set(names or ()) - {one.name for one in found}:
            known = [one.name for one in tenure.queues.all()]
            name = min(unknown)
            raise UnknownQueue(f"There is no queue {name!r}.{nearest(name, known)}")
        counts = tenure.queues.counts(
            queue=[one.name for one in found], state=("queued", "leased", "running", "waiting")
        )
        screen = Screen(as_json, tenure.now())
    waiting: dict[str, int] = {}
    held: dict[str, int] = {}
    for one in counts:
        side = held if one.state in {"leased", "running"} else waiting
        side[one.queue] = side.get(one.queue, 0) + one.jobs
    rows = [
        (
            one.name,
            state("paused" if one.paused_at else "open"),
            waiting.get(one.name, 0),
            held.get(one.name, 0),
            one.policy.max_attempts,
            one.policy.lease_seconds,
            _backoff(one.policy.backoff),
            _limits(one.policy),
            one.policy.profile,
        )
        for one in found
    ]
    columns = ("queue", "is", "waiting", "held", "attempts", "lease", "backoff", "limits", "profile")
    screen.show(
        {"queues": found},
        Grid(columns, rows, right=frozenset({"waiting", "held", "attempts"}), drop=("profile", "limits", "backoff")),
    )


@app.command("backlog")
def backlog(
    name: Annotated[str, typer.Argument(help="The queue.", show_default=False)],
    cap: Annotated[int, typer.Option(metavar="N", help="Count no further.", min=1, max=1_000_000)] = 10_000,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Count the jobs of a queue that are ready or held. For an autoscaler."""
    with opened(url) as tenure:
        found = tenure.queues.backlog(name, cap=cap)
    Screen(as_json).show({"queue": name, "backlog": found}, Facts([("queue", name), ("backlog", found)]))


@app.command("set")
def set_(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The queue; created if it is not there.", show_default=False)
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SETTING=VALUE",
            help="As in max_attempts=5 lease_seconds=10m backoff.shape=linear events=true concurrency=none.",
            show_default=False,
        ),
    ] = None,
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Create a queue, or change its policy. Jobs already there keep what they were given."""
    with opened(url, create=True, actor=actor) as tenure:
        row = tenure.queues.set(name, reason=reason, **_settings(tenure, name, settings or []))
        screen = Screen(as_json, tenure.now())
    told = [(field.name, getattr(row.policy, field.name)) for field in fields(QueuePolicy)]
    screen.show({"queues": [row]}, Facts([("queue", row.name), *((key, _told(value)) for key, value in told)]))


@app.command("rm")
def rm(names: Names, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Remove queues that have no jobs, neither live nor ended. Exit 4 if one has."""
    with opened(url, actor=actor) as tenure:
        removed = tenure.queues.remove(names, reason=reason)
    Screen(as_json).show({"changed": removed}, Grid(("queue", "is"), [(name, state("removed")) for name in removed]))


@app.command("pause")
def pause(names: Names, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Let workers take nothing from queues. Running jobs go on, and so does enqueueing."""
    with opened(url, actor=actor) as tenure:
        changed = tenure.queues.pause(names, reason=reason)
        rows = tenure.queues.all(names)
    _show_paused(rows, changed, as_json)


@app.command("resume")
def resume(names: Names, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Let workers take from queues again."""
    with opened(url, actor=actor) as tenure:
        changed = tenure.queues.resume(names, reason=reason)
        rows = tenure.queues.all(names)
    _show_paused(rows, changed, as_json)


def _show_paused(rows: list[QueueRow], changed: list[str], as_json: bool) -> None:
    told = [(one.name, state("paused" if one.paused_at else "open"), one.name in changed) for one in rows]
    Screen(as_json).show({"changed": changed}, Grid(("queue", "is", "changed"), told))


def _settings(tenure: App, name: str, given: list[str]) -> dict[str, Any]:
    """Settings as the policy has them, from words. Raises: UsageError, InvalidArgument."""
    words: dict[str, str] = {}
    for one in given:
        key, equals, word = one.partition("=")
        if not equals:
            raise UsageError(f"{one!r} is no setting. Write name=value, as in max_attempts=5.")
        words[key] = word
    rows = tenure.queues.all(name) if words else []
    return read_settings(rows[0].policy if rows else QueuePolicy(), words)


def _backoff(backoff: Backoff) -> str:
    if backoff.shape == "none":
        return "none"
    grows = {"constant": "", "linear": " × n", "power": f" × n^{backoff.power:g}"}
    return f"{text.seconds(backoff.base_seconds)}{grows.get(backoff.shape, f' × {backoff.factor:g}^(n-1)')}"


def _limits(policy: QueuePolicy) -> str:
    told = [
        *([f"{policy.concurrency} at once"] if policy.concurrency else []),
        *([f"{policy.concurrency_per_key} per key"] if policy.concurrency_per_key else []),
    ]
    return ", ".join(told)


def _told(value: Any) -> Any:
    return _backoff(value) if isinstance(value, Backoff) else ", ".join(value) if isinstance(value, tuple) else value
