"""`/ui/memos`: work that was done once and kept: what each holds, until when; and forgetting it."""

from __future__ import annotations

from typing import Final

from tenure import Memo, Page
from tenure.errors import InvalidArgument, UsageError
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted

ROWS: Final = 50


def memos(visit: Visit) -> Answer:
    """The page. What is kept may hold what jobs were about, so its beginning needs read:payload."""
    name, prefix, tenant = _asked(visit)
    wrong = ""
    try:
        found = visit.app.steps.memos(
            name or None, prefix=prefix or None, tenant=tenant or None, limit=ROWS, after=visit.asked("after") or None
        )
    except InvalidArgument as exc:
        found, wrong = Page([], None), str(exc)
    rows: list[Memo] = list(found.items)
    told = {"name": name, "prefix": prefix, "tenant": tenant}
    return Shown(
        "memos.html",
        {
            **told,
            "is_narrowed": any(told.values()),
            "keys": (("/", "name"), ("j k", "move"), ("x", "select")),
            "may_read": visit.viewer.may("read:payload"),
            "newest": visit.link("/memos", **told) if visit.asked("after") else None,
            "now": visit.app.now(),
            "older": visit.link("/memos", **told, after=found.next) if found.next else None,
            "rows": rows,
            "same": same_as.memos(name, prefix, tenant),
            "wrong": wrong,
        },
        400 if wrong else 200,
    )


def forget(visit: Visit) -> Answer:
    """Forget the memos that were picked."""
    ids = visit.form.get("pick", ())[:ROWS]
    if not ids:
        raise UsageError("Nothing was selected, so nothing was forgotten.")
    gone = visit.app.steps.forget_memos(ids=ids, actor=visit.viewer.name, reason=visit.reason())
    back = visit.link("/memos", **{key: visit.given(key) for key in ("name", "prefix", "tenant")})
    return Moved(back, f"{counted(gone, 'memo')} forgotten. The next job that needs one does the work again.")


def _asked(visit: Visit) -> tuple[str, str, str]:
    return visit.asked("name")[:200], visit.asked("prefix")[:500], visit.asked("tenant")[:200]
