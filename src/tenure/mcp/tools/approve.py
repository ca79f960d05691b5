"""The toolset `approve`: what waits for people. A model can show it; only the client's user can answer it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from tenure.errors import ConfirmationRequired, Forbidden, NotFound
from tenure.mcp.approvals import approval_text, fits_form
from tenure.mcp.caller import Caller, caller
from tenure.mcp.confirm import Agreement, can_ask
from tenure.mcp.envelope import untrusted
from tenure.mcp.tools.answers import Answer, Count, error_text, told
from tenure.model.approval import NOTE_CHARS, Approval, is_asker, same_name
from tenure.model.visible import visible

Choice = Literal["approve", "deny"]
ApprovalId = Annotated[str, Field(description="The approval's id, as `inbox` shows it.", max_length=64)]
Note = Annotated[str, Field(description="The person's own words.", max_length=NOTE_CHARS)]
ArgsHash = Annotated[str, Field(description="The hash of the arguments that were shown.", max_length=64)]


@told
async def agree_to_answer(
    ctx: Context, approval_id: str, args_hash: str, choice: Choice, note: str
) -> Agreement | Elicit[Agreement]:
    """Ask the client's user, who sees the exact arguments, and the note that will stand under their name. There is no
    code for this: people have the inbox."""
    found = await _find(caller(), approval_id)
    if not can_ask(ctx):
        raise ToolError(
            error_text(
                ConfirmationRequired(
                    "Only a person can answer this, and this client cannot ask its user. Nothing was changed. They "
                    "answer by `tenure inbox`, in the console, or by a link."
                )
            )
        )
    if found.args_hash != args_hash:
        raise Forbidden(
            "The arguments are other than those that were shown. Nothing was changed. Look at `inbox` again."
        )
    if not fits_form(found):
        raise ToolError(
            error_text(
                ConfirmationRequired(
                    "The arguments are too long to be shown whole here, and an answer is about all of them. Nothing "
                    "was changed. A person answers by `tenure inbox`, in the console, or by a link."
                )
            )
        )
    said = f" Your note: {visible(note)}" if note else ""
    return Elicit(f"{choice.capitalize()} this? {approval_text(found)}{said}", Agreement)


class Approve:
    """What a person's own agent does."""

    async def inbox(self, limit: Count = 20) -> Answer:
        """What waits for the caller's answer, oldest first: approvals, escalations, effects of unknown outcome."""
        who = caller()
        entries = await who.app.aio.inbox(who.person, groups=who.groups, limit=limit)
        return {"entries": [_shown(who, one) for one in entries if _is_within(who, one.subject)][:limit]}

    async def decide(
        self,
        approval_id: ApprovalId,
        args_hash: ArgsHash,
        choice: Choice,
        agreement: Annotated[Agreement, Resolve(agree_to_answer)],
        note: Note = "",
    ) -> Answer:
        """Approve or deny in the name of the client's user, who is asked first, and sees the exact arguments and the
        note."""
        who = caller()
        await _find(who, approval_id)
        agreement.check()
        approvals = who.app.aio.approvals
        answer = approvals.approve if choice == "approve" else approvals.deny
        done = await answer(
            approval_id, by=who.person, args_hash=args_hash, note=note or None, groups=who.groups, door="mcp"
        )
        return {"approval_id": done.id, "state": done.state, "approved": done.approved, "need": done.need}


async def _find(who: Caller, approval_id: str) -> Approval:
    """An approval that the caller did not ask for itself. Raises: NotFound, Forbidden."""
    found = await who.app.aio.approvals.get(approval_id)
    if not _is_within(who, found):
        raise NotFound(f"There is no approval {approval_id} among those that this caller may see.")
    is_involved = any(same_name(name, one) for name in (who.name, who.person) for one in found.involved)
    if is_involved or found.asked_by == who.worker or is_asker(found, who.id, who.scopes):
        raise Forbidden(
            "This caller asked for this approval itself, had the job done, or works for the queue that asks, so it "
            "cannot answer it. Nothing was changed."
        )
    return found


def _is_within(who: Caller, subject: Any) -> bool:
    """Whether the caller may touch it. Only approvals tell the queue and kind of their job."""
    queue, kind = getattr(subject, "queue", None), getattr(subject, "kind", None)
    return who.may("approve", queue=queue, kind=kind)


def _shown(who: Caller, entry: Any) -> Answer:
    told: dict[str, Any] = {
        "kind": entry.kind,
        "id": entry.id,
        "since": entry.since.isoformat(),
        "job_id": entry.job_id,
    }
    data: dict[str, Any] = {"title": entry.title} if who.show_data else {}
    if entry.kind == "approval":
        asked: Approval = entry.subject
        told |= {"args_hash": asked.args_hash, "need": asked.need, "approved": asked.approved}
        if asked.expires_at is not None:
            told |= {"expires_at": asked.expires_at.isoformat(), "on_expiry": asked.on_expiry}
        data |= {"unlocks": asked.unlocks, "arguments": asked.args if who.show_data else None}
    return told | untrusted(**data)
