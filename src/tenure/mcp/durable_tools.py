"""Durable tools for an MCP server of the user's own: each call is a job, run by the workers of an App.

The decorated function stays the code that runs, now in a worker. What the MCP server calls is a stand-in with the same
signature, which enqueues the job and answers what became of it. The stored result is the whole CallToolResult, so that
every door of the protocol answers the same.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context as RequestContext
from mcp.server.mcpserver import authenticated_principal
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools.base import Tool
from mcp_types import CallToolResult, TextContent

from tenure import Backoff, Context
from tenure.app import App
from tenure.errors import HandlerError, ResultTimeout, TenureError
from tenure.mcp.approvals import approval_form, may_answer, read_form
from tenure.mcp.listening import Streams, TaskWatch, names_tasks
from tenure.mcp.tasks import Tasks, request, start_task, wait_for_end, wants_task
from tenure.mcp.tools.answers import error_text
from tenure.model.job import Job
from tenure.model.state import TERMINAL, State

PREFIX: Final = "mcp."
"""The kind of a tool's jobs is `mcp.` and the tool's name."""
STREAMS_MAX: Final = 64
"""Streams of notices of one caller; of all callers together, where the server authenticates none."""

Errors = type[Exception] | tuple[type[Exception], ...]


class Durable(Tasks):
    """The extension of a server, and the decorator of its durable tools. See `tenure.mcp.durable`."""

    def __init__(
        self,
        app: App,
        *,
        queue: str = "tools",
        wait_seconds: float | None = None,
        person: Callable[[ServerRequestContext[Any, Any]], str | None] | None = None,
    ) -> None:
        super().__init__()
        self._app = app
        self._queue = queue
        self._wait_seconds = wait_seconds
        self._person = person
        self._tools: dict[str, Tool] = {}
        self._streams = Streams(STREAMS_MAX)

    def __call__(
        self,
        *,
        kind: str | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        backoff: Backoff | None = None,
        retry_on: Errors = (),
        give_up_on: Errors = (),
        durable: bool = False,
        version: str | None = None,
        deadline: float | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a tool durable: `@durable()` below `@server.tool()`. Takes what `app.job` takes.

        The function may take a tenure.Context, which no client sees. It is called once per attempt, so it must bear
        repetition, as any handler must. A ToolError that it raises is the tool's answer, and is not retried.

        Raises: HandlerError, if it takes an MCP Context: a worker has no request to be the context of.
        """
        return functools.partial(
            self._wrap,
            kind=kind,
            max_attempts=max_attempts,
            priority=priority,
            timeout=timeout,
            lease=lease,
            backoff=backoff,
            retry_on=retry_on,
            give_up_on=give_up_on,
            durable=durable,
            version=version,
            deadline=deadline,
        )

    async def notices(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Middleware by which clients are told of their tasks as they change: `MCPServer(…, middleware=[this])`.

        Answers `subscriptions/listen` where it names tasks, about them alone; the server's own notices are listened to
        by another request. Without it clients ask for their tasks again and again (`tasks/get`).
        """
        if not names_tasks(ctx):
            return await call_next(ctx)
        return await self._streams.serve(ctx, _owner(ctx), [TaskWatch(self, ctx)])

    # --- calls ---

    def app_of(self, ctx: ServerRequestContext[Any, Any]) -> App:
        """The one App."""
        return self._app

    def is_owner(self, ctx: ServerRequestContext[Any, Any], job: Job) -> bool:
        """Whether the job is a call of one of these tools by this caller."""
        return job.kind in self._tools and job.source_ref == _owner(ctx)

    def actor_of(self, ctx: ServerRequestContext[Any, Any]) -> str:
        """The caller, as far as the server knows it."""
        return _owner(ctx)

    def result_of(self, ctx: ServerRequestContext[Any, Any], job: Job) -> CallToolResult:
        """The stored result, or what went wrong."""
        return self._result(job)

    async def inputs_of(self, ctx: ServerRequestContext[Any, Any], job: Job) -> dict[str, Any]:
        """Approvals that the job waits for, as forms for the client's person. The key is the approval's id."""
        person = self._person(ctx) if self._person is not None else None
        if person is None:
            return {}
        found = await self._app.aio.approvals.all(job_id=job.id)
        return {one.id: approval_form(one) for one in found.items if may_answer(one, person)}

    async def take_inputs(self, ctx: ServerRequestContext[Any, Any], job: Job, answers: Mapping[str, Any]) -> None:
        """Count the person's answers as votes, each for the arguments that its form showed."""
        person = self._person(ctx) if self._person is not None else None
        if person is None:
            return
        for one in (await self._app.aio.approvals.all(job_id=job.id)).items:
            choice, note = read_form(answers.get(one.id))
            if choice == "approve":
                await self._app.aio.approvals.approve(one.id, by=person, args_hash=one.args_hash, note=note, door="mcp")
            elif choice == "deny":
                await self._app.aio.approvals.deny(one.id, by=person, args_hash=one.args_hash, note=note, door="mcp")

    def _wrap(self, function: Callable[..., Any], *, kind: str | None, **options: Any) -> Callable[..., Any]:
        signature = inspect.signature(function, eval_str=True)
        hidden = _context_parameter(function.__name__, signature)
        stand_in = self._stand_in(function, signature, hidden, kind or f"{PREFIX}{function.__name__}")
        tool = Tool.from_function(stand_in)
        name = kind or f"{PREFIX}{tool.name}"
        self._tools[name] = tool
        self._app.job(kind=name, queue=self._queue, **options)(_handler(function, tool, hidden))
        return stand_in

    def _stand_in(
        self, function: Callable[..., Any], signature: inspect.Signature, hidden: str | None, kind: str
    ) -> Callable[..., Any]:
        shown = signature.replace(parameters=[one for name, one in signature.parameters.items() if name != hidden])

        @functools.wraps(function)
        async def call(**values: Any) -> CallToolResult:
            try:
                return await self._call(kind, values)
            except TenureError as exc:
                raise ToolError(error_text(exc)) from exc

        del call.__wrapped__
        call.__signature__ = shown  # type: ignore[attr-defined]
        call.__annotations__ = {name: one.annotation for name, one in shown.parameters.items()}
        call.__annotations__["return"] = signature.return_annotation
        return call

    async def _call(self, kind: str, values: dict[str, Any]) -> CallToolResult:
        arguments = self._tools[kind].fn_metadata.arg_model.model_validate(values, by_name=True, by_alias=True)
        owner = _owner(request())
        payload = arguments.model_dump(mode="json", by_alias=True)
        handle = await self._app.aio.enqueue(kind, payload, source_ref=owner, actor=owner)
        if wants_task():
            start_task(handle.id)
        job = await wait_for_end(lambda: self._app.aio.get(handle.id), self._wait_seconds)
        if job.state not in TERMINAL:
            raise ResultTimeout(
                f"Job {job.id} was still {job.shown_state} after {self._wait_seconds:g} s. It goes on, and calling "
                "the tool again would start another. A client that speaks MCP Tasks is not kept waiting."
            )
        return self._result(job)

    def _result(self, job: Job) -> CallToolResult:
        if job.state is State.SUCCEEDED and job.cleaned_at is None:
            return CallToolResult.model_validate(job.result)
        name = self._tools[job.kind].name
        why = f"ended as {job.state} after {job.attempt} attempts"
        if job.state is State.SUCCEEDED:
            why = "succeeded, and retention has removed its result since"
        said = TextContent(type="text", text=f"Error executing tool {name}: job {job.id} {why}.")
        return CallToolResult(content=[said], is_error=True)


def _handler(function: Callable[..., Any], tool: Tool, hidden: str | None) -> Callable[..., Any]:
    """The handler of the tool's jobs: sync for a sync function, which then runs in a thread of the worker."""

    def values(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
        found = tool.fn_metadata.arg_model.model_validate(arguments, by_name=True, by_alias=True)
        return found.model_dump_one_level() | ({hidden: ctx} if hidden is not None else {})

    def stored(result: Any) -> dict[str, Any]:
        whole = tool.fn_metadata.convert_result(result)
        return whole.model_dump(by_alias=True, mode="json", exclude_none=True)

    def refused(exc: ToolError) -> dict[str, Any]:
        said = TextContent(type="text", text=f"Error executing tool {tool.name}: {exc}")
        return CallToolResult(content=[said], is_error=True).model_dump(by_alias=True, mode="json", exclude_none=True)

    if inspect.iscoroutinefunction(function):

        async def run_async(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
            try:
                return stored(await function(**values(arguments, ctx)))
            except ToolError as exc:
                return refused(exc)

        return run_async

    def run(arguments: dict[str, Any], ctx: Context) -> dict[str, Any]:
        try:
            return stored(function(**values(arguments, ctx)))
        except ToolError as exc:
            return refused(exc)

    return run


def _context_parameter(name: str, signature: inspect.Signature) -> str | None:
    """The parameter that takes the job's context. Raises: HandlerError."""
    found = None
    for parameter in signature.parameters.values():
        kind = parameter.annotation
        if inspect.isclass(kind) and issubclass(kind, RequestContext):
            raise HandlerError(
                f"Durable tool {name!r} takes an MCP Context as {parameter.name!r}. It runs in a worker, which has no "
                "MCP request. Take a tenure.Context instead: it has progress, logs, steps and waits."
            )
        if kind is Context:
            found = parameter.name
    return found


def _owner(ctx: ServerRequestContext[Any, Any]) -> str:
    """Whose call it is: the principal that the server authenticated, by a digest; one and the same if it does not."""
    principal = authenticated_principal(ctx)
    return "mcp" if principal is None else f"mcp:{hashlib.sha256(principal.encode()).hexdigest()[:32]}"
