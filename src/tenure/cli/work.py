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
from tenure.errors import UnknownQueue, UsageError, nearest
from tenure.model.plural import counted
from tenure.model.url import shown_url
from tenure.worker.config import CONCURRENCY, GRACE_SECONDS, POLL_SECONDS

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.model.log_event import Emit

app = verbs()

Target = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", help="The app, as tasks:app or tasks.py; that of ./tasks.py if left out."),
]
OwnUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="TENURE_URL",
        show_default=False,
        help="Another database than the app's own. Put a URL with a password into TENURE_URL: `ps` shows arguments.",
    ),
]
DeleteAfter = Annotated[
    str,
    typer.Option(
        "--delete-after",
        metavar="DURATION",
        help="Delete jobs that ended longer ago, once their queue's retention is over; `never` keeps them.",
    ),
]
Reconcile = Annotated[
    bool, typer.Option("--reconcile", help="At the start, compare what succeeded with files and services.")
]
LogFormat = Annotated[str, typer.Option("--log", metavar="FORMAT", help="human or json, on stderr.")]
LogLevel = Annotated[str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")]


WeightedQueues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", metavar="NAME", help="NAME, or NAME=WEIGHT; may be repeated. The app's own if left out."
    ),
]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Handlers at once.")]
Processes = Annotated[int, typer.Option("--processes", "-P", metavar="N", min=1, help="How many worker processes.")]
Strict = Annotated[bool, typer.Option("--strict", help="Empty the queues in the order given.")]
Drain = Annotated[bool, typer.Option("--drain", help="End when no job is due.")]
Once = Annotated[bool, typer.Option("--once", help="Run one job, if one is due, and end.")]
OwnLease = Annotated[
    float | None,
    typer.Option(
        "--lease",
        parser=duration,
        metavar="DURATION",
        help="How long a job is held between heartbeats; the queue's if left out.",
    ),
]
Heartbeat = Annotated[
    float | None,
    typer.Option(
        "--heartbeat",
        parser=duration,
        metavar="DURATION",
        help="How often leases are extended; a third of the lease if left out.",
    ),
]
Poll = Annotated[
    float,
    typer.Option(
        "--poll",
        parser=duration,
        metavar="DURATION",
        help="How often an idle worker looks for jobs, besides being woken.",
        show_default="1s",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        parser=duration,
        metavar="DURATION",
        help="How long handlers may go on after a stop.",
        show_default="20s",
    ),
]
Prefetch = Annotated[
    str, typer.Option("--prefetch", metavar="N|auto", help="How many jobs may wait inside the worker.")
]
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
    delete_after: DeleteAfter = "30d",
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
        raise typer.Exit(_supervise(processes, grace, emit, url))
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
        "delete_after_seconds": None if delete_after == "never" else duration(delete_after),
        "reconcile": reconcile,
    }
    with loaded(target, url) as tenure:
        show_logging(emit)
        _check_queues(tenure, queue)
        if log == "human" and not as_json:
            kinds = counted(len(tenure.registry), "kind")
            Screen().note(f"tenure worker: {shown_url(tenure.url)}, {kinds}; Ctrl-C stops it.")
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


def show_logging(emit: Emit) -> None:
    """Write what handlers log to the live log too, unless the app has set up logging by itself."""
    import logging

    from tenure.observe.log import RecordLog

    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(RecordLog(emit))
        root.setLevel(max(emit.level, logging.INFO))
        logging.getLogger("tenure.job").setLevel(emit.level)


def _supervise(processes: int, grace: float, emit: Emit, url: str | None) -> int:
    """Start this very command so many times, each as a single worker, and keep them running."""
    from tenure.worker.supervisor import Supervisor

    environment = dict(os.environ) if url is None else {**os.environ, "TENURE_URL": url}
    command = [sys.executable, "-P", "-m", "tenure.cli.main", *_for_one_process(sys.argv[1:])]
    return Supervisor(command, processes, grace, emit, environment=environment).run()


def _for_one_process(args: list[str]) -> list[str]:
    """The arguments of a child: without the number of processes, and without the URL, which may hold a password."""
    kept: list[str] = []
    skip = False
    for arg in args:
        if skip:
            skip = False
        elif arg in {"--processes", "-P", "--url"}:
            skip = True
        elif not arg.startswith(("--processes=", "-P", "--url=")):
            kept.append(arg)
    return kept


def _check_queues(tenure: App, given: list[str] | None) -> None:
    """Refuse a queue that neither the app declares nor the database has: a worker would create it and wait.

    Raises: UnknownQueue.
    """
    names = [one.rpartition("=")[0] if "=" in one else one for one in given or ()]
    declared = tenure.policies.declared
    unknown = [name for name in names if name not in declared]
    if unknown:
        known = declared | {row.name for row in tenure.queues.all()}
        for name in unknown:
            if name not in known:
                raise UnknownQueue(
                    f"There is no queue {name!r}.{nearest(name, known)} Create it with `tenure queues set {name}`, or "
                    "declare it in the app."
                )


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
