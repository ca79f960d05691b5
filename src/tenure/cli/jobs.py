"""`tenure jobs`: what is there, why it waits, and what to do about it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli import text
from tenure.cli.group import noun
from tenure.cli.ids import full_id, full_ids, full_workflow_id, short_ids
from tenure.cli.job_parts import job_parts, says
from tenure.cli.moves import AppName, Priority, Raw, producer
from tenure.cli.options import (
    Actor,
    After,
    JobIdArgument,
    Json,
    Kinds,
    Limit,
    Queues,
    Url,
    Yes,
    default_actor,
    duration,
    json_value,
    opened,
    say_more,
    say_unknown_kinds,
    say_unknown_queues,
)
from tenure.cli.screen import (
    Cell,
    Facts,
    Grid,
    Screen,
    batches,
    confirm,
    each_or_counts,
    progress,
    state,
)
from tenure.errors import UsageError
from tenure.model.budget import parts_of, raise_command, shown_name
from tenure.model.frozen import frozen
from tenure.model.state import ACTIVE, TERMINAL, State

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.model.stream import Chunk

app = noun("jobs", "List, show, explain, cancel, revive, edit and await jobs.")

BATCH = 500
REVIVABLE = (State.DEAD, State.FAILED, State.CANCELLED)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The jobs' ids.", show_default=False)]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        "-s",
        metavar="STATE",
        help="Only this state; may be repeated.",
        autocompletion=lambda: [*State, "retry_waiting", "cleaned"],
    ),
]


@app.command("ls")
def ls(
    states: States = None,
    queue: Queues = None,
    kind: Kinds = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only with this idempotency key.")] = None,
    worker: Annotated[str | None, typer.Option("--worker", metavar="NAME", help="Only held by this worker.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="ID", help="Only of this workflow.")] = None,
    parent: Annotated[str | None, typer.Option("--parent", metavar="ID", help="Only children of this job.")] = None,
    limit: Limit = 50,
    after: After = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    with opened(url) as tenure:
        page = tenure.jobs(
            state=states,
            queue=queue,
            kind=kind,
            key=key,
            worker=worker,
            workflow_id=None if workflow is None else full_workflow_id(tenure, workflow),
            parent_id=None if parent is None else full_id(tenure, parent),
            limit=limit,
            after=after,
        )
        screen = Screen(as_json, tenure.now())
        if not page.items:
            say_unknown_queues(tenure, screen, queue)
            say_unknown_kinds(tenure, screen, kind)
    is_all = not any((states, queue, kind, key, worker, workflow, parent, after))
    ids: list[str] = [job.id for job in page.items]
    rows = [
        (
            shown_id,
            state(job.shown_state),
            job.kind,
            job.queue,
            f"{job.attempt}/{job.max_attempts}",
            job.created_at,
            says(job),
        )
        for shown_id, job in zip(short_ids(ids) if screen.is_narrow else ids, page.items, strict=True)
    ]
    columns = ("id", "state", "kind", "queue", "attempt", "created", "says")
    screen.show(
        {"jobs": page.items, "next": page.next},
        Grid(
            columns,
            rows,
            wide="says",
            drop=("queue", "attempt", "created", "says"),
            empty="There is no job yet. Put one in: tenure enqueue KIND PAYLOAD" if is_all else None,
        ),
    )
    say_more(screen, page.next)


@app.command("show")
def show(job_id: JobIdArgument, url: Url = None, as_json: Json = False) -> None:
    """Show everything about one job: its payload, its attempts, its events."""
    with opened(url) as tenure:
        job_id = full_id(tenure, job_id)
        job = tenure.get(job_id)
        attempts = tenure.attempts(job_id)
        events = tenure.events(job_id=job_id, limit=200)
        letters = tenure.dead_letters.all(job_id=job_id, limit=20).items
        effects = tenure.effects.all(job_id=job_id, limit=100).items
        steps = tenure.steps.all(job_id) if job.step_token is not None else []
        has_asked = any(step.kind == "approval" for step in steps)
        asked = tenure.approvals.all(job_id=job_id, state=None, limit=100).items if has_asked else []
        screen = Screen(as_json, tenure.now())
    screen.show(
        {
            "job": job,
            "attempts": attempts,
            "dead_letters": letters,
            "effects": effects,
            "events": events,
            "steps": steps,
            "approvals": asked,
        },
        *job_parts(job, attempts, letters, effects, events, steps, asked),
    )
    if (job.waiting_for or "").startswith("budget:"):
        scope, unit, per = parts_of(str(job.waiting_for))
        command = raise_command(scope, unit, per)
        screen.note(f"It waits for the budget {shown_name(scope, unit, per)}. Raise it with `{command}`.")


@app.command("explain")
def explain(job_id: JobIdArgument, url: Url = None, as_json: Json = False) -> None:
    """Say why a job is not running: what it waits for, and the command that helps."""
    from tenure.observe.explain import explain as why

    with opened(url) as tenure:
        found = why(tenure.store, tenure.get(full_id(tenure, job_id)).id)
        screen = Screen(as_json, found.at)
    rows = [(Cell(reason.code, "bold" if reason.blocks else "dim"), reason.sentence) for reason in found.reasons]
    fixes = [(f"fix_{number}", reason.fix) for number, reason in enumerate(found.reasons, 1) if reason.fix]
    screen.show(
        found,
        Facts([("job", found.job_id), ("kind", found.kind), ("queue", found.queue), ("state", state(found.state))]),
        Grid(("why", "in_words"), rows, wide="in_words"),
        *([Facts(fixes)] if fixes else []),
    )


@app.command("logs")
def logs(
    job_id: JobIdArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print what a job's handler logged, and its events; with --json one object a line."""
    from tenure.cli.tail import EventLines
    from tenure.observe.follow import Follower

    with opened(url) as tenure:
        job_id = tenure.get(full_id(tenure, job_id)).id
        screen = Screen(as_json)
        lines = EventLines(screen)
        follower = Follower(tenure.store, after=0, job_id=job_id)
        is_silent = True
        while True:
            ended = tenure.get(job_id).state in TERMINAL
            found = follower.poll()
            is_silent = is_silent and not found.events
            lines.print(found.events)
            if found.more:
                continue
            if ended or not follow:
                if is_silent:
                    screen.note(
                        "Nothing is logged for this job. Handlers log with `ctx.logger`; a queue writes down what "
                        "becomes of its jobs after `tenure queues set NAME events=true`."
                    )
                return
            time.sleep(0.25)


