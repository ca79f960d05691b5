"""The toolset `triage`: dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server.mcpserver import Resolve

from tenure.mcp.caller import caller
from tenure.mcp.confirm import Agreement, Confirmation, agree
from tenure.mcp.tools.answers import Answer, Count, Ids, Name, Reason, Text, get_letters, shown_letter


class TriageTools:
    """What is done about jobs that need a person."""

    async def dead_letters(self, fingerprint: Name = None, limit: Count = 20) -> Answer:
        """Dead letters that nothing was decided about yet, newest first."""
        who = caller()
        queues, kinds = who.bounds("read:meta")
        page = await who.app.aio.dead_letters.all(
            triage="pending", queue=queues, kind=kinds, fingerprint=fingerprint, limit=limit
        )
        return {"dead_letters": [shown_letter(one) for one in page.items], "has_more": page.next is not None}

    async def triage(
        self,
        ids: Ids,
        decision: Literal["acknowledged", "escalated", "closed"],
        agreement: Annotated[Agreement, Resolve(agree)],
        note: Text = "",
        dry_run: bool = False,
        confirmation: Confirmation = None,
    ) -> Answer:
        """Write down what was decided about dead letters. A person must agree."""
        who = caller()
        letters = await get_letters(who, ids)
        if dry_run:
            return {"dry_run": True, "would_change": [one.id for one in letters]}
        agreement.check()
        return {
            "changed": list(await who.app.aio.dead_letters.triage(ids, decision, note=note or None, actor=who.name))
        }

    async def replay(
        self,
        ids: Ids,
        reason: Reason,
        agreement: Annotated[Agreement, Resolve(agree)],
        dry_run: bool = True,
        confirmation: Confirmation = None,
    ) -> Answer:
        """Queue the jobs of dead letters again. With dry_run, which is the default, only say which they are.

        A person must agree to the real one.
        """
        who = caller()
        jobs = list(dict.fromkeys(one.job_id for one in await get_letters(who, ids)))
        if dry_run:
            return {"dry_run": True, "would_replay": jobs}
        agreement.check()
        await who.take_jobs(len(jobs))
        done = await who.app.aio.revive_many(jobs, reason=reason, actor=who.name)
        return {
            "dry_run": False,
            "replayed": [one.job_id for one in done if not one.lost],
            "refused": [one.job_id for one in done if one.lost],
        }
