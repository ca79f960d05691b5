"""`/ui/audit`: what people and programs with power did, newest first; as a file, and whether it was changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tenure.errors import UsageError
from tenure.web.pages import exports, same_as
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.json_text import json_line
from tenure.web.pages.visit import Answer, Shown, Visit
from tenure.web.pages.words import first_line

ROWS: Final = 100
EXPORT: Final = 100_000
"""How many rows a file holds at most; `before` goes on behind it."""
EXPORT_PAGE: Final = 1_000
COLUMNS: Final = ("seq", "at", "actor", "act", "subject", "reason", "detail")


def audit(visit: Visit) -> Answer:
    """The page."""
    subject, before = _subject(visit), _before(visit)
    rows = visit.app.access.audit(subject=subject or None, limit=ROWS, before=before)
    return Shown(
        "audit.html",
        {
            "details": {one.seq: in_words(one.detail) for one in rows if one.detail},
            "whole": {one.seq: json_line(one.detail) for one in rows if one.detail},
            "export": lambda kind: visit.link("/audit/export", subject=subject, before=before, format=kind),
            "export_rows": EXPORT,
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


def export(visit: Visit) -> Answer:
    """The same rows as a file, newest first, EXPORT of them at most; sent as they are read."""
    return exports.sent(_rows(visit, _subject(visit), _before(visit)), COLUMNS, "audit", visit.asked("format"))


def verify(visit: Visit) -> Answer:
    """Walk the chain over the audit, and say what does not fit."""
    return Shown(
        "audit_verify.html",
        {
            "found": visit.app.access.verify_audit(),
            "now": visit.app.now(),
            "same": same_as.verify_audit(),
            "section": "/audit",
        },
    )


def _rows(visit: Visit, subject: str, before: int | None) -> Iterator[dict[str, Any]]:
    for _ in range(EXPORT // EXPORT_PAGE):
        page = visit.app.access.audit(subject=subject or None, limit=EXPORT_PAGE, before=before)
        for one in page:
            yield {name: getattr(one, name) for name in COLUMNS} | {"at": one.at.isoformat()}
        if len(page) < EXPORT_PAGE:
            return
        before = page[-1].seq


def in_words(detail: Any) -> str:
    """What a row keeps of its act, in short: `queued → cancelled`, or `POST, 303, from 127.0.0.1`."""
    if not isinstance(detail, Mapping):
        return _short(detail)
    if "method" in detail and "status" in detail:
        came = f", from {detail['address']}" if detail.get("address") else ""
        return f"{detail['method']}, {detail['status']}{came}"
    rest = {name: value for name, value in detail.items() if value not in (None, "", [], {})}
    parts = []
    if "from" in rest and "to" in rest:
        parts.append(f"{_short(rest.pop('from'))} → {_short(rest.pop('to'))}")
    return ", ".join([*parts, *(f"{name.replace('_', ' ')} {_short(value)}" for name, value in rest.items())])


def _short(value: Any) -> str:
    """A value in few words: of an object its fields, of a list how many."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(one)}" for name, one in value.items())
    if isinstance(value, list):
        return _short(value[0]) if len(value) == 1 else f"{len(value)} values"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return first_line(str(value), 40)


def _subject(visit: Visit) -> str:
    return visit.asked("subject")[:500]


def _before(visit: Visit) -> int | None:
    before = visit.asked("before")
    if before and not (before.isascii() and before.isdigit() and len(before) < 19):
        raise UsageError("`before` is the number of a row. Begin at the newest ones again.")
    return int(before) if before else None
