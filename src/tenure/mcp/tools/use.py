"""The toolset `use`: enqueue jobs, wait for them, cancel them."""

from __future__ import annotations

from typing import Annotated, Any

from mcp.server.mcpserver import Resolve
from pydantic import Field

from tenure.errors import Forbidden
from tenure.mcp.caller import Caller, caller
from tenure.mcp.confirm import Agreement, Confirmation, agree_unless_own
from tenure.mcp.quota import Waiters
from tenure.mcp.tasks import start_task, wait_for_end, wants_task
from tenure.mcp.tools.answers import (
    WAIT_MAX,
    Answer,
    JobIdField,
    Key,
    Kind,
    Name,
    Text,
    Wait,
    get_job,
    out_of_reach,
    shown_job,
)
from tenure.model.job import Job
from tenure.model.state import TERMINAL


class Use:
    """What a producer does."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters

    async def enqueue(
        self,
        kind: Kind,
        payload: Any = None,
        queue: Name = None,
        key: Key = None,
        delay_seconds: Annotated[float, Field(ge=0)] = 0.0,
    ) -> Answer:
        """Put a job in its queue. It is durable when this returns."""
        return {"job_id": await _enqueue(caller(), kind, payload, queue, key, delay_seconds)}

    async def run(
        self, kind: Kind, payload: Any = None, queue: Name = None, key: Key = None, seconds: Wait = WAIT_MAX
    ) -> Answer:
        """Put a job in its queue and wait for its end, 25 seconds at most; `ended` says whether it has.

        A client that speaks MCP Tasks gets a task instead, which lasts as long as the job does.
        """
        who = caller()
        if wants_task():
            start_task(await _enqueue(who, kind, payload, queue, key, 0.0))
        with self._waiters.one(who.id):  # before the enqueue: one that may not wait makes no job
            job_id = await _enqueue(who, kind, payload, queue, key, 0.0)
            return ended(await wait_for_end(lambda: get_job(who, job_id), seconds))

    async def status(self, job_id: JobIdField) -> Answer:
        """How a job stands."""
        return shown_job(await get_job(caller(), job_id))

    async def wait(self, job_id: JobIdField, seconds: Wait = WAIT_MAX) -> Answer:
        """Wait until a job has ended, 25 seconds at most; `ended` says whether it has."""
        who = caller()
        with self._waiters.one(who.id):
            return ended(await wait_for_end(lambda: get_job(who, job_id), seconds))

    async def cancel(
        self,
        job_id: JobIdField,
        agreement: Annotated[Agreement, Resolve(agree_unless_own)],
        reason: Text = "",
        dry_run: bool = False,
        confirmation: Confirmation = None,
    ) -> Answer:
        """Cancel a job: at once if no worker holds it, else by request to its worker.

        A person must agree, unless this caller enqueued the job.
        """
        who = caller()
        job = await get_job(who, job_id)
        if not who.owns(job) and not who.may("operate", queue=job.queue, kind=job.kind):
            raise out_of_reach()
        if dry_run:
            return {"dry_run": True, "would_cancel": job_id, "state": job.shown_state}
        agreement.check()
        done = await who.app.aio.cancel(job_id, reason=reason, actor=who.name)
        return {"job_id": job_id, "answer": done.answer}


def ended(job: Job) -> Answer:
    """A job, and whether it has ended."""
    return {"ended": job.state in TERMINAL, **shown_job(job)}


async def _enqueue(
    who: Caller, kind: str, payload: Any, queue: str | None, key: str | None, delay_seconds: float
) -> str:
    made = who.app.new_job(
        kind,
        payload,
        queue=queue,
        key=key,
        delay=delay_seconds or None,
        actor=who.name,
        source_ref=who.owner,
    )
    if not who.may("enqueue", queue=made.queue, kind=made.kind):
        raise out_of_reach()
    await who.take_jobs(1)
    handle = await who.app.aio.enqueue(made)
    if handle.duplicate:
        (holder,) = await who.app.aio.get_many([handle.id])
        if holder is None or not who.sees(holder):
            raise Forbidden(
                "A job that this caller may not see holds this key, so nothing was enqueued. Use another key."
            )
    return handle.id
