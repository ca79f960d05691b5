"""What operators look at and change: queues, gates, limiters, workers, schedules, dead letters, kinds, metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response
from pydantic import Field

from tenure.errors import InvalidArgument, NotFound, TenureError
from tenure.handler.payload import json_schema
from tenure.model.outcome import Triage
from tenure.model.policy import QueuePolicy
from tenure.model.policy_words import read_settings
from tenure.observe.browse import SCAN
from tenure.observe.prometheus import CONTENT_TYPE, exposition
from tenure.observe.stats import backlogs, overview
from tenure.web.api.shapes import (
    Answer,
    Cursor,
    Here,
    JsonAnswer,
    Limit,
    NamePart,
    Names,
    Reason,
    Strict,
    Unmasked,
    Who,
    all_shown,
    next_cursor,
    paged,
    plain,
)
from tenure.web.problems import not_found
from tenure.web.routes import Route


class ReasonBody(Strict):
    """Why; it goes into the audit."""

    reason: Reason | None = None


class PolicyBody(Strict):
    """Settings of a queue to change; the others stay. Names and values as in `tenure queues set`, as text or JSON:
    `{"max_attempts": 5, "lease_seconds": "10m", "backoff.shape": "linear", "concurrency": null}`."""

    settings: Annotated[dict[str, Any], Field(min_length=1, max_length=50)]
    reason: Reason | None = None


class RatesBody(Strict):
    """The rates of a limiter. One that is left out is not limited."""

    per_minute: Annotated[float, Field(gt=0, le=1e9)] | None = None
    tokens_per_minute: Annotated[float, Field(ge=1, le=1e9)] | None = None
    tokens_per_job: Annotated[float, Field(ge=1, le=1e9)] | None = None
    reason: Reason | None = None


class BlockBody(Strict):
    """For how long a limiter is closed."""

    seconds: Annotated[float, Field(ge=0, le=86_400)]
    reason: Reason | None = None


class TriageBody(Strict):
    """Dead letters and what was decided about them."""

    ids: Annotated[list[Annotated[str, Field(max_length=100)]], Field(min_length=1, max_length=1000)]
    triage: Triage
    note: Annotated[str, Field(max_length=2000)] | None = None
    owner: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Who takes care of them from now on; left out, that stays."""


class ScheduleBody(Strict):
    """What changes of a schedule; the rest stays. `cron` or `every_seconds`, not both."""

    cron: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    every_seconds: Annotated[float, Field(ge=1, le=3.2e9)] | None = None
    tz: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    missed: Literal["skip", "one", "all"] | None = None
    queue: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    payload: Any = None
    """Left out, it stays."""
    reason: Reason | None = None


class ReplayBody(Strict):
    """Dead letters whose jobs are to be queued again: by id, or up to `limit` of one group that are pending."""

    ids: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=1000)] = Field(default_factory=list)
    fingerprint: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 1
    reason: Reason


class Listed(Answer):
    """Rows."""

    items: list[dict[str, Any]]
    next: str | None = None


class One(Answer):
    """One row."""

    item: dict[str, Any]


class ChangedNames(Answer):
    """The names or ids that changed."""

    changed: list[str]


class Replayed(Answer):
    """What became of each job."""

    items: list[dict[str, Any]]


async def kinds(who: Who) -> Response:
    """List the kinds that the server's app knows, and those that workers serve."""
    known = {kind: {"queue": handler.queue, "handled": True} for kind, handler in who.app.registry.items()}
    for worker in await who.app.aio.workers.all():
        for kind in worker.row.kinds:
            known.setdefault(kind, {"queue": None, "handled": False})
    return JsonAnswer({"items": [{"kind": kind, **told} for kind, told in sorted(known.items())], "next": None})


async def kind_schema(who: Who, kind: NamePart) -> Response:
    """Show a kind's payload as JSON Schema."""
    handler = who.app.registry.get(kind)
    if handler is None:
        raise not_found()
    schema = await asyncio.to_thread(json_schema, handler.payload)
    return JsonAnswer({"item": {"kind": kind, "queue": handler.queue, "schema": schema}})


