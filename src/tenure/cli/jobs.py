"""`tenure jobs`: what is there, why it waits, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenure.cli import text
from tenure.cli.group import noun
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
    duration,
    opened,
)
from tenure.cli.screen import Cell, Facts, Grid, Part, Passage, Screen, confirm, each_or_counts, progress, state
from tenure.errors import UsageError
from tenure.model.frozen import frozen
from tenure.model.state import ACTIVE, TERMINAL, State

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.model.job import Attempt, Job

app = noun("jobs", "List, show, explain, cancel, revive and await jobs.")

BATCH = 500
REVIVABLE = (State.DEAD, State.FAILED, State.CANCELLED)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The jobs' ids.", show_default=False)]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", "-s", metavar="STATE", help="Only this state; may be repeated.", autocompletion=lambda: list(State)
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
            workflow_id=workflow,
            parent_id=parent,
            limit=limit,
            after=after,
        )
        screen = Screen(as_json, tenure.now())
    rows = [
        (
            job.id,
            state(job.shown_state),
            job.kind,
            job.queue,
            f"{job.attempt}/{job.max_attempts}",
            job.created_at,
            text.first_line(job.last_error, 120) if job.last_error else job.result_summary,
        )
        for job in page.items
    ]
    columns = ("id", "state", "kind", "queue", "attempt", "created", "says")
    screen.show(
        {"jobs": page.items, "next": page.next},
        Grid(columns, rows, wide="says", drop=("says", "created", "attempt", "queue")),
    )
    if page.next is not None:
        screen.note(f"There are more: --after {page.next}")


@app.command("show")
def show(job_id: JobIdArgument, url: Url = None, as_json: Json = False) -> None:
    """Show everything about one job: its payload, its attempts, its events."""
    with opened(url) as tenure:
        job = tenure.get(job_id)
        attempts = tenure.attempts(job_id)
        events = tenure.events(job_id=job_id, limit=200)
        letters = tenure.dead_letters(job_id=job_id, limit=20).items
        effects = tenure.effects(job_id=job_id, limit=100).items
        screen = Screen(as_json, tenure.now())
    parts: list[Part] = [_about(job), Passage(text.to_json(job.payload, indent=2), "Payload")]
    if job.result is not None:
        parts.append(Passage(text.to_json(job.result, indent=2), "Result"))
    if attempts:
        parts.append(_attempts(attempts))
    if job.last_error and "\n" in job.last_error.strip():
        parts.append(Passage(job.last_error, "Last error"))
    if letters:
        rows = [(one.id, state(one.triage), one.moved_at, one.triaged_by, one.triage_note) for one in letters]
        parts.append(
            Grid(("dead_letter", "triage", "died", "by", "note"), rows, drop=("by", "note"), title="Dead letters")
        )
    if effects:
        told = [(one.step, one.name, state(one.state), one.updated_at, one.key) for one in effects]
        parts.append(Grid(("step", "effect", "state", "since", "key"), told, drop=("key",), title="Effects"))
    if events:
        happened = [(one.at, one.kind, text.to_json(one.data)) for one in events]
        parts.append(Grid(("at", "event", "data"), happened, wide="data", title="Events"))
    screen.show(
        {"job": job, "attempts": attempts, "dead_letters": letters, "effects": effects, "events": events}, *parts
    )


@app.command("explain")
def explain(job_id: JobIdArgument, url: Url = None, as_json: Json = False) -> None:
    """Say why a job is not running: what it waits for, and the command that helps."""
    from tenure.observe.explain import explain as why

    with opened(url) as tenure:
        found = why(tenure.store, tenure.get(job_id).id)
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
        tenure.get(job_id)
        screen = Screen(as_json)
        lines = EventLines(screen)
        follower = Follower(tenure.store, job_id=job_id)
        is_silent = True
        while True:
            ended = tenure.get(job_id).state in TERMINAL
            events = follower.poll()
            is_silent = is_silent and not events
            lines.print(events)
            if ended or not follow:
                if is_silent:
                    screen.note(
                        "Nothing is logged for this job. Handlers log with `ctx.logger`; a queue writes down what "
                        "becomes of its jobs after `tenure queues set NAME events=true`."
                    )
                return
            time.sleep(0.25)


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
    rows = [(job.id, state(job.shown_state), job.kind, text.first_line(job.last_error)) for job in found]
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
            done = [tenure.cancel(ids[0], reason=reason)]
        else:
            choice = _choose(tenure, ids, queue, kind, states, sorted(ACTIVE), "cancel", yes)
            done = []
            with progress("cancelling", choice.count) as advance:
                for batch in choice.batches():
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
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Queue failed, dead or cancelled jobs again, with all their attempts."""
    with opened(url, actor=actor) as tenure:
        if ids and len(ids) == 1 and not (queue or kind or states):
            done = [tenure.revive(ids[0], reason=reason)]
        else:
            choice = _choose(tenure, ids, queue, kind, states, list(REVIVABLE), "revive", yes)
            done = []
            with progress("reviving", choice.count) as advance:
                for batch in choice.batches():
                    done += tenure.revive_many(batch, reason=reason)
                    advance(len(batch))
    rows = [(one.job_id, state(one.state or "refused")) for one in done]
    screen = Screen(as_json)
    screen.show({"jobs": done}, each_or_counts(("id", "state"), rows, screen.is_terminal))
    if any(one.lost for one in done):
        raise typer.Exit(4)


