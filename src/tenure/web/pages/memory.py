"""`/ui/memory`: what agents remember: search by words and by meaning, the event that each came from, and forgetting."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

from tenure.errors import InvalidArgument, OperatorError, TooWide, UsageError
from tenure.web.pages import same_as
from tenure.web.pages.filter_words import is_job_id
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted

HITS: Final = 30
WAYS: Final = {"both": "Words and meaning", "words": "Words", "meaning": "Meaning"}
TEXT_MOST: Final = 500


def memory(visit: Visit) -> Answer:
    """The page. What is remembered may hold what jobs were about, so it needs read:payload."""
    may_read = visit.viewer.may("read:payload")
    text, agent = visit.asked("q")[:TEXT_MOST], visit.asked("agent")
    way = visit.asked("by") if visit.asked("by") in WAYS else "both"
    hits: list[Any] = []
    wrong = ""
    if text and may_read:
        try:
            hits = list(
                visit.app.memory.search(
                    text, agent=agent or None, limit=HITS, by=cast(Literal["both", "words", "meaning"], way)
                )
            )
        except (InvalidArgument, OperatorError) as exc:
            wrong = str(exc)
    stats = _stats(visit)
    return Shown(
        "memory.html",
        {
            "agent": agent,
            "agents": sorted({one.agent for one in stats.counts}) if stats else [],
            "hits": hits,
            "keys": (("/", "search"), ("j k", "move")),
            "may_read": may_read,
            "now": visit.app.now(),
            "q": text,
            "same": same_as.memory(text) if text else None,
            "stats": stats,
            "way": way,
            "ways": WAYS,
            "wrong": wrong,
        },
    )


def forget(visit: Visit) -> Answer:
    """Remove memories that were picked."""
    ids = [one for one in visit.form.get("pick", ())[:HITS] if is_job_id(one)]
    if not ids:
        raise UsageError("Nothing was selected, so nothing was forgotten.")
    gone = visit.app.memory.forget(ids, actor=visit.viewer.name, reason=visit.reason())
    back = visit.link("/memory", q=visit.given("q"), agent=visit.given("agent"), by=visit.given("by"))
    return Moved(back, f"{counted(gone, 'memory', 'memories')} forgotten. The events that they came from stay.")


def _stats(visit: Visit) -> Any:
    """What is remembered; None if it is too much to count within a page's time."""
    try:
        return visit.app.memory.stats()
    except TooWide:
        return None
