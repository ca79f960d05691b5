"""Acts on all that match: each is a job with a frozen filter, a count, a pace and progress; cancelling it ends it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import Path, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from tenure.effects.bulk_jobs import KIND
from tenure.effects.bulk_payload import BulkFilter
from tenure.model.job import Job
from tenure.web import bulk_acts
from tenure.web.api.jobs import find
from tenure.web.api.shapes import Answer, Here, JsonAnswer, Reason, Strict, Who, plain
from tenure.web.auth import Principal
from tenure.web.bulk_acts import ABORTED, PAUSED
from tenure.web.problems import not_found
from tenure.web.routes import Route

Id = Annotated[str, Path(max_length=100)]


class BulkBody(Strict):
    """What to do to all that match. `pace`: jobs per second at most."""

    act: Literal["cancel", "revive"]
    filter: BulkFilter
    pace: Annotated[float, Field(gt=0, le=10_000)] | None = None
    reason: Reason
    dry_run: bool = False


class BulkShown(Answer):
    """An act and how far it is. `is_exact` is false where the count stopped before the end."""

    item: dict[str, Any]


class BulkList(Answer):
    """Acts, newest first."""

    items: list[dict[str, Any]]


class UndoBody(Strict):
    """Why; it goes into the audit."""

    reason: Reason


async def new_bulk(who: Who, site: Here, body: BulkBody) -> Response:
    """Act on all that match: answers the count and the job that does it. With `dry_run`, only the count."""
    act = await run_in_threadpool(
        bulk_acts.frozen_act, who.app, body.act, body.filter, actor=who.name, reason=body.reason, pace=body.pace
    )
    told = {"id": None, "total": act.total, "is_exact": act.is_exact}
    if body.dry_run:
        return JsonAnswer({"item": told}, 200)
    if body.act == "revive":
        await site.quotas.take_jobs(who.tenant, act.total)
    return JsonAnswer({"item": told | {"id": await run_in_threadpool(bulk_acts.start, who.app, act)}}, 202)


async def list_bulk(who: Who) -> Response:
    """List acts, newest first, with how far each is."""
    found = await run_in_threadpool(bulk_acts.newest, who.app, 100)
    return JsonAnswer({"items": [_shown(one.job) for one in found]})


async def get_bulk(who: Who, id: Id) -> Response:  # noqa: A002
    """Show one act and how far it is."""
    return JsonAnswer({"item": _shown(await _find(who, id))})


async def abort_bulk(who: Who, id: Id) -> Response:  # noqa: A002
    """Stop an act; what it has done stays done."""
    return await _stop(who, id, ABORTED)


async def pause_bulk(who: Who, id: Id) -> Response:  # noqa: A002
    """Stop an act so that it can go on later."""
    return await _stop(who, id, PAUSED)


async def resume_bulk(who: Who, id: Id) -> Response:  # noqa: A002
    """Go on with an act that was paused, or has failed, from where it was."""
    job = await _find(who, id)
    await run_in_threadpool(bulk_acts.go_on, who.app, job.id, actor=who.name)
    return JsonAnswer({"item": {"id": job.id, "state": "queued"}})


async def undo_bulk(who: Who, site: Here, id: Id, body: UndoBody) -> Response:  # noqa: A002
    """Revive what an act has cancelled, by another act, whose id is answered."""
    job = await _find(who, id)
    await site.quotas.take_jobs(who.tenant, (await run_in_threadpool(bulk_acts.find, who.app, job.id)).done)
    made = await run_in_threadpool(bulk_acts.undo, who.app, job.id, actor=who.name, reason=body.reason)
    return JsonAnswer({"item": {"id": made, "undoes": job.id}}, 202)


async def _find(who: Principal, id: str) -> Job:  # noqa: A002
    job = await find(who, id)
    if job.kind != KIND:
        raise not_found()
    return job


async def _stop(who: Principal, id: str, why: str) -> Response:  # noqa: A002
    job = await _find(who, id)
    done = await who.app.aio.cancel(job.id, actor=who.name, reason=why)
    return JsonAnswer({"item": {"id": job.id, "state": done.state, "answer": done.answer}})


def _shown(job: Job) -> dict[str, Any]:
    told: dict[str, Any] = plain(job.payload or {})
    far: dict[str, Any] = plain(job.result or job.progress or {"done": 0, "failed": 0, "total": told.get("total")})
    return {
        "id": job.id,
        "state": job.shown_state,
        "progress": {name: value for name, value in far.items() if name != "after"},
        "created_at": plain(job.created_at),
        "finished_at": plain(job.finished_at),
        **told,
    }


_V: Final = "/api/v1/bulk"
ROUTES: Final = (
    Route("POST", _V, "operate", "bulk", new_bulk, "bulk", 202, answers=BulkShown, others=(200, 409)),
    Route("GET", _V, "operate", None, list_bulk, "bulk", answers=BulkList),
    Route("GET", _V + "/{id}", "operate", None, get_bulk, "bulk", answers=BulkShown),
    Route("POST", _V + "/{id}/abort", "operate", "abort_bulk", abort_bulk, "bulk", answers=BulkShown, others=(409,)),
    Route("POST", _V + "/{id}/pause", "operate", "pause_bulk", pause_bulk, "bulk", answers=BulkShown, others=(409,)),
    Route("POST", _V + "/{id}/resume", "operate", "resume_bulk", resume_bulk, "bulk", answers=BulkShown, others=(409,)),
    Route("POST", _V + "/{id}/undo", "operate", "undo_bulk", undo_bulk, "bulk", 202, answers=BulkShown, others=(409,)),
)
