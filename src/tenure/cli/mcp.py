"""`tenure mcp` and `tenure confirm`: the queue for agents, and what a person agrees to on their behalf."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import Annotated

import typer

from tenure.cli.group import verbs
from tenure.cli.options import Json, Kinds, Queues, Url, default_actor, opened
from tenure.cli.screen import Facts, Screen, confirm
from tenure.cli.text import to_json
from tenure.errors import MissingExtra

app = verbs()


@app.command("mcp")
def mcp(
    toolsets: Annotated[
        str,
        typer.Option(
            "--toolsets", metavar="NAMES", help="Of use, inspect, triage, work, approve, admin; separated by commas."
        ),
    ] = "inspect",
    read_only: Annotated[bool, typer.Option("--read-only", help="Leave out every tool that writes.")] = False,
    show_data: Annotated[
        bool, typer.Option("--show-data", help="Answer payloads, results, errors and progress as well.")
    ] = False,
    ask: Annotated[
        bool, typer.Option("--ask/--no-ask", help="Whether a person must agree to what is hard to take back.")
    ] = True,
    calls: Annotated[int, typer.Option("--calls", metavar="N", min=1, help="Calls per minute at most.")] = 600,
    kind: Kinds = None,
    queue: Queues = None,
    url: Url = None,
) -> None:
    """Serve the queue to an agent over stdin and stdout (Model Context Protocol)."""
    _check_extra("`tenure mcp`")
    from tenure.mcp.caller import Access
    from tenure.mcp.server import make_server

    chosen = tuple(one.strip() for one in toolsets.split(",") if one.strip())
    access = Access(chosen, read_only, tuple(kind or ()), tuple(queue or ()), show_data, ask)
    person = default_actor()
    name = f"mcp:{person}"
    with opened(url, actor=name) as tenure:
        make_server(tenure, access, name=name, person=person, calls_per_minute=calls).run("stdio")


@app.command("confirm")
def confirm_plan(
    plan: Annotated[str, typer.Argument(help="The plan that the agent was answered.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Agree to what an agent asks for. Prints a code for exactly that call, good once, for ten minutes."""
    _check_extra("`tenure confirm`")
    from tenure.mcp.confirm import confirm as agreed
    from tenure.mcp.confirm import read_plan

    with opened(url) as tenure:
        asked = asyncio.run(read_plan(tenure, plan))
        # There is no --yes: a person reads this on a terminal.
        confirm(f"let {asked.caller_name} call {asked.tool} with {to_json(asked.arguments)}", yes=False)
        code = asyncio.run(agreed(tenure, asked))
        tenure.access.note("mcp:confirm", asked.tool, actor=default_actor(), detail={"caller": asked.caller_id})
        screen = Screen(as_json, tenure.now())
    screen.show({"code": code}, Facts([("code", code)]))


def _check_extra(what: str) -> None:
    if find_spec("mcp") is None:
        raise MissingExtra("mcp", what)