@app.command("follow")
def follow(
    job_id: JobIdArgument,
    stream: Annotated[str, typer.Option("--stream", metavar="NAME", help="Which of the job's streams.")] = "output",
    after: Annotated[int, typer.Option("--after", metavar="OFFSET", min=0, help="Only what is behind it.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Print what is there and end.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print what a job writes to a stream, until the job ends; with --json one object a line."""
    with opened(url) as tenure:
        job_id = full_id(tenure, job_id)
        screen = Screen(as_json)
        is_silent = True
        while True:
            page = tenure.streams.read(job_id, stream, after=after, wait=0.0 if once else 20.0)
            for chunk in page.chunks:
                is_silent = False
                after = chunk.offset
                _print_chunk(screen, chunk)
            screen.flush()
            if page.is_ended or (once and not page.chunks):
                break
        if is_silent:
            _say_other_streams(tenure, job_id, stream, screen)


def _print_chunk(screen: Screen, chunk: Chunk) -> None:
    if screen.as_json:
        screen.line(text.to_json(chunk))
    elif chunk.kind == "reset":
        screen.note("--- another attempt begins; what stands above is void ---")
    elif chunk.kind == "truncated":
        screen.note("--- truncated: the job has given out as much as is kept ---")
    else:
        screen.put(text.safe_piece(chunk.text))


def _say_other_streams(tenure: App, job_id: str, stream: str, screen: Screen) -> None:
    names = [one.name for one in tenure.streams.names(job_id)]
    there = f"It has {', '.join(map(text.safe, names))}." if names else "Handlers write with `ctx.stream().write(…)`."
    screen.note(f"This job has written nothing to the stream {stream!r}. {there}")


@app.command("wait")
def wait(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The jobs' ids.", show_default=False)],
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", parser=duration, metavar="DURATION", help="Give up after this.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Wait until jobs have ended. Exit 0 if all succeeded, 1 if one did not, 124 if time was up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = 0.02
    with opened(url) as tenure:
        ids = full_ids(tenure, ids)
        for job_id in ids:
            tenure.get(job_id)  # an id that is not there is an error, not a wait
        while True:
            found = [job for job in tenure.get_many(ids) if job is not None]
            pending = [job for job in found if job.state not in TERMINAL]
            is_late = deadline is not None and time.monotonic() >= deadline
            if not pending or is_late:
                break
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            time.sleep(max(left, 0.0))
            pause = min(pause * 1.5, 0.5)
        screen = Screen(as_json, tenure.now())
    rows = [(job.id, state(job.shown_state), job.kind, says(job)) for job in found]
    screen.show({"jobs": found, "next": None}, Grid(("id", "state", "kind", "says"), rows, wide="says"))
    if pending:
        screen.note(f"Time was up after {text.seconds(timeout or 0)} with {len(pending)} of {len(found)} not ended.")
        raise typer.Exit(124)
    if any(job.state is not State.SUCCEEDED for job in found):
        raise typer.Exit(1)


@app.command("cancel")
def cancel(
    ids: Ids = None,
    queue: Queues = None,
    kind: Kinds = None,
    states: States = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "cancelled by hand",
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Cancel jobs by id, or all that match. Held ones are asked to stop by their worker."""
    with opened(url, actor=actor) as tenure:
        if ids and len(ids) == 1 and not (queue or kind or states):
            done = [tenure.cancel(full_id(tenure, ids[0]), reason=reason)]
        else:
            choice = _choose(tenure, ids, queue, kind, states, sorted(ACTIVE), "cancel", yes)
            done = []
            with progress("cancelling", choice.count) as advance:
                for batch in choice.batches:
                    done += tenure.cancel_many(batch, reason=reason)
                    advance(len(batch))
    rows = [(one.job_id, state(one.answer), one.state) for one in done]
    screen = Screen(as_json)
    screen.show({"jobs": done}, each_or_counts(("id", "answer", "state"), rows, screen.is_terminal))
    if any(one.answer == "refused" and one.state != State.CANCELLED for one in done):
        raise typer.Exit(4)


@app.command("revive")
def revive(
    ids: Ids = None,
    queue: Queues = None,
    kind: Kinds = None,
    states: States = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "revived by hand",
    from_step: Annotated[
        str | None,
        typer.Option("--from-step", metavar="KEY", help="Of one durable job: run this step and all later ones again."),
    ] = None,
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Queue failed, dead or cancelled jobs again, with all their attempts."""
    with opened(url, actor=actor) as tenure:
        if ids and len(ids) == 1 and not (queue or kind or states):
            done = [tenure.revive(full_id(tenure, ids[0]), reason=reason, from_step=from_step)]
        elif from_step is not None:
            raise UsageError("--from-step names a step of one job. Give the id of that job, and no filter.")
        else:
            choice = _choose(tenure, ids, queue, kind, states, list(REVIVABLE), "revive", yes)
            done = []
            with progress("reviving", choice.count) as advance:
                for batch in choice.batches:
                    done += tenure.revive_many(batch, reason=reason)
                    advance(len(batch))
    rows = [(one.job_id, state(one.state or "refused")) for one in done]
    screen = Screen(as_json)
    screen.show({"jobs": done}, each_or_counts(("id", "state"), rows, screen.is_terminal))
    if any(one.lost for one in done):
        raise typer.Exit(4)


@app.command("edit")
def edit(
    job_id: JobIdArgument,
    payload: Annotated[
        str | None,
        typer.Argument(
            help="JSON, @FILE, or - for stdin. Left out, and without --priority: your editor opens on the one it has.",
            show_default=False,
        ),
    ] = None,
    priority: Priority = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "edited by hand",
    app_name: AppName = None,
    raw: Raw = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Give a job that waits in its queue another payload or priority. Exit 4 if it does not wait, or has changed since.

    The handler in the app checks the payload, as it does when a job is enqueued.
    """
    with producer(app_name, url, raw, create=False) as tenure:
        job_id = full_id(tenure, job_id)
        given: dict[str, Any] = {} if payload is None else {"payload": json_value("payload", payload)}
        if payload is None and priority is None:
            job = tenure.get(job_id)
            given = {"payload": json_value("payload", _edited(json.dumps(job.payload, indent=2, ensure_ascii=False)))}
            given["version"] = job.version
        done = tenure.edit(job_id, **given, priority=priority, reason=reason, actor=actor or default_actor())
    screen = Screen(as_json)
    rows = [(done.id, state(done.shown_state), done.priority)]
    screen.show({"jobs": [done], "next": None}, Grid(("id", "state", "priority"), rows))


def _edited(before: str) -> str:
    """What the person's editor ($VISUAL, $EDITOR) leaves of it. Raises: UsageError."""
    import shlex
    import subprocess
    import tempfile

    command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:  # of mode 0700: no other user reads the payload
        file = Path(folder, "payload.json")
        file.write_text(f"{before}\n", encoding="utf-8")
        try:
            subprocess.run([*command, str(file)], check=True)
            after = file.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as exc:
            raise UsageError(f"The editor {command[0]!r} failed, so nothing was changed: {exc}.") from exc
    if after.strip() == before.strip():
        raise UsageError("The payload was left as it was, so nothing was changed.")
    if after.lstrip()[:1] in {"-", "@"}:  # of the command line these name a file; a file that is edited holds JSON
        raise UsageError("What the editor left is not JSON, so nothing was changed.")
    return after


@app.command("forget-step")
def forget_step(
    job_id: JobIdArgument,
    key: Annotated[str, typer.Argument(metavar="STEP", help="Its key, as `jobs show` lists it.", show_default=False)],
    and_later: Annotated[bool, typer.Option("--and-later", help="Also all that were recorded after it.")] = False,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "forgotten by hand",
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Forget a step of a durable job, so that its next attempt runs it again."""
    with opened(url, actor=actor) as tenure:
        forgotten = tenure.steps.forget(full_id(tenure, job_id), key, reason=reason, and_later=and_later)
    Screen(as_json).show({"forgotten": forgotten}, Grid(("forgotten",), [(one,) for one in forgotten]))


@frozen
class _Choice:
    """Jobs to act on, fetched as they are needed."""

    count: int | None
    """None: not known before they are looked at."""
    batches: Iterator[list[str]]


def _choose(
    tenure: App,
    ids: list[str] | None,
    queue: list[str] | None,
    kind: list[str] | None,
    states: list[str] | None,
    possible: list[State],
    act: str,
    yes: bool,
) -> _Choice:
    """The jobs named, or all that match, after asking: they are counted first, and read as the act goes on.

    Raises: UsageError.
    """
    if ids:
        if queue or kind or states:
            raise UsageError("Give ids, or --queue, --kind and --state, not both.")
        return _Choice(len(ids), batches(full_ids(tenure, ids), BATCH))
    if not (queue or kind or states):
        raise UsageError(f"Which jobs should it {act}? Give ids, or --queue, --kind or --state.")
    wanted = list(states or possible)
    stray = [one for one in wanted if one not in possible and not (one == "retry_waiting" and State.QUEUED in possible)]
    if stray:
        raise UsageError(f"It cannot {act} jobs that are {stray[0]}: only {', '.join(possible)} ones.")
    count = _count(tenure, queue, kind, wanted)
    if count == 0:
        say_unknown_queues(tenure, Screen(), queue)
        return _Choice(0, iter(()))
    counted = "all jobs" if count is None else f"{count:,} job{'s' if count != 1 else ''}"
    narrowed = [("queue", queue), ("kind", kind), ("state", states)]
    where = " and ".join(f"{name} {', '.join(given)}" for name, given in narrowed if given)
    confirm(f"{act} {counted} with {where}", yes=yes)
    return _Choice(count, _matching(tenure, queue, kind, wanted))


def _count(tenure: App, queue: list[str] | None, kind: list[str] | None, states: list[str]) -> int | None:
    """How many match, by one question that reads no job; None for states that are shown and not stored."""
    if "retry_waiting" in states:
        return None
    return sum(one.jobs for one in tenure.queues.counts(queue=queue, state=states) if not kind or one.kind in kind)


def _matching(tenure: App, queue: Any, kind: Any, states: list[Any]) -> Iterator[list[str]]:
    """Ids, a page at a time: the next page is read when the one before has been acted on."""
    after: str | None = None
    while True:
        page = tenure.jobs(state=states, queue=queue, kind=kind, limit=BATCH, after=after)
        if page.items:
            yield [job.id for job in page.items]
        if page.next is None:
            return
        after = page.next
