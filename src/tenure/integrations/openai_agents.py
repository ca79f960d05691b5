"""OpenAI Agents SDK: runs whose model calls and tool calls are steps of a durable job.

    @app.job(durable=True)
    async def helpdesk(payload: Question, ctx: tenure.Context) -> str:
        result = await DurableRunner.run(ctx, agent, payload.text)
        return result.final_output

The agent, the agents it may hand off to, their models and their function tools are copied for the run; the copies
record every model response and every tool result as a step. After a crash the next attempt reads them back and goes on.
A tool call is found by the id that the recorded response gave it, so tools may run side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from pydantic import TypeAdapter

from tenure.errors import HandlerError, MissingPackage
from tenure.handler.context import Context
from tenure.integrations.agent_steps import AgentSteps

try:
    from agents import Agent, FunctionTool, Handoff, Model, ModelProvider, ModelResponse, RunConfig, Runner, RunResult
    from agents.models.multi_provider import MultiProvider
except ModuleNotFoundError as exc:
    raise MissingPackage("openai-agents", "tenure.integrations.openai_agents") from exc

__all__ = ["DurableRunner"]

_RESPONSES: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


class DurableRunner:
    """Runs agents of the OpenAI Agents SDK inside a durable job."""

    @staticmethod
    async def run(
        ctx: Context, agent: Agent[Any], input: Any, *, run_config: RunConfig | None = None, **options: Any
    ) -> RunResult:
        """`agents.Runner.run` with its model calls and tool calls recorded. `options` go to it as they are.

        Raises: HandlerError if the job is not durable, or for tools and handoffs that cannot be copied.
        """
        steps = AgentSteps(ctx)
        config = run_config or RunConfig()
        config = dataclasses.replace(config, model_provider=_Provider(steps, config.model_provider or MultiProvider()))
        if isinstance(config.model, Model):
            config = dataclasses.replace(config, model=_Recorded(steps, config.model))
        return await Runner.run(_copy(steps, agent, {}), input, run_config=config, **options)


def _copy(steps: AgentSteps, agent: Agent[Any], done: dict[int, Agent[Any]]) -> Agent[Any]:
    """The agent with recorded models and tools, and those that it hands over to likewise. Circles are kept."""
    if id(agent) in done:
        return done[id(agent)]
    copied = done[id(agent)] = agent.clone()
    if isinstance(agent.model, Model):
        copied.model = _Recorded(steps, agent.model)
    copied.tools = [_tool(steps, agent, tool) for tool in agent.tools]
    copied.handoffs = [_hand_over(steps, one, done) for one in agent.handoffs]
    return copied


def _hand_over(steps: AgentSteps, target: Any, done: dict[int, Agent[Any]]) -> Agent[Any]:
    if isinstance(target, Handoff):
        raise HandlerError(
            f"The handoff {target.tool_name!r} was built with `handoff(…)`, which hides its agent, so its calls "
            "would not be recorded. Name the agent itself in `handoffs`."
        )
    return _copy(steps, target, done)


def _tool(steps: AgentSteps, agent: Agent[Any], tool: Any) -> FunctionTool:
    if not isinstance(tool, FunctionTool):
        raise HandlerError(
            f"The tool {getattr(tool, 'name', tool)!r} of agent {agent.name!r} runs at the provider or in another "
            "process and cannot be recorded. Use function tools in a durable job."
        )
    invoke = tool.on_invoke_tool

    async def recorded(context: Any, text: str) -> Any:
        async def call() -> Any:
            return await invoke(context, text)

        return await steps.record(f"tool {tool.name}", call, key=context.tool_call_id)

    return dataclasses.replace(tool, on_invoke_tool=recorded)


class _Provider(ModelProvider):
    """Models by name, recorded."""

    def __init__(self, steps: AgentSteps, inner: ModelProvider) -> None:
        self._steps = steps
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return _Recorded(self._steps, self._inner.get_model(model_name))


class _Recorded(Model):
    """A model whose responses are steps of the job."""

    def __init__(self, steps: AgentSteps, inner: Model) -> None:
        self._steps = steps
        self._inner = inner

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        async def call() -> Any:
            return _RESPONSES.dump_python(await self._inner.get_response(*args, **kwargs), mode="json")

        return _RESPONSES.validate_python(await self._steps.record("model", call))

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        _refuse_streaming()

    async def close(self) -> None:
        await self._inner.close()


def _refuse_streaming() -> NoReturn:
    raise HandlerError("A durable run is not streamed: use `DurableRunner.run`, and `ctx.stream` for what users watch.")
