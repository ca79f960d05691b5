"""`report`: the results of a set of jobs in one Markdown or JSON file.

Results come from strangers, agents among them. In Markdown they stand in fences longer than any run of backticks in
them, and in table cells every mark is escaped: a report shows what a result says and never does it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.effects.atomic_file import Tag, write_file
from tenure.effects.file_jobs import Place, holds, refusals
from tenure.effects.kinds import Finding, Host, Terms, call, fence, register
from tenure.errors import LeaseLost
from tenure.handler.context import Context
from tenure.handler.ledger import LedgerRow
from tenure.handler.signals import Permanent
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import Job
from tenure.model.outcome import EffectRecord
from tenure.model.state import TERMINAL
from tenure.sandbox.redact import Redactor
from tenure.store.queries import GetJobs, ListJobs, Page

if TYPE_CHECKING:
    from tenure.effects.payloads import Report

JOBS_MAX = 10_000
PAGE = 200
RESULT_CHARS = 20_000
_MARKS = re.compile(r"([\\`*_{}\[\]()#+\-.!|~])")


@frozen
class Reports:
    """The kit of `report`."""

    place: Place
    kind: str
    terms: Terms
    redactor: Redactor

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        register(app, self.kind, self.report, _payload_type, self.terms, is_durable=True)
        app.registry.checkers.append(self)

    def report(self, payload: Report, ctx: Context) -> dict[str, Any]:
        """Gather, render, write. Waits without a slot while jobs have not ended, unless told not to."""
        jobs = sorted(_gather(payload, ctx), key=lambda job: job.id)
        pending = [job for job in jobs if job.state not in TERMINAL]
        if pending and payload.waitForAll:
            # The newest of them: it is likely to end last. Then it looks again.
            ctx.wait_for_job(max(job.id for job in pending), key=ctx.token)
        render = _markdown if payload.format == "markdown" else _json
        content = "".join(render(payload.title, jobs, self.redactor)).encode(errors="replace")
        with refusals():
            record = write_file(
                self.place.root,
                payload.path,
                content,
                overwrite=payload.overwrite or self._is_ours(payload.path, content, ctx),
                check=fence(ctx),
                tag=Tag(ctx.id, ctx.token),
            )
        states = dict(Counter(job.state.value for job in jobs))
        ctx.set_result_summary(f"{len(jobs)} jobs: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())))
        return {
            "path": payload.path,
            "sha256": record.sha256,
            "size": record.size,
            "jobs": len(jobs),
            "states": states,
        }

    def _is_ours(self, path: str, content: bytes, ctx: Context) -> bool:
        """Whether an earlier attempt of this job wrote what is there; what this one is about to write is taken down.

        The jobs may have moved on since, so a repeat may have other content, and its file is its own.
        """
        hashes = _recorded(ctx, EffectRecord("report", "intended")).result or []
        is_ours = any(holds(self.place.root, path, one) is None for one in hashes)
        hashes = [*hashes, hashlib.sha256(content).hexdigest()]
        _recorded(ctx, EffectRecord("report", "sent", result=json.dumps(hashes)))
        return is_ours

    @property
    def scope(self) -> str:
        """See Checker."""
        return self.place.scope

    def subject(self, job: Job) -> str | None:
        """See Checker."""
        path = job.payload.get("path") if isinstance(job.payload, dict) else None
        return path if isinstance(path, str) and isinstance(job.result, dict) else None

    def check(self, job: Job) -> Finding | None:
        """See Checker."""
        return holds(self.place.root, job.payload["path"], str(job.result.get("sha256")))


def reports(
    root: Path | str, *, queue: str = "reports", kind: str = "report", max_attempts: int | None = None
) -> Reports:
    """The kind `report`, for `app.use(reports(root="data"))`."""
    return Reports(Place(root), kind, Terms(queue, max_attempts=max_attempts), Redactor())


def _recorded(ctx: Context, record: EffectRecord) -> LedgerRow:
    row = None if ctx.services.record is None else ctx.services.record(ctx, record)
    if row is None:
        raise LeaseLost(f"Job {ctx.id}: the report was left to a newer attempt, because the lease has ended.")
    return row


def _gather(payload: Report, ctx: Context) -> list[Job]:
    """The jobs that are meant, each once, without the report itself; of a tenant's report only that tenant's."""
    tenant = ctx.job.extra("tenant")  # noqa: S610 - no Django here
    found: dict[JobId, Job] = {}
    ids = [JobId(one.lower()) for one in payload.jobIds]
    for first in range(0, len(ids), PAGE):
        batch = ids[first : first + PAGE]
        for job_id, job in zip(batch, call(ctx, GetJobs(batch)), strict=True):
            if job is None or tenant not in {None, job.tenant}:
                raise Permanent(f"There is no job {job_id}, so the report would not be complete.")
            found[job.id] = job
    for filters in ({"workflow_id": payload.workflowId}, {"parent_id": payload.parentId}):
        if next(iter(filters.values())) is not None:
            for job in _listed(ctx, filters):
                if tenant not in {None, job.tenant}:
                    continue
                found[job.id] = job
                if len(found) > JOBS_MAX:
                    raise Permanent(f"There are more than {JOBS_MAX:,} jobs; that is too long for a report.")
    found.pop(ctx.id, None)
    return list(found.values())


def _listed(ctx: Context, filters: dict[str, Any]) -> Iterator[Job]:
    after = None
    while True:
        page: Page[Job] = call(ctx, ListJobs(limit=PAGE, after=after, **filters))
        yield from page.items
        if page.next is None:
            return
        after = page.next


def _markdown(title: str, jobs: list[Job], redactor: Redactor) -> Iterator[str]:
    yield f"# {_plain(title)}\n\n"
    counts = Counter(job.shown_state for job in jobs)
    yield f"{len(jobs)} jobs" + "".join(f", {number} {state}" for state, number in sorted(counts.items())) + ".\n\n"
    yield "| job | kind | state | attempts | finished | summary |\n|---|---|---|---|---|---|\n"
    for job in jobs:
        summary = _plain(redactor.text(job.result_summary or (job.last_error or "").partition("\n")[0])[:200])
        yield f"| {job.id} | {_plain(job.kind)} | {job.shown_state} | {job.attempt} | {_at(job)} | {summary} |\n"
    for job in jobs:
        text, language = _told(job, redactor)
        if text:
            fence_marks = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
            yield f"\n## {_plain(job.kind)} {job.id}\n\n{fence_marks}{language}\n{text}\n{fence_marks}\n"


def _json(title: str, jobs: list[Job], redactor: Redactor) -> Iterator[str]:
    rows = [
        {
            "id": job.id,
            "kind": job.kind,
            "state": job.shown_state,
            "attempts": job.attempt,
            "finished_at": _at(job) or None,
            "summary": redactor.text(job.result_summary) if job.result_summary else None,
            "result": redactor.data(job.result),
            "error": redactor.bounded(job.last_error, 4000) if job.last_error else None,
        }
        for job in jobs
    ]
    yield json.dumps({"title": title, "jobs": rows}, ensure_ascii=False, indent=2) + "\n"


def _told(job: Job, redactor: Redactor) -> tuple[str, str]:
    """What a job left: its result, or why it failed."""
    if job.result is not None:
        text, language = json.dumps(redactor.data(job.result), ensure_ascii=False, indent=2), "json"
    else:
        text, language = redactor.text(job.last_error or ""), "text"
    return (text if len(text) <= RESULT_CHARS else text[:RESULT_CHARS] + "\n…"), language


def _plain(text: str) -> str:
    """Text of which Markdown makes nothing: one line, every mark escaped."""
    return escape(_MARKS.sub(r"\\\1", " ".join(text.split())), quote=False)


def _at(job: Job) -> str:
    return _iso(job.finished_at) if job.finished_at is not None else ""


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _payload_type() -> Any:
    from tenure.effects.payloads import Report

    return Report
