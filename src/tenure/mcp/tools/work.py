"""The toolset `work`: an agent as a worker. Each of its writes is fenced by the token of its grant.

The token is a text that binds the store's token to the caller, so another caller that learns it can do nothing with it.
A claim whose client has gone is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context
from pydantic import Field

from tenure.errors import LeaseLost
from tenure.mcp.caller import Caller, caller
from tenure.mcp.envelope import untrusted
from tenure.mcp.quota import Waiters
from tenure.mcp.signatures import grant_text, read_grant
from tenure.mcp.tools.answers import (
    POLL_SECONDS,
    Answer,
    JobIdField,
    Lease,
    Name,
    Text,
    TokenField,
    Wait,
    out_of_reach,
    settled,
)
from tenure.model.approval import Question, canonical, check_question
from tenure.model.ids import JobId, Token, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Released, Suspended
from tenure.model.step import NewStep, Step

LOOK_SECONDS: Final = 1.0
"""Behind the wake-ups, as for workers."""
Place = tuple[tuple[str, ...] | None, tuple[str, ...] | None]
"""Queues and kinds of one claim; None for all that the app declares, and for all."""
ASK: Final = "ask/"
"""The keys of an agent's questions are `ask/1`, `ask/2` …"""


class Work:
    """What a worker does."""

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters

    async def claim(self, ctx: Context, queue: Name = None, seconds: Wait = 0.0, lease_seconds: Lease = None) -> Answer:
        """Take one due job under a lease, waiting 25 seconds at most; `job` is null if there was none.

        Every later call about it needs its id and token. Without a heartbeat the lease ends and the job goes to another
        worker. `answers` are what people said to questions asked about this job before.
        """
        who = caller()
        places = _places(who, queue)
        grant = await _claim(who, places, lease_seconds)
        if grant is None and seconds > 0:
            with self._waiters.one(who.id):
                grant = await _wait_for_grant(ctx, who, places, lease_seconds, seconds)
        if grant is None:
            return {"job": None}
        delivered: Answer | None = None
        try:
            shown = await _shown(who, grant)
            if not await _is_gone(ctx):
                delivered = {"job": shown}
        finally:
            if delivered is None:
                await asyncio.shield(_give_back(who, grant))
        return delivered or {"job": None}

    async def heartbeat(self, job_id: JobIdField, token: TokenField, lease_seconds: Lease = None) -> Answer:
        """Keep a job that you hold. `stop` says that its cancel was asked for."""
        return await _beat(job_id, token, lease_seconds)

    async def progress(self, job_id: JobIdField, token: TokenField, value: Any) -> Answer:
        """Show how far a job that you hold has come; also keeps it."""
        return await _beat(job_id, token, None, {job_id: value})

    async def complete(
        self, job_id: JobIdField, token: TokenField, result: Any = None, summary: Text | None = None
    ) -> Answer:
        """End a job that you hold well."""
        held = await _held(job_id, token)
        return settled(await caller().app.aio.complete(held, result, summary=summary))

    async def fail(self, job_id: JobIdField, token: TokenField, error: Text) -> Answer:
        """End the attempt badly: the job is retried, or dead when no attempts are left."""
        held = await _held(job_id, token)
        return settled(await caller().app.aio.fail(held, error))

    async def release(self, job_id: JobIdField, token: TokenField, reason: Text | None = None) -> Answer:
        """Give a job that you hold back, its attempt unspent."""
        held = await _held(job_id, token)
        return settled(await caller().app.aio.release(held, reason=reason))

    async def ask(
        self,
        job_id: JobIdField,
        token: TokenField,
        question: Text,
        details: Any = None,
        expires_seconds: Annotated[float | None, Field(gt=0, description="After that it counts as denied.")] = None,
    ) -> Answer:
        """Ask a person to approve something about a job that you hold. The job waits and is no longer yours.

        When there is an answer the job is due again, and its next claim hands over the question with the answer and
        the person's note. `details` are what the approval is bound to.
        """
        app = caller().app
        held_id, store_token = await _held(job_id, token)
        number = 1 + sum(one.key.startswith(ASK) for one in await app.aio.steps.all(job_id))
        asked = Question(
            id=new_job_id(),
            name="ask",
            args=canonical({"question": question, "details": details}),
            text=question,
            need=1,
            ask=(),
            expires=expires_seconds,
            on_expiry="deny",
        )
        check_question("ask", asked)
        step = NewStep(f"{ASK}{number}", "approval", "open", value=asked.to_json())
        suspended = Suspended(JobId(held_id), Token(store_token), f"approval:{asked.id}", steps=(step,))
        (done,) = await app.aio.settle([suspended])
        if done.lost:
            raise _lost(job_id)
        return {**settled(done), "approval_id": asked.id}


