"""`/ui/audit`: what people and programs with power did, newest first."""

from __future__ import annotations

from typing import Final

from tenure.web.pages.json_text import json_line
from tenure.web.pages.visit import Answer, Shown, Visit

ROWS: Final = 200


def audit(visit: Visit) -> Answer:
    """The page."""
    subject = visit.asked("subject")[:500]
    rows = visit.app.audit(subject=subject or None, limit=ROWS)
    return Shown(
        "audit.html",
        {
            "details": {one.seq: json_line(one.detail) for one in rows if one.detail},
            "keys": (("j k", "move"),),
            "now": visit.app.now(),
            "is_cut": len(rows) >= ROWS,
            "rows": rows,
            "subject": subject,
            "topic": "",
        },
    )
