"""What happened to a job, from all parts of its bundle, in the order of time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tenure.model.frozen import frozen
from tenure.model.plain import plain

if TYPE_CHECKING:
    from tenure import Approval
    from tenure.bundle.document import Bundle


@frozen
class Moment:
    """One line of a timeline."""

    at: datetime
    what: str
    says: str


def timeline(bundle: Bundle) -> list[Moment]:
    """Every moment that the bundle has, oldest first."""
    return sorted(_moments(bundle), key=attrgetter("at"))


def _moments(bundle: Bundle) -> Iterator[Moment]:
    job = bundle.job
    yield Moment(job.created_at, "created", f"{job.kind} in queue {job.queue}")
    for event in bundle.events:
        yield Moment(event.at, event.kind, _text(event.data))
    for attempt in bundle.attempts:
        yield Moment(attempt.ended_at, f"attempt {attempt.attempt} {attempt.outcome}", _first_line(attempt.error))
    for step in bundle.steps:
        yield Moment(step.created_at, f"step {step.key}", step.kind)
        if step.ended_at is not None and step.ended_at != step.created_at:
            yield Moment(step.ended_at, f"step {step.key} {step.state}", _first_line(step.error))
    for effect in bundle.effects:
        yield Moment(effect.intended_at, f"effect {effect.name} intended", effect.key)
        if effect.updated_at != effect.intended_at:
            yield Moment(effect.updated_at, f"effect {effect.name} {effect.state}", _first_line(effect.error))
    for asked in bundle.approvals:
        yield from _answers(asked)
    for letter in bundle.dead_letters:
        yield Moment(letter.moved_at, "dead letter", _first_line(letter.final_error))
        if letter.triaged_at is not None:
            yield Moment(letter.triaged_at, f"dead letter {letter.triage}", letter.triage_note or "")
    for row in bundle.audit:
        yield Moment(row.at, f"{row.act} by {row.actor}", row.reason or "")
    if job.finished_at is not None:
        yield Moment(job.finished_at, str(job.state), job.result_summary or "")


def _answers(asked: Approval) -> Iterator[Moment]:
    yield Moment(asked.created_at, f"approval {asked.name} asked", asked.text)
    for vote in asked.votes:
        yield Moment(vote.at, f"approval {asked.name}: {vote.voter} says {vote.choice}", vote.note or "")
    if asked.decided_at is not None:
        yield Moment(asked.decided_at, f"approval {asked.name} {asked.state}", asked.why or "")


def _text(data: Any) -> str:
    if data in ({}, None):
        return ""
    if isinstance(data, dict) and isinstance(data.get("message"), str):
        return str(data["message"])
    return json.dumps(plain(data), ensure_ascii=False)


def _first_line(text: str | None) -> str:
    return (text or "").split("\n", 1)[0]
