"""`/ui/metrics`: throughput, failures, waits and runs per kind, and 001's figures per queue and minute."""

from __future__ import annotations

from typing import Final

from tenure.observe.browse import BOARD_SCAN, inspect, prune_lag
from tenure.web.pages import same_as
from tenure.web.pages.charts import RANGES, throughput
from tenure.web.pages.overview import counted_minutes
from tenure.web.pages.visit import Answer, Shown, Visit
from tenure.web.pages.words import span

ROWS: Final = 200


def metrics(visit: Visit) -> Answer:
    """The page."""
    chosen = next((one for one in RANGES if one[0] == visit.asked("range")), RANGES[1])
    rows = counted_minutes(visit, chosen[2])
    look = visit.pulse.now()
    now = look.at if look else visit.app.now()
    found = visit.pulse.shared("inspection", lambda: inspect(visit.app.store))
    summary = look.seen.summary if look else None
    return Shown(
        "metrics.html",
        {
            "chart": throughput(rows, chosen[2], now),
            "engine": found,
            "is_cut": len(rows) > ROWS,
            "keys": (("j k", "move"),),
            "now": now,
            "prune_lag": prune_lag(visit.app.store),
            "ran": sorted(summary.ran, key=lambda one: -(one.succeeded + one.dead + one.failed)) if summary else [],
            "range": chosen[0],
            "ranges": RANGES,
            "repeated": summary.repeated if summary else [],
            "rows": rows[:ROWS],
            "same": same_as.metrics(chosen[2]),
            "scripts": ["vendor/uplot-1.6.32.min.js"],
            "styles": ["vendor/uplot-1.6.32.min.css"],
            "topic": "all",
            "which_ended": "that ended in the last hour"
            if summary is None or summary.is_whole
            else f"of the newest {BOARD_SCAN:,} jobs that ended, in {span(summary.window_seconds)}",
        },
    )
