"""`tenure worker`: run the handlers of an app."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli.group import verbs
from tenure.cli.loading import loaded
from tenure.cli.options import Json, Kinds, duration
from tenure.cli.screen import Facts, Screen, colours_on
from tenure.errors import UsageError
from tenure.worker.config import CONCURRENCY, GRACE_SECONDS, POLL_SECONDS

if TYPE_CHECKING:
    from tenure.model.log_event import Emit

app = verbs()

Target = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="As in tasks:app, which is the default where there is a tasks.py."),
]
OwnUrl = Annotated[str | None, typer.Option("--url", metavar="URL", help="Another database than the app's own.")]
Reconcile = Annotated[bool, typer.Option("--reconcile", help="Compare the records with the world at the start.")]
LogFormat = Annotated[str, typer.Option("--log", metavar="FORMAT", help="human or json, on stderr.")]
LogLevel = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]


WeightedQueues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", metavar="NAME", help="NAME, or NAME=WEIGHT; may be repeated. The app's own if left out."
    ),
]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Handlers at once.")]
Processes = Annotated[int, typer.Option("--processes", "-P", metavar="N", min=1, help="So many such workers.")]
Strict = Annotated[bool, typer.Option("--strict", help="Serve queues in the order given.")]
Drain = Annotated[bool, typer.Option("--drain", help="End when no job is due.")]
Once = Annotated[bool, typer.Option("--once", help="Run one job, if one is due, and end.")]
OwnLease = Annotated[
    float | None, typer.Option("--lease", parser=duration, metavar="DURATION", help="Instead of the queues' own.")
]
Heartbeat = Annotated[
    float | None,
    typer.Option("--heartbeat", parser=duration, metavar="DURATION", help="A third of the lease if left out."),
]
Poll = Annotated[float, typer.Option("--poll", parser=duration, metavar="DURATION", help="Behind the wake-ups.")]
Grace = Annotated[float, typer.Option("--grace", parser=duration, metavar="DURATION", help="For handlers at a stop.")]
Prefetch = Annotated[str, typer.Option("--prefetch", metavar="N|auto", help="How many jobs may wait in it at most.")]
Artifacts = Annotated[Path | None, typer.Option("--artifacts", metavar="FOLDER", help="Folder for handlers' files.")]


@app.command()
def worker(
    target: Target = None,
    queue: WeightedQueues = None,
    kind: Kinds = None,
    concurrency: Concurrency = CONCURRENCY,
    processes: Processes = 1,
    strict: Strict = False,
    drain: Drain = False,
    once: Once = False,
    lease: OwnLease = None,
    heartbeat: Heartbeat = None,
    poll: Poll = POLL_SECONDS,
    grace: Grace = GRACE_SECONDS,
    prefetch: Prefetch = "auto",
    artifacts: Artifacts = None,
    reconcile: Reconcile = False,
    log: LogFormat = "human",
    log_level: LogLevel = "info",
    url: OwnUrl = None,
    as_json: Json = False,
) -> None:
    """Run the handlers of an app until SIGINT or SIGTERM; then finish what runs, or give it back."""
    from tenure.worker.supervisor import die_with_supervisor, needs_init

    emit = log_to_stderr("json" if as_json else log, log_level)
    if processes > 1 or needs_init():
        raise typer.Exit(_supervise(processes, grace, emit))
    die_with_supervisor()
    settings: dict[str, Any] = {
        "kinds": kind or None,
        "strict": strict,
        "drain": drain,
        "once": once,
        "lease_seconds": lease,
        "heartbeat_seconds": heartbeat,
        "poll_seconds": poll,
        "grace_seconds": grace,
        "prefetch": int(prefetch) if prefetch.isdecimal() else prefetch,
        "artifacts_dir": artifacts,
        "reconcile": reconcile,
    }
    with loaded(target, url) as tenure:
        stats = tenure.run_worker(_weights(queue), concurrency=concurrency, emit=emit, **settings)
    if as_json:
        Screen(as_json).show(stats)
    elif drain or once:
        Screen().show(
            stats,
            Facts([("completed", stats.completed), ("not_completed", stats.not_completed), ("lost", stats.lost)]),
        )


def log_to_stderr(log: str, level: str) -> Emit:
    """Where the worker's notices go. Raises: ConfigError."""
    from tenure.observe.log import LEVELS, HumanLog, emitter

    if log == "human" and level in LEVELS:
        return HumanLog(sys.stderr, LEVELS[level], colour=colours_on(sys.stderr))
    return emitter(log, level, sys.stderr)


def _supervise(processes: int, grace: float, emit: Emit) -> int:
    """Start this very command so many times, each as a single worker, and keep them running."""
    from tenure.worker.supervisor import Supervisor

    command = [sys.executable, "-m", "tenure.cli.main", *_without_processes(sys.argv[1:])]
    return Supervisor(command, processes, grace, emit, environment=dict(os.environ)).run()


def _without_processes(args: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for arg in args:
        if skip:
            skip = False
        elif arg in {"--processes", "-P"}:
            skip = True
        elif not arg.startswith(("--processes=", "-P")):
            kept.append(arg)
    return kept


def _weights(given: list[str] | None) -> list[str] | dict[str, int] | None:
    """Queues, with weights if any has one. Raises: UsageError."""
    if not given:
        return None
    pairs = [one.rpartition("=") if "=" in one else (one, "", "1") for one in given]
    for name, _, weight in pairs:
        if not (weight.isdecimal() and int(weight) >= 1):
            raise UsageError(f"--queue {name}={weight}: a weight is a whole number from 1 on.")
    if not any("=" in one for one in given):
        return given
    return {name: int(weight) for name, _, weight in pairs}
