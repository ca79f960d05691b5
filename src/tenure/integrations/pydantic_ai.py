"""pydantic-ai: an agent's hour of work survives a crash without paying for it twice.

    agent = Agent("anthropic:…", name="cashier", capabilities=[TenureDurability()])

    @app.job(durable=True)
    async def cashier(payload: Order, ctx: tenure.Context) -> str:
        with agent_steps(ctx):
            return (await agent.run(payload.text)).output

Every model request, tool call and look at a toolset becomes a step of the job: recorded once, fenced by the job's token
and read back by the next attempt. Outside the block the agent runs as it always does. Tools run one after the other,
so that they are found again in the same order. Needs pydantic-ai 2.66 or newer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from tenure.errors import MissingPackage
from tenure.handler.signals import Permanent
from tenure.integrations.agent_steps import agent_steps, current_steps

try:
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        DurabilityEngineSpec,
        DurableOperationBackend,
        DurableOperationId,
        JournalCallableOperationBackend,
        RoleBasedOperationConfig,
    )
except ModuleNotFoundError as exc:
    raise MissingPackage("pydantic-ai", "tenure.integrations.pydantic_ai") from exc

__all__ = ["TenureDurability", "agent_steps"]


def _unrecordable(error: Exception) -> BaseException:
    return Permanent(f"A value of the agent cannot be recorded as JSON: {error}")


_SPEC: Final = DurabilityEngineSpec(
    engine_name="Tenure",
    durable_unit_noun="step",
    durable_container_noun="job",
    codec=JSON_CODEC,
    serialization_failure=_unrecordable,
    toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
    sequential_tools_in_durable_context=True,
)


class _Backend(JournalCallableOperationBackend[None]):
    """Carries out each operation of an agent as a step of the job at hand."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        steps = current_steps()
        return await body() if steps is None else await steps.record(name, body)


class TenureDurability(BaseDurabilityCapability[Any]):
    """The capability that records an agent's calls as steps of the durable job that runs it."""

    engine_spec = _SPEC

    @property
    def in_durable_context(self) -> bool:
        """Whether the agent runs inside an `agent_steps` block."""
        return current_steps() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """What carries out the agent's operations."""
        nothing = RoleBasedOperationConfig[None](model=None, event=None, capability=None, tool=None)
        return _Backend(agent_name=self.name or "agent", default_model_id=self.default_model_id, config=nothing)
