"""OpenTelemetry: spans for enqueue, process and settle, and the metrics of the messaging conventions.

    instrument(app)                     # once, beside the handlers

An enqueue is a PRODUCER span, whose context the job carries in its `trace` as a W3C traceparent. A handler runs in a
CONSUMER span that begins a trace of its own and *links* to the enqueue: a job may run hours later, or many times, and
one trace with all of it would say nothing of how long anything took. What a handler enqueues is linked to the handler.
Settling is a CLIENT span per batch, linked to the handlers whose ends it wrote.

Only the API is needed; without an SDK set up by the program, spans go nowhere and cost next to nothing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tenure.errors import MissingExtra
from tenure.handler.context import Context
from tenure.handler.signals import HandlerEnd, Interrupted, Parked, Permanent, ReplayEnded, RetryAfter
from tenure.integrations import semantic_names as names
from tenure.model.ids import JobId
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Outcome

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ModuleNotFoundError as exc:
    raise MissingExtra("otel", "tenure.integrations.opentelemetry") from exc

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from tenure.app import App

__all__ = ["instrument"]

KEPT = 10_000
"""Contexts of handlers that have ended and are not settled yet; beyond that the oldest lose their link."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_ERRORS = (HandlerEnd, Parked, Interrupted, ReplayEnded)
"""By these a handler chooses its end. Permanent and RetryAfter say that something went wrong."""


