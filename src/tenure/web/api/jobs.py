"""Jobs: enqueue, list, look at, wait for, and the acts of operators on single ones."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from itertools import chain, repeat
from typing import Annotated, Any, Final, Literal

from fastapi import Header, Path, Query, Request, Response
from pydantic import Field

from tenure.errors import InvalidArgument, Outdated
from tenure.model.access import Scope
from tenure.model.job import Job, NewJob
from tenure.model.state import TERMINAL, State
from tenure.observe.browse import SCAN, JobFilter, browse
from tenure.observe.explain import explain as find_reasons
from tenure.observe.explain import first_line
from tenure.web import places
from tenure.web.api.shapes import (
    Answer,
    Cursor,
    Here,
    JsonAnswer,
    Limit,
    Name,
    Names,
    Reason,
    Strict,
    Unmasked,
    Who,
    all_shown,
    may_unmask,
    next_cursor,
    paged,
    plain,
    shown,
)
from tenure.web.auth import Principal
from tenure.web.problems import Problem, not_found
from tenure.web.routes import Route
from tenure.web.site import Site

_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")
LOOKS: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Seconds between looks at a job that is waited for; the last one goes on."""

Id = Annotated[str, Path(max_length=100, description="The job's id.")]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
ListedState = Literal[
    "queued", "leased", "running", "waiting", "succeeded", "failed", "dead", "cancelled", "retry_waiting", "cleaned"
]
"""The words of `tenure jobs ls --state`."""


class NewJobBody(Strict):
    """A job to enqueue. What is left out is as the kind's handler says, then as the queue's policy does."""

    kind: Name
    payload: Any = Field(default_factory=dict)
    queue: Name | None = None
    key: Text | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    delay: Annotated[float, Field(ge=0, le=3e9)] | None = None
    run_at: datetime | None = None
    max_attempts: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    affinity_key: Text | None = None
    concurrency_key: Text | None = None
    limits: Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=8)] | None = None
    source_ref: Text | None = None
    target_ref: Text | None = None
    payload_ref: Text | None = None
    tenant: Text | None = None
    trace: Text | None = None


class NewJobsBody(Strict):
    """Jobs to enqueue, all or none."""

    jobs: Annotated[list[NewJobBody], Field(min_length=1, max_length=1000)]


class EnqueuedJob(Answer):
    """`duplicate`: the key was taken, and this is the job that holds it."""

    id: str
    duplicate: bool


class EnqueuedJobs(Answer):
    """One answer per job, in order. `job` is there if one was waited for and has ended."""

    jobs: list[EnqueuedJob]
    job: dict[str, Any] | None = None


class JobsPage(Answer):
    """Newest first. While `next` is not null there may be more, also behind a page that is not full: a filter is looked
    for in a bounded number of jobs at a time. `now` is the store's clock."""

    jobs: list[dict[str, Any]]
    next: str | None
    now: datetime


class OneJob(Answer):
    """A job as stored."""

    job: dict[str, Any]
    now: datetime


class Counts(Answer):
    """By queue, kind and state."""

    counts: list[dict[str, Any]]


class ActBody(Strict):
    """Why; it goes into the audit."""

    reason: Reason


class EditBody(Strict):
    """Another payload, another priority, or both, for a job that waits in its queue."""

    payload: Any = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    reason: Reason


class StateAnswer(Answer):
    """How the job stands now."""

    id: str
    state: str | None
    answer: str | None = None


class Rows(Answer):
    """Rows that belong to a job. `next`: the cursor of what follows, if they come in pages."""

    items: list[dict[str, Any]]
    next: str | None = None


class Explained(Answer):
    """Why a job is not running."""

    explanation: dict[str, Any]


class EffectBody(Strict):
    """What became of an effect of unknown outcome."""

    name: Name
    outcome: Literal["confirmed", "retry", "failed"]
    step: Annotated[str, Field(max_length=200)] = ""
    note: Text | None = None
    result: Any = None


class SignalBody(Strict):
    """A signal. Scope `once`: the first value of a key stays. `queue`: each wait takes the oldest."""

    key: Annotated[str, Field(min_length=1, max_length=200)]
    value: Any = None
    to: Annotated[str, Field(max_length=100)] | None = None
    scope: Literal["once", "queue"] = "once"
    keep: Annotated[float, Field(gt=0, le=31_622_400)] = 604_800


class Sent(Answer):
    """Whether this value is the one that stays."""

    item: dict[str, Any]


