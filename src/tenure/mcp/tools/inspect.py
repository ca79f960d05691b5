"""The toolset `inspect`: look at jobs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import Field

from tenure.mcp.caller import caller
from tenure.mcp.envelope import untrusted
from tenure.mcp.tools.answers import Answer, Count, JobIdField, Name, get_job, out_of_reach, shown_job, wanted
from tenure.observe.explain import explain


class Inspect:
    """What an onlooker does."""

    async def overview(self) -> Answer:
        """How many jobs there are by queue, kind and state; at most 200 rows."""
        who = caller()
        counts = [
            one for one in await who.app.aio.queues.counts() if who.may("read:meta", queue=one.queue, kind=one.kind)
        ]
        rows = [
            {"state": str(one.state), "jobs": one.jobs, **untrusted(queue=one.queue, kind=one.kind)}
            for one in counts[:200]
        ]
        return {"counts": rows, "has_more": len(counts) > len(rows)}

    async def list_jobs(
        self,
        state: Name = None,
        queue: Name = None,
        kind: Name = None,
        limit: Count = 20,
        after: Annotated[str | None, Field(description="`next` of the page before.")] = None,
    ) -> Answer:
        """Jobs that match, newest first, a page at a time."""
        who = caller()
        queues, kinds = who.bounds("read:meta")
        page = await who.app.aio.jobs(
            state=state, queue=wanted(queue, queues), kind=wanted(kind, kinds), limit=limit, after=after
        )
        return {"jobs": [shown_job(one) for one in page.items if who.sees(one)], "next": page.next}

    async def get_job(self, job_id: JobIdField) -> Answer:
        """One job, with its attempts that did not end well."""
        who = caller()
        job = await get_job(who, job_id)
        attempts = [
            {"attempt": one.attempt, **(untrusted(error=one.error) if who.show_data else {})}
            for one in (await who.app.aio.attempts(job_id))[-10:]
        ]
        return {**shown_job(job), "failed_attempts": attempts}

    async def explain(self, job_id: JobIdField) -> Answer:
        """Why a job is not running, by code, in the order in which a claim looks."""
        who = caller()
        job = await get_job(who, job_id)
        found = await asyncio.to_thread(explain, who.app.store, job.id)
        reasons = [
            {"code": one.code, "blocks": one.blocks, **(untrusted(sentence=one.sentence) if who.show_data else {})}
            for one in found.reasons
        ]
        return {"job_id": job.id, "state": str(found.state), "is_running": found.is_running, "reasons": reasons}

    async def logs(self, job_id: JobIdField, after: Annotated[int, Field(ge=0)] = 0, limit: Count = 50) -> Answer:
        """Events of a job, oldest first, above the number `after`."""
        who = caller()
        await get_job(who, job_id)
        events = await who.app.aio.events(job_id=job_id, after=after, limit=limit)
        return {
            "events": [
                {
                    "seq": one.seq,
                    "at": one.at.isoformat(),
                    **untrusted(kind=str(one.kind), data=one.data if who.show_data else None),
                }
                for one in events
            ]
        }

    async def usage(
        self,
        by: Literal["agent", "kind", "job"] = "agent",
        seconds: Annotated[float, Field(description="How far back.", gt=0)] = 86_400.0,
        queue: Name = None,
        kind: Name = None,
        limit: Count = 20,
    ) -> Answer:
        """Tokens and cost of the model calls that agents recorded, by agent (a queue), kind or job; most tokens first.

        A caller that may see some queues or kinds only names one of them. `is_cut`: older jobs are missing.
        """
        who = caller()
        if not who.may("read:meta", queue=queue, kind=kind):
            raise out_of_reach()
        found = await who.app.aio.budgets.usage(seconds, by=by, queues=queue, kinds=kind, limit=limit)
        rows = [
            {
                "jobs": one.jobs,
                "calls": one.calls,
                "input_tokens": one.input_tokens,
                "output_tokens": one.output_tokens,
                "usd_micro": one.usd_micro,
                **untrusted(name=one.name),
            }
            for one in found.rows
        ]
        return {"usage": rows, "is_cut": found.is_cut}
