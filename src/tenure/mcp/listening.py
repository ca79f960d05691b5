"""`subscriptions/listen`: a stream of notices that jobs have changed, for clients of the protocol from 2026-07-28 on.

A client names resources (`resourceSubscriptions`) and its own tasks (`taskIds`, of the extension for tasks). What it
may not read is left out of what is acknowledged, without a word whether it exists. A resource is told as changed, for
the client to read it again; of a task its new state is sent. Nothing is replayed: a client that was cut off listens
again and reads what it needs.

Each stream asks the store once a second for all it watches. It ends when all of its tasks have ended and there is
nothing else to watch, when its token is no longer valid, and after an hour at the latest. The streams of one caller are
bounded in number.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

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

from tenure.app import App
from tenure.errors import InvalidArgument, NotFound, TooManyCalls
from tenure.mcp.caller import Caller
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


class Watch(Protocol):
    """What one stream looks at."""

    subjects: list[str]
    """What it watches: what the client named and may read. Set by `begin`."""

    async def begin(self, wanted: SubscriptionFilter) -> Mapping[str, Any]:
        """Take up what the client wants. Answers that part of the filter that is kept."""

    async def changes(self, meta: Mapping[str, Any]) -> list[Notification[Any, Any]]:
        """What has changed since the last look."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more can change."""


class Streams:
    """The streams of one server, up to `most` of each caller at a time."""

    def __init__(self, most: int = STREAMS_MAX) -> None:
        self._open = Waiters(most)

    async def serve(
        self,
        ctx: ServerRequestContext[Any, Any],
        caller_id: str,
        watches: Sequence[Watch],
        is_valid: Callable[[], Awaitable[bool]] | None = None,
    ) -> HandlerResult:
        """One stream, until it ends. `is_valid`: whether its caller may still listen. Raises: MCPError."""
        number = ctx.request_id
        if number is None:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen is a request and needs an id.")
        try:
            wanted = SubscriptionsListenRequestParams.model_validate(ctx.params or {}).notifications
        except ValidationError as exc:
            raise MCPError(INVALID_PARAMS, "What to listen to is not well formed.") from exc
        try:
            with self._open.one(caller_id):
                return await _stream(ctx, number, wanted, watches, is_valid)
        except TooManyCalls as exc:
            raise MCPError(INVALID_REQUEST, str(exc), {"code": exc.code}) from exc


def names_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether this request is to listen to tasks, by a client that speaks them."""
    asked = (ctx.params or {}).get("notifications")
    return ctx.method == METHOD and isinstance(asked, Mapping) and "taskIds" in asked and declares_tasks(ctx)


async def _stream(
    ctx: ServerRequestContext[Any, Any],
    number: str | int,
    wanted: SubscriptionFilter,
    watches: Sequence[Watch],
    is_valid: Callable[[], Awaitable[bool]] | None,
) -> HandlerResult:
    async def send(notice: Any) -> None:
        await ctx.session.send_notification(notice, related_request_id=number)

    meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: number}
    kept: dict[str, Any] = {}
    for watch in watches:
        kept |= await watch.begin(wanted)
    used = [watch for watch in watches if watch.subjects]
    honored = SubscriptionFilter.model_validate(kept)
    params = SubscriptionsAcknowledgedNotificationParams(notifications=honored, _meta=meta)
    await send(SubscriptionsAcknowledgedNotification(params=params))
    until = time.monotonic() + STREAM_SECONDS
    while time.monotonic() < until and (is_valid is None or await is_valid()):
        for watch in used:
            for notice in await watch.changes(meta):
                await send(notice)
        if used and all(watch.is_over for watch in used):
            break
        await asyncio.sleep(LOOK_SECONDS)
    return SubscriptionsListenResult(_meta=meta)


class TaskWatch:
    """Tasks of the client's own. How each stands is told at first, and with every change."""

    def __init__(self, tasks: Tasks, ctx: ServerRequestContext[Any, Any]) -> None:
        self.subjects: list[str] = []
        self.is_over = False
        self._tasks = tasks
        self._ctx = ctx
        self._told: dict[str, tuple[Any, ...]] = {}

    async def begin(self, wanted: SubscriptionFilter) -> Mapping[str, Any]:
        """See Watch."""
        named = (wanted.model_extra or {}).get("taskIds")
        if isinstance(named, list) and declares_tasks(self._ctx):
            given = list(dict.fromkeys(map(str, named)))[:SUBJECTS_MAX]
            found = await _jobs(self._tasks.app_of(self._ctx), given)
            self.subjects = [one for one, job in found.items() if self._tasks.is_owner(self._ctx, job)]
        return {"taskIds": self.subjects} if self.subjects else {}

    async def changes(self, meta: Mapping[str, Any]) -> list[Notification[Any, Any]]:
        """See Watch."""
        jobs = await _jobs(self._tasks.app_of(self._ctx), self.subjects)
        notices: list[Notification[Any, Any]] = []
        for task_id, job in jobs.items():
            if _mark(job) != self._told.get(task_id):
                self._told[task_id] = _mark(job)
                task = await self._tasks.shown(self._ctx, job)
                notices.append(TaskChanged(params=TaskChangedParams.model_validate({**task, "_meta": meta})))
        self.is_over = all(job.state in TERMINAL for job in jobs.values())
        return notices


