"""MCP Tasks (SEP-2663): a tool call that is a durable job, for clients that declare the extension on the request.

A tool enqueues its job and then asks `wants_task()`. If so, `start_task` leaves the tool, and the call is answered with
a task; else the tool waits and answers inline. So both kinds of clients pass the same checks on the same path. A task's
id is its job's id. An id may become known, so a task is answered to its owner alone; to all others there is none.

    queued, leased, running, waiting      working, with attempt and progress as the message
    waiting for an approval               input_required
    succeeded                             completed
    failed, dead                          completed, with a result whose `isError` is true
    cancelled                             cancelled

While a client waits for an inline answer it is told of the job's progress, if it asked for that with its call.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final, Never

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams
from pydantic import Field

from tenure.app import App
from tenure.errors import HandlerError, InvalidArgument, NotFound, TenureError
from tenure.mcp.envelope import one_line
from tenure.mcp.tools.answers import POLL_SECONDS
from tenure.model.job import Job
from tenure.model.progress import read_progress
from tenure.model.state import TERMINAL, State

TASKS: Final = "io.modelcontextprotocol/tasks"
VERSIONS: Final = frozenset({"2026-07-28"})
"""The versions of the protocol that know extension methods."""
POLL_MIN_MS: Final = 500
POLL_MAX_MS: Final = 10_000
PROGRESS_STEP: Final = 0.001
POLICY_SECONDS: Final = 60.0
"""How long the retention of a queue is remembered."""


class TaskStarted(MCPError):
    """Leaves a tool whose job is durable. No client ever sees it."""

    def __init__(self, job_id: str) -> None:
        super().__init__(code=INVALID_PARAMS, message="a task was started")
        self.job_id = job_id


def wants_task() -> bool:
    """Whether the client of this call takes a task for an answer."""
    return declares_tasks(_call().ctx)


def start_task(job_id: str) -> Never:
    """Answer the call with the task of this job."""
    raise TaskStarted(job_id)


def request() -> ServerRequestContext[Any, Any]:
    """The request of this call. Raises: HandlerError, if the server does not have the extension."""
    return _call().ctx


async def wait_for_end(look: Callable[[], Awaitable[Job]], seconds: float | None) -> Job:
    """A job once it has ended, or after so many seconds; without a bound if None. Tells the client of its progress."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    job = await look()
    while job.state not in TERMINAL and time.monotonic() < until:
        await _call().tell_progress(job)
        await asyncio.sleep(POLL_SECONDS)
        job = await look()
    return job


class TaskParams(RequestParams):
    """Which task."""

    task_id: str = Field(max_length=64)


class UpdateParams(TaskParams):
    """Answers to what a task asked for, by the keys of its questions."""

    input_responses: dict[str, Any] = Field(default_factory=dict)