def instrument(
    app: App, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace every enqueue, handler and settle of `app`, and count them. Once per app; a repeat does nothing.

    Without providers of your own those that the program has set up are used, also if that happens later.
    """
    if any(isinstance(getattr(one, "__self__", None), _Tracing) for one in app.registry.around_enqueue):
        return
    tracing = _Tracing(tracer_provider, meter_provider)
    app.registry.around_enqueue.append(tracing.enqueue)
    app.registry.settle_observers.append(tracing.settled)

    @app.middleware
    def traced(ctx: Context) -> Iterator[None]:
        yield from tracing.process(ctx)


class _Tracing:
    """The tracer and the instruments of one app."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        from tenure import __version__

        self._tracer = trace.get_tracer("tenure", __version__, tracer_provider)
        meter = metrics.get_meter("tenure", __version__, meter_provider)
        self._operation_seconds = meter.create_histogram(
            names.OPERATION_SECONDS,
            "s",
            "Time of an enqueue or a settle",
            explicit_bucket_boundaries_advisory=names.OPERATION_EDGES,
        )
        self._process_seconds = meter.create_histogram(
            names.PROCESS_SECONDS, "s", "Time of a handler", explicit_bucket_boundaries_advisory=names.PROCESS_EDGES
        )
        self._sent = meter.create_counter(names.SENT, "{message}", "Jobs enqueued")
        self._consumed = meter.create_counter(names.CONSUMED, "{message}", "Jobs given to a handler")
        self._unsettled: OrderedDict[JobId, SpanContext] = OrderedDict()

    @contextmanager
    def enqueue(self, jobs: Sequence[NewJob]) -> Iterator[None]:
        """Around an enqueue: the jobs carry its context from here on, unless they were given one."""
        queues = {job.queue for job in jobs}
        attributes: dict[str, Any] = {
            names.SYSTEM: names.SYSTEM_NAME,
            names.OPERATION_NAME: names.ENQUEUE,
            names.OPERATION_TYPE: names.SEND_TYPE,
        }
        if len(queues) == 1:
            attributes[names.DESTINATION] = next(iter(queues))
        of_one = {names.MESSAGE_ID: jobs[0].id, names.KIND: jobs[0].kind} if len(jobs) == 1 else {}
        of_many = {} if of_one else {names.BATCH_COUNT: len(jobs)}
        began = perf_counter()
        with self._tracer.start_as_current_span(
            _title(names.ENQUEUE, attributes), kind=SpanKind.PRODUCER, attributes={**attributes, **of_one, **of_many}
        ) as span:
            carried = _traceparent(span.get_span_context())
            for job in jobs:
                job.trace = job.trace or carried
            try:
                yield
            except Exception as exc:
                attributes[names.ERROR_TYPE] = type(exc).__name__
                span.set_attribute(names.ERROR_TYPE, type(exc).__name__)
                raise
            finally:
                self._operation_seconds.record(perf_counter() - began, attributes)
                self._sent.add(len(jobs), attributes)

    def process(self, ctx: Context) -> Iterator[None]:
        """Around a handler."""
        attributes: dict[str, Any] = {
            names.SYSTEM: names.SYSTEM_NAME,
            names.OPERATION_NAME: names.PROCESS,
            names.OPERATION_TYPE: names.PROCESS,
            names.DESTINATION: ctx.queue,
            names.KIND: ctx.kind,
        }
        of_job: dict[str, Any] = {
            names.MESSAGE_ID: ctx.id,
            names.ATTEMPT: ctx.attempt,
            names.MAX_ATTEMPTS: ctx.max_attempts,
        }
        made = _span_context(ctx.job.extra("trace"))  # noqa: S610 - no Django here
        began = perf_counter()
        with self._tracer.start_as_current_span(
            _title(names.PROCESS, attributes),
            context=TraceContext(),
            kind=SpanKind.CONSUMER,
            attributes={**attributes, **of_job},
            links=[] if made is None else [Link(made)],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            here = span.get_span_context()
            self._remember(ctx.id, here)
            try:
                yield
            except BaseException as exc:
                if _is_error(exc):
                    attributes[names.ERROR_TYPE] = type(exc).__name__
                    span.set_attribute(names.ERROR_TYPE, type(exc).__name__)
                    span.record_exception(exc)
                    span.set_status(Status(StatusCode.ERROR, type(exc).__name__))
                raise
            finally:
                inherited = ctx.job.extra("trace")  # noqa: S610
                for job in ctx.follow_ups:
                    if job.trace in {None, inherited}:
                        job.trace = _traceparent(here) or job.trace
                self._process_seconds.record(perf_counter() - began, attributes)
                self._consumed.add(1, attributes)

    def settled(self, ends: Sequence[tuple[Grant, Outcome]], began_ns: int, ended_ns: int) -> None:
        """After the store has taken in a batch of ends."""
        found = [self._unsettled.pop(grant.id, None) for grant, _ in ends]
        queues = {grant.queue for grant, _ in ends}
        attributes: dict[str, Any] = {
            names.SYSTEM: names.SYSTEM_NAME,
            names.OPERATION_NAME: names.SETTLE,
            names.OPERATION_TYPE: names.SETTLE,
        }
        if len(queues) == 1:
            attributes[names.DESTINATION] = next(iter(queues))
        details: dict[str, Any] = {names.BATCH_COUNT: len(ends)}
        if len(ends) == 1:
            ((grant, outcome),) = ends
            details = {names.MESSAGE_ID: grant.id, names.OUTCOME: type(outcome).__name__.lower()}
        span = self._tracer.start_span(
            _title(names.SETTLE, attributes),
            context=TraceContext(),
            kind=SpanKind.CLIENT,
            attributes={**attributes, **details},
            links=[Link(one) for one in found if one is not None],
            start_time=began_ns,
        )
        span.end(ended_ns)
        self._operation_seconds.record((ended_ns - began_ns) / 1e9, attributes)

    def _remember(self, job_id: JobId, context: SpanContext) -> None:
        self._unsettled[job_id] = context
        if len(self._unsettled) > KEPT:
            self._unsettled.popitem(last=False)


def _title(operation: str, attributes: dict[str, Any]) -> str:
    return f"{operation} {attributes[names.DESTINATION]}" if names.DESTINATION in attributes else operation


def _is_error(exc: BaseException) -> bool:
    return isinstance(exc, Permanent | RetryAfter) or not isinstance(exc, (*_NO_ERRORS, GeneratorExit))


def _traceparent(context: SpanContext) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _span_context(traceparent: str | None) -> SpanContext | None:
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return None
    made = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16)))
    return made if made.is_valid else None
