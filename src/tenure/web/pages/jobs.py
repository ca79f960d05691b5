"""`/ui/jobs`: the newest jobs that match, counts by state within the filter, selection, export, enqueue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from tenure.effects.bulk_looks import REVIVABLE
from tenure.errors import TenureError, UsageError
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, id_prefix
from tenure.model.job import Job
from tenure.model.progress import read_progress
from tenure.model.redact import process_redactor
from tenure.model.state import ACTIVE, HELD, TERMINAL, State
from tenure.observe.browse import SCAN, JobFilter, browse
from tenure.web.pages import exports, filter_words, same_as
from tenure.web.pages.filter_words import NAMES, SHOWN_STATES, Parsed, is_job_id, parse, token
from tenure.web.pages.json_text import read_json
from tenure.web.pages.schema_form import fields_of, payload_of
from tenure.web.pages.visit import JOB_COLUMNS, Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted, first_line, short_span
from tenure.web.problems import Problem

PAGE: Final = 50
EXPORT: Final = 1_000
ID_CHARS: Final = 8
"""Of the beginning of an id, to be looked for."""
SUGGESTED: Final = 20
"""Queues and kinds that the filter suggests."""
VIEWS: Final = (
    ("Running now", "state:running,leased"),
    ("Failed, last hour", "state:dead,failed,retry since:1h"),
    ("Waiting", "state:waiting"),
    ("Last 15 minutes", "since:15m"),
)


@frozen
class Chip:
    """One state within the filter."""

    state: str
    count: int
    link: str
    is_chosen: bool


@frozen
class JobLine:
    """One job in the list."""

    job: Job
    shown: str
    says: str
    """The last error, the summary or the progress in words."""
    share: float | None
    """Progress in per cent, if it is a number."""
    next: str


def jobs(visit: Visit) -> Answer:
    """The page."""
    added = visit.asked("add")
    if added:
        parsed = parse(f"{visit.asked('q')} {added}")
        return Moved(visit.link("/jobs", q=parsed.text))
    parsed = parse(visit.asked("q"))
    after = visit.asked("after") or None
    if after is not None and not is_job_id(after):
        raise UsageError("This link to further jobs is malformed. Start anew from the list.")
    # A live page asks for the rows up to the one that stood first, so that none moves under the reader's hand.
    upto = visit.asked("upto") if after is None and is_job_id(visit.asked("upto")) else None
    # The same read for both, so that what one page counts as newer another one shows.
    found = visit.pulse.shared(
        ("jobs", parsed.text, after),
        lambda: browse(visit.app.store, parsed.wanted(visit.app.now()), limit=2 * PAGE, after=after),
    )
    newer = [one for one in found.items if upto and one.id > upto]
    rows = found.items[len(newer) :][:PAGE]
    if not rows:  # nothing is left of what was shown
        rows, newer, upto = found.items[:PAGE], [], None
    following = rows[-1].id if len(found.items) > len(newer) + len(rows) else found.next
    return Shown(
        "jobs.html",
        {
            "all_columns": JOB_COLUMNS,
            "chips": list(_chips(visit, parsed, found.counts)),
            "columns": visit.preferences.columns,
            "filter": parsed,
            "is_bounded": not found.is_whole,
            "is_further": after is not None,
            "keys": (("j k", "move"), ("x", "select"), ("Enter", "open"), ("/", "filter")),
            "lines": [_line(one, found.at) for one in rows],
            "newer": len(newer),
            "newest": visit.link("/jobs", q=parsed.text),
            "now": found.at,
            "older": visit.link("/jobs", q=parsed.text, after=following) if following else None,
            "renew": visit.link(
                "/jobs", q=parsed.text, after=after, upto=upto or (rows[0].id if rows and not after else None)
            ),
            "same": _same_as(parsed),
            "says": _says(found.scanned, found.is_whole, len(rows), after is not None),
            "scanned": found.scanned,
            "suggestions": list(_suggestions(visit, parsed, found.counts)),
            "topic": "all",
            "total": sum(found.counts.get(one, 0) for one in (parsed.states or found.counts)),
            "all_that_match": list(_all_that_match(visit, parsed)),
            "views": [(name, text, visit.link("/jobs", q=text)) for name, text in VIEWS],
            "without": lambda token: visit.link("/jobs", q=parsed.without(token)),
            "export": lambda kind: visit.link("/jobs/export", q=parsed.text, format=kind),
        },
    )


def _suggestions(visit: Visit, parsed: Parsed, counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Tokens that can be added, with how many jobs they mean: states within the filter, queues by what is to do,
    kinds by what ended in the last hour; and the names of the other tokens."""
    look = visit.pulse.now()
    if not parsed.of("state"):
        for name in SHOWN_STATES:
            if counts.get(name):
                yield f"state:{'retry' if name == 'retry_waiting' else name}", f"{counts[name]:,} within this filter"
    if look is not None and not parsed.of("queue"):
        to_do = {one.queue: one.due + one.delayed + one.held + one.waiting for one in look.seen.summary.backlog}
        for queue in sorted(look.seen.queues, key=lambda one: (-to_do.get(one.name, 0), one.name))[:SUGGESTED]:
            yield token("queue", queue.name), f"{to_do.get(queue.name, 0):,} to do"
    if look is not None and not parsed.of("kind"):
        ended = Counter[str]()
        for one in look.seen.summary.ran:
            ended[one.kind] += one.succeeded + one.failed + one.dead + one.cancelled
        for kind, count in ended.most_common(SUGGESTED):
            yield token("kind", kind), f"{count:,} ended in the last hour"
    for name, means in NAMES.items():
        yield f"{name}:", means


