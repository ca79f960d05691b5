"""Approvals as forms: what the person at a client is shown, and what their answer says."""

from __future__ import annotations

from typing import Any, Literal

from mcp_types import ElicitRequest, ElicitRequestFormParams

from tenure.mcp.envelope import one_line
from tenure.model.approval import NOTE_CHARS, Approval, same_name


def approval_text(approval: Approval) -> str:
    """What is asked, with the exact arguments that an answer is bound to."""
    said = f"{approval.name}: {approval.text}" if approval.text else approval.name
    return f"{one_line(said)} Arguments: {one_line(approval.args_text or 'removed by retention')}"


def approval_form(approval: Approval) -> dict[str, Any]:
    """The request of a form."""
    schema = {
        "type": "object",
        "properties": {
            "approve": {"type": "boolean", "title": "Approve", "description": "False denies it."},
            "note": {"type": "string", "title": "Note", "maxLength": NOTE_CHARS},
        },
        "required": ["approve"],
    }
    params = ElicitRequestFormParams(message=approval_text(approval), requested_schema=schema)
    return ElicitRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)


def read_form(answer: Any) -> tuple[Literal["approve", "deny"] | None, str | None]:
    """What the person chose, with their note; None if there is no answer yet."""
    if not isinstance(answer, dict):
        return None, None
    content = answer.get("content")
    told = content if isinstance(content, dict) else {}
    note = told.get("note")
    said = note if isinstance(note, str) else None
    if answer.get("action") == "decline" or (answer.get("action") == "accept" and told.get("approve") is False):
        return "deny", said
    if answer.get("action") == "accept" and told.get("approve") is True:
        return "approve", said
    return None, None


def may_answer(approval: Approval, person: str) -> bool:
    """Whether an answer of this person would count."""
    is_asked = not approval.asked_of or any(same_name(person, one) for one in approval.asked_of)
    return is_asked and not any(same_name(person, one) for one in approval.involved)
