"""`subscriptions/listen`: a stream of notices that jobs have changed, for clients of the protocol from 2026-07-28 on.

A client names resources (`resourceSubscriptions`) and its own tasks (`taskIds`, of the extension for tasks). What it
may not read is left out of what is acknowledged, without a word whether it exists. A resource is told as changed, for
the client to read it again; of a task its new state is sent. Nothing is replayed: a client that was cut off listens
again and reads what it needs.

Each stream asks the store once a second for all it watches, ends when its token is no longer valid and after an hour at
the latest, and counts toward its caller's bounds.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    Notification,
    NotificationParams,
    ResourceUpdatedNotification,
    ResourceUpdatedNotificationParams,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsAcknowledgedNotificationParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
)
from pydantic import ConfigDict, ValidationError

from tenure.errors import InvalidArgument, NotFound, TooManyCalls
from tenure.mcp.caller import Caller, caller
from tenure.mcp.quota import Waiters
from tenure.mcp.tasks import Tasks, declares_tasks
from tenure.mcp.tools.answers import get_job
from tenure.model.job import Job
from tenure.model.state import TERMINAL

METHOD: Final = "subscriptions/listen"
LOOK_SECONDS: Final = 1.0
STREAM_SECONDS: Final = 3_600.0
SUBJECTS_MAX: Final = 50
STREAMS_MAX: Final = 4
EVENTS_PAGE: Final = 500
LETTERS: Final = "tenure://dead-letters"

_URI: Final = re.compile(r"tenure://jobs/([0-9a-f-]{36})(/logs)?")


class TaskChangedParams(NotificationParams):
    """A task, as tasks/get answers it."""

    model_config = ConfigDict(extra="allow")


class TaskChanged(Notification[TaskChangedParams, Literal["notifications/tasks"]]):
    """A task has changed."""

    method: Literal["notifications/tasks"] = "notifications/tasks"
    params: TaskChangedParams


class Listening:
    """The streams of one server."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._streams = Waiters(STREAMS_MAX)

    async def serve(self, ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
        """One stream, until it ends. Raises: MCPError."""
        who, number = caller(), ctx.request_id
        if number is None:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen is a request and needs an id.")
        try:
            wanted = SubscriptionsListenRequestParams.model_validate(ctx.params or {}).notifications
        except ValidationError as exc:
            raise MCPError(INVALID_PARAMS, "What to listen to is not well formed.") from exc
        try:
            with self._streams.one(who.id):
                return await self._stream(ctx, who, number, wanted)
        except TooManyCalls as exc:
            raise MCPError(INVALID_REQUEST, str(exc), {"code": exc.code}) from exc

    async def _stream(
        self, ctx: ServerRequestContext[Any, Any], who: Caller, number: str | int, wanted: SubscriptionFilter
    ) -> HandlerResult:
        meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: number}
        uris = await self._allowed_uris(who, wanted.resource_subscriptions or ())
        tasks = await self._allowed_tasks(ctx, who, (wanted.model_extra or {}).get("taskIds"))
        cursors: dict[str, int] = {}
        seen = await _look(who, uris, cursors)
        told: dict[str, tuple[Any, ...]] = {}
        kept: dict[str, Any] = {"resourceSubscriptions": uris or None} | ({"taskIds": tasks} if tasks else {})
        honored = SubscriptionFilter.model_validate(kept)
        params = SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
        await self._send(ctx, number, SubscriptionsAcknowledgedNotification(params=params))
        until = time.monotonic() + STREAM_SECONDS
        while time.monotonic() < until and await _is_valid(who):
            jobs = await _jobs(who, tasks)
            for task_id, job in jobs.items():
                if _mark(job) != told.get(task_id):
                    told[task_id] = _mark(job)
                    task = await self._tasks.shown(ctx, job)
                    changed = TaskChangedParams.model_validate({**task, "_meta": meta})
                    await self._send(ctx, number, TaskChanged(params=changed))
            now = await _look(who, uris, cursors)
            for uri in uris:
                if now.get(uri) != seen.get(uri):
                    updated = ResourceUpdatedNotificationParams(uri=uri, _meta=meta)
                    await self._send(ctx, number, ResourceUpdatedNotification(params=updated))
            seen = now
            if tasks and not uris and all(job.state in TERMINAL for job in jobs.values()):
                break  # no more will come of it
            await asyncio.sleep(LOOK_SECONDS)
        return SubscriptionsListenResult(_meta=meta)

    @staticmethod
    async def _send(ctx: ServerRequestContext[Any, Any], number: str | int, notice: Any) -> None:
        await ctx.session.send_notification(notice, related_request_id=number)

    @staticmethod
    async def _allowed_uris(who: Caller, wanted: Any) -> list[str]:
        """Those that the caller may read, each once, up to the bound."""
        allowed = []
        for uri in list(dict.fromkeys(wanted))[:SUBJECTS_MAX]:
            found = _URI.fullmatch(uri)
            if (uri == LETTERS and "dead_letters" in who.tools) or (
                found and ("logs" if found[2] else "get_job") in who.tools and await _is_seen(who, found[1])
            ):
                allowed.append(uri)
        return allowed

    async def _allowed_tasks(self, ctx: ServerRequestContext[Any, Any], who: Caller, wanted: Any) -> list[str]:
        if not isinstance(wanted, list) or not declares_tasks(ctx):
            return []
        given = [one for one in dict.fromkeys(map(str, wanted)) if len(one) <= 64][:SUBJECTS_MAX]
        return [one for one, job in (await _jobs(who, given)).items() if self._tasks.is_owner(ctx, job)]


