"""`/ui/jobs/{id}`: one sentence that explains, the facts, one time axis, tabs for the rest, and acts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from tenure.errors import NotFound, Outdated, UsageError
from tenure.model.approval import Approval
from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.model.job import Attempt, Job
from tenure.model.redact import process_redactor
from tenure.model.state import HELD, MOVES, TERMINAL, Move, State
from tenure.model.step import Step
from tenure.model.stream import StreamInfo
from tenure.observe.browse import first_steps
from tenure.observe.explain import Explanation, explain
from tenure.web.pages import same_as
from tenure.web.pages.changes import EFFECTS, EVENTS, STEPS, marker_of
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.job_edit import is_editable, is_repeatable, set_priority
from tenure.web.pages.jobs import progress_of
from tenure.web.pages.json_text import masked_line, read_json
from tenure.web.pages.timeline import LogEntry, timeline
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted, first_line, number, segment, short_id, span

TABS: Final = ("attempts", "output", "steps", "effects", "logs", "data", "related", "audit")
OUTPUT_PAGES: Final = 40
"""Pages of a stream that one look reads: more than a job can keep."""
OUTPUT_CHARS: Final = 100_000
COPY_CHARS: Final = 20_000
"""Payloads up to here are offered as lines to copy."""
MOST: Final = 10**15
"""Figures that results tell are believed below this."""
LOG_KINDS: Final = frozenset({"log", "stdout", "stderr"})
ASKED: Final = {
    "cancel": "Cancel",
    "revive": "Revive",
    "clone": "Copy",
    "priority": "Reprioritise",
    "release": "Release",
}
"""Acts that have a page which asks, and the words of their buttons."""
OUTCOMES: Final = {"confirmed": "It happened", "retry": "It did not; do it again", "failed": "Give it up"}


@frozen
class Fact:
    """One entry of the strip."""

    name: str
    value: str
    sub: str = ""
    path: str = ""
    share: float | None = None
    is_code: bool = False
    title: str = ""
    """The whole value, where it is shown cut; it can be copied."""


@frozen
class LogLine:
    """One line of the job's log."""

    at: Any
    level: str
    tone: str
    text: str
    fields: str


@frozen
class OutputShown:
    """One stream of the job as far as it is shown."""

    name: str
    text: str
    after: int
    """The offset of its last chunk."""
    resets: int
    """How often another attempt began it anew."""
    is_ended: bool
    is_cut: bool
    """Only its end is shown."""


def job(visit: Visit, *, mask: str | None = None) -> Answer:
    """The page. `mask` overrides what is hidden of payload and result."""
    found = _find(visit)
    app = visit.app
    why = explain(app.store, found.id)
    attempts = app.attempts(found.id)
    effects = app.effects.all(job_id=found.id, limit=EFFECTS).items
    events = app.events(job_id=found.id, limit=EVENTS)
    letters = app.dead_letters.all(job_id=found.id, limit=5).items
    unknown = [one for one in effects if one.state == "unknown"]
    tab = visit.asked("tab") or ("effects" if unknown else "attempts")
    if tab not in TABS:
        tab = "attempts"
    chosen = _chosen_attempt(visit, attempts)
    logs = [_log_line(one) for one in events if one.kind in LOG_KINDS]
    steps = first_steps(app.store, found.id, STEPS)
    children = app.jobs(parent_id=found.id, limit=20)
    parent = app.get_many([found.parent_id])[0] if found.parent_id else None
    audit = app.access.audit(subject=found.id, limit=100)
    may_read = visit.viewer.may("read:payload")
    streams = app.streams.names(found.id)
    output = read_output(visit, found.id, streams) if tab == "output" and may_read and streams else None
    return Shown(
        "job.html",
        {
            "attempts": list(reversed(attempts)),
            "attempt_logs": _logs_of(chosen, logs),
            "audit": audit,
            "can": _can(found),
            "chosen_attempt": chosen,
            "children": children,
            "copies": _copies(visit, found) if may_read else (),
            "effects": effects,
            "facts": facts(found, attempts, why, _asked(visit, found), steps),
            "has_open_attempt": _has_open_attempt(found, attempts),
            "is_cut": len(events) >= EVENTS,
            "job": found,
            "keys": _keys(visit, found),
            "letters": letters,
            "logs": logs,
            "mask": mask or ("names" if may_read else "all"),
            "may_read": may_read,
            "now": why.at,
            "output": output.name if output is not None and not output.is_ended else "",
            "output_after": output.after if output is not None else 0,
            "seen": marker_of(found, events, effects, steps),
            "stream": output,
            "streams": streams,
            "parent": parent,
            "same": same_as.job(found.id, tab),
            "same_cancel": same_as.cancel(found.id),
            "same_revive": same_as.revive(found.id),
            "section": "/jobs",
            "sentences": [_hidden(one.sentence, may_read, one.code) for one in why.reasons],
            "shown": found.shown_state,
            "steps": steps,
            "tab": tab,
            "tabs": _tabs(
                visit,
                found,
                tab,
                attempts=len(attempts) + _has_open_attempt(found, attempts),
                steps=len(steps),
                effects=effects,
                logs=len(logs),
                children=len(children),
                audit=len(audit),
                streams=len(streams),
            ),
            "timeline": timeline(
                found,
                attempts,
                effects,
                events,
                why.at,
                steps=steps,
                logs=[LogEntry(one.at, one.tone, one.text) for one in logs] if may_read else (),
            ),
            "topic": f"job:{found.id}",
            "unknown": unknown,
        },
    )


