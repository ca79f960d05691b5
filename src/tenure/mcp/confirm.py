"""The agreement of a person to what is hard to take back, which a model cannot give in the person's place.

A client that can ask its user (elicitation) is made to ask. Any other is refused with a plan, a signed text that holds
the tool, its arguments and the caller. A person reads it with `tenure confirm PLAN`, agrees, and gets a code for
exactly this call, good once and for ten minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context, Elicit
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, Field

from tenure.app import App
from tenure.errors import ConfirmationRequired, Forbidden, InvalidArgument
from tenure.mcp.approvals import ARGS_CHARS
from tenure.mcp.caller import Caller, caller
from tenure.mcp.envelope import one_line
from tenure.mcp.signatures import read_signed, signed
from tenure.mcp.tools.answers import error_text, get_job, told
from tenure.model.frozen import frozen
from tenure.model.visible import visible

SECONDS: Final = 600.0
ASKS_BY_ANSWER: Final = "2026-07-28"
"""From this version of the protocol on a question is an answer of the tool, so no channel back is needed."""

Confirmation = Annotated[
    str | None, Field(description="The code by which a person agreed to exactly this call.", max_length=20_000)
]


class Agreement(BaseModel):
    """What the person says."""

    agree: bool = Field(description="Whether this shall be done.")

    def check(self) -> None:
        """Go on if the person agreed. Raises: Forbidden."""
        if not self.agree:
            raise Forbidden("The person did not agree, so nothing was changed. Do not repeat the call.")


@frozen
class Plan:
    """A call that waits for a person."""

    tool: str
    arguments: Mapping[str, Any]
    caller_id: str
    caller_name: str


@told
async def agree(ctx: Context, dry_run: bool) -> Agreement | Elicit[Agreement]:
    """The agreement to a call, by a code or by asking the client's user. Raises: ToolError with a plan."""
    if dry_run or not caller().confirm:
        return Agreement(agree=True)
    return await _agreed(ctx)


@told
async def agree_unless_own(ctx: Context, dry_run: bool, job_id: str) -> Agreement | Elicit[Agreement]:
    """Likewise, except for a job that the caller enqueued."""
    who = caller()
    if dry_run or not who.confirm or who.owns(await get_job(who, job_id)):
        return Agreement(agree=True)
    return await _agreed(ctx)


async def read_plan(app: App, text: str) -> Plan:
    """What a plan asks for. Raises: InvalidArgument."""
    try:
        tool, arguments, caller_id, caller_name = await read_signed(app, "plan", text)
    except ValueError:
        raise InvalidArgument(
            "This plan was not made on this database, or was changed. Nothing was agreed to. Copy it whole."
        ) from None
    return Plan(tool, arguments, caller_id, caller_name)


async def confirm(app: App, plan: Plan) -> str:
    """The code by which a person agrees to a plan."""
    until = (await asyncio.to_thread(app.now)).timestamp() + SECONDS
    return await signed(app, "agreed", [_digest(plan.tool, plan.arguments), plan.caller_id, until])


async def _agreed(ctx: Context) -> Agreement | Elicit[Agreement]:
    who = caller()
    params = ctx.request_context.params or {}
    tool = str(params.get("name"))
    arguments = {name: value for name, value in (params.get("arguments") or {}).items() if name != "confirmation"}
    code = (params.get("arguments") or {}).get("confirmation")
    if code is not None:
        await _spend(who, tool, arguments, str(code))
        return Agreement(agree=True)
    shown = visible(json.dumps(arguments, ensure_ascii=False))
    if can_ask(ctx) and len(shown) <= ARGS_CHARS:  # a person agrees to what they see, so nothing is cut
        return Elicit(f"{one_line(who.name)} asks for `{tool}` with {shown} Shall it be done?", Agreement)
    plan = await signed(who.app, "plan", [tool, arguments, who.id, who.name])
    refusal = ConfirmationRequired(
        "A person must agree to this first, and nothing was changed. Ask them to run `tenure confirm` with the plan "
        "above, and repeat the call with the code that they get as `confirmation`."
    )
    raise ToolError(error_text(refusal, plan=plan))


def can_ask(ctx: Context) -> bool:
    """Whether the client can ask its user."""
    declared = ctx.client_capabilities
    if declared is None or declared.elicitation is None:
        return False
    version = ctx.protocol_version
    return (version is not None and is_version_at_least(version, ASKS_BY_ANSWER)) or ctx.session.can_send_request


async def _spend(who: Caller, tool: str, arguments: Mapping[str, Any], code: str) -> None:
    """Use a code up. Raises: ToolError."""
    try:
        digest, caller_id, until = await read_signed(who.app, "agreed", code)
    except ValueError:
        digest, caller_id, until = "", "", 0.0
    if digest != _digest(tool, arguments) or caller_id != who.id:
        refusal = "This code was not given for this call: another tool, other arguments or another caller."
    elif (await asyncio.to_thread(who.app.now)).timestamp() >= until:
        refusal = "This code is older than ten minutes."
    else:
        key = hashlib.sha256(code.encode()).hexdigest()
        used = await who.app.aio.access.remember_request("mcp", f"agreed:{key}", key, [])
        if used.is_new:
            return
        refusal = "This code was used before."
    raise ToolError(
        error_text(ConfirmationRequired(f"{refusal} Nothing was changed. Call without it to get a new plan."))
    )


def _digest(tool: str, arguments: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([tool, arguments], sort_keys=True).encode()).hexdigest()
