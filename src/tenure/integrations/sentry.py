"""Sentry: errors of handlers, and spans for its Queues page.

    sentry_sdk.init(dsn=…)
    instrument(app)                     # once, beside the handlers

An error is grouped by Tenure's own fingerprint, as the dead letters are. No payload is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tenure.errors import MissingExtra
from tenure.handler.context import Context
from tenure.handler.signals import HandlerEnd, Permanent, RetryAfter
from tenure.integrations import semantic_names as names
from tenure.model.fingerprint import fingerprint
from tenure.model.job import NewJob

try:
    import sentry_sdk
except ModuleNotFoundError as exc:
    raise MissingExtra("sentry", "tenure.integrations.sentry") from exc

if TYPE_CHECKING:
    from tenure.app import App

__all__ = ["instrument"]

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def instrument(app: App) -> None:
    """Send errors and spans of `app` to Sentry. Once per app; a repeat does nothing."""
    if _enqueue in app.registry.around_enqueue:
        return
    app.registry.around_enqueue.append(_enqueue)
    app.middleware(_process)


@contextmanager
def _enqueue(jobs: Sequence[NewJob]) -> Iterator[None]:
    """A `queue.publish` span inside the transaction at hand; the jobs carry its trace."""
    with sentry_sdk.start_span(op=names.SENTRY_PUBLISH, name=jobs[0].queue) as span:
        span.set_data(names.DESTINATION, jobs[0].queue)
        span.set_data(*((names.MESSAGE_ID, jobs[0].id) if len(jobs) == 1 else (names.BATCH_COUNT, len(jobs))))
        # Without a decision on sampling, as outside a transaction, the handler decides for itself.
        carried = re.fullmatch(r"([0-9a-f]{32})-([0-9a-f]{16})-([01])", sentry_sdk.get_traceparent() or "")
        for job in jobs:
            if job.trace is None and carried is not None:
                job.trace = f"00-{carried[1]}-{carried[2]}-0{carried[3]}"
        yield


def _process(ctx: Context) -> Iterator[None]:
    """A `queue.process` transaction of its own scope around a handler. What the handler raises is captured."""
    carried = _TRACEPARENT.fullmatch(ctx.job.extra("trace") or "")  # noqa: S610 - no Django here
    headers = {"sentry-trace": f"{carried[1]}-{carried[2]}-{int(carried[3], 16) & 1}"} if carried else {}
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("tenure.queue", ctx.queue)
        scope.set_context("job", {"id": ctx.id, "kind": ctx.kind, "queue": ctx.queue, "attempt": ctx.attempt})
        transaction = sentry_sdk.continue_trace(headers, op=names.SENTRY_PROCESS, name=ctx.kind, source="task")
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data(names.MESSAGE_ID, ctx.id)
            span.set_data(names.DESTINATION, ctx.queue)
            span.set_data(names.SENTRY_RETRIES, ctx.attempt - 1)
            if ctx.id[14] == "7":
                span.set_data(names.SENTRY_LATENCY, _latency_ms(ctx))
            try:
                yield
            except Exception as exc:
                if isinstance(exc, Permanent | RetryAfter) or not isinstance(exc, HandlerEnd):
                    span.set_status("internal_error")
                    scope.fingerprint = ["tenure", fingerprint("error", f"{type(exc).__name__}: {exc}")]
                    sentry_sdk.capture_exception(exc)
                raise


def _latency_ms(ctx: Context) -> float:
    """From the making of the job's id, a UUIDv7, to now. A delayed job shows its delay, too."""
    made = int(ctx.id.replace("-", "")[:12], 16)
    return max(0.0, datetime.now(UTC).timestamp() * 1000 - made)
