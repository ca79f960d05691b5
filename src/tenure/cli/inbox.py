"""`tenure inbox`: what waits for a person, and the answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenure.cli.group import noun
from tenure.cli.options import Actor, After, Json, Limit, Url, Yes, default_actor, duration, opened
from tenure.cli.screen import Facts, Grid, Part, Passage, Screen, confirm, state
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure import Approval, InboxEntry

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
        str | None, typer.Option("--person", metavar="NAME", help="Only what they may be asked.", show_default=False)
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
    following = None
    with opened(url) as tenure:
        if states or after:
            page = tenure.approvals.all(state=states or "pending", person=person, limit=limit, cursor=after)
            lines, following = [_approval_line(one) for one in page], page.next
        else:
            lines = [_line(one) for one in tenure.inbox(person, limit=limit)]
        now = tenure.now()
    columns = ("id", "kind", "state", "what", "asked of", "since", "until")
    rows = [
        (one["id"], one["kind"], state(one["state"]), one["title"], _people(one), one["since"], one["due_at"])
        for one in lines
    ]
    grid = Grid(columns, rows, wide="what", drop=("since", "asked of"))
    Screen(as_json, now).show({"inbox": lines, "next": following}, grid)


@app.command("show")
def show(approval_id: ApprovalId, url: Url = None, as_json: Json = False) -> None:
    """Show an approval: the exact arguments with their hash, who asks, and who has answered."""
    with opened(url) as tenure:
        found = tenure.approvals.get(approval_id)
        now = tenure.now()
    Screen(as_json, now).show({"approval": found}, *_parts(found))


@app.command("approve")
def approve(
    approval_id: ApprovalId,
    hash_: Hash = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.", show_default=False)] = None,
    groups: Groups = None,
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Approve: shows the arguments and asks, or takes --hash of what you have seen."""
    _answer("approve", approval_id, hash_, note, groups, yes, actor, url, as_json)


@app.command("deny")
def deny(
    approval_id: ApprovalId,
    hash_: Hash = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Why.", show_default=False)] = None,
    groups: Groups = None,
    yes: Yes = False,
    actor: Actor = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Deny: one denial decides. As `approve` otherwise."""
    _answer("deny", approval_id, hash_, note, groups, yes, actor, url, as_json)


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
        text = tenure.approvals.link(approval_id, person, by=by, groups=groups or (), valid=duration(valid))
    address = f"{base.rstrip('/')}/answer/{text}"
    told = {"link": address, "approval": approval_id, "person": person, "valid_seconds": duration(valid)}
    Screen(as_json).show(told, Passage(address))


def _answer(
    choice: Literal["approve", "deny"],
    approval_id: str,
    given: str | None,
    note: str | None,
    groups: list[str] | None,
    yes: bool,
    actor: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    by = actor or default_actor()
    with opened(url, actor=actor) as tenure:
        found = tenure.approvals.get(approval_id)
        screen = Screen(as_json, tenure.now())
        if given is None:
            if yes:
                raise UsageError(
                    f"--yes answers what was not shown. Give the hash of what you have seen as well: look at it with "
                    f"`tenure inbox show {approval_id}`. Nothing was changed."
                )
            if not as_json:
                screen.show(None, *_parts(found))
            confirm(f"{choice} {found.name} as {by}, with exactly these arguments", yes=False)
            seen = found.args_hash
        else:
            seen = _whole_hash(given, found)
        act = tenure.approvals.approve if choice == "approve" else tenure.approvals.deny
        done = act(approval_id, by=by, args_hash=seen, note=note, groups=groups or (), door="cli")
    screen.show({"approval": done}, _facts(done))


def _whole_hash(given: str, found: Approval) -> str:
    typed = given.strip().lower().removeprefix("sha256:")
    if len(typed) < HASH_LEAST:
        raise UsageError(f"--hash needs at least {HASH_LEAST} characters of the hash. Nothing was changed.")
    return found.args_hash if found.args_hash.startswith(typed) else typed


def _line(entry: InboxEntry) -> dict[str, Any]:
    names = ("kind", "id", "title", "since", "due_at", "job_id", "workflow_id")
    told = {name: getattr(entry, name) for name in names}
    stands = {"approval": "pending", "escalation": "open", "effect": "unknown", "budget": "empty"}[entry.kind]
    return {**told, "asked_of": list(entry.asked_of), "state": stands}


def _approval_line(one: Approval) -> dict[str, Any]:
    return {
        "kind": "approval", "id": one.id, "title": f"{one.name}: {one.text}" if one.text else one.name,
        "since": one.created_at, "due_at": one.expires_at, "job_id": one.job_id, "workflow_id": one.workflow_id,
        "asked_of": list(one.asked_of), "state": one.state,
    }  # fmt: skip


def _people(line: dict[str, Any]) -> str:
    return ", ".join(line["asked_of"])


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
            ("sha256", one.args_hash),
            ("since", one.created_at),
            ("expires", one.expires_at),
            ("without answer", {"deny": "denied", "grant": "granted"}[one.on_expiry] if one.expires_at else None),
            ("decided", one.decided_at),
            ("used", one.used_at),
        ]
    )
