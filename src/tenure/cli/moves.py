"""The moves of a job, one command each: enough for a worker written in shell."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli import text
from tenure.cli.group import verbs
from tenure.cli.ids import full_id
from tenure.cli.options import (
    JobIdArgument,
    Json,
    Kinds,
    Queues,
    TokenArgument,
    Url,
    default_actor,
    duration,
    json_value,
    moment,
    opened,
)
from tenure.cli.screen import Grid, Screen, batches, confirm, each_or_counts, progress, state
from tenure.errors import InvalidPayload, LeaseLost, UnknownKind, UsageError, nearest

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.cli.answers import Granted
    from tenure.model.job import Enqueued, Grant
    from tenure.model.outcome import Settled

app = verbs()

LINES_BATCH = 1000
NOTHING_DUE = 3

Lease = Annotated[
    float | None,
    typer.Option("--lease", parser=duration, metavar="DURATION", help="How long to hold it; the queue's if left out."),
]


Kind = Annotated[
    str, typer.Argument(metavar="KIND", help="The kind of job: the name of its handler.", show_default=False)
]
Payload = Annotated[str | None, typer.Argument(metavar="PAYLOAD", help="JSON, @FILE, or - for stdin.")]
Queue = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Where it waits; `default` if left out.")
]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="While a job holds this key, no second one is made.")
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", "-p", metavar="N", help="Higher ones go first, unless the queue says otherwise."),
]
Due = Annotated[
    float | None, typer.Option("--delay", parser=duration, metavar="DURATION", help="Due after this: 30s, 5m, 1h30m.")
]
RunAt = Annotated[
    Any, typer.Option("--run-at", parser=moment, metavar="MOMENT", help="Due at this moment, as 2026-01-31T12:00:00Z.")
]
MaxAttempts = Annotated[int | None, typer.Option("--max-attempts", metavar="N", min=1, help="Tries before it is dead.")]
Affinity = Annotated[str | None, typer.Option("--affinity", metavar="KEY", help="Only workers that ask for this key.")]
ConcurrencyKey = Annotated[
    str | None, typer.Option("--concurrency-key", metavar="KEY", help="Jobs that share it are limited together.")
]
LimiterKeys = Annotated[
    list[str] | None,
    typer.Option("--limiter", metavar="KEY", help="A service that jobs share; see `tenure limits`."),
]
OwnId = Annotated[
    str | None, typer.Option("--id", metavar="UUID", help="A UUID of your own: a repeat makes no second job.")
]
Lines = Annotated[bool, typer.Option("--lines", help="Read payloads from stdin, one JSON value a line.")]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        envvar="TENURE_APP",
        help="The app whose handlers check payloads and name queues; that of ./tasks.py if left out.",
    ),
]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Load no app: take any kind and payload, for workers elsewhere."),
]


@app.command()
def enqueue(
    kind: Kind,
    payload: Payload = None,
    queue: Queue = None,
    key: Key = None,
    priority: Priority = None,
    delay: Due = None,
    run_at: RunAt = None,
    max_attempts: MaxAttempts = None,
    affinity: Affinity = None,
    concurrency_key: ConcurrencyKey = None,
    limiter: LimiterKeys = None,
    job_id: OwnId = None,
    lines: Lines = False,
    app_name: AppName = None,
    raw: Raw = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Put a job, or a stream of jobs, in a queue. It is durable when this returns.

    The handler in the app checks the payload and names queue and attempts, as from Python. Options given here win.
    """
    options: dict[str, Any] = {
        "queue": queue,
        "key": key,
        "priority": priority,
        "delay": delay,
        "run_at": run_at,
        "max_attempts": max_attempts,
        "affinity_key": affinity,
        "concurrency_key": concurrency_key,
        "limits": limiter,
        "actor": default_actor(),  # who may not approve what the job asks
        "id": job_id,
    }
    if lines and (key or job_id):
        raise UsageError("--lines makes many jobs, and a --key or --id belongs to one.")
    with producer(app_name, url, raw) as tenure:
        _check_kind(tenure, kind)
        made = _enqueue_lines(tenure, kind, options) if lines else [_enqueue_one(tenure, kind, payload, options)]
    screen = Screen(as_json)
    rows = [(one.id, "duplicate" if one.duplicate else "queued") for one in made]
    if screen.as_json or screen.is_terminal:
        screen.show({"jobs": made}, each_or_counts(("id", "answer"), rows, screen.is_terminal))
    else:
        for one in made:
            screen.line(one.id)


