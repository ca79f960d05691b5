"""The toolset `admin`: pause queues, close gates, revive jobs. A person must agree to each of them."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Resolve
from pydantic import Field

from tenure.errors import NotFound
from tenure.mcp.caller import Caller, caller
from tenure.mcp.confirm import Agreement, Confirmation, agree
from tenure.mcp.envelope import untrusted
from tenure.mcp.tools.answers import Answer, JobIdField, Reason, get_job, out_of_reach

Queue = Annotated[str, Field(max_length=255)]
Gate = Annotated[str, Field(description="master, worker, notify, heartbeat, or `queue:NAME`.", max_length=255)]
Agreed = Annotated[Agreement, Resolve(agree)]


class Admin:
    """What an operator does. Each is a dry run unless `dry_run` is false."""

    async def queues(self) -> Answer:
        """Queues, and whether each is paused."""
        who = caller()
        rows = [one for one in await who.app.aio.queues.all() if _is_bound(who, one.name)]
        return {"queues": [{"is_paused": one.paused_at is not None, **untrusted(queue=one.name)} for one in rows]}

    async def gates(self) -> Answer:
        """Gates, and whether each is open."""
        who = caller()
        rows = [one for one in await who.app.aio.gates.all() if ":" not in one.name or _may_touch(who, one.name)]
        return {"gates": [{"is_open": one.is_open, **untrusted(gate=one.name)} for one in rows]}

    async def pause_queue(
        self, queue: Queue, reason: Reason, agreement: Agreed, dry_run: bool = True, confirmation: Confirmation = None
    ) -> Answer:
        """Let claims take nothing from a queue; what is held goes on, and enqueue too."""
        who = caller()
        await _check_queue(who, queue)
        if dry_run:
            return {"dry_run": True, "would": "pause the queue"}
        agreement.check()
        changed = await who.app.aio.queues.pause(queue, reason=reason, actor=who.name)
        return {"dry_run": False, "is_changed": bool(changed)}

    async def resume_queue(
        self, queue: Queue, reason: Reason, agreement: Agreed, dry_run: bool = True, confirmation: Confirmation = None
    ) -> Answer:
        """Let claims take from a paused queue again."""
        who = caller()
        await _check_queue(who, queue)
        if dry_run:
            return {"dry_run": True, "would": "resume the queue"}
        agreement.check()
        changed = await who.app.aio.queues.resume(queue, reason=reason, actor=who.name)
        return {"dry_run": False, "is_changed": bool(changed)}

    async def close_gate(
        self, gate: Gate, reason: Reason, agreement: Agreed, dry_run: bool = True, confirmation: Confirmation = None
    ) -> Answer:
        """Refuse what a gate guards, for all workers and at once."""
        who = caller()
        _check_gate(who, gate)
        if dry_run:
            return {"dry_run": True, "would": "close the gate"}
        agreement.check()
        done = await who.app.aio.gates.close(gate, reason=reason, actor=who.name)
        return {"dry_run": False, "is_open": done.is_open}

    async def open_gate(
        self, gate: Gate, reason: Reason, agreement: Agreed, dry_run: bool = True, confirmation: Confirmation = None
    ) -> Answer:
        """Allow what a gate guards again."""
        who = caller()
        _check_gate(who, gate)
        if dry_run:
            return {"dry_run": True, "would": "open the gate"}
        agreement.check()
        done = await who.app.aio.gates.open(gate, reason=reason, actor=who.name)
        return {"dry_run": False, "is_open": done.is_open}

    async def revive(
        self,
        job_id: JobIdField,
        reason: Reason,
        agreement: Agreed,
        dry_run: bool = True,
        confirmation: Confirmation = None,
    ) -> Answer:
        """Queue a failed, dead or cancelled job again, with all its attempts."""
        who = caller()
        job = await get_job(who, job_id)
        if dry_run:
            return {"dry_run": True, "would": "revive the job", "state": job.shown_state}
        agreement.check()
        await who.take_jobs(1)
        done = await who.app.aio.revive(job_id, reason=reason, actor=who.name)
        return {"dry_run": False, "job_id": job_id, "state": str(done.state)}


def _is_bound(who: Caller, queue: str) -> bool:
    """Whether the caller may do it to some kind in this queue."""
    queues, _ = who.bounds("admin")
    return queues is None or queue in queues


async def _check_queue(who: Caller, queue: str) -> None:
    if not who.may("admin", queue=queue):
        raise out_of_reach()
    if not await who.app.aio.queues.all(queue):
        raise NotFound("There is no queue of this name. Nothing was changed. `queues` lists them.")


def _check_gate(who: Caller, gate: str) -> None:
    if not _may_touch(who, gate):
        raise out_of_reach()


def _may_touch(who: Caller, gate: str) -> bool:
    """Whether all that a gate guards is within the caller's bounds."""
    sort, _, name = gate.partition(":")
    if sort == "queue":
        return who.may("admin", queue=name)
    return who.may("admin", kind=name) if sort == "kind" else who.may("admin")
