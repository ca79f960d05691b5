"""`tenure token`: named keys by which programs come in over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Url, opened
from tenure.cli.screen import Grid, Screen

if TYPE_CHECKING:
    from tenure import ApiToken

app = noun("token", "Make, list and revoke tokens of the HTTP API.")

Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        "-s",
        metavar="SCOPE",
        help="read:meta, read:payload, enqueue:queue=Q,kind=K, worker:queue=Q, operate, approve, admin; "
        "mcp beside them: for MCP alone; group:NAME: answers approvals asked of this group; may be repeated.",
    ),
]


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="What it is for; it stands in the audit as the actor.")],
    scope: Scopes = None,
    days: Annotated[float, typer.Option("--days", metavar="N", min=0, max=366, help="How long it is valid.")] = 90,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is shown this once; the database keeps only its hash."""
    with opened(url, actor=actor) as tenure:
        made = tenure.access.new_token(name, scope or (), days=days)
        screen = Screen(as_json, tenure.now())
    if as_json:
        screen.show({"token": made.text, **_shown(made.token)}, Grid((), ()))
        return
    screen.note(f"Token {made.token.id} for {name!r}, until {made.token.expires_at:%Y-%m-%d}. It is not shown again:")
    print(made.text)


@app.command("ls")
def ls(url: Url = None, as_json: Json = False) -> None:
    """List tokens, newest first; never their secrets."""
    with opened(url) as tenure:
        found = tenure.access.tokens()
        screen = Screen(as_json, tenure.now())
    rows = [
        (one.id, one.name, " ".join(one.scopes), _standing(one), one.expires_at, one.last_used_at, one.created_by)
        for one in found
    ]
    screen.show(
        {"tokens": [_shown(one) for one in found]},
        Grid(
            ("id", "name", "scopes", "is", "expires", "used", "by"),
            rows,
            wide="scopes",
            drop=("by", "used"),
            empty="There is no token yet. Make one: tenure token new ci --scope read:meta --scope 'enqueue:*'",
        ),
    )


@app.command("revoke")
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids, as `tenure token ls` shows them.")],
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make tokens invalid at once, with the sessions that were opened with them."""
    with opened(url, actor=actor) as tenure:
        changed = tenure.access.revoke(ids[0] if len(ids) == 1 else ids)
        screen = Screen(as_json, tenure.now())
    screen.show({"changed": changed}, Grid(("revoked",), [(one,) for one in changed]))


def _standing(token: ApiToken) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "valid" if token.is_valid else "expired"


def _shown(token: ApiToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": list(token.scopes),
        "is_valid": token.is_valid,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
        "revoked_by": token.revoked_by,
    }