@app.command()
def claim(
    queue: Queues = None,
    kind: Kinds = None,
    worker: Annotated[
        str | None,
        typer.Option("--worker", "-w", metavar="NAME", envvar="TENURE_WORKER", help="Your name; made up if left out."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="How many at most.")] = 1,
    lease: Lease = None,
    affinity: Annotated[
        list[str] | None, typer.Option("--affinity", metavar="KEY", help="Only jobs with this key.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            parser=duration,
            metavar="DURATION",
            help="Wait this long for a job to come; not at all if left out.",
            show_default=False,
        ),
    ] = 0.0,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Take due jobs under a lease: one line each with id, token, kind and payload. Exit 3 if none is due."""
    deadline = time.monotonic() + wait
    pause = 0.02
    with opened(url) as tenure:
        while True:
            grants = tenure.claim(
                worker=worker, queues=queue, kinds=kind, limit=limit, lease_seconds=lease, affinity=affinity
            )
            left = deadline - time.monotonic()
            if grants or left <= 0:
                break
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)
    screen = Screen(as_json)
    if as_json:
        screen.show({"grants": [_granted(grant) for grant in grants]})
    else:
        for grant in grants:
            screen.line(f"{grant.id}\t{grant.token}\t{text.safe(grant.kind)}\t{text.to_json(grant.payload)}")
    if not grants:
        screen.note("No job is due.")
        raise typer.Exit(NOTHING_DUE)


@app.command()
def heartbeat(
    job_id: JobIdArgument,
    token: TokenArgument,
    lease: Lease = None,
    progress_value: Annotated[
        str | None, typer.Option("--progress", metavar="JSON", help="Any JSON value, shown beside the job.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Extend the lease of a job you hold. Prints `ok`, `cancel_requested` or `overdue`; exit 4 if the lease is lost."""
    value = None if progress_value is None else json_value("progress", progress_value)
    with opened(url) as tenure:
        job_id = full_id(tenure, job_id)
        told = None if progress_value is None else {job_id: value}
        beat = tenure.heartbeat((job_id, token), lease_seconds=lease, progress=told)
        if beat.lost:
            tenure.get(job_id)  # an id that is not there was never held
    if beat.lost:
        raise LeaseLost(
            f"Job {job_id}: the lease with token {token} has run out or passed on. Stop working on it; "
            "what you would write is refused."
        )
    is_asked, is_overdue = bool(beat.cancel_requested), bool(beat.overdue)
    screen = Screen(as_json)
    if as_json:
        screen.show({"job_id": job_id, "cancel_requested": is_asked, "overdue": is_overdue})
    else:
        screen.line("cancel_requested" if is_asked else "overdue" if is_overdue else "ok")


@app.command()
def complete(
    job_id: JobIdArgument,
    token: TokenArgument,
    result: Annotated[str | None, typer.Option("--result", metavar="JSON", help="JSON, @FILE, or - for stdin.")] = None,
    summary: Annotated[str | None, typer.Option("--summary", metavar="TEXT", help="One line about the result.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """End a job you hold well. Exit 4 if the lease is lost: nothing was changed then."""
    options: dict[str, Any] = {} if result is None else {"result": json_value("result", result)}
    with opened(url) as tenure:
        done = tenure.complete((full_id(tenure, job_id), token), summary=summary, **options)
    _show_settled(done, as_json)


@app.command()
def fail(
    job_id: JobIdArgument,
    token: TokenArgument,
    error: Annotated[
        str, typer.Option("--error", "-e", metavar="TEXT", help="What went wrong; - reads it from stdin.")
    ],
    retry_after: Annotated[
        float | None,
        typer.Option("--retry-after", parser=duration, metavar="DURATION", help="Try again after this."),
    ] = None,
    permanent: Annotated[bool, typer.Option("--permanent", help="It can never succeed: failed at once.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """End an attempt badly: it is retried, or dead when none are left."""
    said = sys.stdin.read() if error == "-" else error
    if permanent and retry_after is not None:
        raise UsageError("--permanent and --retry-after exclude each other.")
    with opened(url) as tenure:
        job_id = full_id(tenure, job_id)
        if permanent:
            done = tenure.reject((job_id, token), said)
        else:
            done = tenure.fail((job_id, token), said, retry_after=retry_after)
    _show_settled(done, as_json)


@app.command()
def release(
    job_id: JobIdArgument,
    token: TokenArgument,
    delay: Annotated[
        float,
        typer.Option(
            "--delay",
            parser=duration,
            metavar="DURATION",
            help="Due after this; at once if left out.",
            show_default=False,
        ),
    ] = 0.0,
    reason: Annotated[str | None, typer.Option("--reason", "-r", metavar="TEXT", help="Why.")] = None,
    limiter: Annotated[
        str | None,
        typer.Option(
            "--limiter", metavar="KEY", help="A service refused: hold back all jobs with this key for --delay."
        ),
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Give a job back unspent: its attempt is refunded."""
    with opened(url) as tenure:
        done = tenure.release((full_id(tenure, job_id), token), delay=delay, reason=reason, limiter=limiter)
    _show_settled(done, as_json)


def _granted(grant: Grant) -> Granted:
    from tenure.cli.answers import Granted

    return Granted(
        id=grant.id,
        token=grant.token,
        queue=grant.queue,
        kind=grant.kind,
        payload=grant.payload,
        attempt=grant.attempt,
        max_attempts=grant.max_attempts,
        crashes=grant.crashes,
        priority=grant.priority,
        worker=grant.worker,
        lease_until=grant.lease_until,
        is_started=grant.started,
    )


def producer(app_name: str | None, url: str | None, raw: bool, *, create: bool = True) -> Any:
    """The user's own app, which checks payloads and knows queues, or a bare one. Found as `tenure worker` finds it."""
    from tenure.cli.loading import default_target, loaded

    target = None if raw else app_name or default_target()
    return opened(url, create=create) if target is None else loaded(target, url)


def _check_kind(tenure: App, kind: str) -> None:
    """Ask before a kind is enqueued that the app has no handler for, or insist on --raw where there is no terminal.

    Raises: UnknownKind; SystemExit, if the answer is no.
    """
    if not tenure.registry or kind in tenure.registry:
        return
    missing = f"The app has no handler for kind {kind!r}.{nearest(kind, tenure.registry)}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UnknownKind(f"{missing} Use --raw for a kind that a worker elsewhere handles. Nothing was enqueued.")
    Screen().note(missing)
    confirm(f"enqueue a job of kind {kind}", yes=False)


def _enqueue_one(tenure: App, kind: str, payload: str | None, options: dict[str, Any]) -> Enqueued:
    if payload is not None:
        return tenure.enqueue(kind, json_value("payload", payload), **options)
    try:
        return tenure.enqueue(kind, **options)
    except InvalidPayload as exc:
        raise InvalidPayload(f"{exc} No payload was given. Name it after the kind, as JSON.") from exc


def _enqueue_lines(tenure: App, kind: str, options: dict[str, Any]) -> list[Enqueued]:
    made: list[Enqueued] = []
    with progress("enqueueing", None) as advance:
        for batch in batches(_payload_lines(), LINES_BATCH):
            made += tenure.enqueue_many([tenure.new_job(kind, payload, **options) for payload in batch])
            advance(len(batch))
    return made


def _payload_lines() -> Iterator[Any]:
    for number, line in enumerate(sys.stdin, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as exc:
                raise InvalidPayload(
                    f"Line {number} of stdin is not JSON: {exc}. Lines before this batch were enqueued."
                ) from exc


def _show_settled(done: Settled, as_json: bool) -> None:
    rows = [(done.job_id, state(done.state or "lost"))]
    Screen(as_json).show({"jobs": [done]}, Grid(("id", "state"), rows))
