"""Approvals as forms: what the person at a client is shown, and what their answer says."""

from __future__ import annotations

from typing import Any, Final, Literal

from mcp_types import ElicitRequest, ElicitRequestFormParams

from tenure.mcp.envelope import one_line
from tenure.model.approval import NOTE_CHARS, Approval, is_among, same_name
from tenure.model.visible import visible

ARGS_CHARS: Final = 8_000
"""An answer is about all that was shown, so arguments that are longer are not put into a form."""


def fits_form(approval: Approval) -> bool:
    """Whether a form shows the arguments whole."""
    return approval.args_text is not None and len(visible(approval.args_text)) <= ARGS_CHARS


def approval_text(approval: Approval) -> str:
    """What is asked. The exact arguments, which an answer is bound to, come first: name and text are the job's own
    words, which may pretend to be arguments."""
    said = f"{approval.name}: {approval.text}" if approval.text else approval.name
    args = visible(approval.args_text or "")
    return f"Arguments: {args} Unlocks: {one_line(approval.unlocks)}. In the job's own words: {one_line(said)}"


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
    """Whether this person can be shown it in a form, and their answer would count."""
    is_asked = not approval.asked_of or is_among([person], approval.asked_of)
    return fits_form(approval) and is_asked and not any(same_name(person, one) for one in approval.involved)
