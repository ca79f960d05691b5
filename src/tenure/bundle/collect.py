"""Everything that a database knows of one job, read by the same calls that any program has."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tenure
from tenure.bundle.document import FORMAT, VERSION, Bundle, BundledStream, ChildJob
from tenure.errors import NotFound
from tenure.model.plain import plain

if TYPE_CHECKING:
    from tenure import Audit, Event, Job, WorkflowRow
    from tenure.app import App
    from tenure.model.stream import Chunk

PART_BYTES: Final = 4 << 20
STREAM_BYTES: Final = 16 << 20
"""What one part, and all streams together, take at most; a larger part loses its oldest entries."""
PAGE: Final = 1000
READS: Final = 3
"""How often a job that moves on meanwhile is read."""

T = TypeVar("T")


def collect(app: App, job_id: str) -> Bundle:
    """The job with its whole history. Raises: NotFound."""
    for _ in range(READS):
        found, is_changing = _read_once(app, job_id)
        if not is_changing:
            break
    return found


def _read_once(app: App, job_id: str) -> tuple[Bundle, bool]:
    job = app.get(job_id)
    left_out: dict[str, int] = {}

    def newest(name: str, entries: Iterable[T], *, most: int = PART_BYTES) -> list[T]:
        """What fits of entries that come oldest first."""
        return told(name, *_last_that_fit(entries, most))

    def newest_of_pages(name: str, entries: Iterable[T]) -> list[T]:
        """The same of entries that come newest first."""
        return told(name, *_first_that_fit(entries, PART_BYTES))

    def told(name: str, kept: list[T], dropped: int) -> list[T]:
        if dropped:
            left_out[name] = dropped
        return kept

    workflow = _workflow(app, job.workflow_id)
    parts: dict[str, Any] = {
        "attempts": newest("attempts", app.attempts(job_id)),
        "dead_letters": newest_of_pages(
            "dead_letters", _pages(lambda at: app.dead_letters.all(job_id=job_id, after=at))
        ),
        "effects": newest("effects", _pages(lambda at: app.effects.all(job_id=job_id, after=at))),
        "steps": newest("steps", app.steps.all(job_id) if job.step_token is not None else ()),
        "events": newest("events", _events(app, job_id)),
        "streams": _streams(app, job_id, newest),
        "children": newest_of_pages(
            "children",
            (
                ChildJob(one.id, one.kind, one.queue, one.shown_state)
                for one in _pages(lambda at: app.jobs(parent_id=job_id, limit=PAGE, after=at))
            ),
        ),
        "escalations": newest("escalations", app.workflows.escalations(workflow.id, state=None) if workflow else ()),
        "audit": newest_of_pages("audit", _audit(app, job_id)),
        "approvals": newest_of_pages(
            "approvals", _pages(lambda at: app.approvals.all(state=None, job_id=job_id, limit=PAGE, after=at))
        ),
        "budgets": newest("budgets", app.budgets.all(_scopes(job))),
    }
    again = app.get(job_id)
    is_changing = (again.token, again.updated_at) != (job.token, job.updated_at)
    return Bundle(
        format=FORMAT,
        version=VERSION,
        made_by=tenure.__version__,
        engine="sqlite" if app.url.startswith("sqlite") else "postgresql",
        taken_at=app.now(),
        is_redacted=False,
        is_changing=is_changing,
        left_out=left_out,
        job=again,
        workflow=workflow,
        **parts,
    ), is_changing


def _scopes(job: Job) -> list[str]:
    """The budgets' scopes that concern a job."""
    named = {"queue": job.queue, "kind": job.kind, "tenant": job.tenant, "workflow": job.workflow_id, "job": job.id}
    return ["all", *(f"{scope}:{name}" for scope, name in named.items() if name is not None)]


def _first_that_fit(entries: Iterable[T], most: int) -> tuple[list[T], int]:
    """The newest entries that fit, oldest first, and how many older ones do not. `entries` come newest first."""
    kept: list[T] = []
    dropped = 0
    for entry in entries:
        if not dropped:
            most -= len(json.dumps(plain(entry)))
        if most < 0:
            dropped += 1
        else:
            kept.append(entry)
    return kept[::-1], dropped


def _last_that_fit(entries: Iterable[T], most: int) -> tuple[list[T], int]:
    """The same. `entries` come oldest first."""
    kept: deque[tuple[T, int]] = deque()
    taken = dropped = 0
    for entry in entries:
        size = len(json.dumps(plain(entry)))
        kept.append((entry, size))
        taken += size
        while taken > most:
            taken -= kept.popleft()[1]
            dropped += 1
    return [entry for entry, _ in kept], dropped


def _pages(read: Callable[[str | None], tenure.Page[T]]) -> Iterator[T]:
    after: str | None = None
    while True:
        page = read(after)
        yield from page.items
        if page.next is None:
            return
        after = page.next


def _audit(app: App, job_id: str) -> Iterator[Audit]:
    before: int | None = None
    while rows := app.access.audit(subject=job_id, limit=PAGE, before=before):
        yield from rows
        before = rows[-1].seq


def _events(app: App, job_id: str) -> Iterator[Event]:
    after = 0
    while events := app.events(job_id=job_id, after=after, limit=PAGE):
        yield from events
        after = events[-1].seq


def _streams(app: App, job_id: str, newest: Callable[..., list[Chunk]]) -> list[BundledStream]:
    infos = app.streams.names(job_id)
    return [
        BundledStream(
            info.name,
            info.last_offset,
            info.bytes,
            info.is_full,
            newest(f"streams.{info.name}", _chunks(app, job_id, info.name), most=STREAM_BYTES // len(infos)),
        )
        for info in infos
    ]


def _chunks(app: App, job_id: str, name: str) -> Iterator[Chunk]:
    after = 0
    while chunks := app.streams.read(job_id, name, after=after).chunks:
        yield from chunks
        after = chunks[-1].offset


def _workflow(app: App, workflow_id: str | None) -> WorkflowRow | None:
    """The workflow. A job may name one that is only a word to its caller."""
    if workflow_id is None:
        return None
    try:
        return app.workflows.get(workflow_id)
    except NotFound:
        return None