class Tasks(Extension):
    """The extension. Subclasses say whose a task is, and what its result looks like."""

    identifier = TASKS

    def __init__(self) -> None:
        self._retention: dict[tuple[int, str], tuple[float, float | None]] = {}

    def methods(self) -> Sequence[MethodBinding]:
        """tasks/get, tasks/update and tasks/cancel."""
        return [
            MethodBinding("tasks/get", TaskParams, self._get, VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._update, VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._cancel, VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Answer with a task where the client declared the extension on this request and the tool started one."""
        mark = _CALL.set(_Call(self, ctx))
        try:
            return await call_next(ctx)
        except TaskStarted as started:
            app = self.app_of(ctx)
            return {"resultType": "task", **await self.shown(ctx, await app.aio.get(started.job_id))}
        finally:
            _CALL.reset(mark)

    # --- for subclasses ---

    @abstractmethod
    def app_of(self, ctx: ServerRequestContext[Any, Any]) -> App:
        """The queue that the caller's jobs are in."""

    @abstractmethod
    def is_owner(self, ctx: ServerRequestContext[Any, Any], job: Job) -> bool:
        """Whether the caller may see and cancel this task."""

    @abstractmethod
    def actor_of(self, ctx: ServerRequestContext[Any, Any]) -> str:
        """Who cancels."""

    @abstractmethod
    def result_of(self, ctx: ServerRequestContext[Any, Any], job: Job) -> CallToolResult:
        """The result of a job that has ended, well or badly."""

    def shows_progress(self, ctx: ServerRequestContext[Any, Any]) -> bool:
        """Whether the message of a task tells the job's progress."""
        return True

    async def inputs_of(self, ctx: ServerRequestContext[Any, Any], job: Job) -> Mapping[str, Any]:
        """What a waiting job asks the caller for: key → request."""
        return {}

    async def take_inputs(self, ctx: ServerRequestContext[Any, Any], job: Job, answers: Mapping[str, Any]) -> None:
        """Take answers in. Unknown keys are ignored."""

    # --- methods ---

    async def _get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        job = await self._find(ctx, params.task_id)
        return {"resultType": "complete", **await self.shown(ctx, job)}

    async def _update(self, ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> HandlerResult:
        job = await self._find(ctx, params.task_id)
        try:
            await self.take_inputs(ctx, job, params.input_responses)
        except TenureError as exc:
            raise MCPError(INVALID_PARAMS, one_line(str(exc)), {"code": exc.code}) from exc
        return {"resultType": "complete"}

    async def _cancel(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        """Ask for it. A task that has ended stays as it is."""
        job = await self._find(ctx, params.task_id)
        if job.state not in TERMINAL:
            await self.app_of(ctx).aio.cancel_many([job.id], actor=self.actor_of(ctx), reason="tasks/cancel")
        return {"resultType": "complete"}

    async def _find(self, ctx: ServerRequestContext[Any, Any], task_id: str) -> Job:
        require_client_extension(ctx, TASKS)
        try:
            job = await self.app_of(ctx).aio.get(task_id)
        except (NotFound, InvalidArgument):
            job = None
        if job is None or not self.is_owner(ctx, job):
            raise MCPError(INVALID_PARAMS, "There is no such task. It may have been deleted after its ttlMs.")
        return job

    async def shown(self, ctx: ServerRequestContext[Any, Any], job: Job) -> dict[str, Any]:
        """A job as a task."""
        task: dict[str, Any] = {
            "taskId": job.id,
            "status": "working",
            "statusMessage": self.message(ctx, job),
            "createdAt": _moment(job.created_at),
            "lastUpdatedAt": _moment(job.updated_at),
            "ttlMs": await self._ttl_ms(ctx, job),
            "pollIntervalMs": _poll_ms(job),
        }
        if job.state is State.CANCELLED:
            task["status"] = "cancelled"
        elif job.state in TERMINAL:
            result = self.result_of(ctx, job).model_dump(by_alias=True, mode="json", exclude_none=True)
            task |= {"status": "completed", "result": {"resultType": "complete", **result}}
        elif job.state is State.WAITING:
            asked = await self.inputs_of(ctx, job)
            if asked:
                task |= {"status": "input_required", "inputRequests": dict(asked)}
        return task

    def message(self, ctx: ServerRequestContext[Any, Any], job: Job) -> str:
        """How a job stands, in words."""
        said = f"{job.shown_state}, attempt {job.attempt} of {job.max_attempts}"
        if job.state is State.QUEUED and job.run_at > job.updated_at:
            said += f", due at {_moment(job.run_at)}"
        if self.shows_progress(ctx):
            share, words = read_progress(job.progress)
            said += ("" if share is None else f", {share:.0%}") + (words and f": {words}")
        return one_line(said)[:500]

    async def _ttl_ms(self, ctx: ServerRequestContext[Any, Any], job: Job) -> int | None:
        """How long the result of a job of this queue is kept after its end."""
        app = self.app_of(ctx)
        place = (id(app), job.queue)
        seconds, at = self._retention.get(place, (0.0, None))
        if at is None or time.monotonic() - at > POLICY_SECONDS:
            rows = await app.aio.queues.all(job.queue)
            kept = rows[0].policy.retain_seconds if rows else None
            seconds = -1.0 if kept is None else kept
            self._retention[place] = (seconds, time.monotonic())
        return None if seconds < 0 else int(seconds * 1000)


class _Call:
    """A call of a tool that is being answered, and what its client was told last."""

    def __init__(self, tasks: Tasks, ctx: ServerRequestContext[Any, Any]) -> None:
        self.ctx = ctx
        self._tasks = tasks
        self._number = 0.0
        self._message = ""

    async def tell_progress(self, job: Job) -> None:
        """Tell how the job stands if that is news. A client that did not ask for progress is sent nothing.

        The protocol wants numbers that rise. So news without a share, or with one that a new attempt has yet to reach
        again, is told with a number a little above the last.
        """
        message = self._tasks.message(self.ctx, job)
        if message != self._message:
            share = read_progress(job.progress)[0] if self._tasks.shows_progress(self.ctx) else None
            self._number, self._message = max(share or 0.0, self._number + PROGRESS_STEP), message
            await self.ctx.session.report_progress(self._number, None if share is None else 1.0, message)


_CALL: ContextVar[_Call | None] = ContextVar("tenure_mcp_call", default=None)


def _call() -> _Call:
    found = _CALL.get()
    if found is None:
        raise HandlerError(
            "A durable tool was called by a server that does not have its extension, so the caller is not known and "
            "nothing was enqueued. Make the server with `MCPServer(…, extensions=[durable])`."
        )
    return found


def declares_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client declared the extension on this request."""
    declared = ctx.session.client_capabilities
    return ctx.protocol_version in VERSIONS and bool(declared and declared.extensions and TASKS in declared.extensions)


def _poll_ms(job: Job) -> int:
    """A quarter of the time that it has been at it: short jobs are seen soon, long ones seldom asked for."""
    elapsed = (job.updated_at - job.created_at).total_seconds() * 1000
    return int(max(POLL_MIN_MS, min(POLL_MAX_MS, elapsed / 4)))


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
