"""`tenure stats`: the six questions of specification 004, each answered by the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import text
from tenure.cli.group import verbs
from tenure.cli.options import Json, Queues, Url, duration, opened
from tenure.cli.screen import Grid, Screen, state
from tenure.errors import UsageError
from tenure.model.plural import counted
from tenure.observe.stats import HOUR, Overview, overview

if TYPE_CHECKING:
    from tenure import Figures
    from tenure.cli.screen import Part

app = verbs()


@app.command()
def stats(
    window: Annotated[
        float,
        typer.Option(
            "--window", "-w", parser=duration, metavar="DURATION", help="How far to look back.", show_default="1h"
        ),
    ] = HOUR,
    queue: Queues = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Rows per question.")] = 20,
    minutes: Annotated[
        int,
        typer.Option(
            "--minutes",
            "-m",
            metavar="N",
            min=0,
            max=43_200,
            help="Also what was counted in each of the last N minutes.",
        ),
    ] = 0,
    since: Annotated[
        float | None,
        typer.Option(
            "--since", parser=duration, metavar="DURATION", help="Also the figures of this last stretch, as 1d."
        ),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="SPAN", help="With --since: minute, hour, day or total.")
    ] = "total",
    p50: Annotated[
        bool, typer.Option("--p50", help="With --since: the duration that half of the jobs did not exceed.")
    ] = False,
    p95: Annotated[
        bool, typer.Option("--p95", help="With --since: the duration that 95 of 100 jobs did not exceed.")
    ] = False,
    p99: Annotated[
        bool, typer.Option("--p99", help="With --since: the duration that 99 of 100 jobs did not exceed.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Answer what is outstanding, failed, stuck, slow, repeated, and what ran lately.

    In most queues a job counts as `running` once a worker has taken it, also while it waits there for a slot.
    """
    if by not in {"minute", "hour", "day", "total"}:
        raise UsageError(f"--by {by}: it is minute, hour, day or total.")
    shares = [share for share, is_asked in ((0.5, p50), (0.95, p95), (0.99, p99)) if is_asked]
    with opened(url) as tenure:
        found = overview(tenure.store, window_seconds=window, queues=queue or (), limit=limit, minutes=minutes)
        counted = [] if since is None else tenure.metrics(since, by=by, queues=queue, quantiles=shares)  # type: ignore[arg-type]
    screen = Screen(as_json, found.summary.at)
    told = {
        "outstanding": found.outstanding,
        "failures": found.failures,
        "summary": found.summary,
        "minutes": found.minutes,
        "metrics": counted,
    }
    parts = [] if since is None else [_metrics(counted, shares, text.seconds(since))]
    screen.show(told, *_parts(found), *(_minutes(found) if minutes else ()), *parts)
    if (minutes and not found.minutes) or (since is not None and not counted):
        screen.note(
            "No minute is counted here. A worker that leads counts once a minute, some two minutes after one is over."
        )


def _parts(found: Overview) -> list[Part]:
    summary = found.summary
    window = text.seconds(summary.window_seconds)
    lasted = [one for one in summary.ran if one.succeeded]
    return [
        Grid(
            ("kind", "queue", "state", "jobs", "oldest"),
            [(one.kind, one.queue, state(one.state), one.jobs, one.oldest_at) for one in found.outstanding],
            right=frozenset({"jobs"}),
            drop=("oldest",),
            title="1. What is outstanding?",
        ),
        Grid(
            ("letters", "kind", "queue", "last", "error"),
            [
                (one.letters, one.kind, one.queue, one.last_at, text.first_line(one.sample_error))
                for one in found.failures
            ],
            right=frozenset({"letters"}),
            wide="error",
            drop=("last", "queue"),
            title="2. What failed and why?",
        ),
        Grid(
            ("job", "kind", "queue", "worker", "lease_ran_out"),
            [(one.job_id, one.kind, one.queue, one.worker, one.lease_until) for one in summary.stuck],
            drop=("worker", "queue"),
            title=f"3. Is anything stuck? {counted(summary.stuck_count, 'job') if summary.stuck_count else 'No'}.",
        ),
        Grid(
            ("kind", "queue", "average", "p50", "p95", "longest", "waited_p50"),
            [
                (one.kind, one.queue, one.run_average, one.run_p50, one.run_p95, one.run_max, one.wait_p50)
                for one in lasted
            ],
            right=frozenset({"average", "p50", "p95", "longest", "waited_p50"}),
            drop=("waited_p50", "average", "queue"),
            title=f"4. How long do jobs take? (succeeded in the last {window})",
        ),
        Grid(
            ("key", "kind", "queue", "jobs", "still_to_do"),
            [(one.key, one.kind, one.queue, one.jobs, one.active) for one in summary.repeated],
            right=frozenset({"jobs", "still_to_do"}),
            drop=("queue",),
            title="5. Are there duplicates? (one key, several jobs)",
        ),
        Grid(
            ("kind", "queue", "succeeded", "failed", "dead", "cancelled", "last"),
            [
                (one.kind, one.queue, one.succeeded, one.failed, one.dead, one.cancelled, one.last_at)
                for one in summary.ran
            ],
            right=frozenset({"succeeded", "failed", "dead", "cancelled"}),
            drop=("last", "cancelled", "queue"),
            title=f"6. What ran in the last {window}?",
        ),
    ]


def _minutes(found: Overview) -> list[Part]:
    return [
        Grid(
            ("minute", "queue", "created", "completed", "failed", "error_rate", "latency", "heartbeat_delay"),
            [
                (
                    one.minute,
                    one.queue,
                    one.created,
                    one.completed,
                    one.failed,
                    None if one.error_rate is None else f"{one.error_rate:.1%}",
                    one.latency_average,
                    one.heartbeat_delay,
                )
                for one in found.minutes
            ],
            right=frozenset({"created", "completed", "failed", "error_rate", "latency", "heartbeat_delay"}),
            drop=("heartbeat_delay", "error_rate"),
            title="7. What happened minute by minute?",
        )
    ]


def _metrics(counted: list[Figures], shares: list[float], since: str) -> Part:
    columns = ["from", "queue", "created", "completed", "failed", "error_rate", "latency", "heartbeat_delay"]
    named = [(what, share) for share in shares for what in ("wait", "run", "total")]
    timed = [f"{what}_p{100 * share:g}" for what, share in named]
    rows = [
        (
            one.at,
            one.queue,
            one.created,
            one.completed,
            one.failed,
            None if one.error_rate is None else f"{one.error_rate:.1%}",
            one.latency_average,
            one.heartbeat_delay,
            *(getattr(one, what)[share] for what, share in named),
        )
        for one in counted
    ]
    return Grid(
        tuple(columns + timed),
        rows,
        right=frozenset({*columns[2:], *timed}),
        drop=("heartbeat_delay", "latency", "from"),
        title=f"8. What was counted in the last {since}?",
    )