def find(visit: Visit) -> Answer:
    """The search in the top bar: an id, or its beginning, goes to its job; anything else to the filter."""
    text = visit.asked("q")[: filter_words.CHARS_MAX]
    if is_job_id(text):
        return Moved(visit.link(f"/jobs/{text.lower()}"))
    is_word = bool(text) and ":" not in text and " " not in text
    # One bare word is a key where a job has it, else a kind.
    if is_word and browse(visit.app.store, JobFilter(key=text), limit=1).items:
        return Moved(visit.link("/jobs", q=token("key", text)))
    begins = _begins(visit, text) if is_word else []
    if len(begins) == 1:
        return Moved(visit.link(f"/jobs/{begins[0]}"))
    if begins:
        return Moved(visit.link("/jobs"), f"More than one job's id begins with {text}. Type more of it.")
    return Moved(visit.link("/jobs", q=parse(text).text))


def _begins(visit: Visit, text: str) -> list[str]:
    """Two jobs at most whose ids begin so. What is shorter than the first group of an id is more likely a kind."""
    typed = id_prefix(text)
    if typed is None or len(typed[0]) < ID_CHARS:
        return []
    digits, above = typed
    newest = visit.app.jobs(limit=2, after=above).items
    return [one.id for one in newest if one.id.replace("-", "").startswith(digits)]


def export(visit: Visit) -> Answer:
    """The newest jobs that match, as a file. Values are in it only for those who may read payloads, and what goes under
    the name of a secret is not: that needs an unmasking, which is in the audit."""
    parsed = parse(visit.asked("q"))
    found = browse(visit.app.store, parsed.wanted(visit.app.now()), limit=EXPORT, scan=SCAN)
    whole = visit.viewer.may("read:payload")
    columns = [*COLUMNS, *(VALUES if whole else ())]
    return exports.sent((_record(one, whole) for one in found.items), columns, "jobs", visit.asked("format"))


COLUMNS: Final = [
    "id",
    "queue",
    "kind",
    "state",
    "priority",
    "attempt",
    "max_attempts",
    "created_at",
    "run_at",
    "claimed_at",
    "finished_at",
    "lease_owner",
    "key",
    "tenant",
    "failure_class",
]
VALUES: Final = ("last_error", "payload", "result")


