"""One job as `tenure jobs show` and `tenure bundle open` show it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tenure.cli import text
from tenure.cli.screen import Cell, Facts, Grid, Part, Passage, state
from tenure.model.state import State

if TYPE_CHECKING:
    from tenure import Approval, Attempt, DeadLetter, Effect, Event, Job, Step


def job_parts(
    job: Job,
    attempts: Sequence[Attempt],
    letters: Sequence[DeadLetter],
    effects: Sequence[Effect],
    events: Sequence[Event],
    steps: Sequence[Step],
    asked: Sequence[Approval] = (),
) -> list[Part]:
    """Everything about a job. Parts that are empty are left out."""
    parts: list[Part] = [about(job), Passage(text.to_json(job.payload, indent=2), "Payload")]
    if job.result is not None:
        parts.append(Passage(text.to_json(job.result, indent=2), "Result"))
    if steps:
        parts.append(_steps(steps))
    if asked:
        shown = [(one.id, one.name, state(one.state), f"{one.approved} of {one.need}", one.expires_at) for one in asked]
        parts.append(Grid(("approval", "asks_for", "state", "said_yes", "expires"), shown, title="Approvals"))
    if attempts:
        parts.append(_attempts(attempts))
    if job.last_error and "\n" in job.last_error.strip():
        parts.append(Passage(job.last_error, "Last error"))
    if letters:
        rows = [(one.id, state(one.triage), one.moved_at, one.triaged_by, one.triage_note) for one in letters]
        parts.append(
            Grid(("dead_letter", "triage", "died", "by", "note"), rows, drop=("by", "note"), title="Dead letters")
        )
    if effects:
        told = [(one.step, one.name, state(one.state), one.updated_at, one.key) for one in effects]
        parts.append(Grid(("step", "effect", "state", "since", "key"), told, drop=("key",), title="Effects"))
    if events:
        happened = [(one.at, one.kind, event_says(one)) for one in events]
        parts.append(Grid(("at", "event", "says"), happened, wide="says", title="Events"))
    return parts


def about(job: Job) -> Facts:
    """What one sees first of a job. Empty columns are left out."""

    from tenure.observe.explain import suspicion_says

    names = (
        "priority key concurrency_key affinity_key parent_id workflow_id run_id actor tenant source_ref target_ref "
        "payload_ref waiting_for cancel_requested_at lease_owner lease_until created_at run_at claimed_at started_at "
        "finished_at cleaned_at failure_class progress result_summary artifacts_path trace"
    )
    rest = [(name, job.due_at if name == "run_at" else getattr(job, name)) for name in names.split()]
    return Facts(
        [
            ("id", job.id),
            ("kind", Cell(job.kind, "bold")),
            ("queue", job.queue),
            ("state", state(job.shown_state)),
            ("attempt", f"{job.attempt} of {job.max_attempts}" + (f", {job.crashes} crashed" if job.crashes else "")),
            ("token", job.token),
            ("suspicion", f"{job.suspicion}: {suspicion_says(job.suspicion)}" if job.suspicion else None),
            *((name, text.to_json(value) if name == "progress" and value else value) for name, value in rest),
            ("took", _took(job)),
            ("error", says(job) if job.state is not State.SUCCEEDED and job.last_error else None),
        ]
    )


def says(job: Job) -> str | None:
    """What the last attempt said. An error from before a success is told by its attempts."""
    if job.last_error and job.state is not State.SUCCEEDED:
        return text.first_line(job.last_error, 120)
    return job.result_summary


MOVED = {"state", "attempt", "token", "kind", "worker", "class"}
"""What an event of a move holds."""


def event_says(event: Event) -> str:
    """What an event tells beside its kind: a log line as it was said, a move in words, other data as JSON."""
    data = event.data
    if isinstance(data, dict) and isinstance(data.get("message"), str):
        return str(data["message"])
    if isinstance(data, dict) and set(data) == {"text"} and isinstance(data["text"], str):
        return data["text"].rstrip("\n")
    if isinstance(data, dict) and set(data) == MOVED:
        told = [("attempt", data["attempt"]), ("worker", data["worker"]), ("class", data["class"])]
        return " ".join([str(data["state"]), *(f"{name}={value}" for name, value in told if value)])
    return "" if data in ({}, None) else text.to_json(data)


def _took(job: Job) -> float | None:
    """How long the last attempt took."""
    if job.claimed_at is None or job.finished_at is None:
        return None
    return (job.finished_at - job.claimed_at).total_seconds()


def _steps(steps: Sequence[Step]) -> Grid:
    rows = [
        (
            one.key,
            one.kind,
            state(one.state),
            one.ended_at or one.created_at,
            (one.awaits or (f"until {one.due_at:%Y-%m-%d %H:%M:%S} UTC" if one.due_at else None))
            if one.state == "open"
            else text.first_line(one.error or _step_value(one), 120),
        )
        for one in steps
    ]
    columns = ("step", "sort", "state", "since", "says")
    return Grid(columns, rows, wide="says", drop=("since", "sort"), title="Steps")


def _step_value(step: Step) -> str | None:
    """What a step answered. A group of children answers how they ended; its own id tells a reader nothing."""
    if step.kind != "group" or step.value is None:
        return step.value
    group = json.loads(step.value)
    bad = [f"{group[name]:,} {name}" for name in ("failed", "cancelled") if group.get(name)]
    return ", ".join([f"{group.get('ended', 0):,} of {group.get('total', 0):,} children ended", *bad])


def _attempts(attempts: Sequence[Attempt]) -> Grid:
    rows = [
        (one.attempt, state(one.outcome), one.failure_class, one.ended_at, one.worker, text.first_line(one.error))
        for one in attempts
    ]
    columns = ("attempt", "outcome", "class", "ended", "worker", "error")
    return Grid(columns, rows, wide="error", drop=("worker", "ended"), title="Attempts that did not end well")
