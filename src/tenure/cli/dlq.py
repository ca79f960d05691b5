"""`tenure dlq`: jobs that need a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli import text
from tenure.cli.group import noun
from tenure.cli.ids import full_id, short_ids
from tenure.cli.options import (
    Actor,
    After,
    Json,
    Kinds,
    Limit,
    Queues,
    Url,
    Yes,
    opened,
    say_more,
    say_unknown_queues,
)
from tenure.cli.screen import Cell, Facts, Grid, Passage, Screen, batches, confirm, each_or_counts, progress, state
from tenure.errors import NotFound, UsageError
from tenure.model.outcome import Triage

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.model.job import DeadLetter

app = noun("dlq", "Triage and replay dead letters.")

BATCH = 500

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Ids of dead letters, or of their jobs.", show_default=False),
]
Fingerprint = Annotated[
    str | None,
    typer.Option("--fingerprint", "-f", metavar="TEXT", help="All of one cause, as `tenure dlq groups` lists them."),
]
Note = Annotated[str | None, typer.Option("--note", "-m", metavar="TEXT", help="What was found; kept with the letter.")]
Owner = Annotated[
    str | None, typer.Option("--owner", metavar="NAME", help="Who takes care of it; unchanged if left out.")
]
TriageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--triage",
        "-t",
        metavar="TRIAGE",
        help="Only in this state: pending, acknowledged, escalated, manual_replay or closed; may be repeated.",
        autocompletion=lambda: list(Triage),
    ),
]


@app.command("ls")
def ls(
    triage: TriageOption = None,
    queue: Queues = None,
    kind: Kinds = None,
    fingerprint: Fingerprint = None,
    limit: Limit = 50,
    after: After = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List dead letters, newest first."""
    with opened(url) as tenure:
        page = tenure.dead_letters.all(
            triage=triage, queue=queue, kind=kind, fingerprint=fingerprint, limit=limit, after=after
        )
        screen = Screen(as_json, tenure.now())
        if not page.items:
            say_unknown_queues(tenure, screen, queue)
    is_all = not any((triage, queue, kind, fingerprint, after))
    # Where there is little room a letter is named by its job, whose id can be cut short.
    name, ids = "id", [one.id for one in page]
    if screen.is_narrow:
        name, ids = "job", short_ids([one.job_id for one in page])
    rows = [
        (shown, state(one.triage), one.kind, one.moved_at, one.failure_class, text.first_line(one.final_error))
        for shown, one in zip(ids, page, strict=True)
    ]
    screen.show(
        {"dead_letters": page.items, "next": page.next},
        Grid(
            (name, "triage", "kind", "died", "class", "error"),
            rows,
            wide="error",
            drop=("class", "error", "died"),
            empty="There is no dead letter: no job has failed for good." if is_all else None,
        ),
    )
    say_more(screen, page.next)


@app.command("show")
def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="Id of a dead letter, or of its job.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter: the payload, the error in full, every attempt."""
    with opened(url) as tenure:
        found = _find(tenure, letter)
        attempts = tenure.attempts(found.job_id)
        screen = Screen(as_json, tenure.now())
    names = "queue failure_class fingerprint moved_at moved_by key actor run_id workflow_id source_ref target_ref"
    screen.show(
        {"dead_letter": found, "attempts": attempts},
        Facts(
            [
                ("id", found.id),
                ("job", found.job_id),
                ("kind", Cell(found.kind, "bold")),
                ("ended", state(found.state.value)),
                ("triage", state(found.triage)),
                ("attempts", f"{found.attempts}, {found.crashes} crashed"),
                *((name, getattr(found, name)) for name in names.split()),
                ("owner", found.owner),
                ("triaged_by", found.triaged_by),
                ("triaged_at", found.triaged_at),
                ("note", found.triage_note),
            ]
        ),
        Passage(text.to_json(found.payload, indent=2), "Payload"),
        Passage(found.final_error, "Error"),
        Grid(
            ("attempt", "outcome", "class", "ended", "worker"),
            [(one.attempt, state(one.outcome), one.failure_class, one.ended_at, one.worker) for one in attempts],
            drop=("worker",),
            title="Attempts",
        ),
    )


@app.command("groups")
def groups(triage: TriageOption = None, limit: Limit = 50, url: Url = None, as_json: Json = False) -> None:
    """Group dead letters by cause, the largest group first. Only pending ones, unless --triage names others."""
    with opened(url) as tenure:
        found = tenure.dead_letters.groups(triage=triage or Triage.PENDING, limit=limit)
        screen = Screen(as_json, tenure.now())
    rows = [
        (one.fingerprint, one.letters, one.pending, one.kind, one.queue, one.last_at, text.first_line(one.sample_error))
        for one in found
    ]
    screen.show(
        {"groups": found},
        Grid(
            ("fingerprint", "letters", "pending", "kind", "queue", "last", "error"),
            rows,
            right=frozenset({"letters", "pending"}),
            wide="error",
            drop=("pending", "queue", "last"),
            empty="No dead letter needs a person.",
        ),
    )
    if found:
        screen.note(f"Run them again with: tenure dlq replay --fingerprint {found[0].fingerprint}")


