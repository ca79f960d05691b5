"""`tenure budgets`: how much jobs may spend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Reason, Url, opened
from tenure.cli.screen import Grid, Screen, state
from tenure.errors import NotFound
from tenure.model.budget import show_amount

if TYPE_CHECKING:
    from tenure import Budget

EMPTY = "No budget is set, so jobs spend without a limit. Set one: tenure budgets set tenant:7 --usd 5.00 --per day"

app = noun("budgets", "List, set, raise and remove budgets: how much jobs may spend.")

Scope = Annotated[
    str,
    typer.Argument(help="all, queue:NAME, kind:NAME, tenant:NAME, workflow:ID or job:ID.", show_default=False),
]
Usd = Annotated[str | None, typer.Option("--usd", metavar="AMOUNT", help="Dollars, as in 5.00.")]
Tokens = Annotated[int | None, typer.Option("--tokens", metavar="N", help="Tokens.")]
Calls = Annotated[int | None, typer.Option("--calls", metavar="N", help="Reservations: one for each call.")]
Seconds = Annotated[str | None, typer.Option("--seconds", metavar="N", help="Seconds of work.")]
Per = Annotated[str, typer.Option("--per", metavar="WINDOW", help="hour, day, month (in UTC) or total.")]


@app.command("ls")
def ls(
    scopes: Annotated[list[str] | None, typer.Argument(metavar="SCOPE", help="Only these.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="How many at most.")] = 200,
    after: Annotated[str | None, typer.Option("--after", metavar="NAME", help="`next` of the page before.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List budgets with what is used, reserved and left, and how many jobs wait for them."""
    with opened(url) as tenure:
        found = tenure.budgets.all(scopes, limit=limit, after=after)
        screen = Screen(as_json, tenure.now())
    next_ = found[-1].name if len(found) == limit else None
    _show(screen, found, next=next_)


@app.command("set")
def set_(
    scope: Scope,
    usd: Usd = None,
    tokens: Tokens = None,
    calls: Calls = None,
    seconds: Seconds = None,
    per: Per = "total",
    on_empty: Annotated[
        str, typer.Option("--on-empty", metavar="HOW", help="What a job does that does not fit: park, fail, escalate.")
    ] = "park",
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Set what the jobs of a scope may spend. What is used already stays."""
    with opened(url, create=True, actor=actor) as tenure:
        found = tenure.budgets.set(
            scope, **_amounts(usd, tokens, calls, seconds), per=per, on_empty=on_empty, reason=reason
        )
        screen = Screen(as_json, tenure.now())
    _show(screen, found)


@app.command("raise")
def raise_(
    scope: Scope,
    usd: Usd = None,
    tokens: Tokens = None,
    calls: Calls = None,
    seconds: Seconds = None,
    per: Per = "total",
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add to the limits of a scope. Waiting jobs that fit now are woken. Exit 3 if there is no such budget."""
    with opened(url, actor=actor) as tenure:
        found = tenure.budgets.raise_by(scope, **_amounts(usd, tokens, calls, seconds), per=per, reason=reason)
        screen = Screen(as_json, tenure.now())
    _show(screen, found)


@app.command("rm")
def rm(
    scope: Scope,
    unit: Annotated[
        str | None, typer.Option("--unit", metavar="UNIT", help="Only of usd, tokens, calls or seconds.")
    ] = None,
    per: Annotated[str | None, typer.Option("--per", metavar="WINDOW", help="Only of this window.")] = None,
    reason: Reason = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove budgets of a scope, all of them unless --unit or --per chooses. Exit 3 if there is none."""
    with opened(url, actor=actor) as tenure:
        removed = tenure.budgets.remove(scope, unit=unit, per=per, reason=reason)
    if not removed:
        raise NotFound(f"There is no such budget of {scope}. `tenure budgets ls` lists budgets. Nothing was changed.")
    Screen(as_json).show({"changed": removed}, Grid(("budget", "is"), [(name, state("removed")) for name in removed]))


def _amounts(usd: str | None, tokens: int | None, calls: int | None, seconds: str | None) -> dict[str, Any]:
    return {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds}


def _show(screen: Screen, found: list[Budget], **more: Any) -> None:
    rows = [
        (
            one.scope,
            one.per,
            show_amount(one.unit, one.limit),
            show_amount(one.unit, one.used),
            show_amount(one.unit, one.reserved),
            show_amount(one.unit, one.left),
            one.waiting,
            one.on_empty,
            one.window_until,
        )
        for one in found
    ]
    columns = ("scope", "per", "limit", "used", "reserved", "left", "waiting", "when empty", "begins anew")
    numbers = frozenset({"limit", "used", "reserved", "left", "waiting"})
    grid = Grid(
        columns, rows, numbers, wide="scope", drop=("begins anew", "when empty", "reserved", "used"), empty=EMPTY
    )
    screen.show({"budgets": found, **more}, grid)
