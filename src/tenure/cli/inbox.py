"""`tenure inbox`: what waits for a person, and the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from tenure.cli.group import noun
from tenure.cli.ids import full_approval_id, short_ids
from tenure.cli.options import Actor, After, Json, Limit, Url, Yes, default_actor, duration, opened, say_more
from tenure.cli.screen import Facts, Grid, Part, Passage, Screen, confirm, state
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure import Approval, Budget, InboxEntry

app = noun("inbox", "List what waits for a person, show it, approve and deny.")

HASH_LEAST = 12
"""Fewer characters of a hash tell too little."""

ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="The approval's id.", show_default=False)]
Hash = Annotated[
    str | None,
    typer.Option(
        "--hash",
        metavar="SHA256",
        help=f"The hash of the arguments that you have seen, or its first {HASH_LEAST} characters and more.",
        show_default=False,
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--as", metavar="GROUP", help="A group that you answer for; may be repeated.", show_default=False),
]


@app.command("ls")
def ls(
    person: Annotated[
        str | None,
        typer.Option("--person", metavar="NAME", help="Only what this person may answer.", show_default=False),
    ] = None,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state", "-s", metavar="STATE", help="Approvals in this state instead; may be repeated.",
            show_default=False,
        ),
    ] = None,
    limit: Limit = 50,
    after: After = None,
    url: Url = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List what waits for a person: approvals, escalations of workflows, effects of unknown outcome."""
    from tenure import InboxEntry

    following = None
    with opened(url) as tenure:
        if states or after:
            page = tenure.approvals.all(state=states or "pending", person=person, limit=limit, after=after)
            entries, following = [InboxEntry.of(one) for one in page], page.next
        else:
            entries = tenure.inbox(person, limit=limit)
        screen = Screen(as_json, tenure.now())
    lines = [_line(one) for one in entries]
    ids = _short_ids(entries) if screen.is_narrow else [one.id for one in entries]
    columns = ("id", "kind", "state", "what", "asked of", "since", "until")
    rows = [
        (shown, one.kind, state(line["state"]), one.title, ", ".join(one.asked_of), one.since, one.due_at)
        for shown, one, line in zip(ids, entries, lines, strict=True)
    ]
    grid = Grid(columns, rows, wide="what", drop=("since", "asked of"), empty="Nothing here waits for a person.")
    screen.show({"inbox": lines, "next": following}, grid)
    say_more(screen, following)


@app.command("show")
def show(approval_id: ApprovalId, url: Url = None, as_json: Json = False) -> None:
    """Show an approval: the exact arguments with their hash, who asks, and who has answered."""
    with opened(url) as tenure:
        found = tenure.approvals.get(full_approval_id(tenure, approval_id))
        now = tenure.now()
    Screen(as_json, now).show({"approval": found}, *_parts(found))


def _answering(choice: Literal["approve", "deny"], text: str) -> None:
    @app.command(choice, help=text)
    def answer(
        approval_id: ApprovalId,
        hash_: Hash = None,
        note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.", show_default=False)] = None,
        groups: Groups = None,
        yes: Yes = False,
        actor: Actor = None,
        url: Url = None,
        as_json: Json = False,
    ) -> None:
        by = actor or default_actor()
        with opened(url, actor=actor) as tenure:
            found = tenure.approvals.get(full_approval_id(tenure, approval_id))
            screen = Screen(as_json, tenure.now())
            seen = _shown_hash(screen, choice, found, by, yes) if hash_ is None else _whole_hash(hash_, found)
            act = tenure.approvals.approve if choice == "approve" else tenure.approvals.deny
            done = act(found.id, by=by, args_hash=seen, note=note, groups=groups or (), door="cli")
        screen.show({"approval": done}, _facts(done))


_answering("approve", "Approve: shows the arguments and asks, or takes --hash of what you have seen.")
_answering("deny", "Deny: one denial decides. As `approve` otherwise.")