def _record(job: Job, whole: bool) -> dict[str, Any]:
    told: dict[str, Any] = {name: getattr(job, name) for name in COLUMNS}
    told["state"] = job.shown_state
    if whole:
        told |= {"last_error": job.last_error}
        told |= {name: process_redactor().data(getattr(job, name)) for name in ("payload", "result")}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in told.items()}


def enqueue_form(visit: Visit, *, wrong: str = "", status: int = 200) -> Answer:
    """A form for one job: with a field for each property of the payload, where the kind has a type."""
    kinds = sorted(visit.app.registry)
    kind = visit.given("kind") or visit.asked("kind")
    fields = fields_of(visit.app.registry.get(kind), _form(visit))
    return Shown(
        "enqueue.html",
        {
            "given": {
                name: visit.given(name) or visit.asked(name)
                for name in ("kind", "queue", "payload", "key", "delay", "priority")
            },
            "fields": fields if not visit.asked("json") else [],
            "has_fields": bool(fields),
            "kinds": kinds,
            "queues": [one.name for one in visit.app.queues.all()],
            "same": None,
            "wrong": wrong,
        },
        status,
    )


def enqueue(visit: Visit) -> Answer:
    """Enqueue one job."""
    kind = visit.given("kind")
    options: dict[str, Any] = {"actor": visit.viewer.name}
    try:
        if not kind:
            raise UsageError("Which kind of job? The field kind is empty.")
        payload = _payload(visit, kind)
        for name in ("queue", "key"):
            if visit.given(name):
                options[name] = visit.given(name)
        for name, field in (("priority", "priority"), ("delay", "delay")):
            if visit.given(field):
                options[name] = _number(field, visit.given(field))
        made = visit.app.new_job(kind, payload, **options)
        if not visit.viewer.may("enqueue", queue=made.queue, kind=kind):
            raise UsageError(
                f"You may not enqueue jobs of kind {kind!r} in queue {made.queue!r}. Nothing was enqueued."
            )
        visit.take_jobs(1)
        answer = visit.app.enqueue(made)
    except TenureError as exc:
        return enqueue_form(visit, wrong=str(exc), status=422)
    except Problem as exc:  # beyond a quota: what was written must not be lost
        return enqueue_form(visit, wrong=exc.detail, status=exc.status)
    notice = "That key is taken; this is the job that holds it." if answer.duplicate else f"Enqueued as {answer.id}."
    return Moved(visit.link(f"/jobs/{answer.id}"), notice)


def _payload(visit: Visit, kind: str) -> Any:
    """What the form says: its fields, or the JSON text. Raises: InvalidPayload."""
    if "payload" not in visit.form:
        fields = fields_of(visit.app.registry.get(kind), _form(visit))
        if fields:
            return payload_of(fields, _form(visit))
    return read_json(visit.given("payload") or "{}")


def _form(visit: Visit) -> dict[str, str]:
    """The fields of the form as they were sent; of a form that was not sent, none."""
    return {name: values[0] for name, values in visit.form.items() if values}


def _number(field: str, text: str) -> float | int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"The field {field} needs a number, not {text!r}.") from None


# --- acting on picked jobs ---


def act_on_picked(visit: Visit) -> Answer:
    """Ask before jobs that were picked by hand are cancelled or revived."""
    ids = _picked(visit)
    act = visit.given("act")
    if act not in {"cancel", "revive"} or not ids:
        return Moved(visit.link("/jobs", q=visit.given("q")), "Nothing was selected.")
    found = [one for one in visit.app.get_many(ids) if one is not None]
    possible = ACTIVE if act == "cancel" else REVIVABLE
    chosen = [one for one in found if one.state in possible]
    return Shown(
        "picked.html",
        {
            "act": act,
            "chosen": chosen,
            "held": sum(1 for one in chosen if one.state in HELD),
            "left_out": len(ids) - len(chosen),
            "q": visit.given("q"),
        },
    )