async def enqueue(
    request: Request,
    who: Who,
    site: Here,
    body: NewJobBody | NewJobsBody,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    prefer: Annotated[str | None, Header(max_length=255)] = None,
) -> Response:
    """Enqueue one job, or many, all or none.

    With the header Idempotency-Key a repeat makes nothing new for a day and is answered as the first time. With
    `Prefer: wait=20` the answer to a single job waits until it has ended: 201 with the job, or 202.
    """
    asked = body.jobs if isinstance(body, NewJobsBody) else [body]
    if len(asked) > site.limits.batch:
        raise Problem(413, "too_large", f"At most {site.limits.batch} jobs may come in one request.")
    made = [_new_job(who, one) for one in asked]
    for job in made:
        if not who.may("enqueue", queue=job.queue, kind=job.kind):
            wanted = Scope("enqueue", job.queue, job.kind)
            raise Problem(403, "forbidden", f"{who.name!r} may not enqueue this: it needs the scope '{wanted}'. "
                          "Nothing was enqueued.")  # fmt: skip
    headers = {}
    if idempotency_key is None:
        await site.quotas.take_jobs(who.tenant, len(made))
        answers = plain(await who.app.aio.enqueue_many(made))
    else:
        answers, headers["Idempotency-Replayed"] = await _enqueue_once(request, who, site, idempotency_key, made)
    answer: dict[str, Any] = {"jobs": answers}
    if len(answers) == 1:
        headers["Location"] = f"{request.scope.get('root_path', '')}/api/v1/jobs/{answers[0]['id']}"
    wait = _WAIT.search(prefer or "")
    if wait is None or len(answers) > 1:
        return JsonAnswer(answer, 201, headers)
    if not places.may_wait(site, who):  # it is enqueued, whatever becomes of the wish to wait
        return JsonAnswer(answer, 202, headers)
    with places.waiting(site, who):
        waited = await _ended(request, site, who, answers[0]["id"], float(wait[1]))
    headers["Preference-Applied"] = wait[0].strip(",; ")
    if waited.state not in TERMINAL:
        return JsonAnswer(answer, 202, headers)
    return JsonAnswer({**answer, "job": await _shown_to_producer(request, who, waited)}, 201, headers)


def _new_job(who: Principal, body: NewJobBody) -> NewJob:
    given = {name: getattr(body, name) for name in NewJobBody.model_fields if name not in {"kind", "payload"}}
    options: Any = {name: value for name, value in given.items() if value is not None}
    if body.run_at is not None and body.run_at.tzinfo is None:
        raise Problem(422, "invalid_argument", "/run_at: it needs a time zone, as in 2026-01-31T12:00:00Z.")
    return who.app.aio.new_job(body.kind, body.payload, actor=who.name, **options)


async def _enqueue_once(
    request: Request, who: Principal, site: Site, key: str, made: list[NewJob]
) -> tuple[list[dict[str, Any]], str]:
    """What the first request with this key was answered, and whether this is a repeat.

    Its answer is kept behind the enqueue. A repeat that comes before uses the ids that the first one gave its jobs, so
    that the enqueue finds its own rows.
    """
    bare = key.strip().strip('"')
    if not bare:
        raise Problem(400, "invalid_argument", "The header Idempotency-Key is empty.")
    body = hashlib.sha256(await request.body()).hexdigest()
    remember = partial(who.app.aio.access.remember_request, who.id, bare, body, [job.id for job in made])
    kept = await remember()
    if kept.body != body:
        raise Problem(422, "idempotency_key_reused", "This Idempotency-Key came before with another body. "
                      "Nothing was enqueued; use a new key for a new request.")  # fmt: skip
    if kept.answers is not None:
        return list(kept.answers), "true"
    for job, first in zip(made, kept.ids, strict=True):
        job.id = type(job.id)(first)
    if kept.is_new or (await who.app.aio.get_many([made[0].id]))[0] is None:  # what is there takes no room once more
        await site.quotas.take_jobs(who.tenant, len(made))
    answers = plain(await who.app.aio.enqueue_many(made))
    known = await remember(answers=answers)
    return list(known.answers or answers), "false" if kept.is_new else "true"


async def _shown_to_producer(request: Request, who: Principal, job: Job) -> dict[str, Any]:
    """A job that was waited for. Who may not read jobs is told how it ended, and no more: it may be another's, that
    holds the key."""
    told = shown(job, unmasked=await may_unmask(request, who))
    if who.may("read:meta"):
        return told
    return {name: told[name] for name in ("id", "state", "shown_state", "result", "last_error", "masked")}


