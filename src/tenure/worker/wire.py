"""How a worker and its isolated children talk: frames of JSON over a socket pair.

Outcomes travel as data and are built anew at home. What a child says of job and token is not believed: the worker puts
in those of the grant, so a child can only ever end its own attempt.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from tenure.model.event import NewEvent
from tenure.model.ids import JobId
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import (
    Completed,
    EffectRecord,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Stopped,
    Suspended,
)

FRAME_BYTES = 16 * 1024 * 1024
HEAD_BYTES = 4

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Completed, Failed, Rejected, Released, Suspended, Stopped)
}
_PARTS: dict[str, type[Any]] = {"jobs": NewJob, "events": NewEvent, "effects": EffectRecord}


def frame(message: dict[str, Any]) -> bytes:
    """A message with its length in front. Raises ValueError if it is larger than any reader would take."""
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes is larger than the {FRAME_BYTES:,} that may be sent")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def body_bytes(head: bytes) -> int:
    """The length that a frame's head announces. Raises ValueError beyond the limit."""
    length = int.from_bytes(head, "big")
    if length > FRAME_BYTES:
        raise ValueError(f"a message of {length:,} bytes was announced, more than the {FRAME_BYTES:,} that are taken")
    return length


def grant_to_wire(grant: Grant) -> dict[str, Any]:
    """A grant as plain data."""
    told = {f.name: getattr(grant, f.name) for f in fields(grant)}
    text = grant.payload_text
    told["payload_text"] = text.decode() if isinstance(text, bytes) else text
    told["lease_until"] = grant.lease_until.isoformat()
    told["extras"] = _plain(grant.extras)
    return told


def grant_from_wire(told: dict[str, Any]) -> Grant:
    """The grant again."""
    return Grant(**{**told, "lease_until": datetime.fromisoformat(told["lease_until"])})


def outcome_to_wire(outcome: Outcome | None) -> dict[str, Any] | None:
    """An outcome as plain data."""
    return None if outcome is None else {"outcome": type(outcome).__name__, **_plain(asdict(outcome))}


def outcome_from_wire(told: dict[str, Any] | None, grant: Grant) -> Outcome | None:
    """The outcome again, for this grant and no other. Raises ValueError, TypeError or KeyError for what is none."""
    if told is None:
        return None
    told = {**told, "job_id": grant.id, "token": grant.token}
    kind = _KINDS[told.pop("outcome")]
    if "failure_class" in told:
        told["failure_class"] = FailureClass(told["failure_class"])
    for name, part in _PARTS.items():
        if name in told:
            told[name] = tuple(part(**_with_moments(item)) for item in told[name])
    if "events" in told:
        told["events"] = tuple(NewEvent(event.kind, event.data, JobId(grant.id)) for event in told["events"])
    outcome: Outcome = kind(**told)
    return outcome


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _with_moments(told: dict[str, Any]) -> dict[str, Any]:
    run_at = told.get("run_at")
    return {**told, "run_at": datetime.fromisoformat(run_at)} if run_at else told