async def queues(who: Who) -> Response:
    """List queues with their policies and what waits in them."""
    rows = await who.app.aio.queues.all()
    found = await asyncio.to_thread(backlogs, who.app.store)
    items = [{**plain(row), "backlog": plain(found.get(row.name))} for row in rows]
    return JsonAnswer({"items": items, "next": None})


async def queue(who: Who, name: NamePart) -> Response:
    """Show one queue: its policy, what waits in it, and since when."""
    rows = await who.app.aio.queues.all(name)
    if not rows:
        raise not_found()
    found = await asyncio.to_thread(backlogs, who.app.store, [name])
    scale = await who.app.aio.queues.backlog(name)
    return JsonAnswer({"item": {**plain(rows[0]), "backlog": plain(found.get(name)), "scale": scale}})


async def queue_backlog(
    who: Who, name: NamePart, cap: Annotated[int, Query(ge=1, le=1_000_000, description="Count no further.")] = 10_000
) -> Response:
    """Tell how much work a queue has for workers: ready and held jobs. Quick at any size, for an autoscaler."""
    return JsonAnswer({"item": {"queue": name, "backlog": await who.app.aio.queues.backlog(name, cap=cap)}})


async def set_queue(who: Who, site: Here, name: NamePart, body: PolicyBody) -> Response:
    """Create a queue, or change settings of its policy."""
    await site.quotas.take_queue(who.tenant, name)
    rows = await who.app.aio.queues.all(name)
    settings: Any = read_settings(rows[0].policy if rows else QueuePolicy(), dict(_words(body.settings)))
    row = await who.app.aio.queues.set(name, actor=who.name, reason=body.reason, **settings)
    return JsonAnswer({"item": plain(row)})


