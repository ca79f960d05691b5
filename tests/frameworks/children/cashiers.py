"""Agents that charge money, one kind for each framework: `tenure worker tests.frameworks.children.cashiers:app`.

Each agent asks its model, charges by a tool, and asks its model again. The worker dies in the second model call, once
for each job. What is really called is appended to the file that TENURE_TEST_NOTES names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypedDict

from agents import Agent as OpenAiAgent
from agents import Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from langgraph.graph import END, START, StateGraph
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent, ModelMessage
from pydantic_ai import ModelResponse as Answer
from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import tenure
from tenure.integrations.openai_agents import DurableRunner
from tenure.integrations.pydantic_ai import TenureDurability, agent_steps

set_tracing_disabled(True)
app = tenure.App()
app.queue("agents", max_attempts=9)


def note(what: str) -> None:
    file = os.open(os.environ["TENURE_TEST_NOTES"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{what}\n".encode())
    os.close(file)


def die_once() -> None:
    """End this process at once, the first time that this is called."""
    once = Path(os.environ["TENURE_TEST_NOTES"]).with_name("once")
    try:
        once.touch(exist_ok=False)
    except FileExistsError:
        return
    os._exit(3)


# --- pydantic-ai ---


def _answer(messages: list[ModelMessage], info: AgentInfo) -> Answer:
    note("model")
    if len(messages) == 1:
        return Answer(parts=[ToolCallPart("charge", {"cents": 700}), ToolCallPart("charge", {"cents": 50})])
    die_once()
    return Answer(parts=[TextPart("charged once")])


cashier = Agent(FunctionModel(_answer), name="cashier", capabilities=[TenureDurability()])


@cashier.tool_plain
def charge(cents: int) -> str:
    """Charge an amount."""
    note(f"charge {cents}")
    return f"charged {cents}"


@app.job(queue="agents", durable=True)
async def pydantic_ai(payload: dict[str, Any], ctx: tenure.Context) -> str:
    with agent_steps(ctx):
        return (await cashier.run("Charge 7.00 and 0.50.")).output


# --- OpenAI Agents SDK ---


class ScriptedModel(Model):
    """Calls the tool twice side by side, then answers."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        note("model")
        given = args[1] if len(args) > 1 else kwargs["input"]
        if isinstance(given, str) or not any(one.get("type") == "function_call_output" for one in given):
            calls = [
                ResponseFunctionToolCall(
                    type="function_call", call_id=f"call-{cents}", name="charge_card", arguments=f'{{"cents": {cents}}}'
                )
                for cents in (700, 50)
            ]
            return ModelResponse(output=list(calls), usage=Usage(), response_id=None)
        die_once()
        text = ResponseOutputText(type="output_text", text="charged once", annotations=[])
        message = ResponseOutputMessage(
            id="message", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("not streamed")


@function_tool
def charge_card(cents: int) -> str:
    """Charge an amount."""
    note(f"charge {cents}")
    return f"charged {cents}"


specialist: OpenAiAgent[Any] = OpenAiAgent(name="specialist", model=ScriptedModel(), tools=[charge_card])


@app.job(queue="agents", durable=True)
async def openai_agents(payload: dict[str, Any], ctx: tenure.Context) -> Any:
    return (await DurableRunner.run(ctx, specialist, "Charge 7.00 and 0.50.")).final_output


# --- LangGraph ---


class State(TypedDict, total=False):
    plan: list[int]
    answer: str


def build_graph(ctx: tenure.Context) -> Any:
    """Each node is a step: what it returned is read back when the graph runs again."""

    async def plan(state: State) -> State:
        note("model")
        return {"plan": [700, 50]}

    async def charge_all(state: State) -> State:
        for cents in state["plan"]:
            note(f"charge {cents}")
        return {}

    async def conclude(state: State) -> State:
        note("model")
        die_once()
        return {"answer": "charged once"}

    graph = StateGraph(State)
    for node in (plan, charge_all, conclude):

        async def recorded(state: State, node: Any = node) -> Any:
            return await ctx.step(node.__name__, node, state)

        graph.add_node(node.__name__, recorded)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "charge_all")
    graph.add_edge("charge_all", "conclude")
    graph.add_edge("conclude", END)
    return graph.compile()


@app.job(queue="agents", durable=True)
async def langgraph(payload: dict[str, Any], ctx: tenure.Context) -> Any:
    return (await build_graph(ctx).ainvoke({}))["answer"]
