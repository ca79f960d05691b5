"""`tenure memos`: values that jobs worked out once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, After, Json, Limit, Url, Yes, json_value, opened, say_more
from tenure.cli.screen import Facts, Grid, Screen, confirm, state
from tenure.cli.text import size
from tenure.errors import UsageError

app = noun("memos", "List and forget values that jobs worked out once.")

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Only those of `ctx.memo(NAME, …)`.", show_default=False)
]
Kind = Annotated[
    str | None, typer.Option("--kind", "-k", metavar="KIND", help="Only results of this kind, declared with `memo=`.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this key.")]
Prefix = Annotated[str | None, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")]


@app.command("ls")
def ls(
    name: Name = None,
    kind: Kind = None,
    key: Key = None,
    prefix: Prefix = None,
    tenant: Tenant = None,
    limit: Limit = 50,
    after: After = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List memos by name and key. `open`: a job is working it out."""
    with opened(url) as tenure:
        page = tenure.steps.memos(name, kind=kind, key=key, prefix=prefix, tenant=tenant, limit=limit, after=after)
        screen = Screen(as_json, tenure.now())
    rows = [
        (
            one.kind or one.name,
            one.key[:12] if one.kind else one.key,
            one.tenant,
            state(one.state),
            size(one.size) if one.size else None,
            one.expires_at,
            one.preview,
        )
        for one in page
    ]
    columns = ("name", "key", "tenant", "state", "size", "until", "value")
    drop = ("tenant", "size", "until")
    screen.show(
        {"memos": page.items, "next": page.next},
        Grid(
            columns,
            rows,
            wide="value",
            right=frozenset({"size"}),
            drop=drop,
            empty="There is no such memo. `ctx.memo` and `@app.job(memo=…)` keep them.",
        ),
    )
    say_more(screen, page.next)


@app.command("forget")
def forget(
    name: Name = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Just this one, as --json lists it; may be repeated.")
    ] = None,
    kind: Kind = None,
    payload: Annotated[
        str | None, typer.Option("--payload", "-p", metavar="JSON", help="With --kind: the result of this payload.")
    ] = None,
    key: Key = None,
    prefix: Prefix = None,
    tenant: Tenant = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "forgotten on request",
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Forget memos, so that the next job works them out anew."""
    if name is None and kind is None and not ids:
        raise UsageError("Which memos? Give a NAME, --kind or --id. Nothing was forgotten.")
    chosen: dict[str, Any] = {} if payload is None else {"payload": json_value("payload", payload)}
    with opened(url, actor=actor) as tenure:
        if key is None and payload is None and not ids:
            keys = "all keys" if prefix is None else f"keys that begin with {prefix!r}"
            confirm(f"forget the memos of {name or f'kind {kind}'}, {keys}", yes=yes)
        gone = tenure.steps.forget_memos(
            name, ids=ids or (), kind=kind, key=key, prefix=prefix, tenant=tenant, reason=reason, **chosen
        )
    Screen(as_json).show({"forgotten": gone}, Facts([("forgotten", gone)]))