@app.command("link")
def link(
    approval_id: ApprovalId,
    person: Annotated[str, typer.Option("--person", metavar="NAME", help="Who is to answer.", show_default=False)],
    valid: Annotated[str, typer.Option("--valid", metavar="TIME", help="How long, as 2h or 1d; up to 30d.")] = "1d",
    base: Annotated[
        str, typer.Option("--base", metavar="URL", help="Where `tenure serve` is reached.")
    ] = "http://127.0.0.1:8400",
    groups: Groups = None,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Make a link by which one person answers once, without an account. The link is the right to answer."""
    by = actor or default_actor()
    with opened(url, actor=actor) as tenure:
        found = full_approval_id(tenure, approval_id)
        text = tenure.approvals.link(found, person, by=by, groups=groups or (), valid=duration(valid))
    address = f"{base.rstrip('/')}/answer/{text}"
    told = {"link": address, "approval": found, "person": person, "valid_seconds": duration(valid)}
    Screen(as_json).show(told, Passage(address))


def _shown_hash(screen: Screen, choice: str, found: Approval, by: str, yes: bool) -> str:
    """The hash of the arguments, which the person sees now and agrees to. Raises: UsageError."""
    if yes:
        raise UsageError(
            f"--yes answers what was not shown. Give the hash of what you have seen as well: look at it with "
            f"`tenure inbox show {found.id}`. Nothing was changed."
        )
    if not screen.as_json:
        screen.show(None, *_parts(found))
    confirm(f"{choice} {found.name} as {by}, with exactly these arguments", yes=False)
    return found.args_hash


def _whole_hash(given: str, found: Approval) -> str:
    typed = given.strip().lower().removeprefix("sha256:")
    if len(typed) < HASH_LEAST:
        raise UsageError(f"--hash needs at least {HASH_LEAST} characters of the hash. Nothing was changed.")
    return found.args_hash if found.args_hash.startswith(typed) else typed


def _line(entry: InboxEntry) -> dict[str, Any]:
    names = ("kind", "id", "title", "since", "due_at", "job_id", "workflow_id")
    stands = {"escalation": "open", "effect": "unknown", "budget": "empty"}
    return {
        **{name: getattr(entry, name) for name in names},
        "asked_of": list(entry.asked_of),
        "state": stands.get(entry.kind) or cast("Approval", entry.subject).state,
    }


def _short_ids(entries: Sequence[InboxEntry]) -> list[str]:
    """What tells entries apart where there is little room: of an effect its job, of a budget its scope."""
    ids = [str(one.job_id) if one.kind == "effect" else one.id for one in entries if one.kind != "budget"]
    short = iter(short_ids(ids))
    return [cast("Budget", one.subject).scope if one.kind == "budget" else next(short) for one in entries]


def _parts(one: Approval) -> list[Part]:
    shown = (
        "gone: the job's data was pruned"
        if one.args_text is None
        else json.dumps(one.args, indent=2, ensure_ascii=False)
    )
    parts: list[Part] = [_facts(one), Passage(shown, title="exact arguments")]
    if one.votes:
        rows = [(vote.voter, vote.choice, vote.door, vote.note, vote.at) for vote in one.votes]
        parts.append(Grid(("who", "said", "by", "note", "when"), rows, wide="note", title="answers"))
    return parts


def _facts(one: Approval) -> Facts:
    return Facts(
        [
            ("approval", one.id),
            ("name", one.name),
            ("asks", one.text or None),
            ("state", state(one.state)),
            ("why", one.why),
            ("approved", f"{one.approved} of {one.need}"),
            ("asked of", ", ".join(one.asked_of) or None),
            ("job", one.job_id),
            ("kind", one.kind),
            ("queue", one.queue),
            ("actor", one.actor),
            ("unlocks", one.unlocks),
            ("sha256", one.args_hash),
            ("since", one.created_at),
            ("expires", one.expires_at),
            ("without answer", {"deny": "denied", "grant": "granted"}[one.on_expiry] if one.expires_at else None),
            ("decided", one.decided_at),
            ("used", one.used_at),
            ("used by", one.used_by),
        ]
    )
