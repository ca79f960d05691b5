"""`/ui/jobs/{id}/edit`: another payload or priority for a job that waits, or a copy of one that has ended.

The form shows the payload as it is, secrets too, so opening it needs read:payload and leaves an audit row. A job that
waits is changed in place, unless it has changed since the form was opened. One that has ended stays as it is: a new job
with the edited payload becomes its child, and its open dead letters are closed with a note that names it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tenure.errors import Forbidden, InvalidPayload, NotFound, UsageError
from tenure.model.job import Job
from tenure.model.outcome import Triage
from tenure.model.state import TERMINAL, State
from tenure.model.visible import UNSAFE
from tenure.web.pages import same_as
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.json_text import read_json
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import first_line, short_id
from tenure.web.problems import Problem

ROWS_MOST: Final = 30
LETTERS: Final = 20


def is_editable(found: Job) -> bool:
    """Whether it waits in its queue, so that its payload and priority can be changed in place."""
    return found.state is State.QUEUED


def is_repeatable(found: Job) -> bool:
    """Whether it has ended and its payload is there still, so that an edited copy can be made."""
    return found.state in TERMINAL and found.cleaned_at is None


def form(visit: Visit, *, text: str | None = None, wrong: str = "", status: int = 200) -> Answer:
    """The form. `text` and `wrong` come from one that was refused."""
    found = _find(visit)
    if not (is_editable(found) or is_repeatable(found)):
        raise UsageError(
            f"A job that is {found.shown_state} cannot be edited: a worker holds it, or it waits for something."
        )
    _check_may(visit, found)
    shown = exact_json(found.payload) if text is None else text
    return Shown(
        "job_edit.html",
        {
            "in_place": is_editable(found),
            "job": found,
            "priority": visit.given("priority") or str(found.priority),
            "reason_given": visit.given("reason"),
            "rows": min(ROWS_MOST, max(6, shown.count("\n") + 2)),
            "same": same_as.edit(found.id) if is_editable(found) else None,
            "section": "/jobs",
            "text": shown,
            "version": visit.given("version") or found.version,
            "wrong": wrong,
        },
        status,
    )


def edit(visit: Visit) -> Answer:
    """Take the form."""
    found = _find(visit)
    _check_may(visit, found)
    text = visit.given("payload")
    try:
        visit.reason()
        payload, priority = read_json(text), _read_priority(visit.given("priority"))
        return (
            _in_place(visit, found, payload, priority) if is_editable(found) else _copy(visit, found, payload, priority)
        )
    except (InvalidPayload, UsageError) as exc:
        if exc.http_status != 400 and not isinstance(exc, InvalidPayload):
            raise
        return form(visit, text=text, wrong=str(exc), status=exc.http_status)
    except Problem as exc:  # beyond a quota: what was written must not be lost
        return form(visit, text=text, wrong=exc.detail, status=exc.status)


def set_priority(visit: Visit, found: Job, reason: str) -> Answer:
    """Give a job that waits another priority."""
    priority = _read_priority(visit.given("priority"))
    if priority is None:
        raise UsageError("Which priority? Write a whole number. Nothing was changed.")
    version = visit.given("version") or None
    edited = visit.app.edit(found.id, priority=priority, version=version, actor=visit.viewer.name, reason=reason)
    return Moved(visit.link(f"/jobs/{found.id}"), f"Its priority is {edited.priority} now.")


def exact_json(value: Any) -> str:
    """JSON text to edit: what would hide or reorder is written by its number, so that the same value is read back."""
    return UNSAFE.sub(_escaped, json.dumps(value, indent=2, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f")


def _in_place(visit: Visit, found: Job, payload: Any, priority: int | None) -> Answer:
    given: dict[str, Any] = {} if payload == found.payload else {"payload": payload}
    if priority is not None and priority != found.priority:
        given["priority"] = priority
    here = visit.link(f"/jobs/{found.id}", tab="data")
    if not given:
        return Moved(here, "Nothing differs, so nothing was changed.")
    version = visit.given("version") or None
    visit.app.edit(found.id, **given, version=version, actor=visit.viewer.name, reason=visit.given("reason"))
    visit.pulse.forget()
    return Moved(here, f"1 job edited: its {' and '.join(given)}.")


def _copy(visit: Visit, found: Job, payload: Any, priority: int | None) -> Answer:
    if not is_repeatable(found):
        raise UsageError(f"A job that is {found.shown_state} cannot be edited any more. Nothing was changed.")
    who, reason = visit.viewer.name, visit.given("reason")
    visit.take_jobs(1)
    made = visit.app.enqueue(
        found.kind,
        payload,
        queue=found.queue,
        priority=found.priority if priority is None else priority,
        tenant=found.tenant,
        parent_id=found.id,
        actor=who,
    )
    visit.app.access.note("edit_and_replay", found.id, actor=who, reason=reason, detail={"made": made.id})
    letters = visit.app.dead_letters.all(job_id=found.id, limit=LETTERS).items
    still = [one.id for one in letters if one.triage != Triage.CLOSED]
    if still:
        visit.app.dead_letters.triage(
            still, Triage.CLOSED, actor=who, note=f"replayed with another payload as {made.id}: {reason}"
        )
    visit.pulse.forget()
    closed = " Its dead letter is closed." if still else ""
    return Moved(visit.link(f"/jobs/{made.id}"), f"A copy of {short_id(found.id)} with your payload.{closed}")


def _check_may(visit: Visit, found: Job) -> None:
    if not visit.viewer.may("read:payload"):
        raise Forbidden("Editing a payload needs the scope 'read:payload'. Nothing was changed.")
    if not visit.viewer.may("operate"):
        raise Forbidden("Editing needs the scope 'operate'. Nothing was changed.")
    if not visit.viewer.may("enqueue", queue=found.queue, kind=found.kind):
        raise Forbidden(
            f"A payload is what a worker will do, so setting it needs the scope 'enqueue' for queue {found.queue!r} "
            f"and kind {found.kind!r}. Nothing was changed."
        )


def _read_priority(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise UsageError(f"The priority is a whole number, not {text[:40]!r}. Nothing was changed.") from exc


def _find(visit: Visit) -> Job:
    job_id = visit.params["job_id"].lower()
    if not is_job_id(job_id):
        raise NotFound(f"There is no job {first_line(job_id, 60)!r}.")
    return visit.app.get(job_id)