def _chosen_attempt(visit: Visit, attempts: Sequence[Attempt]) -> Attempt | None:
    """The attempt that the address names by its token, else the newest that has ended badly."""
    named = next((one for one in attempts if str(one.token) == visit.asked("attempt")), None)
    return named or (attempts[-1] if attempts else None)


def _logs_of(attempt: Attempt | None, logs: Sequence[LogLine]) -> Sequence[LogLine]:
    """What was logged while an attempt ran."""
    if attempt is None or attempt.claimed_at is None:
        return ()
    return [one for one in logs if attempt.claimed_at <= one.at <= attempt.ended_at]


def _has_open_attempt(found: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether the newest claim has no row among the attempts: it runs, waits, or has succeeded."""
    is_told = any(one.token == found.token for one in attempts)
    return found.claimed_at is not None and not is_told and found.state is not State.QUEUED


def read_output(visit: Visit, job_id: str, streams: Sequence[StreamInfo]) -> OutputShown:
    """What a stream holds since the last reset, the end of it if it is long."""
    names = [one.name for one in streams]
    name = visit.asked("stream") if visit.asked("stream") in names else names[0]
    after, text, resets, is_ended, is_cut = 0, "", 0, False, False
    for _ in range(OUTPUT_PAGES):
        page = visit.app.streams.read(job_id, name, after=after)
        for chunk in page.chunks:
            after = chunk.offset
            if chunk.kind == "reset":
                text, resets, is_cut = "", resets + 1, False
            elif chunk.kind == "truncated":
                text += "\n… the rest of this attempt is not kept\n"
            else:
                text += chunk.text
        is_cut, text = is_cut or len(text) > OUTPUT_CHARS, text[-OUTPUT_CHARS:]
        is_ended = page.is_ended
        if is_ended or not page.chunks:
            break
    return OutputShown(name, text, after, resets, is_ended, is_cut)


def unmasked(visit: Visit) -> Answer:
    """The page with payload and result as they are. Asked for by a form, so that it is in the audit."""
    return job(visit, mask="none")


def facts(
    found: Job, attempts: Sequence[Attempt], why: Explanation, asked: Approval | None, steps: Sequence[Step]
) -> list[Fact]:
    """What one wants to know first; what is not set is left out."""
    told = [
        Fact("Queue", found.queue, path=f"/queues/{segment(found.queue)}"),
        Fact("Priority", str(found.priority)),
        Fact(
            "Attempt", f"{found.attempt} of {found.max_attempts}", f"{found.crashes} crashed" if found.crashes else ""
        ),
    ]
    if found.state in HELD and found.lease_until is not None and found.claimed_at is not None:
        left = (found.lease_until - why.at).total_seconds()
        whole = max((found.lease_until - found.updated_at).total_seconds(), left, 1.0)
        word = span(left) if left > 0 else "ran out"
        told.append(
            Fact("Lease", word, f"token {found.token}", share=round(max(0.0, min(100.0, 100 * left / whole)), 1))
        )
    share, message = progress_of(found)
    if share is not None or message:
        told.append(
            Fact("Progress", f"{share:.0f} %" if share is not None else message, message if share is not None else "")
        )
    if asked is not None:
        told.append(
            Fact("Asks for", asked.name, f"{asked.approved} of {asked.need} said yes", path=f"/approvals/{asked.id}")
        )
    told.append(_lasted(found, attempts, why))
    if found.tenant:
        told.append(Fact("Tenant", found.tenant))
    if found.key:
        told.append(Fact("Key", first_line(found.key, 40), is_code=True))
    if found.workflow_id:
        told.append(Fact("Workflow", short_id(found.workflow_id), path=f"/workflows/{found.workflow_id}"))
    if found.actor:
        told.append(Fact("By", found.actor))
    told += _spent(found, steps)
    if found.trace:
        told.append(_trace(found.trace))
    return told


def _spent(found: Job, steps: Sequence[Step]) -> Iterator[Fact]:
    """What an agent's job cost: its result tells it, else the steps in which a framework recorded its model calls."""
    told: Mapping[str, Any] = found.result if isinstance(found.result, Mapping) else {}
    calls = [usage for one in steps if (usage := _usage(one)) is not None]
    tokens = told.get("tokens")
    counts = list(tokens.values()) if isinstance(tokens, Mapping) else []
    if not counts:
        counts = [one.get(name) for one in calls for name in ("input_tokens", "output_tokens")]
    count = sum(map(_count, counts))
    costs = [told["costUsd"]] if _is_number(told.get("costUsd")) else [one.get("cost") for one in calls]
    known = [float(one) for one in costs if one is not None and _is_number(one)]
    parts = ([counted(len(calls), "call")] if calls else []) + ([counted(count, "token")] if count else [])
    if known or parts:
        yield Fact("Cost", f"{sum(known):.4f} USD" if known else "not told", ", ".join(parts))
    session = told.get("sessionId")
    if isinstance(session, str) and session:
        yield Fact("Session", first_line(session, 18), is_code=True, title=session)


def _usage(step: Step) -> Mapping[str, Any] | None:
    """What a model call that was recorded as a step used. See store.usage.SumUsage."""
    if step.value is None or '"usage"' not in step.value:
        return None
    try:
        value = json.loads(step.value)
    except (ValueError, RecursionError):
        return None
    usage = value.get("usage") if isinstance(value, Mapping) else None
    return usage if isinstance(usage, Mapping) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST


def _count(value: Any) -> int:
    return int(value) if _is_number(value) else 0


def _trace(trace: str) -> Fact:
    """The id of the trace: of a W3C traceparent the second of its four parts."""
    parts = trace.split("-")
    whole = parts[1] if len(parts) == 4 and len(parts[1]) == 32 else trace
    return Fact("Trace", short_id(whole), is_code=True, title=whole)


def _asked(visit: Visit, found: Job) -> Approval | None:
    """The approval that the job waits for."""
    if found.state is not State.WAITING or not (found.waiting_for or "").startswith("approval:"):
        return None
    return next(iter(visit.app.approvals.all(job_id=found.id, limit=1)), None)


def _lasted(found: Job, attempts: Sequence[Attempt], why: Explanation) -> Fact:
    """How long it waited for its first worker and how long it ran; with several attempts, how long it is there in all
    and how long its newest attempt lasted."""
    over = found.finished_at or why.at
    if found.claimed_at is None or (found.state is State.QUEUED and not attempts):
        return Fact("Waited", span(max(0.0, (over - found.created_at).total_seconds())))
    newest = attempts[-1] if attempts else None
    if _has_open_attempt(found, attempts) or newest is None or newest.claimed_at is None:
        began, ended = found.claimed_at, found.updated_at if found.state is State.WAITING else over
    else:
        began, ended = newest.claimed_at, newest.ended_at
    ran = span(max(0.0, (ended - began).total_seconds()))
    if attempts:
        return Fact("In all / last attempt", f"{span(max(0.0, (over - found.created_at).total_seconds()))} / {ran}")
    return Fact("Waited / ran", f"{span(max(0.0, (began - found.created_at).total_seconds()))} / {ran}")


def _hidden(sentence: str, may_read: bool, code: str) -> str:
    """A sentence without the error's text for those who may not read it."""
    if may_read or code not in {"dead", "failed", "backing_off"}:
        return sentence
    return sentence.partition(":" if code != "backing_off" else "(")[0].rstrip() + "."


def _keys(visit: Visit, found: Job) -> Sequence[tuple[str, str]]:
    """Keys that do something on this page."""
    can, may_edit = _can(found), visit.viewer.may("read:payload")
    told = {"c": ("cancel", can["cancel"]), "r": ("revive", can["revive"])}
    told["e"] = ("edit", may_edit and (can["edit"] or (can["replay"] and found.shown_state in {"dead", "failed"})))
    told["p"] = ("priority", can["priority"])
    acts = [(key, word) for key, (word, is_there) in told.items() if is_there] if visit.viewer.may("operate") else []
    return (*acts, ("y", "copy id"), ("1 … 8", "tabs"))


def _can(found: Job) -> Mapping[str, bool]:
    return {
        "cancel": found.state not in TERMINAL and found.cancel_requested_at is None,
        "revive": (found.state, Move.REVIVE) in MOVES and found.cleaned_at is None,
        "clone": found.state in TERMINAL and found.cleaned_at is None,
        "wake": found.state is State.WAITING,
        "edit": is_editable(found),
        "replay": is_repeatable(found),
        "priority": is_editable(found),
        "release": found.state in HELD,
    }


def _tabs(
    visit: Visit,
    found: Job,
    tab: str,
    *,
    attempts: int,
    steps: int,
    effects: Sequence[Any],
    logs: int,
    children: int,
    audit: int,
    streams: int,
) -> list[tuple[str, str, str, str, bool]]:
    """Word, link, count, tone, whether it is shown."""
    unknown = sum(1 for one in effects if one.state == "unknown")
    counts = {
        "attempts": ("Attempts", number(attempts), ""),
        "output": ("Output", number(streams) if streams else "", ""),
        "steps": ("Steps", number(steps) if steps else "", ""),
        "effects": ("Effects", f"{unknown} unknown" if unknown else number(len(effects)), "unknown" if unknown else ""),
        "logs": ("Logs", number(logs), ""),
        "data": ("Payload and result", "", ""),
        "related": ("Related", number(children) if children else "", ""),
        "audit": ("Audit", number(audit), ""),
    }
    return [
        (word, visit.link(f"/jobs/{found.id}", tab=name), count, tone, name == tab)
        for name, (word, count, tone) in counts.items()
    ]


def _log_line(event: Event) -> LogLine:
    data = event.data if isinstance(event.data, Mapping) else {"message": masked_line(event.data)}
    level = str(data.get("level", event.kind))
    text = data.get("message", data.get("text", data.get("line")))
    fields = data.get("fields")
    tone = {"warning": "retry", "warn": "retry", "error": "failed", "critical": "dead", "stderr": "retry"}.get(
        level, ""
    )
    return LogLine(
        event.at,
        level,
        tone,
        str(text) if text is not None else masked_line(data),
        masked_line(fields) if fields else "",
    )


def _copies(visit: Visit, found: Job) -> Sequence[tuple[str, str]]:
    """The same job again, as a command, a request and a test; what is masked on the page is masked in them. A large
    payload is no argument of a command, and would make every look at the page three times as large."""
    shown = process_redactor().data(found.payload)
    payload = json.dumps(shown, ensure_ascii=True)
    if len(payload) > COPY_CHARS:
        return ()
    body = json.dumps({"kind": found.kind, "queue": found.queue, "payload": shown}, ensure_ascii=True)
    curl = (
        f"curl -d {shlex.quote(body)} -H 'Content-Type: application/json' "
        f'-H "Authorization: Bearer $TENURE_TOKEN" {visit.origin}/api/v1/jobs'
    )
    name = "".join(char if char.isalnum() else "_" for char in found.kind)
    test = f"def test_{name}() -> None:\n    app.registry.find({found.kind!r}).function({shown!r})\n"
    command = shlex.join(["tenure", "enqueue", found.kind, payload, "--queue", found.queue])
    return (("Copy as command", command), ("Copy as curl", curl), ("Copy as pytest", test))


# --- acts ---


def confirm(visit: Visit) -> Answer:
    """The question before an act, as a page of its own."""
    found = _find(visit)
    act = visit.params["act"]
    if act not in ASKED or not _can(found)[act]:
        raise UsageError(f"A job that is {found.shown_state} cannot be asked to {act}.")
    same = {
        "cancel": same_as.cancel(found.id),
        "revive": same_as.revive(found.id),
        "priority": same_as.priority(found.id, found.priority),
    }.get(act)
    shown = {"act": act, "job": found, "same": same, "section": "/jobs", "word": ASKED[act]}
    return Shown("job_confirm.html", shown)


def act(visit: Visit) -> Answer:
    """Cancel, revive, clone or wake one job, give it another priority, or take it from its worker."""
    found = _find(visit)
    verb, who = visit.params["act"], visit.viewer.name
    reason = "" if verb == "wake" else visit.reason()
    visit.pulse.forget()
    here = visit.link(f"/jobs/{found.id}")
    if verb == "cancel":
        answer = visit.app.cancel(found.id, actor=who, reason=reason)
        said = "Its worker is asked to stop." if answer.answer == "requested" else "1 job cancelled."
        return Moved(here, said)
    if verb == "revive":
        visit.app.revive(found.id, actor=who, reason=reason)
        return Moved(here, "1 job revived: it is queued again with all its attempts.")
    if verb == "clone":
        (made,) = visit.app.clone(found.id, actor=who, reason=reason)
        return Moved(visit.link(f"/jobs/{made.id}"), f"A copy of {short_id(found.id)}.")
    if verb == "priority":
        return set_priority(visit, found, reason)
    if verb == "release":
        return _release(visit, found, reason)
    if verb == "wake":
        woken = visit.app.wake(found.id)
        return Moved(here, "1 job woken." if woken else "It was not waiting any more.")
    raise NotFound(f"There is no act {verb!r} of a job.")


def _release(visit: Visit, found: Job, reason: str) -> Answer:
    """Take a held job from its worker. The token of the lease that was shown must still be the one that holds it."""
    token = visit.given("token")
    held = int(token) if token.isdecimal() and len(token) < 19 else found.token
    if found.state not in HELD or found.token != held:
        raise Outdated(f"Job {found.id} is not held by that lease any more, so nothing was changed. Look at it again.")
    visit.app.release((found.id, held), reason=reason)
    detail = {"token": held, "worker": found.lease_owner}
    visit.app.access.note("release_lease", found.id, actor=visit.viewer.name, reason=reason, detail=detail)
    return Moved(visit.link(f"/jobs/{found.id}"), "1 job released: it is queued again, and the attempt is not spent.")


def resolve(visit: Visit) -> Answer:
    """Say what became of an effect of unknown outcome."""
    found = _find(visit)
    outcome, note = visit.given("outcome"), visit.given("reason")
    if outcome not in OUTCOMES:
        raise UsageError("What became of the effect? Choose one of the answers. Nothing was changed.")
    if not note:
        raise UsageError("How do you know? The note goes into the audit. Nothing was changed.")
    result: Any = None
    if outcome == "confirmed" and visit.given("result"):
        result = read_json(visit.given("result"), "result")
    visit.app.effects.resolve(
        found.id,
        visit.given("name"),
        cast(Any, outcome),
        actor=visit.viewer.name,
        note=note,
        step=visit.given("step"),
        result=result,
    )
    return Moved(visit.link(f"/jobs/{found.id}", tab="effects"), f"{visit.given('name')}: {OUTCOMES[outcome].lower()}.")


def _find(visit: Visit) -> Job:
    job_id = visit.params["job_id"].lower()
    if not is_job_id(job_id):
        raise NotFound(f"There is no job {first_line(job_id, 60)!r}.")
    return visit.app.get(job_id)