def _words(settings: Mapping[str, Any], owner: str = "") -> Iterator[tuple[str, str]]:
    """Settings as `tenure queues set` takes them, from JSON: what a GET answers can be sent back."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{owner}{name}.")
        elif isinstance(value, list):
            yield f"{owner}{name}", ",".join(map(str, value))
        else:
            yield f"{owner}{name}", "none" if value is None else str(value)


async def pause_queue(who: Who, name: NamePart, body: ReasonBody) -> Response:
    """Let claims take nothing from a queue; enqueue goes on."""
    return JsonAnswer({"changed": await who.app.aio.queues.pause(name, actor=who.name, reason=body.reason)})


async def resume_queue(who: Who, name: NamePart, body: ReasonBody) -> Response:
    """Let claims take from a queue again."""
    return JsonAnswer({"changed": await who.app.aio.queues.resume(name, actor=who.name, reason=body.reason)})


async def gates(who: Who) -> Response:
    """List gates and how they stand."""
    return JsonAnswer({"items": plain(await who.app.aio.gates.all()), "next": None})


async def open_gate(who: Who, name: NamePart, body: ReasonBody) -> Response:
    """Allow what the gate guards."""
    return JsonAnswer({"item": plain(await who.app.aio.gates.open(name, actor=who.name, reason=body.reason))})


async def close_gate(who: Who, name: NamePart, body: ReasonBody) -> Response:
    """Refuse what the gate guards, at once and for all."""
    return JsonAnswer({"item": plain(await who.app.aio.gates.close(name, actor=who.name, reason=body.reason))})


async def limits(who: Who) -> Response:
    """List limiters: services that jobs share, their rates, and until when a refusal holds them back."""
    return JsonAnswer({"items": plain(await who.app.aio.limits.all()), "next": None})


async def limited(who: Who) -> Response:
    """List due jobs that carry limiters, by queue and limiters: how many, since when, and which are next."""
    return JsonAnswer({"items": plain(await who.app.aio.limits.waiting()), "next": None})


async def set_limit(who: Who, key: NamePart, body: RatesBody) -> Response:
    """Set the rates of a limiter; one that is left out is not limited."""
    found = await who.app.aio.limits.set(
        key,
        per_minute=body.per_minute,
        tokens_per_minute=body.tokens_per_minute,
        tokens_per_job=body.tokens_per_job,
        actor=who.name,
        reason=body.reason,
    )
    return JsonAnswer({"item": plain(found)})


async def block_limit(who: Who, key: NamePart, body: BlockBody) -> Response:
    """Let no job that carries the key start for a while, up to a day."""
    found = await who.app.aio.limits.block(key, body.seconds, actor=who.name, reason=body.reason)
    return JsonAnswer({"item": plain(found)})


async def clear_limit(who: Who, key: NamePart, body: ReasonBody) -> Response:
    """End a block and the slow reopening behind it."""
    return JsonAnswer({"item": plain(await who.app.aio.limits.clear(key, actor=who.name, reason=body.reason))})


async def remove_limit(who: Who, key: NamePart) -> Response:
    """Forget a limiter with its rates and its block."""
    if not await who.app.aio.limits.remove(key, actor=who.name):
        raise not_found()
    return JsonAnswer({"changed": [key]})


async def workers(who: Who) -> Response:
    """List workers, most recently seen first."""
    return JsonAnswer({"items": plain(await who.app.aio.workers.all()), "next": None})


async def remove_worker(who: Who, id: NamePart) -> Response:  # noqa: A002  the word of the path
    """Forget a worker; what it holds is taken back first."""
    gone = await who.app.aio.workers.remove(id)
    if not gone:
        raise not_found()
    return JsonAnswer({"changed": list(gone)})


async def drain_worker(who: Who, id: NamePart, body: ReasonBody) -> Response:  # noqa: A002  the word of the path
    """Give a worker no more jobs; it ends what it holds. Its heartbeats say `drain`."""
    return JsonAnswer({"item": plain(await who.app.aio.workers.drain(id, actor=who.name, reason=body.reason))})


async def resume_worker(who: Who, id: NamePart, body: ReasonBody) -> Response:  # noqa: A002  the word of the path
    """Give a worker that was drained jobs again."""
    return JsonAnswer({"item": plain(await who.app.aio.workers.resume(id, actor=who.name, reason=body.reason))})


async def schedules(who: Who, unmasked: Unmasked) -> Response:
    """List schedules with their last and next tick."""
    from tenure.model.schedule import Schedule

    now = await asyncio.to_thread(who.app.now)
    items = []
    for row in await who.app.aio.schedules.all():
        told = plain(row)
        told["spec"] = json.loads(row.spec)
        payload = told["spec"].pop("payload", None)
        told["payload"] = payload if unmasked else None
        told["masked"] = not unmasked
        try:
            told["next_tick"] = plain(_next_tick(Schedule.from_spec(row.name, row.spec), row.last_tick, now))
        except (TenureError, ValueError):
            told["next_tick"] = None
        items.append(told)
    return JsonAnswer({"items": items, "next": None})


def _next_tick(schedule: Any, last: datetime, now: datetime) -> Any:
    return schedule.next_tick(max(last, now))


async def change_schedule(who: Who, name: NamePart, body: ScheduleBody) -> Response:
    """Change when a schedule happens, or what it enqueues. Code that declares it puts its own version back when a
    worker starts."""
    told = body.model_dump(exclude_unset=True, exclude={"reason", "every_seconds"})
    if body.every_seconds is not None:
        told["every"] = body.every_seconds
    await who.app.aio.schedules.change(name, actor=who.name, reason=body.reason, **told)
    return JsonAnswer({"changed": [name]})


async def run_schedule(who: Who, name: NamePart) -> Response:
    """Enqueue a schedule's job once, now."""
    return JsonAnswer({"item": plain(await who.app.aio.schedules.run(name))}, 201)


async def pause_schedule(who: Who, name: NamePart, body: ReasonBody) -> Response:
    """Let a schedule make no jobs until it is resumed."""
    return JsonAnswer({"changed": await who.app.aio.schedules.pause(name, actor=who.name, reason=body.reason)})


async def resume_schedule(who: Who, name: NamePart, body: ReasonBody) -> Response:
    """Let a schedule go on from now."""
    return JsonAnswer({"changed": await who.app.aio.schedules.resume(name, actor=who.name, reason=body.reason)})


