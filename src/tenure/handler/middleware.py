"""Middleware: code of the user's own around every handler, in the thread, task or process in which the handler runs.

Three shapes, told apart by how they are written:

    @app.middleware
    def connections(ctx: Context) -> Iterator[None]:   # a generator: around every handler, sync and async
        close_old_connections()
        yield                                          # raises here what the handler raised
        close_old_connections()

    @app.middleware
    async def traced(ctx: Context, call: AsyncCallNext) -> Any:   # around async handlers
        with tracer.span(ctx.kind):
            return await call()

    @app.middleware
    def timed(ctx: Context, call: CallNext) -> Any:               # around sync handlers
        ...
        return call()

The one that was added first is the outermost.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from tenure.errors import HandlerError
from tenure.model.frozen import frozen

if TYPE_CHECKING:
    from tenure.handler.context import Context

CallNext = Callable[[], Any]
"""Runs the handler, or the next middleware, and answers what it returned."""
AsyncCallNext = Callable[[], Awaitable[Any]]
"""The same for async handlers."""

AroundAll = Callable[["Context"], Iterator[None]]
AroundSync = Callable[["Context", CallNext], Any]
AroundAsync = Callable[["Context", AsyncCallNext], Awaitable[Any]]


@frozen
class Middleware:
    """One function and what it goes around."""

    function: Callable[..., Any]
    around_sync: bool
    around_async: bool
    manager: Callable[[Any], AbstractContextManager[None]] | None = None
    """Made of a generator function."""


Middlewares = Sequence[Middleware]


def read_middleware(function: Callable[..., Any]) -> Middleware:
    """What a function goes around. Raises: HandlerError, if it is of none of the three shapes."""
    wanted = 1 if inspect.isgeneratorfunction(function) else 2
    positional = [
        one
        for one in inspect.signature(function).parameters.values()
        if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD} and one.default is one.empty
    ]
    if inspect.isasyncgenfunction(function) or len(positional) != wanted:
        raise HandlerError(
            f"{function.__qualname__}{inspect.signature(function)} is no middleware. Write `def name(ctx, call)` "
            "around sync handlers, `async def name(ctx, call)` around async ones, or `def name(ctx)` with one "
            "`yield` around both."
        )
    if wanted == 1:
        return Middleware(function, True, True, contextmanager(function))
    is_async = inspect.iscoroutinefunction(function)
    return Middleware(function, not is_async, is_async)


def within(middlewares: Middlewares, is_async: bool, context: Context, call: CallNext) -> Any:
    """CallNext a handler inside its middleware; a coroutine, if the handler is async."""
    for one in reversed(middlewares):
        if is_async and one.around_async:
            call = _async_layer(one, context, call)
        elif not is_async and one.around_sync:
            call = _sync_layer(one, context, call)
    return call()


def _async_layer(one: Middleware, context: Context, call: AsyncCallNext) -> AsyncCallNext:
    async def layer() -> Any:
        if one.manager is None:
            return await one.function(context, call)
        with one.manager(context):
            return await call()

    return layer


def _sync_layer(one: Middleware, context: Context, call: CallNext) -> CallNext:
    def layer() -> Any:
        if one.manager is None:
            return one.function(context, call)
        with one.manager(context):
            return call()

    return layer