async def _is_seen(who: Caller, job_id: str) -> bool:
    try:
        await get_job(who, job_id)
    except (NotFound, InvalidArgument):
        return False
    return True


async def _is_valid(who: Caller) -> bool:
    """Whether the caller's token still holds. The user of a pipe has none."""
    return who.address is None or await who.app.aio.access.is_valid(token_id=who.id)


async def _jobs(who: Caller, ids: list[str]) -> dict[str, Job]:
    """The jobs that are there, by id."""
    known = [one for one in ids if _URI.fullmatch(f"tenure://jobs/{one}")]
    found = await who.app.aio.get_many(known) if known else []
    return {job.id: job for job in found if job is not None}


async def _look(who: Caller, uris: list[str], cursors: dict[str, int]) -> Mapping[str, Any]:
    """How the resources stand: a mark for each that differs once it has changed. `cursors`: the last events seen."""
    named = {uri: match for uri in uris if (match := _URI.fullmatch(uri)) is not None}
    jobs = await _jobs(who, list(dict.fromkeys(match[1] for match in named.values())))
    marks: dict[str, Any] = {}
    for uri, match in named.items():
        job = jobs.get(match[1])
        marks[uri] = None if job is None else _mark(job)
        if match[2] and job is not None:
            marks[uri] = await _newest_event(who, job.id, cursors)
    if LETTERS in uris:
        queues, kinds = who.bounds("read:meta")
        page = await who.app.aio.dead_letters.all(triage="pending", queue=queues, kind=kinds, limit=100)
        marks[LETTERS] = tuple(one.id for one in page.items)
    return marks


async def _newest_event(who: Caller, job_id: str, cursors: dict[str, int]) -> int:
    while True:
        events = await who.app.aio.events(job_id=job_id, after=cursors.get(job_id, 0), limit=EVENTS_PAGE)
        if events:
            cursors[job_id] = events[-1].seq
        if len(events) < EVENTS_PAGE:
            return cursors.get(job_id, 0)


def _mark(job: Job) -> tuple[Any, ...]:
    return job.state, job.token, job.attempt, job.updated_at, repr(job.progress)
