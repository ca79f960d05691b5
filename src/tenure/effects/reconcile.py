"""Reconciliation: is the world as the records say? Reads, compares, reports; nothing is ever fixed by itself.

Jobs come in pages, newest first. Of several jobs about one thing (a path, a resource) only the one that finished last
says how it should be now, whatever its kind: checkers of one scope (a root folder) are compared together. Pages are
ordered by when jobs were enqueued, so a suspicion is held back until the scope's pages are through, and dropped if a
job that finished later turns up. Kept meanwhile: sixteen bytes or so for
each thing seen, and the suspicions. Before one is reported, jobs that are at work on the same thing are looked for: a
file that is being changed is no discrepancy.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from tenure.effects.kinds import Checker, Finding
from tenure.handler.ledger import EffectCall, Verify, judged
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import Job
from tenure.store.contract import Store
from tenure.store.queries import Effect, GetJobs, ListEffects, ListJobs, Page

PAGE_FIRST = 16
PAGE_MAX = 500
PAGE_BYTES = 4 << 20
"""Pages are as long as keeps them about this large: payloads may hold whole files."""


@frozen
class Discrepancy:
    """One thing that is not as a succeeded job left it."""

    job_id: JobId
    kind: str
    sort: str
    subject: str
    expected: str
    found: str
    finished_at: datetime | None


class Progress(Protocol):
    """Told how many records were looked at since the last time."""

    def __call__(self, by: int, /) -> object: ...


def reconcile(
    store: Store,
    checkers: Iterable[Checker],
    verifiers: Mapping[str, Verify],
    *,
    since: datetime | None = None,
    progress: Progress | None = None,
) -> Iterator[Discrepancy]:
    """Every discrepancy between what is recorded and what is there."""
    tell = progress or (lambda _: None)
    for group in _by_scope(checkers):
        yield from _jobs(store, group, since, tell)
    if verifiers:
        yield from _effects(store, verifiers, since, tell)


def _by_scope(checkers: Iterable[Checker]) -> list[dict[str, Checker]]:
    """The checkers by kind, those of one scope together. One that names no scope stands alone."""
    groups: dict[object, dict[str, Checker]] = {}
    for number, checker in enumerate(checkers):
        group = groups.setdefault(getattr(checker, "scope", number), {})
        group.update(dict.fromkeys(checker.kinds, checker))
    return list(groups.values())


class _Seen:
    """When the last job about each thing finished, and what is suspected of it."""

    def __init__(self) -> None:
        self._finished: dict[int, int] = {}
        self.suspects: dict[int, Discrepancy] = {}

    def is_overtaken(self, thing: int, finished_us: int) -> bool:
        """Whether a job that finished later speaks for the thing; if not, this one does from now on."""
        known = self._finished.get(thing)
        if known is not None and known >= finished_us:
            return True
        self._finished[thing] = finished_us
        self.suspects.pop(thing, None)
        return False


def _jobs(
    store: Store, by_kind: Mapping[str, Checker], since: datetime | None, tell: Progress
) -> Iterator[Discrepancy]:
    seen = _Seen()
    for job in _pages(store, list(by_kind), ("succeeded",), tell):
        checker, at = by_kind[job.kind], job.finished_at
        subject = None if job.cleaned_at is not None else checker.subject(job)
        if subject is None or at is None or (since is not None and at < since):
            continue
        thing = _thing(subject)
        if seen.is_overtaken(thing, int(at.timestamp() * 1_000_000)):
            continue
        finding = checker.check(job)
        if finding is not None:
            seen.suspects[thing] = _discrepancy(job, finding)
    if seen.suspects:
        _drop_what_moved_on(store, by_kind, seen.suspects)
    for suspect in seen.suspects.values():
        (found,) = store.do(GetJobs([suspect.job_id]))
        if found is not None and (finding := by_kind[found.kind].check(found)) is not None:
            yield _discrepancy(found, finding)


def _drop_what_moved_on(store: Store, by_kind: Mapping[str, Checker], suspects: dict[int, Discrepancy]) -> None:
    """Forget things that a job is at work on, or that one has changed since they were looked at."""
    for job in _pages(store, list(by_kind), ("succeeded", "leased", "running", "queued"), lambda _: None):
        if job.attempt == 0:
            continue
        # A job that has not ended has no result yet; what it is about does not depend on it.
        subject = by_kind[job.kind].subject(job if job.result is not None else replace(job, result={}))
        suspect = None if subject is None else suspects.get(_thing(subject))
        if suspect is not None and (job.finished_at is None or _is_later(job.finished_at, suspect.finished_at)):
            del suspects[_thing(subject or "")]


def _is_later(one: datetime, other: datetime | None) -> bool:
    return other is None or one > other


def _pages(store: Store, kinds: Sequence[str], states: Sequence[str], tell: Progress) -> Iterator[Job]:
    limit, after = PAGE_FIRST, None
    while True:
        page: Page[Job] = store.do(ListJobs(states=states, kinds=kinds, limit=limit, after=after))
        yield from (job for job in page.items if not job.is_hidden)
        tell(len(page.items))
        if page.next is None:
            return
        after = page.next
        limit = max(1, min(PAGE_MAX, limit * 4, PAGE_BYTES // max(1, _largest(page.items))))


def _largest(jobs: list[Job]) -> int:
    """Roughly how much the largest job of a page takes."""
    return max((_size(job.payload) + _size(job.result) for job in jobs), default=1)


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_size(item) for item in value.values()) + 64 * len(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    return sys.getsizeof(value)


def _effects(
    store: Store, verifiers: Mapping[str, Verify], since: datetime | None, tell: Progress
) -> Iterator[Discrepancy]:
    after = None
    while True:
        page: Page[Effect] = store.do(ListEffects(states=("confirmed",), limit=PAGE_MAX, after=after))
        for effect in page.items:
            verify = verifiers.get(effect.name)
            if verify is None or (since is not None and effect.updated_at < since):
                continue
            if (finding := _verified(effect, verify)) is not None:
                (job,) = store.do(GetJobs([effect.job_id]))
                kind = "" if job is None else job.kind
                yield Discrepancy(
                    effect.job_id,
                    kind,
                    finding.sort,
                    finding.subject,
                    finding.expected,
                    finding.found,
                    effect.updated_at,
                )
        tell(len(page.items))
        if page.next is None:
            return
        after = page.next


def _verified(effect: Effect, verify: Verify) -> Finding | None:
    place = f"{effect.step}:{effect.name}" if effect.step else effect.name
    call = EffectCall(effect.job_id, effect.step, effect.name, effect.key, effect.token, effect.args, effect.result)
    try:
        answer = verify(call)
        verdict = judged(effect.name, asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer)
    except Exception as exc:  # noqa: BLE001 - one effect that cannot be looked at must not hide the others
        return Finding("unreadable", place, "done", f"{type(exc).__name__}: {exc}")
    if verdict.done:
        return None
    return Finding("not_verified", place, "done", verdict.found or "verify says that it is not done")


async def _awaited(answer: Any) -> Any:
    return await answer


def _thing(subject: str) -> int:
    return int.from_bytes(hashlib.blake2b(subject.encode(), digest_size=12).digest(), "big")


def _discrepancy(job: Job, finding: Finding) -> Discrepancy:
    return Discrepancy(
        job.id, job.kind, finding.sort, finding.subject, finding.expected, finding.found, job.finished_at
    )