async def list_jobs(
    who: Who,
    site: Here,
    unmasked: Unmasked,
    state: Annotated[list[ListedState] | None, Query(max_length=10)] = None,
    queue: Names = None,
    kind: Names = None,
    key: Annotated[str | None, Query(min_length=1, max_length=1000)] = None,
    worker: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    workflow: Annotated[str | None, Query(max_length=100)] = None,
    parent: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List jobs, newest first."""
    given: dict[str, Any] = {"state": state, "queue": queue, "kind": kind, "key": key, "worker": worker}
    given |= {"workflow_id": workflow, "parent_id": parent}
    chosen, after = await paged(site, who, "jobs", cursor, given)
    items, left = await _matching(who, chosen, limit, after)
    following = await next_cursor(site, who, "jobs", chosen, left)
    now = await _now(who)
    answer = {"jobs": all_shown(items, unmasked=unmasked), "next": following, "now": now}
    headers = {} if following is None else {"Link": f'<?cursor={following}&limit={limit}>; rel="next"'}
    return JsonAnswer(answer, headers=headers)


async def _matching(
    who: Principal, chosen: dict[str, Any], limit: int, after: str | None
) -> tuple[list[Job], str | None]:
    """The newest jobs that match, and where to go on. A filter that no index serves is looked for in the newest SCAN
    jobs below `after`, so that one that matches next to nothing costs no more than one that matches all."""
    if not {"state", "queue", "kind", "key"} & set(chosen):
        page = await who.app.aio.jobs(**chosen, limit=limit, after=after)
        return page.items, page.next
    for name in ("workflow_id", "parent_id"):
        if chosen.get(name) is not None and not _ID.fullmatch(chosen[name]):
            raise InvalidArgument(f"{name}: it is not the id of one.")
    words = {"state": "stored_states", "queue": "queues", "kind": "kinds"}
    wanted = JobFilter(**{words.get(name, name): value for name, value in chosen.items()})
    found = await asyncio.to_thread(browse, who.app.store, wanted, limit=limit, scan=SCAN, after=after)
    return found.items, found.next


async def count_jobs(
    who: Who, state: Annotated[list[State] | None, Query(max_length=8)] = None, queue: Names = None
) -> Response:
    """Count jobs by queue, kind and state."""
    found = await who.app.aio.queues.counts(queue=queue, state=None if state is None else [one.value for one in state])
    return JsonAnswer({"counts": found})


async def get_job(
    request: Request,
    who: Who,
    site: Here,
    id: Id,  # noqa: A002  the word of the path
    unmasked: Unmasked,
    wait: Annotated[float, Query(ge=0, le=25, description="Wait so long for its end.")] = 0,
    if_none_match: Annotated[str | None, Header(max_length=500)] = None,
) -> Response:
    """Show one job; with `wait`, once it has ended or that time is over."""
    with places.waiting(site, who) if wait > 0 else nullcontext():
        job = await _ended(request, site, who, id, wait)
    tag = etag(job, unmasked=unmasked)
    headers = {"ETag": tag}
    # Compared weakly: a proxy that compresses an answer makes its ETag a weak one.
    known = [part.strip().removeprefix("W/") for part in (if_none_match or "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return JsonAnswer({"job": shown(job, unmasked=unmasked), "now": await _now(who)}, headers=headers)


async def cancel(
    who: Who,
    id: Id,  # noqa: A002
    body: ActBody,
    if_match: Annotated[str | None, Header(max_length=500)] = None,
) -> Response:
    """Cancel a job: a waiting one at once, a held one by request to its worker.

    With `If-Match`, the ETag of the job as it was read, a job that has changed since is left alone: 412.
    """
    version = await _matched(who, id, if_match)
    done = await who.app.aio.cancel(id, version=version, actor=who.name, reason=body.reason)
    return JsonAnswer({"id": done.job_id, "state": done.state, "answer": done.answer})


async def revive(
    who: Who,
    id: Id,  # noqa: A002
    body: ActBody,
    if_match: Annotated[str | None, Header(max_length=500)] = None,
) -> Response:
    """Queue a failed, dead or cancelled job again, with all its attempts.

    With `If-Match`, the ETag of the job as it was read, a job that has changed since is left alone: 412.
    """
    version = await _matched(who, id, if_match)
    done = await who.app.aio.revive(id, version=version, actor=who.name, reason=body.reason)
    return JsonAnswer({"id": done.job_id, "state": done.state, "answer": None})


async def edit(
    who: Who,
    id: Id,  # noqa: A002
    body: EditBody,
    if_match: Annotated[str | None, Header(max_length=500)] = None,
) -> Response:
    """Give a job that waits in its queue another payload, another priority, or both.

    `If-Match` is the ETag of the job as it was read: if it has changed since, the answer is 412 and nothing was
    changed. `If-Match: *` edits it however it stands. A new payload is checked as that of an enqueue is, and needs the
    scope `enqueue` for the job's queue and kind as well: what it says is what a worker will do.
    """
    job = await find(who, id)
    if if_match is None:
        raise Problem(428, "precondition_required", "An edit needs the header If-Match with the job's ETag, so that it "
                      "overwrites nothing unread; `*` edits it however it stands. Nothing was changed.")  # fmt: skip
    version = _version(job, if_match)
    given: dict[str, Any] = {} if body.priority is None else {"priority": body.priority}
    if "payload" in body.model_fields_set:
        if not who.may("enqueue", queue=job.queue, kind=job.kind):
            wanted = Scope("enqueue", job.queue, job.kind)
            raise Problem(403, "forbidden", f"{who.name!r} may not set this payload: it needs the scope '{wanted}'. "
                          "Nothing was changed.")  # fmt: skip
        given["payload"] = body.payload
    edited = await who.app.aio.edit(id, **given, version=version, actor=who.name, reason=body.reason)
    answer = {"job": shown(edited, unmasked=False), "now": await _now(who)}
    return JsonAnswer(answer, headers={"ETag": etag(edited, unmasked=False)})


async def clone(who: Who, id: Id, body: ActBody) -> Response:  # noqa: A002
    """Enqueue a copy of a job that has ended."""
    await find(who, id)
    return JsonAnswer({"jobs": await who.app.aio.clone(id, actor=who.name, reason=body.reason)}, 201)


async def explain(who: Who, id: Id) -> Response:  # noqa: A002
    """Say why a job is not running, and what would help."""
    job = await find(who, id)
    found = plain(await asyncio.to_thread(find_reasons, who.app.store, job.id))
    if not who.may("read:payload"):  # a sentence may repeat the last error
        for reason in found["reasons"]:
            if job.last_error and first_line(job.last_error) in reason["sentence"]:
                reason["sentence"] = "Its last attempt failed; the scope read:payload shows how."
    return JsonAnswer({"explanation": found})


async def attempts(who: Who, id: Id, unmasked: Unmasked) -> Response:  # noqa: A002
    """List the attempts of a job that did not end well."""
    await find(who, id)
    return JsonAnswer({"items": all_shown(await who.app.aio.attempts(id), unmasked=unmasked)})


async def events(
    who: Who,
    id: Id,  # noqa: A002
    unmasked: Unmasked,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """List the events of a job above the number `after`."""
    await find(who, id)
    found = await who.app.aio.events(job_id=id, after=after, limit=limit)
    return JsonAnswer({"items": all_shown(found, unmasked=unmasked)})


async def logs(
    who: Who,
    id: Id,  # noqa: A002
    unmasked: Unmasked,
    after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """List what a job's handler said: log lines, output, progress."""
    await find(who, id)
    spoken = ["log", "stdout", "stderr", "progress"]
    found = await who.app.aio.events(job_id=id, kind=spoken, after=after, limit=limit)
    return JsonAnswer({"items": all_shown(found, unmasked=unmasked)})


async def effects(
    who: Who,
    site: Here,
    id: Id,  # noqa: A002
    unmasked: Unmasked,
    limit: Limit = 200,
    cursor: Cursor = None,
) -> Response:
    """List the effects of a job."""
    job = await find(who, id)
    purpose = f"effects {job.id}"
    chosen, after = await paged(site, who, purpose, cursor, {})
    page = await who.app.aio.effects.all(job_id=job.id, limit=limit, after=after)
    following = await next_cursor(site, who, purpose, chosen, page.next)
    return JsonAnswer({"items": all_shown(page.items, unmasked=unmasked), "next": following})


async def steps(who: Who, id: Id, unmasked: Unmasked) -> Response:  # noqa: A002
    """List the steps of a durable job: what it has behind it, and what it waits for."""
    await find(who, id)
    return JsonAnswer({"items": all_shown(await who.app.aio.steps.all(id), unmasked=unmasked)})


async def signal(who: Who, body: SignalBody) -> Response:
    """Tell the jobs that wait for a key; it may come before the wait."""
    if body.to is not None:
        await find(who, body.to)
    sent = await who.app.aio.signal(body.key, body.value, to=body.to, scope=body.scope, keep=body.keep, actor=who.name)
    return JsonAnswer({"item": plain(sent)})


async def resolve_effect(request: Request, who: Who, id: Id, body: EffectBody) -> Response:  # noqa: A002
    """Say what became of an effect of unknown outcome; the job that waits for it goes on."""
    await find(who, id)
    done = await who.app.aio.effects.resolve(
        id, body.name, body.outcome, actor=who.name, note=body.note, step=body.step, result=body.result
    )
    return JsonAnswer({"items": [shown(done, unmasked=await may_unmask(request, who))]})


async def find(who: Principal, job_id: str) -> Job:
    """The job, or the one answer for what is not there."""
    if not _ID.fullmatch(job_id):
        raise not_found()
    (found,) = await who.app.aio.get_many([job_id.lower()])
    if found is None:
        raise not_found()
    return found


def etag(job: Job, *, unmasked: bool) -> str:
    """What changes whenever the job does."""
    return f'"{job.version}{".p" if unmasked else ""}"'


async def _matched(who: Principal, job_id: str, if_match: str | None) -> str | None:
    return _version(await find(who, job_id), if_match or "*")


def _version(job: Job, if_match: str) -> str | None:
    """What the store compares the job with when it acts; None: nothing. Raises: Outdated, if it differs already."""
    tags = [part.strip() for part in if_match.split(",")]
    if "*" in tags:
        return None
    if not {etag(job, unmasked=True), etag(job, unmasked=False)} & set(tags):
        raise Outdated(f"Job {job.id} has changed since it was read, so nothing was changed. Read it again first.")
    return job.version


async def _ended(request: Request, site: Site, who: Principal, job_id: str, seconds: float) -> Job:
    """The job once it has ended, or as it stands when the time is over or the client is gone."""
    until = time.monotonic() + min(seconds, site.limits.wait_seconds)
    for look in chain(LOOKS, repeat(LOOKS[-1])):
        job = await find(who, job_id)
        left = until - time.monotonic()
        if job.state in TERMINAL or left <= 0 or not await site.may_wait(request):
            return job
        await asyncio.sleep(min(look, left))
    raise AssertionError("the looks never end")


async def _now(who: Principal) -> datetime:
    return await asyncio.to_thread(who.app.now)


_J: Final = "/api/v1/jobs"
ROUTES: Final = (
    Route("POST", _J, "enqueue", "enqueue", enqueue, status=201, answers=EnqueuedJobs, others=(202, 404, 409, 503)),
    Route("GET", _J, "read:meta", None, list_jobs, answers=JobsPage),
    Route("GET", "/api/v1/jobs:count", "read:meta", None, count_jobs, answers=Counts),
    Route("GET", _J + "/{id}", "read:meta", None, get_job, answers=OneJob, others=(304,)),
    Route("POST", _J + "/{id}/cancel", "operate", "cancel", cancel, answers=StateAnswer, others=(409, 412)),
    Route("POST", _J + "/{id}/revive", "operate", "revive", revive, answers=StateAnswer, others=(409, 412)),
    Route("PATCH", _J + "/{id}", "operate", "edit", edit, answers=OneJob, others=(409, 412, 428)),
    Route("POST", _J + "/{id}/clone", "operate", "clone", clone, status=201, answers=EnqueuedJobs, others=(409,)),
    Route("GET", _J + "/{id}/explain", "read:meta", None, explain, answers=Explained),
    Route("GET", _J + "/{id}/attempts", "read:meta", None, attempts, answers=Rows),
    Route("GET", _J + "/{id}/events", "read:meta", None, events, answers=Rows),
    Route("GET", _J + "/{id}/logs", "read:meta", None, logs, answers=Rows),
    Route("GET", _J + "/{id}/effects", "read:meta", None, effects, answers=Rows),
    Route("GET", _J + "/{id}/steps", "read:meta", None, steps, answers=Rows),
    Route("POST", "/api/v1/signals", "operate", "signal", signal, answers=Sent, others=(404, 409)),
    Route("POST", _J + "/{id}/effects", "operate", "resolve_effect", resolve_effect, answers=Rows, others=(409,)),
)