async def dead_letters(
    who: Who,
    site: Here,
    unmasked: Unmasked,
    triage: Annotated[list[Triage] | None, Query(max_length=5)] = None,
    queue: Names = None,
    kind: Names = None,
    fingerprint: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List dead letters, newest death first."""
    given = {"triage": None if triage is None else [one.value for one in triage], "queue": queue, "kind": kind}
    given |= {"fingerprint": fingerprint}  # type: ignore[dict-item]
    chosen, after = await paged(site, who, "dead_letters", cursor, given)
    page = await who.app.aio.dead_letters.all(**chosen, limit=limit, after=after)
    following = await next_cursor(site, who, "dead_letters", chosen, page.next)
    return JsonAnswer({"items": all_shown(page.items, unmasked=unmasked), "next": following})


async def dead_letter_groups(
    who: Who,
    unmasked: Unmasked,
    triage: Annotated[list[Triage] | None, Query(max_length=5)] = None,
    limit: Limit = 50,
) -> Response:
    """Group dead letters by what they died of, the largest group first. Pending ones unless `triage` says more."""
    chosen = [one.value for one in triage] if triage else Triage.PENDING.value
    found = await who.app.aio.dead_letters.groups(triage=chosen, limit=limit)
    return JsonAnswer({"items": all_shown(found, unmasked=unmasked), "next": None})


async def triage(who: Who, body: TriageBody) -> Response:
    """Write down what was decided about dead letters."""
    changed = await who.app.aio.dead_letters.triage(
        body.ids, body.triage, actor=who.name, note=body.note, owner=body.owner
    )
    return JsonAnswer({"changed": changed})


async def replay(who: Who, site: Here, body: ReplayBody) -> Response:
    """Queue the jobs of dead letters again, with all their attempts: named ones, or a sample of a group."""
    if bool(body.ids) == (body.fingerprint is not None):
        raise InvalidArgument("Name dead letters by `ids`, or a group by `fingerprint`; one of them.")
    page = await who.app.aio.dead_letters.all(
        ids=body.ids,
        fingerprint=body.fingerprint,
        triage=None if body.ids else Triage.PENDING.value,
        limit=len(body.ids) or body.limit,
    )
    jobs = list(dict.fromkeys(letter.job_id for letter in page.items))
    if not jobs:
        raise NotFound("There is no such dead letter, or none of the group is pending.")
    await site.quotas.take_jobs(who.tenant, len(jobs))
    done = await who.app.aio.revive_many(jobs, actor=who.name, reason=body.reason)
    return JsonAnswer({"items": [{"id": one.job_id, "state": one.state} for one in done]})


async def metrics(
    who: Who,
    unmasked: Unmasked,
    window: Annotated[float, Query(ge=1, le=604_800, description="Seconds.")] = 3600,
    minutes: Annotated[int, Query(ge=0, le=1440, description="Counted minutes to show.")] = 60,
    queue: Names = None,
) -> Response:
    """Say how it goes: outstanding, failed, stuck, slow, repeated, and minute by minute.

    Of what ended within the window the newest 10,000 jobs are looked at; if there were more, `summary.is_whole` is
    false, and `summary.window_seconds` says how far back they go.
    """
    found = await asyncio.to_thread(
        overview, who.app.store, window_seconds=window, queues=queue or (), limit=20, minutes=minutes, scan=SCAN
    )
    told = plain(found)
    told["failures"] = all_shown(found.failures, unmasked=unmasked)
    return JsonAnswer({"item": told})


async def prometheus(who: Who) -> Response:
    """Figures for Prometheus: how long the oldest ready job has waited, what is ready, held, ended and dead."""
    return Response(await asyncio.to_thread(exposition, who.app.store), media_type=CONTENT_TYPE)


_V: Final = "/api/v1"
ROUTES: Final = (
    Route("GET", f"{_V}/kinds", "read:meta", None, kinds, "kinds", answers=Listed),
    Route("GET", f"{_V}/kinds/{{kind}}/schema", "read:meta", None, kind_schema, "kinds", answers=One),
    Route("GET", f"{_V}/queues", "read:meta", None, queues, "queues", answers=Listed),
    Route("GET", f"{_V}/queues/{{name}}", "read:meta", None, queue, "queues", answers=One),
    Route("GET", f"{_V}/queues/{{name}}/backlog", "read:meta", None, queue_backlog, "queues", answers=One),
    Route("PUT", f"{_V}/queues/{{name}}", "admin", "set_queue", set_queue, "queues", answers=One, others=(409,)),
    Route("POST", f"{_V}/queues/{{name}}/pause", "operate", "pause_queue", pause_queue, "queues", answers=ChangedNames),
    Route(
        "POST", f"{_V}/queues/{{name}}/resume", "operate", "resume_queue", resume_queue, "queues", answers=ChangedNames
    ),
    Route("GET", f"{_V}/gates", "read:meta", None, gates, "gates", answers=Listed),
    Route("POST", f"{_V}/gates/{{name}}/open", "admin", "open_gate", open_gate, "gates", answers=One),
    Route("POST", f"{_V}/gates/{{name}}/close", "admin", "close_gate", close_gate, "gates", answers=One),
    Route("GET", f"{_V}/limits", "read:meta", None, limits, "limits", answers=Listed),
    Route("GET", f"{_V}/limits:waiting", "read:meta", None, limited, "limits", answers=Listed),
    Route("PUT", f"{_V}/limits/{{key}}", "operate", "set_limiter", set_limit, "limits", answers=One),
    Route("POST", f"{_V}/limits/{{key}}/block", "operate", "block_limiter", block_limit, "limits", answers=One),
    Route(
        "POST",
        f"{_V}/limits/{{key}}/clear",
        "operate",
        "clear_limiter",
        clear_limit,
        "limits",
        answers=One,
        others=(404,),
    ),
    Route(
        "DELETE",
        f"{_V}/limits/{{key}}",
        "operate",
        "remove_limiter",
        remove_limit,
        "limits",
        answers=ChangedNames,
        others=(404,),
    ),
    Route("GET", f"{_V}/workers", "read:meta", None, workers, "workers", answers=Listed),
    Route("DELETE", f"{_V}/workers/{{id}}", "operate", "remove_worker", remove_worker, "workers", answers=ChangedNames),
    Route("POST", f"{_V}/workers/{{id}}/drain", "operate", "drain_worker", drain_worker, "workers", answers=One),
    Route("POST", f"{_V}/workers/{{id}}/resume", "operate", "resume_worker", resume_worker, "workers", answers=One),
    Route("GET", f"{_V}/schedules", "read:meta", None, schedules, "schedules", answers=Listed),
    Route(
        "PATCH",
        f"{_V}/schedules/{{name}}",
        "admin",
        "change_schedule",
        change_schedule,
        "schedules",
        answers=ChangedNames,
    ),
    Route(
        "POST",
        f"{_V}/schedules/{{name}}/run",
        "operate",
        "run_schedule",
        run_schedule,
        "schedules",
        201,
        answers=One,
        others=(409,),
    ),
    Route(
        "POST",
        f"{_V}/schedules/{{name}}/pause",
        "operate",
        "pause_schedule",
        pause_schedule,
        "schedules",
        answers=ChangedNames,
    ),
    Route(
        "POST",
        f"{_V}/schedules/{{name}}/resume",
        "operate",
        "resume_schedule",
        resume_schedule,
        "schedules",
        answers=ChangedNames,
    ),
    Route("GET", f"{_V}/dead-letters", "read:meta", None, dead_letters, "dead letters", answers=Listed),
    Route("GET", f"{_V}/dead-letter-groups", "read:meta", None, dead_letter_groups, "dead letters", answers=Listed),
    Route("POST", f"{_V}/dead-letters/triage", "operate", "triage", triage, "dead letters", answers=ChangedNames),
    Route(
        "POST",
        f"{_V}/dead-letters/replay",
        "operate",
        "replay",
        replay,
        "dead letters",
        answers=Replayed,
        others=(404, 409),
    ),
    Route("GET", f"{_V}/metrics", "read:meta", None, metrics, "metrics", answers=One),
    Route("GET", "/metrics", "read:meta", None, prometheus, "metrics", is_text=True),
)
