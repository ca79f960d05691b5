"""`/ui/metrics`: throughput over time, 001's figures and waits and runs of each queue, and what ended of each kind."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tenure.observe.browse import BOARD_SCAN, inspect, prune_lag
from tenure.web.pages import same_as
from tenure.web.pages.charts import RANGES, range_of, throughput
from tenure.web.pages.visit import Answer, Shown, Visit
from tenure.web.pages.words import span

QUANTILES: Final = (0.5, 0.95)


def metrics(visit: Visit) -> Answer:
    """The page."""
    chosen = range_of(visit.asked("range"), RANGES[1])
    look = visit.pulse.now()
    now = look.at if look else visit.app.now()
    summary = look.seen.summary if look else None
    # A second more than a week: what is longer is read by days, and what is not by up to 168 hours of each queue.
    back = timedelta(minutes=chosen.minutes, seconds=chosen.minutes >= 10_080)
    figures = visit.pulse.shared(
        ("figures", chosen.word), lambda: visit.app.metrics(back, by="total", quantiles=QUANTILES)
    )
    return Shown(
        "metrics.html",
        {
            "chart": visit.pulse.shared(("chart", chosen.word), lambda: throughput(visit.app, chosen, now)),
            "chart_place": "throughput",
            "engine": visit.pulse.shared("inspection", lambda: inspect(visit.app.store)),
            "figures": sorted(figures, key=lambda one: (-one.completed - one.attempts_failed, one.queue)),
            "keys": (("j k", "move"),),
            "now": now,
            "prune_lag": prune_lag(visit.app.store),
            "ran": sorted(summary.ran, key=lambda one: -(one.succeeded + one.dead + one.failed)) if summary else [],
            "range": chosen,
            "ranges": RANGES,
            "repeated": summary.repeated if summary else [],
            "same": same_as.metrics(chosen.word),
            "scripts": ["vendor/uplot-1.6.32.min.js"],
            "styles": ["vendor/uplot-1.6.32.min.css"],
            "topic": "all",
            "which_ended": "that ended in the last hour"
            if summary is None or summary.is_whole
            else f"of the newest {BOARD_SCAN:,} jobs that ended, in {span(summary.window_seconds)}",
        },
    )