@frozen
class _Choice:
    """Jobs to act on, fetched as they are needed."""

    count: int
    ids: list[str]

    def batches(self) -> Iterator[list[str]]:
        for first in range(0, len(self.ids), BATCH):
            yield self.ids[first : first + BATCH]


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
    """The jobs named, or all that match, after asking. Raises: UsageError."""
    if ids:
        if queue or kind or states:
            raise UsageError("Give ids, or --queue, --kind and --state, not both.")
        return _Choice(len(ids), ids)
    if not (queue or kind or states):
        raise UsageError(f"Which jobs should it {act}? Give ids, or --queue, --kind or --state.")
    wanted = list(states or possible)
    stray = [one for one in wanted if one not in possible]
    if stray:
        raise UsageError(f"It cannot {act} jobs that are {stray[0]}: only {', '.join(possible)} ones.")
    chosen = [job.id for job in _matching(tenure, queue, kind, wanted)]
    if not chosen:
        return _Choice(0, [])
    counts = f"{len(chosen):,} job{'s' if len(chosen) != 1 else ''}"
    narrowed = [("queue", queue), ("kind", kind), ("state", states)]
    where = " and ".join(f"{name} {', '.join(given)}" for name, given in narrowed if given)
    confirm(f"{act} {counts} with {where}", yes=yes)
    return _Choice(len(chosen), [str(one) for one in chosen])


def _matching(tenure: App, queue: Any, kind: Any, states: list[Any]) -> Iterator[Job]:
    after: str | None = None
    while True:
        page = tenure.jobs(state=states, queue=queue, kind=kind, limit=1000, after=after)
        yield from page.items
        if page.next is None:
            return
        after = page.next


def _about(job: Job) -> Facts:
    """What one sees first of a job. Empty columns are left out."""
    from tenure.observe.explain import suspicion_says

    names = (
        "priority key concurrency_key affinity_key parent_id workflow_id run_id actor tenant source_ref target_ref "
        "payload_ref waiting_for cancel_requested_at lease_owner lease_until created_at run_at claimed_at started_at "
        "finished_at cleaned_at failure_class progress result_summary artifacts_path trace"
    )
    rest = [(name, getattr(job, name)) for name in names.split()]
    return Facts(
        [
            ("id", job.id),
            ("kind", Cell(job.kind, "bold")),
            ("queue", job.queue),
            ("state", state(job.shown_state)),
            ("attempt", f"{job.attempt} of {job.max_attempts}" + (f", {job.crashes} crashed" if job.crashes else "")),
            ("token", job.token),
            ("suspicion", f"{job.suspicion}: {suspicion_says(job.suspicion)}" if job.suspicion else None),
            *((name, text.to_json(value) if name == "progress" and value else value) for name, value in rest),
            ("took", _took(job)),
            ("says", text.first_line(job.last_error) or None),
        ]
    )


def _took(job: Job) -> float | None:
    """How long the last attempt took."""
    if job.claimed_at is None or job.finished_at is None:
        return None
    return (job.finished_at - job.claimed_at).total_seconds()


def _attempts(attempts: list[Attempt]) -> Grid:
    rows = [
        (one.attempt, state(one.outcome), one.failure_class, one.ended_at, one.worker, text.first_line(one.error))
        for one in attempts
    ]
    columns = ("attempt", "outcome", "class", "ended", "worker", "error")
    return Grid(columns, rows, wide="error", drop=("worker", "ended"), title="Attempts that did not end well")
