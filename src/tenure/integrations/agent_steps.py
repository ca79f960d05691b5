"""Steps of an agent framework inside a durable job: each model call and tool call is recorded once and read back.

The integrations for pydantic-ai and the OpenAI Agents SDK share this. A framework calls the same operations in the same
order when a job goes on after a crash, so an operation is found again by its name and by how often that name was used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tenure.handler.context import Context

__all__ = ["AgentSteps", "agent_steps", "current_steps"]

_current: ContextVar[AgentSteps | None] = ContextVar("tenure_agent_steps", default=None)


class AgentSteps:
    """The model calls and tool calls of one attempt."""

    __slots__ = ("_ctx", "_used")

    def __init__(self, ctx: Context) -> None:
        _ = ctx.journal  # refuses a job that is not durable
        self._ctx = ctx
        self._used: Counter[str] = Counter()

    async def record(self, name: str, body: Callable[[], Awaitable[Any]], *, key: str | None = None) -> Any:
        """Run `body` as a step, or read back what an earlier attempt recorded. The value is JSON.

        Without a `key` the step is told apart from others of its name by its number.
        """
        if key is None:
            self._used[name] += 1
            key = str(self._used[name])
        return await self._ctx.step(name, body, key=key)


@contextmanager
def agent_steps(ctx: Context) -> Iterator[AgentSteps]:
    """Make the runs of agents inside this block durable: `with agent_steps(ctx): await agent.run(…)`.

    Raises: HandlerError if the job is not durable.
    """
    steps = AgentSteps(ctx)
    mark = _current.set(steps)
    try:
        yield steps
    finally:
        _current.reset(mark)


def current_steps() -> AgentSteps | None:
    """The steps of the job whose `agent_steps` block this code runs in."""
    return _current.get()
