"""`/ui/bulk`: acts on all jobs that match. Each is a job with a frozen filter, a count, a pace and progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic import ValidationError

from tenure.effects.bulk_jobs import PACE
from tenure.effects.bulk_payload import BulkFilter
from tenure.errors import NotFound, UsageError
from tenure.model.frozen import frozen
from tenure.observe.browse import deaths_of, group_deaths
from tenure.web import bulk_acts
from tenure.web.bulk_acts import ABORTED, PAUSED, ActShown
from tenure.web.pages.changes import job_marker
from tenure.web.pages.filter_words import Parsed, is_job_id, parse
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted, first_line

if TYPE_CHECKING:
    from tenure.app import App

NEWEST: Final = 30
UNDER_WAY: Final = 10
"""Among so many of the newest, acts that are not over are shown on other pages too."""
ACTS: Final = ("cancel", "revive")
TOKENS: Final = {
    "shown": "state",
    "state": "state",
    "queue": "queue",
    "kind": "kind",
    "key": "key",
    "worker": "worker",
    "tenant": "tenant",
    "error": "error",
    "workflow": "workflow",
    "parent": "parent",
    "since": "made since",
    "fingerprint": "dead letters of",
}
"""Words of a frozen filter → what they are called on pages."""


@frozen
class ActLine:
    """One act on a page."""

    act: ActShown
    words: Sequence[tuple[str, str]]
    share: float
    left_seconds: float | None
    """How long it still takes at its pace; None if it does not run."""

    @property
    def verb(self) -> str:
        """What it does, in the word of the page that it was asked on."""
        return "undo" if self.act.undoes else _verb(self.act.act, str(self.act.filter.get("fingerprint", "")))


def acts(visit: Visit) -> Answer:
    """The page: acts, newest first."""
    found = bulk_acts.newest(visit.app, NEWEST)
    return Shown(
        "bulk.html",
        {
            "keys": (("j k", "move"), ("Enter", "open")),
            "lines": [_line(one) for one in found],
            "now": visit.app.now(),
            "same": None,
            "topic": "all",
        },
    )


def one(visit: Visit) -> Answer:
    """One act and how far it is."""
    seen = job_marker(visit.app, visit.params["act_id"].lower()) if is_job_id(visit.params["act_id"]) else ""
    found = _find(visit)
    return Shown(
        "bulk_act.html",
        {
            "audit": visit.app.access.audit(subject=found.job.id, limit=20),
            "keys": _keys(visit, found),
            "line": _line(found),
            "now": visit.app.now(),
            "same": None,
            "seen": seen,  # of before: what changes while the page is made counts as a change
            "section": "/bulk",
            "topic": f"job:{found.job.id}",
        },
    )


def _keys(visit: Visit, found: ActShown) -> list[tuple[str, str]]:
    """Keys that do something on the page of one act."""
    told = [("p", "pause", found.can_stop), ("c", "abort", found.can_stop), ("p", "go on", found.can_go_on)]
    return [(key, word) for key, word, is_there in told if is_there and visit.viewer.may("operate")]


def confirm(visit: Visit, *, wrong: str = "", status: int = 200) -> Answer:
    """The question before an act: what it means, how many, at which pace."""
    act, parsed, fingerprint = _asked(visit)
    chosen = _filter(visit, parsed, fingerprint)
    trial = bulk_acts.frozen_act(visit.app, act, chosen, actor=visit.viewer.name, reason="", pace=None)
    return Shown(
        "bulk_new.html",
        {
            "act": act,
            "back": visit.link(f"/dead-letters/{fingerprint}") if fingerprint else visit.link("/jobs", q=parsed.text),
            "fingerprint": fingerprint,
            "given": {name: visit.given(name) for name in ("pace", "reason")},
            "is_exact": trial.is_exact,
            "keys": (),
            "pace": int(PACE),
            "q": parsed.text,
            "section": "/bulk",
            "total": trial.total,
            "title": _title(visit, fingerprint),
            "word": _verb(act, fingerprint).capitalize(),
            "words": words(trial.filter.model_dump(mode="json")),
            "wrong": wrong,
        },
        status,
    )


def start(visit: Visit) -> Answer:
    """Freeze the filter and enqueue the act."""
    act, parsed, fingerprint = _asked(visit)
    reason = visit.reason()
    pace = _pace(visit.given("pace"))
    chosen = _filter(visit, parsed, fingerprint)
    made = bulk_acts.frozen_act(visit.app, act, chosen, actor=visit.viewer.name, reason=reason, pace=pace)
    if not made.total:
        raise UsageError("No job matches any more. Nothing was changed.")
    if act == "revive":
        visit.take_jobs(made.total)
    visit.pulse.forget()
    made_id = bulk_acts.start(visit.app, made)
    least = "" if made.is_exact else "at least "
    verb = _verb(act, fingerprint).capitalize()
    return Moved(visit.link(f"/bulk/{made_id}"), f"{verb} {least}{counted(made.total, 'job')}: it has begun.")


def change(visit: Visit) -> Answer:
    """Pause an act, go on with it, abort it, undo it."""
    found, verb, who = _find(visit), visit.params["act"], visit.viewer.name
    here = visit.link(f"/bulk/{found.job.id}")
    if verb in {"pause", "abort"}:
        why = PAUSED if verb == "pause" else ABORTED
        answer = bulk_acts.stop(visit.app, found.job.id, why=why, actor=who)
        said = "It stops after the part that is under way." if answer == "requested" else f"It is {why}."
        return Moved(here, said)
    if verb == "resume":
        bulk_acts.go_on(visit.app, found.job.id, actor=who)
        return Moved(here, "It goes on where it was.")
    if verb == "undo":
        reason = visit.reason()
        visit.take_jobs(found.done)
        made = bulk_acts.undo(visit.app, found.job.id, actor=who, reason=reason)
        return Moved(visit.link(f"/bulk/{made}"), f"{counted(found.done, 'job')} will be queued again.")
    raise NotFound(f"There is no act {verb!r} of a bulk act.")


def under_way(app: App) -> list[ActLine]:
    """Acts that are not over, among the newest."""
    return [_line(one) for one in bulk_acts.newest(app, UNDER_WAY) if not one.is_over]


def words(chosen: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A frozen filter as tokens for people."""
    told = []
    for name, word in TOKENS.items():
        value = chosen.get(name)
        if value:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            told.append((word, text.replace("retry_waiting", "retry") if word == "state" else text))
    return told


