"""`tenure memory`: what agents remember."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from tenure.cli import text
from tenure.cli.group import noun
from tenure.cli.options import Actor, Json, Kinds, Limit, Url, Yes, moment, opened
from tenure.cli.screen import Facts, Grid, Screen, confirm
from tenure.errors import UsageError

app = noun("memory", "Search, forget and reindex what agents remember.")

Agents = Annotated[
    list[str] | None, typer.Option("--agent", "-a", metavar="NAME", help="Only this agent's; may be repeated.")
]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")]
By = Annotated[str, typer.Option("--by", metavar="HOW", help="both, words or meaning.")]


@app.command("search")
def search(
    query: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for.", show_default=False)],
    agent: Agents = None,
    kind: Kinds = None,
    tenant: Tenant = None,
    by: By = "both",
    limit: Limit = 10,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Find memories by words, by meaning, or by both, best first.

    TENURE_EMBEDDER names the embedder, as the workers have it; wordllama:256 where the extra `memory` is installed,
    else words.
    """
    if by not in {"both", "words", "meaning"}:
        raise UsageError(f"--by {by}: it is both, words or meaning.")
    with opened(url) as tenure:
        hits = tenure.memory.search(query, agent=agent, kind=kind, tenant=tenant, limit=limit, by=by)  # type: ignore[arg-type]
        screen = Screen(as_json, tenure.now())
    rows = [
        (f"{one.score:.4f}", one.agent, one.kind, one.at, " ".join(one.by), text.first_line(one.text)) for one in hits
    ]
    screen.show(
        {"memories": hits},
        Grid(
            ("score", "agent", "kind", "when", "by", "text"),
            rows,
            wide="text",
            drop=("by", "kind", "when"),
            empty="Nothing like that is remembered. `tenure memory stats` says what is.",
        ),
    )


@app.command("forget")
def forget(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The memories.", show_default=False)] = None,
    agent: Agents = None,
    kind: Kinds = None,
    tenant: Tenant = None,
    before: Annotated[
        datetime | None,
        typer.Option("--before", parser=moment, metavar="TIME", help="Only what happened before this moment."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of it.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "forgotten on request",
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Remove memories: those named, or those for which all that is given holds. Jobs and agent events stay."""
    chosen = _told(agent, kind, tenant, before, everything)
    if not ids and not chosen:
        raise UsageError(
            "Which memories should it forget? Give ids, or --agent, --kind, --tenant or --before, or --all."
        )
    with opened(url, actor=actor) as tenure:
        if not ids:
            confirm(f"forget memories of {chosen}", yes=yes)
        gone = tenure.memory.forget(
            ids or (), agent=agent, kind=kind, tenant=tenant, before=before, everything=everything, reason=reason
        )
    Screen(as_json).show({"forgotten": gone}, Facts([("forgotten", gone)]))


@app.command("reindex")
def reindex(url: Url = None, as_json: Json = False) -> None:
    """Enqueue jobs that embed anew what another embedder embedded, and what is not remembered yet.

    Workers of an app with `app.use(tenure.embeddings())` do them; TENURE_EMBEDDER must be the same here and there.
    """
    with opened(url) as tenure:
        done = tenure.memory.reindex()
    facts = [("model", done.model), ("memories", done.memories), ("events", done.events), ("jobs", done.jobs)]
    Screen(as_json).show({"reindexed": done}, Facts(facts))


@app.command("stats")
def stats(url: Url = None, as_json: Json = False) -> None:
    """Say what is remembered, by agent and model."""
    with opened(url) as tenure:
        found = tenure.memory.stats()
        embedder = tenure.memory.embedder
        screen = Screen(as_json, tenure.now())
    rows = [(one.agent, one.model or "words", one.memories, one.oldest_at, one.newest_at) for one in found.counts]
    screen.show(
        {"stats": found, "embedder": embedder},
        Facts(
            [
                ("agent_events", found.events),
                ("not_remembered", found.unremembered),
                ("embedder", embedder),
                ("compares_vectors", "the server" if found.compares_vectors else "this process"),
            ]
        ),
        Grid(("agent", "model", "memories", "oldest", "newest"), rows, right=frozenset({"memories"})),
    )
    others = {name: number for name, number in found.models.items() if name != embedder}
    if others:
        screen.note(
            f"{sum(others.values()):,} memories were embedded by {', '.join(sorted(others))}, so they are found by "
            "words only. `tenure memory reindex` embeds them anew."
        )


def _told(
    agent: list[str] | None, kind: list[str] | None, tenant: str | None, before: datetime | None, everything: bool
) -> str:
    parts = [
        f"agent {', '.join(agent)}" if agent else "",
        f"kind {', '.join(kind)}" if kind else "",
        f"tenant {tenant}" if tenant else "",
        f"the time before {before.isoformat()}" if before else "",
        "everything" if everything else "",
    ]
    return " and ".join(part for part in parts if part)
