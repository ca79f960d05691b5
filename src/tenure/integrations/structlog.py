"""structlog: every line that a handler logs names its job.

structlog.configure(processors=[structlog.contextvars.merge_contextvars, …])
instrument(app)                     # once, beside the handlers
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenure.errors import MissingPackage
from tenure.handler.context import Context

try:
    from structlog.contextvars import bind_contextvars, reset_contextvars
except ModuleNotFoundError as exc:
    raise MissingPackage("structlog", "tenure.integrations.structlog") from exc

if TYPE_CHECKING:
    from tenure.app import App

__all__ = ["instrument"]

_ALSO = ("tenant", "workflow_id", "run_id", "trace")


def instrument(app: App) -> None:
    """Bind `job`, `kind`, `queue` and `attempt` in every handler of `app`, and what else the job carries of `tenant`,
    `workflow_id`, `run_id` and `trace`. Once per app; a repeat does nothing."""
    if any(one.function is _bound for one in app.registry.middleware):
        return
    app.middleware(_bound)


def _bound(ctx: Context) -> Iterator[None]:
    also = {name: value for name in _ALSO if (value := ctx.job.extra(name)) is not None}  # noqa: S610
    # By reset, not unbind: a variable that is left behind would cost the worker's task its reuse.
    tokens = bind_contextvars(job=ctx.id, kind=ctx.kind, queue=ctx.queue, attempt=ctx.attempt, **also)
    try:
        yield
    finally:
        reset_contextvars(**tokens)
