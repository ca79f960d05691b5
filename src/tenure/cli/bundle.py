"""`tenure bundle`: one job with its whole history as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tenure.bundle import document
from tenure.bundle.collect import collect
from tenure.bundle.document import Bundle
from tenure.bundle.timeline import Moment, timeline
from tenure.cli import text
from tenure.cli.group import Noun, noun
from tenure.cli.ids import full_id
from tenure.cli.job_parts import job_parts
from tenure.cli.options import JobIdArgument, Json, Url, opened
from tenure.cli.screen import Facts, Grid, Part, Screen, state
from tenure.model.budget import show_amount
from tenure.model.frozen import frozen

MOST_CHILDREN = 50


class _WriteUnlessOpen(Noun):
    """`tenure bundle JOB` writes: the verb is left out, since an id is no verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in {"--help", "-h"}:
            args = ["write", *args]
        return super().parse_args(ctx, args)


app = noun(
    "bundle",
    "Write one job with its whole history to a file (`tenure bundle JOB`), or open such a file.",
    _WriteUnlessOpen,
)


@frozen
class BundleWritten:
    """What `tenure bundle JOB --json` answers."""

    file: str
    bytes: int
    job_id: str
    is_redacted: bool
    is_changing: bool
    left_out: dict[str, int]


@frozen
class BundleOpened:
    """What `tenure bundle open --json` answers."""

    bundle: Bundle
    timeline: list[Moment]


File = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `tenure bundle JOB` wrote.")]


@app.command("write")
def write(
    job_id: JobIdArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file; job-ID.tenure.gz here if left out."),
    ] = None,
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Leave in what looks like a password, a key or a token.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Write one job with its whole history to a file. `tenure bundle JOB` is short for it.

    Secrets are removed by the rules that errors and logs are cleaned by; they cannot know every secret, so look before
    you pass a file on.
    """
    with opened(url) as tenure:
        found = collect(tenure, full_id(tenure, job_id))
    if not with_secrets:
        found = document.redacted(found)
    path = out if out is not None else Path(f"job-{found.job.id}.tenure.gz")
    content = document.encode(found)
    document.write(path, content, replaces=force)
    screen = Screen(as_json)
    answer = {
        "file": str(path),
        "bytes": len(content),
        "job_id": found.job.id,
        "is_redacted": found.is_redacted,
        "is_changing": found.is_changing,
        "left_out": found.left_out,
    }
    screen.show(answer, Facts([("file", str(path)), ("size", text.size(len(content)))]))
    _say_what_is_missing(screen, found)
    if with_secrets:
        screen.note("Secrets are left in. Keep the file to yourself.", "yellow")


@app.command("open")
def open_(
    file: File,
    as_timeline: Annotated[
        bool, typer.Option("--timeline", help="Show only what happened when, from all parts in one list.")
    ] = False,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="Print only the text of this stream.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a bundle as `tenure jobs show` would. No database is needed."""
    found = document.read(file)
    screen = Screen(as_json, found.taken_at)
    moments = timeline(found)
    if stream is not None and not as_json:
        _print_stream(screen, found, stream)
        return
    answer = {"bundle": found, "timeline": moments}
    screen.show(answer, *([_moments(moments)] if as_timeline else _parts(found)))
    _say_what_is_missing(screen, found)


def _parts(found: Bundle) -> list[Part]:
    head = Facts(
        [
            ("bundle of", found.taken_at),
            ("written by", f"Tenure {found.made_by} on {found.engine}"),
            ("secrets", "removed" if found.is_redacted else "left in"),
        ]
    )
    parts: list[Part] = [head]
    parts += job_parts(found.job, found.attempts, found.dead_letters, found.effects, found.events, found.steps)
    if found.streams:
        streams = [(one.name, one.last_offset, text.size(one.bytes), one.is_full) for one in found.streams]
        parts.append(Grid(("stream", "chunks", "size", "is_full"), streams, title="Streams"))
    if found.children:
        children = [(one.id, state(one.state), one.kind, one.queue) for one in found.children[-MOST_CHILDREN:]]
        parts.append(Grid(("child", "state", "kind", "queue"), children, title=f"Children ({len(found.children):,})"))
    if found.workflow is not None:
        flow = found.workflow
        counts = ", ".join(f"{count:,} {name}" for name, count in flow.counts.items() if count)
        facts = [("id", flow.id), ("name", flow.name), ("state", state(flow.state)), ("tasks", counts)]
        parts.append(Facts([*facts, ("error", flow.error)], "Workflow"))
    if found.escalations:
        asked = [(one.level, state(one.state), one.reason, one.person, one.answer) for one in found.escalations]
        parts.append(Grid(("level", "state", "reason", "person", "answer"), asked, title="Escalations"))
    if found.approvals:
        approvals = [
            (
                one.created_at,
                one.name,
                state(one.state),
                ", ".join(f"{vote.voter}: {vote.choice}" for vote in one.votes),
            )
            for one in found.approvals
        ]
        parts.append(Grid(("asked", "approval", "state", "votes"), approvals, title="Approvals"))
    if found.budgets:
        budgets = [
            (one.name.removeprefix("budget:"), *(show_amount(one.unit, n) for n in (one.limit, one.used, one.reserved)))
            for one in found.budgets
        ]
        parts.append(Grid(("budget", "limit", "used", "reserved"), budgets, title="Budgets"))
    if found.audit:
        acts = [(one.at, one.actor, one.act, one.reason) for one in found.audit]
        parts.append(Grid(("at", "actor", "act", "reason"), acts, wide="reason", title="Audit"))
    return parts


def _moments(moments: list[Moment]) -> Grid:
    return Grid(("at", "what", "says"), [(one.at, one.what, one.says) for one in moments], wide="says")


def _print_stream(screen: Screen, found: Bundle, name: str) -> None:
    from tenure.errors import NotFound

    for one in found.streams:
        if one.name == name:
            for part in _chunk_texts(one):
                screen.put(part)
            return
    there = ", ".join(text.safe(one.name) for one in found.streams) or "none"
    raise NotFound(f"This bundle has no stream {name!r}. It has: {there}.")


def _chunk_texts(stream: document.BundledStream) -> list[str]:
    """The text of the last attempt: a reset makes what came before void."""
    texts: list[str] = []
    for chunk in stream.chunks:
        if chunk.kind == "reset":
            texts.clear()
        else:
            texts.append(text.safe_piece(chunk.text))
    return texts


def _say_what_is_missing(screen: Screen, found: Bundle) -> None:
    for part, count in found.left_out.items():
        screen.note(f"The oldest {count:,} entries of {part} are left out: the part was too large.", "yellow")
    if found.is_changing:
        screen.note("The job moved on while it was read: its parts may be from different moments.", "yellow")