def _line(act: ActShown) -> ActLine:
    over = act.done + act.failed
    share = 100.0 if act.word == "done" else min(100.0, 100.0 * over / act.total) if act.total else 0.0
    left = max(0, act.total - over) / (act.pace or PACE) if act.word == "working" else None
    return ActLine(act, words(act.filter), round(share, 1), left)


def _asked(visit: Visit) -> tuple[Literal["cancel", "revive"], Parsed, str]:
    def told(name: str) -> str:
        return visit.given(name) or visit.asked(name)

    act = told("act")
    if act not in ACTS:
        raise UsageError("What should be done with all that match? Nothing was changed.")
    return cast(Literal["cancel", "revive"], act), parse(told("q")), told("fingerprint")


def _verb(act: str, fingerprint: str) -> str:
    """To revive the jobs of dead letters is to replay them."""
    return "replay" if fingerprint and act == "revive" else act


def _title(visit: Visit, fingerprint: str) -> str:
    """What the jobs of a fingerprint died of."""
    deaths = deaths_of(visit.app.store, fingerprint, limit=1) if fingerprint else []
    return group_deaths(deaths[:1], visit.app.now())[0].title if deaths else ""


def _filter(visit: Visit, parsed: Parsed, fingerprint: str) -> BulkFilter:
    """The filter of the jobs page, frozen: a span of time becomes a moment."""
    if parsed.wrong:
        raise UsageError(f"{parsed.wrong[0]} Nothing was changed.")
    if fingerprint:
        return BulkFilter(fingerprint=fingerprint)
    wanted = parsed.wanted(visit.app.now())
    try:
        return BulkFilter(
            shown=tuple(wanted.states),
            queue=tuple(wanted.queues),
            kind=tuple(wanted.kinds),
            key=wanted.key,
            worker=wanted.worker,
            tenant=wanted.tenant,
            error=wanted.error,
            workflow=wanted.workflow_id,
            parent=wanted.parent_id,
            since=wanted.since,
        )
    except ValidationError as exc:
        raise UsageError(f"The filter is too long or malformed: {exc.errors()[0]['msg']}.") from exc


def _pace(text: str) -> float | None:
    if not text:
        return None
    try:
        pace = float(text)
    except ValueError:
        pace = 0.0
    if not 0 < pace <= 10_000:
        raise UsageError(f"Pace: a number of jobs per second up to 10,000, not {first_line(text, 40)!r}.")
    return pace


def _find(visit: Visit) -> ActShown:
    act_id = visit.params["act_id"].lower()
    if not is_job_id(act_id):
        raise NotFound(f"There is no act {first_line(act_id, 60)!r}.")
    return bulk_acts.find(visit.app, act_id)
