"""`/ui/audit`: what people and programs with power did, newest first."""

from __future__ import annotations

from typing import Final

from tenure.errors import UsageError
from tenure.web.pages import same_as
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.json_text import json_line
from tenure.web.pages.visit import Answer, Shown, Visit

ROWS: Final = 100


def audit(visit: Visit) -> Answer:
    """The page."""
    subject, before = visit.asked("subject")[:500], visit.asked("before")
    if before and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise UsageError("`before` is the number of a row. Begin at the newest ones again.")
    rows = visit.app.access.audit(subject=subject or None, limit=ROWS, before=int(before) if before else None)
    return Shown(
        "audit.html",
        {
            "details": {one.seq: json_line(one.detail) for one in rows if one.detail},
            "is_id": is_job_id,
            "keys": (("/", "subject"), ("j k", "move")),
            "newest": visit.link("/audit", subject=subject) if before else None,
            "now": visit.app.now(),
            "older": visit.link("/audit", subject=subject, before=rows[-1].seq) if len(rows) == ROWS else None,
            "rows": rows,
            "same": same_as.audit(subject),
            "subject": subject,
            "topic": "",
        },
    )
