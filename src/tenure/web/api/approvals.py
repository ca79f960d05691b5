"""Approvals: list what waits for a person, look at one with its exact arguments, answer it, make a link for a person.

Who may answer sees the arguments: an answer is about exactly these, and names their hash.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Query, Request, Response
from pydantic import Field

from tenure.errors import Forbidden
from tenure.model.approval import NAME_CHARS, NOTE_CHARS, Approval, is_asker
from tenure.web.api.shapes import (
    Answer,
    Cursor,
    Here,
    JsonAnswer,
    Limit,
    Name,
    Names,
    Strict,
    Who,
    next_cursor,
    paged,
    plain,
)
from tenure.web.auth import Principal
from tenure.web.problems import not_found
from tenure.web.routes import Route

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
Id = Annotated[str, Path(max_length=100, description="The approval's id.")]
Person = Annotated[str | None, Query(max_length=NAME_CHARS, description="Only what this person or group may be asked.")]


class DecisionBody(Strict):
    """An answer about what was shown: `args_hash` is the approval's, as it was when it was looked at."""

    choice: Literal["approve", "deny"]
    args_hash: Annotated[str, Field(min_length=64, max_length=64)]
    note: Annotated[str, Field(max_length=NOTE_CHARS)] | None = None


class LinkBody(Strict):
    """For whom, and for how many seconds: up to 30 days."""

    person: Name
    valid: Annotated[float, Field(gt=0, le=30 * 86_400)] = 86_400.0


class ApprovalList(Answer):
    """Approvals, newest first, each with its arguments, their hash and its votes."""

    items: list[dict[str, Any]]
    next: str | None = None


class ApprovalShown(Answer):
    """One approval."""

    item: dict[str, Any]


class InboxList(Answer):
    """What waits for a person, oldest first: `kind` is approval, escalation, effect or budget."""

    items: list[dict[str, Any]]


class LinkMade(Answer):
    """The link: a path of this server, and the whole address as the caller reached it."""

    path: str
    link: str


async def list_approvals(
    who: Who, site: Here, state: Names = None, person: Person = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List approvals, newest first; those that wait for an answer unless `state` says otherwise."""
    chosen, after = await paged(site, who, "approvals", cursor, {"state": state or ["pending"], "person": person})
    page = await who.app.aio.approvals.all(**chosen, limit=limit, after=after)
    following = await next_cursor(site, who, "approvals", chosen, page.next)
    return JsonAnswer({"items": [shown_approval(one) for one in page.items], "next": following})


async def get_approval(who: Who, id: Id) -> Response:  # noqa: A002  the word of the path
    """Show one approval: the exact arguments with their hash, who asks, and who has answered."""
    return JsonAnswer({"item": shown_approval(await who.app.aio.approvals.get(_valid(id)))})


async def decide_approval(who: Who, id: Id, body: DecisionBody) -> Response:  # noqa: A002
    """Approve or deny what was shown. One denial decides; as many approvals as it needs grant it."""
    found = await who.app.aio.approvals.get(_valid(id))
    refuse_workers(who, found)
    act = who.app.aio.approvals.approve if body.choice == "approve" else who.app.aio.approvals.deny
    done = await act(found.id, by=who.name, args_hash=body.args_hash, note=body.note, groups=who.groups, door="http")
    return JsonAnswer({"item": shown_approval(done)})


async def link_approval(who: Who, site: Here, id: Id, body: LinkBody, request: Request) -> Response:  # noqa: A002
    """Make a link by which one person answers once, without an account."""
    found = await who.app.aio.approvals.get(_valid(id))
    refuse_workers(who, found)
    link = who.app.aio.approvals.link(found.id, body.person, by=who.name, groups=who.groups, valid=body.valid)
    text = await link
    path = f"{request.scope.get('root_path', '')}/answer/{text}"
    return JsonAnswer({"path": path, "link": f"{site.base_url(request)}/answer/{text}"})


async def inbox(who: Who, person: Person = None, limit: Limit = 50) -> Response:
    """List what waits for a person: approvals, escalations of workflows, effects of unknown outcome, empty budgets."""
    names = ("kind", "id", "title", "since", "due_at", "asked_of", "job_id", "workflow_id")
    entries = await who.app.aio.inbox(person, limit=limit)
    return JsonAnswer({"items": [{name: getattr(one, name) for name in names} for one in entries]})


def shown_approval(one: Approval) -> dict[str, Any]:
    """An approval as JSON, with its arguments parsed as well."""
    return {**plain(one), "args": one.args, "approved": one.approved, "unlocks": one.unlocks}


def refuse_workers(who: Principal, found: Approval) -> None:
    """The agent itself cannot answer. Raises: Forbidden."""
    if is_asker(found, who.token_id, who.scopes):
        raise Forbidden(
            f"Approval {found.id}: {who.name!r} may work for queue {found.queue!r} or claimed the job that asks this, "
            "so another person has to answer. Nothing was changed."
        )


def _valid(approval: str) -> str:
    """A malformed id is as unknown as any other."""
    if not _ID.fullmatch(approval):
        raise not_found()
    return approval.lower()


_V: Final = "/api/v1/approvals"
ROUTES: Final = (
    Route("GET", "/api/v1/inbox", "approve", None, inbox, "approvals", answers=InboxList),
    Route("GET", _V, "approve", None, list_approvals, "approvals", answers=ApprovalList),
    Route("GET", _V + "/{id}", "approve", None, get_approval, "approvals", answers=ApprovalShown),
    Route(
        "POST", _V + "/{id}/decide", "approve", "decide_approval", decide_approval, "approvals", answers=ApprovalShown,
        others=(409,),
    ),
    Route(
        "POST", _V + "/{id}/link", "approve", "link_approval", link_approval, "approvals", answers=LinkMade,
        others=(409,),
    ),
)  # fmt: skip