def do_to_picked(visit: Visit) -> Answer:
    """Cancel or revive jobs that were picked by hand."""
    ids = _picked(visit)
    act = visit.given("act")
    back = visit.link("/jobs", q=visit.given("q"))
    reason = visit.reason()
    if act == "cancel":
        answers = visit.app.cancel_many(ids, actor=visit.viewer.name, reason=reason)
        done = sum(1 for one in answers if one.answer != "refused")
    elif act == "revive":
        visit.take_jobs(len(ids))
        settled = visit.app.revive_many(ids, actor=visit.viewer.name, reason=reason)
        done = sum(1 for one in settled if not one.lost)
    else:
        raise UsageError("What should be done with these jobs? Nothing was changed.")
    visit.pulse.forget()
    word = "cancelled or asked to stop" if act == "cancel" else "revived"
    rest = f"; {len(ids) - done} could not be" if done < len(ids) else ""
    return Moved(back, f"{counted(done, 'job')} {word}{rest}.")


def _picked(visit: Visit) -> list[JobId]:
    return [JobId(one) for one in visit.form.get("pick", ())[:PAGE] if is_job_id(one)]


# --- parts ---


def _chips(visit: Visit, parsed: Parsed, counts: Any) -> Iterator[Chip]:
    chosen = parsed.states
    for name in SHOWN_STATES:
        count = counts.get(name, 0)
        if name == "cleaned" and not count and name not in chosen:
            continue
        others = [one for one in chosen if one != name]
        toggled = others if name in chosen else [*chosen, name]
        words = ["retry" if one == "retry_waiting" else one for one in toggled]
        yield Chip(name, count, visit.link("/jobs", q=parsed.with_states(words)), name in chosen)


def _all_that_match(visit: Visit, parsed: Parsed) -> Iterator[tuple[str, str]]:
    """What can be done to all that match, with the page that asks: word, link."""
    if not parsed.tokens or parsed.wrong:
        return
    states = {"queued" if one == "retry_waiting" else one for one in parsed.states}
    for act, able in (("cancel", ACTIVE), ("revive", REVIVABLE)):
        if not states or states & able:
            yield act, visit.link("/bulk/new", q=parsed.text, act=act)


def _line(job: Job, now: datetime) -> JobLine:
    share, says = progress_of(job)
    if job.last_error and job.state is not State.SUCCEEDED:
        says = first_line(job.last_error, 160)
    elif job.result_summary:
        says = first_line(job.result_summary, 160)
    elif job.state is State.WAITING:
        says = f"waits for {job.waiting_for}" if job.waiting_for else "waits"
    return JobLine(job, job.shown_state, says, share, _next(job, now))


def progress_of(job: Job) -> tuple[float | None, str]:
    """How far a job is, in per cent where its progress is a number, and in words."""
    if job.state in TERMINAL or job.progress is None:
        return None, ""
    share, words = read_progress(job.progress)
    return None if share is None else round(100.0 * share, 1), first_line(words, 80)


def _next(job: Job, now: datetime) -> str:
    if job.state in HELD and job.lease_until is not None:
        left = (job.lease_until - now).total_seconds()
        return f"lease {short_span(left)}" if left > 0 else "lease ran out"
    if job.state is State.QUEUED and (job.run_at - now).total_seconds() > 0.5:
        return f"in {short_span((job.run_at - now).total_seconds())}"
    return ""


def _says(scanned: int, is_whole: bool, shown: int, is_further: bool) -> str:
    if is_whole:
        return f"{counted(shown, 'job')} shown, newest first. Counts are exact."
    place = "further back" if is_further else "newest"
    return f"{counted(shown, 'job')} shown, newest first. Counts cover the {scanned:,} {place} jobs."


def _same_as(parsed: Parsed) -> str | None:
    """None where the filter holds tokens that the command line has no option for."""
    is_stored = all(one in set(State) for one in parsed.states)
    if any(parsed.one(name) for name in ("tenant", "error", "since")) or not is_stored:
        return None
    return same_as.jobs(
        states=parsed.states,
        queues=parsed.of("queue"),
        kinds=parsed.of("kind"),
        key=parsed.one("key"),
        worker=parsed.one("worker"),
        workflow=parsed.one("workflow"),
        parent=parsed.one("parent"),
    )
