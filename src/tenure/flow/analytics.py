"""The kind `analytics`: once a day what the queues measured becomes a report, an agent event and, where a threshold is
broken, an escalation. `app.use(analytics())` lets an app's workers do it, at three in the morning.

Thresholds are data: they stand in the schedule's payload, so an operator can read them there, and a job with others may
be enqueued by hand. An escalation is an agent event of kind `escalation`, one per day, queue and figure however often
the day is looked at, and a job in a queue of the user's choice, committed with the completion.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from datetime import UTC, date, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Required, TypedDict

from tenure.errors import nearest
from tenure.flow.memory import carry_out
from tenure.flow.metrics import Figures, read_figures
from tenure.handler.payload import Later, payload_codec
from tenure.handler.registry import Handler
from tenure.handler.signals import Permanent
from tenure.model.frozen import frozen
from tenure.model.policy import QueuePolicy
from tenure.store.memory import NewAgentEvent, WriteAgentEvents
from tenure.store.metrics import ReadMetrics

if TYPE_CHECKING:
    from tenure.handler.context import Context

KIND: Final = "analytics"
ESCALATION_KIND: Final = "escalation"
DAYS_BEFORE: Final = 7
DAYS_LEAST: Final = 3
"""How many earlier days a median needs."""
QUANTILES: Final = (0.5, 0.95, 0.99)
PLAIN: Final = (
    *("created", "completed", "failed", "attempts_failed", "retried", "expired", "cancelled"),
    *("latency_average", "error_rate", "busy_seconds", "heartbeat_delay"),
)
TIMED: Final = {
    f"{what}_p{100 * share:g}": (what, share) for what in ("wait", "run", "total", "silence") for share in QUANTILES
}
FIGURES: Final = (*PLAIN, *TIMED)


class Threshold(TypedDict, total=False):
    """When a figure of a queue is worth an escalation: above `above`, or above `times_median` times the median of the
    seven days before and at least `at_least`."""

    figure: Required[str]
    above: float
    times_median: float
    at_least: float
    queues: list[str]
    """Only of these; all if left out."""


class Analytics(TypedDict, total=False):
    """The payload."""

    day: str
    """As in 2026-01-31, in UTC; the last day that is counted whole if left out."""
    thresholds: list[Threshold]
    escalate_to: str
    """A queue that gets a job of kind `escalation` when a threshold is broken."""


DEFAULT_THRESHOLDS: Final[tuple[Threshold, ...]] = (
    {"figure": "error_rate", "times_median": 3.0, "at_least": 0.05},
    {"figure": "wait_p95", "times_median": 3.0, "at_least": 60.0},
)


@frozen
class AnalyticsKit:
    """The kit of `analytics`."""

    cron: str | None
    payload: Analytics
    queue: str

    def install(self, app: Any) -> None:
        """Called by `app.use`, with the app, whose schedules it joins."""
        encode, decode = payload_codec(Later(lambda: Analytics), KIND, app.registry.limits)
        app.registry.add(
            Handler(
                kind=KIND,
                queue=self.queue,
                function=analyse,
                mode="thread",
                decode=decode,
                encode=encode,
                wants_payload=True,
                wants_context=True,
                needs_store=True,
            )
        )
        # The report of a day is an agent event, and so becomes a memory.
        app.registry.queues.setdefault(self.queue, QueuePolicy(agent_events="completed"))
        if "escalate_to" in self.payload:
            app.registry.queues.setdefault(self.payload["escalate_to"], QueuePolicy())
        if self.cron is not None:
            app.schedule(KIND, self.cron, KIND, self.payload)


def analytics(
    thresholds: Sequence[Threshold] = DEFAULT_THRESHOLDS,
    *,
    escalate_to: str | None = None,
    cron: str | None = "0 3 * * *",
    queue: str = "analytics",
) -> AnalyticsKit:
    """The kind `analytics`, for `app.use(analytics())`.

    Args:
        thresholds: What is worth an escalation, as data; see Threshold.
        escalate_to: A queue that then gets a job of kind `escalation`.
        cron: When; None makes no schedule.
    """
    payload: Analytics = {"thresholds": list(thresholds)}
    if escalate_to is not None:
        payload["escalate_to"] = escalate_to
    return AnalyticsKit(cron, payload, queue)


def analyse(payload: Analytics, ctx: Context) -> dict[str, Any]:
    """Report on a day, and escalate what is out of bounds."""
    thresholds = payload.get("thresholds") or list(DEFAULT_THRESHOLDS)
    for threshold in thresholds:
        _check(threshold)
    report: dict[str, Any] = carry_out(ctx, _report(payload.get("day"), thresholds, ctx))
    broken = report["broken"]
    if broken and "escalate_to" in payload:
        ctx.enqueue(
            ESCALATION_KIND,
            {"day": report["day"], "broken": broken},
            queue=payload["escalate_to"],
            key=f"{KIND}:{report['day']}",
        )
    ctx.set_result_summary(_summary(report))
    return report


def _check(threshold: Threshold) -> None:
    figure = threshold["figure"]
    if figure not in FIGURES:
        raise Permanent(f"There is no figure {figure!r} to watch.{nearest(figure, FIGURES)}")
    if "above" not in threshold and "times_median" not in threshold:
        raise Permanent(f"The threshold of {figure!r} says neither `above` nor `times_median`, so it can never break.")


def _report(day: str | None, thresholds: Sequence[Threshold], ctx: Context) -> Generator[Any, Any, dict[str, Any]]:
    at = yield from _day(day)
    if at is None:
        return {"day": None, "queues": [], "broken": []}
    rows = yield from read_figures(at - timedelta(days=DAYS_BEFORE), at + timedelta(days=1), "day", (), QUANTILES)
    today = [row for row in rows if row.at == at]
    broken = [
        found
        for threshold in thresholds
        for row in today
        if (found := _broken(threshold, row, [one for one in rows if one.queue == row.queue and one.at < at]))
    ]
    named = at.date().isoformat()
    events = [
        NewAgentEvent(
            agent=KIND,
            kind=ESCALATION_KIND,
            data=json.dumps({"day": named, **one}),
            job_id=ctx.id,
            key=f"{ESCALATION_KIND}:{named}:{one['queue']}:{one['figure']}",
        )
        for one in broken
    ]
    if events:
        yield WriteAgentEvents(events)
    return {"day": named, "queues": [_told(row) for row in today], "broken": broken}


def _day(day: str | None) -> Generator[Any, Any, datetime | None]:
    """The beginning of the day that is meant; None if nothing is counted yet."""
    if day is not None:
        try:
            return datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
        except ValueError:
            raise Permanent(f"{day!r} is no day. Write it as 2026-01-31.") from None
    page = yield ReadMetrics("day", limit=1)
    if page.counted_until is None:
        return None
    midnight: datetime = page.counted_until.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight - timedelta(days=1)


def _broken(threshold: Threshold, row: Figures, before: Sequence[Figures]) -> dict[str, Any] | None:
    """What is out of bounds; None if nothing is, or it cannot be told."""
    figure = threshold["figure"]
    value = _value(row, figure)
    if value is None or row.queue not in threshold.get("queues", [row.queue]):
        return None
    limits = [threshold["above"]] if "above" in threshold else []
    if "times_median" in threshold:
        earlier = [found for one in before if (found := _value(one, figure)) is not None]
        if len(earlier) >= DAYS_LEAST:
            limits.append(max(threshold["times_median"] * median(earlier), threshold.get("at_least", 0.0)))
    if not limits or value <= min(limits):
        return None
    return {"queue": row.queue, "figure": figure, "value": round(value, 6), "limit": round(min(limits), 6)}


def _value(row: Figures, figure: str) -> float | None:
    if figure in TIMED:
        what, share = TIMED[figure]
        quantiles: Any = getattr(row, what)
        found: float | None = quantiles[share]
        return found
    value = getattr(row, figure)
    return None if value is None else float(value)


def _told(row: Figures) -> dict[str, Any]:
    values = {figure: getattr(row, figure) for figure in PLAIN}
    values |= {figure: _value(row, figure) for figure in TIMED}
    told = {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}
    return {"queue": row.queue, **{name: value for name, value in told.items() if value is not None}}


def _summary(report: dict[str, Any]) -> str:
    if report["day"] is None:
        return "Nothing is counted yet."
    completed = sum(one["completed"] for one in report["queues"])
    failed = sum(one["failed"] for one in report["queues"])
    bad = "; ".join(
        f"{one['queue']} {one['figure']} {one['value']:g} above {one['limit']:g}" for one in report["broken"]
    )
    told = f"{report['day']}: {len(report['queues'])} queues, {completed} completed, {failed} failed"
    return f"{told}; out of bounds: {bad}" if bad else f"{told}; all within bounds"