def _places(who: Caller, queue: str | None) -> list[Place]:
    """Where the caller may claim: queues and kinds of each claim to make. Raises: Forbidden."""
    held = [scope for scope in who.scopes if scope.verb == "worker" and (queue is None or scope.queue in {None, queue})]
    if not held:
        raise out_of_reach()
    by_queue: dict[str | None, set[str | None]] = {}
    for scope in held:
        by_queue.setdefault(scope.queue if queue is None else queue, set()).add(scope.kind)
    by_kinds: dict[tuple[str, ...] | None, list[str | None]] = {}
    for name, kinds in by_queue.items():
        named = None if None in kinds else tuple(sorted(kind for kind in kinds if kind is not None))
        by_kinds.setdefault(named, []).append(name)
    return [
        (None if None in names else tuple(name for name in names if name is not None), kinds)
        for kinds, names in by_kinds.items()
    ]


async def _wait_for_grant(
    ctx: Context, who: Caller, places: list[Place], lease_seconds: float | None, seconds: float
) -> Grant | None:
    """Look again at each wake-up, and each second; end when the time is over or the client is gone."""
    until = time.monotonic() + seconds
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    queues = {queue for named, _ in places for queue in (named or ("default", *who.app.registry.queues))}
    subscription = await asyncio.to_thread(who.app.store.subscribe, sorted(queues), wake)
    try:
        looked = -LOOK_SECONDS
        while (now := time.monotonic()) < until and not await _is_gone(ctx):
            if woken.is_set() or now - looked >= LOOK_SECONDS:
                woken.clear()
                looked = now
                if not await who.is_valid():  # revoked since it asked
                    return None
                grant = await _claim(who, places, lease_seconds)
                if grant is not None:
                    return grant
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_SECONDS, max(0.01, until - now))):
                    await woken.wait()
        return None
    finally:
        # Not awaited: a cancel here would lose what was granted.
        loop.run_in_executor(None, subscription.close)


async def _claim(who: Caller, places: list[Place], lease_seconds: float | None) -> Grant | None:
    for queues, kinds in places:
        grants = await who.app.aio.claim(
            worker=who.worker, queues=queues, kinds=kinds, limit=1, lease_seconds=lease_seconds
        )
        if grants:
            return grants[0]
    return None


async def _give_back(who: Caller, grant: Grant) -> None:
    await who.app.aio.settle([Released(grant.id, grant.token, failure_class=None)])


async def _is_gone(ctx: Context) -> bool:
    """Whether the client closed its connection. A pipe that closes ends the server."""
    request = ctx.request_context.request
    return request is not None and bool(await request.is_disconnected())


async def _shown(who: Caller, grant: Grant) -> Answer:
    """A grant. Its holder sees the payload, and what people answered."""
    steps: list[Step] = list(grant.steps)
    if grant.has_more_steps:
        steps = await who.app.aio.steps.all(grant.id)
    held = {
        "job_id": grant.id,
        "token": await grant_text(who, grant),
        "attempt": grant.attempt,
        "max_attempts": grant.max_attempts,
        "lease_until": grant.lease_until.isoformat(),
    }
    return held | untrusted(queue=grant.queue, kind=grant.kind, payload=grant.payload, answers=_answers(steps) or None)


def _answers(steps: list[Step]) -> list[dict[str, Any]]:
    """What people said, in the order in which they were asked."""
    told = []
    for one in steps:
        if one.key.startswith(ASK) and one.state == "done":
            value = json.loads(one.value or "{}")
            asked = json.loads(value.get("args") or "{}")
            told.append({"question": asked.get("question"), "granted": value.get("granted"), "note": value.get("note")})
    return told


async def _beat(
    job_id: str, text: str, lease_seconds: float | None, progress: Mapping[str, Any] | None = None
) -> Answer:
    held = await _held(job_id, text)
    beat = await caller().app.aio.heartbeat(held, lease_seconds=lease_seconds, progress=progress)
    if job_id in beat.lost:
        raise _lost(job_id)
    return {"job_id": job_id, "stop": job_id in beat.cancel_requested or job_id in beat.overdue}


async def _held(job_id: str, text: str) -> tuple[str, int]:
    """What proves that the caller was granted the job. Raises: LeaseLost."""
    token = await read_grant(caller(), job_id, text)
    if token is None:
        raise _lost(job_id)
    return job_id, token


def _lost(job_id: str) -> LeaseLost:
    return LeaseLost(
        f"Job {job_id}: this token does not hold it, because its lease has ended, it was handed on, or another caller "
        "claimed it. Nothing was changed. Stop working on it, and claim again."
    )
