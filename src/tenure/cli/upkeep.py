"""`tenure migrate`, `prune` and `version`."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.group import verbs
from tenure.cli.options import Json, Url, Yes, database_url, duration, opened
from tenure.cli.screen import Facts, Grid, Screen, confirm, progress
from tenure.errors import SchemaBehind
from tenure.model.url import shown_url

if TYPE_CHECKING:
    from tenure import Pruned

app = verbs()

BATCH = 1000


@app.command()
def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL that is missing instead of running it.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 6 if the schema is behind.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Bring the database's schema up to this version. Safe to repeat, and while workers run."""
    screen = Screen(as_json)
    with opened(url, migrate="never") as tenure:
        if sql:
            screen.line(tenure.store.migration_sql())
            return
        if check:
            from tenure.observe.stats import schema_versions

            found = _pending(*schema_versions(tenure.store))
            screen.show({"applied": [], "schema_version": found}, Facts([("schema_version", found)]))
            return
        applied = tenure.migrate()
        version = tenure.store.schema_version()
    rows = [(name,) for name in applied]
    screen.show({"applied": applied, "schema_version": version}, Grid(("applied",), rows))
    if not applied:
        screen.note(f"The schema of {shown_url(database_url(url))} is up to date: version {version}.")


OlderThan = Annotated[
    float | None,
    typer.Option("--older-than", parser=duration, metavar="DURATION", help="Instead of each queue's own retention."),
]
DeleteAfter = Annotated[
    float | None,
    typer.Option(
        "--delete-after",
        parser=duration,
        metavar="DURATION",
        help="Delete rows that ended longer ago than this, with all that belongs to them.",
    ),
]
WorkersAfter = Annotated[
    float,
    typer.Option(
        "--workers-after",
        parser=duration,
        metavar="DURATION",
        help="Forget workers not seen for this long.",
        show_default="1d",
    ),
]
MetricsAfter = Annotated[
    float,
    typer.Option(
        "--metrics-after",
        parser=duration,
        metavar="DURATION",
        help="Forget counted minutes older than this.",
        show_default="30d",
    ),
]


@app.command()
def prune(
    older_than: OlderThan = None,
    delete_after: DeleteAfter = None,
    workers_after: WorkersAfter = 86_400.0,
    metrics_after: MetricsAfter = 2_592_000.0,
    yes: Yes = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Clean up what ended long ago: payloads and results go, rows and dead letters stay (but: --delete-after).

    Workers do so by themselves: payloads and results after each queue's `retain_seconds` (7 days), rows after 30 days.
    """
    from tenure import Pruned
    from tenure.observe.stats import prunable

    total = Pruned(0, 0, 0, 0, more=False)
    screen = Screen(as_json)
    with opened(url) as tenure:
        # Only what was cleaned is deleted: to delete rows that their queue still retains, clean them first.
        terms: dict[str, Any] = {
            "older_than": delete_after if older_than is None else older_than,
            "delete_after": delete_after,
            "worker_after": workers_after,
            "metric_after": metrics_after,
        }
        found = prunable(tenure.store, **terms)
        if found.cleaned or found.deleted or found.workers or found.metrics or found.memories:
            confirm(
                f"clean {found.cleaned:,} jobs (payload, result and error go), delete "
                f"{found.deleted:,} jobs for good, and forget "
                f"{found.workers:,} workers, {found.metrics:,} counted minutes and {found.memories:,} memories",
                yes=yes,
            )
            with progress("pruning", found.cleaned + found.deleted) as advance:
                more = True
                while more:
                    step = tenure.prune(limit=BATCH, **terms)
                    total = _plus(total, step)
                    advance(step.cleaned + step.deleted)
                    more = step.more
    names = ("cleaned", "deleted", "events", "workers", "metrics", "memories")
    screen.show({"pruned": total}, Facts([(name, getattr(total, name)) for name in names]))


@app.command()
def version(as_json: Json = False) -> None:
    """Say which version this is."""
    import tenure

    screen = Screen(as_json)
    screen.show(
        {"version": tenure.__version__, "python": platform.python_version()},
        Facts([("tenure", tenure.__version__), ("python", platform.python_version())]),
    )


def _pending(has: int, wants: int) -> int:
    if has < wants:
        raise SchemaBehind(
            f"The schema is version {has}, and this Tenure wants {wants}. Run `tenure migrate` when it suits you; "
            "workers of the version before go on meanwhile."
        )
    return has


def _plus(one: Pruned, other: Pruned) -> Pruned:
    return type(one)(
        one.cleaned + other.cleaned,
        one.deleted + other.deleted,
        one.events + other.events,
        one.workers + other.workers,
        more=False,
        metrics=one.metrics + other.metrics,
        memories=one.memories + other.memories,
    )
