"""`tenure limits`: services outside that many jobs share, their rates, and blocks after a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Limit, Reason, Url, duration, opened
from tenure.cli.screen import Grid, Screen, state
from tenure.errors import NotFound, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from tenure import Limiter

EMPTY = "There is no limiter yet. A handler's `@app.job(limits=[…])` uses one; `tenure limits set KEY` gives it rates."

app = noun("limits", "List, set, block and clear the limiters of services that jobs share.")

Key = Annotated[str, typer.Argument(help="The limiter's key, as jobs carry it.", show_default=False)]
PerMinute = Annotated[float | None, typer.Option("--per-minute", metavar="N", help="Jobs that may start in a minute.")]
TokensPerMinute = Annotated[
    float | None, typer.Option("--tokens-per-minute", metavar="N", help="Tokens that jobs may use in a minute.")
]
TokensPerJob = Annotated[
    float | None, typer.Option("--tokens-per-job", metavar="N", help="Reserved for a job until jobs report.")
]


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List limiters that have rates or were blocked."""
    with opened(url) as tenure:
        found = tenure.limits.all()
        screen = Screen(as_json, tenure.now())
        now = tenure.now()
    _show(screen, found, now)


@app.command("waiting")
def waiting(limit: Limit = 50, url: Url = None, as_json: Json = False) -> None:
    """List due jobs that carry limiters: how many, since when, and when their keys let the next one start."""
    with opened(url) as tenure:
        found = tenure.limits.waiting(limit=limit)
        opens = {one.key: one.opens_at for one in tenure.limits.all()}
        screen = Screen(as_json, tenure.now())
    rows = [
        (
            one.limiter,
            one.queue,
            one.jobs,
            one.oldest_at,
            max((at for key in one.limiter.split(",") if (at := opens.get(key)) is not None), default=None),
            one.first[0],
        )
        for one in found
    ]
    columns = ("limiter", "queue", "jobs", "since", "opens", "next job")
    none = "No due job carries a limiter."
    grid = Grid(columns, rows, right=frozenset({"jobs"}), drop=("next job", "since"), empty=none)
    screen.show({"waiting": found}, grid)


@app.command("set")
def set_(
    key: Key,
    per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    tokens_per_job: TokensPerJob = None,
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Set the rates of a key. One that is left out is not limited."""
    if per_minute is None and tokens_per_minute is None:
        raise UsageError("Give --per-minute or --tokens-per-minute, or both. `tenure limits rm` removes a limiter.")
    with opened(url, actor=actor) as tenure:
        found = tenure.limits.set(
            key,
            per_minute=per_minute,
            tokens_per_minute=tokens_per_minute,
            tokens_per_job=tokens_per_job,
            reason=reason,
        )
        now = tenure.now()
    _show(Screen(as_json, now), [found], now)


@app.command("block")
def block(
    key: Key,
    seconds: Annotated[float, typer.Argument(parser=duration, metavar="DURATION", help="Up to 1d.")],
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Let no job that carries the key start for a while, as a refusal by the service does."""
    with opened(url, actor=actor) as tenure:
        found = tenure.limits.block(key, seconds, reason=reason)
        now = tenure.now()
    _show(Screen(as_json, now), [found], now)


@app.command("clear")
def clear(key: Key, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """End a block and the slow reopening behind it. Rates stay."""
    with opened(url, actor=actor) as tenure:
        found = tenure.limits.clear(key, reason=reason)
        now = tenure.now()
    _show(Screen(as_json, now), [found], now)


@app.command("rm")
def rm(key: Key, reason: Reason = None, actor: Actor = None, url: Url = None, as_json: Json = False) -> None:
    """Forget a key with its rates and its block; jobs that carry it are not held back."""
    with opened(url, actor=actor) as tenure:
        if not tenure.limits.remove(key, reason=reason):
            raise NotFound(f"There is no limiter {key!r}, so nothing was removed. See `tenure limits ls`.")
    Screen(as_json).show({"changed": [key]}, Grid(("limiter", "is"), [(key, "removed")]))


def _show(screen: Screen, limiters: list[Limiter], now: datetime) -> None:
    rows = [
        (
            one.key,
            state(_stands(one, now)),
            one.opens_at,
            _count(one.per_minute),
            _count(one.tokens_per_minute),
            one.strikes or None,
            one.reason,
        )
        for one in limiters
    ]
    columns = ("limiter", "is", "opens", "per minute", "tokens per minute", "refusals", "last said")
    grid = Grid(columns, rows, wide="limiter", drop=("last said", "refusals"), empty=EMPTY)
    screen.show({"limiters": limiters}, grid)


def _count(rate: float | None) -> int | str | None:
    """A rate is a number of things, and not of seconds as other floats are."""
    return rate if rate is None else int(rate) if rate.is_integer() else f"{rate:g}"


def _stands(limiter: Limiter, now: datetime) -> str:
    if limiter.blocked_until is not None and limiter.blocked_until > now:
        return "blocked"
    if limiter.strikes:
        return "reopening"
    return "limited" if limiter.room == 0 else "open"