class ResourceWatch:
    """Resources that the caller may read. Each is told as changed, and nothing of what is in it."""

    is_over = False

    def __init__(self, who: Caller) -> None:
        self.subjects: list[str] = []
        self._who = who
        self._cursors: dict[str, int] = {}
        self._seen: Mapping[str, Any] = {}

    async def begin(self, wanted: SubscriptionFilter) -> Mapping[str, Any]:
        """See Watch."""
        named = list(dict.fromkeys(wanted.resource_subscriptions or ()))[:SUBJECTS_MAX]
        self.subjects = [uri for uri in named if await _is_allowed(self._who, uri)]
        self._seen = await self._look()
        return {"resourceSubscriptions": self.subjects or None}

    async def changes(self, meta: Mapping[str, Any]) -> list[Notification[Any, Any]]:
        """See Watch."""
        before, self._seen = self._seen, await self._look()
        return [
            ResourceUpdatedNotification(params=ResourceUpdatedNotificationParams(uri=uri, _meta=dict(meta)))
            for uri in self.subjects
            if self._seen.get(uri) != before.get(uri)
        ]

    async def _look(self) -> Mapping[str, Any]:
        """How the resources stand: a mark for each that differs once it has changed."""
        app = self._who.app
        named = {uri: match for uri in self.subjects if (match := _URI.fullmatch(uri)) is not None}
        jobs = await _jobs(app, list(dict.fromkeys(match[1] for match in named.values())))
        marks: dict[str, Any] = {}
        for uri, match in named.items():
            job = jobs.get(match[1])
            marks[uri] = None if job is None else _mark(job)
            if match[2] and job is not None:
                marks[uri] = await self._newest_event(job.id)
        if LETTERS in self.subjects:
            queues, kinds = self._who.bounds("read:meta")
            page = await app.aio.dead_letters.all(triage="pending", queue=queues, kind=kinds, limit=100)
            marks[LETTERS] = tuple(one.id for one in page.items)
        return marks

    async def _newest_event(self, job_id: str) -> int:
        while True:
            after = self._cursors.get(job_id, 0)
            events = await self._who.app.aio.events(job_id=job_id, after=after, limit=EVENTS_PAGE)
            if events:
                self._cursors[job_id] = events[-1].seq
            if len(events) < EVENTS_PAGE:
                return self._cursors.get(job_id, 0)


async def _is_allowed(who: Caller, uri: str) -> bool:
    """Whether the caller may read this resource."""
    if uri == LETTERS:
        return "dead_letters" in who.tools
    found = _URI.fullmatch(uri)
    if found is None or ("logs" if found[2] else "get_job") not in who.tools:
        return False
    try:
        await get_job(who, found[1])
    except (NotFound, InvalidArgument):
        return False
    return True


async def _jobs(app: App, ids: list[str]) -> dict[str, Job]:
    """The jobs that are there, by id."""
    known = [one for one in ids if _URI.fullmatch(f"tenure://jobs/{one}")]
    found = await app.aio.get_many(known) if known else []
    return {job.id: job for job in found if job is not None}


def _mark(job: Job) -> tuple[Any, ...]:
    return job.state, job.token, job.attempt, job.updated_at, repr(job.progress)
