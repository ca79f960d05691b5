"""The queue as a server of the Model Context Protocol, and durable tools for servers of one's own.

Needs the extra `mcp`, whose libraries are imported by the first call only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tenure.errors import MissingExtra

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.mcp.durable_tools import Durable
    from tenure.mcp.http_server import HttpServer

__all__ = ["durable", "http"]


def http(toolsets: Iterable[str] | None = None, *, calls_per_minute: int = 600) -> HttpServer:
    """The server to mount: `tenure.web.asgi(app, mcp=tenure.mcp.http())`. It is reached with a token of scope `mcp`.

    Args:
        toolsets: Those that are offered, all if left out. The scopes of a token decide which of them it gets.
        calls_per_minute: How often the holder of one token may call.

    Raises: MissingExtra, ConfigError.
    """
    _check("The MCP server over HTTP")
    from tenure.mcp.caller import TOOLSETS
    from tenure.mcp.http_server import HttpServer

    return HttpServer(tuple(TOOLSETS) if toolsets is None else toolsets, calls_per_minute=calls_per_minute)


def durable(
    app: App,
    *,
    queue: str = "tools",
    wait_seconds: float | None = None,
    person: Callable[[Any], str | None] | None = None,
) -> Durable:
    """Durable tools for an MCP server of your own: an extension of the server, and the decorator of its tools.

        durable = tenure.mcp.durable(app, queue="tools")
        server = MCPServer("reports", extensions=[durable], middleware=[durable.notices])

        @server.tool()
        @durable()
        def build_report(pages: int) -> str: ...

    Each call of such a tool is a job, which workers of `app` run: it survives their crashes and the server's. A client
    that speaks MCP Tasks gets a task, and by `durable.notices` is told of it as it changes; any other gets the answer
    when it is there, and the job's progress meanwhile if it asked for progress.

    Args:
        queue: Where the jobs wait.
        wait_seconds: How long a client without Tasks is kept waiting; as long as it stays connected if left out.
        person: Names the person at the client of a request, given its context. A task that waits for an approval is
            then `input_required`, and the answer to its form is a vote of that person. If left out, approvals are
            answered elsewhere: by `tenure inbox`, the console, or a link.

    Raises: MissingExtra.
    """
    _check("tenure.mcp.durable")
    from tenure.mcp.durable_tools import Durable

    return Durable(app, queue=queue, wait_seconds=wait_seconds, person=person)


def _check(what: str) -> None:
    if find_spec("mcp") is None:
        raise MissingExtra("mcp", what)