@app.command("ack")
def ack(
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    note: Note = None,
    owner: Owner = None,
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Mark dead letters as seen."""
    _triage(Triage.ACKNOWLEDGED, "acknowledge", ids, fingerprint, note, owner, yes, actor, url, as_json)


@app.command("escalate")
def escalate(
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    note: Note = None,
    owner: Owner = None,
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Mark dead letters as passed on to other people."""
    _triage(Triage.ESCALATED, "escalate", ids, fingerprint, note, owner, yes, actor, url, as_json)


@app.command("close")
def close(
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    note: Note = None,
    owner: Owner = None,
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Say that nothing more is to be done; retention may then clean up the job."""
    _triage(Triage.CLOSED, "close", ids, fingerprint, note, owner, yes, actor, url, as_json)


@app.command("replay")
def replay(
    ids: Ids = None,
    fingerprint: Fingerprint = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; goes into the audit.")
    ] = "replayed by hand",
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Queue the jobs of dead letters again, with all their attempts."""
    with opened(url, actor=actor) as tenure:
        letters = _choose(tenure, ids, fingerprint, "replay", yes)
        jobs = list(dict.fromkeys(one.job_id for one in letters))
        done = []
        if len(jobs) == 1:
            done.append(tenure.revive(jobs[0], reason=reason))
        else:
            with progress("replaying", len(jobs)) as advance:
                for batch in batches(jobs, BATCH):
                    done += tenure.revive_many(batch, reason=reason)
                    advance(len(batch))
    rows = [(one.job_id, state(one.state or "refused")) for one in done]
    screen = Screen(as_json)
    screen.show({"jobs": done}, each_or_counts(("job", "state"), rows, screen.is_terminal))
    refused = sum(one.lost for one in done)
    if refused:
        screen.note(f"{refused} of {len(done)} could not be revived: `tenure jobs show ID` says how they stand.")
        raise typer.Exit(4)


def _triage(
    triage: Triage,
    act: str,
    ids: list[str] | None,
    fingerprint: str | None,
    note: str | None,
    owner: str | None,
    yes: bool,
    actor: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    with opened(url, actor=actor) as tenure:
        letters = _choose(tenure, ids, fingerprint, act, yes)
        changed: list[str] = []
        for batch in batches([one.id for one in letters], BATCH):
            changed += tenure.dead_letters.triage(batch, triage, note=note, owner=owner)
    rows = [(one, state(triage.value)) for one in changed]
    screen = Screen(as_json)
    screen.show({"changed": changed}, each_or_counts(("id", "triage"), rows, screen.is_terminal))


def _choose(tenure: App, ids: list[str] | None, fingerprint: str | None, act: str, yes: bool) -> list[DeadLetter]:
    """The letters named, or all pending ones of a group, after asking. Raises: UsageError, NotFound."""
    if bool(ids) == bool(fingerprint):
        raise UsageError(f"Which dead letters should it {act}? Give ids, or --fingerprint from `tenure dlq groups`.")
    if ids:
        return [_find(tenure, one) for one in ids]
    found = list(_of_group(tenure, str(fingerprint)))
    if not found:
        known = ", ".join(dict.fromkeys(one.fingerprint for one in tenure.dead_letters.groups(limit=5)))
        raise NotFound(
            f"There is no dead letter to {act} with fingerprint {fingerprint!r}."
            + (f" Pending groups: {known}." if known else " None is pending.")
        )
    confirm(f"{act} {len(found):,} dead letter{'s' if len(found) != 1 else ''} of kind {found[0].kind}", yes=yes)
    return found


def _of_group(tenure: App, fingerprint: str) -> Iterator[DeadLetter]:
    open_ones = (Triage.PENDING, Triage.ACKNOWLEDGED, Triage.ESCALATED)
    after: str | None = None
    while True:
        page = tenure.dead_letters.all(fingerprint=fingerprint, triage=open_ones, limit=1000, after=after)
        yield from page.items
        if page.next is None:
            return
        after = page.next


def _find(tenure: App, given: str) -> DeadLetter:
    """By its own id, or the newest of a job, whose id may be cut short."""
    identity = full_id(tenure, given)
    letters = tenure.dead_letters.all
    found = letters(ids=[identity], limit=1).items or letters(job_id=identity, limit=1).items
    if not found:
        raise NotFound(f"There is no dead letter {given}, nor one of a job with that id. See `tenure dlq ls`.")
    return found[0]
