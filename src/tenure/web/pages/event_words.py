"""Events in words, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.web.pages.json_text import json_line
from tenure.web.pages.words import first_line, span


@frozen
class ToldEvent:
    """One event as a line: when, the state it shows, and what it says."""

    at: datetime
    kind: str
    job_id: str | None
    job_kind: str
    says: str


def told_event(event: Event) -> ToldEvent:
    """An event in words."""
    data = event.data if isinstance(event.data, Mapping) else {}
    is_move = "token" in data and "state" in data
    kind = str(data.get("kind", "")) if is_move else event.queue or ""
    return ToldEvent(
        event.at, event.kind, event.job_id, kind, _move(event, data) if is_move else _says(event.kind, event.data)
    )


def _move(event: Event, data: Mapping[str, Any]) -> str:
    """What a lifecycle event tells: who held it, which attempt, and the class of a failure."""
    attempt, worker, failure = data.get("attempt"), data.get("worker"), data.get("class")
    if event.kind in {"queued", "woken", "revived"}:
        return f"in {event.queue}"
    if event.kind == "suspended":
        return f"in {event.queue}, holds no slot"
    if event.kind == "dead":
        return f"in {event.queue}, at attempt {attempt}" + (f": {failure}" if failure else "")
    parts = [f"attempt {attempt}, token {data.get('token')}"]
    if worker:
        parts.append(f"on {worker}")
    if failure:
        parts.append(f"ended as {failure}")
    return " ".join(parts)


def _says(kind: str, data: Any) -> str:
    if not isinstance(data, Mapping):
        return "" if data is None else first_line(json_line(data))
    if kind in {"log", "stdout", "stderr"}:
        return first_line(str(data.get("message", data.get("text", data.get("line", json_line(data))))))
    parts = []
    for name, value in data.items():
        if name.endswith("_seconds") and isinstance(value, int | float):
            parts.append(f"{name.removesuffix('_seconds')} {span(float(value))}")
        elif isinstance(value, str):
            parts.append(f"{name} {first_line(value, 120)}")
        elif value is not None:
            parts.append(f"{name} {first_line(json_line(value), 120)}")
    return ", ".join(parts)
